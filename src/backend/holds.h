/*-------------------------------------------------------------------------
 *
 * holds.h
 *	  The locks that this backend holds.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_HOLDS_H
#define ZKL_HOLDS_H

#include "common/lockname.h"
#include "shared/entry.h"

/* Transaction-level acquires made at one nesting level of subtransactions. */
typedef struct ZklLevelCount
{
	int			level;
	int			count;
} ZklLevelCount;

/*
 * How far is a hold on its way out? In a transaction that has written, a lock that is
 * given back has to outlast the commit, or the writes would become visible under the
 * next holder.
 *
 *	state		means							at ROLLBACK TO			at the end
 *	---------	-------------------------------	----------------------	-------------
 *	HELD		somebody may need it			dropped if unused		dropped if unused
 *	KEPT		given back after writes, and	RELEASED if unused		HELD, then as there
 *				acquired again since
 *	RELEASED	given back after writes			stays					dropped
 */
typedef enum ZklHoldState
{
	ZKL_HOLD_HELD = 0,
	ZKL_HOLD_KEPT,
	ZKL_HOLD_RELEASED
} ZklHoldState;

/*
 * One lock that this backend holds, in one mode. A name can have two: a read
 * hold beside the write hold that it was downgraded from. Each permit of a
 * semaphore is a hold of its own.
 *
 * Invariants: 0 <= nlevels <= maxlevels; levels rise; RELEASED means unused, that is
 * backend_count and nlevels are 0.
 */
typedef struct ZklHold
{
	char		name[ZKL_NAME_MAX + 1]; /* UTF-8 */
	int			name_len;
	int			entryno;		/* of its entry in shared memory */
	ZklMode		mode;
	int64		token;
	int			backend_count;	/* backend-level acquires not yet released */
	ZklLevelCount *levels;		/* by rising level */
	int			nlevels;
	int			maxlevels;
	ZklHoldState state;
	ZklLoss		loss;			/* seen, and not acknowledged */
	bool		superseded;		/* lost, and being acquired again: that is
								 * what acknowledges it, if it succeeds */
} ZklHold;

extern ZklHold *zkl_holds;
extern int	zkl_nholds;

/*
 * Entry numbers of the holds again, for the timer's signal handler: it may run
 * between any two instructions of this process, so elements are added behind
 * the count and an outgrown array is freed after the new one is in place.
 */
extern volatile int *volatile zkl_held_entries;
extern volatile int zkl_nheld_entries;

/*
 * Entries that were submitted and are not held yet, or -1: the one that is waited for, and
 * the turn at a semaphore by which it is waited for.
 */
extern int	zkl_pending;
extern int	zkl_pending_turn;

/* Let both go. */
extern void zkl_pending_let_go(void);

/*
 * The hold of this name (UTF-8), or NULL; of two the one that says most. Valid until
 * the next acquire or release, as are all pointers to holds.
 */
extern ZklHold *zkl_holds_find(const char *name);

/* The hold of this name in this mode, or NULL. Of several permits, one that is RELEASED. */
extern ZklHold *zkl_holds_find_mode(const char *name, ZklMode mode);

/*
 * Add a hold of a granted entry. Room for it is made before the lock is asked for, and
 * for one more transaction-level acquire before that is counted: then nothing can fail.
 */
extern void zkl_holds_reserve(void);
extern ZklHold *zkl_holds_add(const char *name, int entryno, ZklMode mode, int64 token);
extern void zkl_hold_reserve_level(ZklHold *hold);
extern void zkl_hold_count_acquire(ZklHold *hold, bool xact_level);

/* One backend-level acquire less; the lock goes when that was the last. */
extern void zkl_hold_release(ZklHold *hold);

/* Let the lock go and forget the hold; the last one takes its place. */
extern void zkl_hold_drop(ZklHold *hold);

/* To acquire a lost lock again has succeeded, or has failed. */
extern void zkl_holds_drop_superseded(void);
extern void zkl_holds_restore_superseded(void);

/* Called at the end of transactions and subtransactions, by commit.c. */
extern void zkl_holds_at_xact_end(void);
extern void zkl_holds_at_subxact_abort(int level);
extern void zkl_holds_at_subxact_commit(int level);

/* Give back every backend-level hold, lost ones too; returns how many there were. */
extern int	zkl_holds_release_all(void);

#endif							/* ZKL_HOLDS_H */
