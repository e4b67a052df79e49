/*-------------------------------------------------------------------------
 *
 * guard_state.h
 *	  What the files of the guard share: one backend's state.
 *
 *	doom.c			what is wrong, and how it is said
 *	timer.c			layer 3, and the worker's signal
 *	statements.c	layers 1 and 5: hooks around statements
 *	commit.c		layer 2: the end of the transaction
 *
 * guard.h says what the layers are.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_GUARD_STATE_H
#define ZKL_GUARD_STATE_H

#include <signal.h>
#include <time.h>

#include "nodes/plannodes.h"
#include "storage/latch.h"

#include "backend/guard.h"
#include "backend/holds.h"
#include "common/clock.h"
#include "shared/shmem.h"

/* How far is the transaction? */
typedef enum CommitStep
{
	COMMIT_NOT_YET,
	COMMIT_HARMLESS,			/* it commits nothing that a lock protects */
	COMMIT_DECIDED				/* checked; entries are marked COMMITTING */
} CommitStep;

typedef struct ZklGuard
{
	int			nesting;		/* executor, utility and trigger levels we are
								 * in */
	volatile sig_atomic_t relying;	/* this transaction relies on a lock ... */
	uint32		epoch;			/* ... since the lease had this epoch */
	bool		did_work;		/* ... and ran a statement that is not exempt */
	volatile sig_atomic_t step; /* CommitStep */
	volatile sig_atomic_t ending;	/* the client's statement is over, and the
									 * commit comes next */
	bool		committed_elsewhere;	/* others may have committed on their
										 * servers: they were let pass */
	bool		first_in_line;	/* no library was preloaded before us */
	uintptr_t	place;			/* the one of our callbacks' places that
								 * counts */
	uint32		losses;			/* zkl_shared->losses when we last looked */

	ZklLoss		doom;			/* why this transaction cannot commit; NONE =
								 * it can */
	char		name[ZKL_NAME_MAX + 1]; /* of the lock, UTF-8 */
	char		breaker[sizeof(((ZklEntry *) 0)->breaker)];
	ZklTime		since;			/* deadline that passed, or when it was seen */
	const PlannedStmt *statement;	/* the innermost one that runs, or NULL: a
									 * utility statement */
	int			running;		/* so many run, one inside the other, that are
								 * not */
	bool		travelling;		/* ZK001 is on its way up as query_canceled; a
								 * procedure's COMMIT that fails ends the
								 * doomed transaction before it arrives. When
								 * a statement begins it was caught on the way */

	/*
	 * What the signal handler and the rest tell each other. These are not one
	 * ladder: the handler may find a loss before anything else has doomed the
	 * transaction, and a subtransaction may have caught the cancel of a doom
	 * that the handler never saw.
	 */
	volatile sig_atomic_t timer_found;	/* it saw what dooms us */
	volatile sig_atomic_t in_copy_in;	/* COPY FROM STDIN: may wait for the
										 * client */
	volatile sig_atomic_t swallowed;	/* somebody caught the cancel */
	volatile sig_atomic_t dying;	/* it decided for FATAL */
	ZklTime		found_at;
	volatile sig_atomic_t exempt;	/* the client's statement passes in any
									 * case */
	volatile sig_atomic_t timer_armed;
	int			signal;			/* of the timer and of the worker's push; 0 =
								 * not set up yet */
	timer_t		timer;
} ZklGuard;

extern ZklGuard zkl_guard;

/* Does anything here concern this backend just now? */
static inline bool
zkl_is_concerned(void)
{
	return zkl_nholds > 0 || zkl_guard.doom != ZKL_LOSS_NONE || zkl_guard.timer_found;
}

/* doom.c */
#define ZKL_DOOM_HINT "Roll back, and acquire the lock again before you repeat the work."

/* Is "margin" of the lease left, and no lock lost? Dooms the transaction if not. */
extern bool zkl_still_good(ZklTime margin);
extern void zkl_doom(const ZklHold *hold);
extern const char *zkl_doom_detail(ZklTime now);
extern void zkl_raise_doom(void);

/* timer.c */
extern void zkl_timer_set(long ms);
extern void zkl_timer_arm(void);
extern void zkl_forget_next_cancel(void);

/* From here on this transaction must keep its locks. */
extern void zkl_rely(void);

/* statements.c */
extern void zkl_statements_init(void);
extern bool zkl_is_two_phase(Node *stmt);
extern void zkl_enter_level(void);
extern void zkl_leave_level(void);
extern void zkl_leave_level_by_error(MemoryContext context);

/* commit.c */
extern void zkl_begin_without_way_back(Node *stmt);
extern void zkl_check_way_back(void);
extern void zkl_undecide(void);
extern void zkl_come_first(void);

#endif							/* ZKL_GUARD_STATE_H */
