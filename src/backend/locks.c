/*-------------------------------------------------------------------------
 *
 * locks.c
 *	  The SQL functions by which a backend takes and gives back locks.
 *
 * A hold is kept in this process, by name, with its counts per level, as the
 * lock manager keeps its own: backend-level acquires stack and survive a
 * rollback, transaction-level ones go with the (sub)transaction that made them.
 * The entry in shared memory is taken with the first and let go with the last.
 *
 * While a request waits, its entry's number is in "pending_entry". Whatever
 * ends the wait other than a grant is an error, or the end of the process. The
 * error lets a pending entry go on its way out and does not leave that to the
 * abort of the transaction, in which other libraries may take their time: the
 * lock could be granted meanwhile, to nobody.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/dbcommands.h"
#include "common/string.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "replication/logicalworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend/guard.h"
#include "backend/locks.h"
#include "backend/written.h"
#include "common/clock.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/quota.h"
#include "shared/shmem.h"

/* A try has to say something within a second, also when ZooKeeper says nothing. */
#define TRY_TIMEOUT_MS		900

/* How long before a timeout we ask who is in the way, to say it then. */
#define ASK_BEFORE_MS		300
#define ASK_AFTER_BUSY_MS	200

#define WAIT_FOREVER		(-1)

ZklHold    *zkl_holds = NULL;
int			zkl_nholds = 0;
static int	max_holds = 0;

volatile int *volatile zkl_held_entries = NULL;
volatile int zkl_nheld_entries = 0;

static int	pending_entry = -1;
static int	pending_mutex = -1; /* of a semaphore, while we ask for a lease */
static bool exit_hook_registered = false;

/* The transaction that was warned about its snapshot. */
static LocalTransactionId warned_lxid = InvalidLocalTransactionId;

PG_FUNCTION_INFO_V1(zkl_lock_acquire);
PG_FUNCTION_INFO_V1(zkl_lock_try_acquire);
PG_FUNCTION_INFO_V1(zkl_xact_lock_acquire);
PG_FUNCTION_INFO_V1(zkl_xact_lock_try_acquire);
PG_FUNCTION_INFO_V1(zkl_lock_release);
PG_FUNCTION_INFO_V1(zkl_lock_release_all);
PG_FUNCTION_INFO_V1(zkl_fencing_token);
PG_FUNCTION_INFO_V1(zkl_lock_is_held);
PG_FUNCTION_INFO_V1(zkl_semaphore_acquire);
PG_FUNCTION_INFO_V1(zkl_semaphore_try_acquire);
PG_FUNCTION_INFO_V1(zkl_semaphore_release);

/* ------------------------------------------------------------------------
 * Text
 * ------------------------------------------------------------------------
 */

/*
 * Our own names convert; text from elsewhere may not, and a message about a
 * lock must not fail because of its holder's application name.
 */
char *
zkl_text_for_message(const char *utf8)
{
	int			len = strlen(utf8);
	unsigned char *out;

	if (pg_is_ascii(utf8) ||
		(GetDatabaseEncoding() == PG_UTF8 && pg_verify_mbstr(PG_UTF8, utf8, len, true)))
		return pstrdup(utf8);
	out = palloc0(len * MAX_CONVERSION_GROWTH + 1);
	if (GetDatabaseEncoding() != PG_SQL_ASCII && GetDatabaseEncoding() != PG_UTF8)
	{
		Oid			proc = FindDefaultConversionProc(PG_UTF8, GetDatabaseEncoding());

		if (OidIsValid(proc) && IsTransactionState() &&
			pg_do_encoding_conversion_buf(proc, PG_UTF8, GetDatabaseEncoding(),
										  (unsigned char *) unconstify(char *, utf8), len, out,
										  len * MAX_CONVERSION_GROWTH + 1, true) == len)
			return (char *) out;
	}
	for (int i = 0; i <= len; i++)
		out[i] = IS_HIGHBIT_SET(utf8[i]) ? '?' : utf8[i];
	return (char *) out;
}

char *
zkl_lock_label(const char *name)
{
	static const char *const suffixes[] = {ZKL_SEMAPHORE_LEASES, ZKL_SEMAPHORE_LOCKS};
	size_t		len = strlen(name);

	for (int i = 0; i < lengthof(suffixes); i++)
	{
		size_t		suffix_len = strlen(suffixes[i]);

		if (len > suffix_len && strcmp(name + len - suffix_len, suffixes[i]) == 0)
			return psprintf("semaphore \"%s\"",
							zkl_text_for_message(pnstrdup(name, len - suffix_len)));
	}
	return psprintf("lock \"%s\"", zkl_text_for_message(name));
}

void
zkl_copy_as_utf8(char *to, size_t size, const char *from)
{
	char	   *utf8;

	if (from == NULL)
		from = "";
	if (GetDatabaseEncoding() == PG_SQL_ASCII)
		utf8 = pstrdup(from);	/* nodedata.c replaces what is not UTF-8 */
	else
		utf8 = pg_server_to_any(from, strlen(from), PG_UTF8);
	/* in the middle of a character it would be no text any more */
	strlcpy(to, utf8, 1 + (strlen(utf8) < size ? size - 1 :
						   pg_encoding_mbcliplen(PG_UTF8, utf8, strlen(utf8), size - 1)));
}

/*
 * The component of this number, from 1 on, or "" for 0. Slashes are bytes of their own in
 * every encoding, so the count is that of the name in UTF-8.
 */
static char *
copy_component(const char *given, int number)
{
	if (number == 0)
		return pstrdup("");
	while (--number > 0)
		given = strchr(given, '/') + 1;
	return pnstrdup(given, strcspn(given, "/"));
}

char *
zkl_name_detail(const char *given, ZklNameFault fault)
{
	const char *text = zkl_name_error_text(fault.error);
	char	   *component = copy_component(given, fault.component);
	int			shown = pg_mbcliplen(component, strlen(component), 64);
	const char *more = component[shown] != '\0' ? "..." : "";

	if (fault.component == 0)
		return psprintf("The name %s.", text);
	if (fault.error == ZKL_NAME_EMPTY_COMPONENT)
		return psprintf("Component %d of the name %s.", fault.component, text);
	if (fault.error == ZKL_NAME_CONTROL_CHARACTER)
		return psprintf("Component %d of the name, \"%.*s\"%s, %s: U+%04X.",
						fault.component, shown, component, more, text, fault.character);
	return psprintf("Component %d of the name, \"%.*s\"%s, %s.",
					fault.component, shown, component, more, text);
}

