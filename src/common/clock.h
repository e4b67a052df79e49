/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The one clock that permits are measured on.
 *
 * CLOCK_BOOTTIME: not set by anybody, and it goes on while the machine is
 * suspended, as the ensemble's clock does. Readable in a signal handler.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_CLOCK_H
#define ZKL_CLOCK_H

#include <stdint.h>
#include <time.h>

typedef int64_t ZklTime;		/* microseconds, CLOCK_BOOTTIME */

#define ZKL_MS(n)			((ZklTime) (n) * 1000)

static inline ZklTime
zkl_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (ZklTime) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

#endif							/* ZKL_CLOCK_H */
