/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What the backends and the worker share: the lease, the lock entries.
 *
 * There is no lock here. A process that is stopped while it holds one would
 * stop all others, and the whole point of the lease is that each backend
 * notices by itself when the worker stops. So each field has one writer at a time,
 * which the entry's phase names, and what checks read are atomics.
 *
 * The lock entries are in entry.h, with who may write what.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_SHMEM_H
#define ZKL_SHMEM_H

#include "port/atomics.h"

#include "common/clock.h"
#include "coordinator.h"
#include "shared/desk.h"
#include "shared/entry.h"
#include "shared/quota.h"
#include "shared/stats.h"

/*
 * The lease as one word, so that nobody can read half of it and no writer can
 * be stopped in the middle of it:
 *
 *		deadline, ms of CLOCK_BOOTTIME, rounded down: 40 bits (34 years)
 *		generation: 12 bits, one up with each session
 *		lapses: 12 bits, one up when a deadline that had passed moved again
 *
 * A transaction remembers generation and lapses when it begins to rely on a
 * lock, and so notices a lapse that came and went while it was stopped.
 */
#define ZKL_LEASE_EPOCH_BITS	24
#define ZKL_LEASE_LAPSE_BITS	12
#define ZKL_LEASE_LAPSE_MASK	0xFFF
#define ZKL_LEASE_EPOCH_MASK	0xFFFFFF

static inline ZklTime
zkl_word_deadline(uint64 word)
{
	return ZKL_MS((int64) (word >> ZKL_LEASE_EPOCH_BITS));
}

/* Generation and lapses, as one number to remember and to compare. */
static inline uint32
zkl_word_epoch(uint64 word)
{
	return (uint32) (word & ZKL_LEASE_EPOCH_MASK);
}

static inline uint32
zkl_word_generation(uint64 word)
{
	return zkl_word_epoch(word) >> ZKL_LEASE_LAPSE_BITS;
}

static inline uint32
zkl_word_lapses(uint64 word)
{
	return zkl_word_epoch(word) & ZKL_LEASE_LAPSE_MASK;
}

/* Generation and lapses count round; "deadline" is rounded down. */
static inline uint64
zkl_word_make(ZklTime deadline, uint32 generation, uint32 lapses)
{
	return (uint64) (deadline / 1000) << ZKL_LEASE_EPOCH_BITS |
		(generation & ZKL_LEASE_LAPSE_MASK) << ZKL_LEASE_LAPSE_BITS |
		(lapses & ZKL_LEASE_LAPSE_MASK);
}

/*
 * A text that the worker writes and anybody reads. Its version is even when the text is
 * whole, odd while it is written; readers give up after a few tries, because the
 * writer may be stopped.
 */
typedef struct ZklText
{
	pg_atomic_uint32 version;
	char		text[ZKL_TROUBLE_SIZE];
} ZklText;

/*
 * How the session is, for those who look. Written by the worker; each field by itself
 * is right, together they need not be of one moment. Counts go on over workers.
 */
typedef struct ZklHealth
{
	pg_atomic_uint32 connected;
	pg_atomic_uint64 session;	/* id, 0 = none */
	pg_atomic_uint64 timeout;	/* as agreed upon with the coordinator */
	pg_atomic_uint64 heartbeat_sent;	/* stamp of the latest acknowledged
										 * one */
	pg_atomic_uint64 heartbeat_took;	/* and how long that took */
	pg_atomic_uint64 heartbeats;
	pg_atomic_uint64 heartbeat_failures;	/* not acknowledged, or refused */
	pg_atomic_uint64 connects;
	pg_atomic_uint64 expiries;
	pg_atomic_uint64 lapses;
	pg_atomic_uint64 node_bytes;	/* see ZklCoordinatorHealth */
	pg_atomic_uint64 node_budget;
	pg_atomic_uint64 watch_bytes;
	pg_atomic_uint64 watch_budget;
	pg_atomic_uint64 in_flight;
	pg_atomic_uint64 requests;	/* of this worker */
} ZklHealth;

typedef struct ZklShared
{
	uint64		incarnation;	/* random, written once by whoever
								 * initialises: tells a worker's restart from
								 * the server's */
	int			nentries;		/* written once */

	pg_atomic_uint64 lease;		/* written by the worker only */
	pg_atomic_uint32 losses;	/* one up whenever some entry's LOST is set:
								 * as long as it stands still nobody need look */
	pg_atomic_uint32 worker_procno; /* for its latch; UINT32_MAX = no worker */
	pg_atomic_uint32 worker_pid;

	/*
	 * The coordinator's counter, from which tokens come: all tokens up to
	 * "mark" had been given out when an answer came to what was sent at
	 * "mark_sent" or later. Written by the worker only, "mark" first.
	 * "mark_wanted" asks the worker for one at once.
	 */
	pg_atomic_uint64 mark;
	pg_atomic_uint64 mark_sent;
	pg_atomic_uint32 mark_wanted;

	ZklText		trouble;		/* what keeps the worker from having a lease;
								 * "" = nothing */
	ZklText		server;			/* of the coordinator, that the worker is
								 * connected to */

	ZklHealth	health;
	ZklStats	stats;
	ZklDesk		desks[ZKL_DESKS];
	ZklAllowance allowances[ZKL_ALLOWANCES];

	/*
	 * set with fetch-or by owners, exchanged for 0 by the worker: which
	 * entries to look at. Follows the entries.
	 */
	Size		doorbell_offset;

	/* the coordinator's own piece, see ZklTarget; the last one */
	Size		coordinator_offset;

	ZklEntry	entries[FLEXIBLE_ARRAY_MEMBER];
} ZklShared;

extern ZklShared *zkl_shared;	/* NULL when not preloaded */

/*
 * What survives a crash restart of the server: shared memory made by the postmaster
 * when it loads the library, outside of the part that a restart initialises again.
 * Never on disk, so a copy of the data directory cannot touch the original's session.
 * ZKL_SURVIVOR_SIZE bytes, the coordinator's own.
 */
extern void *zkl_survivor;

/*
 * Once, in the postmaster, from _PG_init. "coordinator_memory" says how much the
 * coordinator needs for itself, see ZklCoordinatorOps.
 */
extern void zkl_shmem_init(size_t (*coordinator_memory) (int nslots));

/* Tell the worker to look at this entry; or to look around. */
extern void zkl_ring_doorbell(int entryno);
extern void zkl_wake_worker(void);
extern pg_atomic_uint64 *zkl_doorbell_words(void);
extern int	zkl_doorbell_count(void);

/*
 * A text as it is now; false when it is empty, or always being written. And for the
 * worker: another one.
 */
extern bool zkl_text_read(ZklText *text, char buf[ZKL_TROUBLE_SIZE]);
extern void zkl_text_write(ZklText *text, const char *to);

/* Why there is no lease; false when no trouble is known. */
extern bool zkl_trouble_read(char buf[ZKL_TROUBLE_SIZE]);
extern void zkl_trouble_write(const char *text);

#endif							/* ZKL_SHMEM_H */