/* What to write instead. */
static char *
name_hint(const char *given, ZklNameFault fault)
{
	char	   *component = copy_component(given, fault.component);

	switch (fault.error)
	{
		case ZKL_NAME_TOO_LONG:
			return psprintf("A name has up to %d bytes of UTF-8; write md5(...) of its longest part instead.",
							ZKL_NAME_MAX);
		case ZKL_NAME_EMPTY_COMPONENT:
			return pstrdup("Leave out that slash, or write \"-\" for a value that is empty.");
		case ZKL_NAME_DOT_COMPONENT:
			return psprintf("Let it begin with another character: \"_%s\".", component);
		case ZKL_NAME_CONTROL_CHARACTER:
			return pstrdup("Leave the character out, or write encode(convert_to(..., 'UTF8'), 'hex') of the text that has it.");
		case ZKL_NAME_LOOKS_LIKE_CONTENDER:
		case ZKL_NAME_RESERVED:
			return psprintf("Let it end in another character: \"%s_\".", component);
		case ZKL_NAME_TOO_DEEP:
			return pstrdup("Put another character than a slash between some of them: \"a:b\".");
		default:
			return psprintf("A name is UTF-8 text of 1 to %d bytes; slashes separate its components.",
							ZKL_NAME_MAX);
	}
}

void
zkl_check_name(const char *given, char name[ZKL_NAME_MAX + 1])
{
	const char *utf8 = given;
	ZklNameFault fault;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		utf8 = pg_server_to_any(given, strlen(given), PG_UTF8);

	fault = zkl_name_fault(utf8, strlen(utf8));
	if (fault.error != ZKL_NAME_OK)
	{
		int			shown = pg_mbcliplen(given, strlen(given), 64);

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid lock name \"%.*s\"%s", shown, given,
						given[shown] != '\0' ? "..." : ""),
				 errdetail("%s", zkl_name_detail(given, fault)),
				 errhint("%s", name_hint(given, fault))));
	}
	strlcpy(name, utf8, ZKL_NAME_MAX + 1);
}

static void
name_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1])
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock name must not be null")));
	zkl_check_name(text_to_cstring(PG_GETARG_TEXT_PP(0)), name);
}

static ZklMode
mode_argument(FunctionCallInfo fcinfo, int argno)
{
	char	   *given;
	ZklMode		mode;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock mode must not be null")));
	given = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	if (!zkl_mode_parse(given, &mode))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid lock mode \"%s\"", given),
				 errhint("Available modes: exclusive, read, write.")));
	return mode;
}

int
zkl_interval_ms(Interval *interval)
{
	/* 'infinity' has the largest fields there are, and so is out of range */
	double		ms = interval->time / 1000.0 +
		(interval->day + interval->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;
	if (interval->time < 0 || interval->day < 0 || interval->month < 0 ||
		ms < 0 || ms > INT_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock timeout is out of range"),
				 errdetail("It must be from 0 to %d milliseconds.", INT_MAX),
				 errhint("A timeout of NULL means zklock.acquire_timeout, in which 0 waits forever.")));
	return (int) ceil(ms);
}

/* Milliseconds; NULL means the setting. */
static int
timeout_argument(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return zkl_acquire_timeout == 0 ? WAIT_FOREVER : zkl_acquire_timeout;
	return zkl_interval_ms(PG_GETARG_INTERVAL_P(argno));
}

/* ------------------------------------------------------------------------
 * Holds
 * ------------------------------------------------------------------------
 */

void
zkl_require_preload(void)
{
	if (zkl_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock must be loaded via shared_preload_libraries"),
				 errhint("Add \"shared_preload_libraries = 'zklock'\" to postgresql.conf and restart the server.")));
}

void
zkl_refuse_restricted(void)
{
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("zklock functions cannot be used within a security-restricted operation"),
				 errdetail("The code of a table's owner, in an index or a materialized view, would work on the locks of whoever maintains the table.")));
}

static void
require_worker_process(void)
{
	zkl_require_preload();
	zkl_refuse_restricted();
	if (AmAutoVacuumWorkerProcess() || IsLogicalWorker())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock locks cannot be used in autovacuum and logical replication workers"),
				 errdetail("Such a worker tries again for ever when it fails.")));
	if (IsParallelWorker())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("zklock locks cannot be used in parallel workers"),
				 errdetail("They would be given back when the worker ends."),
				 errhint("Do not mark a function that uses them PARALLEL SAFE.")));
}

ZklHold *
zkl_locks_find(const char *name)
{
	ZklHold    *found = NULL;

	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		/* rather one that was not given back, rather the write hold */
		if (strcmp(hold->name, name) == 0 && !hold->superseded &&
			(found == NULL || found->released > hold->released ||
			 (found->released == hold->released && found->mode == ZKL_MODE_READ)))
			found = hold;
	}
	return found;
}

/* The hold of this name in this mode, or NULL. Of several permits, one that was given back. */
static ZklHold *
find_mode(const char *name, ZklMode mode)
{
	ZklHold    *found = NULL;

	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->mode == mode && strcmp(hold->name, name) == 0 && !hold->superseded &&
			(found == NULL || hold->released))
			found = hold;
	}
	return found;
}

static void
let_pending_go(void)
{
	if (pending_entry >= 0)
		zkl_entry_let_go(pending_entry);
	if (pending_mutex >= 0)
		zkl_entry_let_go(pending_mutex);
	pending_entry = pending_mutex = -1;
}

/* At process exit, after the last transaction was aborted. */
static void
let_go_at_exit(int code, Datum arg)
{
	for (int i = 0; i < zkl_nholds; i++)
		zkl_entry_let_go(zkl_holds[i].entry);
	let_pending_go();
	zkl_nholds = 0;
	zkl_nheld_entries = 0;
}

