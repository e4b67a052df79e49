/*-------------------------------------------------------------------------
 *
 * desk.h
 *	  Desks, where backends ask what only the coordinator can answer: who stands in
 *	  a lock's queue; and what an operator does to it.
 *
 * A backend writes its question on a slip of its own and takes a free desk for it;
 * the worker copies the slip, sends the requests, writes the answer down at the desk
 * and wakes the backend. One that gives up leaves the desk ABANDONED, and the worker
 * clears it.
 *
 *	state		set by		meaning
 *	---------	----------	---------------------------------------------------
 *	FREE		either		nobody's
 *	ASKED		asker		the worker reads the asker's slip, and answers
 *	ANSWERED	worker		the asker reads the answer
 *	ABANDONED	asker		the worker clears it
 *
 * An asker may be stopped at any instant, for ever, and must not keep the desk from the
 * others. So it never writes to the desk itself but by one compare-and-swap of a word
 * that has the state, the asker and a generation: one up with each use. After a while
 * the worker takes the desk back; an asker that goes on then finds another generation
 * and asks again. Its slip is its own, so what it writes there late disturbs no other.
 *
 * One desk is for operators: those who only look cannot keep zk_lock_break() waiting.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_DESK_H
#define ZKL_DESK_H

#include "port/atomics.h"

#include "coordinator.h"

#define ZKL_DESKS			ZKL_ASKERS
#define ZKL_DESKS_OPERATORS 1	/* of them; the first ones */

typedef enum ZklDeskState
{
	ZKL_DESK_FREE = 0,
	ZKL_DESK_ASKED,
	ZKL_DESK_ANSWERED,
	ZKL_DESK_ABANDONED
} ZklDeskState;

/* What a backend wants to know: one for each, written by it alone. */
typedef struct ZklSlip
{
	ZklQuestion question;		/* without "place" and "serial" */
} ZklSlip;

typedef struct ZklDesk
{
	pg_atomic_uint64 word;		/* see zkl_desk_word() */

	/* all else is written by the worker */
	ZklQuestion question;		/* copy of the asker's */
	ZklAnswerResult result;
	char		text[ZKL_REFUSAL_SIZE]; /* of a result that is none */
	int			contenders;		/* so many there are; rows hold the first */
	int			nrows;
	ZklContenderRow rows[ZKL_ANSWER_ROWS];
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

#endif							/* ZKL_DESK_H */
