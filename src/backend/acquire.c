/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquire a lock or a permit: request, wait, grant.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "utils/guc.h"

#include "backend/acquire.h"
#include "backend/guard.h"
#include "backend/text.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/shmem.h"

/* A try has to say something within a second, also when the coordinator says nothing. */
#define TRY_TIMEOUT_MS		900

/* Ask for the holder this long before the timeout, so that the error can name it. */
#define ASK_BEFORE_MS		300
#define ASK_AFTER_BUSY_MS	200

/* The transaction that was warned about its snapshot. */
static LocalTransactionId warned_lxid = InvalidLocalTransactionId;

/*
 * To acquire a lost lock again, at the same level, acknowledges the loss; but
 * not to fail to, and it does not undo what the loss did to this transaction.
 */
static void
supersede_lost(const char *name, bool xact_level)
{
	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->loss == ZKL_LOSS_NONE || strcmp(hold->name, name) != 0)
			continue;
		zkl_guard_check_doom();
		if (xact_level)
			zkl_guard_raise(hold);
		hold->superseded = true;
	}
}

/* How far is log_lock_waits with this wait? */
typedef enum WaitLog
{
	WAIT_NOT_LOGGED = 0,
	WAIT_LOG_ASKED,				/* the worker looks for the holder */
	WAIT_LOGGED
} WaitLog;

typedef struct Wait
{
	const char *name;			/* UTF-8 */
	ZklMode		mode;
	int			permits;		/* of a semaphore, else 0 */
	const ZklHold *downgrade;	/* the write hold to be downgraded, or NULL */
	bool		try;			/* NULL instead of an error when it is taken */
	bool		turn;			/* for a semaphore's mutex */
	bool		turn_lost;		/* out: that mutex was lost, begin again */
	bool		xact_level;
	ZklTime		start;
	int			timeout;		/* ms, or ZKL_WAIT_FOREVER */
	bool		by_lock_timeout;	/* core's setting is the shorter one */
	ZklTime		deadline;		/* of the wait; 0 = none */

	/* wait_for_grant()'s */
	ZklPhase	phase;			/* of the entry, when it was looked at last */
	bool		asked;			/* for the holder, which the timeout will name */
	WaitLog		logged;
} Wait;

static void
begin_wait(Wait *wait, bool try, int timeout)
{
	wait->try = try;
	wait->timeout = timeout;
	wait->start = zkl_now();
	if (try)
		wait->timeout = TRY_TIMEOUT_MS;
	else if (LockTimeout > 0 && (timeout == ZKL_WAIT_FOREVER || LockTimeout < timeout))
	{
		wait->timeout = LockTimeout;
		wait->by_lock_timeout = true;
	}

	/*
	 * not to wait for others takes a moment too: the coordinator has to say
	 * so
	 */
	if (wait->timeout != ZKL_WAIT_FOREVER)
		wait->deadline = zkl_now() + ZKL_MS(wait->timeout == 0 ? TRY_TIMEOUT_MS : wait->timeout);
}

/* "server "a:5432", process 1234, ...": who holds the lock. */
static char *
describe_holder(ZklEntry *entry)
{
	ZklNodeData *holder = &entry->holder;
	StringInfoData buf;

	if ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0)
		return NULL;
	pg_read_barrier();
	if (entry->holder_token == 0)
		return NULL;			/* gone by the time we asked */

	initStringInfo(&buf);
	appendStringInfoString(&buf, entry->mode == ZKL_MODE_PERMIT ? "One" : "It");
	if (holder->pid == 0)
	{
		appendStringInfoString(&buf, " is held by another client");
		if (holder->server[0] != '\0')
			appendStringInfo(&buf, ": \"%s\"", zkl_text_for_message(holder->server));
		else
			appendStringInfoString(&buf, ", which does not say who it is");
		appendStringInfo(&buf, ", fencing token " INT64_FORMAT ".", entry->holder_token);
		return buf.data;
	}
	appendStringInfo(&buf, " is held by server \"%s\", process %d",
					 zkl_text_for_message(holder->server), holder->pid);
	if (holder->database[0] != '\0')
		appendStringInfo(&buf, ", database \"%s\"", zkl_text_for_message(holder->database));
	if (holder->user[0] != '\0')
		appendStringInfo(&buf, ", user \"%s\"", zkl_text_for_message(holder->user));
	if (holder->application[0] != '\0')
		appendStringInfo(&buf, ", application \"%s\"", zkl_text_for_message(holder->application));
	if (holder->since[0] != '\0')
		appendStringInfo(&buf, ", since %s", zkl_text_for_message(holder->since));
	appendStringInfoChar(&buf, '.');
	return buf.data;
}

