/*-------------------------------------------------------------------------
 *
 * zklock.h
 *	  Settings and error codes that all of the library shares.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ZKLOCK_H
#define ZKL_ZKLOCK_H

#include "utils/elog.h"

/*
 * Our own SQLSTATE class. Retry layers do not know it, which is right: what was
 * lost has to be acquired again, not merely run again.
 */
#define ZKL_ERRCODE_LOCK_LOST				MAKE_SQLSTATE('Z', 'K', '0', '0', '1')
#define ZKL_ERRCODE_STALE_FENCING_TOKEN		MAKE_SQLSTATE('Z', 'K', '0', '0', '2')
#define ZKL_ERRCODE_COORDINATOR_UNAVAILABLE MAKE_SQLSTATE('Z', 'K', '0', '0', '3')
#define ZKL_ERRCODE_FENCING_TOKEN_MISSING	MAKE_SQLSTATE('Z', 'K', '0', '0', '4')

/* A ZooKeeper session shorter than this leaves no room for the lease's margin. */
#define ZKL_SESSION_TIMEOUT_MIN_MS	4000
#define ZKL_SESSION_TIMEOUT_MAX_MS	3600000

typedef enum ZklAcl
{
	ZKL_ACL_OPEN,
	ZKL_ACL_CREATOR
} ZklAcl;

typedef enum ZklIdleLoss
{
	ZKL_IDLE_TERMINATE,
	ZKL_IDLE_DOOM
} ZklIdleLoss;

typedef enum ZklOnRevoke
{
	ZKL_REVOKE_IGNORE,
	ZKL_REVOKE_ABORT
} ZklOnRevoke;

/* Settings; doc/reference.md has a paragraph for each. Times are in ms. */
extern char *zkl_hosts;
extern char *zkl_root;
extern char *zkl_server_name;
extern char *zkl_credentials_file;
extern int	zkl_acl;
extern int	zkl_session_timeout;
extern int	zkl_server_tick_time;
extern int	zkl_acquire_timeout;
extern int	zkl_commit_margin;
extern int	zkl_idle_loss;
extern int	zkl_on_revoke;
extern int	zkl_max_locks;
extern int	zkl_max_locks_per_backend;
extern int	zkl_max_locks_per_role;
extern int	zkl_reserved_locks;
extern int	zkl_new_directories_per_second;

#endif							/* ZKL_ZKLOCK_H */
