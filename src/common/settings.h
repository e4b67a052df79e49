/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings, as PostgreSQL keeps them up to date.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_SETTINGS_H
#define ZKL_SETTINGS_H

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

/* What messages call the coordinator in use: "ZooKeeper". */
extern const char *zkl_coordinator_name(void);

/* From _PG_init, when preloading. */
extern void zkl_settings_define(void);

#endif							/* ZKL_SETTINGS_H */
