/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *	  Which transactions came before, and what a snapshot shows of them.
 *
 * Transactions that pass for one resource follow each other: each holds the lock on
 * it to its end. So if the snapshot in use shows the last of those that passed with
 * a lower token, it shows them all, and if it does not, it is too old. Two traces of
 * them are in the row of zk_fence:
 *
 * - A transaction that passes locks the row or writes it, and so leaves its xid in the
 *	  row's header, where it stays after the transaction's end. That costs nothing
 *	  that the row lock would not cost anyway, and there is no dead row for each of the
 *	  many transactions of one holder. A transaction that was rolled back covers up the
 *	  trace of the one before it; but it ended after that one, and so stands for it.
 *	  VACUUM removes what every snapshot shows.
 *
 * - A transaction that raises the mark notes the last one that had passed before it, in
 *	  "lower_xid", since others with the same token follow, which are no concern of each
 *	  other. It is a number of this server; after a restore elsewhere it says nothing, and
 *	  at worst a transaction is repeated.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_proc.h"
#include "replication/logicalworker.h"
#include "tcop/pquery.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "backend/guard.h"
#include "backend/snapshot.h"
#include "shared/shmem.h"

/* Is "xid" this transaction or a part of it, also one that was rolled back? */
bool
zkl_is_own_transaction(TransactionId xid)
{
	if (TransactionIdIsCurrentTransactionId(xid))
		return true;
	return TransactionIdFollowsOrEquals(xid, TransactionXmin) &&
		TransactionIdEquals(SubTransGetTopmostTransaction(xid), GetTopTransactionIdIfAny());
}

/*
 * Does the snapshot not show a transaction? One that runs has not passed here, since we
 * hold the lock: it locks the row for some other reason, and so covers the trace of the
 * one before it, which may be one that the snapshot does not show.
 */
static bool
is_after(TransactionId xid, Snapshot snapshot)
{
	return TransactionIdIsNormal(xid) && XidInMVCCSnapshot(xid, snapshot) &&
		TransactionIdPrecedes(xid, XidFromFullTransactionId(ReadNextFullTransactionId())) &&
		!zkl_is_own_transaction(xid);
}

/*
 * Constants, parameters, and calls of the extension's own functions, and of casts and
 * the like, with nothing else: none of these reads a table.
 */
static bool
is_only_calls(Node *node, Oid extension)
{
	FuncExpr   *call = (FuncExpr *) node;
	ListCell   *arg;

	if (node == NULL || IsA(node, Const) || IsA(node, Param) || IsA(node, Var))
		return true;			/* a Var is one of such a function's result */
	if (IsA(node, RelabelType))
		return is_only_calls((Node *) ((RelabelType *) node)->arg, extension);
	if (!IsA(node, FuncExpr) || call->funcretset ||
		(getExtensionOfObject(ProcedureRelationId, call->funcid) != extension &&
		 (call->funcid >= FirstNormalObjectId ||
		  func_volatile(call->funcid) != PROVOLATILE_IMMUTABLE)))
		return false;
	foreach(arg, call->args)
	{
		if (!is_only_calls(lfirst(arg), extension))
			return false;
	}
	return true;
}

/*
 * Does the statement that runs consist of such calls alone? Then it reads and writes
 * nothing by its own snapshot, and those that follow have newer ones. One that runs inside
 * another is not alone, since that may have read already; a procedure and DO are none of
 * these. Where the library was not preloaded only the client's statement is known, and it
 * is assumed that a procedure does more.
 */
static bool
statement_is_alone(Oid function)
{
	Oid			extension = getExtensionOfObject(ProcedureRelationId, function);
	const PlannedStmt *statement;
	Plan	   *plan;
	ListCell   *cell;

	if (zkl_shared != NULL)
		statement = zkl_guard_statement();
	else
		statement = ActivePortal != NULL && list_length(ActivePortal->stmts) == 1 ?
			linitial_node(PlannedStmt, ActivePortal->stmts) : NULL;
	if (statement == NULL)
		return ActivePortal == NULL;	/* by the fast path, or in a
										 * background worker */
	plan = statement->planTree;
	if (statement->commandType != CMD_SELECT || statement->hasModifyingCTE ||
		statement->subplans != NIL || plan->lefttree != NULL || plan->qual != NIL)
		return false;
	if (IsA(plan, FunctionScan))
	{
		foreach(cell, ((FunctionScan *) plan)->functions)
		{
			if (!is_only_calls(lfirst_node(RangeTblFunction, cell)->funcexpr, extension))
				return false;
		}
	}
	else if (!IsA(plan, Result) || ((Result *) plan)->resconstantqual != NULL)
		return false;
	foreach(cell, plan->targetlist)
	{
		if (!is_only_calls((Node *) lfirst_node(TargetEntry, cell)->expr, extension))
			return false;
	}
	return true;
}

/*
 * Refuse a snapshot that is older than the end of "lower". "call": not a write, but
 * zk_fence_check.
 */
void
zkl_refuse_old_snapshot(Oid function, const char *resource, int64 token, TransactionId lower, bool call)
{
	Snapshot	snapshot;

	/* a cascade runs on the newest snapshot, whatever the transaction's is */
	if (IsolationUsesXactSnapshot())
		snapshot = GetTransactionSnapshot();
	else if (ActiveSnapshotSet())
		snapshot = GetActiveSnapshot();
	else
		return;
	if (!IsMVCCSnapshot(snapshot) || !is_after(lower, snapshot))
		return;
	if (call && !IsolationUsesXactSnapshot() && statement_is_alone(function))
		return;
	/* what a subscription brings was computed elsewhere */
	if (IsLogicalWorker())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access to \"%s\" under fencing token " INT64_FORMAT,
					resource, token),
			 errdetail("A transaction that had presented a lower token ended after the snapshot in use was taken, which does not show what it wrote."),
			 errhint(IsolationUsesXactSnapshot() ?
					 "Repeat the transaction." :
					 "Repeat the transaction, and let it present the token in a statement of its own before the write: SELECT zk_fence_check(...).")));
}
