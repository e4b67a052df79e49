/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings: what they mean, their defaults, what they accept.
 *
 * Each comment ends with the word that says when a change takes effect: at the start of
 * the server, on reload, per user, or per user where only superusers may set it.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <unistd.h>

#include "postmaster/postmaster.h"
#include "utils/guc.h"

#include "common/lockname.h"
#include "common/resolve.h"
#include "common/settings.h"

/*
 * Where the ZooKeeper servers are: host:port, comma-separated, and at the end an
 * optional /chroot, which has to exist. Reload: the worker reconnects with the
 * same ZooKeeper session.
 */
char	   *zkl_hosts = NULL;

/* Under which node all locks live. Must be the same on all servers. Start. */
char	   *zkl_root = NULL;

/* What others see as the holder's server; part of the member node. Start. */
char	   *zkl_server_name = NULL;

/* A file with user:password for ZooKeeper's digest scheme, mode 0600. Start. */
char	   *zkl_credentials_file = NULL;

/* Who may touch our nodes: anybody, or holders of the same credentials. Start. */
int			zkl_acl = ZKL_ACL_OPEN;

/*
 * The ZooKeeper session timeout to ask for, ms; the servers may change it. A
 * longer one survives longer troubles, a shorter one frees a dead server's
 * locks sooner. At least five times the servers' tickTime is wise. Start.
 */
int			zkl_session_timeout = 10000;

/*
 * The servers' tickTime, ms; 0 when it is not known, which costs some of the
 * lease. One that is smaller than the truth makes the lease unsafe. Reload.
 */
int			zkl_server_tick_time = 0;

/*
 * How long zk_lock_acquire() waits when it is not told, ms; 0 waits for ever.
 * PostgreSQL's deadlock detector does not see these waits, so a finite value
 * is what ends a deadlock. Per user.
 */
int			zkl_acquire_timeout = 60000;

/*
 * How much of the lease must be left for a transaction to pass PRE_COMMIT, and
 * for a grant to be handed out, ms. Superuser.
 */
int			zkl_commit_margin = 250;

/*
 * What happens to a backend that is idle in a transaction when its lock is lost:
 * terminate ends the connection if the transaction has written something, so
 * that its row locks do not stand in the next holder's way; doom leaves it, and
 * its next statement or its COMMIT fails. Per user.
 */
int			zkl_idle_loss = ZKL_IDLE_TERMINATE;

/*
 * What a holder does when another ZooKeeper client asks for its lock, as Curator's
 * Revoker does: nothing but a line in the log, or give it up, which aborts the
 * transaction. Reload.
 */
int			zkl_on_revoke = ZKL_REVOKE_IGNORE;

/* Holds, waits and locks on their way out, of the whole server. Start. */
int			zkl_max_locks = 1024;

/*
 * How many of them one backend, and all backends of one role, may have; 0 = no cap, -1 = a
 * quarter and a half of them. Not for superusers. Superuser, who sets it for a role, too.
 */
int			zkl_max_locks_per_backend = -1;
int			zkl_max_locks_per_role = -1;

/* How many of them are kept for superusers and members of pg_monitor. Start. */
int			zkl_reserved_locks = 8;

/*
 * How many directories a role may make in ZooKeeper, on average; 50 seconds' worth of them
 * at once. The ensemble removes those that nobody uses at 166 a second, for all servers
 * together, so a higher number is a matter of how long. 0 = no bound. Reload.
 */
int			zkl_new_directories_per_second = 100;

