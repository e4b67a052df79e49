/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  Fencing tokens at the table: a stale writer writes nothing.
 *
 * The table zk_fence keeps, for each resource, the newest token that anybody
 * presented: the mark. A transaction passes for a resource when its token is
 * not lower than the mark, and raises the mark when it is higher. Three things
 * make that a fence and not a hint:
 *
 * - It is serialised. Before it looks at the mark a transaction takes a lock on
 *	  the resource, in PostgreSQL's lock manager, and keeps it to its end; so the
 *	  mark that it compared with is the mark at its commit. That lock, and not
 *	  the row's, because the first writer finds no row to lock, and because
 *	  whoever waited for a row that was then changed gets a serialization failure
 *	  in REPEATABLE READ. The row is locked too: the table's owner, and a
 *	  logical replication worker that carries zk_fence, write it without asking.
 *
 * - The newest committed mark decides, in every isolation level. A transaction's
 *	  own snapshot may be older than the mark that makes its token stale. So the
 *	  mark is read with the latest snapshot, as foreign keys are checked.
 *
 * - What was written under an older token is seen. A writer may have waited here
 *	  for an older one, whose work its snapshot does not show: it would compute
 *	  from what is no longer so. That is a serialization failure, in READ COMMITTED
 *	  too, where the snapshot is the statement's. See "Who came before".
 *
 * - It is forgotten with what it rests on. That a transaction has passed is
 *	  remembered, so that a million rows cost one look; but the lock, the row lock
 *	  and the raised mark all go when the savepoint they came after is rolled back,
 *	  and so must the memory of them.
 *
 * None of this needs ZooKeeper, shared memory or a worker: tokens are numbers,
 * and a server that only checks them loads this library on demand. Where a
 * worker runs it vouches for them: a token above all that the ensemble had issued
 * when it was presented is refused, or anybody who may present one could close
 * a resource for ever with the largest number there is.
 *
 * The table is the one that belongs to the same extension as the function that was
 * called, by OID. No statement is parsed, no plan is kept, no name is looked up but
 * in the function's own schema, and none of the table's triggers, rules and policies
 * has a say: search_path, rights and row security of the writer do not matter, and
 * whoever renames a schema and puts a table of his own in its place gets an error.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/subtrans.h"
#include "access/sysattr.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "common/ip.h"
#include "executor/executor.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "backend/fence.h"
#include "backend/guard.h"
#include "backend/holds.h"
#include "backend/text.h"
#include "common/clock.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/lockname.h"
#include "common/settings.h"
#include "shared/shmem.h"

/*
 * The class of our advisory locks, the last field of their tags: "ZK". Classes 1
 * and 2 are pg_advisory_lock()'s, which can name no other; Citus has 4 to 16.
 */
#define LOCK_CLASS			0x5A4B

/* How long the ensemble may take to say how far it has counted. */
#define ASK_PATIENCE_MS		2000
#define ASK_POLL_MS			10

/*
 * What is so for a resource in this transaction, from some level of
 * subtransactions on. A deeper level adds its own instead of changing one, so
 * that a rollback finds what was so before; the last one of a resource is valid.
 */
typedef struct Pass
{
	char	   *resource;		/* in the database's encoding */
	int64		passed;			/* the token that passed, and is the mark now */
	int64		presented;		/* by zk_fence_check, for the guards; 0 = none */
	TransactionId lower;		/* the last one that passed with a lower token */
	TransactionId before;		/* who had passed last when we did first */
	int			level;
} Pass;

static struct
{
	Pass	   *passes;			/* by rising level; in TopTransactionContext */
	int			npasses;
	int			maxpasses;

	/* one up whenever a pass is added, changed or forgotten: what a trigger
	 * remembers for its next row is good while this stands still; never 0,
	 * which is the epoch of a trigger that remembers nothing */
	uint64		epoch;
	bool		callbacks_registered;
} fence = {.epoch = 1};

/* What a trigger remembers from row to row, in its FmgrInfo. */
typedef struct GuardCall
{
	const char *resource;
	AttrNumber	column;			/* that holds the token, or InvalidAttrNumber */
	bool		checked;		/* the token there must have been presented, too */
	uint64		epoch;			/* fence.epoch at the last pass, or 0 */
	int64		token;			/* that passed then */
} GuardCall;

PG_FUNCTION_INFO_V1(zkl_fence_check);
PG_FUNCTION_INFO_V1(zkl_fence_guard);
PG_FUNCTION_INFO_V1(zkl_fence_reset);

/* ------------------------------------------------------------------------
 * What has passed in this transaction
 * ------------------------------------------------------------------------
 */

static Pass *
find_pass(const char *resource, int before)
{
	for (int i = before - 1; i >= 0; i--)
		if (strcmp(fence.passes[i].resource, resource) == 0)
			return &fence.passes[i];
	return NULL;
}

/* Forget the last ones, from the n-th on. */
static void
truncate_passes(int n)
{
	if (fence.npasses == n)
		return;
	for (int i = n; i < fence.npasses; i++)
		pfree(fence.passes[i].resource);
	fence.npasses = n;
	fence.epoch++;
}

static void
on_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			truncate_passes(0);
			/* the memory goes with the transaction */
			fence.passes = NULL;
			fence.maxpasses = 0;
			break;
		default:
			break;
	}
}

