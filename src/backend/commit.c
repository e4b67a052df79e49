/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Layer 2 of the guard: the end of the transaction.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/storage.h"
#include "commands/tablecmds.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/varlena.h"

#include "backend/guard_state.h"
#include "backend/written.h"
#include "common/compat.h"
#include "common/settings.h"

/*
 * How much more than zklock.commit_margin of the lease has to be left before a
 * statement begins that cannot be undone: it takes a while, and is to be refused
 * before it rather than after it. The same before others commit on their servers.
 */
#define NO_WAY_BACK_MARGIN	ZKL_MS(1000)
#define ELSEWHERE_MARGIN	ZKL_MS(100)


/*
 * The moment: with "margin" of the lease left, mark each entry, so that nobody takes a
 * lock away from here to the end of the transaction.
 */
static void
decide(ZklTime margin)
{
	Assert(zkl_guard.step == COMMIT_NOT_YET);
	if (!zkl_still_good(margin))
		zkl_raise_doom();

	zkl_guard.step = COMMIT_DECIDED;
	for (int i = 0; i < zkl_nholds; i++)
	{
		uint32		old = pg_atomic_fetch_or_u32(&zkl_shared->entries[zkl_holds[i].entryno].flags,
												 ZKL_FLAG_COMMITTING);

		if (old & ZKL_FLAG_LOST)
		{
			zkl_holds[i].loss = zkl_loss_of_flags(old);
			zkl_doom(&zkl_holds[i]);
			zkl_raise_doom();
		}
	}
}

void
zkl_undecide(void)
{
	if (zkl_guard.step == COMMIT_DECIDED)
		for (int i = 0; i < zkl_nholds; i++)
			pg_atomic_fetch_and_u32(&zkl_shared->entries[zkl_holds[i].entryno].flags,
									~ZKL_FLAG_COMMITTING);
	zkl_guard.step = COMMIT_NOT_YET;
}

void
zkl_check_way_back(void)
{
	if (!zkl_still_good(ZKL_MS(zkl_commit_margin) + NO_WAY_BACK_MARGIN))
		zkl_raise_doom();
}

/*
 * Such a statement is refused while there is time for it. That of a prepared
 * transaction is the commit itself; that of the transaction around it decides nothing.
 */
void
zkl_begin_without_way_back(Node *stmt)
{
	if (!zkl_is_two_phase(stmt))
		zkl_check_way_back();
	else if (zkl_nholds > 0)
		decide(ZKL_MS(zkl_commit_margin));
}

/*
 * What PostgreSQL does between PRE_COMMIT and the commit record, and what others can
 * make long: done here, before the clock is read, it is a wait like any other. It does
 * each of these a second time, and then finds it done.
 *
 * A library that was preloaded before us is called after us, and may yet write:
 * then what it wrote would not be synced, or its temporary tables be gone.
 */
