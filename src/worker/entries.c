/*-------------------------------------------------------------------------
 *
 * entries.c
 *	  What owners want of their lock entries, and what became of it.
 *
 * An owner rings the doorbell for its entry; the worker then asks the coordinator for
 * the lock, or gives it back. The coordinator's events come to zkl_entries_event(),
 * which writes them into the entry and wakes the owner. entry.h says who may write what
 * in which phase.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "common/settings.h"
#include "worker/internal.h"

#define TICK_PERIOD		ZKL_MS(1000)
#define LOSSES_LOGGED	100		/* lines about lost locks, per tick */

static void look_at_entry(int entryno);
static void adopt_entry(int entryno, bool session_goes_on);
static void publish_loss(int entryno, uint32 how);
static void wake_owner(ZklEntry *entry);
static void push_owner(ZklEntry *entry);

/* ------------------------------------------------------------------------
 * What owners want
 * ------------------------------------------------------------------------
 */

/*
 * Look at the entries that owners have rung for. In two passes, what is given back
 * first: then the deletion of a backend's last lock travels ahead of the creation for
 * its next, which so finds it gone.
 */
void
zkl_entries_answer_doorbell(void)
{
	pg_atomic_uint64 *words = zkl_doorbell_words();
	int			nrung = 0;

	for (int i = 0; i < zkl_doorbell_count(); i++)
	{
		uint64		bits;

		if (pg_atomic_read_u64(&words[i]) == 0)
			continue;
		bits = pg_atomic_exchange_u64(&words[i], 0);
		for (int j = 0; bits != 0; j++, bits >>= 1)
		{
			int			entryno = i * 64 + j;

			if ((bits & 1) == 0)
				continue;
			if (pg_atomic_read_u32(&zkl_shared->entries[entryno].flags) & ZKL_FLAG_LET_GO)
				look_at_entry(entryno);
			else
				zkl_worker.rung[nrung++] = entryno;
		}
	}
	for (int i = 0; i < nrung; i++)
		look_at_entry(zkl_worker.rung[i]);
}

/* What the coordinator has to know of a request. The pointers lead into the entry. */
static ZklWant
want_of(int entryno)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	ZklWant		want = {
		.slot = entryno,
		.serial = entry->serial,
		.name = entry->name,
		.mode = entry->mode,
		.permits = entry->permits,
		.try = entry->try,
		.beside = entry->beside,
		.pid = entry->pid,
		.database = entry->database,
		.user = entry->user,
		.application = entry->application,
		.since = entry->since,
		.saved = &entry->saved
	};

	return want;
}

static void
make_request(int entryno)
{
	static const Request made = {.state = REQUEST_MADE};
	ZklWant		want = want_of(entryno);

	Assert(zkl_worker.requests[entryno].state == REQUEST_NONE);
	zkl_worker.requests[entryno] = made;
	zkl_worker.ops->want(zkl_worker.coordinator, &want);
}

/* For the statistics: the owner is done with it, or never got it. */
static void
count_end(const ZklEntry *entry, ZklOutcome outcome, bool waited)
{
	ZklTime		since = entry->granted_at != 0 ? entry->granted_at : entry->wait_start;

	zkl_stats_count(entry->name, outcome, waited, zkl_now() - since);
}

static void
count_let_go(const ZklEntry *entry, ZklPhase phase, uint32 flags)
{
	if (phase == ZKL_PHASE_HELD)
	{
		count_end(entry, ZKL_OUTCOME_RELEASED, false);
		if ((flags & (ZKL_FLAG_UNCERTAIN | ZKL_FLAG_LOST)) == ZKL_FLAG_UNCERTAIN)
			zkl_stats_count(entry->name, ZKL_OUTCOME_LOST, false, 0);
	}
	else if (phase == ZKL_PHASE_WANTED)
		count_end(entry, (flags & ZKL_FLAG_TIMED_OUT) ? ZKL_OUTCOME_TIMED_OUT :
				  ZKL_OUTCOME_CANCELLED, false);
}

