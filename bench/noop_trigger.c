/*-------------------------------------------------------------------------
 *
 * noop_trigger.c
 *	  A trigger function that does nothing: what a trigger in C costs at least.
 *
 * Built and used by bench/fence only.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PGDLLEXPORT Datum noop_trigger(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(noop_trigger);

Datum
noop_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *call = (TriggerData *) fcinfo->context;

	return PointerGetDatum(TRIGGER_FIRED_FOR_ROW(call->tg_event) ? call->tg_trigtuple : NULL);
}