/* Room for one more hold, before it is needed: afterwards nothing may fail. */
static void
reserve_hold(void)
{
	volatile int *old_entries = zkl_held_entries;
	volatile int *new_entries;

	if (!exit_hook_registered)
	{
		on_shmem_exit(let_go_at_exit, (Datum) 0);
		exit_hook_registered = true;
	}
	if (zkl_nholds < max_holds)
		return;

	if (max_holds == 0)
		zkl_holds = MemoryContextAlloc(TopMemoryContext, 8 * sizeof(ZklHold));
	else
		zkl_holds = repalloc(zkl_holds, 2 * max_holds * sizeof(ZklHold));
	max_holds = max_holds == 0 ? 8 : 2 * max_holds;

	new_entries = MemoryContextAlloc(TopMemoryContext, max_holds * sizeof(int));
	for (int i = 0; i < zkl_nheld_entries; i++)
		new_entries[i] = old_entries[i];
	zkl_held_entries = new_entries;
	if (old_entries != NULL)
		pfree(unvolatize(int *, old_entries));
}

static ZklHold *
add_hold(const char *name, int entry, ZklMode mode, int64 token)
{
	ZklHold    *hold = &zkl_holds[zkl_nholds];

	memset(hold, 0, sizeof(*hold));
	hold->name_len = strlcpy(hold->name, name, sizeof(hold->name));
	hold->entry = entry;
	hold->mode = mode;
	hold->token = token;
	zkl_nholds++;
	zkl_held_entries[zkl_nheld_entries] = entry;
	zkl_nheld_entries = zkl_nheld_entries + 1;
	return hold;
}

/* Let the lock go and forget it. The last hold takes this one's place. */
static void
drop_hold(ZklHold *hold)
{
	int			position = hold - zkl_holds;
	int			entry = hold->entry;

	for (int i = 0; i < zkl_nheld_entries; i++)
	{
		if (zkl_held_entries[i] != entry)
			continue;
		zkl_held_entries[i] = zkl_held_entries[zkl_nheld_entries - 1];
		zkl_nheld_entries = zkl_nheld_entries - 1;
		break;
	}
	if (hold->levels != NULL)
		pfree(hold->levels);
	zkl_nholds--;
	if (position != zkl_nholds)
		zkl_holds[position] = zkl_holds[zkl_nholds];
	zkl_entry_let_go(entry);
}

static bool
is_unused(const ZklHold *hold)
{
	return hold->backend_count == 0 && hold->nlevels == 0;
}

/* Room for one more transaction-level acquire, as reserve_hold(). */
static void
reserve_level(ZklHold *hold)
{
	if (hold->nlevels < hold->maxlevels)
		return;
	if (hold->maxlevels == 0)
		hold->levels = MemoryContextAlloc(TopMemoryContext, 4 * sizeof(ZklLevelCount));
	else
		hold->levels = repalloc(hold->levels, 2 * hold->maxlevels * sizeof(ZklLevelCount));
	hold->maxlevels = hold->maxlevels == 0 ? 4 : 2 * hold->maxlevels;
}

/* For those who look: at which levels is it held? */
static void
publish_levels(const ZklHold *hold)
{
	pg_atomic_write_u32(&zkl_shared->entries[hold->entry].levels,
						(hold->backend_count > 0 ? ZKL_LEVEL_BACKEND : 0) |
						(hold->nlevels > 0 ? ZKL_LEVEL_XACT : 0));
}

static void
count_acquire(ZklHold *hold, bool xact_level)
{
	int			level = GetCurrentTransactionNestLevel();

	/* if a rollback to a savepoint takes this acquire back, the release stands */
	hold->keep |= hold->released;
	hold->released = false;
	if (!xact_level)
		hold->backend_count++;
	else if (hold->nlevels > 0 && hold->levels[hold->nlevels - 1].level == level)
		hold->levels[hold->nlevels - 1].count++;
	else
	{
		hold->levels[hold->nlevels].level = level;
		hold->levels[hold->nlevels].count = 1;
		hold->nlevels++;
	}
	publish_levels(hold);
}

/*
 * The last backend-level acquire was given back. If the transaction has written, a
 * transaction-level one that is left must not take the lock with it when its
 * subtransaction is rolled back.
 */
static void
note_backend_release(ZklHold *hold)
{
	if (hold->backend_count == 0 && !hold->lost && zkl_has_written())
		hold->keep = true;
}

/*
 * Nobody needs the hold any more. In a transaction that wrote, the lock has to
 * outlast the commit, or the writes would become visible under the next holder.
 */
static void
give_back(ZklHold *hold)
{
	if (!hold->lost && zkl_has_written())
		hold->released = true;
	else
		drop_hold(hold);
}

/*
 * To acquire a lost lock again, at the same level, acknowledges the loss; but
 * not to fail to, and it does not undo what the loss did to this transaction.
 */
static void
supersede_lost(const char *name, bool xact_level)
{
	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (!hold->lost || strcmp(hold->name, name) != 0)
			continue;
		zkl_guard_check_doom();
		if (xact_level)
			zkl_guard_raise(hold);
		hold->superseded = true;
	}
}

/* It has succeeded. */
static void
drop_superseded(void)
{
	for (int i = zkl_nholds - 1; i >= 0; i--)
		if (zkl_holds[i].superseded)
			drop_hold(&zkl_holds[i]);
}

/* To acquire it again has failed: the loss is still not acknowledged. */
static void
restore_superseded(void)
{
	for (int i = 0; i < zkl_nholds; i++)
		zkl_holds[i].superseded = false;
}

void
zkl_locks_at_xact_end(void)
{
	let_pending_go();
	restore_superseded();
	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		hold->nlevels = 0;
		hold->keep = false;
		publish_levels(hold);
		/* a lost backend-level hold stays until its loss is acknowledged */
		if (is_unused(hold))
			drop_hold(hold);
	}
}

void
zkl_locks_at_subxact_abort(int level)
{
	let_pending_go();
	restore_superseded();
	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		while (hold->nlevels > 0 && hold->levels[hold->nlevels - 1].level >= level)
			hold->nlevels--;
		publish_levels(hold);
		if (!is_unused(hold) || hold->released)
			continue;
		if (hold->keep && !hold->lost)
			hold->released = true;
		else
			drop_hold(hold);
	}
}

void
zkl_locks_at_subxact_commit(int level)
{
	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];
		ZklLevelCount *last;

		if (hold->nlevels == 0)
			continue;
		last = &hold->levels[hold->nlevels - 1];
		if (last->level < level)
			continue;
		last->level = level - 1;
		if (hold->nlevels > 1 && last[-1].level == level - 1)
		{
			last[-1].count += last->count;
			hold->nlevels--;
		}
	}
}

