/*-------------------------------------------------------------------------
 *
 * holds.c
 *	  The locks that this backend holds.
 *
 * A hold is kept in this process, by name, with its counts per level, as the
 * lock manager keeps its own: backend-level acquires stack and survive a
 * rollback, transaction-level ones go with the (sub)transaction that made them.
 * The entry in shared memory is taken with the first and let go with the last.
 *
 * So there are three things: the lock with the coordinator, its entry in shared memory,
 * and the hold here, as a LOCK, a PROCLOCK and a LOCALLOCK are for PostgreSQL's own.
 *
 * While a request waits, its entry's number is in zkl_pending. Whatever ends the wait
 * other than a grant is an error, or the end of the process. The error lets a pending
 * entry go on its way out and does not leave that to the abort of the transaction, in
 * which other libraries may take their time: the lock could be granted meanwhile, to
 * nobody.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "backend/holds.h"
#include "backend/written.h"
#include "shared/shmem.h"

ZklHold    *zkl_holds = NULL;
int			zkl_nholds = 0;
static int	max_holds = 0;

volatile int *volatile zkl_held_entries = NULL;
volatile int zkl_nheld_entries = 0;

int			zkl_pending = -1;
int			zkl_pending_turn = -1;
static bool exit_hook_registered = false;

static bool is_unused(const ZklHold *hold);

static inline bool
is_released(const ZklHold *hold)
{
	return hold->state == ZKL_HOLD_RELEASED;
}

ZklHold *
zkl_holds_find(const char *name)
{
	ZklHold    *found = NULL;

	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		/* rather one that was not given back, rather the write hold */
		if (strcmp(hold->name, name) == 0 && !hold->superseded &&
			(found == NULL || is_released(found) > is_released(hold) ||
			 (is_released(found) == is_released(hold) && found->mode == ZKL_MODE_READ)))
			found = hold;
	}
	return found;
}

/* The hold of this name in this mode, or NULL. Of several permits, one that was given back. */
ZklHold *
zkl_holds_find_mode(const char *name, ZklMode mode)
{
	ZklHold    *found = NULL;

	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->mode == mode && strcmp(hold->name, name) == 0 && !hold->superseded &&
			(found == NULL || is_released(hold)))
			found = hold;
	}
	return found;
}

void
zkl_pending_let_go(void)
{
	if (zkl_pending >= 0)
		zkl_entry_let_go(zkl_pending);
	if (zkl_pending_turn >= 0)
		zkl_entry_let_go(zkl_pending_turn);
	zkl_pending = zkl_pending_turn = -1;
}

/* At process exit, after the last transaction was aborted. */
static void
let_go_at_exit(int code, Datum arg)
{
	for (int i = 0; i < zkl_nholds; i++)
		zkl_entry_let_go(zkl_holds[i].entryno);
	zkl_pending_let_go();
	zkl_nholds = 0;
	zkl_nheld_entries = 0;
}

/* Room for one more hold, before it is needed: afterwards nothing may fail. */
void
zkl_holds_reserve(void)
{
	volatile int *old_entries = zkl_held_entries;
	volatile int *new_entries;

	if (!exit_hook_registered)
	{
		on_shmem_exit(let_go_at_exit, (Datum) 0);
		exit_hook_registered = true;
	}
	if (zkl_nholds < max_holds)
		return;

	if (max_holds == 0)
		zkl_holds = MemoryContextAlloc(TopMemoryContext, 8 * sizeof(ZklHold));
	else
		zkl_holds = repalloc(zkl_holds, 2 * max_holds * sizeof(ZklHold));
	max_holds = max_holds == 0 ? 8 : 2 * max_holds;

	new_entries = MemoryContextAlloc(TopMemoryContext, max_holds * sizeof(int));
	for (int i = 0; i < zkl_nheld_entries; i++)
		new_entries[i] = old_entries[i];
	zkl_held_entries = new_entries;
	if (old_entries != NULL)
		pfree(unvolatize(int *, old_entries));
}

ZklHold *
zkl_holds_add(const char *name, int entryno, ZklMode mode, int64 token)
{
	ZklHold    *hold = &zkl_holds[zkl_nholds];

	memset(hold, 0, sizeof(*hold));
	hold->name_len = strlcpy(hold->name, name, sizeof(hold->name));
	hold->entryno = entryno;
	hold->mode = mode;
	hold->token = token;
	zkl_nholds++;
	zkl_held_entries[zkl_nheld_entries] = entryno;
	zkl_nheld_entries = zkl_nheld_entries + 1;
	return hold;
}

/* Let the lock go and forget it. The last hold takes this one's place. */
void
zkl_hold_drop(ZklHold *hold)
{
	int			position = hold - zkl_holds;
	int			entryno = hold->entryno;

	for (int i = 0; i < zkl_nheld_entries; i++)
	{
		if (zkl_held_entries[i] != entryno)
			continue;
		zkl_held_entries[i] = zkl_held_entries[zkl_nheld_entries - 1];
		zkl_nheld_entries = zkl_nheld_entries - 1;
		break;
	}
	if (hold->levels != NULL)
		pfree(hold->levels);
	zkl_nholds--;
	if (position != zkl_nholds)
		zkl_holds[position] = zkl_holds[zkl_nholds];
	zkl_entry_let_go(entryno);
}

