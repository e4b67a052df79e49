/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  Nothing commits under a lock that is not certain.
 *
 * Five layers, none of which is enough alone; guard.c has one function for
 * each, and doc/design.md says which test fails without it.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_GUARD_H
#define ZKL_GUARD_H

#include "backend/locks.h"
#include "nodes/plannodes.h"

/* From _PG_init, when preloading. */
extern void zkl_guard_init(void);

/*
 * At every use of a lock: raises ZK001 when this transaction is doomed, when a
 * lock was lost and that is not acknowledged, or when the transaction relies on
 * a lock that is not certain any more.
 */
extern void zkl_guard_check(void);

/* The first of the three only. */
extern void zkl_guard_check_doom(void);

/* This backend was granted a lock: from now on the transaction relies on it. */
extern void zkl_guard_granted(void);

/* Is the hold certain just now? Raises nothing. */
extern bool zkl_guard_is_certain(const ZklHold *hold);

/* zkl_guard_check(), and then: is this hold certain? With one look at the clock. */
extern bool zkl_guard_check_hold(const ZklHold *hold);

/* Raise ZK001 for this hold. */
pg_noreturn extern void zkl_guard_raise(const ZklHold *hold);

/* The signal by which the worker tells this process of a loss. Sets it up. */
extern int	zkl_guard_signal(void);

/* The only statement that runs; NULL for a utility statement, or inside another one. */
extern const PlannedStmt *zkl_guard_statement(void);

/* Inside a function or another statement, not a statement of its own? */
extern bool zkl_guard_is_nested(void);

/*
 * Look for losses that the worker has marked since the last call, and doom the
 * transaction if it relied on one of those locks. Raises nothing.
 */
extern void zkl_guard_refresh(void);

#endif							/* ZKL_GUARD_H */
