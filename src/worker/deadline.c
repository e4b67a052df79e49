/*-------------------------------------------------------------------------
 *
 * deadline.c
 *	  The lease as backends see it, and the session's beginning and end.
 *
 * The coordinator says until when its session is proven to live; the worker publishes
 * that as one word, see shmem.h. All that a backend believes rests on that word, so it
 * is written before anything else that follows from the same event.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>

#include "common/settings.h"
#include "worker/internal.h"

static void session_began(const ZklEvent *event);
static void session_ending(const ZklEvent *event);
static void session_ended(const ZklEvent *event);
static void acknowledged(const ZklEvent *event, ZklTime now);
static void marked(const ZklEvent *event);

/* The deadline that an earlier worker has published is where this one begins. */
void
zkl_deadline_init(void)
{
	zkl_worker.deadline = zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease));
}

/* The session of an earlier worker is over, which it may not have lived to say. */
void
zkl_deadline_forget(void)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	zkl_worker.deadline = 0;
	if (zkl_word_deadline(word) != 0)
		pg_atomic_write_u64(&zkl_shared->lease,
							zkl_word_make(0, zkl_word_generation(word) + 1, 0));
}

void
zkl_deadline_event(const ZklEvent *event)
{
	switch (event->kind)
	{
		case ZKL_EVENT_BEGAN:
			session_began(event);
			break;
		case ZKL_EVENT_ENDING:
			session_ending(event);
			break;
		case ZKL_EVENT_ENDED:
			session_ended(event);
			break;
		case ZKL_EVENT_ACKNOWLEDGED:
			acknowledged(event, zkl_now());
			break;
		case ZKL_EVENT_MARKED:
			marked(event);
			break;
		default:
			Assert(false);
			break;
	}
}

/*
 * Publish the deadline. One that had passed and moves again is a lapse that
 * everybody must be able to see afterwards.
 */
static void
acknowledged(const ZklEvent *event, ZklTime now)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
	ZklTime		published = zkl_word_deadline(word);
	uint32		lapses = zkl_word_lapses(word);
	bool		lapsed = published != 0 && now >= published;

	zkl_worker.deadline = event->deadline;
	zkl_worker.period = event->period;

	/*
	 * What would be over before the next acknowledgement is not worth a new
	 * epoch: it would lapse again, and again.
	 */
	if (lapsed && zkl_worker.deadline < now + zkl_worker.period * 3 / 2)
		return;
	if (lapsed && zkl_worker.deadline > now)
	{
		lapses++;
		pg_atomic_fetch_add_u64(&zkl_shared->health.lapses, 1);
	}
	pg_atomic_write_u64(&zkl_shared->lease,
						zkl_word_make(zkl_worker.deadline, zkl_word_generation(word), lapses));

	if (now >= published && zkl_worker.deadline > now)
	{
		if (zkl_worker.lapse_logged)
			ereport(LOG,
					(errmsg("zklock: lease is current again, %d held locks, %ld ms left",
							zkl_entries_count_held(),
							(long) ((zkl_worker.deadline - now) / 1000)),
					 errdetail("The lease had lapsed %ld ms ago; the %s session is still 0x%" PRIx64 ".",
							   (long) ((now - published) / 1000), zkl_worker.ops->name,
							   zkl_worker.session)));
		zkl_worker.lapse_logged = false;
		zkl_trouble_write("");
		/* an owner that was granted something meanwhile waits for this */
		zkl_entries_wake_granted();
	}
}

/* Has the deadline passed? Once for each lapse, and before an answer that ends it. */
void
zkl_deadline_watch(ZklTime now)
{
	if (zkl_worker.lapse_logged || zkl_worker.deadline == 0 || now < zkl_worker.deadline)
		return;
	zkl_worker.lapse_logged = true;
	ereport(LOG,
			(errmsg("zklock: lease lapsed, %d held locks are not certain any more",
					zkl_entries_count_held()),
			 zkl_worker.connected ?
			 errdetail("%s has not acknowledged a heartbeat in time.", zkl_worker.ops->name) :
			 errdetail("The connection to %s is lost.", zkl_worker.ops->name)));
	if (zkl_worker.connected)
	{
		char		text[ZKL_TROUBLE_SIZE];

		snprintf(text, sizeof(text), "%s does not acknowledge heartbeats; it may have lost its quorum",
				 zkl_worker.ops->name);
		zkl_trouble_write(text);
	}
}