static void
finish_early(void)
{
	MemoryContext context = CurrentMemoryContext;
	sig_atomic_t exempt = zkl_guard.exempt;

	zkl_guard.exempt = false;
	zkl_enter_level();
	PG_TRY();
	{
		if (zkl_guard.first_in_line)
		{
			PreCommit_on_commit_actions();

			/*
			 * a second time it would empty all such tables again, which takes
			 * as long
			 */
			MyXactFlags &= ~XACT_FLAGS_ACCESSEDTEMPNAMESPACE;
			smgrDoPendingSyncs(true, false);
		}
		/* the last one, since who has it and waits makes all others wait */
		if (zkl_notify_is_pending())
		{
			(void) GetCurrentTransactionId();
			LockSharedObject(DatabaseRelationId, InvalidOid, 0, AccessExclusiveLock);
		}
	}
	PG_CATCH();
	{
		zkl_guard.exempt = exempt;
		zkl_leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	zkl_guard.exempt = exempt;
	zkl_guard.nesting--;
}

/*
 * How long may it take to put the notifications of this transaction into their queue?
 * That comes after the check, and can be long: there may be millions. How many there are
 * only async.c knows, but they lie in the transaction's memory; a queue takes several
 * hundred megabytes of that in a second, and is not trusted with more than a hundred.
 */
static ZklTime
time_to_notify(void)
{
	if (!zkl_notify_is_pending())
		return 0;
	return (ZklTime) (MemoryContextMemAllocated(TopTransactionContext, true) / 100);
}

/*
 * Is there a lock that this commit depends on? One that was never looked at in this
 * transaction counts from here.
 */
static bool
commit_depends_on_lock(void)
{
	zkl_forget_next_cancel();
	if (zkl_guard.step == COMMIT_DECIDED)
		return false;			/* a prepared transaction's */
	if (proc_exit_inprogress)
		return false;			/* its temporary tables are dropped */
	if (zkl_guard.timer_found || zkl_guard.doom != ZKL_LOSS_NONE)
		zkl_guard_check_doom();
	if (zkl_nholds == 0 || !(zkl_guard.did_work || zkl_has_written()))
		return false;
	zkl_rely();
	return true;
}

/*
 * Layer 2, ahead of those who commit on other servers. What is lost while they do
 * cannot be taken back there; so not in the last moment.
 */
static void
pre_commit_first(void)
{
	if (!zkl_is_concerned() || !commit_depends_on_lock())
		return;
	if (!zkl_still_good(ZKL_MS(zkl_commit_margin) + (zkl_written_elsewhere == ZKL_WRITTEN_FAR ? ELSEWHERE_MARGIN : 0)))
		zkl_raise_doom();
	zkl_guard.committed_elsewhere = zkl_written_elsewhere == ZKL_WRITTEN_FAR;
}

/* And as close to our own commit record as it can be. */
static void
pre_commit_last(void)
{
	bool		writes;

	if (!zkl_is_concerned())
		return;
	if (!commit_depends_on_lock())
	{
		if (zkl_guard.step == COMMIT_NOT_YET)
			zkl_guard.step = COMMIT_HARMLESS;
		return;
	}
	writes = zkl_has_written();
	if (writes)
		finish_early();
	decide(ZKL_MS(zkl_commit_margin) + time_to_notify());

	/* the next holder must not act on what a crash could take back */
	if (writes)
		ForceSyncCommit();
}

static void
end_transaction(void)
{
	bool		relied = zkl_guard.relying;

	/* first of all: from here on the timer's handler does nothing */
	zkl_guard.relying = false;
	zkl_undecide();
	if (zkl_guard.signal != 0)
		zkl_timer_set(0);
	zkl_guard.did_work = zkl_guard.committed_elsewhere = false;
	zkl_guard.doom = ZKL_LOSS_NONE;
	zkl_guard.timer_found = zkl_guard.swallowed = zkl_guard.ending = false;
	zkl_forget_next_cancel();
	zkl_written_forget();
	zkl_holds_at_xact_end();

	/*
	 * Inside a statement, which goes on: its next transaction relies on what
	 * is left from its first moment, and with the epoch of the statement's
	 * beginning, since what it does is one piece of work.
	 */
	if (zkl_guard.nesting > 0 && zkl_nholds > 0 && !proc_exit_inprogress)
	{
		Assert(zkl_guard.signal != 0);
		if (!relied)
			zkl_guard.epoch = zkl_word_epoch(pg_atomic_read_u64(&zkl_shared->lease));
		zkl_guard.relying = true;
		zkl_guard.did_work = true;
		zkl_timer_arm();
	}
}

/* The first of all that are called; see zkl_come_first(). */
static void
on_xact_first(XactEvent event, void *arg)
{
	if ((uintptr_t) arg != zkl_guard.place)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pre_commit_first();
			break;
		case XACT_EVENT_ABORT:
			/* others may take their time over it */
			end_transaction();
			break;
		default:
			break;
	}
}

