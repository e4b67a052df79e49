/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of results, under construction.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "backend/row.h"
#include "backend/text.h"

void
zkl_row_put(ZklRow *row, Datum value)
{
	row->values[row->n] = value;
	row->nulls[row->n++] = false;
}

void
zkl_row_put_null(ZklRow *row)
{
	row->values[row->n] = (Datum) 0;
	row->nulls[row->n++] = true;
}

/* Text as it is kept in shared memory: UTF-8, "" for none. */
void
zkl_row_put_text(ZklRow *row, const char *utf8)
{
	if (utf8[0] == '\0')
		zkl_row_put_null(row);
	else
		zkl_row_put(row, CStringGetTextDatum(zkl_text_for_message(utf8)));
}

void
zkl_row_put_int(ZklRow *row, int64 value)
{
	zkl_row_put(row, Int64GetDatum(value));
}

void
zkl_row_put_counter(ZklRow *row, pg_atomic_uint64 *counter)
{
	zkl_row_put_int(row, (int64) pg_atomic_read_u64(counter));
}

void
zkl_row_put_interval(ZklRow *row, ZklTime time)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = time;
	zkl_row_put(row, IntervalPGetDatum(interval));
}

/* A time of the lease's clock as one of the wall clock, as that stands now. */
void
zkl_row_put_time(ZklRow *row, ZklTime time)
{
	if (time == 0)
		zkl_row_put_null(row);
	else
		zkl_row_put(row, TimestampTzGetDatum(GetCurrentTimestamp() - (zkl_now() - time)));
}

void
zkl_row_put_histogram(ZklRow *row, const uint64 buckets[ZKL_STATS_BUCKETS])
{
	Datum		elements[ZKL_STATS_BUCKETS];

	for (int i = 0; i < ZKL_STATS_BUCKETS; i++)
		elements[i] = Int64GetDatum((int64) buckets[i]);
	zkl_row_put(row, PointerGetDatum(construct_array(elements, ZKL_STATS_BUCKETS, INT8OID,
													 sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)));
}

void
zkl_row_finish(FunctionCallInfo fcinfo, ZklRow *row)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	Assert(row->n == rsinfo->setDesc->natts);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row->values, row->nulls);
	row->n = 0;
}

Datum
zkl_row_only(FunctionCallInfo fcinfo, ZklRow *row)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), row->values, row->nulls));
}
