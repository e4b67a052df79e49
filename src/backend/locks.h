/*-------------------------------------------------------------------------
 *
 * locks.h
 *	  The locks that this backend holds.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_LOCKS_H
#define ZKL_LOCKS_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#include "common/compat.h"

#include "common/clock.h"
#include "common/lockname.h"

/* Transaction-level acquires made at one nesting level of subtransactions. */
typedef struct ZklLevelCount
{
	int			level;
	int			count;
} ZklLevelCount;

/* How a hold was lost. */
typedef enum ZklLoss
{
	ZKL_LOSS_EXPIRED,			/* the ZooKeeper session ended */
	ZKL_LOSS_VANISHED,			/* somebody deleted the node */
	ZKL_LOSS_BROKEN				/* it was taken away on request */
} ZklLoss;

/*
 * One lock that this backend holds, in one mode. A name can have two: a read
 * hold beside the write hold that it was downgraded from. Each lease of a
 * semaphore is a hold of its own.
 */
typedef struct ZklHold
{
	char		name[ZKL_NAME_MAX + 1]; /* UTF-8 */
	int			name_len;
	int			entry;			/* its number in shared memory */
	ZklMode		mode;
	int64		token;
	int			backend_count;	/* backend-level acquires not yet released */
	ZklLevelCount *levels;		/* by rising level */
	int			nlevels;
	int			maxlevels;
	bool		released;		/* given back in a transaction that wrote: the
								 * node stays until its end */
	bool		keep;			/* the same, but a transaction-level acquire of
								 * a subtransaction came on top of it */
	bool		lost;			/* seen as lost, and not acknowledged */
	bool		superseded;		/* lost, and being acquired again: that is what
								 * acknowledges it, if it succeeds */
	ZklLoss		loss;
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
 * The hold of this name (UTF-8), or NULL; of two the one that says most. Valid until
 * the next acquire or release.
 */
extern ZklHold *zkl_locks_find(const char *name);

/* Called at the end of transactions and subtransactions, by guard.c. */
extern void zkl_locks_at_xact_end(void);
extern void zkl_locks_at_subxact_abort(int level);
extern void zkl_locks_at_subxact_commit(int level);

/* Give back every backend-level hold, lost ones too; returns how many there were. */
extern int	zkl_locks_release_all(void);

/* The SQL functions, by which guard.c knows statements that only call them. */
extern PGDLLEXPORT Datum zkl_lock_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_try_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_xact_lock_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_xact_lock_try_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_release(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_release_all(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_fencing_token(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_is_held(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_semaphore_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_semaphore_try_acquire(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_semaphore_release(PG_FUNCTION_ARGS);

/* An error in code that maintenance commands run as a table's owner. */
extern void zkl_refuse_restricted(void);

/* An error unless the library was preloaded. */
extern void zkl_require_preload(void);

/*
 * A lock's name as UTF-8, or an error. Names are compared byte by byte, on all
 * servers, so they must not depend on a database's encoding.
 */
extern void zkl_check_name(const char *given, char name[ZKL_NAME_MAX + 1]);

/* What is wrong with the name that was given, for an error's detail. */
extern char *zkl_name_detail(const char *given, ZklNameFault fault);

/* A string of this database as UTF-8, cut if need be; NULL is "". */
extern void zkl_copy_as_utf8(char *to, size_t size, const char *from);

/* Milliseconds of an interval argument, or an error. */
extern int	zkl_interval_ms(Interval *interval);

/*
 * Sleep until the latch is set, at most "ms"; interruptible. The wait event called
 * "name" is kept in "wait_event", which begins as 0.
 */
extern void zkl_sleep(long ms, uint32 *wait_event, const char *name);

/* A name for a message: in the database's encoding, whatever it holds. */
extern char *zkl_text_for_message(const char *utf8);

/* What a message calls the lock of this name: lock "x", or semaphore "x". */
extern char *zkl_lock_label(const char *name);

#endif							/* ZKL_LOCKS_H */