int
zkl_locks_release_all(void)
{
	int			released = 0;

	for (int i = zkl_nholds - 1; i >= 0; i--)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->backend_count == 0)
			continue;
		released += hold->backend_count;
		hold->backend_count = 0;
		note_backend_release(hold);
		publish_levels(hold);
		if (hold->lost)
			drop_hold(hold);
		else if (is_unused(hold))
			give_back(hold);
	}
	return released;
}

/* ------------------------------------------------------------------------
 * Waiting
 * ------------------------------------------------------------------------
 */

typedef struct Wait
{
	const char *name;			/* UTF-8 */
	ZklMode		mode;
	int			permits;			/* of a semaphore, else 0 */
	const ZklHold *downgrade;	/* the write hold to be downgraded, or NULL */
	bool		try;			/* NULL instead of an error when it is taken */
	bool		turn;			/* for a semaphore's mutex */
	bool		turn_lost;		/* out: that mutex was lost, begin again */
	bool		xact_level;
	ZklTime		start;
	int			timeout;		/* ms, or WAIT_FOREVER */
	bool		by_lock_timeout;	/* core's setting is the shorter one */
	ZklTime		deadline;		/* of the wait */
} Wait;

static void
begin_wait(Wait *wait, bool try, int timeout)
{
	wait->try = try;
	wait->timeout = timeout;
	wait->start = zkl_now();
	if (try)
		wait->timeout = TRY_TIMEOUT_MS;
	else if (LockTimeout > 0 && (timeout == WAIT_FOREVER || LockTimeout < timeout))
	{
		wait->timeout = LockTimeout;
		wait->by_lock_timeout = true;
	}
	/* not to wait for others takes a moment too: ZooKeeper has to say so */
	if (wait->timeout != WAIT_FOREVER)
		wait->deadline = zkl_now() + ZKL_MS(wait->timeout == 0 ? TRY_TIMEOUT_MS : wait->timeout);
}

/* "server "a:5432", process 1234, ..." of whoever holds the lock. */
static char *
describe_holder(ZklEntry *entry)
{
	ZklNodeData *holder = &entry->holder;
	StringInfoData buf;

	if ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0)
		return NULL;
	pg_read_barrier();
	if (entry->holder_token == 0)
		return NULL;			/* gone by the time we asked */

	initStringInfo(&buf);
	appendStringInfoString(&buf, entry->mode == ZKL_MODE_PERMIT ? "One" : "It");
	if (holder->pid == 0)
	{
		appendStringInfoString(&buf, " is held by another client");
		if (holder->server[0] != '\0')
			appendStringInfo(&buf, ": \"%s\"", zkl_text_for_message(holder->server));
		else
			appendStringInfoString(&buf, ", which does not say who it is");
		appendStringInfo(&buf, ", fencing token " INT64_FORMAT ".", entry->holder_token);
		return buf.data;
	}
	appendStringInfo(&buf, " is held by server \"%s\", process %d",
					 zkl_text_for_message(holder->server), holder->pid);
	if (holder->database[0] != '\0')
		appendStringInfo(&buf, ", database \"%s\"", zkl_text_for_message(holder->database));
	if (holder->user[0] != '\0')
		appendStringInfo(&buf, ", user \"%s\"", zkl_text_for_message(holder->user));
	if (holder->application[0] != '\0')
		appendStringInfo(&buf, ", application \"%s\"", zkl_text_for_message(holder->application));
	if (holder->since[0] != '\0')
		appendStringInfo(&buf, ", since %s", zkl_text_for_message(holder->since));
	appendStringInfoChar(&buf, '.');
	return buf.data;
}

/* For the statistics, before a wait ends with an error. */
static void
count_timeout(void)
{
	if (pending_entry >= 0)
		pg_atomic_fetch_or_u32(&zkl_shared->entries[pending_entry].flags, ZKL_FLAG_TIMED_OUT);
}

static void
raise_unavailable(Wait *wait)
{
	char		trouble[ZKL_TROUBLE_SIZE];
	bool		known = zkl_trouble_read(trouble);

	count_timeout();
	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("could not reach ZooKeeper for %s within %d ms",
					zkl_lock_label(wait->name),
					wait->timeout == 0 ? TRY_TIMEOUT_MS : wait->timeout),
			 pg_atomic_read_u32(&zkl_shared->worker_pid) == 0 ?
			 errdetail("The zklock worker is not running.") :
			 zkl_now() < zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease)) ?
			 errdetail("It has not answered this request yet.") :
			 known ? errdetail("%s", zkl_text_for_message(trouble)) :
			 errdetail("There is no answer from zklock.hosts (\"%s\").", zkl_hosts),
			 errhint("Check the ZooKeeper servers and zklock.hosts; the server log has the worker's messages.")));
}

static void
raise_timeout(Wait *wait, ZklEntry *entry)
{
	char	   *holder = describe_holder(entry);
	int			ahead = pg_atomic_read_u32(&entry->ahead);

	count_timeout();
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 wait->timeout == 0 ?
			 errmsg("%s is taken", zkl_lock_label(wait->name)) :
			 errmsg("could not obtain %s within %d ms",
					zkl_lock_label(wait->name), wait->timeout),
			 wait->turn ? errdetail("%d others are waiting for a lease.", ahead) :
			 wait->permits > 0 && ahead > 0 ?
			 errdetail("%d of %d leases are taken.%s%s", Min(ahead, wait->permits), wait->permits,
					   holder != NULL ? " " : "", holder != NULL ? holder : "") :
			 holder != NULL && ahead > 1 ?
			 errdetail("%s %d contenders are ahead.", holder, ahead) :
			 holder != NULL ? errdetail("%s", holder) :
			 ahead > 0 ? errdetail("%d contenders are ahead.", ahead) : 0,
			 wait->by_lock_timeout ?
			 errhint("The setting lock_timeout ended the wait.") : 0));
}

