/*-------------------------------------------------------------------------
 *
 * text.h
 *	  Text: what users say, and what they are told.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_TEXT_H
#define ZKL_TEXT_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#include "common/lockname.h"

#define ZKL_WAIT_FOREVER	(-1)

/* A name for a message: in the database's encoding, whatever it holds. palloc'd. */
extern char *zkl_text_for_message(const char *utf8);

/* What a message calls the lock of this name: lock "x", or semaphore "x". palloc'd. */
extern char *zkl_lock_label(const char *name);

/* What messages call the coordinator in use. */
extern const char *zkl_coordinator_name(void);

/* A string of this database as UTF-8, cut if need be; NULL is "". */
extern void zkl_copy_as_utf8(char *to, size_t size, const char *from);

/*
 * A lock's name as UTF-8, or an error. Names are compared byte by byte, on all
 * servers, so they must not depend on a database's encoding.
 */
extern void zkl_check_name(const char *given, char name[ZKL_NAME_MAX + 1]);

/* The same for a resource, which has the name of the lock that it is fenced by. */
extern void zkl_check_resource(const char *given, char name[ZKL_NAME_MAX + 1]);

/* Arguments of SQL functions, or an error: the first as a lock's name, this one as a
 * mode, and as a timeout in ms, where NULL means zklock.acquire_timeout. */
extern void zkl_name_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1]);
extern ZklMode zkl_mode_argument(FunctionCallInfo fcinfo, int argno);
extern int	zkl_timeout_argument(FunctionCallInfo fcinfo, int argno);

/* Milliseconds of an interval argument, or an error. */
extern int	zkl_interval_ms(Interval *interval);

/* The time of day in UTC, so that servers in different zones can be compared. */
extern void zkl_format_now(char *buf, size_t size);

/*
 * Sleep until the latch is set, at most "ms"; interruptible. The wait event called
 * "name" is kept in "wait_event", which begins as 0.
 */
extern void zkl_sleep(long ms, uint32 *wait_event, const char *name);

/* An error unless the library was preloaded. */
extern void zkl_require_preload(void);

/* An error in code that maintenance commands run as a table's owner. */
extern void zkl_refuse_restricted(void);

/* Both, and an error in processes that must not hold locks. */
extern void zkl_refuse_wrong_process(void);

#endif							/* ZKL_TEXT_H */