/* For the statistics, before a wait ends with an error. */
static void
count_timeout(void)
{
	if (zkl_pending >= 0)
		pg_atomic_fetch_or_u32(&zkl_shared->entries[zkl_pending].flags, ZKL_FLAG_TIMED_OUT);
}

/* Why is there no answer? */
static char *
describe_trouble(void)
{
	char		trouble[ZKL_TROUBLE_SIZE];

	if (pg_atomic_read_u32(&zkl_shared->worker_pid) == 0)
		return pstrdup("The zklock worker is not running.");
	if (zkl_now() < zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease)))
		return pstrdup("It has not answered this request yet.");
	if (zkl_trouble_read(trouble))
		return zkl_text_for_message(trouble);
	return psprintf("There is no answer from zklock.hosts (\"%s\").", zkl_hosts);
}

static void
raise_unavailable(Wait *wait)
{
	count_timeout();
	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("could not reach %s for %s within %d ms",
					zkl_coordinator_name(), zkl_lock_label(wait->name),
					wait->timeout == 0 ? TRY_TIMEOUT_MS : wait->timeout),
			 errdetail("%s", describe_trouble()),
			 errhint("Check the %s servers and zklock.hosts; the server log has the worker's messages.",
					 zkl_coordinator_name())));
}

/* What is in the way? NULL when that is not known. */
static char *
describe_wait(const Wait *wait, ZklEntry *entry)
{
	char	   *holder = describe_holder(entry);
	int			ahead = pg_atomic_read_u32(&entry->ahead);

	if (wait->turn)
		return psprintf("%d others are waiting for a lease.", ahead);
	if (wait->permits > 0 && ahead > 0)
		return psprintf("%d of %d leases are taken.%s%s", Min(ahead, wait->permits), wait->permits,
						holder != NULL ? " " : "", holder != NULL ? holder : "");
	if (holder != NULL && ahead > 1)
		return psprintf("%s %d contenders are ahead.", holder, ahead);
	if (holder == NULL && ahead > 0)
		return psprintf("%d contenders are ahead.", ahead);
	return holder;
}

static void
raise_timeout(Wait *wait, ZklEntry *entry)
{
	char	   *detail = describe_wait(wait, entry);

	count_timeout();
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 wait->timeout == 0 ?
			 errmsg("%s is taken", zkl_lock_label(wait->name)) :
			 errmsg("could not obtain %s within %d ms",
					zkl_lock_label(wait->name), wait->timeout),
			 detail != NULL ? errdetail("%s", detail) : 0,
			 wait->by_lock_timeout ?
			 errhint("The setting lock_timeout ended the wait.") : 0));
}

static void
raise_failed(Wait *wait, ZklEntry *entry)
{
	char	   *name = zkl_text_for_message(wait->name);
	ZklHold    *hold;

	pg_read_barrier();
	switch (entry->refusal)
	{
		case ZKL_REFUSAL_BUDGET:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("too many locks for one %s session", zkl_coordinator_name()),
					 errdetail("One more than \"%s\" could make the %s session too large for the ensemble to end it.",
							   name, zkl_coordinator_name()),
					 errhint("Release locks, or use shorter names.")));
			break;
		case ZKL_REFUSAL_COUNTER:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the counter of lock \"%s\" is used up", name),
					 errdetail("%s numbers the contenders of a lock up to 2147483647; equal or negative numbers would let two hold it.",
							   zkl_coordinator_name()),
					 errhint("When no client uses the lock, delete its node in %s; the next one starts at 0.",
							 zkl_coordinator_name())));
			break;
		case ZKL_REFUSAL_LONG_NAME:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a contender for lock \"%s\" has too long a name", name),
					 errdetail("A node of more than %d bytes stands in the lock's directory, made by another client.",
							   ZKL_NODE_SIZE - 1)));
			break;
		case ZKL_REFUSAL_NO_WRITER:

			/*
			 * this may be the first sign that the write lock is lost: look
			 * again
			 */
			zkl_guard_refresh();
			hold = zkl_holds_find_mode(wait->name, ZKL_MODE_WRITE);
			if (hold != NULL)
				zkl_guard_raise(hold);
			break;
		case ZKL_REFUSAL_DENIED:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("%s denies access to lock \"%s\"", zkl_coordinator_name(), name),
					 errdetail("%s", entry->refusal_text),
					 errhint("Compare zklock.acl and zklock.credentials_file of all servers with the ACL of the lock's directory.")));
			break;
		case ZKL_REFUSAL_OTHER:
		case ZKL_REFUSAL_NONE:
			break;
	}
	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("%s refused lock \"%s\"", zkl_coordinator_name(), name),
			 errdetail("%s", entry->refusal_text)));
}

