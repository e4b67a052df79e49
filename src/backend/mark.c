/*-------------------------------------------------------------------------
 *
 * mark.c
 *	  The table zk_fence: the newest token of each resource, its mark.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "access/genam.h"
#include "access/multixact.h"
#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "common/ip.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/xid8.h"

#include "backend/mark.h"
#include "backend/snapshot.h"
#include "common/compat.h"

/*
 * The class of our advisory locks, the last field of their tags: "ZK". Classes 1
 * and 2 are pg_advisory_lock()'s, which can name no other; Citus has 4 to 16.
 */
#define LOCK_CLASS			0x5A4B

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
char *
zkl_mark_describe_presenter(const ZklMark *mark)
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
		/*
		 * a savepoint's and the transaction's, or an owner's who locks rows
		 * himself
		 */
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
read_mark(Table *table, const char *resource, TupleTableSlot *slot, ZklMark *mark)
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
		ExecSimpleRelationUpdate(target, estate, NULL, slot, row);	/* no trigger asks for
																	 * the NULL */
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
ZklMark
zkl_mark_advance(Oid function, const char *resource, int64 token, TransactionId before, bool call)
{
	ZklMark		mark;
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

		/*
		 * our own trace covers that of whom we found when we passed with a
		 * lower token
		 */
		if (TransactionIdIsNormal(mark.last) && zkl_is_own_transaction(mark.last))
			mark.last = before;
		if (token > mark.token)
			mark.lower = mark.last;

		/* before we leave our own trace: what fails must fail again */
		zkl_refuse_old_snapshot(function, resource, token, mark.lower, call);
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
void
zkl_mark_reset(Oid function, const char *resource, int64 token)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) resource, strlen(resource), 0);
	TupleTableSlot *slot;
	LOCKTAG		tag;
	Table		table;
	ZklMark		mark;
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
