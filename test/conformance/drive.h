/*-------------------------------------------------------------------------
 *
 * drive.h
 *	  Drive coordinators by random calls, and check what comes back.
 *
 * Several coordinators contend for a few locks. Checked are the order of events (order.h),
 * that no two hold what conflicts while their deadlines say that both do, that fencing
 * tokens rise, and that in the end nothing is left.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef DRIVE_H
#define DRIVE_H

#include "coordinator.h"

#define DRIVE_SLOTS		24
#define DRIVE_MAX		4

typedef struct Drive
{
	const ZklCoordinatorOps *ops;
	int			n;				/* coordinators, at most DRIVE_MAX */
	ZklTarget	targets[DRIVE_MAX]; /* without "memory" and "survivor" */
	uint64_t	seed;
	int			steps;			/* 0 = by time */
	ZklTime		lasts;
	int			pause_us;		/* between two steps */

	/*
	 * called now and then, with a random number; NULL = no faults of this
	 * kind
	 */
	void		(*fault) (ZklCoordinator *coordinator, uint64_t random);

	/* ends all faults that last; NULL = there are none */
	void		(*calm) (ZklCoordinator *coordinator);

	/* the result */
	uint64_t	events[ZKL_EVENT_CANNOT_GO_ON + 1]; /* so many came */
	char		wrong[256];		/* "" = nothing */
} Drive;

/* Returns whether all is well. */
extern bool drive(Drive *drive);

#endif							/* DRIVE_H */
