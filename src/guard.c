/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  Nothing commits under a lock that is not certain.
 *
 * A transaction relies on a lock from the moment it is granted in it, or from
 * its first statement while the backend holds one. From then on it must not
 * commit unless the lease was current all the time and no lock was lost. Five
 * layers see to that, because each has a hole:
 *
 * 1. Check at use: each zklock function, and each statement at its start
 *	  (executor start and run, utility statements), reads the clock. Hole: a
 *	  statement that runs for an hour.
 * 2. PRE_COMMIT reads the clock once more. This is the layer that safety rests
 *	  on. Hole: it comes late; the row locks are held until then.
 * 3. A timer cancels the statement at the deadline, or half a second after a
 *	  loss. Hole: interrupts can be held off, an idle backend ignores a cancel.
 * 4. The worker sends the timer's signal at once when it learns of a loss.
 * 5. Doom sticks until the end of the top-level transaction, whatever catches
 *	  the error on the way: inside nested levels it travels as query_canceled,
 *	  which PL/pgSQL's WHEN OTHERS does not catch, and becomes ZK001 where it
 *	  leaves the outermost statement; a block that does catch it is cancelled
 *	  again as soon as it goes on, and ended by FATAL after a second.
 *
 * Past PRE_COMMIT none of them may strike: a cancel during the wait for a
 * synchronous standby would make the commit return early, un-replicated. So
 * PRE_COMMIT disarms the timer and marks each entry; a mark and a loss are set
 * with the same fetch-or, so one of the two comes first and both sides know.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "nodes/primnodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"
#include "utils/fmgrprotos.h"

#include "clock.h"
#include "compat.h"
#include "guard.h"
#include "shmem.h"
#include "zklock.h"

/* The timer looks at least this often: a loss moves no deadline. */
#define TIMER_PERIOD_MS		500

/* While a doomed statement goes on: cancel it again, and end it by FATAL after. */
#define DOOM_PERIOD_MS		100
#define DOOM_PATIENCE		ZKL_MS(1000)

typedef enum DoomReason
{
	DOOM_LAPSED,
	DOOM_EXPIRED,
	DOOM_VANISHED,
	DOOM_BROKEN
} DoomReason;

static struct
{
	int			nesting;		/* executor and utility levels we are in */
	bool		relying;		/* this transaction relies on a lock ... */
	uint32		epoch;			/* ... since the lease had this epoch */
	bool		did_work;		/* ... and ran a statement that is not exempt */
	bool		committing;		/* entries are marked COMMITTING */
	uint32		losses;			/* zkl_shared->losses when we last looked */

	bool		doomed;
	DoomReason	reason;
	char		name[ZKL_NAME_MAX + 1]; /* of the lock, UTF-8 */
	char		breaker[sizeof(((ZklEntry *) 0)->breaker)];
	ZklTime		since;			/* deadline that passed, or when it was seen */
	bool		travelling;		/* ZK001 is on its way up as query_canceled;
								 * a procedure's COMMIT that fails ends the
								 * doomed transaction before it arrives */

	/* what the signal handler and the rest tell each other */
	volatile sig_atomic_t timer_found;	/* it saw what dooms us */
	volatile sig_atomic_t in_copy_in;	/* COPY FROM STDIN: may wait for the client */
	volatile sig_atomic_t swallowed;	/* somebody caught the cancel */
	volatile sig_atomic_t dying;	/* it decided for FATAL */
	ZklTime		found_at;
	volatile sig_atomic_t exempt;	/* the client's statement passes in any case */
	volatile sig_atomic_t timer_armed;
	int			signal;			/* of the timer and of the worker's push; 0 =
								 * not set up yet */
	timer_t		timer;
} guard;

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* ------------------------------------------------------------------------
 * What is wrong
 * ------------------------------------------------------------------------
 */

static void
mark_lost(ZklHold *hold, uint32 fate)
{
	hold->lost = true;
	hold->loss = (fate & ZKL_FATE_BROKEN) ? ZKL_LOSS_BROKEN :
		(fate & ZKL_FATE_VANISHED) ? ZKL_LOSS_VANISHED : ZKL_LOSS_EXPIRED;
}

