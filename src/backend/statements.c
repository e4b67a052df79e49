/*-------------------------------------------------------------------------
 *
 * statements.c
 *	  Layers 1 and 5 of the guard: hooks around statements.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_tablespace.h"
#include "executor/executor.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"
#include "utils/syscache.h"

#include "backend/functions.h"
#include "backend/guard_state.h"
#include "backend/text.h"
#include "backend/written.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"

/* How long a client may take to make room for the error message, ms. */
#define HEARING_MS			100

static ExecutorStart_hook_type prev_ExecutorStart = NULL;
static ExecutorRun_hook_type prev_ExecutorRun = NULL;
static ExecutorFinish_hook_type prev_ExecutorFinish = NULL;
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static object_access_hook_type prev_object_access = NULL;
static needs_fmgr_hook_type prev_needs_fmgr = NULL;
static fmgr_hook_type prev_fmgr = NULL;


#define ADDRESS(f)	f,

/* One of those that take and give back locks, whatever it was renamed to? */
static bool
is_zklock_function(Oid oid)
{
	FmgrInfo	flinfo;
	static const PGFunction ours[] = {ZKL_LOCK_FUNCTIONS(ADDRESS)};

	fmgr_info(oid, &flinfo);
	for (int i = 0; i < lengthof(ours); i++)
		if (flinfo.fn_addr == ours[i])
			return true;
	return false;
}

/* A constant or a parameter; a varchar's is made a text's by a node around it. */
static bool
is_constant(Node *arg)
{
	if (IsA(arg, RelabelType))
		arg = (Node *) ((RelabelType *) arg)->arg;
	return IsA(arg, Const) || IsA(arg, Param);
}

/*
 * A FROM-less SELECT of direct zklock calls passes while a loss is not
 * acknowledged, since it is how one acknowledges it.
 */
static bool
query_is_exempt(PlannedStmt *stmt)
{
	Plan	   *plan = stmt->planTree;
	ListCell   *lc;

	if (stmt->commandType != CMD_SELECT || stmt->hasModifyingCTE || stmt->subplans != NIL ||
		!IsA(plan, Result) || plan->lefttree != NULL || plan->qual != NIL ||
		((Result *) plan)->resconstantqual != NULL || plan->targetlist == NIL)
		return false;
	foreach(lc, plan->targetlist)
	{
		TargetEntry *target = lfirst_node(TargetEntry, lc);
		FuncExpr   *call = (FuncExpr *) target->expr;
		ListCell   *arg;

		if (!IsA(call, FuncExpr) || !is_zklock_function(call->funcid))
			return false;
		foreach(arg, call->args)
		{
			if (!is_constant(lfirst(arg)))
				return false;
		}
	}
	return true;
}

