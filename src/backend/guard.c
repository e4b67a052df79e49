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
 *	  (executor start and run, utility statements, deferred triggers), reads the
 *	  clock. Hole: a statement that runs for an hour.
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
 * A statement may commit inside itself: VACUUM does, CREATE INDEX CONCURRENTLY,
 * a procedure. While this backend holds a lock, each transaction that ends inside
 * a statement begins the next one relying on it, since the lease had the epoch
 * that it had when the statement began; what comes next may pass no hook.
 *
 * PRE_COMMIT is not the commit. What stands between the two and can wait is done
 * before the clock is read (finish_early()). Then PRE_COMMIT marks each entry; a
 * mark and a loss are set with the same fetch-or, so one of the two comes first
 * and both sides know. From here to the commit record the timer strikes only
 * where the backend waits and can still be interrupted, which is in the callback
 * of a library that was preloaded before ours. After that nothing may: a cancel
 * during the wait for a synchronous standby would make the commit return early,
 * un-replicated.
 *
 * PostgreSQL calls those who want to hear of the end of a transaction in turn,
 * who registered last first. We are among them twice. The first time comes before
 * the others: postgres_fdw commits on its servers when it is called, so there
 * must be a check ahead of it; and at an abort the locks go before somebody else
 * takes his time. The last one comes after all that registered after us.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type.h"
#include "catalog/storage.h"
#include "commands/tablecmds.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "nodes/primnodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"
#include "utils/fmgrprotos.h"
#include "utils/syscache.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#include "backend/guard.h"
#include "backend/written.h"
#include "common/clock.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/shmem.h"

/* The timer looks at least this often: a loss moves no deadline. */
#define TIMER_PERIOD_MS		500

/* While a doomed statement goes on: cancel it again, and end it by FATAL after. */
#define DOOM_PERIOD_MS		100
#define DOOM_PATIENCE		ZKL_MS(1000)

/*
 * How much more than zklock.commit_margin of the lease has to be left before a
 * statement begins that cannot be undone: it takes a while, and is to be refused
 * before it rather than after it. The same before others commit on their servers.
 */
#define NO_WAY_BACK_MARGIN	ZKL_MS(1000)
#define ELSEWHERE_MARGIN	ZKL_MS(100)

/* How long a client may take to make room for the error message, ms. */
#define HEARING_MS			100

typedef enum DoomReason
{
	DOOM_LAPSED,
	DOOM_LAPSED_BEFORE,			/* and is current again */
	DOOM_SHORT,					/* less is left than is needed */
	DOOM_EXPIRED,
	DOOM_VANISHED,
	DOOM_BROKEN
} DoomReason;

/* How far is the transaction? */
typedef enum CommitStep
{
	COMMIT_NOT_YET,
	COMMIT_HARMLESS,			/* it commits nothing that a lock protects */
	COMMIT_DECIDED				/* checked; entries are marked COMMITTING */
} CommitStep;

static struct
{
	int			nesting;		/* executor, utility and trigger levels we are in */
	volatile sig_atomic_t relying;	/* this transaction relies on a lock ... */
	uint32		epoch;			/* ... since the lease had this epoch */
	bool		did_work;		/* ... and ran a statement that is not exempt */
	volatile sig_atomic_t step; /* CommitStep */
	volatile sig_atomic_t ending;	/* the client's statement is over, and the
									 * commit comes next */
	bool		committed_elsewhere;	/* others may have committed on their
										 * servers: they were let pass */
	bool		first_in_line;	/* no library was preloaded before us */
	uintptr_t	place;			/* the one of our callbacks' places that counts */
	uint32		losses;			/* zkl_shared->losses when we last looked */