/* The owner wants to know who holds the lock. */
static void
ask_holder(int entryno)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	ZklQuestion question = {
		.kind = ZKL_QUESTION_HOLDER,
		.place = entryno,
		.serial = entry->serial,
		.mode = entry->mode
	};

	strlcpy(question.name, entry->name, sizeof(question.name));
	strlcpy(question.request, entry->saved.request, sizeof(question.request));
	zkl_worker.ops->ask(zkl_worker.coordinator, &question);
}

/* Act on what the owner asked for: a request or a release, possibly left by an earlier
 * worker. */
static void
look_at_entry(int entryno)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	Request    *request = &zkl_worker.requests[entryno];
	ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
	uint32		flags;

	if (phase == ZKL_PHASE_FREE || phase == ZKL_PHASE_FILLING)
		return;
	pg_read_barrier();
	flags = pg_atomic_read_u32(&entry->flags);

	if (flags & ZKL_FLAG_LET_GO)
	{
		if (request->state == REQUEST_LET_GO)
			return;
		count_let_go(entry, phase, flags);
		if (request->state == REQUEST_NONE)
			zkl_entry_free(entryno);
		else
		{
			request->state = REQUEST_LET_GO;
			zkl_worker.ops->let_go(zkl_worker.coordinator, entryno);
		}
		return;
	}
	if (phase == ZKL_PHASE_WANTED && request->state == REQUEST_NONE)
		make_request(entryno);
	if ((flags & (ZKL_FLAG_ASKED | ZKL_FLAG_ANSWERED)) == ZKL_FLAG_ASKED)
		ask_holder(entryno);
}

/* ------------------------------------------------------------------------
 * What an earlier worker left
 * ------------------------------------------------------------------------
 */

/*
 * Go on with the entries that there are. "session_goes_on": the coordinator's session is
 * that of the earlier worker, so what it held may still be held.
 */
void
zkl_entries_init(bool session_goes_on)
{
	int			n = zkl_shared->nentries;

	zkl_worker.requests = MemoryContextAllocZero(TopMemoryContext, n * sizeof(Request));
	zkl_worker.rung = MemoryContextAlloc(TopMemoryContext, n * sizeof(int));
	for (int i = 0; i < n; i++)
	{
		ZklPhase	phase = pg_atomic_read_u32(&zkl_shared->entries[i].phase);

		if (phase == ZKL_PHASE_FREE || phase == ZKL_PHASE_FILLING)
			continue;
		adopt_entry(i, session_goes_on);
		look_at_entry(i);
	}
}

static void
adopt_entry(int entryno, bool session_goes_on)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	Request    *request = &zkl_worker.requests[entryno];
	ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
	uint32		flags = pg_atomic_read_u32(&entry->flags);
	uint32		generation = zkl_word_generation(pg_atomic_read_u64(&zkl_shared->lease));
	bool		held = phase == ZKL_PHASE_HELD;
	ZklWant		want;

	if (held && (!session_goes_on || entry->generation != generation))
	{
		publish_loss(entryno, 0);
		entry->saved.request[0] = '\0';
	}
	if (!session_goes_on)
	{
		/* its contender is gone with the session */
		pg_atomic_write_u32(&entry->queued, 0);
		memset(&entry->saved, 0, sizeof(entry->saved));
	}
	if (entry->saved.request[0] == '\0')
		return;

	/* being taken away, but a commit that has passed its check goes on */
	request->being_taken = held && (flags & ZKL_FLAG_LOST) &&
		(flags & (ZKL_FLAG_COMMITTING | ZKL_FLAG_LET_GO)) == ZKL_FLAG_COMMITTING;
	zkl_worker.nbeing_taken += request->being_taken;
	held = held && ((flags & ZKL_FLAG_LOST) == 0 || request->being_taken);
	request->state = REQUEST_MADE;
	/* where it stands in the queue the coordinator has to find out again */
	pg_atomic_write_u32(&entry->queued, 0);

	want = want_of(entryno);
	want.adopt = true;
	want.held = held;
	want.token = entry->token;
	zkl_worker.ops->want(zkl_worker.coordinator, &want);
	if (!held && phase != ZKL_PHASE_WANTED)
	{
		/*
		 * nobody wants it any more; look_at_entry() frees it when its owner
		 * lets go
		 */
		request->state = REQUEST_LET_GO;
		zkl_worker.ops->let_go(zkl_worker.coordinator, entryno);
	}
}