/* COMMIT PREPARED and ROLLBACK PREPARED end somebody else's transaction: that is work. */
bool
zkl_is_two_phase(Node *stmt)
{
	return IsA(stmt, TransactionStmt) &&
		(((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED ||
		 ((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

static bool
utility_is_exempt(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
			return !zkl_is_two_phase(stmt);
		case T_DiscardStmt:
		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_DeallocateStmt:
		case T_ClosePortalStmt:
			return true;
		default:
			return false;
	}
}

/* Statements that make or remove what no rollback removes or brings back. */
static bool
has_no_way_back(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_AlterDatabaseStmt:	/* SET TABLESPACE */
		case T_AlterSystemStmt:
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_AlterSubscriptionStmt:	/* slots on the publisher */
		case T_CreateSubscriptionStmt:
		case T_DropSubscriptionStmt:
			return true;
		default:
			return zkl_is_two_phase(stmt);
	}
}

/* A statement begins, or a portal goes on, that is not exempt. */
static void
begin_statement(void)
{
	if (zkl_guard.timer_found || zkl_guard.doom != ZKL_LOSS_NONE)
		zkl_guard_check_doom();
	if (zkl_nholds == 0)
		return;
	zkl_guard_check();
	zkl_rely();
	zkl_guard.did_work = true;
	zkl_guard_check();
}

/*
 * Does the client read, so that there is room for an error message? (The socket is the
 * first member of the Port; its header wants those of libraries that we have no use for.)
 */
static bool
client_can_hear(void)
{
	struct pollfd socket = {.events = POLLOUT};

	if (MyProcPort == NULL || whereToSendOutput != DestRemote)
		return true;
	socket.fd = *(pgsocket *) MyProcPort;
	return poll(&socket, 1, HEARING_MS) > 0;
}

/*
 * Layer 5: an error leaves the outermost statement. If it is the cancel that doom
 * travels as, or that the timer or the worker sent, say what it is. So it is also
 * when somebody caught that and made something else of it: PL/Perl does.
 */
static void
convert_error(MemoryContext context)
{
	ErrorData  *edata;
	bool		travelling = zkl_guard.travelling;
	bool		ours = travelling;

	zkl_guard.travelling = false;
	if (!ours && (geterrcode() == ERRCODE_QUERY_CANCELED || zkl_guard.swallowed))
		ours = (zkl_guard.relying || zkl_guard.doom != ZKL_LOSS_NONE) && !zkl_still_good(0);
	if (!ours)
		return;					/* somebody else's error */

	/*
	 * PostgreSQL tells the client before it rolls back. One that does not
	 * read would keep the row locks in the next holder's way.
	 */
	if (zkl_idle_loss == ZKL_IDLE_TERMINATE && zkl_has_written() && !client_can_hear())
	{
		zkl_guard.dying = true; /* for the log */
		whereToSendOutput = DestNone;
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("terminating connection because the client does not read that its lock is lost")));
	}

	MemoryContextSwitchTo(context);
	edata = CopyErrorData();
	FlushErrorState();
	/* zkl_raise_doom()'s own words need no others */
	if (travelling && edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		edata->sqlerrcode = ZKL_ERRCODE_LOCK_LOST;
		ReThrowError(edata);
	}
	edata->sqlerrcode = ZKL_ERRCODE_LOCK_LOST;
	edata->message = psprintf("%s is lost", zkl_lock_label(zkl_guard.name));
	edata->detail = pstrdup(zkl_doom_detail(zkl_now()));
	edata->hint = pstrdup(ZKL_DOOM_HINT);
	ReThrowError(edata);
}

/*
 * The levels of statements, and of what runs outside of one: deferred triggers at
 * COMMIT, functions that the fast path or the planner calls. What happens at the
 * outermost one is the client's statement; what is nested is not.
 */
void
zkl_enter_level(void)
{
	zkl_guard.travelling = false;
	zkl_guard.nesting++;
	zkl_guard.ending = false;
}

void
zkl_leave_level(void)
{
	Assert(zkl_guard.nesting > 0);
	zkl_guard.nesting--;
	if (!zkl_is_concerned())
		return;
	zkl_come_first();
	if (zkl_guard.nesting > 0)
		return;
	if (zkl_guard.relying)
		zkl_written_note_notify();

	/*
	 * the cancel was caught, or came after the last moment at which it was
	 * served
	 */
	if ((zkl_guard.swallowed || zkl_guard.timer_found) && !zkl_guard.exempt)
	{
		zkl_guard_check();
		zkl_guard.timer_found = false;
	}
	zkl_guard.ending = !IsTransactionBlock();
}

/* In a PG_CATCH, whose caller throws the error again unless this does. */
void
zkl_leave_level_by_error(MemoryContext context)
{
	Assert(zkl_guard.nesting > 0);
	zkl_guard.nesting--;
	zkl_come_first();
	if (zkl_guard.nesting == 0)
		convert_error(context);
}

static void
guard_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	MemoryContext context = CurrentMemoryContext;
	bool		explain_only = (eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0;

	if (!explain_only)
		zkl_written_note_plan(queryDesc->plannedstmt, zkl_is_concerned());
	if (zkl_guard.nesting == 0)
		zkl_guard.exempt = zkl_is_concerned() && query_is_exempt(queryDesc->plannedstmt);
	if (zkl_is_concerned() && !explain_only && !(zkl_guard.nesting == 0 && zkl_guard.exempt))
		begin_statement();
	zkl_enter_level();
	PG_TRY();
	{
		if (prev_ExecutorStart)
			prev_ExecutorStart(queryDesc, eflags);
		else
			standard_ExecutorStart(queryDesc, eflags);
		/* a foreign data wrapper connects here */
		if (zkl_is_concerned())
			zkl_come_first();
		zkl_guard.nesting--;
	}
	PG_CATCH();
	{
		zkl_leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static void
guard_ExecutorRun(ZKL_EXECUTOR_RUN_PARAMS)
{
	MemoryContext context = CurrentMemoryContext;
	const PlannedStmt *around = zkl_guard.statement;

	/* a cursor's next rows: its start may be long ago */
	if (zkl_guard.nesting == 0)
		zkl_guard.exempt = zkl_is_concerned() && query_is_exempt(queryDesc->plannedstmt);
	if (zkl_is_concerned() && !(zkl_guard.nesting == 0 && zkl_guard.exempt))
		begin_statement();
	zkl_enter_level();
	zkl_guard.statement = queryDesc->plannedstmt;
	zkl_guard.running++;
	PG_TRY();
	{
		if (prev_ExecutorRun)
			prev_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		else
			standard_ExecutorRun(ZKL_EXECUTOR_RUN_ARGS);
		if (zkl_is_concerned())
			zkl_written_note_routing(queryDesc->estate);
	}
	PG_CATCH();
	{
		zkl_guard.statement = around;
		zkl_guard.running--;
		zkl_leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	zkl_guard.statement = around;
	zkl_guard.running--;
	zkl_leave_level();
}

static void
guard_ExecutorFinish(QueryDesc *queryDesc)
{
	MemoryContext context = CurrentMemoryContext;

	zkl_enter_level();
	PG_TRY();
	{
		if (prev_ExecutorFinish)
			prev_ExecutorFinish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
	}
	PG_CATCH();
	{
		zkl_leave_level_by_error(context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	zkl_leave_level();
}

static void
guard_ProcessUtility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	MemoryContext memory = CurrentMemoryContext;
	Node	   *stmt = pstmt->utilityStmt;
	const PlannedStmt *around = zkl_guard.statement;
	volatile bool discard_all = IsA(stmt, DiscardStmt) &&
		((DiscardStmt *) stmt)->target == DISCARD_ALL;
	volatile bool copy_in = IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from &&
		((CopyStmt *) stmt)->filename == NULL && zkl_guard.nesting == 0;

	if (zkl_guard.nesting == 0)
		zkl_guard.exempt = utility_is_exempt(stmt);
	zkl_written_note_utility(stmt, zkl_is_concerned());
	if (zkl_is_concerned() && !utility_is_exempt(stmt))
	{
		begin_statement();
		if (has_no_way_back(stmt))
			zkl_begin_without_way_back(stmt);
	}

	if (copy_in)
		zkl_guard.in_copy_in = true;
	zkl_enter_level();
	zkl_guard.statement = NULL;
	PG_TRY();
	{
		if (prev_ProcessUtility)
			prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
								dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv,
									dest, qc);
		if (copy_in)
			zkl_guard.in_copy_in = false;
	}
	PG_CATCH();
	{
		zkl_guard.statement = around;
		if (copy_in)
			zkl_guard.in_copy_in = false;

		/*
		 * it was refused, and nothing is decided: the transaction may stay
		 * open
		 */
		if (zkl_is_two_phase(stmt))
			zkl_undecide();
		zkl_leave_level_by_error(memory);
		PG_RE_THROW();
	}
	PG_END_TRY();
	zkl_guard.statement = around;
	zkl_leave_level();
	if (IsA(stmt, TransactionStmt) && ((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT &&
		zkl_guard.nesting == 0)
		zkl_guard.ending = true;

	if (discard_all)
		(void) zkl_holds_release_all();
}

/*
 * Does this function run as a level of its own? Not one that a statement calls: its
 * level is the statement's. Outside of statements are deferred triggers, what the
 * fast path calls, and what the planner evaluates; there errors are caught by what is
 * written in a procedural language. (Functions in SQL are no matter, and a hook would
 * keep the planner from inlining them. The answer is kept with the function's
 * FmgrInfo, which in the case of C may serve an index for the rest of the connection.)
 */
static bool
guard_needs_fmgr(Oid function)
{
	HeapTuple	tuple;
	bool		needed = false;

	if (prev_needs_fmgr && prev_needs_fmgr(function))
		return true;
	if (zkl_guard.nesting > 0 || !zkl_is_concerned() || !IsTransactionState())
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(tuple);

		needed = form->prorettype == TRIGGEROID ||
			(form->prolang != INTERNALlanguageId && form->prolang != ClanguageId &&
			 form->prolang != SQLlanguageId);
		ReleaseSysCache(tuple);
	}
	return needed;
}

static void
guard_fmgr(FmgrHookEventType event, FmgrInfo *flinfo, Datum *private)
{
	/* of the outermost call, if that is a level of its own */
	static MemoryContext context = NULL;
	static sig_atomic_t exempt = false;

	switch (event)
	{
		case FHET_START:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			/* PostgreSQL does not end what fails to begin */
			if (zkl_guard.nesting == 0)
			{
				if (zkl_is_concerned())
					begin_statement();
				context = CurrentMemoryContext;
				exempt = zkl_guard.exempt;
				zkl_guard.exempt = false;
			}
			zkl_enter_level();
			break;
		case FHET_END:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			if (zkl_guard.nesting == 1)
				zkl_guard.exempt = exempt;
			zkl_leave_level();
			break;
		case FHET_ABORT:
			if (prev_fmgr)
				prev_fmgr(event, flinfo, private);
			if (zkl_guard.nesting == 1)
				zkl_guard.exempt = exempt;
			zkl_leave_level_by_error(context);
			break;
	}
}

/* What no other hook sees: a function called by the fast path, and one of dblink. */
static void
guard_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_FUNCTION_EXECUTE)
		zkl_written_note_function(objectId);
	if (!zkl_is_concerned())
		return;

	/* once more, and nearer to where files are made and removed */
	if ((access == OAT_DROP || access == OAT_POST_CREATE) &&
		(classId == DatabaseRelationId || classId == TableSpaceRelationId))
		zkl_check_way_back();
	if (access != OAT_FUNCTION_EXECUTE)
		return;
	if (zkl_guard.nesting == 0 && MyBEEntry != NULL && MyBEEntry->st_state == STATE_FASTPATH &&
		!is_zklock_function(objectId))
		begin_statement();
}

void
zkl_statements_init(void)
{
	prev_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = guard_ExecutorStart;
	prev_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = guard_ExecutorRun;
	prev_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = guard_ExecutorFinish;
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = guard_ProcessUtility;
	prev_object_access = object_access_hook;
	object_access_hook = guard_object_access;
	prev_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = guard_needs_fmgr;
	prev_fmgr = fmgr_hook;
	fmgr_hook = guard_fmgr;
}
