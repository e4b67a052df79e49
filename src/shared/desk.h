/*-------------------------------------------------------------------------
 *
 * inquiry.h
 *	  Questions of backends that only ZooKeeper can answer: who stands in a lock's
 *	  queue, and what an operator does to it.
 *
 * A backend writes its question on a slip of its own and takes a free desk for it;
 * the worker copies the slip, sends the requests, writes the answer down at the desk
 * and wakes the backend. Who gives up leaves the desk ABANDONED, and the worker clears
 * it when it has nothing under way for it any more.
 *
 *	state		set by		meaning
 *	---------	----------	---------------------------------------------------
 *	FREE		either		nobody's
 *	ASKED		asker		the worker reads the asker's slip, and answers
 *	ANSWERED	worker		the asker reads the answer
 *	ABANDONED	asker		the worker clears it
 *
 * An asker may be stopped at any instant, for ever, and must not keep the desk from the
 * others. So he never writes to the desk itself but by one compare-and-swap of a word
 * that has the state, the asker and a generation: one up with each use. After a while
 * the worker takes the desk back; an asker who goes on then finds another generation
 * and asks again. His slip is his own, so what he writes there late disturbs nobody.
 *
 * One desk is for operators: those who only look cannot keep zk_lock_break() waiting.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_INQUIRY_H
#define ZKL_INQUIRY_H

#include "common/lockname.h"
#include "common/nodedata.h"
#include "port/atomics.h"

#define ZKL_DESKS			5
#define ZKL_DESKS_OPERATORS 1	/* of them; the first ones */
#define ZKL_INQUIRY_ROWS	128

typedef enum ZklDeskState
{
	ZKL_DESK_FREE = 0,
	ZKL_DESK_ASKED,
	ZKL_DESK_ANSWERED,
	ZKL_DESK_ABANDONED
} ZklDeskState;

typedef enum ZklQuestion
{
	ZKL_QUESTION_QUEUE,			/* the contenders and what their nodes say */
	ZKL_QUESTION_LOOK,			/* the same, of somebody who only looks */
	ZKL_QUESTION_SET,			/* write "data" into "node" */
	ZKL_QUESTION_DELETE			/* delete "node" */
} ZklQuestion;

/* A contender. Gone by the time we looked at its node: czxid 0. */
typedef struct ZklContenderRow
{
	char		node[ZKL_NODE_SIZE];
	int64		czxid;
	int64		owner;			/* ZooKeeper session */
	int64		created;		/* ms since 1970, the leader's clock */
	bool		ours;			/* made by a zklock server */
	ZklNodeData data;
} ZklContenderRow;

/* What a backend wants to know: one for each, written by it alone. */
typedef struct ZklSlip
{
	ZklQuestion question;
	char		name[ZKL_NAME_MAX + 1]; /* of the lock: where its nodes are */
	char		node[ZKL_NODE_SIZE];
	char		data[ZKL_NODEDATA_SIZE];
	int			len;
} ZklSlip;

typedef struct ZklDesk
{
	pg_atomic_uint64 word;		/* see zkl_desk_word() */

	/* all else is written by the worker */
	ZklSlip		slip;			/* copy of the asker's */
	int			rc;				/* ZooKeeper's result */
	int			contenders;		/* in the directory; rows hold the first */
	int			nrows;
	ZklContenderRow rows[ZKL_INQUIRY_ROWS];
} ZklDesk;

/* A desk's word: generation (32 bits), the asker's number among the processes (28), state. */
static inline uint64
zkl_desk_word(uint32 generation, int procno, ZklDeskState state)
{
	return ((uint64) generation << 32) | ((uint64) procno << 4) | (uint64) state;
}

static inline uint32
zkl_desk_generation(uint64 word)
{
	return (uint32) (word >> 32);
}

static inline int
zkl_desk_procno(uint64 word)
{
	return (int) ((word >> 4) & 0xFFFFFFF);
}

static inline ZklDeskState
zkl_desk_state(uint64 word)
{
	return (ZklDeskState) (word & 0xF);
}

/* The same use, in another state; or free for the next one. */
static inline uint64
zkl_desk_with_state(uint64 word, ZklDeskState state)
{
	return (word & ~UINT64CONST(0xF)) | (uint64) state;
}

static inline uint64
zkl_desk_cleared(uint64 word)
{
	return zkl_desk_word(zkl_desk_generation(word) + 1, 0, ZKL_DESK_FREE);
}

extern ZklDesk *zkl_desks;		/* NULL when not preloaded */
extern ZklSlip *zkl_slips;		/* one for each backend */

extern void zkl_desks_init(ZklDesk *desks);

/*
 * For the worker. Copy the question of the use that "word" is; false when it has ended.
 * And make the desk free, when this use has ended or has taken too long.
 */
extern bool zkl_desk_read_slip(ZklDesk *desk, uint64 word);
extern void zkl_desk_clear(ZklDesk *desk, uint64 word);

/*
 * For backends. Ask, and wait for the answer at most "timeout" ms; ZK003 after
 * that. Interruptible. The answer is a palloc'd copy.
 */
extern ZklDesk *zkl_inquire(ZklQuestion question, const char *name, const char *node,
							const char *data, int len, int timeout);

#endif							/* ZKL_INQUIRY_H */
