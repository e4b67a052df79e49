/*-------------------------------------------------------------------------
 *
 * swallow.c
 *	  Functions that do what the worst of extensions and languages do with errors.
 *
 * PL/pgSQL looks for interrupts before each statement, also between two blocks that
 * catch everything. Other languages do not, so what they catch is caught for good.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(swallow_blind);
PG_FUNCTION_INFO_V1(swallow_forever);

/*
 * Run a prepared statement in a subtransaction. Returns 0, or the SQLSTATE of the error, which
 * is gone.
 */
static int
try_plan(SPIPlanPtr plan)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile int code = 0;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (SPI_execute_plan(plan, NULL, NULL, false, 0) < 0)
			elog(ERROR, "SPI_execute_plan failed");
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		code = geterrcode();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return code;
}

static SPIPlanPtr
prepare(const char *sql)
{
	SPIPlanPtr	plan;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	plan = SPI_prepare(sql, 0, NULL);
	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed");
	return plan;
}

/* Work for so many seconds without a look at interrupts, then run a statement as in a
 * block with WHEN OTHERS. Returns the SQLSTATE that this caught. */
Datum
swallow_blind(PG_FUNCTION_ARGS)
{
	double		seconds = PG_GETARG_FLOAT8(0);
	SPIPlanPtr	plan = prepare(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	instr_time	start;
	instr_time	now;
	int			code;

	/* planned the first time, which looks at interrupts */
	(void) try_plan(plan);
	INSTR_TIME_SET_CURRENT(start);
	do
	{
		pg_usleep(10000);
		INSTR_TIME_SET_CURRENT(now);
		INSTR_TIME_SUBTRACT(now, start);
	} while (INSTR_TIME_GET_DOUBLE(now) < seconds);

	code = try_plan(plan);
	SPI_finish();
	if (code == ERRCODE_QUERY_CANCELED)
		ereport(ERROR, (errcode(code), errmsg("canceled")));
	/* a notice is out before anybody looks at interrupts again */
	ereport(NOTICE, (errmsg("caught %s", unpack_sql_state(code))));
	PG_RETURN_TEXT_P(cstring_to_text(unpack_sql_state(code)));
}

/* Catch whatever comes, and go on. */
Datum
swallow_forever(PG_FUNCTION_ARGS)
{
	SPIPlanPtr	plan = prepare("SELECT pg_sleep(60)");

	for (;;)
		(void) try_plan(plan);
}
