/*-------------------------------------------------------------------------
 *
 * desks.c
 *	  What backends ask of the coordinator: the worker's side of the desks.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"
#include "storage/proc.h"

#include "worker/internal.h"

/*
 * An asker waits no longer than ASKED_MS, and fetches an answer at once. One that
 * does neither is stopped, and must not keep the desk from others.
 */
#define ASKED_MS	3000
#define ANSWERED_MS 500

/* Hand what was asked to the coordinator; false when the asker has left by now. */
static bool
ask(int i)
{
	ZklDesk    *desk = &zkl_desks[i];

	if (!zkl_desk_read_slip(desk, zkl_worker.desks[i].word))
		return false;
	desk->question.place = i;
	desk->question.serial = ++zkl_worker.desks[i].serial;
	zkl_worker.ops->ask(zkl_worker.coordinator, &desk->question);
	return true;
}

/*
 * The asker has left. What it asked for must not happen later: an operator who was told
 * that zk_lock_break() failed would not expect it.
 */
static void
withdraw(int i)
{
	if (zkl_worker.desks[i].asked)
		zkl_worker.ops->withdraw(zkl_worker.coordinator, i);
	zkl_worker.desks[i].asked = false;
	zkl_worker.desks[i].serial++;
}

/* Begin what was asked, and clear what was given up. */
void
zkl_desks_look(ZklTime now)
{
	for (int i = 0; i < ZKL_DESKS; i++)
	{
		uint64		word = pg_atomic_read_u64(&zkl_desks[i].word);
		ZklDeskState state = zkl_desk_state(word);
		ZklTime		patience = ZKL_MS(state == ZKL_DESK_ANSWERED ? ANSWERED_MS : ASKED_MS);

		if (word != zkl_worker.desks[i].word)
		{
			if (zkl_desk_generation(word) != zkl_desk_generation(zkl_worker.desks[i].word))
				withdraw(i);
			zkl_worker.desks[i].word = word;
			zkl_worker.desks[i].since = now;
		}
		if (state == ZKL_DESK_FREE)
			continue;
		pg_read_barrier();
		if (state == ZKL_DESK_ABANDONED || now - zkl_worker.desks[i].since > patience)
		{
			withdraw(i);
			zkl_desk_clear(&zkl_desks[i], word);
		}
		else if (state == ZKL_DESK_ASKED && !zkl_worker.desks[i].asked)
			zkl_worker.desks[i].asked = ask(i);
	}
}

/* Write the coordinator's answer down at the desk that it is for, and wake the asker. */
void
zkl_desks_answered(const ZklEvent *event)
{
	int			i = event->slot;
	ZklDesk    *desk = &zkl_desks[i];
	uint64		expected = zkl_worker.desks[i].word;

	Assert(i >= 0 && i < ZKL_DESKS);
	if (!zkl_worker.desks[i].asked || event->serial != zkl_worker.desks[i].serial ||
		zkl_desk_state(expected) != ZKL_DESK_ASKED ||
		pg_atomic_read_u64(&desk->word) != expected)
		return;
	Assert(event->answer->nrows <= ZKL_ANSWER_ROWS);
	desk->result = event->answer->result;
	strlcpy(desk->text, event->answer->text, sizeof(desk->text));
	desk->contenders = event->answer->contenders;
	desk->nrows = event->answer->nrows;
	memcpy(desk->rows, event->answer->rows, desk->nrows * sizeof(ZklContenderRow));
	if (pg_atomic_compare_exchange_u64(&desk->word, &expected,
									   zkl_desk_with_state(expected, ZKL_DESK_ANSWERED)))
		SetLatch(&GetPGProcByNumber(zkl_desk_procno(expected))->procLatch);
}