/*
 * How far the coordinator has counted, for fence.c. One that counts from a lower number
 * is not the one that it was, or has lost its data.
 */
static void
marked(const ZklEvent *event)
{
	int64		known = (int64) pg_atomic_read_u64(&zkl_shared->mark);

	if (event->token < known)
		ereport(LOG,
				(errmsg("zklock: %s counts from a lower number than before", zkl_worker.ops->name),
				 errdetail("It had come to " INT64_FORMAT " and is at " INT64_FORMAT ".", known,
						   (int64) event->token),
				 errhint("If the ensemble was rebuilt, fencing tokens are lower than the marks in zk_fence: see \"Rebuilding the ensemble\" in the manual.")));
	if (event->token != known)
		pg_atomic_write_u64(&zkl_shared->mark, event->token);
	pg_write_barrier();
	pg_atomic_write_u64(&zkl_shared->mark_sent, event->sent);
}

/* ------------------------------------------------------------------------
 * The session
 * ------------------------------------------------------------------------
 */

static void
session_began(const ZklEvent *event)
{
	zkl_worker.session = event->session;
	ereport(LOG,
			(errmsg("zklock: %s session 0x%" PRIx64 ", timeout %ld ms", zkl_worker.ops->name,
					(uint64) event->session, (long) (event->timeout / 1000)),
			 event->timeout != ZKL_MS(zkl_session_timeout) ?
			 errdetail("The servers' limits changed the timeout of %d ms that zklock.session_timeout asks for.",
					   zkl_session_timeout) : 0));
}

/*
 * The coordinator takes the session for one that has to go. What is held is lost from
 * now on, so nothing passes its check any more; what has passed it is waited for.
 */
static void
session_ending(const ZklEvent *event)
{
	strlcpy(zkl_worker.ending, event->text, sizeof(zkl_worker.ending));
	zkl_worker.ending_since = zkl_now();
	zkl_worker.ending_logged = false;
	zkl_entries_lose_all();
}

/* T, or what was asked for while that is not known. */
static ZklTime
ending_patience(void)
{
	ZklTime		timeout = (ZklTime) pg_atomic_read_u64(&zkl_shared->health.timeout);

	return timeout != 0 ? timeout : ZKL_MS(zkl_session_timeout);
}

/* Let the session be ended when no commit stands in the way. */
void
zkl_deadline_advance_ending(ZklTime now)
{
	if (zkl_worker.ending[0] == '\0')
		return;
	if (!zkl_entries_somebody_commits())
		zkl_worker.ops->end(zkl_worker.coordinator);
	else if (!zkl_worker.ending_logged &&
			 now - zkl_worker.ending_since >= ending_patience())
	{
		zkl_worker.ending_logged = true;
		ereport(LOG,
				(errmsg("zklock: %s session 0x%" PRIx64 " is not ended yet, since a transaction under one of its locks is being committed",
						zkl_worker.ops->name, (uint64) zkl_worker.session),
				 errdetail("%s", zkl_worker.ending)));
	}
}

/*
 * The session is over: first the deadline, so that no backend believes any more, then
 * each lock.
 */
static void
session_ended(const ZklEvent *event)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	pg_atomic_write_u64(&zkl_shared->lease, zkl_word_make(0, zkl_word_generation(word) + 1, 0));
	zkl_worker.deadline = 0;
	zkl_worker.session = 0;
	zkl_worker.lapse_logged = false;
	zkl_worker.ending[0] = '\0';
	pg_atomic_fetch_add_u64(&zkl_shared->health.expiries, 1);
	ereport(LOG,
			(errmsg("zklock: %s session 0x%" PRIx64 " ended, %d held locks are lost",
					zkl_worker.ops->name, (uint64) event->session, zkl_entries_count_held()),
			 errdetail("%s", event->text)));
	zkl_entries_lose_all();
}
