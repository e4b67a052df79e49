/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  Nothing commits under a lock that is not certain.
 *
 * A transaction relies on a lock from the moment it is granted in it, or from
 * its first statement while the backend holds one. From then on it must not
 * commit unless the lease was current all the time and no lock was lost. Five
 * layers see to that, because each has a hole:
 *
 * 1. Check at use: each zklock function, and each statement at its start
 *	  (executor start and run, utility statements, deferred triggers), reads the
 *	  clock. Hole: a statement that runs for an hour.
 * 2. PRE_COMMIT reads the clock once more. This is the layer that safety rests
 *	  on. Hole: it comes late; the row locks are held until then.
 * 3. A timer cancels the statement at the deadline, or half a second after a
 *	  loss. Hole: interrupts can be held off, an idle backend ignores a cancel.
 * 4. The worker sends the timer's signal at once when it learns of a loss.
 * 5. Doom sticks until the end of the top-level transaction, whatever catches
 *	  the error on the way: inside nested levels it travels as query_canceled,
 *	  which PL/pgSQL's WHEN OTHERS does not catch, and becomes ZK001 where it
 *	  leaves the outermost statement; a block that does catch it is cancelled
 *	  again as soon as it goes on, and ended by FATAL after a second.
 *
 * A statement may commit inside itself: VACUUM does, CREATE INDEX CONCURRENTLY,
 * a procedure. While this backend holds a lock, each transaction that ends inside
 * a statement begins the next one relying on it, since the lease had the epoch
 * that it had when the statement began; what comes next may pass no hook.
 *
 * PRE_COMMIT is not the commit. What stands between the two and can wait is done
 * before the clock is read (finish_early()). Then PRE_COMMIT marks each entry; a
 * mark and a loss are set with the same fetch-or, so one of the two comes first
 * and both sides know. From here to the commit record the timer strikes only
 * where the backend waits and can still be interrupted, which is in the callback
 * of a library that was preloaded before ours. After that nothing may: a cancel
 * during the wait for a synchronous standby would make the commit return early,
 * un-replicated.
 *
 * PostgreSQL calls the libraries that want to hear of the end of a transaction in
 * turn, the one that registered last first. We are among them twice. The first time comes before
 * the others: postgres_fdw commits on its servers when it is called, so there
 * must be a check ahead of it; and at an abort the locks go before another
 * library takes its time. The last one comes after all that registered after us.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_GUARD_H
#define ZKL_GUARD_H

#include "nodes/plannodes.h"

#include "backend/holds.h"
#include "common/compat.h"

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
