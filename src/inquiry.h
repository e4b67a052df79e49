/*-------------------------------------------------------------------------
 *
 * inquiry.h
 *	  Questions of backends that only ZooKeeper can answer: who stands in a lock's
 *	  queue, and what an operator does to it.
 *
 * There are a few desks in shared memory. A backend takes a free one, writes its
 * question down and wakes the worker; the worker sends the requests, writes the
 * answer down and wakes the backend. Who gives up leaves the desk ABANDONED, and
 * the worker clears it when it has nothing under way for it any more.
 *
 *	state		set by		meaning; who may write the rest
 *	---------	----------	---------------------------------------------------
 *	FREE		either		nobody
 *	FILLING		asker		the asker, by compare-and-swap from FREE
 *	ASKED		asker		the worker
 *	ANSWERED	worker		nobody; the asker reads
 *	ABANDONED	asker		the worker, by compare-and-swap from ASKED
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_INQUIRY_H
#define ZKL_INQUIRY_H

#include "lockname.h"
#include "nodedata.h"
#include "port/atomics.h"

#define ZKL_DESKS			4
#define ZKL_INQUIRY_ROWS	128

typedef enum ZklDeskState
{
	ZKL_DESK_FREE = 0,
	ZKL_DESK_FILLING,
	ZKL_DESK_ASKED,
	ZKL_DESK_ANSWERED,
	ZKL_DESK_ABANDONED
} ZklDeskState;

typedef enum ZklQuestion
{
	ZKL_QUESTION_QUEUE,			/* the contenders and what their nodes say */
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

typedef struct ZklDesk
{
	pg_atomic_uint32 state;		/* ZklDeskState */

	/* the asker's */
	int			procno;
	ZklQuestion question;
	char		name[ZKL_NAME_MAX + 1]; /* of the lock: where its nodes are */
	char		node[ZKL_NODE_SIZE];
	char		data[ZKL_NODEDATA_SIZE];
	int			len;

	/* the worker's */
	int			rc;				/* ZooKeeper's result */
	int			contenders;		/* in the directory; rows hold the first */
	int			nrows;
	ZklContenderRow rows[ZKL_INQUIRY_ROWS];
} ZklDesk;

extern ZklDesk *zkl_desks;		/* NULL when not preloaded */

extern void zkl_desks_init(ZklDesk *desks);

/*
 * For backends. Ask, and wait for the answer at most "timeout" ms; ZK003 after
 * that. Interruptible. The answer is a palloc'd copy.
 */
extern ZklDesk *zkl_inquire(ZklQuestion question, const char *name, const char *node,
							const char *data, int len, int timeout);

#endif							/* ZKL_INQUIRY_H */
