/*-------------------------------------------------------------------------
 *
 * coordinator.h
 *	  Who keeps the locks, behind a door.
 *
 * The worker says what its backends want; the coordinator says what became of it.
 * How it does that (nodes, batches, retries, outcomes that are unknown, handing over
 * within this server) is its own affair, and so is the rule for the deadline. An
 * implementation never includes postgres.h, never blocks, and writes no shared memory
 * but what it was given for that: the "saved" of each slot, its survivor, its memory.
 * It runs in the worker's main thread; the worker drains its events after each call of
 * receive() and run().
 *
 * A slot is a number from 0 on, the one of the lock entry that the worker asks for. It
 * is in use from want() to GONE. "serial" tells one use from the next: an event with
 * another serial than the slot's is stale, and the worker passes it over.
 *
 *	call			may be made							what follows for the slot
 *	-------------	---------------------------------	------------------------------
 *	want			when the slot is not in use			QUEUED*, then GRANTED, TAKEN or
 *														REFUSED
 *	let_go			once, from want to GONE				GONE; nothing else but CHARGED
 *	give_up			once, from GRANTED to GONE			GONE
 *	ask				at any time							ANSWERED, once, unless the same
 *														place asks again before, or
 *														withdraws and nothing is under way
 *	withdraw		at any time							what was not sent of a question never is
 *
 * The order of events, which test/conformance checks of every implementation:
 *
 * 1. A session begins with BEGAN, ends with ENDED, and is over then: between ENDED and
 *	  the next BEGAN there is no ACKNOWLEDGED and no GRANTED.
 * 2. Of a slot come, in this order: QUEUED any number of times; one of GRANTED, TAKEN
 *	  and REFUSED; after GRANTED at most one LOST; one GONE. Nothing comes after GONE.
 * 3. ENDED and ENDING stand for LOST of all slots that are granted; none follows for
 *	  them. Those that wait go on waiting, for the next session.
 * 4. ACKNOWLEDGED extends the lease only after every granted slot was seen to be there:
 *	  what is lost (LOST, ENDED) is told before it.
 * 5. After let_go() and give_up() nothing but CHARGED and GONE comes for that serial.
 * 6. Deadlines rise within a session, except that a reconnection to servers with a
 *	  shorter timeout may lower one.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_COORDINATOR_H
#define ZKL_COORDINATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/contender.h"
#include "common/lockname.h"
#include "common/nodedata.h"

typedef struct ZklCoordinator ZklCoordinator;

/* Room for what a backend reads of a trouble, a refusal, a name of a server. */
#define ZKL_TROUBLE_SIZE	256
#define ZKL_REFUSAL_SIZE	96
#define ZKL_SERVER_SIZE		64

/* Shared memory for an implementation's own use, see ZklTarget. */
#define ZKL_SURVIVOR_SIZE	1280

/*
 * What the next worker must find of a request to go on with it. In shared memory, in the
 * lock's entry; written by the coordinator before it sends anything, read by none but a
 * coordinator, and by people who look at zk_locks.node.
 */
typedef struct ZklSaved
{
	char		request[ZKL_UUID_SIZE]; /* the request's own name; "" = none
										 * yet */
	char		contender[ZKL_OWN_NODE_SIZE];	/* its contender's; "" = not
												 * known */
} ZklSaved;

/* What a backend wants. The pointers stay valid until the slot is GONE. */
typedef struct ZklWant
{
	int			slot;
	uint32_t	serial;
	const char *name;			/* of the lock; UTF-8, checked */
	ZklMode		mode;
	int			permits;		/* mode PERMIT: how many there may be */
	bool		try;			/* TAKEN instead of waiting */
	const char *beside;			/* downgrade: the contender that holds the
								 * write lock; or "" */

	/* who wants it, for other servers and for people; UTF-8 */
	int			pid;
	const char *database;
	const char *user;
	const char *application;
	const char *since;

	ZklSaved   *saved;

	/* a request that an earlier worker made, with what it had saved */
	bool		adopt;
	bool		held;			/* adopt: it had been granted ... */
	int64_t		token;			/* ... with this token */
} ZklWant;

/* Why a request was refused. */
typedef enum ZklRefusal
{
	ZKL_REFUSAL_NONE = 0,
	ZKL_REFUSAL_BUDGET,			/* one more could make the session too large
								 * to be ended */
	ZKL_REFUSAL_COUNTER,		/* the lock's counter is used up */
	ZKL_REFUSAL_LONG_NAME,		/* a foreign contender's name does not fit */
	ZKL_REFUSAL_NO_WRITER,		/* the write lock to downgrade from is gone */
	ZKL_REFUSAL_DENIED,			/* no permission; text says what was said */
	ZKL_REFUSAL_OTHER			/* text says what was said */
} ZklRefusal;

