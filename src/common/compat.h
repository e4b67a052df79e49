/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Teaches older servers the newest server's names.
 *
 * The code is written against PostgreSQL 18. Each entry says which version
 * brought the name, so that it can go when that version is the oldest one
 * supported. Include it after the server headers that a file needs.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_COMPAT_H
#define ZKL_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "zklock needs PostgreSQL 15 or later"
#endif

#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif

/* 16: what is in a varlena has a header of its own; before, it was in postgres.h. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 16: PGDLLEXPORT means "visible" on all platforms, also under -fvisibility=hidden. */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#endif

/* 17: a process's number among the PGPROCs. */
#if PG_VERSION_NUM < 170000
typedef int ProcNumber;
#define INVALID_PROC_NUMBER (-1)
#define MyProcNumber (MyProc->pgprocno)
#endif

/* 17: predicates by process type. */
#if PG_VERSION_NUM < 170000
#define AmAutoVacuumWorkerProcess() IsAutoVacuumWorkerProcess()
#endif

/* 17: named wait events of extensions; before, all are called "Extension". */
#if PG_VERSION_NUM < 170000
#define WaitEventExtensionNew(name) ((uint32) PG_WAIT_EXTENSION)
#endif

/* 17: a wait event set belongs to a resource owner instead of a memory context;
 * ours lives as long as its process. */
#if PG_VERSION_NUM < 170000
#define ZKL_WAIT_SET_OWNER TopMemoryContext
#else
#define ZKL_WAIT_SET_OWNER NULL
#endif

/* 17: a process's virtual transaction id became a struct. */
#if PG_VERSION_NUM < 170000
#define ZKL_LXID lxid
#else
#define ZKL_LXID vxid.lxid
#endif

/* 18: ExecutorRun lost its last parameter. */
#if PG_VERSION_NUM < 180000
#define ZKL_EXECUTOR_RUN_PARAMS QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool execute_once
#define ZKL_EXECUTOR_RUN_ARGS queryDesc, direction, count, execute_once
#else
#define ZKL_EXECUTOR_RUN_PARAMS QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define ZKL_EXECUTOR_RUN_ARGS queryDesc, direction, count
#endif

/* 18: pg_noreturn stands before a declaration; before, a macro stood behind it. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 18: an index scan may be watched by EXPLAIN. */
#if PG_VERSION_NUM < 180000
#define ZKL_INDEX_BEGINSCAN(heap, index, snapshot, nkeys) index_beginscan(heap, index, snapshot, nkeys, 0)
#else
#define ZKL_INDEX_BEGINSCAN(heap, index, snapshot, nkeys) index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#endif

/* 18: the module says its name and version. */
#if PG_VERSION_NUM < 180000
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

#endif							/* ZKL_COMPAT_H */
