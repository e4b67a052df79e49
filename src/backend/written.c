/*-------------------------------------------------------------------------
 *
 * written.c
 *	  Has this transaction written something that others will see?
 *
 * See written.h. When in doubt the answer is yes: a lock is then kept to the end
 * of the transaction, which costs the next holder a moment.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "commands/async.h"
#include "commands/extension.h"

#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/parsetree.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "backend/written.h"
#include "common/compat.h"

volatile sig_atomic_t zkl_written_elsewhere = ZKL_WRITTEN_NOTHING;

/* Functions that were looked up in the catalog, by OID; forgotten when one changes. */
#define KNOWN_FUNCTIONS		64

static struct
{
	Oid			oid;
	bool		is_dblink;
}			known_functions[KNOWN_FUNCTIONS];
static bool callback_registered = false;

bool
zkl_notify_is_pending(void)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		interrupts = InterruptHoldoffCount;
	uint32		cancels = QueryCancelHoldoffCount;
	volatile bool pending = false;

	/*
	 * async.c keeps it to itself, but for PREPARE TRANSACTION, which refuses
	 * a transaction of that kind and does nothing else.
	 */
	PG_TRY();
	{
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		/* an error forgets that interrupts were held off */
		InterruptHoldoffCount = interrupts;
		QueryCancelHoldoffCount = cancels;
		pending = true;
	}
	PG_END_TRY();
	return pending;
}

bool
zkl_has_written(void)
{
	return TransactionIdIsValid(GetTopTransactionIdIfAny()) || zkl_written_elsewhere != ZKL_WRITTEN_NOTHING ||
		zkl_notify_is_pending();
}

void
zkl_written_note_notify(void)
{
	if (zkl_written_elsewhere == ZKL_WRITTEN_NOTHING &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny()) && zkl_notify_is_pending())
		zkl_written_elsewhere = ZKL_WRITTEN_HERE;
}

void
zkl_written_forget(void)
{
	zkl_written_elsewhere = ZKL_WRITTEN_NOTHING;
}

/* A row of a partitioned table may go to a foreign partition: that shows only later. */
static bool
is_elsewhere(char relkind)
{
	return relkind == RELKIND_FOREIGN_TABLE || relkind == RELKIND_PARTITIONED_TABLE;
}

/*
 * Foreign data wrappers that this process has used. Few have more than one or two; of
 * more than there is room for, each counts as new.
 */
static Oid	known_wrappers[16];
static int	nknown_wrappers = 0;
static bool new_wrapper = false;

static void
note_wrapper(Oid wrapper)
{
	for (int i = 0; i < nknown_wrappers; i++)
		if (known_wrappers[i] == wrapper)
			return;
	new_wrapper = true;
	if (nknown_wrappers < lengthof(known_wrappers))
		known_wrappers[nknown_wrappers++] = wrapper;
}

/* The table need not be locked yet, and so may be gone. */
static void
note_foreign_table(Oid relation)
{
	HeapTuple	tuple = SearchSysCache1(FOREIGNTABLEREL, ObjectIdGetDatum(relation));
	ForeignServer *server;

	if (!HeapTupleIsValid(tuple))
		return;
	server = GetForeignServerExtended(((Form_pg_foreign_table) GETSTRUCT(tuple))->ftserver,
									  FSV_MISSING_OK);
	ReleaseSysCache(tuple);
	if (server != NULL)
		note_wrapper(server->fdwid);
}

bool
zkl_written_wrapper_is_new(void)
{
	bool		is_new = new_wrapper;

	new_wrapper = false;
	return is_new;
}

/* INSERT, UPDATE, DELETE or MERGE, also in a WITH; and which tables are foreign. */
void
zkl_written_note_plan(const PlannedStmt *stmt, bool concerned)
{
	ListCell   *lc;

	if (concerned)
		foreach(lc, stmt->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (rte->rtekind == RTE_RELATION && rte->relkind == RELKIND_FOREIGN_TABLE)
			note_foreign_table(rte->relid);
	}
	foreach(lc, stmt->resultRelations)
	{
		if (is_elsewhere(rt_fetch(lfirst_int(lc), stmt->rtable)->relkind))
			zkl_written_elsewhere = ZKL_WRITTEN_FAR;
	}
}

/* Foreign partitions that rows were routed to: the plan does not name them. */
void
zkl_written_note_routing(const EState *estate)
{
	ListCell   *lc;

	foreach(lc, estate->es_tuple_routing_result_relations)
	{
		ResultRelInfo *target = lfirst(lc);

		if (target->ri_FdwRoutine != NULL)
			note_foreign_table(RelationGetRelid(target->ri_RelationDesc));
	}
}

/* COPY FROM or TRUNCATE of this table, and of its partitions and children. */
static void
note_named_table(const RangeVar *name, bool concerned)
{
	Oid			relation = RangeVarGetRelid(name, NoLock, true);
	ListCell   *lc;

	if (!OidIsValid(relation))
		return;
	if (is_elsewhere(get_rel_relkind(relation)))
		zkl_written_elsewhere = ZKL_WRITTEN_FAR;
	if (concerned)
		foreach(lc, find_all_inheritors(relation, NoLock, NULL))
	{
		if (is_elsewhere(get_rel_relkind(lfirst_oid(lc))))
			zkl_written_elsewhere = ZKL_WRITTEN_FAR;
		note_foreign_table(lfirst_oid(lc));
	}
}

void
zkl_written_note_utility(Node *stmt, bool concerned)
{
	ListCell   *lc;

	if (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from)
		note_named_table(((CopyStmt *) stmt)->relation, concerned);
	else if (IsA(stmt, LockStmt) && zkl_written_elsewhere == ZKL_WRITTEN_NOTHING)
		zkl_written_elsewhere = ZKL_WRITTEN_HERE;
	else if (IsA(stmt, TruncateStmt))
		foreach(lc, ((TruncateStmt *) stmt)->relations)
	{
		note_named_table(lfirst_node(RangeVar, lc), concerned);
	}
}

static void
forget_functions(Datum arg, int cache, uint32 hash)
{
	memset(known_functions, 0, sizeof(known_functions));
}

/* A function of extension dblink is about to be called: nobody knows what it is told. */
void
zkl_written_note_function(Oid function)
{
	int			place = function % KNOWN_FUNCTIONS;

	if (zkl_written_elsewhere == ZKL_WRITTEN_FAR || function < FirstNormalObjectId)
		return;
	if (!callback_registered)
	{
		CacheRegisterSyscacheCallback(PROCOID, forget_functions, (Datum) 0);
		callback_registered = true;
	}
	if (known_functions[place].oid != function)
	{
		Oid			extension = getExtensionOfObject(ProcedureRelationId, function);
		char	   *name = OidIsValid(extension) ? get_extension_name(extension) : NULL;

		/* the lookup may have called forget_functions() */
		known_functions[place].oid = function;
		known_functions[place].is_dblink = name != NULL && strcmp(name, "dblink") == 0;
	}
	if (known_functions[place].is_dblink)
		zkl_written_elsewhere = ZKL_WRITTEN_FAR;
}
