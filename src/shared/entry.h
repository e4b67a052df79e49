/*-------------------------------------------------------------------------
 *
 * entry.h
 *	  A lock entry: one request of a backend, and the lock that it became.
 *
 * There is no lock here, see shmem.h. Each field of an entry has one writer at a time,
 * which the entry's phase names, and what checks read are atomics.
 *
 *	phase		set by		meaning; who may write the rest of the entry
 *	---------	----------	---------------------------------------------------
 *	FREE		worker		nobody
 *	FILLING		owner		the owner (a backend), by compare-and-swap from FREE
 *	WANTED		owner		the worker: there is or will be a contender
 *	HELD		worker		the worker: granted; token and generation are set
 *	BUSY		worker		the worker: a try found the lock taken
 *	FAILED		worker		the worker: refused, see failure and trouble
 *
 * The owner gives an entry up by setting LET_GO in "flags", at any time from
 * WANTED on, and forgets it; the worker has the coordinator remove the contender,
 * for as long as that takes, and then sets FREE. An entry thus outlives its owner
 * when it must, and the worker too: what a new worker needs to go on (saved, token)
 * is here, and is here before anything is sent.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ENTRY_H
#define ZKL_ENTRY_H

#include "port/atomics.h"

#include "common/clock.h"
#include "common/lockname.h"
#include "common/nodedata.h"
#include "coordinator.h"

typedef enum ZklPhase
{
	ZKL_PHASE_FREE = 0,
	ZKL_PHASE_FILLING,
	ZKL_PHASE_WANTED,
	ZKL_PHASE_HELD,
	ZKL_PHASE_BUSY,
	ZKL_PHASE_FAILED
} ZklPhase;

/*
 * Bits of an entry's flags. They are set with fetch-or, whose old value tells who came
 * first. VANISHED and BROKEN come together with LOST; without either, the session ended.
 */
#define ZKL_FLAG_LOST		0x001	/* worker: the lock is lost */
#define ZKL_FLAG_VANISHED	0x002	/* worker: somebody deleted its contender */
#define ZKL_FLAG_BROKEN		0x004	/* worker: it was taken away, see
									 * "breaker" */
#define ZKL_FLAG_COMMITTING 0x008	/* owner: set between PRE_COMMIT and the
									 * end of its commit; the worker must not
									 * cancel it, nor give the lock to anybody
									 * else */
#define ZKL_FLAG_LET_GO		0x010	/* owner: done with it */
#define ZKL_FLAG_TIMED_OUT	0x020	/* owner, before LET_GO: for the
									 * statistics */
#define ZKL_FLAG_UNCERTAIN	0x040	/* owner, before LET_GO: the lease was
									 * over when it gave the lock back; for
									 * the statistics */
#define ZKL_FLAG_ASKED		0x080	/* owner: wants to know who holds the lock */
#define ZKL_FLAG_ANSWERED	0x100	/* worker: "holder" is filled in; the
									 * owner clears it when it asks again */

/* How a lock is lost, or why one cannot be relied on. */
typedef enum ZklLoss
{
	ZKL_LOSS_NONE = 0,
	ZKL_LOSS_EXPIRED,			/* the session ended */
	ZKL_LOSS_VANISHED,			/* somebody deleted its contender */
	ZKL_LOSS_BROKEN,			/* it was taken away on request, see "breaker" */

	/* not of an entry, but of the lease that all depend on */
	ZKL_LOSS_LAPSED,			/* its deadline has passed */
	ZKL_LOSS_LAPSED_BEFORE,		/* it had passed, and the lease is current
								 * again */
	ZKL_LOSS_SHORT				/* less of it is left than is needed */
} ZklLoss;

/* How is an entry with these flags lost? */
static inline ZklLoss
zkl_loss_of_flags(uint32 flags)
{
	return (flags & ZKL_FLAG_LOST) == 0 ? ZKL_LOSS_NONE :
		(flags & ZKL_FLAG_BROKEN) ? ZKL_LOSS_BROKEN :
		(flags & ZKL_FLAG_VANISHED) ? ZKL_LOSS_VANISHED : ZKL_LOSS_EXPIRED;
}

/* Bits of an entry's levels. */
#define ZKL_LEVEL_BACKEND	0x01
#define ZKL_LEVEL_XACT		0x02

typedef struct ZklEntry
{
	pg_atomic_uint32 phase;		/* ZklPhase, see above */
	pg_atomic_uint32 flags;		/* ZKL_FLAG_, see there; cleared in FILLING */

	/* the owner's, written in FILLING, constant afterwards; all text is UTF-8 */
	uint32		serial;			/* which use of this entry it is */
	int			pid;
	Oid			role;			/* that connected, for quotas */
	int			procno;
	int			push_signal;	/* tells the owner of a loss */
	ZklMode		mode;
	bool		try;
	int			permits;		/* mode PERMIT: how many there may be */
	char		beside[ZKL_OWN_NODE_SIZE];	/* a downgrade: the write lock's
											 * saved.contender; else "" */
	int64		inherited_token;	/* and its token */
	char		name[ZKL_NAME_MAX + 1];
	char		database[64];
	char		user[64];
	char		application[64];
	char		since[40];
	ZklTime		wait_start;

	/* the owner's, at any time; informational */
	pg_atomic_uint32 levels;	/* ZKL_LEVEL_ at which it is held or wanted */

	/*
	 * the coordinator's, in the worker, before it sends anything; the next
	 * worker's coordinator goes on with it
	 */
	ZklSaved	saved;

	/* the worker's, before it sets HELD; constant afterwards */
	int64		token;
	uint32		generation;
	ZklTime		granted_at;

	/* the worker's, before it sets LOST */
	ZklTime		lost_at;
	char		breaker[sizeof(((ZklNodeData *) 0)->breaker)];

	/* the worker's, before it sets FAILED */
	ZklRefusal	refusal;
	char		refusal_text[ZKL_REFUSAL_SIZE];

	/* the worker's, until it sets HELD, BUSY or FAILED; informational */
	pg_atomic_uint32 ahead;		/* contenders before us */
	pg_atomic_uint32 queued;	/* is ours in the queue? */

	/* the worker's, before it sets ANSWERED */
	ZklNodeData holder;
	int64		holder_token;
} ZklEntry;

/*
 * For the owner: take a free entry, now FILLING: returns its number, or -1 when there is
 * none. Then fill it in and call zkl_entry_submit().
 */
extern int	zkl_entry_take(void);
extern void zkl_entry_submit(int entryno);
extern void zkl_entry_let_go(int entryno);

/* For the worker: the owner has let it go, and nothing of it is left elsewhere. */
extern void zkl_entry_free(int entryno);

#endif							/* ZKL_ENTRY_H */
