/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Text: what users say, and what they are told.
 *
 * Names are UTF-8 in shared memory and with the coordinator, and in the database's
 * encoding in messages and arguments.
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
#include "common/string.h"
#include "mb/pg_wchar.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"

#include "backend/text.h"
#include "common/compat.h"
#include "common/settings.h"
#include "shared/shmem.h"

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

/* What is wrong with the name that was given, for an error's detail. */
static char *
name_detail(const char *given, ZklNameFault fault)
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

/* "what": of what it is the name. The hint is what to write instead. */
static void
check_name(const char *given, char name[ZKL_NAME_MAX + 1], const char *what,
		   char *(*hint) (const char *given, ZklNameFault fault))
{
	const char *utf8 = given;
	ZklNameFault fault;
	int			shown;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		utf8 = pg_server_to_any(given, strlen(given), PG_UTF8);
	fault = zkl_name_fault(utf8, strlen(utf8));
	if (fault.error == ZKL_NAME_OK)
	{
		strlcpy(name, utf8, ZKL_NAME_MAX + 1);
		return;
	}
	shown = pg_mbcliplen(given, strlen(given), 64);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s name \"%.*s\"%s", what, shown, given,
					given[shown] != '\0' ? "..." : ""),
			 errdetail("%s", name_detail(given, fault)),
			 errhint("%s", hint(given, fault))));
}

void
zkl_check_name(const char *given, char name[ZKL_NAME_MAX + 1])
{
	check_name(given, name, "lock", name_hint);
}

static char *
resource_hint(const char *given, ZklNameFault fault)
{
	return pstrdup("A resource has the name of the lock whose tokens it is fenced by.");
}

void
zkl_check_resource(const char *given, char name[ZKL_NAME_MAX + 1])
{
	check_name(given, name, "resource", resource_hint);
}

void
zkl_name_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1])
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock name must not be null")));
	zkl_check_name(text_to_cstring(PG_GETARG_TEXT_PP(0)), name);
}

ZklMode
zkl_mode_argument(FunctionCallInfo fcinfo, int argno)
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

int
zkl_timeout_argument(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		return zkl_acquire_timeout == 0 ? ZKL_WAIT_FOREVER : zkl_acquire_timeout;
	return zkl_interval_ms(PG_GETARG_INTERVAL_P(argno));
}

void
zkl_format_now(char *buf, size_t size)
{
	pg_time_t	now = (pg_time_t) time(NULL);

	pg_strftime(buf, size, "%Y-%m-%d %H:%M:%SZ", pg_gmtime(&now));
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

/* ------------------------------------------------------------------------
 * Who may call
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

void
zkl_refuse_wrong_process(void)
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
