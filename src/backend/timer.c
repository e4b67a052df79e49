/*-------------------------------------------------------------------------
 *
 * timer.c
 *	  Layer 3 of the guard: the timer, and the signal that the worker sends.
 *
 * Not one of PostgreSQL's: those run on the wall clock, and one that waits while
 * that is set back by a day goes off a day late. And an error at top level
 * disarms them all. This one belongs to the kernel, runs on the lease's clock
 * and has a signal of its own.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "storage/ipc.h"
#include "utils/backend_status.h"

#include "backend/guard_state.h"
#include "backend/text.h"
#include "backend/written.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"

/* The timer looks at least this often: a loss moves no deadline. */
#define TIMER_PERIOD_MS		500

/* While a doomed statement goes on: cancel it again, and end it by FATAL after. */
#define DOOM_PERIOD_MS		100
#define DOOM_PATIENCE		ZKL_MS(1000)


/*
 * 0 disarms: once that has returned, on_timer() does nothing. Not while the
 * transaction relies on a lock: the worker's signal could arm the timer in between,
 * and zkl_guard.timer_armed would not be what is so.
 */
void
zkl_timer_set(long ms)
{
	struct itimerspec when = {0};

	Assert(ms > 0 || !zkl_guard.relying);
	when.it_value.tv_sec = ms / 1000;
	when.it_value.tv_nsec = ms % 1000 * 1000000;
	zkl_guard.timer_armed = ms > 0;
	(void) timer_settime(zkl_guard.timer, 0, &when, NULL);	/* cannot fail */
}

/* Idle in transaction? Activity reporting knows; without it, the levels do. */
static bool
is_idle(void)
{
	if (zkl_guard.nesting > 0)
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
	if (now >= zkl_word_deadline(word) || zkl_word_epoch(word) != zkl_guard.epoch)
		return true;
	if (pg_atomic_read_u32(&zkl_shared->losses) == zkl_guard.losses)
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
 * when the lock was granted all the same is taken back in zkl_forget_next_cancel().
 */
static ErrorContextCallback cancel_context;

static void
on_cancel_context(void *arg)
{
	if (geterrcode() != ERRCODE_QUERY_CANCELED || zkl_still_good(0))
		return;
	errcode(ZKL_ERRCODE_LOCK_LOST);
	errmsg("%s is lost", zkl_lock_label(zkl_guard.name));
	errdetail("%s", zkl_doom_detail(zkl_now()));
	errhint(ZKL_DOOM_HINT);
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

void
zkl_forget_next_cancel(void)
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

	if (!zkl_guard.relying || zkl_guard.step == COMMIT_HARMLESS || zkl_nheld_entries == 0)
		return;
	if (zkl_guard.step == COMMIT_DECIDED)
	{
		if (handler_sees_trouble(word, now) && commit_can_be_cancelled())
		{
			QueryCancelPending = true;
			InterruptPending = true;
			SetLatch(MyLatch);
		}
		zkl_timer_set(DOOM_PERIOD_MS);
		return;
	}
	if (!zkl_guard.timer_found && zkl_guard.doom == ZKL_LOSS_NONE && !handler_sees_trouble(word, now))
	{
		ZklTime		left = zkl_word_deadline(word) - now;

		zkl_timer_set(Min(left / 1000 + 1, TIMER_PERIOD_MS));
		return;
	}

	if (!zkl_guard.timer_found)
	{
		zkl_guard.timer_found = true;
		zkl_guard.found_at = now;
	}
	else if ((zkl_guard.in_copy_in || waits_to_send()) && has_written &&
			 zkl_idle_loss == ZKL_IDLE_TERMINATE)
		zkl_guard.dying = true; /* the cancel did not get through */
	else if (zkl_guard.swallowed && now - zkl_guard.found_at > DOOM_PATIENCE)
		zkl_guard.dying = true;
	else if (zkl_guard.nesting == 0 && (has_written || MyProc->waitLock != NULL) &&
			 zkl_idle_loss == ZKL_IDLE_TERMINATE && now - zkl_guard.found_at > DOOM_PATIENCE)
		zkl_guard.dying = true; /* a pipeline whose Sync does not come: not
								 * idle to those who look, but a cancel is
								 * ignored; or the parser waits for a table
								 * that somebody has locked, for ever if need
								 * be */

	if (is_idle())
	{
		/*
		 * a cancel would be ignored; and where nothing was written nothing is
		 * in the next holder's way
		 */
		if (has_written && zkl_idle_loss == ZKL_IDLE_TERMINATE)
			zkl_guard.dying = true;
	}
	else if (zkl_guard.ending && MyProc->waitLock != NULL)
	{
		/* the COMMIT waits, for one, to check a deferred constraint */
		convert_next_cancel();
		QueryCancelPending = true;
		zkl_timer_set(DOOM_PERIOD_MS);
	}
	else if (zkl_guard.nesting == 0 || zkl_guard.exempt)
	{
		/*
		 * It is not known yet what the client wants, or it is known to be
		 * something that passes. A ROLLBACK that fails is the last thing
		 * anybody needs; and everything else is checked when it begins.
		 */
		zkl_timer_set(DOOM_PERIOD_MS);
	}
	else
	{
		QueryCancelPending = true;
		zkl_timer_set(DOOM_PERIOD_MS);
	}
	if (zkl_guard.dying)
		ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* From the kernel's timer, or from the worker, which has something to say. */
static void
on_signal(int signo, siginfo_t * info, void *context)
{
	int			save_errno = errno;
	bool		from_timer = info->si_code == SI_TIMER;

	/* a timer's may have been on its way when it was disarmed */
	if (MyProc != NULL && (zkl_guard.timer_armed || !from_timer))
	{
		if (from_timer)
			zkl_guard.timer_armed = false;
		on_timer();
	}
	errno = save_errno;
}

/* Says why a connection ended, which the client's message cannot. */
static void
explain_at_exit(int code, Datum arg)
{
	if (!zkl_guard.dying)
		return;
	zkl_guard.dying = false;
	(void) zkl_still_good(0);
	ereport(LOG,
			(errmsg("zklock: connection terminated because lock \"%s\" is lost and its transaction would not end",
					zkl_guard.name),
			 errdetail("%s", zkl_doom_detail(zkl_now()))));
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
		timer_create(CLOCK_BOOTTIME, &event, &zkl_guard.timer) < 0)
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
	zkl_guard.signal = signo;
}

int
zkl_guard_signal(void)
{
	if (zkl_guard.signal == 0)
		create_timer();
	return zkl_guard.signal;
}

/*
 * Arm the timer unless it is armed. It goes out when it finds the backend idle
 * and doomed, so this is called again at each statement.
 */
void
zkl_timer_arm(void)
{
	ZklTime		left;

	if (zkl_guard.signal == 0)
		create_timer();
	if (zkl_guard.timer_armed)
		return;
	left = zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease)) - zkl_now();
	zkl_timer_set(Max(1, Min(left / 1000 + 1, TIMER_PERIOD_MS)));
}

/* From here on this transaction must keep its locks. */
void
zkl_rely(void)
{
	if (!zkl_guard.relying)
	{
		zkl_guard.epoch = zkl_word_epoch(pg_atomic_read_u64(&zkl_shared->lease));
		/* the timer's handler compares with that as soon as we rely */
		pg_compiler_barrier();
		zkl_guard.relying = true;
	}
	zkl_timer_arm();
}

void
zkl_guard_granted(void)
{
	zkl_rely();
	/* called from a function: what that does is work under the lock */
	if (zkl_guard.nesting > 1)
		zkl_guard.did_work = true;
}