/* ------------------------------------------------------------------------
 * What became of it
 * ------------------------------------------------------------------------
 */

static void
granted(int entryno, const ZklEvent *event)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];

	Assert(pg_atomic_read_u32(&entry->phase) == ZKL_PHASE_WANTED);
	/* a read lock that was downgraded from a write lock keeps its token */
	entry->token = entry->inherited_token != 0 ? entry->inherited_token : event->token;
	entry->generation = zkl_word_generation(pg_atomic_read_u64(&zkl_shared->lease));
	count_end(entry, ZKL_OUTCOME_ACQUIRED, event->waited);
	entry->granted_at = zkl_now();
	pg_write_barrier();
	pg_atomic_write_u32(&entry->phase, ZKL_PHASE_HELD);
	wake_owner(entry);
}

/* There is no lock for the owner: "phase" says in what way. */
static void
not_granted(int entryno, ZklPhase phase, ZklOutcome outcome)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];

	Assert(pg_atomic_read_u32(&entry->phase) == ZKL_PHASE_WANTED);
	pg_write_barrier();
	pg_atomic_write_u32(&entry->phase, phase);
	wake_owner(entry);
	count_end(entry, outcome, false);
}

/*
 * Take a granted lock away from its owner. From here on nothing commits under it,
 * except what is past PRE_COMMIT already: for that its contender stays until it is over.
 */
static void
take_away(int entryno)
{
	Request    *request = &zkl_worker.requests[entryno];
	bool		before = request->being_taken;

	publish_loss(entryno, ZKL_FLAG_BROKEN);
	request->being_taken = (pg_atomic_read_u32(&zkl_shared->entries[entryno].flags) &
							ZKL_FLAG_COMMITTING) != 0;
	zkl_worker.nbeing_taken += request->being_taken - before;
	if (!request->being_taken)
		zkl_worker.ops->give_up(zkl_worker.coordinator, entryno);
}

/*
 * Another client asks for the lock: Curator's Revoker, which asks and no more, or
 * zk_lock_break() on another server, which is not refused.
 */
static void
asked_back(int entryno, const ZklEvent *event)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	Request    *request = &zkl_worker.requests[entryno];
	bool		obey = !event->foreign || zkl_on_revoke == ZKL_REVOKE_ABORT;

	if (request->asked_back || (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST))
		return;
	if (event->foreign)
		ereport(LOG,
				(errmsg("zklock: another %s client asks process %d to give up lock \"%s\"",
						zkl_worker.ops->name, entry->pid, entry->name),
				 obey ? 0 :
				 errdetail("It is not given up, since zklock.on_revoke is \"ignore\".")));
	if (!obey)
		return;
	request->asked_back = true;
	strlcpy(entry->breaker, event->text, sizeof(entry->breaker));
}

/* Nothing of the request is left with the coordinator. */
static void
gone(int entryno)
{
	Request    *request = &zkl_worker.requests[entryno];

	Assert(request->state != REQUEST_NONE);
	zkl_worker.nbeing_taken -= request->being_taken;
	memset(request, 0, sizeof(*request));
	if (pg_atomic_read_u32(&zkl_shared->entries[entryno].flags) & ZKL_FLAG_LET_GO)
		zkl_entry_free(entryno);
}

static void
answered(int entryno, const ZklEvent *event)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	ZklAnswer  *answer = event->answer;

	memset(&entry->holder, 0, sizeof(entry->holder));
	entry->holder_token = 0;
	if (answer->nrows > 0)
	{
		entry->holder = answer->rows[0].data;
		entry->holder_token = answer->rows[0].token;
	}
	pg_write_barrier();
	pg_atomic_fetch_or_u32(&entry->flags, ZKL_FLAG_ANSWERED);
	wake_owner(entry);
}

