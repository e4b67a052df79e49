/*-------------------------------------------------------------------------
 *
 * fence.h
 *	  Fencing tokens at the table: a stale writer writes nothing.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_FENCE_H
#define ZKL_FENCE_H

#include "fmgr.h"

#include "common/compat.h"

extern PGDLLEXPORT Datum zkl_fence_check(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_fence_guard(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_fence_reset(PG_FUNCTION_ARGS);

#endif							/* ZKL_FENCE_H */