/* The levels below become the parent's; two for one resource become one. */
static void
merge_passes(int level)
{
	int			kept;
	int			first = fence.npasses;

	while (first > 0 && fence.passes[first - 1].level >= level)
		first--;
	kept = first;
	for (int i = first; i < fence.npasses; i++)
	{
		Pass	   *pass = &fence.passes[i];
		Pass	   *parent = find_pass(pass->resource, first);

		pass->level = level - 1;
		if (parent != NULL && parent->level == level - 1)
		{
			parent->passed = pass->passed;
			parent->presented = pass->presented;
			parent->lower = pass->lower;
			parent->before = pass->before;
			pfree(pass->resource);
		}
		else
			fence.passes[kept++] = *pass;
	}
	/* what is valid has not changed, so neither does the epoch */
	fence.npasses = kept;
}

static void
on_subxact(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	int			n = fence.npasses;

	switch (event)
	{
		case SUBXACT_EVENT_ABORT_SUB:
			while (n > 0 && fence.passes[n - 1].level >= level)
				n--;
			truncate_passes(n);
			break;
		case SUBXACT_EVENT_COMMIT_SUB:
			merge_passes(level);
			break;
		default:
			break;
	}
}

/*
 * The place for this resource at this level, made if there is none: with what is
 * valid now, or zeroes.
 */
static Pass *
pass_at_this_level(const char *resource)
{
	int			level = GetCurrentTransactionNestLevel();
	Pass	   *outer = find_pass(resource, fence.npasses);
	Pass		pass = {.level = level};

	if (outer != NULL && outer->level == level)
		return outer;
	if (outer != NULL)
	{
		pass.passed = outer->passed;
		pass.presented = outer->presented;
		pass.lower = outer->lower;
		pass.before = outer->before;
	}

	if (!fence.callbacks_registered)
	{
		RegisterXactCallback(on_xact, NULL);
		RegisterSubXactCallback(on_subxact, NULL);
		fence.callbacks_registered = true;
	}
	if (fence.maxpasses == 0)
	{
		fence.passes = MemoryContextAlloc(TopTransactionContext, 8 * sizeof(Pass));
		fence.maxpasses = 8;
	}
	else if (fence.npasses == fence.maxpasses)
	{
		fence.passes = repalloc(fence.passes, 2 * fence.maxpasses * sizeof(Pass));
		fence.maxpasses *= 2;
	}
	pass.resource = MemoryContextStrdup(TopTransactionContext, resource);
	fence.passes[fence.npasses] = pass;
	return &fence.passes[fence.npasses++];
}

/* ------------------------------------------------------------------------
 * The table
 * ------------------------------------------------------------------------
 */

/*
 * Columns of zk_fence. Its owner may add some, which we leave null and carry along, but
 * not take these away.
 */
enum
{
	COLUMN_RESOURCE,
	COLUMN_TOKEN,
	COLUMN_ADVANCED_AT,
	COLUMN_PRESENTED_BY,
	COLUMN_USERNAME,
	COLUMN_CLIENT,
	COLUMN_LOWER_XID,
	COLUMNS
};

static const struct
{
	const char *name;
	Oid			type;
}			columns[COLUMNS] = {
	{"resource", TEXTOID},
	{"token", INT8OID},
	{"advanced_at", TIMESTAMPTZOID},
	{"presented_by", TEXTOID},
	{"username", TEXTOID},
	{"client", TEXTOID},
	{"lower_xid", XID8OID}
};

/* The table, open. */
typedef struct Table
{
	Relation	relation;
	Relation	index;			/* its primary key */
	AttrNumber	columns[COLUMNS];
} Table;

/* A row of it. */
typedef struct Mark
{
	int64		token;			/* 0: there is none */
	char	   *presented_by;
	char	   *username;		/* or NULL */
	char	   *client;			/* or NULL */
	TransactionId last;			/* who passed last, whatever became of him */
	TransactionId lower;		/* who passed last with a lower token */
} Mark;

/* Whose doing it is, for the next one's error message; the client's address apart. */
static char *
describe_myself(const char *prefix)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "%suser \"%s\"", prefix, GetUserNameFromId(GetSessionUserId(), true));
	if (application_name != NULL && application_name[0] != '\0')
		appendStringInfo(&buf, ", application \"%s\"", application_name);
	appendStringInfo(&buf, ", process %d", MyProcPid);
	return buf.data;
}

/* The address of our client, or NULL. */
static char *
client_address(void)
{
	char		client[NI_MAXHOST];

	if (MyBEEntry == NULL ||
		(MyBEEntry->st_clientaddr.addr.ss_family != AF_INET &&
		 MyBEEntry->st_clientaddr.addr.ss_family != AF_INET6) ||
		pg_getnameinfo_all(&MyBEEntry->st_clientaddr.addr, MyBEEntry->st_clientaddr.salen,
						   client, sizeof(client), NULL, 0, NI_NUMERICHOST) != 0)
		return NULL;
	return pstrdup(client);
}

/*
 * Who presented the mark, with the client's address for those to whom
 * pg_stat_activity shows it too.
 */
static char *
describe_presenter(const Mark *mark)
{
	Oid			role;

	if (mark->client == NULL)
		return mark->presented_by;
	role = mark->username != NULL ? get_role_oid(mark->username, true) : InvalidOid;
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!(OidIsValid(role) && has_privs_of_role(GetUserId(), role)))
		return mark->presented_by;
	return psprintf("%s, client %s", mark->presented_by, mark->client);
}