/* What the coordinator says about a slot: write it into the entry. */
void
zkl_entries_event(const ZklEvent *event)
{
	int			entryno = event->slot;
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	Request    *request = &zkl_worker.requests[entryno];
	ZklPhase	phase = pg_atomic_read_u32(&entry->phase);

	Assert(entryno >= 0 && entryno < zkl_shared->nentries);
	if (event->serial != entry->serial || phase == ZKL_PHASE_FREE || phase == ZKL_PHASE_FILLING)
		return;					/* of an earlier use */

	switch (event->kind)
	{
		case ZKL_EVENT_QUEUED:
			pg_atomic_write_u32(&entry->ahead, Max(event->ahead, 0));
			pg_atomic_write_u32(&entry->queued, event->ahead >= 0);
			break;
		case ZKL_EVENT_GRANTED:
			pg_atomic_write_u32(&entry->ahead, event->ahead);
			granted(entryno, event);
			break;
		case ZKL_EVENT_TAKEN:
			pg_atomic_write_u32(&entry->ahead, event->ahead);
			not_granted(entryno, ZKL_PHASE_BUSY, ZKL_OUTCOME_BUSY);
			break;
		case ZKL_EVENT_REFUSED:
			entry->refusal = event->refusal;
			strlcpy(entry->refusal_text, event->text, sizeof(entry->refusal_text));
			not_granted(entryno, ZKL_PHASE_FAILED, ZKL_OUTCOME_FAILED);
			break;
		case ZKL_EVENT_LOST:
			publish_loss(entryno, ZKL_FLAG_VANISHED);
			break;
		case ZKL_EVENT_ASKED_BACK:
			asked_back(entryno, event);
			break;
		case ZKL_EVENT_CHARGED:
			zkl_quota_charge(entry->role, zkl_now());
			break;
		case ZKL_EVENT_ANSWERED:
			answered(entryno, event);
			break;
		case ZKL_EVENT_GONE:
			gone(entryno);
			return;
		default:
			Assert(false);
			break;
	}
	if (request->asked_back && !request->being_taken && request->state == REQUEST_MADE &&
		pg_atomic_read_u32(&entry->phase) == ZKL_PHASE_HELD &&
		(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST) == 0)
		take_away(entryno);
}

/* ------------------------------------------------------------------------
 * Losses
 * ------------------------------------------------------------------------
 */

/*
 * The lock is lost; "how" is a flag that says more, or 0: the session ended. An owner
 * that has let go need not know; every other one is told, and told at once. One that is
 * between PRE_COMMIT and the end of its commit decides by itself what of that can be
 * cancelled.
 */
static void
publish_loss(int entryno, uint32 how)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];
	ZklTime		now = zkl_now();
	ZklTime		left = zkl_worker.deadline - now;
	uint32		old;

	if (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST)
		return;
	Assert(pg_atomic_read_u32(&entry->phase) == ZKL_PHASE_HELD);
	entry->lost_at = now;
	pg_write_barrier();
	old = pg_atomic_fetch_or_u32(&entry->flags, ZKL_FLAG_LOST | how);
	pg_atomic_fetch_add_u32(&zkl_shared->losses, 1);
	if (old & ZKL_FLAG_LET_GO)
		return;

	zkl_stats_count(entry->name, ZKL_OUTCOME_LOST, false, 0);
	/* of thousands that go together the tick says how many */
	if (zkl_worker.losses_logged++ < LOSSES_LOGGED)
		ereport(LOG,
				(errmsg("zklock: lock \"%s\" of process %d is lost", entry->name, entry->pid),
				 how == ZKL_FLAG_BROKEN ? errdetail("It was taken away by %s.", entry->breaker) :
				 how == ZKL_FLAG_VANISHED ?
				 errdetail("Its node was deleted. %ld ms of the lease were left.",
						   Max((long) (left / 1000), 0L)) :
				 errdetail("The %s session ended. %ld ms of the lease were left.",
						   zkl_worker.ops->name, Max((long) (left / 1000), 0L))));
	push_owner(entry);
}

