/*-------------------------------------------------------------------------
 *
 * desk.c
 *	  Desks, where backends ask what only the coordinator can answer.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/desk.h"

ZklDesk    *zkl_desks = NULL;
ZklSlip    *zkl_slips = NULL;

void
zkl_desks_init(ZklDesk *desks)
{
	memset(desks, 0, ZKL_DESKS * sizeof(*desks));
	for (int i = 0; i < ZKL_DESKS; i++)
		pg_atomic_init_u64(&desks[i].word, zkl_desk_word(1, 0, ZKL_DESK_FREE));
}

bool
zkl_desk_read_slip(ZklDesk *desk, uint64 word)
{
	memcpy(&desk->question, &zkl_slips[zkl_desk_procno(word)].question, sizeof(desk->question));
	pg_memory_barrier();
	/* an asker that writes on its slip again has left the desk before */
	return pg_atomic_read_u64(&desk->word) == word;
}

void
zkl_desk_clear(ZklDesk *desk, uint64 word)
{
	/* the asker may clear it at this moment, too */
	(void) pg_atomic_compare_exchange_u64(&desk->word, &word, zkl_desk_cleared(word));
}