/* Look for losses that the worker has marked since the last call. */
static void
refresh(void)
{
	uint32		losses = pg_atomic_read_u32(&zkl_shared->losses);

	if (losses == guard.losses)
		return;
	guard.losses = losses;
	pg_read_barrier();
	for (int i = 0; i < zkl_nholds; i++)
	{
		uint32		fate = pg_atomic_read_u32(&zkl_shared->entries[zkl_holds[i].entry].fate);

		if (fate & ZKL_FATE_LOST)
			mark_lost(&zkl_holds[i], fate);
	}
}

static const ZklHold *
find_lost(void)
{
	refresh();
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].lost && !zkl_holds[i].superseded)
			return &zkl_holds[i];
	return NULL;
}

bool
zkl_guard_is_certain(const ZklHold *hold)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	return !hold->lost &&
		zkl_shared->entries[hold->entry].generation == zkl_word_generation(word) &&
		(!guard.relying || zkl_word_epoch(word) == guard.epoch) &&
		zkl_now() < zkl_word_deadline(word);
}

/* The transaction cannot commit any more, because of this lock. */
static void
doom(const ZklHold *hold)
{
	ZklTime		now = zkl_now();

	if (guard.doomed)
		return;
	guard.doomed = true;
	if (hold->lost)
	{
		guard.reason = hold->loss == ZKL_LOSS_BROKEN ? DOOM_BROKEN :
			hold->loss == ZKL_LOSS_VANISHED ? DOOM_VANISHED : DOOM_EXPIRED;
		guard.since = zkl_shared->entries[hold->entry].lost_at;
		strlcpy(guard.breaker, zkl_shared->entries[hold->entry].breaker, sizeof(guard.breaker));
	}
	else
	{
		ZklTime		deadline = zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease));

		guard.reason = DOOM_LAPSED;
		guard.since = deadline != 0 && deadline < now ? deadline : now;
	}
	strlcpy(guard.name, hold->name, sizeof(guard.name));
	if (!guard.timer_found)
		guard.found_at = now;
}

/*
 * Layer 1 and 2 at their core. "margin": how much of the lease has to be left.
 * Returns false after dooming the transaction.
 */
static bool
still_good(ZklTime margin)
{
	const ZklHold *lost;
	uint64		word;

	if (guard.doomed)
		return false;
	if (zkl_nholds == 0)
	{
		guard.relying = false;
		return true;
	}
	lost = find_lost();
	if (lost != NULL)
	{
		doom(lost);
		return false;
	}
	if (!guard.relying)
		return true;
	word = pg_atomic_read_u64(&zkl_shared->lease);
	if (zkl_word_epoch(word) == guard.epoch && zkl_now() + margin < zkl_word_deadline(word))
		return true;
	doom(&zkl_holds[0]);
	return false;
}

void
zkl_guard_refresh(void)
{
	refresh();
	if (guard.relying)
		(void) still_good(0);
}

static const char *
doom_detail(ZklTime now)
{
	long		ago = (long) ((now - guard.since) / 1000);

	switch (guard.reason)
	{
		case DOOM_EXPIRED:
			return psprintf("The ZooKeeper session ended, as was seen %ld ms ago.", ago);
		case DOOM_VANISHED:
			return psprintf("Its node in ZooKeeper was deleted, as was seen %ld ms ago.", ago);
		case DOOM_BROKEN:
			return psprintf("It was taken away by %s, %ld ms ago.",
							zkl_text_for_message(guard.breaker), ago);
		case DOOM_LAPSED:
			break;
	}
	return psprintf("ZooKeeper did not confirm in time that this server still holds it; the lease ran out %ld ms ago.",
					ago);
}

#define DOOM_HINT "Roll back, and acquire the lock again before you repeat the work."

/*
 * Raise what dooms us. Inside nested levels it has to be an error that is not
 * caught by accident; at_level_0() turns it into ZK001 on its way out.
 */
static void
raise_doom(void)
{
	/* decided for FATAL, and whoever swallows this may not look himself */
	if (guard.dying)
		CHECK_FOR_INTERRUPTS();
	guard.travelling = guard.nesting > 0;
	ereport(ERROR,
			(errcode(guard.nesting > 0 ? ERRCODE_QUERY_CANCELED : ZKL_ERRCODE_LOCK_LOST),
			 errmsg("%s is lost", zkl_lock_label(guard.name)),
			 errdetail("%s", doom_detail(zkl_now())),
			 errhint(DOOM_HINT)));
}