/* What can be asked. */
typedef enum ZklQuestionKind
{
	ZKL_QUESTION_HOLDER,		/* who holds what the slot "place" waits for? */
	ZKL_QUESTION_QUEUE,			/* the contenders for a lock, in their order */
	ZKL_QUESTION_ASK_BACK,		/* ask a contender to give its lock back */
	ZKL_QUESTION_REMOVE			/* remove a contender */
} ZklQuestionKind;

/* A contender for a lock, as its coordinator shows it. */
typedef struct ZklContenderRow
{
	char		contender[ZKL_NODE_SIZE];
	ZklContenderKind kind;		/* NONE = a semaphore's permit */
	int64_t		place;			/* rises along the queue; a read lock stands
								 * in the place of the write lock that it was
								 * downgraded from */
	int64_t		token;			/* 0 = gone by the time we looked */
	int64_t		session;		/* whose it is */
	int64_t		created;		/* ms since 1970, the coordinator's clock */
	bool		ours;			/* made by a zklock server */
	ZklNodeData data;			/* what it says about itself */
} ZklContenderRow;

typedef struct ZklQuestion
{
	ZklQuestionKind kind;
	int			place;			/* HOLDER: the slot, which may be GONE. Else a
								 * number of the asker's, below ZKL_ASKERS */
	uint32_t	serial;			/* comes back with the answer */
	char		name[ZKL_NAME_MAX + 1]; /* of the lock */
	ZklMode		mode;			/* HOLDER: of the slot's request, and */
	char		request[ZKL_UUID_SIZE]; /* its saved.request, which is not
										 * asked for */
	char		contender[ZKL_NODE_SIZE];	/* ASK_BACK, REMOVE: which one */
	bool		ours;			/* ASK_BACK: from its row */
	ZklNodeData data;			/* likewise, with "breaker" filled in */
} ZklQuestion;

/* So many places ask at a time, and so many rows has an answer at most. */
#define ZKL_ASKERS			5
#define ZKL_ANSWER_ROWS		128

typedef enum ZklAnswerResult
{
	ZKL_ANSWER_OK = 0,
	ZKL_ANSWER_NOTHING_THERE,
	ZKL_ANSWER_DENIED,			/* no permission; text says what was said */
	ZKL_ANSWER_REFUSED			/* likewise */
} ZklAnswerResult;

typedef struct ZklAnswer
{
	ZklAnswerResult result;
	char		text[ZKL_REFUSAL_SIZE];
	int			contenders;		/* so many there are; rows are the first of
								 * them */
	int			nrows;
	ZklContenderRow rows[];
} ZklAnswer;

typedef enum ZklEventKind
{
	ZKL_EVENT_BEGAN,			/* a session: "session", "timeout" */
	ZKL_EVENT_ENDING,			/* the coordinator has to end its session,
								 * "text" says why: granted slots are lost
								 * from now on. The worker lets commits pass
								 * that are past their check, and calls end() */
	ZKL_EVENT_ENDED,			/* the session is over, "text" says why */
	ZKL_EVENT_ACKNOWLEDGED,		/* "deadline"; the next one is due within
								 * "period" */
	ZKL_EVENT_MARKED,			/* tokens up to "token" were given out by an
								 * answer to what was sent at "sent" or later */
	ZKL_EVENT_QUEUED,			/* "ahead": so many are before the slot; -1 =
								 * it does not stand in a queue */
	ZKL_EVENT_GRANTED,			/* "token", "ahead" (a semaphore's: so many
								 * permits are in use), "waited": others were
								 * before it */
	ZKL_EVENT_TAKEN,			/* a try found it taken; "ahead" */
	ZKL_EVENT_REFUSED,			/* "refusal", "text" */
	ZKL_EVENT_LOST,				/* granted, and vanished */
	ZKL_EVENT_ASKED_BACK,		/* somebody wants the lock: "text" who.
								 * "foreign": another client of the
								 * coordinator, which asks and no more */
	ZKL_EVENT_CHARGED,			/* something was made for the slot that
								 * outlives it */
	ZKL_EVENT_GONE,				/* nothing of the slot is left */
	ZKL_EVENT_ANSWERED,			/* "question", "slot" = its place, "answer",
								 * which the worker frees */
	ZKL_EVENT_TROUBLE,			/* what keeps us from a lease: "text" */
	ZKL_EVENT_CANNOT_GO_ON		/* not in this process: "text" says why */
} ZklEventKind;

typedef struct ZklEvent
{
	ZklEventKind kind;
	int			slot;
	uint32_t	serial;
	int64_t		token;
	int64_t		session;
	ZklTime		timeout;
	ZklTime		deadline;
	ZklTime		period;
	ZklTime		sent;
	int			ahead;
	bool		waited;
	bool		foreign;
	ZklRefusal	refusal;
	ZklQuestionKind question;
	ZklAnswer  *answer;
	char		text[ZKL_TROUBLE_SIZE];
} ZklEvent;