static void
raise_failed(Wait *wait, ZklEntry *entry)
{
	char	   *name = zkl_text_for_message(wait->name);
	ZklHold    *hold;

	pg_read_barrier();
	switch (entry->refusal)
	{
		case ZKL_REFUSAL_BUDGET:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("too many locks for one ZooKeeper session"),
					 errdetail("One more than \"%s\" could make the ZooKeeper session too large for the ensemble to end it.",
							   name),
					 errhint("Release locks, or use shorter names.")));
			break;
		case ZKL_REFUSAL_COUNTER:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("the counter of lock \"%s\" is used up", name),
					 errdetail("ZooKeeper numbers the contenders of a lock up to 2147483647; equal or negative numbers would let two hold it."),
					 errhint("When no client uses the lock, delete its node in ZooKeeper; the next one starts at 0.")));
			break;
		case ZKL_REFUSAL_LONG_NAME:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a contender for lock \"%s\" has too long a name", name),
					 errdetail("A node of more than %d bytes stands in the lock's directory, made by another client.",
							   ZKL_NODE_SIZE - 1)));
			break;
		case ZKL_REFUSAL_NO_WRITER:
			/* this may be the first sign that the write lock is lost: look again */
			zkl_guard_refresh();
			hold = find_mode(wait->name, ZKL_MODE_WRITE);
			if (hold != NULL)
				zkl_guard_raise(hold);
			break;
		case ZKL_REFUSAL_DENIED:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("ZooKeeper denies access to lock \"%s\"", name),
					 errdetail("%s", entry->refusal_text),
					 errhint("Compare zklock.acl and zklock.credentials_file of all servers with the ACL of the lock's directory.")));
			break;
		case ZKL_REFUSAL_OTHER:
		case ZKL_REFUSAL_NONE:
			break;
	}
	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("ZooKeeper refused lock \"%s\"", name),
			 errdetail("%s", entry->refusal_text)));
}

/* UTC, so that servers in different zones can be compared. */
static void
format_since(char *buf, size_t size)
{
	pg_time_t	now = (pg_time_t) time(NULL);

	pg_strftime(buf, size, "%Y-%m-%d %H:%M:%SZ", pg_gmtime(&now));
}

/* Ask for the lock: from here on pending_entry is to be let go on any error. */
static ZklEntry *
submit(Wait *wait)
{
	ZklEntry   *entry;
	char		database[64];
	char		user[64];
	char		application[64];
	int			push_signal = zkl_guard_signal();

	Assert(pending_entry < 0);
	/* all that can fail comes before the entry is taken */
	zkl_copy_as_utf8(database, sizeof(database), get_database_name(MyDatabaseId));
	zkl_copy_as_utf8(user, sizeof(user), GetUserNameFromId(GetUserId(), true));
	zkl_copy_as_utf8(application, sizeof(application), application_name);

	pending_entry = zkl_quota_take_entry();
	entry = &zkl_shared->entries[pending_entry];
	entry->pid = MyProcPid;
	entry->procno = MyProcNumber;
	entry->push_signal = push_signal;
	entry->mode = wait->mode;
	/* a downgrade waits for nobody */
	entry->try = wait->downgrade == NULL && (wait->try || wait->timeout == 0);
	entry->permits = wait->permits;
	entry->beside[0] = '\0';
	entry->inherited_token = 0;
	if (wait->downgrade != NULL)
	{
		/* its name does not change any more; if it is lost meanwhile the
		 * worker will not find it */
		strlcpy(entry->beside, zkl_shared->entries[wait->downgrade->entry].saved.contender,
				sizeof(entry->beside));
		entry->inherited_token = wait->downgrade->token;
	}
	strlcpy(entry->name, wait->name, sizeof(entry->name));
	strlcpy(entry->database, database, sizeof(entry->database));
	strlcpy(entry->user, user, sizeof(entry->user));
	strlcpy(entry->application, application, sizeof(entry->application));
	format_since(entry->since, sizeof(entry->since));
	entry->wait_start = wait->start;
	pg_atomic_write_u32(&entry->levels, wait->xact_level ? ZKL_LEVEL_XACT : ZKL_LEVEL_BACKEND);
	zkl_entry_submit(pending_entry);
	return entry;
}

/* Is a grant worth handing out: does it last beyond the commit margin? */
static bool
grant_is_good(ZklEntry *entry)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	return entry->generation == zkl_word_generation(word) &&
		zkl_now() + ZKL_MS(zkl_commit_margin) < zkl_word_deadline(word);
}

void
zkl_sleep(long ms, uint32 *wait_event, const char *name)
{
	if (*wait_event == 0)
		*wait_event = WaitEventExtensionNew(name);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Max(ms, 1), *wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Sleep until the worker says something, at most "ms". */
static void
sleep_on_latch(long ms)
{
	static uint32 wait_event = 0;

	zkl_sleep(ms, &wait_event, "ZklockAcquire");
}

/* Ask who holds the lock; an earlier answer is forgotten. */
static void
begin_to_ask(int index)
{
	ZklEntry   *entry = &zkl_shared->entries[index];

	pg_atomic_fetch_and_u32(&entry->flags, ~(ZKL_FLAG_ASKED | ZKL_FLAG_ANSWERED));
	pg_atomic_fetch_or_u32(&entry->flags, ZKL_FLAG_ASKED);
	zkl_ring_doorbell(index);
}

/* Ask, and give the worker a moment to find out. */
static void
ask_holder(int index, ZklTime until)
{
	ZklEntry   *entry = &zkl_shared->entries[index];

	begin_to_ask(index);
	while ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0 && zkl_now() < until)
		sleep_on_latch((until - zkl_now()) / 1000);
}

/*
 * log_lock_waits: PostgreSQL logs who waits for longer than deadlock_timeout; so do
 * we, with the holder's server. "logged" counts how far we are: asked, logged.
 */
static void
log_wait(Wait *wait, ZklEntry *entry, ZklTime now, int *logged)
{
	ZklTime		log_at = wait->start + ZKL_MS(DeadlockTimeout);
	bool		answered = (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) != 0;
	char	   *holder;

	if (*logged == 0 && now >= log_at)
	{
		begin_to_ask(pending_entry);
		*logged = 1;
	}
	else if (*logged == 1 && (answered || now >= log_at + ZKL_MS(ASK_BEFORE_MS)))
	{
		*logged = 2;
		holder = describe_holder(entry);
		ereport(LOG,
				(errmsg("zklock: process %d still waiting for %s after %ld ms", MyProcPid,
						zkl_lock_label(wait->name), (long) ((now - wait->start) / 1000)),
				 holder != NULL ? errdetail("%s %u contenders are ahead.", holder,
											pg_atomic_read_u32(&entry->ahead)) :
				 errdetail("%u contenders are ahead.", pg_atomic_read_u32(&entry->ahead))));
	}
}

/*
 * While we wait for a lease our mutex was lost: whoever has it now must not find our
 * node in his way, since each would wait for the other.
 */