void
zkl_guard_check_doom(void)
{
	if (guard.timer_found)
		(void) still_good(0);
	if (guard.doomed)
		raise_doom();
}

void
zkl_guard_check(void)
{
	if (!still_good(0))
		raise_doom();
}

bool
zkl_guard_check_hold(const ZklHold *hold)
{
	bool		relying = guard.relying;

	zkl_guard_check();
	/* relying on a lock, to be certain of one is to be certain of all */
	return relying || zkl_guard_is_certain(hold);
}

void
zkl_guard_raise(const ZklHold *hold)
{
	doom(hold);
	raise_doom();
	pg_unreachable();
}

bool
zkl_guard_is_nested(void)
{
	return guard.nesting > 1;
}

/* ------------------------------------------------------------------------
 * Layer 3: the timer
 *
 * Not one of PostgreSQL's: those run on the wall clock, and one that waits while
 * that is set back by a day goes off a day late. And an error at top level
 * disarms them all. This one belongs to the kernel, runs on the lease's clock
 * and has a signal of its own.
 * ------------------------------------------------------------------------
 */

/* 0 disarms: once that has returned, on_timer() is not called. */
static void
set_timer(long ms)
{
	struct itimerspec when = {0};

	when.it_value.tv_sec = ms / 1000;
	when.it_value.tv_nsec = ms % 1000 * 1000000;
	guard.timer_armed = ms > 0;
	(void) timer_settime(guard.timer, 0, &when, NULL);	/* cannot fail */
}

/* Idle in transaction? Activity reporting knows; without it, the levels do. */
static bool
is_idle(void)
{
	if (guard.nesting > 0)
		return false;
	return !pgstat_track_activities || MyBEEntry == NULL ||
		MyBEEntry->st_state == STATE_IDLEINTRANSACTION ||
		MyBEEntry->st_state == STATE_IDLEINTRANSACTION_ABORTED;
}

/*
 * In the signal handler: has something happened that dooms us? Any of the
 * entries that this backend holds may be lost; only atomics are read.
 */
static bool
handler_sees_trouble(uint64 word, ZklTime now)
{
	if (now >= zkl_word_deadline(word) || zkl_word_epoch(word) != guard.epoch)
		return true;
	if (pg_atomic_read_u32(&zkl_shared->losses) == guard.losses)
		return false;
	for (int i = 0; i < zkl_nheld_entries; i++)
		if (pg_atomic_read_u32(&zkl_shared->entries[zkl_held_entries[i]].fate) & ZKL_FATE_LOST)
			return true;
	return false;
}

static void
on_timer(void)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
	ZklTime		now = zkl_now();
	bool		has_xid = TransactionIdIsValid(MyProc->xid);

	if (!guard.relying || guard.committing || zkl_nheld_entries == 0)
		return;
	if (!guard.timer_found && !guard.doomed && !handler_sees_trouble(word, now))
	{
		ZklTime		left = zkl_word_deadline(word) - now;

		set_timer(Min(left / 1000 + 1, TIMER_PERIOD_MS));
		return;
	}

	if (!guard.timer_found)
	{
		guard.timer_found = true;
		guard.found_at = now;
	}
	else if (guard.in_copy_in && has_xid && zkl_idle_loss == ZKL_IDLE_TERMINATE)
		guard.dying = true;		/* the cancel did not get through */
	else if (guard.swallowed && now - guard.found_at > DOOM_PATIENCE)
		guard.dying = true;
	else if (guard.nesting == 0 && (has_xid || MyProc->waitLock != NULL) &&
			 zkl_idle_loss == ZKL_IDLE_TERMINATE && now - guard.found_at > DOOM_PATIENCE)
		guard.dying = true;		/* a pipeline whose Sync does not come: not idle
								 * to those who look, but a cancel is ignored; or
								 * the parser waits for a table that somebody has
								 * locked, for ever if need be */

	if (is_idle())
	{
		/* a cancel would be ignored; and without an xid nothing is in the
		 * next holder's way */
		if (has_xid && zkl_idle_loss == ZKL_IDLE_TERMINATE)
			guard.dying = true;
	}
	else if (guard.nesting == 0 || guard.exempt)
	{
		/*
		 * It is not known yet what the client wants, or it is known to be
		 * something that passes. A ROLLBACK that fails is the last thing
		 * anybody needs; and everything else is checked when it begins.
		 */
		set_timer(DOOM_PERIOD_MS);
	}
	else
	{
		QueryCancelPending = true;
		set_timer(DOOM_PERIOD_MS);
	}
	if (guard.dying)
		ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* From the kernel's timer, or from the worker, which has something to say. */