static void
raise_no_table(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("table zk_fence is missing"),
			 errdetail("%s", detail),
			 errhint("Drop the extension zklock and create it again.")));
}

static void
raise_changed_table(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table zk_fence is not as the extension zklock made it"),
			 errdetail("%s", detail),
			 errhint("Undo the change, or drop the extension and create it again.")));
}

/*
 * The zk_fence that belongs to the same extension as the zklock function being called.
 * The name is only where to look: what is there must be a member of the extension, and
 * is asked about that when it can no longer be another table.
 */
static void
open_table(Oid function, Table *table)
{
	Oid			extension = getExtensionOfObject(ProcedureRelationId, function);
	Oid			oid = get_relname_relid("zk_fence", get_func_namespace(function));
	TupleDesc	desc;
	Oid			index;

	if (!OidIsValid(extension))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s does not belong to an extension", format_procedure(function)),
				 errhint("Use the functions that CREATE EXTENSION zklock made.")));
	table->relation = OidIsValid(oid) ? try_relation_open(oid, RowExclusiveLock) : NULL;
	if (table->relation == NULL)
		raise_no_table("It belongs to the extension zklock, in the schema of its functions.");
	if (getExtensionOfObject(RelationRelationId, oid) != extension)
		raise_no_table("The table of that name in the schema of the extension's functions is not the extension's.");

	desc = RelationGetDescr(table->relation);
	if (table->relation->rd_rel->relkind != RELKIND_RELATION ||
		table->relation->rd_tableam != GetHeapamTableAmRoutine())
		raise_changed_table("It is no ordinary table.");
	if (desc->constr != NULL && desc->constr->has_generated_stored)
		raise_changed_table("It has a generated column.");
	for (int i = 0; i < COLUMNS; i++)
	{
		table->columns[i] = get_attnum(oid, columns[i].name);
		if (table->columns[i] <= 0 || table->columns[i] > desc->natts ||
			TupleDescAttr(desc, table->columns[i] - 1)->atttypid != columns[i].type)
			raise_changed_table(psprintf("There is no column \"%s\" of its type.", columns[i].name));
	}

	/* the list names the key, too */
	list_free(RelationGetIndexList(table->relation));
	index = table->relation->rd_pkindex;
	table->index = OidIsValid(index) ? try_relation_open(index, RowExclusiveLock) : NULL;
	if (table->index == NULL || table->index->rd_rel->relkind != RELKIND_INDEX ||
		table->index->rd_rel->relam != BTREE_AM_OID || !table->index->rd_index->indisvalid ||
		!table->index->rd_index->indimmediate ||
		IndexRelationGetNumberOfKeyAttributes(table->index) != 1 ||
		table->index->rd_index->indkey.values[0] != table->columns[COLUMN_RESOURCE] ||
		table->index->rd_indcollation[0] != C_COLLATION_OID)
		raise_changed_table("Its primary key is not the column \"resource\" with the collation \"C\".");
}

static void
close_table(Table *table)
{
	/* the locks stay to the end of the transaction */
	relation_close(table->index, NoLock);
	relation_close(table->relation, NoLock);
}

/* ------------------------------------------------------------------------
 * Who came before
 *
 * Transactions that pass for one resource follow each other: each holds the lock on
 * it to its end. So if the snapshot in use shows the last of those that passed with
 * a lower token, it shows them all, and if it does not, it is too old. Two traces of
 * them are in the row of zk_fence:
 *
 * - Whoever passes locks the row or writes it, and so leaves his transaction in its
 *	  header, where it stays when he is gone, whatever became of him. That costs nothing
 *	  that the row lock would not cost anyway, and there is no dead row for each of the
 *	  many transactions of one holder. A transaction that was rolled back covers up the
 *	  trace of the one before it; but it ended after that one, and so stands for it.
 *	  VACUUM removes what every snapshot shows.
 *
 * - Whoever raises the mark notes who had passed last before him, in "lower_xid", since
 *	  he is followed by others with his own token, who are no concern of his nor of each
 *	  other. It is a number of this server; after a restore elsewhere it says nothing, and
 *	  at worst a transaction is repeated.
 * ------------------------------------------------------------------------
 */

/* Is "xid" this transaction or a part of it, also one that was rolled back? */
static bool
is_own(TransactionId xid)
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
		!is_own(xid);
}

/* The last transaction that touched this version of the row. */
static TransactionId
last_toucher(TupleTableSlot *slot)
{
	BufferHeapTupleTableSlot *row = (BufferHeapTupleTableSlot *) slot;
	HeapTupleHeaderData header;
	TransactionId last;
	MultiXactMember *members;
	int			nmembers;

	if (!TTS_IS_BUFFERTUPLE(slot) || !BufferIsValid(row->buffer))
		return InvalidTransactionId;
	LockBuffer(row->buffer, BUFFER_LOCK_SHARE);
	header = *row->base.tuple->t_data;
	LockBuffer(row->buffer, BUFFER_LOCK_UNLOCK);

	last = HeapTupleHeaderXminFrozen(&header) ? InvalidTransactionId :
		HeapTupleHeaderGetRawXmin(&header);
	if ((header.t_infomask & HEAP_XMAX_IS_MULTI) == 0)
	{
		if (TransactionIdIsNormal(HeapTupleHeaderGetRawXmax(&header)))
			last = HeapTupleHeaderGetRawXmax(&header);
	}
	else if (!HEAP_LOCKED_UPGRADED(header.t_infomask))
	{
		/* a savepoint's and the transaction's, or an owner's who locks rows himself */
		nmembers = GetMultiXactIdMembers(HeapTupleHeaderGetRawXmax(&header), &members, false,
										 HEAP_XMAX_IS_LOCKED_ONLY(header.t_infomask));
		for (int i = 0; i < nmembers; i++)
			if (!TransactionIdIsNormal(last) || TransactionIdFollows(members[i].xid, last))
				last = members[i].xid;
	}
	return last;
}