static bool
lost_turn(Wait *wait)
{
	if (pending_mutex < 0 ||
		(pg_atomic_read_u32(&zkl_shared->entries[pending_mutex].flags) & ZKL_FLAG_LOST) == 0)
		return false;
	let_pending_go();
	wait->turn_lost = true;
	return true;
}

/*
 * Wait for the lock. Returns its entry, granted and good, or NULL when a try
 * found it taken; everything else is an error.
 */
static ZklEntry *
wait_for_grant(Wait *wait)
{
	ZklEntry   *entry = submit(wait);
	bool		asked = false;
	int			logged = 0;

	for (;;)
	{
		ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
		ZklTime		now;
		ZklTime		left;

		pg_read_barrier();
		switch (phase)
		{
			case ZKL_PHASE_HELD:
				if (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST)
				{
					/* granted, and lost before we saw it: queue again */
					let_pending_go();
					if (wait->permits > 0)
					{
						wait->turn_lost = true;
						return NULL;
					}
					entry = submit(wait);
					asked = false;
					continue;
				}
				if (grant_is_good(entry))
				{
					if (logged == 2)
						ereport(LOG,
								(errmsg("zklock: process %d acquired %s after %ld ms", MyProcPid,
										zkl_lock_label(wait->name),
										(long) ((zkl_now() - wait->start) / 1000))));
					return entry;
				}
				break;
			case ZKL_PHASE_BUSY:
				if (wait->try)
				{
					let_pending_go();
					return NULL;
				}
				ask_holder(pending_entry, zkl_now() + ZKL_MS(ASK_AFTER_BUSY_MS));
				raise_timeout(wait, entry);
				break;
			case ZKL_PHASE_FAILED:
				raise_failed(wait, entry);
				break;
			default:
				break;
		}

		if (phase != ZKL_PHASE_HELD && lost_turn(wait))
			return NULL;
		now = zkl_now();
		if (wait->deadline == 0)
			left = ZKL_MS(1000);
		else
			left = wait->deadline - now;
		if (left <= 0)
		{
			uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

			/*
			 * The one trouble or the other: who is in the way says nothing
			 * while ZooKeeper does not answer. And "taken" must not be said
			 * of a lock that nobody was seen to hold: a job would believe
			 * that another server is at it.
			 */
			if (phase == ZKL_PHASE_WANTED && now < zkl_word_deadline(word) && !entry->try &&
				pg_atomic_read_u32(&entry->queued))
				raise_timeout(wait, entry);
			raise_unavailable(wait);
		}
		if (wait->deadline != 0 && !asked)
		{
			ZklTime		ask_at = wait->deadline -
				Min(ZKL_MS(ASK_BEFORE_MS), ZKL_MS(wait->timeout) / 2);

			if (now >= ask_at)
			{
				asked = true;
				begin_to_ask(pending_entry);
			}
			else
				left = Min(left, ask_at - now);
		}
		if (log_lock_waits && logged < 2)
		{
			log_wait(wait, entry, now, &logged);
			left = Min(left, logged == 1 ? ZKL_MS(ASK_BEFORE_MS) :
					   Max(wait->start + ZKL_MS(DeadlockTimeout) - now, 0));
		}
		sleep_on_latch((Min(left, ZKL_MS(1000)) + 999) / 1000);
		zkl_guard_check();
	}
}

/* Wait for a lock that this backend holds, and that lapsed, to be certain again. */
static void
wait_for_lease(Wait *wait, ZklHold *hold)
{
	while (!grant_is_good(&zkl_shared->entries[hold->entry]))
	{
		ZklTime		left = wait->deadline == 0 ? ZKL_MS(100) : wait->deadline - zkl_now();

		zkl_guard_refresh();
		if (hold->lost)
			zkl_guard_raise(hold);
		if (left <= 0)
			raise_unavailable(wait);
		sleep_on_latch(Min(left, ZKL_MS(100)) / 1000);
		zkl_guard_check();
	}
}

static void
warn_about_snapshot(void)
{
	if (!IsolationUsesXactSnapshot() || warned_lxid == MyProc->ZKL_LXID ||
		!(IsTransactionBlock() || zkl_guard_is_nested()))
		return;
	warned_lxid = MyProc->ZKL_LXID;
	ereport(WARNING,
			(errmsg("this transaction's snapshot is older than the lock"),
			 errdetail("It was taken before the lock was granted, so what the last holder wrote may not be visible in it."),
			 errhint("Acquire the lock before BEGIN, or use READ COMMITTED.")));
}

/* How many permits of this semaphore ("name" with its suffix) does this backend hold? */
static int
count_permits(const char *name)
{
	int			permits = 0;

	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].mode == ZKL_MODE_PERMIT && !zkl_holds[i].lost &&
			!zkl_holds[i].released && strcmp(zkl_holds[i].name, name) == 0)
			permits++;
	return permits;
}

/*
 * How many permits there are is what each caller says. If another says something
 * else, one of the two is wrong, and nobody can tell which.
 */
static void
warn_about_permits(ZklEntry *entry, int permits)
{
	ask_holder(pending_entry, zkl_now() + ZKL_MS(ASK_AFTER_BUSY_MS));
	pg_read_barrier();
	if ((pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_ANSWERED) == 0 ||
		entry->holder.permits == 0 || entry->holder.permits == permits)
		return;
	ereport(WARNING,
			(errmsg("%s is used with different numbers of leases", zkl_lock_label(entry->name)),
			 errdetail("This call says %d, server \"%s\", process %d said %d.", permits,
					   zkl_text_for_message(entry->holder.server), entry->holder.pid,
					   entry->holder.permits),
			 errhint("The larger number is what holds for those who use it.")));
}

/*
 * Returns the fencing token, or 0 when a try found the lock taken.
 */
