/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background worker.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_WORKER_H
#define ZKL_WORKER_H

/* From _PG_init, when preloading. */
extern void zkl_worker_register(void);

#endif							/* ZKL_WORKER_H */
