/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  The SQLSTATEs that are zklock's own.
 *
 * doc/reference.md says for each when it is raised and what to do about it.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ERRORS_H
#define ZKL_ERRORS_H

#include "utils/elog.h"

/*
 * Our own SQLSTATE class. Retry layers do not know it, which is right: what was
 * lost has to be acquired again, not merely run again.
 */
#define ZKL_ERRCODE_LOCK_LOST				MAKE_SQLSTATE('Z', 'K', '0', '0', '1')
#define ZKL_ERRCODE_STALE_FENCING_TOKEN		MAKE_SQLSTATE('Z', 'K', '0', '0', '2')
#define ZKL_ERRCODE_COORDINATOR_UNAVAILABLE MAKE_SQLSTATE('Z', 'K', '0', '0', '3')
#define ZKL_ERRCODE_FENCING_TOKEN_MISSING	MAKE_SQLSTATE('Z', 'K', '0', '0', '4')

#endif							/* ZKL_ERRORS_H */