static int64
acquire(Wait *wait)
{
	ZklHold    *hold;
	ZklEntry   *entry;

	reserve_hold();
	zkl_guard_refresh();
	supersede_lost(wait->name, wait->xact_level);
	zkl_guard_check();

	hold = find_mode(wait->name, wait->mode);
	/* each lease of a semaphore is one more, unless one was not quite given back */
	if (hold != NULL && (wait->permits == 0 || hold->released))
	{
		wait_for_lease(wait, hold);
		drop_superseded();		/* which moves holds */
		hold = find_mode(wait->name, wait->mode);
		reserve_level(hold);
		count_acquire(hold, wait->xact_level);
		return hold->token;
	}
	if (wait->permits == 0 && (hold = zkl_locks_find(wait->name)) != NULL)
	{
		if (wait->mode != ZKL_MODE_READ || hold->mode != ZKL_MODE_WRITE)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("%s is held in another mode", zkl_lock_label(wait->name)),
					 errdetail("This backend holds it in mode \"%s\" and would wait for itself.",
							   zkl_mode_name(hold->mode)),
					 hold->mode == ZKL_MODE_EXCLUSIVE ?
					 errhint("Release it first. Only \"write\" can be downgraded, to \"read\".") :
					 errhint("Release it first.")));
		wait->downgrade = hold;
	}

	entry = wait_for_grant(wait);
	if (entry == NULL)
	{
		restore_superseded();
		return 0;
	}
	if (wait->permits > 0 && pg_atomic_read_u32(&entry->ahead) > 0)
		warn_about_permits(entry, wait->permits);
	drop_superseded();
	hold = add_hold(wait->name, pending_entry, wait->mode, entry->token);
	pending_entry = -1;
	/* if this fails, the end of the transaction drops a hold without counts */
	reserve_level(hold);
	count_acquire(hold, wait->xact_level);
	zkl_guard_granted();
	warn_about_snapshot();
	return hold->token;
}

/*
 * Curator's two steps: a mutex puts those who want to wait for a lease in order, and
 * who has it waits until fewer than "leases" nodes are before his own. Who does not
 * want to wait needs no turn: either so many nodes are there, or his own comes among
 * the first (queue.h says why that is no lease too many). A try that had to queue for
 * the mutex could come back with no answer, and none is not "taken".
 *
 * Returns a number that is unique but fences nothing, or 0 when a try saw all permits
 * taken.
 */
static int64
acquire_permit(const char *semaphore, int permits, bool try, int timeout)
{
	char		locks[ZKL_NAME_MAX + 1];
	char		name[ZKL_NAME_MAX + 1];
	Wait		turn = {.name = locks, .mode = ZKL_MODE_EXCLUSIVE, .turn = true};
	Wait		wait = {.name = name, .mode = ZKL_MODE_PERMIT, .permits = permits};
	ZklHold    *hold;
	int			held;
	int64		token;

	snprintf(locks, sizeof(locks), "%s" ZKL_SEMAPHORE_LOCKS, semaphore);
	snprintf(name, sizeof(name), "%s" ZKL_SEMAPHORE_LEASES, semaphore);
	begin_wait(&wait, try, timeout);
	held = count_permits(name);
	if (held >= permits && try)
		return 0;
	if (held >= permits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this backend holds all leases of %s", zkl_lock_label(name)),
				 errdetail("It holds %d and would wait for itself.", held),
				 errhint("Release one first.")));

	reserve_hold();
again:
	zkl_guard_refresh();
	supersede_lost(name, false);
	zkl_guard_check();
	hold = find_mode(name, ZKL_MODE_PERMIT);
	if (!try && wait.timeout != 0 && (hold == NULL || !hold->released))
	{
		turn.timeout = wait.timeout;
		turn.start = wait.start;
		turn.by_lock_timeout = wait.by_lock_timeout;
		turn.deadline = wait.deadline;
		(void) wait_for_grant(&turn);
		pending_mutex = pending_entry;
		pending_entry = -1;
	}
	wait.turn_lost = false;
	token = acquire(&wait);
	if (token == 0 && wait.turn_lost)
		goto again;				/* within the same deadline */
	let_pending_go();
	return token;
}

/* ------------------------------------------------------------------------
 * SQL
 * ------------------------------------------------------------------------
 */

static Datum
sql_acquire(FunctionCallInfo fcinfo, bool xact_level, bool try)
{
	char		name[ZKL_NAME_MAX + 1];
	Wait		wait = {.name = name};
	int64		token;

	require_worker_process();
	name_argument(fcinfo, name);
	wait.mode = mode_argument(fcinfo, 1);
	wait.xact_level = xact_level;
	begin_wait(&wait, try, try ? 0 : timeout_argument(fcinfo, 2));
	PG_TRY();
	{
		token = acquire(&wait);
	}
	PG_CATCH();
	{
		let_pending_go();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* zk_lock_acquire(name text, mode text, timeout interval) returns bigint */
Datum
zkl_lock_acquire(PG_FUNCTION_ARGS)
{
	return sql_acquire(fcinfo, false, false);
}

/* zk_lock_try_acquire(name text, mode text) returns bigint */
Datum
zkl_lock_try_acquire(PG_FUNCTION_ARGS)
{
	return sql_acquire(fcinfo, false, true);
}

/* zk_xact_lock_acquire(name text, mode text, timeout interval) returns bigint */
Datum
zkl_xact_lock_acquire(PG_FUNCTION_ARGS)
{
	return sql_acquire(fcinfo, true, false);
}

/* zk_xact_lock_try_acquire(name text, mode text) returns bigint */
Datum
zkl_xact_lock_try_acquire(PG_FUNCTION_ARGS)
{
	return sql_acquire(fcinfo, true, true);
}

static ZklHold *
find_backend_hold(const char *name, ZklMode mode)
{
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].mode == mode && zkl_holds[i].backend_count > 0 &&
			strcmp(zkl_holds[i].name, name) == 0)
			return &zkl_holds[i];
	return NULL;
}

/*
 * Is it still ours to give back? What has lapsed may be somebody else's by now, and
 * comes back only if the ZooKeeper session does. For the statistics that is a loss.
 */
static bool
is_ours_to_release(const ZklHold *hold)
{
	if (hold->lost)
		return false;
	if (zkl_guard_is_certain(hold))
		return true;
	pg_atomic_fetch_or_u32(&zkl_shared->entries[hold->entry].flags, ZKL_FLAG_UNCERTAIN);
	return false;
}

