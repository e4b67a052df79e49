/*-------------------------------------------------------------------------
 *
 * acquire.h
 *	  Acquire a lock or a permit: request, wait, grant.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ACQUIRE_H
#define ZKL_ACQUIRE_H

#include "common/lockname.h"

/*
 * Acquire a lock, or a permit of a semaphore of so many, and wait for it for "timeout" ms,
 * or ZKL_WAIT_FOREVER. Returns the fencing token (of a permit a number that is unique but
 * fences nothing), or 0 when "try" found it taken. Everything else is an error, with
 * which the request is let go: a timeout (55P03), a coordinator that does not answer
 * (ZK003), a lock that is lost meanwhile (ZK001).
 */
extern int64 zkl_acquire(const char *name, ZklMode mode, bool xact_level, bool try, int timeout);
extern int64 zkl_acquire_permit(const char *semaphore, int permits, bool try, int timeout);

#endif							/* ZKL_ACQUIRE_H */