/* How the session is, for those who look. Counts are of this process. */
typedef struct ZklCoordinatorHealth
{
	bool		connected;
	int64_t		session;		/* 0 = none */
	ZklTime		timeout;		/* as agreed upon */
	char		server[ZKL_SERVER_SIZE];	/* that we are connected to */
	ZklTime		heartbeat_sent; /* of the latest acknowledged one */
	ZklTime		heartbeat_took;
	uint64_t	heartbeats;
	uint64_t	heartbeat_failures;
	uint64_t	connects;
	uint64_t	requests;
	int64_t		in_flight;
	int64_t		node_bytes;		/* of the session's size, and */
	int64_t		node_budget;	/* how large it may become */
	int64_t		watch_bytes;
	int64_t		watch_budget;
} ZklCoordinatorHealth;

typedef enum ZklLogLevel
{
	ZKL_LOG_DEBUG,
	ZKL_LOG_LOG
} ZklLogLevel;

/* What an implementation may call of its worker. */
typedef struct ZklHost
{
	/* One line for the server's log; detail and hint may be NULL. */
	void		(*log) (ZklLogLevel level, const char *message, const char *detail,
						const char *hint);

	/* Without memory, or a descriptor, there is no going on: does not return. */
	void		(*fail) (const char *message);
} ZklHost;

/* Where, as whom, and with what. Strings live until the next reload(). */
typedef struct ZklTarget
{
	/* may change with reload() */
	const char *hosts;
	ZklTime		tick;			/* the servers' tickTime; 0 = not known */

	/* do not change */
	const char *root;
	const char *server_name;
	const char *credentials_file;
	bool		creator_only;	/* all rights for our credentials, none for
								 * others */
	ZklTime		session_timeout;	/* to ask for */
	int			pid;
	int			nslots;
	const ZklHost *host;

	/*
	 * Two pieces of shared memory. "survivor" is there as long as the
	 * postmaster is: ZKL_SURVIVOR_SIZE bytes, zero at first, for what a
	 * session is attached to again with, or closed if "incarnation" is
	 * another one now. "memory" is of this incarnation, memory_size() bytes,
	 * zero at first.
	 */
	uint64_t	incarnation;
	void	   *survivor;
	void	   *memory;

	ZklTime		deadline;		/* that an earlier worker has published; 0 =
								 * none */
} ZklTarget;

typedef struct ZklCoordinatorOps
{
	const char *name;			/* for messages: "ZooKeeper" */

	/* For nslots slots. Called before there is a coordinator. */
	size_t		(*memory_size) (int nslots);

	/*
	 * Begin. "*goes_on" says whether the session of an earlier worker does,
	 * so that what it held may be adopted; else all of it is lost. Calls of
	 * want() with "adopt" come next, before run().
	 */
	ZklCoordinator *(*attach) (const ZklTarget *target, ZklTime now, bool *goes_on);

	void		(*want) (ZklCoordinator *coordinator, const ZklWant *want);
	void		(*let_go) (ZklCoordinator *coordinator, int slot);
	void		(*give_up) (ZklCoordinator *coordinator, int slot);
	void		(*ask) (ZklCoordinator *coordinator, const ZklQuestion *question);

	/* Nobody waits for the answer to this place's question any more. */
	void		(*withdraw) (ZklCoordinator *coordinator, int place);

	/* A MARKED that was sent from now on is wanted soon. */
	void		(*want_mark) (ZklCoordinator *coordinator);

	/* After ENDING: now. */
	void		(*end) (ZklCoordinator *coordinator);

	/* The settings changed; "target" replaces the one before. */
	void		(*reload) (ZklCoordinator *coordinator, const ZklTarget *target);

	/*
	 * Take in what has come. Then: send what is wanted, do what is due;
	 * returns when run() wants to be called again at the latest. Neither
	 * blocks.
	 */
	void		(*receive) (ZklCoordinator *coordinator);
	ZklTime		(*run) (ZklCoordinator *coordinator);

	/* The oldest event; false when there is none. */
	bool		(*next) (ZklCoordinator *coordinator, ZklEvent *event);

	/* Becomes readable when receive() has something to do; the same for ever. */
	int			(*fd) (void);

	void		(*health) (ZklCoordinator *coordinator, ZklCoordinatorHealth *health);

	/*
	 * The server stops, and nobody holds anything any more: the session is
	 * ended, which may take a second. The coordinator is no more.
	 */
	void		(*close) (ZklCoordinator *coordinator);
} ZklCoordinatorOps;

#endif							/* ZKL_COORDINATOR_H */