static void
on_signal(int signo, siginfo_t *info, void *context)
{
	int			save_errno = errno;
	bool		from_timer = info->si_code == SI_TIMER;

	/* a timer's may have been on its way when it was disarmed */
	if (MyProc != NULL && (guard.timer_armed || !from_timer))
	{
		if (from_timer)
			guard.timer_armed = false;
		on_timer();
	}
	errno = save_errno;
}

/* Says why a connection ended, which the client's message cannot. */
static void
explain_at_exit(int code, Datum arg)
{
	if (!guard.dying)
		return;
	guard.dying = false;
	(void) still_good(0);
	ereport(LOG,
			(errmsg("zklock: connection terminated because lock \"%s\" is lost and its transaction would not end",
					guard.name),
			 errdetail("%s", doom_detail(zkl_now()))));
}

/* Of the signals that nobody has a use for, take one that nobody has taken. */
static void
create_timer(void)
{
	struct sigaction action;
	struct sigevent event;
	int			signo = SIGRTMIN;

	while (sigaction(signo, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
		if (++signo > SIGRTMAX)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					 errmsg("zklock found no signal that is not in use")));
	memset(&action, 0, sizeof(action));
	action.sa_sigaction = on_signal;
	action.sa_flags = SA_RESTART | SA_SIGINFO;
	sigemptyset(&action.sa_mask);
	memset(&event, 0, sizeof(event));
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = signo;
	if (sigaction(signo, &action, NULL) < 0 ||
		timer_create(CLOCK_BOOTTIME, &event, &guard.timer) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("zklock could not create a timer: %m")));
	before_shmem_exit(explain_at_exit, (Datum) 0);
	guard.signal = signo;
}

int
zkl_guard_signal(void)
{
	if (guard.signal == 0)
		create_timer();
	return guard.signal;
}

/*
 * Arm the timer unless it is armed. It goes out when it finds the backend idle
 * and doomed, so this is called again at each statement.
 */
static void
arm_timer(void)
{
	ZklTime		left;

	if (guard.signal == 0)
		create_timer();
	if (guard.timer_armed)
		return;
	left = zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease)) - zkl_now();
	set_timer(Max(1, Min(left / 1000 + 1, TIMER_PERIOD_MS)));
}

/* From here on this transaction must keep its locks. */
static void
rely(void)
{
	if (!guard.relying)
	{
		guard.relying = true;
		guard.epoch = zkl_word_epoch(pg_atomic_read_u64(&zkl_shared->lease));
	}
	arm_timer();
}

void
zkl_guard_granted(void)
{
	rely();
	/* called from a function: what that does is work under the lock */
	if (guard.nesting > 1)
		guard.did_work = true;
}

/* ------------------------------------------------------------------------
 * Layer 1: statements
 * ------------------------------------------------------------------------
 */

/* One of ours, whatever it was renamed to? */
static bool
is_zklock_function(Oid oid)
{
	FmgrInfo	flinfo;
	static const PGFunction ours[] = {
		zkl_lock_acquire, zkl_lock_try_acquire, zkl_xact_lock_acquire,
		zkl_xact_lock_try_acquire, zkl_lock_release, zkl_lock_release_all,
		zkl_fencing_token, zkl_lock_is_held,
		zkl_semaphore_acquire, zkl_semaphore_try_acquire, zkl_semaphore_release,
	};

	fmgr_info(oid, &flinfo);
	for (int i = 0; i < lengthof(ours); i++)
		if (flinfo.fn_addr == ours[i])
			return true;
	return false;
}