/* A transaction of this server's last two billion, or InvalidTransactionId. */
static TransactionId
from_full(FullTransactionId full)
{
	FullTransactionId next = ReadNextFullTransactionId();

	if (!FullTransactionIdPrecedes(full, next) ||
		U64FromFullTransactionId(next) - U64FromFullTransactionId(full) > (uint64) INT_MAX)
		return InvalidTransactionId;
	return XidFromFullTransactionId(full);
}

static FullTransactionId
to_full(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
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
		if (!is_only_calls(lfirst(arg), extension))
			return false;
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
		return ActivePortal == NULL;	/* by the fast path, or in a background worker */
	plan = statement->planTree;
	if (statement->commandType != CMD_SELECT || statement->hasModifyingCTE ||
		statement->subplans != NIL || plan->lefttree != NULL || plan->qual != NIL)
		return false;
	if (IsA(plan, FunctionScan))
	{
		foreach(cell, ((FunctionScan *) plan)->functions)
			if (!is_only_calls(lfirst_node(RangeTblFunction, cell)->funcexpr, extension))
				return false;
	}
	else if (!IsA(plan, Result) || ((Result *) plan)->resconstantqual != NULL)
		return false;
	foreach(cell, plan->targetlist)
		if (!is_only_calls((Node *) lfirst_node(TargetEntry, cell)->expr, extension))
			return false;
	return true;
}

/*
 * Refuse a snapshot that is older than the end of "lower". "call": not a write, but
 * zk_fence_check.
 */
static void
refuse_old_snapshot(Oid function, const char *resource, int64 token, TransactionId lower, bool call)
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

/* ------------------------------------------------------------------------
 * Reading and writing the mark
 * ------------------------------------------------------------------------
 */

static char *
text_column(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* Find the row in the newest committed state; false when there is none. */
static bool
read_mark(Table *table, const char *resource, TupleTableSlot *slot, Mark *mark)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	IndexScanDesc scan = ZKL_INDEX_BEGINSCAN(table->relation, table->index, snapshot, 1);
	ScanKeyData key;
	bool		found;
	bool		isnull;
	Datum		value;

	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, TEXTOID, C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(resource));
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	memset(mark, 0, sizeof(*mark));
	if (found)
	{
		value = slot_getattr(slot, table->columns[COLUMN_TOKEN], &isnull);
		mark->token = isnull ? 0 : DatumGetInt64(value);
		mark->presented_by = text_column(slot, table->columns[COLUMN_PRESENTED_BY]);
		if (mark->presented_by == NULL)
			mark->presented_by = pstrdup("an unknown user");
		mark->username = text_column(slot, table->columns[COLUMN_USERNAME]);
		mark->client = text_column(slot, table->columns[COLUMN_CLIENT]);
		value = slot_getattr(slot, table->columns[COLUMN_LOWER_XID], &isnull);
		if (!isnull)
			mark->lower = from_full(DatumGetFullTransactionId(value));
		mark->last = last_toucher(slot);
		/* the row outlives the scan, and so must what it lies on */
		ExecMaterializeSlot(slot);
	}
	index_endscan(scan);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Lock the row that "slot" has, as FOR UPDATE does. False when somebody changed it
 * meanwhile: the table's owner, or a subscription, who do not ask for the resource.
 */
static bool
lock_row(Table *table, TupleTableSlot *slot)
{
	TM_FailureData failure;
	ItemPointerData tid = slot->tts_tid;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TM_Result	result;

	result = table_tuple_lock(table->relation, &tid, snapshot, slot, GetCurrentCommandId(true),
							  LockTupleExclusive, LockWaitBlock, 0, &failure);
	UnregisterSnapshot(snapshot);
	switch (result)
	{
		case TM_Ok:
			return true;
		case TM_Updated:
		case TM_Deleted:
			return false;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("the row of zk_fence is being changed by this statement")));
	}
	return false;
}

/*
 * Insert the mark, or write it over the row in "slot". Triggers of the table do not fire.
 * What its owner may have added to be computed, checks and index expressions, runs as
 * that owner and not as the writer; he can change nothing else with it.
 */
static void
write_mark(Table *table, TupleTableSlot *slot, bool exists, const char *resource, int64 token,
		   TransactionId lower, const char *presented_by)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *target = makeNode(ResultRelInfo);
	TupleTableSlot *row = table_slot_create(table->relation, NULL);
	char	   *client = client_address();
	char	   *username = GetUserNameFromId(GetSessionUserId(), true);
	Oid			user;
	int			security;

	if (exists)
	{
		slot_getallattrs(slot);
		memcpy(row->tts_values, slot->tts_values,
			   RelationGetDescr(table->relation)->natts * sizeof(Datum));
		memcpy(row->tts_isnull, slot->tts_isnull,
			   RelationGetDescr(table->relation)->natts * sizeof(bool));
	}
	else
		memset(row->tts_isnull, true, RelationGetDescr(table->relation)->natts * sizeof(bool));

