/*-------------------------------------------------------------------------
 *
 * functions.h
 *	  The SQL functions that take and give back locks.
 *
 * While a loss is not acknowledged, a statement that only calls these passes, since it is
 * how one acknowledges it; statements.c knows them by ZKL_LOCK_FUNCTIONS.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_FUNCTIONS_H
#define ZKL_FUNCTIONS_H

#include "fmgr.h"

#include "common/compat.h"

/*
 * Declare an SQL function. PG_FUNCTION_INFO_V1 exports the functions themselves only
 * from PostgreSQL 16 on.
 */
#define ZKL_SQL_FUNCTION(f) \
	extern PGDLLEXPORT Datum f(PG_FUNCTION_ARGS); \
	PG_FUNCTION_INFO_V1(f)

#define ZKL_LOCK_FUNCTIONS(do) \
	do(zkl_lock_acquire) \
	do(zkl_lock_try_acquire) \
	do(zkl_xact_lock_acquire) \
	do(zkl_xact_lock_try_acquire) \
	do(zkl_lock_release) \
	do(zkl_lock_release_all) \
	do(zkl_fencing_token) \
	do(zkl_lock_is_held) \
	do(zkl_semaphore_acquire) \
	do(zkl_semaphore_try_acquire) \
	do(zkl_semaphore_release)

#define ZKL_DECLARE_FUNCTION(f) \
	extern PGDLLEXPORT Datum f(PG_FUNCTION_ARGS);
ZKL_LOCK_FUNCTIONS(ZKL_DECLARE_FUNCTION)

#endif							/* ZKL_FUNCTIONS_H */