/*
 * A FROM-less SELECT of direct zklock calls passes while a loss is not
 * acknowledged, since it is how one acknowledges it.
 */
static bool
query_is_exempt(PlannedStmt *stmt)
{
	Plan	   *plan = stmt->planTree;
	ListCell   *lc;

	if (stmt->commandType != CMD_SELECT || stmt->hasModifyingCTE || stmt->subplans != NIL ||
		!IsA(plan, Result) || plan->lefttree != NULL || plan->qual != NIL ||
		((Result *) plan)->resconstantqual != NULL || plan->targetlist == NIL)
		return false;
	foreach(lc, plan->targetlist)
	{
		TargetEntry *target = lfirst_node(TargetEntry, lc);
		FuncExpr   *call = (FuncExpr *) target->expr;
		ListCell   *arg;

		if (!IsA(call, FuncExpr) || !is_zklock_function(call->funcid))
			return false;
		foreach(arg, call->args)
			if (!IsA(lfirst(arg), Const) && !IsA(lfirst(arg), Param))
				return false;
	}
	return true;
}

static bool
utility_is_exempt(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
		case T_DiscardStmt:
		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_DeallocateStmt:
		case T_ClosePortalStmt:
			return true;
		default:
			return false;
	}
}

/* A statement begins, or a portal goes on, that is not exempt. */
static void
begin_statement(void)
{
	if (guard.timer_found || guard.doomed)
		zkl_guard_check_doom();
	if (zkl_nholds == 0)
		return;
	zkl_guard_check();
	rely();
	guard.did_work = true;
	zkl_guard_check();
}

static inline bool
is_concerned(void)
{
	return zkl_nholds > 0 || guard.doomed || guard.timer_found;
}

/*
 * Layer 5: an error leaves the outermost statement. If it is the cancel that
 * doom travels as, or that the timer or the worker sent, say what it is.
 */
static void
at_level_0(MemoryContext context)
{
	ErrorData  *edata;

	bool		travelling = guard.travelling;

	if (guard.nesting > 0)
		return;
	guard.travelling = false;
	if (geterrcode() != ERRCODE_QUERY_CANCELED)
		return;
	if (!travelling && (!(guard.relying || guard.doomed) || still_good(0)))
		return;					/* somebody else's cancel */

	MemoryContextSwitchTo(context);
	edata = CopyErrorData();
	FlushErrorState();
	edata->sqlerrcode = ZKL_ERRCODE_LOCK_LOST;
	edata->message = psprintf("%s is lost", zkl_lock_label(guard.name));
	edata->detail = pstrdup(doom_detail(zkl_now()));
	edata->hint = pstrdup(DOOM_HINT);
	ReThrowError(edata);
}