static void
on_xact_last(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pre_commit_last();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (zkl_nholds > 0 || zkl_guard.doom != ZKL_LOSS_NONE)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction while zklock locks are held"),
						 errdetail("Nobody could abort the prepared transaction when a lock is lost."),
						 errhint("Release the locks first, or use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			/* after the commit is durable and visible, never before */
			end_transaction();
			break;
		default:
			break;
	}
}

static void
on_subxact(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	if ((uintptr_t) arg != zkl_guard.place)
		return;
	switch (event)
	{
		case SUBXACT_EVENT_ABORT_SUB:
			zkl_holds_at_subxact_abort(GetCurrentTransactionNestLevel());
			if (zkl_guard.nesting > 0 &&
				(zkl_guard.doom != ZKL_LOSS_NONE || zkl_guard.timer_found || (zkl_guard.relying && !zkl_still_good(0))))
			{
				/*
				 * somebody caught it (the worker's push is a mere cancel, so
				 * look): cancel what comes next, too
				 */
				zkl_guard.swallowed = true;
				QueryCancelPending = true;
				InterruptPending = true;
			}
			break;
		case SUBXACT_EVENT_COMMIT_SUB:
			zkl_holds_at_subxact_commit(GetCurrentTransactionNestLevel());
			break;
		default:
			break;
	}
}

/* The number of libraries that this process has ever loaded, of the first entry. */
static int
read_loaded(struct dl_phdr_info *info, size_t size, void *loaded)
{
	*(unsigned long long *) loaded = info->dlpi_adds;
	return 1;
}

/*
 * A library that registers its callbacks when it is loaded, or as postgres_fdw does
 * when it is first used, is called before us: get in front of it again. Called when
 * the outermost level of statements ends, and so before any commit that counts.
 *
 * The places that we had stay behind, and do nothing: to give one up would not be safe
 * where a statement runs inside somebody's callback, for whom it may be the next one.
 * So there is one for each library and each foreign data wrapper, and no more.
 */
void
zkl_come_first(void)
{
	static unsigned long long known = 0;
	unsigned long long loaded = known;

	(void) dl_iterate_phdr(read_loaded, &loaded);
	if (loaded == known && !zkl_written_wrapper_is_new())
		return;
	known = loaded;
	zkl_guard.place++;
	RegisterXactCallback(on_xact_first, (void *) zkl_guard.place);
	RegisterSubXactCallback(on_subxact, (void *) zkl_guard.place);
}

/*
 * Is this library the first of those that are preloaded? Callbacks of one before it
 * are called after ours, that is between our last check and the commit record, and
 * nothing that PostgreSQL offers changes that.
 */
static bool
is_preloaded_first(void)
{
	char	   *libraries = pstrdup(shared_preload_libraries_string);
	List	   *list = NIL;
	const char *first = "";
	size_t		len;

	if (SplitDirectoriesString(libraries, ',', &list) && list != NIL)
	{
		first = linitial(list);
		if (strrchr(first, '/') != NULL)
			first = strrchr(first, '/') + 1;
	}
	len = strlen(first);
	if (len > 3 && strcmp(first + len - 3, DLSUFFIX) == 0)
		len -= 3;
	return len == 6 && strncmp(first, "zklock", len) == 0;
}

void
zkl_guard_init(void)
{
	zkl_guard.first_in_line = is_preloaded_first();
	if (!zkl_guard.first_in_line)
		ereport(WARNING,
				(errmsg("zklock is not the first of shared_preload_libraries"),
				 errdetail("What a library before it does at COMMIT comes after zklock's last check, and nothing bounds how long it takes."),
				 errhint("Put zklock first, unless the other library demands to be.")));

	zkl_statements_init();

	/* first registered is last called */
	RegisterXactCallback(on_xact_last, NULL);
	RegisterXactCallback(on_xact_first, (void *) zkl_guard.place);
	RegisterSubXactCallback(on_subxact, (void *) zkl_guard.place);
}
