/*-------------------------------------------------------------------------
 *
 * fake.h
 *	  A coordinator in memory: for tests of those who use one, and of the tests.
 *
 * All fakes of a process share one table of contenders. Nothing takes time: what is wanted
 * happens in the next run(). Faults happen when they are called.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef FAKE_H
#define FAKE_H

#include "coordinator.h"

extern const ZklCoordinatorOps fake_coordinator;

/* Faults. */
extern void fake_expire(ZklCoordinator *fake);
extern void fake_part(ZklCoordinator *fake, const char *why);
extern void fake_remove(ZklCoordinator *fake, int slot);
extern void fake_ask_back(ZklCoordinator *fake, int slot, bool foreign);

/* While it is deaf nothing is acknowledged, and nothing happens in run(). */
extern void fake_deaf(ZklCoordinator *fake, bool deaf);

/* To be misordered on purpose, by every fake of the process; FAKE_SOUND = not. */
typedef enum FakeFlaw
{
	FAKE_SOUND = 0,
	FAKE_GRANTS_WITHOUT_SESSION,	/* GRANTED between ENDED and BEGAN */
	FAKE_QUEUED_AFTER_GONE,
	FAKE_LOST_AFTER_ENDED,
	FAKE_ACKNOWLEDGED_BEFORE_LOST,
	FAKE_GRANTED_AFTER_LET_GO,
	FAKE_ANSWERS_TWICE,
	FAKE_FLAWS
} FakeFlaw;

extern FakeFlaw fake_flaw;

#endif							/* FAKE_H */