/* Ask for the lock: from here on zkl_pending is to be let go on any error. */
static ZklEntry *
submit(Wait *wait)
{
	ZklEntry   *entry;
	char		database[64];
	char		user[64];
	char		application[64];
	int			push_signal = zkl_guard_signal();

	Assert(zkl_pending < 0);
	/* all that can fail comes before the entry is taken */
	zkl_copy_as_utf8(database, sizeof(database), get_database_name(MyDatabaseId));
	zkl_copy_as_utf8(user, sizeof(user), GetUserNameFromId(GetUserId(), true));
	zkl_copy_as_utf8(application, sizeof(application), application_name);

	zkl_pending = zkl_quota_take_entry();
	entry = &zkl_shared->entries[zkl_pending];
	entry->pid = MyProcPid;
	entry->procno = MyProcNumber;
	entry->push_signal = push_signal;
	entry->mode = wait->mode;
	/* a downgrade waits for nobody */
	entry->try = wait->downgrade == NULL && (wait->try || wait->timeout == 0);
	entry->permits = wait->permits;
	entry->beside[0] = '\0';
	entry->inherited_token = 0;
	if (wait->downgrade != NULL)
	{
		/*
		 * its name does not change any more; if it is lost meanwhile the
		 * worker will not find it
		 */
		strlcpy(entry->beside, zkl_shared->entries[wait->downgrade->entryno].saved.contender,
				sizeof(entry->beside));
		entry->inherited_token = wait->downgrade->token;
	}
	strlcpy(entry->name, wait->name, sizeof(entry->name));
	strlcpy(entry->database, database, sizeof(entry->database));
	strlcpy(entry->user, user, sizeof(entry->user));
	strlcpy(entry->application, application, sizeof(entry->application));
	zkl_format_now(entry->since, sizeof(entry->since));
	entry->wait_start = wait->start;
	pg_atomic_write_u32(&entry->levels, wait->xact_level ? ZKL_LEVEL_XACT : ZKL_LEVEL_BACKEND);
	zkl_entry_submit(zkl_pending);
	return entry;
}

/* Is a grant worth handing out: does it last beyond the commit margin? */
static bool
grant_is_good(ZklEntry *entry)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	return entry->generation == zkl_word_generation(word) &&
		zkl_now() + ZKL_MS(zkl_commit_margin) < zkl_word_deadline(word);
}

/* Sleep until the worker says something, at most "ms". */
static void
sleep_on_latch(long ms)
{
	static uint32 wait_event = 0;

	zkl_sleep(ms, &wait_event, "ZklockAcquire");
}

/* Ask who holds the lock; an earlier answer is forgotten. */
static void
begin_to_ask(int index)
{
	ZklEntry   *entry = &zkl_shared->entries[index];

	pg_atomic_fetch_and_u32(&entry->flags, ~(ZKL_FLAG_ASKED | ZKL_FLAG_ANSWERED));
	pg_atomic_fetch_or_u32(&entry->flags, ZKL_FLAG_ASKED);
	zkl_ring_doorbell(index);
}

/* Ask, and give the worker a moment to find out. */
static void
ask_holder(int index, ZklTime until)
{
	ZklEntry   *entry = &zkl_shared->entries[index];

	begin_to_ask(index);
	while ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0 && zkl_now() < until)
		sleep_on_latch((until - zkl_now()) / 1000);
}

/*
 * log_lock_waits: PostgreSQL logs a wait for longer than deadlock_timeout; so do we,
 * with the holder's server, for which the worker is asked first.
 */