#define SET_COLUMN(column, value, null) \
	do { \
		row->tts_values[table->columns[column] - 1] = (value); \
		row->tts_isnull[table->columns[column] - 1] = (null); \
	} while (0)

	SET_COLUMN(COLUMN_RESOURCE, CStringGetTextDatum(resource), false);
	SET_COLUMN(COLUMN_TOKEN, Int64GetDatum(token), false);
	SET_COLUMN(COLUMN_ADVANCED_AT, TimestampTzGetDatum(GetCurrentTimestamp()), false);
	SET_COLUMN(COLUMN_PRESENTED_BY, CStringGetTextDatum(presented_by), false);
	SET_COLUMN(COLUMN_USERNAME, username != NULL ? CStringGetTextDatum(username) : (Datum) 0,
			   username == NULL);
	SET_COLUMN(COLUMN_CLIENT, client != NULL ? CStringGetTextDatum(client) : (Datum) 0,
			   client == NULL);
	SET_COLUMN(COLUMN_LOWER_XID,
			   TransactionIdIsNormal(lower) ? FullTransactionIdGetDatum(to_full(lower)) : (Datum) 0,
			   !TransactionIdIsNormal(lower));
#undef SET_COLUMN
	ExecStoreVirtualTuple(row);

	InitResultRelInfo(target, table->relation, 0, NULL, 0);
	target->ri_TrigDesc = NULL;
	estate->es_snapshot = RegisterSnapshot(GetLatestSnapshot());
	estate->es_output_cid = GetCurrentCommandId(true);

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(table->relation->rd_rel->relowner,
						   security | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	ExecOpenIndices(target, false);
	if (exists)
		ExecSimpleRelationUpdate(target, estate, NULL, slot, row);	/* no trigger asks for the NULL */
	else
		ExecSimpleRelationInsert(target, estate, row);
	ExecCloseIndices(target);
	SetUserIdAndSecContext(user, security);

	UnregisterSnapshot(estate->es_snapshot);
	ExecDropSingleTupleTableSlot(row);
	FreeExecutorState(estate);
	/* the next one who looks, maybe of the same command, must see it */
	CommandCounterIncrement();
}

/*
 * With the resource locked until the end of the transaction: compare "token" with the
 * mark, and lock the row or raise it. Returns the mark as it was, with "lower" as it is
 * for this token; when the token is below it nothing was done.
 */
static Mark
advance_mark(Oid function, const char *resource, int64 token, TransactionId before, bool call)
{
	Mark		mark;
	uint64		hash = hash_bytes_extended((const unsigned char *) resource, strlen(resource), 0);
	TupleTableSlot *slot;
	LOCKTAG		tag;
	Table		table;
	bool		found;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);

	open_table(function, &table);
	slot = table_slot_create(table.relation, NULL);
	for (;;)
	{
		found = read_mark(&table, resource, slot, &mark);
		if (!found)
		{
			write_mark(&table, slot, false, resource, token, InvalidTransactionId,
					   describe_myself(""));
			break;
		}
		if (token < mark.token)
			break;
		/* our own trace covers that of whom we found when we passed with a lower token */
		if (TransactionIdIsNormal(mark.last) && is_own(mark.last))
			mark.last = before;
		if (token > mark.token)
			mark.lower = mark.last;

		/* before we leave our own trace: what fails must fail again */
		refuse_old_snapshot(function, resource, token, mark.lower, call);
		if (!lock_row(&table, slot))
			continue;
		if (token > mark.token)
			write_mark(&table, slot, true, resource, token, mark.lower, describe_myself(""));
		break;
	}
	ExecDropSingleTupleTableSlot(slot);
	close_table(&table);
	return mark;
}

/* Set the mark, whatever it is. All that was presented before counts as lower. */
static void
reset_mark(Oid function, const char *resource, int64 token)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) resource, strlen(resource), 0);
	TupleTableSlot *slot;
	LOCKTAG		tag;
	Table		table;
	Mark		mark;
	bool		found;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash, LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);

	open_table(function, &table);
	slot = table_slot_create(table.relation, NULL);
	do
		found = read_mark(&table, resource, slot, &mark);
	while (found && !lock_row(&table, slot));
	write_mark(&table, slot, found, resource, token, GetTopTransactionId(),
			   describe_myself("reset by "));
	ExecDropSingleTupleTableSlot(slot);
	close_table(&table);
}

/* ------------------------------------------------------------------------
 * Tokens
 * ------------------------------------------------------------------------
 */

/* The name of the lock that this resource is fenced by, as UTF-8, or an error. */
static void
resource_name(const char *resource, char name[ZKL_NAME_MAX + 1])
{
	const char *utf8 = resource;
	ZklNameFault fault;

	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		utf8 = pg_server_to_any(resource, strlen(resource), PG_UTF8);
	fault = zkl_name_fault(utf8, strlen(utf8));
	if (fault.error != ZKL_NAME_OK)
	{
		int			shown = pg_mbcliplen(resource, strlen(resource), 64);

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid resource name \"%.*s\"%s", shown, resource,
						resource[shown] != '\0' ? "..." : ""),
				 errdetail("%s", zkl_name_detail(resource, fault)),
				 errhint("A resource has the name of the lock whose tokens it is fenced by.")));
	}
	strlcpy(name, utf8, ZKL_NAME_MAX + 1);
}