/* The session has ended, or is about to: all that is held is lost. */
void
zkl_entries_lose_all(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (pg_atomic_read_u32(&zkl_shared->entries[i].phase) == ZKL_PHASE_HELD)
			publish_loss(i, 0);
}

/* What has to wait for a commit is tried again; what was not logged is summed up. */
void
zkl_entries_tick(ZklTime now)
{
	if (now < zkl_worker.next_tick)
		return;
	zkl_worker.next_tick = now + TICK_PERIOD;
	if (zkl_worker.losses_logged > LOSSES_LOGGED)
		ereport(LOG,
				(errmsg("zklock: %d more locks are lost, not shown one by one",
						zkl_worker.losses_logged - LOSSES_LOGGED)));
	zkl_worker.losses_logged = 0;
	for (int i = 0; i < zkl_shared->nentries && zkl_worker.nbeing_taken > 0; i++)
		if (zkl_worker.requests[i].being_taken &&
			zkl_worker.requests[i].state == REQUEST_MADE)
			take_away(i);
}

/* ------------------------------------------------------------------------
 * Owners
 * ------------------------------------------------------------------------
 */

/* An owner that has left meanwhile leaves a place that is empty, or another process's,
 * which looks around and finds nothing. */
static void
wake_owner(ZklEntry *entry)
{
	SetLatch(&GetPGProcByNumber(entry->procno)->procLatch);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open	434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal	424
#endif

/*
 * Send the owner its signal. By the time that it is sent, the process may have ended
 * and its number be another one's, which an unexpected real-time signal would kill. So
 * the process is taken hold of first, and then it is looked whether it is (still) the
 * owner; what we hold does not become another process. Where the kernel cannot do that
 * (before 5.3) the latch has to do: the owner's own timer notices a moment later.
 */
static void
push_owner(ZklEntry *entry)
{
	int			pid = entry->pid;
	uint32		serial = entry->serial;
	int			fd = (int) syscall(SYS_pidfd_open, pid, 0);

	if (fd >= 0)
	{
		if (GetPGProcByNumber(entry->procno)->pid == pid && entry->serial == serial &&
			(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO) == 0)
			(void) syscall(SYS_pidfd_send_signal, fd, entry->push_signal, NULL, 0);
		close(fd);
	}
	wake_owner(entry);
}

/* An entry that is granted, and whose owner has not let go. */
static bool
is_held(int entryno)
{
	ZklEntry   *entry = &zkl_shared->entries[entryno];

	return zkl_worker.requests[entryno].state == REQUEST_MADE &&
		pg_atomic_read_u32(&entry->phase) == ZKL_PHASE_HELD &&
		(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO) == 0;
}

/* Locks that an owner still relies on. */
int
zkl_entries_count_held(void)
{
	int			held = 0;

	for (int i = 0; i < zkl_shared->nentries; i++)
		held += is_held(i);
	return held;
}

void
zkl_entries_wake_granted(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (is_held(i))
			wake_owner(&zkl_shared->entries[i]);
}

/* Is an owner between the check of its commit and the commit's end? */
bool
zkl_entries_somebody_commits(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		uint32		flags = pg_atomic_read_u32(&zkl_shared->entries[i].flags);

		if (pg_atomic_read_u32(&zkl_shared->entries[i].phase) == ZKL_PHASE_HELD &&
			(flags & (ZKL_FLAG_COMMITTING | ZKL_FLAG_LET_GO)) == ZKL_FLAG_COMMITTING)
			return true;
	}
	return false;
}

/* Has every owner let go? Then none can be in the middle of a commit. */
bool
zkl_entries_all_let_go(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		ZklEntry   *entry = &zkl_shared->entries[i];

		if (pg_atomic_read_u32(&entry->phase) != ZKL_PHASE_FREE &&
			(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO) == 0)
			return false;
	}
	return true;
}
