/*-------------------------------------------------------------------------
 *
 * sim_queue.h
 *	  A small ensemble in memory, for the queue machine to be tested on.
 *
 * One lock directory, three clients with several machines each, connections that
 * lose requests and replies, reconnect late or as another server, ZooKeeper
 * sessions that expire, nodes that somebody deletes, a directory that is reaped.
 * Every event is one step. After each the simulator checks the invariants of
 * queue.h against the directory, which the machines cannot see.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_SIM_QUEUE_H
#define ZKL_SIM_QUEUE_H

#include <stdint.h>

/* What the machines ask for: each a run of its own. */
typedef enum Flavour
{
	MUTEX,
	SHARED,						/* all modes, and downgrades */
	SEMAPHORE
} Flavour;

/* What a run has come to. */
typedef struct SimResult
{
	int			violations;		/* of invariants; the run ends at the first */
	char		first_violation[256];
	int			unfinished;		/* times that something was left after the
								 * storm */
	int64_t		steps;
	int64_t		grants;
	int64_t		fast_grants;	/* without a listing */
	int64_t		handovers;		/* within one client */
	int64_t		downgrades;
	int64_t		batched;		/* creates that were answered without a czxid */
	int64_t		faults;
} SimResult;

extern SimResult sim_queue_run(Flavour flavour, int64_t steps, uint64_t seed);

#endif							/* ZKL_SIM_QUEUE_H */