static void
guard_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	if (is_concerned() && (eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0 &&
		!(guard.nesting == 0 && query_is_exempt(queryDesc->plannedstmt)))
		begin_statement();
	if (prev_ExecutorStart)
		prev_ExecutorStart(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
guard_ExecutorRun(ZKL_EXECUTOR_RUN_PARAMS)
{
	MemoryContext context = CurrentMemoryContext;

	/* a cursor's next rows: its start may be long ago */
	if (guard.nesting == 0)
		guard.exempt = is_concerned() && query_is_exempt(queryDesc->plannedstmt);
	if (is_concerned() && !(guard.nesting == 0 && guard.exempt))
		begin_statement();
	guard.nesting++;
	PG_TRY();
	{
		if (prev_ExecutorRun)
			prev_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		else
			standard_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		guard.nesting--;
	}
	PG_CATCH();
	{
		guard.nesting--;
		at_level_0(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
guard_ExecutorFinish(QueryDesc *queryDesc)
{
	MemoryContext context = CurrentMemoryContext;

	guard.nesting++;
	PG_TRY();
	{
		if (prev_ExecutorFinish)
			prev_ExecutorFinish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
		guard.nesting--;
	}
	PG_CATCH();
	{
		guard.nesting--;
		at_level_0(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
guard_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	MemoryContext memory = CurrentMemoryContext;
	Node	   *stmt = pstmt->utilityStmt;
	volatile bool discard_all = IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL;
	volatile bool copy_in = IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from &&
		((CopyStmt *) stmt)->filename == NULL && guard.nesting == 0;

	if (guard.nesting == 0)
		guard.exempt = utility_is_exempt(stmt);
	if (is_concerned() && !utility_is_exempt(stmt))
		begin_statement();

	if (copy_in)
		guard.in_copy_in = true;
	guard.nesting++;
	PG_TRY();
	{
		if (prev_ProcessUtility)
			prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
								dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
									dest, qc);
		guard.nesting--;
		if (copy_in)
			guard.in_copy_in = false;
	}
	PG_CATCH();
	{
		guard.nesting--;
		if (copy_in)
			guard.in_copy_in = false;
		at_level_0(memory);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (discard_all)
		(void) zkl_locks_release_all();
}

/* A function called by the protocol's fast path passes no other hook. */
static void
guard_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_FUNCTION_EXECUTE && guard.nesting == 0 && is_concerned() &&
		MyBEEntry != NULL && MyBEEntry->st_state == STATE_FASTPATH &&
		!is_zklock_function(objectId))
		begin_statement();
}

/* ------------------------------------------------------------------------
 * Layer 2: the end of the transaction
 * ------------------------------------------------------------------------
 */

static void
pre_commit(void)
{
	bool		has_xid = TransactionIdIsValid(GetTopTransactionIdIfAny());

	if (!guard.relying && !guard.doomed && !guard.timer_found)
		return;
	if (guard.signal != 0)
		set_timer(0);
	zkl_guard_check_doom();
	if (!guard.did_work && !has_xid)
		return;
	if (!still_good(ZKL_MS(zkl_commit_margin)))
		raise_doom();

	guard.committing = true;
	for (int i = 0; i < zkl_nholds; i++)
	{
		uint32		old = pg_atomic_fetch_or_u32(&zkl_shared->entries[zkl_holds[i].entry].fate,
												 ZKL_FATE_COMMITTING);

		if (old & ZKL_FATE_LOST)
		{
			mark_lost(&zkl_holds[i], old);
			doom(&zkl_holds[i]);
			raise_doom();
		}
	}

	/* the next holder must not act on what a crash could take back */
	if (has_xid)
		ForceSyncCommit();
}

static void
end_transaction(void)
{
	if (guard.committing)
		for (int i = 0; i < zkl_nholds; i++)
			pg_atomic_fetch_and_u32(&zkl_shared->entries[zkl_holds[i].entry].fate,
									~ZKL_FATE_COMMITTING);
	if (guard.signal != 0)
		set_timer(0);
	guard.committing = guard.relying = guard.did_work = guard.doomed = false;
	guard.timer_found = guard.swallowed = false;
	zkl_locks_at_xact_end();
}

static void
on_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pre_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (zkl_nholds > 0 || guard.doomed)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction while zklock locks are held"),
						 errdetail("Nobody could abort the prepared transaction when a lock is lost."),
						 errhint("Release the locks first, or use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
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
	switch (event)
	{
		case SUBXACT_EVENT_ABORT_SUB:
			zkl_locks_at_subxact_abort(GetCurrentTransactionNestLevel());
			if (guard.nesting > 0 &&
				(guard.doomed || guard.timer_found || (guard.relying && !still_good(0))))
			{
				/* somebody caught it (the worker's push is a mere cancel, so
				 * look): cancel what comes next, too */
				guard.swallowed = true;
				QueryCancelPending = true;
				InterruptPending = true;
			}
			break;
		case SUBXACT_EVENT_COMMIT_SUB:
			zkl_locks_at_subxact_commit(GetCurrentTransactionNestLevel());
			break;
		default:
			break;
	}
}

void
zkl_guard_init(void)
{
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = guard_ExecutorStart;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = guard_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = guard_ExecutorFinish;
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = guard_ProcessUtility;
	prev_object_access = object_access_hook;
	object_access_hook = guard_object_access;

	/* first registered is last called: the check comes after, for example,
	 * postgres_fdw has committed its remote transactions, as close to our own
	 * commit record as it can be */
	RegisterXactCallback(on_xact, NULL);
	RegisterSubXactCallback(on_subxact, NULL);
}