#define PRESENT_HINT \
	"Acquire the lock in this backend, or present the token of its holder with zk_fence_check."

/* May locks of this mode fence? Two that hold together cannot order their writes. */
static bool
mode_fences(ZklMode mode)
{
	return mode == ZKL_MODE_EXCLUSIVE || mode == ZKL_MODE_WRITE;
}

/*
 * The token of the lock that this backend holds, or 0. Raises ZK001 when it is not
 * certain any more.
 */
static int64
token_of_lock(const char *resource)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;

	if (zkl_nholds == 0)
		return 0;
	resource_name(resource, name);
	hold = zkl_holds_find(name);
	if (hold == NULL || hold->state == ZKL_HOLD_RELEASED)
		return 0;
	if (!zkl_guard_is_certain(hold))
		zkl_guard_raise(hold);
	if (!mode_fences(hold->mode))
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
				 errmsg("no fencing token for \"%s\"", resource),
				 errdetail("This backend holds the lock in mode \"%s\", in which others may hold it at the same time.",
						   zkl_mode_name(hold->mode)),
				 errhint("Acquire the lock in mode \"exclusive\" or \"write\".")));
	return hold->token;
}

static void
refuse_number(int64 token)
{
	if (token <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid fencing token " INT64_FORMAT, token),
				 errdetail("Fencing tokens are positive.")));
}

/* Sleep a moment while the worker asks ZooKeeper. */
static void
sleep_while_asked(void)
{
	static uint32 wait_event = 0;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("ZklockFence");
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ASK_POLL_MS, wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Where a worker belongs to the server: has the ensemble issued this token? It
 * has not if it is above the number of a write that was sent after we were given
 * the token. A worker that is away for a moment is waited for, or that would be
 * the moment to slip a number in.
 */
static void
refuse_future(const char *resource, int64 token)
{
	ZklTime		presented = zkl_now();
	int64		zxid;
	char		trouble[ZKL_TROUBLE_SIZE];
	bool		known;

	if (zkl_shared == NULL || token <= (int64) pg_atomic_read_u64(&zkl_shared->mark))
		return;
	while ((ZklTime) pg_atomic_read_u64(&zkl_shared->mark_sent) < presented)
	{
		if (zkl_now() - presented > ZKL_MS(ASK_PATIENCE_MS))
		{
			known = zkl_trouble_read(trouble);
			ereport(ERROR,
					(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
					 errmsg("could not verify fencing token " INT64_FORMAT " for \"%s\"",
							token, resource),
					 pg_atomic_read_u32(&zkl_shared->worker_pid) == 0 ?
					 errdetail("The zklock worker is not running.") :
					 known ? errdetail("%s", zkl_text_for_message(trouble)) :
					 errdetail("ZooKeeper did not answer within %d ms.", ASK_PATIENCE_MS),
					 errhint("The token is newer than all that this server has heard of from ZooKeeper.")));
		}
		pg_atomic_write_u32(&zkl_shared->mark_wanted, 1);
		zkl_wake_worker();
		sleep_while_asked();
	}
	/* published after the counter that it belongs to */
	pg_read_barrier();
	zxid = (int64) pg_atomic_read_u64(&zkl_shared->mark);
	if (token > zxid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fencing token " INT64_FORMAT " for \"%s\" has never been issued",
						token, resource),
				 errdetail("ZooKeeper has counted up to " INT64_FORMAT ".", zxid),
				 errhint("Present the number that zk_lock_acquire or zk_fencing_token returned.")));
}

/*
 * Let this transaction pass for (resource, token), or raise an error. "issued":
 * the token is that of a lock that this backend holds; "call": it is presented by
 * zk_fence_check, not by a write.
 */
static void
pass(Oid function, const char *resource, int64 token, bool issued, bool call)
{
	Pass	   *known = find_pass(resource, fence.npasses);
	char		name[ZKL_NAME_MAX + 1];
	Mark		mark;

	if (known != NULL && known->passed == token)
	{
		refuse_old_snapshot(function, resource, token, known->lower, call);
		return;
	}

	PreventCommandIfReadOnly("zk_fence_check()");
	PreventCommandIfParallelMode("zk_fence_check()");
	resource_name(resource, name);
	refuse_number(token);
	if (!issued)
		refuse_future(resource, token);

	mark = advance_mark(function, resource, token,
						known != NULL ? known->before : InvalidTransactionId, call);
	if (token < mark.token)
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_STALE_FENCING_TOKEN),
				 errmsg("fencing token " INT64_FORMAT " for \"%s\" is stale", token, resource),
				 errdetail("The newest token is " INT64_FORMAT ", presented by %s.",
						   mark.token, describe_presenter(&mark)),
				 errhint("The lock has been granted to another holder since. Roll back, and acquire it again before you repeat the work.")));
	known = pass_at_this_level(resource);
	known->passed = token;
	known->lower = mark.lower;
	known->before = mark.last;
	fence.epoch++;
}

/* ------------------------------------------------------------------------
 * The trigger
 * ------------------------------------------------------------------------
 */