static bool
is_unused(const ZklHold *hold)
{
	return hold->backend_count == 0 && hold->nlevels == 0;
}

/* Room for one more transaction-level acquire, as zkl_holds_reserve(). */
void
zkl_hold_reserve_level(ZklHold *hold)
{
	if (hold->nlevels < hold->maxlevels)
		return;
	if (hold->maxlevels == 0)
		hold->levels = MemoryContextAlloc(TopMemoryContext, 4 * sizeof(ZklLevelCount));
	else
		hold->levels = repalloc(hold->levels, 2 * hold->maxlevels * sizeof(ZklLevelCount));
	hold->maxlevels = hold->maxlevels == 0 ? 4 : 2 * hold->maxlevels;
}

/* For those who look: at which levels is it held? */
static void
publish_levels(const ZklHold *hold)
{
	pg_atomic_write_u32(&zkl_shared->entries[hold->entryno].levels,
						(hold->backend_count > 0 ? ZKL_LEVEL_BACKEND : 0) |
						(hold->nlevels > 0 ? ZKL_LEVEL_XACT : 0));
}

void
zkl_hold_count_acquire(ZklHold *hold, bool xact_level)
{
	int			level = GetCurrentTransactionNestLevel();

	/*
	 * if a rollback to a savepoint takes this acquire back, the release
	 * stands
	 */
	if (hold->state == ZKL_HOLD_RELEASED)
		hold->state = ZKL_HOLD_KEPT;
	if (!xact_level)
		hold->backend_count++;
	else if (hold->nlevels > 0 && hold->levels[hold->nlevels - 1].level == level)
		hold->levels[hold->nlevels - 1].count++;
	else
	{
		hold->levels[hold->nlevels].level = level;
		hold->levels[hold->nlevels].count = 1;
		hold->nlevels++;
	}
	publish_levels(hold);
}

/*
 * The last backend-level acquire was given back. If the transaction has written, a
 * transaction-level one that is left must not take the lock with it when its
 * subtransaction is rolled back.
 */
static void
note_backend_release(ZklHold *hold)
{
	Assert(hold->backend_count >= 0);
	if (hold->backend_count == 0 && hold->loss == ZKL_LOSS_NONE && zkl_has_written())
		hold->state = ZKL_HOLD_KEPT;
}

/*
 * Nobody needs the hold any more. In a transaction that wrote, the lock has to
 * outlast the commit, or the writes would become visible under the next holder.
 */
static void
give_back(ZklHold *hold)
{
	if (hold->loss == ZKL_LOSS_NONE && zkl_has_written())
		hold->state = ZKL_HOLD_RELEASED;
	else
		zkl_hold_drop(hold);
}

/* It has succeeded. */
void
zkl_holds_drop_superseded(void)
{
	for (int i = zkl_nholds - 1; i >= 0; i--)
		if (zkl_holds[i].superseded)
			zkl_hold_drop(&zkl_holds[i]);
}

/* To acquire it again has failed: the loss is still not acknowledged. */
void
zkl_holds_restore_superseded(void)
{
	for (int i = 0; i < zkl_nholds; i++)
		zkl_holds[i].superseded = false;
}

void
zkl_holds_at_xact_end(void)
{
	zkl_pending_let_go();
	zkl_holds_restore_superseded();
	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		hold->nlevels = 0;
		if (hold->state == ZKL_HOLD_KEPT)
			hold->state = ZKL_HOLD_HELD;
		publish_levels(hold);
		/* a lost backend-level hold stays until its loss is acknowledged */
		if (is_unused(hold))
			zkl_hold_drop(hold);
	}
}

void
zkl_holds_at_subxact_abort(int level)
{
	zkl_pending_let_go();
	zkl_holds_restore_superseded();
	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		while (hold->nlevels > 0 && hold->levels[hold->nlevels - 1].level >= level)
			hold->nlevels--;
		publish_levels(hold);
		if (!is_unused(hold) || hold->state == ZKL_HOLD_RELEASED)
			continue;
		if (hold->state == ZKL_HOLD_KEPT && hold->loss == ZKL_LOSS_NONE)
			hold->state = ZKL_HOLD_RELEASED;
		else
			zkl_hold_drop(hold);
	}
}

void
zkl_holds_at_subxact_commit(int level)
{
	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];
		ZklLevelCount *last;

		if (hold->nlevels == 0)
			continue;
		last = &hold->levels[hold->nlevels - 1];
		if (last->level < level)
			continue;
		last->level = level - 1;
		if (hold->nlevels > 1 && last[-1].level == level - 1)
		{
			last[-1].count += last->count;
			hold->nlevels--;
		}
	}
}

int
zkl_holds_release_all(void)
{
	int			released = 0;

	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->backend_count == 0)
			continue;
		released += hold->backend_count;
		hold->backend_count = 0;
		note_backend_release(hold);
		publish_levels(hold);
		if (hold->loss != ZKL_LOSS_NONE)
			zkl_hold_drop(hold);
		else if (is_unused(hold))
			give_back(hold);
	}
	return released;
}

void
zkl_hold_release(ZklHold *hold)
{
	Assert(hold->backend_count > 0);
	hold->backend_count--;
	note_backend_release(hold);
	publish_levels(hold);
	if (is_unused(hold))
		give_back(hold);
}
