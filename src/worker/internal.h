/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files of this folder share: the worker's state, and who does what.
 *
 *	worker.c		the main loop, signals, settings, health
 *	entries.c		what owners want of their entries, and what became of it
 *	deadline.c		the lease as backends see it, and the session's beginning and end
 *	desks.c			what backends ask
 *
 * All of it runs in the worker, and nothing else runs there that writes shared memory.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_WORKER_INTERNAL_H
#define ZKL_WORKER_INTERNAL_H

#include "common/clock.h"
#include "coordinator.h"
#include "shared/shmem.h"

/* How far is a lock entry with the coordinator? */
typedef enum RequestState
{
	REQUEST_NONE = 0,			/* the coordinator knows nothing of it */
	REQUEST_MADE,				/* want() was called */
	REQUEST_LET_GO				/* so was let_go() */
} RequestState;

typedef struct Request
{
	RequestState state;
	bool		asked_back;		/* somebody wants the lock: not to be kept
								 * once granted */
	bool		being_taken;	/* given up as soon as the owner's commit is
								 * over */
} Request;

typedef struct Worker
{
	const ZklCoordinatorOps *ops;
	ZklCoordinator *coordinator;

	/* entries.c */
	Request    *requests;		/* one for each entry */
	int		   *rung;			/* room for zkl_entries_answer_doorbell() */
	int			nbeing_taken;
	int			losses_logged;	/* since the latest tick */
	ZklTime		next_tick;

	/* deadline.c */
	ZklTime		deadline;		/* by the coordinator; 0 = nothing proven */
	ZklTime		period;			/* between its acknowledgements */
	bool		lapse_logged;
	int64		session;		/* of the coordinator, 0 = none */
	bool		connected;		/* when its health was read last */

	/*
	 * deadline.c: the session is to be ended as soon as no commit that has
	 * passed its check stands in the way; "" = it is not
	 */
	char		ending[ZKL_TROUBLE_SIZE];
	ZklTime		ending_since;
	bool		ending_logged;

	/* desks.c: what is under way for each */
	struct
	{
		uint64		word;		/* this use of the desk, and */
		ZklTime		since;		/* since when it is in this state */
		bool		asked;		/* the coordinator was asked for it */
		uint32		serial;		/* answers with another one are stale */
	}			desks[ZKL_DESKS];
} Worker;

extern Worker zkl_worker;

/* entries.c */
extern void zkl_entries_init(bool session_goes_on);
extern void zkl_entries_answer_doorbell(void);
extern void zkl_entries_event(const ZklEvent *event);
extern void zkl_entries_lose_all(void);
extern void zkl_entries_tick(ZklTime now);
extern void zkl_entries_wake_granted(void);
extern int	zkl_entries_count_held(void);
extern bool zkl_entries_somebody_commits(void);
extern bool zkl_entries_all_let_go(void);

/* deadline.c */
extern void zkl_deadline_init(void);
extern void zkl_deadline_forget(void);
extern void zkl_deadline_event(const ZklEvent *event);
extern void zkl_deadline_watch(ZklTime now);
extern void zkl_deadline_advance_ending(ZklTime now);

/* desks.c */
extern void zkl_desks_look(ZklTime now);
extern void zkl_desks_answered(const ZklEvent *event);

#endif							/* ZKL_WORKER_INTERNAL_H */
