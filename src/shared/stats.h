/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  What happened to locks: counts and times, per lock and in total.
 *
 * The worker sees every request begin and end, so it alone counts, and there is
 * no lock to wait for. A name's numbers lie in one of a few places that follow
 * from its hash; when all are taken, the name that was idle for longest makes
 * room. So the table is bounded however many names there are, and says how many
 * it forgot.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_STATS_H
#define ZKL_STATS_H

#include "common/clock.h"
#include "common/lockname.h"
#include "port/atomics.h"

/* How many names are remembered, and in how many places one can lie. */
#define ZKL_STATS_NAMES		1024
#define ZKL_STATS_WAYS		8

/* Times below 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and above. */
#define ZKL_STATS_BUCKETS	7

/* How a request or a hold ended. */
typedef enum ZklOutcome
{
	ZKL_OUTCOME_ACQUIRED,		/* time: from the request to the grant */
	ZKL_OUTCOME_RELEASED,		/* time: from the grant on */
	ZKL_OUTCOME_LOST,			/* likewise; RELEASED follows */
	ZKL_OUTCOME_BUSY,			/* a try found it taken */
	ZKL_OUTCOME_TIMED_OUT,
	ZKL_OUTCOME_CANCELLED,		/* or its connection ended */
	ZKL_OUTCOME_FAILED			/* the coordinator, or a limit, refused */
} ZklOutcome;

#define ZKL_STATS_OUTCOMES	(ZKL_OUTCOME_FAILED + 1)

typedef struct ZklLockStats
{
	char		name[ZKL_NAME_MAX + 1]; /* "" = unused */
	uint64		count[ZKL_STATS_OUTCOMES];
	uint64		waited;			/* acquired, but not at once */
	ZklTime		wait_total;
	ZklTime		wait_max;
	ZklTime		hold_total;
	ZklTime		hold_max;
	uint64		wait_buckets[ZKL_STATS_BUCKETS];
	uint64		hold_buckets[ZKL_STATS_BUCKETS];
	ZklTime		last_use;
} ZklLockStats;

typedef struct ZklStats
{
	/* all written by the worker only */
	struct
	{
		pg_atomic_uint32 version;	/* even = stable, odd = being written */
		ZklLockStats lock;
	}			names[ZKL_STATS_NAMES];
	pg_atomic_uint64 total[ZKL_STATS_OUTCOMES];
	pg_atomic_uint64 forgotten; /* names that made room */
	pg_atomic_uint64 reset_at;	/* TimestampTz */

	/*
	 * set by a backend that wants a reset, cleared by the worker when it is
	 * done
	 */
	pg_atomic_uint32 reset_wanted;
} ZklStats;

extern ZklStats *zkl_stats;		/* NULL when not preloaded */

/* For shmem.c: of fresh memory. */
extern void zkl_stats_init(ZklStats *stats);

/* For the worker. */
extern void zkl_stats_count(const char *name, ZklOutcome outcome, bool waited, ZklTime took);
extern void zkl_stats_reset_if_wanted(void);

/* A consistent copy of place "i"; false when it is unused, or always being written. */
extern bool zkl_stats_read(int i, ZklLockStats *copy);

#endif							/* ZKL_STATS_H */