static const struct config_enum_entry acl_options[] = {
	{"open", ZKL_ACL_OPEN, false},
	{"creator", ZKL_ACL_CREATOR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry idle_loss_options[] = {
	{"terminate", ZKL_IDLE_TERMINATE, false},
	{"doom", ZKL_IDLE_DOOM, false},
	{NULL, 0, false}
};

static const struct config_enum_entry on_revoke_options[] = {
	{"ignore", ZKL_REVOKE_IGNORE, false},
	{"abort", ZKL_REVOKE_ABORT, false},
	{NULL, 0, false}
};

static bool
check_hosts(char **newval, void **extra, GucSource source)
{
	char		reason[128];

	if (zkl_hosts_check(*newval, reason, sizeof(reason)))
		return true;
	GUC_check_errdetail("In the list of ZooKeeper servers, %s.", reason);
	GUC_check_errhint("Write it as host:port,host:port/chroot; the chroot may be left out.");
	return false;
}

static bool
check_root(char **newval, void **extra, GucSource source)
{
	ZklNameFault fault = zkl_root_fault(*newval, strlen(*newval));

	if (fault.error == ZKL_NAME_OK)
		return true;
	if (fault.component > 0)
		GUC_check_errdetail("Component %d of the path %s.", fault.component,
							zkl_name_error_text(fault.error));
	else
		GUC_check_errdetail("The path %s.", zkl_name_error_text(fault.error));
	GUC_check_errhint("The root is a ZooKeeper path such as /zklock.");
	return false;
}

/* It is a component of the member node's path. */
static bool
check_server_name(char **newval, void **extra, GucSource source)
{
	size_t		len = strlen(*newval);

	if (len <= 100 && strchr(*newval, '/') == NULL && zkl_name_check(*newval, len) == ZKL_NAME_OK)
		return true;
	GUC_check_errdetail("A server name has 1 to 100 bytes of UTF-8 without slashes and control characters, and does not begin with a dot.");
	return false;
}

static const char *
default_server_name(void)
{
	static char name[HOST_NAME_MAX + 16];
	char		host[HOST_NAME_MAX + 1];

	if (gethostname(host, sizeof(host)) != 0)
		strlcpy(host, "localhost", sizeof(host));
	host[sizeof(host) - 1] = '\0';
	snprintf(name, sizeof(name), "%.80s:%d", host, PostPortNumber);
	return name;
}

void
zkl_settings_define(void)
{
	DefineCustomStringVariable("zklock.hosts",
							   "ZooKeeper servers, as host:port separated by commas, with an optional chroot.",
							   NULL, &zkl_hosts, "127.0.0.1:2181",
							   PGC_SIGHUP, 0, check_hosts, NULL, NULL);
	DefineCustomStringVariable("zklock.root",
							   "ZooKeeper node under which all locks live.",
							   "It must be the same on all servers.", &zkl_root, "/zklock",
							   PGC_POSTMASTER, 0, check_root, NULL, NULL);
	DefineCustomStringVariable("zklock.server_name",
							   "Name under which other servers see the locks of this one.",
							   NULL, &zkl_server_name, default_server_name(),
							   PGC_POSTMASTER, 0, check_server_name, NULL, NULL);
	DefineCustomStringVariable("zklock.credentials_file",
							   "File with user:password for ZooKeeper's digest authentication.",
							   "Its permissions must be 0600 or less.", &zkl_credentials_file, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomEnumVariable("zklock.acl",
							 "Who may touch the nodes that this server makes in ZooKeeper.",
							 "All servers that share locks need the same credentials for \"creator\".",
							 &zkl_acl, ZKL_ACL_OPEN, acl_options,
							 PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.session_timeout",
							"ZooKeeper session timeout to ask for.",
							"The ZooKeeper servers may change it within their limits.",
							&zkl_session_timeout, 10000, ZKL_SESSION_TIMEOUT_MIN_MS,
							ZKL_SESSION_TIMEOUT_MAX_MS,
							PGC_POSTMASTER, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.server_tick_time",
							"The ZooKeeper servers' tickTime; 0 if unknown.",
							"A value smaller than the real one makes the lease unsafe.",
							&zkl_server_tick_time, 0, 0, 600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.acquire_timeout",
							"How long to wait for a lock when no timeout is given; 0 waits for ever.",
							NULL, &zkl_acquire_timeout, 60000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.commit_margin",
							"How much of the lease must be left to commit, and to be granted a lock.",
							NULL, &zkl_commit_margin, 250, 0, 60000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("zklock.idle_loss",
							 "What to do with a backend that is idle in a transaction when its lock is lost.",
							 NULL, &zkl_idle_loss, ZKL_IDLE_TERMINATE, idle_loss_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("zklock.on_revoke",
							 "What to do when another ZooKeeper client asks for a lock that is held here.",
							 "Curator writes __REVOKE__ into the node of a lock to ask for it.",
							 &zkl_on_revoke, ZKL_REVOKE_IGNORE, on_revoke_options,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.max_locks",
							"How many locks this server can hold and wait for at a time.",
							NULL, &zkl_max_locks, 1024, 16, 100000,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.max_locks_per_backend",
							"How many locks one backend can hold and wait for at a time; 0 means no cap.",
							"-1 means a quarter of zklock.max_locks. Superusers are exempt.",
							&zkl_max_locks_per_backend, -1, -1, 100000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.max_locks_per_role",
							"How many locks all backends of one role can hold and wait for at a time; 0 means no cap.",
							"-1 means half of zklock.max_locks. Superusers are exempt.",
							&zkl_max_locks_per_role, -1, -1, 100000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.reserved_locks",
							"How many locks are kept for superusers and members of pg_monitor.",
							"At most half of zklock.max_locks.", &zkl_reserved_locks, 8, 0, 100000,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("zklock.new_directories_per_second",
							"How many directories a role can make in ZooKeeper, on average; 0 means no bound.",
							"50 seconds' worth of them can be made at once. Superusers are exempt.",
							&zkl_new_directories_per_second, 100, 0, 100000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("zklock");
}

const char *
zkl_coordinator_name(void)
{
	return "ZooKeeper";
}
