/*-------------------------------------------------------------------------
 *
 * inquire.h
 *	  What a backend asks of the coordinator.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_INQUIRE_H
#define ZKL_INQUIRE_H

#include "shared/desk.h"

/*
 * Ask, and wait for the answer at most "timeout" ms; ZK003 after that. Interruptible.
 * One that only looks leaves a desk to operators. The answer is a palloc'd copy of the
 * desk.
 */
extern ZklDesk *zkl_inquire(const ZklQuestion *question, bool looks, int timeout);

#endif							/* ZKL_INQUIRE_H */