/* Which column of the table is that? */
static AttrNumber
find_column(Relation relation, const Trigger *trigger)
{
	TupleDesc	desc = RelationGetDescr(relation);
	const char *column = trigger->tgargs[1];

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (attribute->attisdropped || strcmp(NameStr(attribute->attname), column) != 0)
			continue;
		if (getBaseType(attribute->atttypid) != INT8OID)
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" of table \"%s\" cannot hold fencing tokens",
							column, RelationGetRelationName(relation)),
					 errdetail("It is of type %s; a fencing token is a bigint.",
							   format_type_be(attribute->atttypid))));
		if (attribute->attgenerated != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("column \"%s\" of table \"%s\" cannot hold fencing tokens",
							column, RelationGetRelationName(relation)),
					 errdetail("It is generated, so no writer can present a token in it.")));
		return attribute->attnum;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("column \"%s\" of table \"%s\" does not exist",
					column, RelationGetRelationName(relation)),
			 errdetail("Trigger \"%s\" names it as the second argument of zk_fence_guard.",
					   trigger->tgname)));
	return InvalidAttrNumber;
}

/* Once for each statement: is the trigger one that can do its work? */
static GuardCall *
prepare_guard(FunctionCallInfo fcinfo)
{
	TriggerData *call = (TriggerData *) fcinfo->context;
	Trigger    *trigger = call->tg_trigger;
	Relation	relation = call->tg_relation;
	char		name[ZKL_NAME_MAX + 1];
	GuardCall  *guard;

	if (trigger->tgnargs < 1 || trigger->tgnargs > 3 ||
		(trigger->tgnargs == 3 && strcmp(trigger->tgargs[2], "checked") != 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 trigger->tgnargs == 3 ?
				 errmsg("trigger \"%s\" on \"%s\" calls zk_fence_guard with \"%s\" as third argument",
						trigger->tgname, RelationGetRelationName(relation), trigger->tgargs[2]) :
				 errmsg("trigger \"%s\" on \"%s\" calls zk_fence_guard with %d arguments",
						trigger->tgname, RelationGetRelationName(relation), trigger->tgnargs),
				 errhint("Write zk_fence_guard('resource'), zk_fence_guard('resource', 'column') or zk_fence_guard('resource', 'column', 'checked').")));
	if (relation->rd_rel->relkind == RELKIND_VIEW)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("trigger \"%s\" cannot guard view \"%s\"",
						trigger->tgname, RelationGetRelationName(relation)),
				 errdetail("Others could write to the tables beneath it, past the guard."),
				 errhint("Create the trigger on these tables.")));
	resource_name(trigger->tgargs[0], name);

	guard = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(GuardCall));
	guard->resource = MemoryContextStrdup(fcinfo->flinfo->fn_mcxt, trigger->tgargs[0]);
	if (trigger->tgnargs >= 2)
	{
		if (!TRIGGER_FIRED_FOR_ROW(call->tg_event))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("trigger \"%s\" on \"%s\" must be FOR EACH ROW",
							trigger->tgname, RelationGetRelationName(relation)),
					 errdetail("Its fencing token is in column \"%s\" of the rows.",
							   trigger->tgargs[1])));
		guard->column = find_column(relation, trigger);
		guard->checked = trigger->tgnargs == 3;
	}
	return guard;
}

/* The token that the new row brings along. */
static int64
token_of_row(TriggerData *call, const GuardCall *guard)
{
	HeapTuple	row = call->tg_trigtuple;
	Datum		token;
	bool		isnull;

	if (TRIGGER_FIRED_BY_DELETE(call->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("trigger \"%s\" on \"%s\" cannot guard DELETE",
						call->tg_trigger->tgname, RelationGetRelationName(call->tg_relation)),
				 errdetail("A DELETE brings no new row, and the token in the old one is that of an earlier writer."),
				 errhint("Guard DELETE with a trigger without a column argument.")));
	if (TRIGGER_FIRED_BY_UPDATE(call->tg_event))
	{
		row = call->tg_newtuple;
		if (!bms_is_member(guard->column - FirstLowInvalidHeapAttributeNumber,
						   call->tg_updatedcols))
			ereport(ERROR,
					(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
					 errmsg("no fencing token for \"%s\"", guard->resource),
					 errdetail("The UPDATE of table \"%s\" does not set column \"%s\", and the token that is stored there is that of an earlier writer.",
							   RelationGetRelationName(call->tg_relation),
							   call->tg_trigger->tgargs[1]),
					 errhint("Set the column to the token of the lock's holder.")));
	}
	token = heap_getattr(row, guard->column, RelationGetDescr(call->tg_relation), &isnull);
	if (isnull)
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
				 errmsg("no fencing token for \"%s\"", guard->resource),
				 errdetail("Column \"%s\" of table \"%s\" is null.",
						   call->tg_trigger->tgargs[1],
						   RelationGetRelationName(call->tg_relation)),
				 errhint("Set the column to the token of the lock's holder.")));
	return DatumGetInt64(token);
}

/*
 * With a column, and "checked": whoever writes has the token, and does not merely repeat
 * one that a row had.
 */
