/*-------------------------------------------------------------------------
 *
 * slow_callbacks.c
 *	  A library that takes its time at the end of a transaction.
 *
 * It stands for one that works on other servers there. Its callbacks wait for
 * slow.pre_commit and slow.abort (ms; also when a subtransaction aborts), the first of
 * them interruptible, as libpq's waits are. Preloaded before zklock it is called after it.
 * slow_register() registers them once more, as some do when they are first used.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(slow_register);

extern __attribute__((visibility("default")))
void		_PG_init(void);

static int	pre_commit_ms = 0;
static int	abort_ms = 0;

static void
wait_for(int ms, bool interruptible)
{
	instr_time	start;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
		if (INSTR_TIME_GET_MILLISEC(now) >= ms)
			return;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (interruptible)
			CHECK_FOR_INTERRUPTS();
	}
}

static void
on_xact(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT)
		wait_for(pre_commit_ms, true);
	else if (event == XACT_EVENT_ABORT)
		wait_for(abort_ms, false);
}

static void
on_subxact(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		wait_for(abort_ms, false);
}

void
_PG_init(void)
{
	DefineCustomIntVariable("slow.pre_commit", "Milliseconds to wait before a commit.", NULL,
							&pre_commit_ms, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("slow.abort", "Milliseconds to wait at an abort.", NULL,
							&abort_ms, 0, 0, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(on_xact, NULL);
	RegisterSubXactCallback(on_subxact, NULL);
}

Datum
slow_register(PG_FUNCTION_ARGS)
{
	RegisterXactCallback(on_xact, NULL);
	RegisterSubXactCallback(on_subxact, NULL);
	PG_RETURN_VOID();
}