static void
log_wait(Wait *wait, ZklEntry *entry, ZklTime now)
{
	ZklTime		log_at = wait->start + ZKL_MS(DeadlockTimeout);
	bool		answered = (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) != 0;
	char	   *holder;

	if (wait->logged == WAIT_NOT_LOGGED && now >= log_at)
	{
		begin_to_ask(zkl_pending);
		wait->logged = WAIT_LOG_ASKED;
	}
	else if (wait->logged == WAIT_LOG_ASKED && (answered || now >= log_at + ZKL_MS(ASK_BEFORE_MS)))
	{
		wait->logged = WAIT_LOGGED;
		holder = describe_holder(entry);
		ereport(LOG,
				(errmsg("zklock: process %d still waiting for %s after %ld ms", MyProcPid,
						zkl_lock_label(wait->name), (long) ((now - wait->start) / 1000)),
				 holder != NULL ? errdetail("%s %u contenders are ahead.", holder,
											pg_atomic_read_u32(&entry->ahead)) :
				 errdetail("%u contenders are ahead.", pg_atomic_read_u32(&entry->ahead))));
	}
}

/*
 * Was the turn lost by which we wait for a permit? The request that has it now must not
 * find our contender in its way, since each would wait for the other.
 */
static bool
lost_turn(Wait *wait)
{
	if (zkl_pending_turn < 0 ||
		(pg_atomic_read_u32(&zkl_shared->entries[zkl_pending_turn].flags) & ZKL_FLAG_LOST) == 0)
		return false;
	zkl_pending_let_go();
	wait->turn_lost = true;
	return true;
}

/* What has become of a request? */
typedef enum WaitStep
{
	WAIT_ON,					/* nothing yet */
	WAIT_GRANTED,
	WAIT_AGAIN,					/* it was let go: ask anew */
	WAIT_ENDED					/* it was let go, and that is the answer */
} WaitStep;

/* Look at the entry, whose phase is noted for what follows. Refusals are errors. */
static WaitStep
look_at_request(Wait *wait, ZklEntry *entry)
{
	wait->phase = pg_atomic_read_u32(&entry->phase);
	pg_read_barrier();
	switch (wait->phase)
	{
		case ZKL_PHASE_HELD:
			if (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST)
			{
				/* granted, and lost before we saw it: queue again */
				zkl_pending_let_go();
				wait->turn_lost = wait->permits > 0;
				return wait->turn_lost ? WAIT_ENDED : WAIT_AGAIN;
			}
			return grant_is_good(entry) ? WAIT_GRANTED : WAIT_ON;
		case ZKL_PHASE_BUSY:
			if (wait->try)
			{
				zkl_pending_let_go();
				return WAIT_ENDED;
			}
			ask_holder(zkl_pending, zkl_now() + ZKL_MS(ASK_AFTER_BUSY_MS));
			raise_timeout(wait, entry);
			break;
		case ZKL_PHASE_FAILED:
			raise_failed(wait, entry);
			break;
		default:
			break;
	}
	return lost_turn(wait) ? WAIT_ENDED : WAIT_ON;
}

/*
 * The wait is over. One of two errors: which contender is in the way says nothing while
 * the coordinator does not answer. And "taken" must not be said of a lock that nobody was
 * seen to hold: a job would believe that another server is at it.
 */
static void
raise_too_late(Wait *wait, ZklEntry *entry, ZklTime now)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	if (wait->phase == ZKL_PHASE_WANTED && now < zkl_word_deadline(word) && !entry->try &&
		pg_atomic_read_u32(&entry->queued))
		raise_timeout(wait, entry);
	raise_unavailable(wait);
}

/*
 * How long may the wait sleep? Does what is due by now: ask for the holder before the
 * timeout, log a wait that is long, raise the error of one that is too long.
 */
static ZklTime
time_to_sleep(Wait *wait, ZklEntry *entry)
{
	ZklTime		now = zkl_now();
	ZklTime		left = wait->deadline == 0 ? ZKL_MS(1000) : wait->deadline - now;

	if (left <= 0)
		raise_too_late(wait, entry, now);
	if (wait->deadline != 0 && !wait->asked)
	{
		ZklTime		ask_at = wait->deadline -
			Min(ZKL_MS(ASK_BEFORE_MS), ZKL_MS(wait->timeout) / 2);

		if (now >= ask_at)
		{
			wait->asked = true;
			begin_to_ask(zkl_pending);
		}
		else
			left = Min(left, ask_at - now);
	}
	if (log_lock_waits && wait->logged < WAIT_LOGGED)
	{
		log_wait(wait, entry, now);
		left = Min(left, wait->logged == WAIT_LOG_ASKED ? ZKL_MS(ASK_BEFORE_MS) :
				   Max(wait->start + ZKL_MS(DeadlockTimeout) - now, 0));
	}
	return Min(left, ZKL_MS(1000));
}

/*
 * Wait for the lock. Returns its entry, granted and good, or NULL when a try
 * found it taken, or the turn was lost; everything else is an error.
 */