static void
require_presentation(TriggerData *call, const GuardCall *guard, int64 token)
{
	int64		presented;
	Pass	   *known;

	zkl_guard_check();
	zkl_refuse_restricted();
	presented = token_of_lock(guard->resource);
	known = find_pass(guard->resource, fence.npasses);
	if (presented == 0 && known != NULL)
		presented = known->presented;
	if (presented == token)
		return;
	ereport(ERROR,
			(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
			 errmsg("no fencing token for \"%s\"", guard->resource),
			 presented == 0 ?
			 errdetail("Column \"%s\" of table \"%s\" has one, but this backend does not hold the lock, and no token was presented in this transaction.",
					   call->tg_trigger->tgargs[1], RelationGetRelationName(call->tg_relation)) :
			 errdetail("Column \"%s\" of table \"%s\" has " INT64_FORMAT ", but this transaction presents " INT64_FORMAT ".",
					   call->tg_trigger->tgargs[1], RelationGetRelationName(call->tg_relation),
					   token, presented),
			 errhint(PRESENT_HINT)));
}

/* Without a column: the lock that this backend holds, else what was presented. */
static void
pass_without_column(Oid function, TriggerData *call, GuardCall *guard)
{
	int64		token;
	Pass	   *known;

	/* the writer's lock and token, and not those of whoever runs his code; what a row
	 * brings along is its own */
	zkl_refuse_restricted();
	zkl_guard_check();
	token = token_of_lock(guard->resource);
	if (token != 0)
	{
		pass(function, guard->resource, token, true, false);
		return;
	}
	known = find_pass(guard->resource, fence.npasses);
	if (known == NULL || known->presented == 0)
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
				 errmsg("no fencing token for \"%s\"", guard->resource),
				 errdetail("Table \"%s\" is guarded by it; this backend does not hold the lock, and no token was presented in this transaction.",
						   RelationGetRelationName(call->tg_relation)),
				 errhint(PRESENT_HINT)));
	pass(function, guard->resource, known->presented, false, false);
}

/* zk_fence_guard(resource [, column]) returns trigger */
Datum
zkl_fence_guard(PG_FUNCTION_ARGS)
{
	TriggerData *call = (TriggerData *) fcinfo->context;
	GuardCall  *guard;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("zk_fence_guard can only be called as a trigger")));
	guard = fcinfo->flinfo->fn_extra;
	if (guard == NULL)
		fcinfo->flinfo->fn_extra = guard = prepare_guard(fcinfo);

	if (guard->column != InvalidAttrNumber)
	{
		int64		token = token_of_row(call, guard);

		if (guard->epoch != fence.epoch || guard->token != token)
		{
			if (guard->checked)
				require_presentation(call, guard, token);
			pass(fcinfo->flinfo->fn_oid, guard->resource, token, false, false);
			guard->token = token;
			guard->epoch = fence.epoch;
		}
	}
	else if (guard->epoch != fence.epoch)
	{
		pass_without_column(fcinfo->flinfo->fn_oid, call, guard);
		guard->epoch = fence.epoch;
	}

	if (!TRIGGER_FIRED_BEFORE(call->tg_event) || !TRIGGER_FIRED_FOR_ROW(call->tg_event))
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(call->tg_event) ?
						   call->tg_newtuple : call->tg_trigtuple);
}

/* ------------------------------------------------------------------------
 * The other SQL functions
 * ------------------------------------------------------------------------
 */

static char *
resource_argument(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("resource must not be null")));
	return text_to_cstring(PG_GETARG_TEXT_PP(0));
}

static int64
token_argument(FunctionCallInfo fcinfo, const char *resource)
{
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_FENCING_TOKEN_MISSING),
				 errmsg("no fencing token for \"%s\"", resource),
				 errdetail("The token is null, which is what zk_lock_try_acquire returns when the lock is taken.")));
	return PG_GETARG_INT64(1);
}

/* zk_fence_check(resource text, token bigint) returns void */
Datum
zkl_fence_check(PG_FUNCTION_ARGS)
{
	char	   *resource = resource_argument(fcinfo);
	int64		token = token_argument(fcinfo, resource);
	char		name[ZKL_NAME_MAX + 1];
	ZklHold    *hold;
	Pass	   *known;

	zkl_refuse_restricted();
	zkl_guard_check();
	resource_name(resource, name);
	hold = zkl_holds_find(name);
	if (hold != NULL && hold->token == token && !mode_fences(hold->mode))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token " INT64_FORMAT " of \"%s\" is not a fencing token", token, resource),
				 errdetail("This backend holds the lock in mode \"%s\", in which others may hold it at the same time.",
						   zkl_mode_name(hold->mode))));

	pass(fcinfo->flinfo->fn_oid, resource, token, false, true);
	known = pass_at_this_level(resource);
	if (known->presented != token)
	{
		known->presented = token;
		fence.epoch++;
	}
	PG_RETURN_VOID();
}

/* zk_fence_reset(resource text, token bigint) returns void */
Datum
zkl_fence_reset(PG_FUNCTION_ARGS)
{
	char	   *resource = resource_argument(fcinfo);
	int64		token = token_argument(fcinfo, resource);
	char		name[ZKL_NAME_MAX + 1];
	Pass	   *known;

	resource_name(resource, name);
	if (token < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid fencing token " INT64_FORMAT, token),
				 errdetail("A mark is positive, or zero to accept any token.")));
	PreventCommandIfReadOnly("zk_fence_reset()");
	PreventCommandIfParallelMode("zk_fence_reset()");
	reset_mark(fcinfo->flinfo->fn_oid, resource, token);

	/* what this transaction has passed with is no longer the mark */
	if (find_pass(resource, fence.npasses) != NULL)
	{
		known = pass_at_this_level(resource);
		known->passed = known->presented = 0;
		known->lower = InvalidTransactionId;
		fence.epoch++;
	}
	PG_RETURN_VOID();
}
