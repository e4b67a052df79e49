/*-------------------------------------------------------------------------
 *
 * semaphore.c
 *	  The SQL functions of semaphores.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"


#include "backend/acquire.h"
#include "backend/functions.h"
#include "backend/guard.h"
#include "backend/release.h"
#include "backend/text.h"

/* zkl_name_argument(), with room for the directories below it. */
static void
semaphore_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1])
{
	zkl_name_argument(fcinfo, name);
	if (strlen(name) + strlen(ZKL_SEMAPHORE_LEASES) > ZKL_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name of a semaphore is too long"),
				 errdetail("It may have %d bytes.",
						   (int) (ZKL_NAME_MAX - strlen(ZKL_SEMAPHORE_LEASES)))));
}

static Datum
acquire(FunctionCallInfo fcinfo, bool try)
{
	char		name[ZKL_NAME_MAX + 1];
	int32		permits;
	int			timeout;
	int64		token;

	zkl_refuse_wrong_process();
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
	timeout = try ? 0 : zkl_timeout_argument(fcinfo, 2);
	token = zkl_acquire_permit(name, permits, try, timeout);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* zk_semaphore_acquire(name text, leases integer, timeout interval) returns bigint */
Datum
zkl_semaphore_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, false);
}

/* zk_semaphore_try_acquire(name text, leases integer) returns bigint */
Datum
zkl_semaphore_try_acquire(PG_FUNCTION_ARGS)
{
	return acquire(fcinfo, true);
}

/* zk_semaphore_release(name text) returns boolean */
Datum
zkl_semaphore_release(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;

	zkl_refuse_wrong_process();
	semaphore_argument(fcinfo, name);
	strlcat(name, ZKL_SEMAPHORE_LEASES, sizeof(name));
	zkl_guard_refresh();
	hold = zkl_find_backend_hold(name, ZKL_MODE_PERMIT);
	/* of several, a lost one first */
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].loss != ZKL_LOSS_NONE && strcmp(zkl_holds[i].name, name) == 0)
			hold = &zkl_holds[i];
	PG_RETURN_BOOL(zkl_release(name, hold));
}
