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
#include "catalog/pg_proc.h"
#include "commands/async.h"
#include "commands/extension.h"
#include "nodes/parsenodes.h"
#include "parser/parsetree.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "written.h"

volatile sig_atomic_t zkl_written_elsewhere = false;

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
	volatile bool pending = false;

	/*
	 * async.c keeps it to itself, but for PREPARE TRANSACTION, which refuses a
	 * transaction of that kind and does nothing else.
	 */
	PG_TRY();
	{
		AtPrepare_Notify();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		pending = true;
	}
	PG_END_TRY();
	return pending;
}

bool
zkl_has_written(void)
{
	return TransactionIdIsValid(GetTopTransactionIdIfAny()) || zkl_written_elsewhere ||
		zkl_notify_is_pending();
}

void
zkl_written_note_notify(void)
{
	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()) && zkl_notify_is_pending())
		zkl_written_elsewhere = true;
}

void
zkl_written_forget(void)
{
	zkl_written_elsewhere = false;
}

/* A row of a partitioned table may go to a foreign partition: that shows only later. */
static bool
is_elsewhere(char relkind)
{
	return relkind == RELKIND_FOREIGN_TABLE || relkind == RELKIND_PARTITIONED_TABLE;
}

/* INSERT, UPDATE, DELETE or MERGE, also in a WITH. */
void
zkl_written_note_plan(const PlannedStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->resultRelations)
		if (is_elsewhere(rt_fetch(lfirst_int(lc), stmt->rtable)->relkind))
			zkl_written_elsewhere = true;
}

void
zkl_written_note_utility(Node *stmt)
{
	/* of a local table it has a transaction id, so to be wrong costs nothing */
	if (IsA(stmt, TruncateStmt))
		zkl_written_elsewhere = true;
	else if (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from)
	{
		Oid			relation = RangeVarGetRelid(((CopyStmt *) stmt)->relation, NoLock, true);
		char		relkind = OidIsValid(relation) ? get_rel_relkind(relation) : '\0';

		if (is_elsewhere(relkind))
			zkl_written_elsewhere = true;
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

	if (zkl_written_elsewhere || function < FirstNormalObjectId)
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
		zkl_written_elsewhere = true;
}