	bool		doomed;
	DoomReason	reason;
	char		name[ZKL_NAME_MAX + 1]; /* of the lock, UTF-8 */
	char		breaker[sizeof(((ZklEntry *) 0)->breaker)];
	ZklTime		since;			/* deadline that passed, or when it was seen */
	const PlannedStmt *statement;	/* the innermost one that runs, or NULL: a
									 * utility statement */
	int			running;		/* so many run, one inside the other, that are not */
	bool		travelling;		/* ZK001 is on its way up as query_canceled;
								 * a procedure's COMMIT that fails ends the
								 * doomed transaction before it arrives. When a
								 * statement begins it was caught on the way */

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

static void begin_without_way_back(Node *stmt);
static void check_way_back(void);
static void undecide(void);

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static object_access_hook_type prev_object_access = NULL;
static needs_fmgr_hook_type prev_needs_fmgr = NULL;
static fmgr_hook_type prev_fmgr = NULL;

/* ------------------------------------------------------------------------
 * What is wrong
 * ------------------------------------------------------------------------
 */

static void
mark_lost(ZklHold *hold, uint32 flags)
{
	hold->lost = true;
	hold->loss = (flags & ZKL_FLAG_BROKEN) ? ZKL_LOSS_BROKEN :
		(flags & ZKL_FLAG_VANISHED) ? ZKL_LOSS_VANISHED : ZKL_LOSS_EXPIRED;
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
		uint32		flags = pg_atomic_read_u32(&zkl_shared->entries[zkl_holds[i].entry].flags);

		if (flags & ZKL_FLAG_LOST)
			mark_lost(&zkl_holds[i], flags);
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
		uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
		ZklTime		deadline = zkl_word_deadline(word);

		guard.reason = deadline <= now ? DOOM_LAPSED :
			guard.relying && zkl_word_epoch(word) != guard.epoch ? DOOM_LAPSED_BEFORE : DOOM_SHORT;
		guard.since = deadline != 0 ? deadline : now;
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
	const ZklHold *lost = find_lost();

	if (guard.relying)
		(void) still_good(0);
	else if (lost != NULL && zkl_has_written())
		doom(lost);				/* whatever it was that no hook has seen */
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
		case DOOM_LAPSED_BEFORE:
			return pstrdup("The lease had run out in the meantime, and another client may have held it; it is current again.");
		case DOOM_SHORT:
			return psprintf("%ld ms of the lease were left, which is too little to commit, or to begin what no rollback takes back.",
							Max(-ago, 0L));
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
	const char *elsewhere = guard.committed_elsewhere ?
		" Foreign servers may have committed their part of the transaction already." : "";

	/* decided for FATAL, and whoever swallows this may not look himself */
	if (guard.dying)
		CHECK_FOR_INTERRUPTS();
	guard.travelling = guard.nesting > 0;
	ereport(ERROR,
			(errcode(guard.nesting > 0 ? ERRCODE_QUERY_CANCELED : ZKL_ERRCODE_LOCK_LOST),
			 errmsg("%s is lost", zkl_lock_label(guard.name)),
			 errdetail("%s%s", doom_detail(zkl_now()), elsewhere),
			 errhint(DOOM_HINT)));
}

void
zkl_guard_check_doom(void)
{
	/* the timer may have looked just when the transaction began to rely on a lock */
	if (guard.timer_found && still_good(0))
		guard.timer_found = false;
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

const PlannedStmt *
zkl_guard_statement(void)
{
	return guard.running == 1 ? guard.statement : NULL;
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

/*
 * 0 disarms: once that has returned, on_timer() does nothing. Not while the
 * transaction relies on a lock: the worker's signal could arm the timer in between,
 * and guard.timer_armed would not be what is so.
 */
static void
set_timer(long ms)
{
	struct itimerspec when = {0};

	Assert(ms > 0 || !guard.relying);
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
		if (pg_atomic_read_u32(&zkl_shared->entries[zkl_held_entries[i]].flags) & ZKL_FLAG_LOST)
			return true;
	return false;
}

/*
 * Past its check, does the commit wait where it can still be interrupted? From the
 * commit record on interrupts are held off. A wait for a disk cannot be cut short, so
 * a cancel would stay behind and cut short the one for a standby.
 */
static bool
commit_can_be_cancelled(void)
{
	uint32		wait_event = *my_wait_event_info;

	if (InterruptHoldoffCount > 0 || CritSectionCount > 0 || wait_event == 0)
		return false;
	switch (wait_event & 0xFF000000)
	{
		case PG_WAIT_LOCK:
		case PG_WAIT_CLIENT:
		case PG_WAIT_EXTENSION:
		case PG_WAIT_IPC:
		case PG_WAIT_TIMEOUT:
			return true;
		default:
			return false;
	}
}

/* Does the backend wait for a client that does not read? There it serves no cancel. */
static bool
waits_to_send(void)
{
	return *my_wait_event_info == WAIT_EVENT_CLIENT_WRITE;
}

/*
 * Outside of all levels nobody catches the cancel and says what it is. But an error asks
 * for its context: then it can be said. Called by the signal handler while the process
 * sleeps in the lock manager, so nobody is about to change the list; what is left of it
 * when the lock was granted all the same is taken back in forget_next_cancel().
 */
static ErrorContextCallback cancel_context;

static void
on_cancel_context(void *arg)
{
	if (geterrcode() != ERRCODE_QUERY_CANCELED || still_good(0))
		return;
	errcode(ZKL_ERRCODE_LOCK_LOST);
	errmsg("%s is lost", zkl_lock_label(guard.name));
	errdetail("%s", doom_detail(zkl_now()));
	errhint(DOOM_HINT);
}

static void
convert_next_cancel(void)
{
	if (cancel_context.callback != NULL)
		return;
	cancel_context.callback = on_cancel_context;
	cancel_context.previous = error_context_stack;
	error_context_stack = &cancel_context;
}

static void
forget_next_cancel(void)
{
	if (error_context_stack == &cancel_context)
		error_context_stack = cancel_context.previous;
	cancel_context.callback = NULL;
}

static void
on_timer(void)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
	ZklTime		now = zkl_now();
	bool		has_written = TransactionIdIsValid(MyProc->xid) || zkl_written_elsewhere;

	if (!guard.relying || guard.step == COMMIT_HARMLESS || zkl_nheld_entries == 0)
		return;
	if (guard.step == COMMIT_DECIDED)
	{
		if (handler_sees_trouble(word, now) && commit_can_be_cancelled())
		{
			QueryCancelPending = true;
			InterruptPending = true;
			SetLatch(MyLatch);
		}
		set_timer(DOOM_PERIOD_MS);
		return;
	}
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
	else if ((guard.in_copy_in || waits_to_send()) && has_written &&
			 zkl_idle_loss == ZKL_IDLE_TERMINATE)
		guard.dying = true;		/* the cancel did not get through */
	else if (guard.swallowed && now - guard.found_at > DOOM_PATIENCE)
		guard.dying = true;
	else if (guard.nesting == 0 && (has_written || MyProc->waitLock != NULL) &&
			 zkl_idle_loss == ZKL_IDLE_TERMINATE && now - guard.found_at > DOOM_PATIENCE)
		guard.dying = true;		/* a pipeline whose Sync does not come: not idle
								 * to those who look, but a cancel is ignored; or
								 * the parser waits for a table that somebody has
								 * locked, for ever if need be */

	if (is_idle())
	{
		/* a cancel would be ignored; and where nothing was written nothing is
		 * in the next holder's way */
		if (has_written && zkl_idle_loss == ZKL_IDLE_TERMINATE)
			guard.dying = true;
	}
	else if (guard.ending && MyProc->waitLock != NULL)
	{
		/* the COMMIT waits, for one, to check a deferred constraint */
		convert_next_cancel();
		QueryCancelPending = true;
		set_timer(DOOM_PERIOD_MS);
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
	{
		int			save_errno = errno;

		/* or each attempt would use up one of the few signals */
		action.sa_handler = SIG_DFL;
		action.sa_flags = 0;
		(void) sigaction(signo, &action, NULL);
		errno = save_errno;
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("zklock could not create a timer: %m")));
	}
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
		guard.epoch = zkl_word_epoch(pg_atomic_read_u64(&zkl_shared->lease));
		/* the timer's handler compares with that as soon as we rely */
		pg_compiler_barrier();
		guard.relying = true;
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

/* A constant or a parameter; a varchar's is made a text's by a node around it. */
static bool
is_constant(Node *arg)
{
	if (IsA(arg, RelabelType))
		arg = (Node *) ((RelabelType *) arg)->arg;
	return IsA(arg, Const) || IsA(arg, Param);
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
			if (!is_constant(lfirst(arg)))
				return false;
	}
	return true;
}

/* COMMIT PREPARED and ROLLBACK PREPARED end somebody else's transaction: that is work. */
static bool
is_two_phase(Node *stmt)
{
	return IsA(stmt, TransactionStmt) &&
		(((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED ||
		 ((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

static bool
utility_is_exempt(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
			return !is_two_phase(stmt);
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

/* Statements that make or remove what no rollback removes or brings back. */
static bool
has_no_way_back(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_AlterDatabaseStmt:	/* SET TABLESPACE */
		case T_AlterSystemStmt:
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_AlterSubscriptionStmt:	/* slots on the publisher */
		case T_CreateSubscriptionStmt:
		case T_DropSubscriptionStmt:
			return true;
		default:
			return is_two_phase(stmt);
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
 * Does the client read, so that there is room for an error message? (The socket is the
 * first member of the Port; its header wants those of libraries that we have no use for.)
 */
static bool
client_can_hear(void)
{
	struct pollfd socket = {.events = POLLOUT};

	if (MyProcPort == NULL || whereToSendOutput != DestRemote)
		return true;
	socket.fd = *(pgsocket *) MyProcPort;
	return poll(&socket, 1, HEARING_MS) > 0;
}

/*
 * Layer 5: an error leaves the outermost statement. If it is the cancel that doom
 * travels as, or that the timer or the worker sent, say what it is. So it is also
 * when somebody caught that and made something else of it: PL/Perl does.
 */
static void
convert_error(MemoryContext context)
{
	ErrorData  *edata;
	bool		travelling = guard.travelling;
	bool		ours = travelling;

	guard.travelling = false;
	if (!ours && (geterrcode() == ERRCODE_QUERY_CANCELED || guard.swallowed))
		ours = (guard.relying || guard.doomed) && !still_good(0);
	if (!ours)
		return;					/* somebody else's error */

	/*
	 * PostgreSQL tells the client before it rolls back. One that does not read would keep
	 * the row locks in the next holder's way.
	 */
	if (zkl_idle_loss == ZKL_IDLE_TERMINATE && zkl_has_written() && !client_can_hear())
	{
		guard.dying = true;		/* for the log */
		whereToSendOutput = DestNone;
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("terminating connection because the client does not read that its lock is lost")));
	}

	MemoryContextSwitchTo(context);
	edata = CopyErrorData();
	FlushErrorState();
	/* raise_doom()'s own words need no others */
	if (travelling && edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		edata->sqlerrcode = ZKL_ERRCODE_LOCK_LOST;
		ReThrowError(edata);
	}
	edata->sqlerrcode = ZKL_ERRCODE_LOCK_LOST;
	edata->message = psprintf("%s is lost", zkl_lock_label(guard.name));
	edata->detail = pstrdup(doom_detail(zkl_now()));
	edata->hint = pstrdup(DOOM_HINT);
	ReThrowError(edata);
}

static void come_first(void);

/*
 * The levels of statements, and of what runs outside of one: deferred triggers at
 * COMMIT, functions that the fast path or the planner calls. What happens at the
 * outermost one is the client's statement; what is nested is not.
 */
static void
enter_level(void)
{
	guard.travelling = false;
	guard.nesting++;
	guard.ending = false;
}

static void
leave_level(void)
{
	Assert(guard.nesting > 0);
	guard.nesting--;
	if (!is_concerned())
		return;
	come_first();
	if (guard.nesting > 0)
		return;
	if (guard.relying)
		zkl_written_note_notify();
	/* the cancel was caught, or came after the last moment at which it was served */
	if ((guard.swallowed || guard.timer_found) && !guard.exempt)
	{
		zkl_guard_check();
		guard.timer_found = false;
	}
	guard.ending = !IsTransactionBlock();
}

/* In a PG_CATCH, whose caller throws the error again unless this does. */
static void
leave_level_by_error(MemoryContext context)
{
	Assert(guard.nesting > 0);
	guard.nesting--;
	come_first();
	if (guard.nesting == 0)
		convert_error(context);
}

static void
guard_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	MemoryContext context = CurrentMemoryContext;
	bool		explain_only = (eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0;

	if (!explain_only)
		zkl_written_note_plan(queryDesc->plannedstmt, is_concerned());
	if (guard.nesting == 0)
		guard.exempt = is_concerned() && query_is_exempt(queryDesc->plannedstmt);
	if (is_concerned() && !explain_only && !(guard.nesting == 0 && guard.exempt))
		begin_statement();
	enter_level();
	PG_TRY();
	{
		if (prev_ExecutorStart)
			prev_ExecutorStart(queryDesc, eflags);
		else
			standard_ExecutorStart(queryDesc, eflags);
		/* a foreign data wrapper connects here */
		if (is_concerned())
			come_first();
		guard.nesting--;
	}
	PG_CATCH();
	{
		leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
guard_ExecutorRun(ZKL_EXECUTOR_RUN_PARAMS)
{
	MemoryContext context = CurrentMemoryContext;
	const PlannedStmt *around = guard.statement;

	/* a cursor's next rows: its start may be long ago */
	if (guard.nesting == 0)
		guard.exempt = is_concerned() && query_is_exempt(queryDesc->plannedstmt);
	if (is_concerned() && !(guard.nesting == 0 && guard.exempt))
		begin_statement();
	enter_level();
	guard.statement = queryDesc->plannedstmt;
	guard.running++;
	PG_TRY();
	{
		if (prev_ExecutorRun)
			prev_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		else
			standard_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		if (is_concerned())
			zkl_written_note_routing(queryDesc->estate);
	}
	PG_CATCH();
	{
		guard.statement = around;
		guard.running--;
		leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	guard.statement = around;
	guard.running--;
	leave_level();
}

static void
guard_ExecutorFinish(QueryDesc *queryDesc)
{
	MemoryContext context = CurrentMemoryContext;

	enter_level();
	PG_TRY();
	{
		if (prev_ExecutorFinish)
			prev_ExecutorFinish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
	}
	PG_CATCH();
	{
		leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	leave_level();
}

static void
guard_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	MemoryContext memory = CurrentMemoryContext;
	Node	   *stmt = pstmt->utilityStmt;
	const PlannedStmt *around = guard.statement;
	volatile bool discard_all = IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL;
	volatile bool copy_in = IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from &&
		((CopyStmt *) stmt)->filename == NULL && guard.nesting == 0;

	if (guard.nesting == 0)
		guard.exempt = utility_is_exempt(stmt);
	zkl_written_note_utility(stmt, is_concerned());
	if (is_concerned() && !utility_is_exempt(stmt))
	{
		begin_statement();
		if (has_no_way_back(stmt))
			begin_without_way_back(stmt);
	}

	if (copy_in)
		guard.in_copy_in = true;
	enter_level();
	guard.statement = NULL;
	PG_TRY();
	{
		if (prev_ProcessUtility)
			prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
								dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
									dest, qc);
		if (copy_in)
			guard.in_copy_in = false;
	}
	PG_CATCH();
	{
		guard.statement = around;
		if (copy_in)
			guard.in_copy_in = false;
		/* it was refused, and nothing is decided: the transaction may stay open */
		if (is_two_phase(stmt))
			undecide();
		leave_level_by_error(memory);
		PG_RE_THROW();
	}
	PG_END_TRY();
	guard.statement = around;
	leave_level();
	if (IsA(stmt, TransactionStmt) && ((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT &&
		guard.nesting == 0)
		guard.ending = true;

	if (discard_all)
		(void) zkl_locks_release_all();
}

/*
 * Does this function run as a level of its own? Not one that a statement calls: its
 * level is the statement's. Outside of statements are deferred triggers, what the
 * fast path calls, and what the planner evaluates; there errors are caught by what is
 * written in a procedural language. (Functions in SQL are no matter, and a hook would
 * keep the planner from inlining them. The answer is kept with the function's
 * FmgrInfo, which in the case of C may serve an index for the rest of the connection.)
 */
static bool
guard_needs_fmgr(Oid function)
{
	HeapTuple	tuple;
	bool		needed = false;

	if (prev_needs_fmgr && prev_needs_fmgr(function))
		return true;
	if (guard.nesting > 0 || !is_concerned() || !IsTransactionState())
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		needed = form->prorettype == TRIGGEROID ||
			(form->prolang != INTERNALlanguageId && form->prolang != ClanguageId &&
			 form->prolang != SQLlanguageId);
		ReleaseSysCache(tuple);
	}
	return needed;
}

static void
guard_fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *private)
{
	/* of the outermost call, if that is a level of its own */
	static MemoryContext context = NULL;
	static sig_atomic_t exempt = false;

	switch (event)
	{
		case FHET_START:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			/* PostgreSQL does not end what fails to begin */
			if (guard.nesting == 0)
			{
				if (is_concerned())
					begin_statement();
				context = CurrentMemoryContext;
				exempt = guard.exempt;
				guard.exempt = false;
			}
			enter_level();
			break;
		case FHET_END:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			if (guard.nesting == 1)
				guard.exempt = exempt;
			leave_level();
			break;
		case FHET_ABORT:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			if (guard.nesting == 1)
				guard.exempt = exempt;
			leave_level_by_error(context);
			break;
	}
}

/* What no other hook sees: a function called by the fast path, and one of dblink. */
static void
guard_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_FUNCTION_EXECUTE)
		zkl_written_note_function(objectId);
	if (!is_concerned())
		return;

	/* once more, and nearer to where files are made and removed */
	if ((access == OAT_DROP || access == OAT_POST_CREATE) &&
		(classId == DatabaseRelationId || classId == TableSpaceRelationId))
		check_way_back();
	if (access != OAT_FUNCTION_EXECUTE)
		return;
	if (guard.nesting == 0 && MyBEEntry != NULL && MyBEEntry->st_state == STATE_FASTPATH &&
		!is_zklock_function(objectId))
		begin_statement();
}

/* ------------------------------------------------------------------------
 * Layer 2: the end of the transaction
 * ------------------------------------------------------------------------
 */

/*
 * The moment: with "margin" of the lease left, mark each entry, so that nobody takes a
 * lock away from here to the end of the transaction.
 */
static void
decide(ZklTime margin)
{
	Assert(guard.step == COMMIT_NOT_YET);
	if (!still_good(margin))
		raise_doom();

	guard.step = COMMIT_DECIDED;
	for (int i = 0; i < zkl_nholds; i++)
	{
		uint32		old = pg_atomic_fetch_or_u32(&zkl_shared->entries[zkl_holds[i].entry].flags,
												 ZKL_FLAG_COMMITTING);

		if (old & ZKL_FLAG_LOST)
		{
			mark_lost(&zkl_holds[i], old);
			doom(&zkl_holds[i]);
			raise_doom();
		}
	}
}

static void
undecide(void)
{
	if (guard.step == COMMIT_DECIDED)
		for (int i = 0; i < zkl_nholds; i++)
			pg_atomic_fetch_and_u32(&zkl_shared->entries[zkl_holds[i].entry].flags,
									~ZKL_FLAG_COMMITTING);
	guard.step = COMMIT_NOT_YET;
}

static void
check_way_back(void)
{
	if (!still_good(ZKL_MS(zkl_commit_margin) + NO_WAY_BACK_MARGIN))
		raise_doom();
}

/*
 * Such a statement is refused while there is time for it. That of a prepared
 * transaction is the commit itself; that of the transaction around it decides nothing.
 */
static void
begin_without_way_back(Node *stmt)
{
	if (!is_two_phase(stmt))
		check_way_back();
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
	sig_atomic_t exempt = guard.exempt;

	guard.exempt = false;
	enter_level();
	PG_TRY();
	{
		if (guard.first_in_line)
		{
			PreCommit_on_commit_actions();
			/* a second time it would empty all such tables again, which takes as long */
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
		guard.exempt = exempt;
		leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	guard.exempt = exempt;
	guard.nesting--;
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
	forget_next_cancel();
	if (guard.step == COMMIT_DECIDED)
		return false;			/* a prepared transaction's */
	if (proc_exit_inprogress)
		return false;			/* its temporary tables are dropped */
	if (guard.timer_found || guard.doomed)
		zkl_guard_check_doom();
	if (zkl_nholds == 0 || !(guard.did_work || zkl_has_written()))
		return false;
	rely();
	return true;
}

/*
 * Layer 2, ahead of those who commit on other servers. What is lost while they do
 * cannot be taken back there; so not in the last moment.
 */
static void
pre_commit_first(void)
{
	if (!is_concerned() || !commit_depends_on_lock())
		return;
	if (!still_good(ZKL_MS(zkl_commit_margin) + (zkl_written_elsewhere == ZKL_WRITTEN_FAR ? ELSEWHERE_MARGIN : 0)))
		raise_doom();
	guard.committed_elsewhere = zkl_written_elsewhere == ZKL_WRITTEN_FAR;
}

/* And as close to our own commit record as it can be. */
static void
pre_commit_last(void)
{
	bool		writes;

	if (!is_concerned())
		return;
	if (!commit_depends_on_lock())
	{
		if (guard.step == COMMIT_NOT_YET)
			guard.step = COMMIT_HARMLESS;
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
	bool		relied = guard.relying;

	/* first of all: from here on the timer's handler does nothing */
	guard.relying = false;
	undecide();
	if (guard.signal != 0)
		set_timer(0);
	guard.did_work = guard.doomed = guard.committed_elsewhere = false;
	guard.timer_found = guard.swallowed = guard.ending = false;
	forget_next_cancel();
	zkl_written_forget();
	zkl_locks_at_xact_end();

	/*
	 * Inside a statement, which goes on: its next transaction relies on what is left
	 * from its first moment, and with the epoch of the statement's beginning, since
	 * what it does is one piece of work.
	 */
	if (guard.nesting > 0 && zkl_nholds > 0 && !proc_exit_inprogress)
	{
		Assert(guard.signal != 0);
		if (!relied)
			guard.epoch = zkl_word_epoch(pg_atomic_read_u64(&zkl_shared->lease));
		guard.relying = true;
		guard.did_work = true;
		arm_timer();
	}
}

/* The first of all that are called; see come_first(). */
static void
on_xact_first(XactEvent event, void *arg)
{
	if ((uintptr_t) arg != guard.place)
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
			if (zkl_nholds > 0 || guard.doomed)
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
	if ((uintptr_t) arg != guard.place)
		return;
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
static void
come_first(void)
{
	static unsigned long long known = 0;
	unsigned long long loaded = known;

	(void) dl_iterate_phdr(read_loaded, &loaded);
	if (loaded == known && !zkl_written_wrapper_is_new())
		return;
	known = loaded;
	guard.place++;
	RegisterXactCallback(on_xact_first, (void *) guard.place);
	RegisterSubXactCallback(on_subxact, (void *) guard.place);
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
	guard.first_in_line = is_preloaded_first();
	if (!guard.first_in_line)
		ereport(WARNING,
				(errmsg("zklock is not the first of shared_preload_libraries"),
				 errdetail("What a library before it does at COMMIT comes after zklock's last check, and nothing bounds how long it takes."),
				 errhint("Put zklock first, unless the other library demands to be.")));

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
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = guard_needs_fmgr;
	prev_fmgr = fmgr_hook;
	fmgr_hook = guard_fmgr;

	/* first registered is last called */
	RegisterXactCallback(on_xact_last, NULL);
	RegisterXactCallback(on_xact_first, (void *) guard.place);
	RegisterSubXactCallback(on_subxact, (void *) guard.place);
}
