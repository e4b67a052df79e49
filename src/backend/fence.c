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
 *	  a writer that waited for a row that was then changed gets a serialization failure
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
 *	  too, where the snapshot is the statement's. See snapshot.c.
 *
 * - It is forgotten with what it rests on. That a transaction has passed is
 *	  remembered, so that a million rows cost one look; but the lock, the row lock
 *	  and the raised mark all go when the savepoint they came after is rolled back,
 *	  and so must the memory of them.
 *
 * None of this needs a coordinator, shared memory or a worker: tokens are numbers,
 * and a server that only checks them loads this library on demand. Where a
 * worker runs it vouches for them: a token above all that the ensemble had issued
 * when it was presented is refused, or anybody who may present one could close
 * a resource for ever with the largest number there is.
 *
 * The table is the one that belongs to the same extension as the function that was
 * called, by OID. No statement is parsed, no plan is kept, no name is looked up but
 * in the function's own schema, and none of the table's triggers, rules and policies
 * has a say: search_path, rights and row security of the writer do not matter, and
 * a user who renames a schema and puts another table in its place gets an error.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netdb.h>
#include <sys/socket.h>

#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "backend/fence.h"
#include "backend/guard.h"
#include "backend/mark.h"
#include "backend/snapshot.h"
#include "backend/text.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/shmem.h"

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

	/*
	 * one up whenever a pass is added, changed or forgotten: what a trigger
	 * remembers for its next row is good while this stands still; never 0,
	 * which is the epoch of a trigger that remembers nothing
	 */
	uint64		epoch;
	bool		callbacks_registered;
}			fence = {.epoch = 1};

/* What a trigger remembers from row to row, in its FmgrInfo. */
typedef struct GuardCall
{
	const char *resource;
	AttrNumber	column;			/* that holds the token, or InvalidAttrNumber */
	bool		checked;		/* the token there must have been presented,
								 * too */
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
 * Tokens
 * ------------------------------------------------------------------------
 */

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
	zkl_check_resource(resource, name);
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

/* Sleep a moment while the worker asks the coordinator. */
static void
sleep_while_asked(void)
{
	static uint32 wait_event = 0;

	zkl_sleep(ASK_POLL_MS, &wait_event, "ZklockFence");
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
	int64		mark;
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
					 errdetail("%s did not answer within %d ms.", zkl_coordinator_name(), ASK_PATIENCE_MS),
					 errhint("The token is newer than all that this server has heard of from %s.",
							 zkl_coordinator_name())));
		}
		pg_atomic_write_u32(&zkl_shared->mark_wanted, 1);
		zkl_wake_worker();
		sleep_while_asked();
	}
	/* published after the counter that it belongs to */
	pg_read_barrier();
	mark = (int64) pg_atomic_read_u64(&zkl_shared->mark);
	if (token > mark)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fencing token " INT64_FORMAT " for \"%s\" has never been issued",
						token, resource),
				 errdetail("%s has counted up to " INT64_FORMAT ".", zkl_coordinator_name(), mark),
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
	ZklMark		mark;

	if (known != NULL && known->passed == token)
	{
		zkl_refuse_old_snapshot(function, resource, token, known->lower, call);
		return;
	}

	PreventCommandIfReadOnly("zk_fence_check()");
	PreventCommandIfParallelMode("zk_fence_check()");
	zkl_check_resource(resource, name);
	refuse_number(token);
	if (!issued)
		refuse_future(resource, token);

	mark = zkl_mark_advance(function, resource, token,
							known != NULL ? known->before : InvalidTransactionId, call);
	if (token < mark.token)
		ereport(ERROR,
				(errcode(ZKL_ERRCODE_STALE_FENCING_TOKEN),
				 errmsg("fencing token " INT64_FORMAT " for \"%s\" is stale", token, resource),
				 errdetail("The newest token is " INT64_FORMAT ", presented by %s.",
						   mark.token, zkl_mark_describe_presenter(&mark)),
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
	zkl_check_resource(trigger->tgargs[0], name);

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

	/*
	 * the writer's lock and token, and not those of whoever runs his code;
	 * what a row brings along is its own
	 */
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
	zkl_check_resource(resource, name);
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

	zkl_check_resource(resource, name);
	if (token < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid fencing token " INT64_FORMAT, token),
				 errdetail("A mark is positive, or zero to accept any token.")));
	PreventCommandIfReadOnly("zk_fence_reset()");
	PreventCommandIfParallelMode("zk_fence_reset()");
	zkl_mark_reset(fcinfo->flinfo->fn_oid, resource, token);

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