static ZklEntry *
wait_for_grant(Wait *wait)
{
	WaitStep	step;
	ZklEntry   *entry;

	wait->logged = WAIT_NOT_LOGGED;
	do
	{
		entry = submit(wait);
		wait->asked = false;
		while ((step = look_at_request(wait, entry)) == WAIT_ON)
		{
			sleep_on_latch((time_to_sleep(wait, entry) + 999) / 1000);
			zkl_guard_check();
		}
	} while (step == WAIT_AGAIN);
	if (step == WAIT_ENDED)
		return NULL;
	if (wait->logged == WAIT_LOGGED)
		ereport(LOG,
				(errmsg("zklock: process %d acquired %s after %ld ms", MyProcPid,
						zkl_lock_label(wait->name),
						(long) ((zkl_now() - wait->start) / 1000))));
	return entry;
}

/* Wait for a lock that this backend holds, and that lapsed, to be certain again. */
static void
wait_for_lease(Wait *wait, ZklHold *hold)
{
	while (!grant_is_good(&zkl_shared->entries[hold->entryno]))
	{
		ZklTime		left = wait->deadline == 0 ? ZKL_MS(100) : wait->deadline - zkl_now();

		zkl_guard_refresh();
		if (hold->loss != ZKL_LOSS_NONE)
			zkl_guard_raise(hold);
		if (left <= 0)
			raise_unavailable(wait);
		sleep_on_latch(Min(left, ZKL_MS(100)) / 1000);
		zkl_guard_check();
	}
}

static void
warn_about_snapshot(void)
{
	if (!IsolationUsesXactSnapshot() || warned_lxid == MyProc->ZKL_LXID ||
		!(IsTransactionBlock() || zkl_guard_is_nested()))
		return;
	warned_lxid = MyProc->ZKL_LXID;
	ereport(WARNING,
			(errmsg("this transaction's snapshot is older than the lock"),
			 errdetail("It was taken before the lock was granted, so what the last holder wrote may not be visible in it."),
			 errhint("Acquire the lock before BEGIN, or use READ COMMITTED.")));
}

/* How many permits of this semaphore ("name" with its suffix) does this backend hold? */
static int
count_permits(const char *name)
{
	int			permits = 0;

	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].mode == ZKL_MODE_PERMIT && zkl_holds[i].loss == ZKL_LOSS_NONE &&
			zkl_holds[i].state != ZKL_HOLD_RELEASED && strcmp(zkl_holds[i].name, name) == 0)
			permits++;
	return permits;
}

/*
 * How many permits there are is what each caller says. If another says something
 * else, one of the two is wrong, and nobody can tell which.
 */
static void
warn_about_permits(ZklEntry *entry, int permits)
{
	ask_holder(zkl_pending, zkl_now() + ZKL_MS(ASK_AFTER_BUSY_MS));
	pg_read_barrier();
	if ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0 ||
		entry->holder.permits == 0 || entry->holder.permits == permits)
		return;
	ereport(WARNING,
			(errmsg("%s is used with different numbers of leases", zkl_lock_label(entry->name)),
			 errdetail("This call says %d, server \"%s\", process %d said %d.", permits,
					   zkl_text_for_message(entry->holder.server), entry->holder.pid,
					   entry->holder.permits),
			 errhint("The larger number is what holds for those who use it.")));
}

/*
 * Returns the fencing token, or 0 when a try found the lock taken.
 */