/* Give back one backend-level hold; "hold" may be NULL. */
static bool
release(const char *name, ZklHold *hold)
{
	bool		ours;

	if (hold == NULL)
	{
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("you don't own a backend-level %s", zkl_lock_label(name))));
		return false;
	}
	if (hold->lost)
	{
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%s had been lost", zkl_lock_label(name)),
				 hold->loss == ZKL_LOSS_EXPIRED ? errdetail("The ZooKeeper session ended.") :
				 hold->loss == ZKL_LOSS_VANISHED ? errdetail("Its node in ZooKeeper was deleted.") :
				 errdetail("It was taken away by %s.",
						   zkl_text_for_message(zkl_shared->entries[hold->entry].breaker))));
		drop_hold(hold);
		return false;
	}
	ours = is_ours_to_release(hold);
	if (!ours)
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%s had lapsed", zkl_lock_label(name)),
				 errdetail("ZooKeeper did not confirm in time that this server still holds it; another client may hold it by now.")));
	hold->backend_count--;
	note_backend_release(hold);
	publish_levels(hold);
	if (is_unused(hold))
		give_back(hold);
	return ours;
}

/* zk_lock_release(name text, mode text) returns boolean */
Datum
zkl_lock_release(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold = NULL;

	require_worker_process();
	name_argument(fcinfo, name);
	zkl_guard_refresh();
	if (!PG_ARGISNULL(1))
		PG_RETURN_BOOL(release(name, find_backend_hold(name, mode_argument(fcinfo, 1))));

	for (int mode = ZKL_MODE_EXCLUSIVE; mode <= ZKL_MODE_WRITE; mode++)
	{
		ZklHold    *other = find_backend_hold(name, mode);

		if (other != NULL && hold != NULL && !other->lost && !hold->lost)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("lock \"%s\" is held in two modes", zkl_text_for_message(name)),
					 errhint("Say which is to be released.")));
		/* a lost one first */
		if (other != NULL && (hold == NULL || other->lost))
			hold = other;
	}
	PG_RETURN_BOOL(release(name, hold));
}

/* zk_lock_release_all() returns integer */
Datum
zkl_lock_release_all(PG_FUNCTION_ARGS)
{
	int			lapsed = 0;

	require_worker_process();
	zkl_guard_refresh();
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].backend_count > 0 && !zkl_holds[i].lost &&
			!is_ours_to_release(&zkl_holds[i]))
			lapsed++;
	/* of those that are lost each statement has told */
	if (lapsed > 0)
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%d of these locks had lapsed", lapsed)));
	PG_RETURN_INT32(zkl_locks_release_all());
}

/*
 * The only hold whose name has the bytes of the first argument, where those are UTF-8:
 * a name that we hold needs no other check. NULL means nothing.
 */
static ZklHold *
find_as_given(FunctionCallInfo fcinfo)
{
	ZklHold    *found = NULL;
	text	   *given;

	if (zkl_nholds == 0 || PG_ARGISNULL(0) || GetDatabaseEncoding() != PG_UTF8)
		return NULL;
	given = PG_GETARG_TEXT_PP(0);
	for (int i = 0; i < zkl_nholds; i++)
	{
		ZklHold    *hold = &zkl_holds[i];

		if (hold->name_len != VARSIZE_ANY_EXHDR(given) ||
			memcmp(hold->name, VARDATA_ANY(given), hold->name_len) != 0)
			continue;
		if (found != NULL || hold->released || hold->superseded || hold->mode == ZKL_MODE_PERMIT)
			return NULL;
		found = hold;
	}
	return found;
}

/* zk_fencing_token(name text) returns bigint */
Datum
zkl_fencing_token(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;

	hold = InSecurityRestrictedOperation() ? NULL : find_as_given(fcinfo);
	if (hold != NULL && zkl_guard_check_hold(hold))
		PG_RETURN_INT64(hold->token);

	require_worker_process();
	name_argument(fcinfo, name);
	zkl_guard_check();
	hold = zkl_locks_find(name);
	if (hold == NULL || hold->released)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lock \"%s\" is not held by this backend", zkl_text_for_message(name)),
				 errhint("Acquire it with zk_lock_acquire or zk_xact_lock_acquire first.")));
	if (!zkl_guard_is_certain(hold))
		zkl_guard_raise(hold);
	PG_RETURN_INT64(hold->token);
}

/* zk_lock_is_held(name text) returns boolean */
Datum
zkl_lock_is_held(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;

	require_worker_process();
	name_argument(fcinfo, name);
	zkl_guard_refresh();
	hold = zkl_locks_find(name);
	PG_RETURN_BOOL(hold != NULL && !hold->released && zkl_guard_is_certain(hold));
}

/* ------------------------------------------------------------------------
 * Semaphores
 * ------------------------------------------------------------------------
 */

/* name_argument(), with room for the directories below it. */
static void
semaphore_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1])
{
	name_argument(fcinfo, name);
	if (strlen(name) + strlen(ZKL_SEMAPHORE_LEASES) > ZKL_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name of a semaphore is too long"),
				 errdetail("It may have %d bytes.",
						   (int) (ZKL_NAME_MAX - strlen(ZKL_SEMAPHORE_LEASES)))));
}

static Datum
sql_semaphore_acquire(FunctionCallInfo fcinfo, bool try)
{
	char		name[ZKL_NAME_MAX + 1];
	int32		permits;
	int			timeout;
	int64		token;

	require_worker_process();
	semaphore_argument(fcinfo, name);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("number of leases must not be null")));
	permits = PG_GETARG_INT32(1);
	if (permits < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of leases must be at least 1")));
	timeout = try ? 0 : timeout_argument(fcinfo, 2);
	PG_TRY();
	{
		token = acquire_permit(name, permits, try, timeout);
	}
	PG_CATCH();
	{
		let_pending_go();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* zk_semaphore_acquire(name text, permits integer, timeout interval) returns bigint */
Datum
zkl_semaphore_acquire(PG_FUNCTION_ARGS)
{
	return sql_semaphore_acquire(fcinfo, false);
}

/* zk_semaphore_try_acquire(name text, permits integer) returns bigint */
Datum
zkl_semaphore_try_acquire(PG_FUNCTION_ARGS)
{
	return sql_semaphore_acquire(fcinfo, true);
}

/* zk_semaphore_release(name text) returns boolean */
Datum
zkl_semaphore_release(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;

	require_worker_process();
	semaphore_argument(fcinfo, name);
	strlcat(name, ZKL_SEMAPHORE_LEASES, sizeof(name));
	zkl_guard_refresh();
	hold = find_backend_hold(name, ZKL_MODE_PERMIT);
	/* of several, a lost one first */
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].lost && strcmp(zkl_holds[i].name, name) == 0)
			hold = &zkl_holds[i];
	PG_RETURN_BOOL(release(name, hold));
}
