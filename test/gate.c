/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  A wait that a test ends, on a clock that no test sets.
 *
 * gate_wait(pid, ms) returns true once there is no process pid, false after so many
 * milliseconds. A cancel ends it as it ends pg_sleep, which before PostgreSQL 16 runs on
 * the wall clock.
 *
 * gate_notify() takes the lock that each COMMIT with a NOTIFY waits for, to the end of the
 * transaction.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "catalog/pg_database.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(gate_wait);
PG_FUNCTION_INFO_V1(gate_notify);

Datum
gate_wait(PG_FUNCTION_ARGS)
{
	pid_t		pid = PG_GETARG_INT32(0);
	double		limit = PG_GETARG_INT32(1);
	instr_time	start;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(start);
	while (kill(pid, 0) == 0)
	{
		double		left;

		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		left = limit - INSTR_TIME_GET_MILLISEC(now);
		if (left <= 0)
			PG_RETURN_BOOL(false);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 left < 100 ? (long) left + 1 : 100, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	PG_RETURN_BOOL(true);
}

Datum
gate_notify(PG_FUNCTION_ARGS)
{
	LockSharedObject(DatabaseRelationId, InvalidOid, 0, AccessExclusiveLock);
	PG_RETURN_VOID();
}
