/*-------------------------------------------------------------------------
 *
 * locks.c
 *	  The SQL functions by which a backend takes and gives back locks.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "backend/acquire.h"
#include "backend/functions.h"
#include "backend/guard.h"
#include "backend/release.h"
#include "backend/text.h"
#include "common/errors.h"

#define DEFINE_FUNCTION(f) PG_FUNCTION_INFO_V1(f);
ZKL_LOCK_FUNCTIONS(DEFINE_FUNCTION)

static Datum
acquire(FunctionCallInfo fcinfo, bool xact_level, bool try)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklMode		mode;
	int			timeout;
	int64		token;

	zkl_refuse_wrong_process();
	zkl_name_argument(fcinfo, name);
	mode = zkl_mode_argument(fcinfo, 1);
	timeout = try ? 0 : zkl_timeout_argument(fcinfo, 2);
	token = zkl_acquire(name, mode, xact_level, try, timeout);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* zk_lock_acquire(name text, mode text, timeout interval) returns bigint */
Datum
zkl_lock_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, false, false);
}

/* zk_lock_try_acquire(name text, mode text) returns bigint */
Datum
zkl_lock_try_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, false, true);
}

/* zk_xact_lock_acquire(name text, mode text, timeout interval) returns bigint */
Datum
zkl_xact_lock_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, true, false);
}

/* zk_xact_lock_try_acquire(name text, mode text) returns bigint */
Datum
zkl_xact_lock_try_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, true, true);
}

/* zk_lock_release(name text, mode text) returns boolean */
Datum
zkl_lock_release(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold = NULL;

	zkl_refuse_wrong_process();
	zkl_name_argument(fcinfo, name);
	zkl_guard_refresh();
	if (!PG_ARGISNULL(1))
		PG_RETURN_BOOL(zkl_release(name, zkl_find_backend_hold(name, zkl_mode_argument(fcinfo, 1))));

	for (int mode = ZKL_MODE_EXCLUSIVE; mode <= ZKL_MODE_WRITE; mode++)
	{
		ZklHold    *other = zkl_find_backend_hold(name, mode);

		if (other != NULL && hold != NULL && other->loss == ZKL_LOSS_NONE && hold->loss == ZKL_LOSS_NONE)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("lock \"%s\" is held in two modes", zkl_text_for_message(name)),
					 errhint("Say which is to be released.")));
		/* a lost one first */
		if (other != NULL && (hold == NULL || other->loss != ZKL_LOSS_NONE))
			hold = other;
	}
	PG_RETURN_BOOL(zkl_release(name, hold));
}

/* zk_lock_release_all() returns integer */
Datum
zkl_lock_release_all(PG_FUNCTION_ARGS)
{
	int			lapsed = 0;

	zkl_refuse_wrong_process();
	zkl_guard_refresh();
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].backend_count > 0 && zkl_holds[i].loss == ZKL_LOSS_NONE &&
			!zkl_is_ours_to_release(&zkl_holds[i]))
			lapsed++;
	/* of those that are lost each statement has told */
	if (lapsed > 0)
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%d of these locks had lapsed", lapsed)));
	PG_RETURN_INT32(zkl_holds_release_all());
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
		if (found != NULL || hold->state == ZKL_HOLD_RELEASED || hold->superseded || hold->mode == ZKL_MODE_PERMIT)
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

	zkl_refuse_wrong_process();
	zkl_name_argument(fcinfo, name);
	zkl_guard_check();
	hold = zkl_holds_find(name);
	if (hold == NULL || hold->state == ZKL_HOLD_RELEASED)
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

	zkl_refuse_wrong_process();
	zkl_name_argument(fcinfo, name);
	zkl_guard_refresh();
	hold = zkl_holds_find(name);
	PG_RETURN_BOOL(hold != NULL && hold->state != ZKL_HOLD_RELEASED && zkl_guard_is_certain(hold));
}