static int64
acquire(Wait *wait)
{
	ZklHold    *hold;
	ZklEntry   *entry;

	zkl_holds_reserve();
	zkl_guard_refresh();
	supersede_lost(wait->name, wait->xact_level);
	zkl_guard_check();

	hold = zkl_holds_find_mode(wait->name, wait->mode);

	/*
	 * each lease of a semaphore is one more, unless one was not quite given
	 * back
	 */
	if (hold != NULL && (wait->permits == 0 || hold->state == ZKL_HOLD_RELEASED))
	{
		wait_for_lease(wait, hold);
		zkl_holds_drop_superseded();	/* which moves holds */
		hold = zkl_holds_find_mode(wait->name, wait->mode);
		zkl_hold_reserve_level(hold);
		zkl_hold_count_acquire(hold, wait->xact_level);
		return hold->token;
	}
	if (wait->permits == 0 && (hold = zkl_holds_find(wait->name)) != NULL)
	{
		if (wait->mode != ZKL_MODE_READ || hold->mode != ZKL_MODE_WRITE)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("%s is held in another mode", zkl_lock_label(wait->name)),
					 errdetail("This backend holds it in mode \"%s\" and would wait for itself.",
							   zkl_mode_name(hold->mode)),
					 hold->mode == ZKL_MODE_EXCLUSIVE ?
					 errhint("Release it first. Only \"write\" can be downgraded, to \"read\".") :
					 errhint("Release it first.")));
		wait->downgrade = hold;
	}

	entry = wait_for_grant(wait);
	if (entry == NULL)
	{
		zkl_holds_restore_superseded();
		return 0;
	}
	if (wait->permits > 0 && pg_atomic_read_u32(&entry->ahead) > 0)
		warn_about_permits(entry, wait->permits);
	zkl_holds_drop_superseded();
	hold = zkl_holds_add(wait->name, zkl_pending, wait->mode, entry->token);
	zkl_pending = -1;
	/* if this fails, the end of the transaction drops a hold without counts */
	zkl_hold_reserve_level(hold);
	zkl_hold_count_acquire(hold, wait->xact_level);
	zkl_guard_granted();
	warn_about_snapshot();
	return hold->token;
}

/*
 * Curator's two steps: a mutex puts requests that want to wait for a permit in order, and
 * the one that has it waits until fewer than "permits" nodes are before its own. A request
 * that does not want to wait needs no turn: either so many nodes are there, or its own
 * comes among the first (queue.h says why that is no permit too many). A try that had to
 * queue for the mutex could come back with no answer, and none is not "taken".
 *
 * Returns a number that is unique but fences nothing, or 0 when a try saw all permits
 * taken.
 */
static int64
acquire_permit(Wait *wait, Wait *turn)
{
	ZklHold    *hold;
	int			held = count_permits(wait->name);
	int64		token;

	if (held >= wait->permits && wait->try)
		return 0;
	if (held >= wait->permits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this backend holds all leases of %s", zkl_lock_label(wait->name)),
				 errdetail("It holds %d and would wait for itself.", held),
				 errhint("Release one first.")));

	zkl_holds_reserve();
	do
	{
		zkl_guard_refresh();
		supersede_lost(wait->name, false);
		zkl_guard_check();
		hold = zkl_holds_find_mode(wait->name, ZKL_MODE_PERMIT);
		if (!wait->try && wait->timeout != 0 && (hold == NULL || hold->state != ZKL_HOLD_RELEASED))
		{
			turn->timeout = wait->timeout;
			turn->start = wait->start;
			turn->by_lock_timeout = wait->by_lock_timeout;
			turn->deadline = wait->deadline;
			(void) wait_for_grant(turn);
			zkl_pending_turn = zkl_pending;
			zkl_pending = -1;
		}
		wait->turn_lost = false;
		token = acquire(wait);
		/* a turn that was lost is taken again, within the same deadline */
	} while (token == 0 && wait->turn_lost);
	zkl_pending_let_go();
	return token;
}

static int64
acquire_or_let_go(Wait *wait, Wait *turn)
{
	int64		token;

	PG_TRY();
	{
		token = turn != NULL ? acquire_permit(wait, turn) : acquire(wait);
	}
	PG_CATCH();
	{
		zkl_pending_let_go();
		PG_RE_THROW();
	}
	PG_END_TRY();
	return token;
}

/* Whatever ends an acquire by an error, what it asked for is let go on the way out. */
int64
zkl_acquire(const char *name, ZklMode mode, bool xact_level, bool try, int timeout)
{
	Wait		wait = {.name = name,.mode = mode,.xact_level = xact_level};

	begin_wait(&wait, try, timeout);
	return acquire_or_let_go(&wait, NULL);
}

int64
zkl_acquire_permit(const char *semaphore, int permits, bool try, int timeout)
{
	char		turn_name[ZKL_NAME_MAX + 1];
	char		name[ZKL_NAME_MAX + 1];
	Wait		turn = {.name = turn_name,.mode = ZKL_MODE_EXCLUSIVE,.turn = true};
	Wait		wait = {.name = name,.mode = ZKL_MODE_PERMIT,.permits = permits};

	snprintf(turn_name, sizeof(turn_name), "%s" ZKL_SEMAPHORE_LOCKS, semaphore);
	snprintf(name, sizeof(name), "%s" ZKL_SEMAPHORE_LEASES, semaphore);
	begin_wait(&wait, try, timeout);
	return acquire_or_let_go(&wait, &turn);
}
