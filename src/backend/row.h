/*-------------------------------------------------------------------------
 *
 * row.h
 *	  Rows of results, under construction.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ROW_H
#define ZKL_ROW_H

#include "fmgr.h"

#include "common/clock.h"
#include "shared/stats.h"

/* Columns are put in their order. */
typedef struct ZklRow
{
	Datum		values[32];
	bool		nulls[32];
	int			n;
} ZklRow;

extern void zkl_row_put(ZklRow *row, Datum value);
extern void zkl_row_put_null(ZklRow *row);

/* Text as it is kept in shared memory: UTF-8, "" for none. */
extern void zkl_row_put_text(ZklRow *row, const char *utf8);
extern void zkl_row_put_int(ZklRow *row, int64 value);
extern void zkl_row_put_counter(ZklRow *row, pg_atomic_uint64 *counter);
extern void zkl_row_put_interval(ZklRow *row, ZklTime time);

/* A time of the lease's clock as one of the wall clock, as that stands now; 0 is null. */
extern void zkl_row_put_time(ZklRow *row, ZklTime time);
extern void zkl_row_put_histogram(ZklRow *row, const uint64 buckets[ZKL_STATS_BUCKETS]);

/* The row is complete: one of a set, or the result of the function. */
extern void zkl_row_finish(FunctionCallInfo fcinfo, ZklRow *row);
extern Datum zkl_row_only(FunctionCallInfo fcinfo, ZklRow *row);

#endif							/* ZKL_ROW_H */
