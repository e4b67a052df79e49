/*-------------------------------------------------------------------------
 *
 * operate.c
 *	  What an operator does: look at a lock's queue, take a lock away.
 *
 * zk_lock_queue() and zk_lock_break() have the worker ask the coordinator.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>

#include "funcapi.h"
#include "utils/builtins.h"

#include "backend/functions.h"
#include "backend/holds.h"
#include "backend/inquire.h"
#include "backend/row.h"
#include "backend/text.h"
#include "common/errors.h"
#include "common/settings.h"

/* How long the coordinator may take to tell about a queue, ms. */
#define INQUIRY_TIMEOUT_MS	2000

/* How often zk_lock_break() looks whether the holder has let go, ms. */
#define BREAK_POLL_MS		50

ZKL_SQL_FUNCTION(zkl_lock_queue);
ZKL_SQL_FUNCTION(zkl_lock_break);

/* ------------------------------------------------------------------------
 * zk_lock_queue
 * ------------------------------------------------------------------------
 */

/* A lock's name, or that of one of a semaphore's directories. */
static void
queue_argument(FunctionCallInfo fcinfo, char name[ZKL_NAME_MAX + 1])
{
	static const char *const suffixes[] = {"", ZKL_SEMAPHORE_LEASES, ZKL_SEMAPHORE_LOCKS};
	char	   *given;
	size_t		len;
	int			i;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lock name must not be null")));
	given = text_to_cstring(PG_GETARG_TEXT_PP(0));
	len = strlen(given);
	for (i = lengthof(suffixes) - 1; i > 0; i--)
		if (len > strlen(suffixes[i]) &&
			strcmp(given + len - strlen(suffixes[i]), suffixes[i]) == 0)
			break;
	given[len - strlen(suffixes[i])] = '\0';
	zkl_check_name(given, name);
	if (strlcat(name, suffixes[i], ZKL_NAME_MAX + 1) > ZKL_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lock name is too long")));
}

/*
 * The contenders for a lock, of which there may be none. "looks": for a user who only
 * looks, of whom there may be many; else for an operator.
 */
static ZklDesk *
ask_for_queue(const char *name, bool looks)
{
	ZklQuestion question = {.kind = ZKL_QUESTION_QUEUE};
	ZklDesk    *answer;

	strlcpy(question.name, name, sizeof(question.name));
	answer = zkl_inquire(&question, looks, INQUIRY_TIMEOUT_MS);
	if (answer->result == ZKL_ANSWER_NOTHING_THERE)
		answer->nrows = 0;
	else if (answer->result != ZKL_ANSWER_OK)
		ereport(ERROR,
				(errcode(answer->result == ZKL_ANSWER_DENIED ? ERRCODE_INSUFFICIENT_PRIVILEGE :
						 ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
				 errmsg("%s does not list the queue of %s", zkl_coordinator_name(),
						zkl_lock_label(name)),
				 errdetail("%s", answer->text)));
	return answer;
}

static const char *
mode_text(ZklContenderKind kind)
{
	switch (kind)
	{
		case ZKL_CONTENDER_LOCK:
			return "exclusive";
		case ZKL_CONTENDER_READ:
			return "read";
		case ZKL_CONTENDER_WRITE:
			return "write";
		case ZKL_CONTENDER_NONE:
			break;
	}
	return "lease";
}

/*
 * Does row i hold the lock: does no earlier row conflict with it? Rows are sorted by
 * their places; equal places are a write lock and what it was downgraded to.
 */
static bool
holds(const ZklDesk *queue, int i)
{
	const ZklContenderRow *mine = &queue->rows[i];
	ZklMode		mode = mine->kind == ZKL_CONTENDER_READ ? ZKL_MODE_READ : ZKL_MODE_WRITE;
	int			before = 0;

	for (int j = 0; j < i; j++)
	{
		const ZklContenderRow *other = &queue->rows[j];

		if (other->token == 0)
			continue;
		before++;
		if (mine->kind != ZKL_CONTENDER_NONE && other->place != mine->place &&
			zkl_mode_conflicts(mode, other->kind))
			return false;
	}
	return mine->kind != ZKL_CONTENDER_NONE || mine->data.permits == 0 ||
		before < mine->data.permits;
}

/* zk_lock_queue(name text) returns setof record */
Datum
zkl_lock_queue(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	ZklDesk    *queue;
	ZklRow		row = {.n = 0};
	int			position = 0;

	zkl_require_preload();
	queue_argument(fcinfo, name);
	queue = ask_for_queue(name, true);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < queue->nrows; i++)
	{
		ZklContenderRow *contender = &queue->rows[i];

		if (contender->token == 0)
			continue;			/* gone by the time we looked at it */
		zkl_row_put(&row, Int32GetDatum(++position));
		zkl_row_put(&row, BoolGetDatum(holds(queue, i)));
		zkl_row_put_text(&row, mode_text(contender->kind));
		zkl_row_put_text(&row, contender->data.server);
		if (contender->data.pid > 0)
			zkl_row_put(&row, Int32GetDatum(contender->data.pid));
		else
			zkl_row_put_null(&row);
		zkl_row_put_text(&row, contender->data.database);
		zkl_row_put_text(&row, contender->data.user);
		zkl_row_put_text(&row, contender->data.application);
		zkl_row_put(&row, TimestampTzGetDatum((TimestampTz) contender->created * 1000 -
											  (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY));
		zkl_row_put_int(&row, contender->token);
		zkl_row_put_text(&row, psprintf("0x%" PRIx64, (uint64) contender->session));
		zkl_row_put_text(&row, contender->contender);
		zkl_row_finish(fcinfo, &row);
	}
	if (queue->contenders > queue->nrows)
		ereport(NOTICE,
				(errmsg("%d contenders stand in the queue of %s, the first %d are shown",
						queue->contenders, zkl_lock_label(name), queue->nrows)));
	return (Datum) 0;
}

/* ------------------------------------------------------------------------
 * zk_lock_break
 * ------------------------------------------------------------------------
 */

/* What zk_lock_break() works on. */
typedef struct Break
{
	char		name[ZKL_NAME_MAX + 1];
	char		breaker[sizeof(((ZklNodeData *) 0)->breaker)];
	ZklDesk    *queue;			/* as it was at the beginning; token 0 = gone
								 * since */
	bool		holding[ZKL_ANSWER_ROWS];	/* those rows held the lock then */
	int			nholding;
	StringInfoData holders;		/* for messages: who they are; UTF-8 */
	int			patience;		/* ms */
	const char *stubborn;		/* a server of ours that has not let go, or
								 * NULL */
	bool		removed;		/* a contender was removed */
} Break;

static void
describe_contender(StringInfo to, const ZklContenderRow *row)
{
	appendStringInfoString(to, to->len > 0 ? ", " : "");
	if (row->data.server[0] != '\0')
		appendStringInfo(to, "\"%s\"", row->data.server);
	else
		appendStringInfoString(to, "a client that does not say who it is");
	if (row->data.pid > 0)
		appendStringInfo(to, " process %d", row->data.pid);
}

/* Which contenders hold the lock? */
static void
choose_holders(Break *brk)
{
	brk->queue = ask_for_queue(brk->name, false);
	initStringInfo(&brk->holders);
	for (int i = 0; i < brk->queue->nrows; i++)
	{
		if (brk->queue->rows[i].token == 0 || !holds(brk->queue, i))
			continue;
		brk->holding[i] = true;
		brk->nholding++;
		describe_contender(&brk->holders, &brk->queue->rows[i]);
	}

	/*
	 * of a semaphore that so many hold: those that were seen, and then the
	 * next ones
	 */
	if (brk->queue->contenders > brk->queue->nrows && brk->nholding == brk->queue->nrows)
		ereport(NOTICE,
				(errmsg("more than %d clients hold %s", brk->queue->nrows, zkl_lock_label(brk->name)),
				 errhint("It is taken from the first %d; repeat the call for the others.",
						 brk->queue->nrows)));
}

/*
 * Ask the holders to let go: a zklock server says who asks and gives up in any case,
 * Curator's holders hear it if they are revocable, others do not. A commit that is past
 * its check has T to get over it, and a server that is gone a little more until the
 * coordinator has noticed.
 */
static void
ask_holders(Break *brk)
{
	for (int i = 0; i < brk->queue->nrows; i++)
	{
		ZklContenderRow *row = &brk->queue->rows[i];
		ZklQuestion question = {.kind = ZKL_QUESTION_ASK_BACK,.ours = row->ours,.data = row->data};

		if (!brk->holding[i])
			continue;
		strlcpy(question.name, brk->name, sizeof(question.name));
		strlcpy(question.contender, row->contender, sizeof(question.contender));
		strlcpy(question.data.breaker, brk->breaker, sizeof(question.data.breaker));
		(void) zkl_inquire(&question, false, INQUIRY_TIMEOUT_MS);
		if (row->ours)
			brk->patience = Max(brk->patience,
								Min(row->data.timeout, ZKL_SESSION_TIMEOUT_MAX_MS) / 4 * 5);
	}
}

/* Returns how many of the holders are still there, and marks those that are gone. */
static int
count_still_there(Break *brk)
{
	ZklDesk    *current = ask_for_queue(brk->name, false);
	int			left = 0;

	for (int i = 0; i < brk->queue->nrows; i++)
	{
		ZklContenderRow *row = &brk->queue->rows[i];
		bool		found = false;

		if (!brk->holding[i] || row->token == 0)
			continue;
		for (int j = 0; j < current->nrows && !found; j++)
			found = strcmp(row->contender, current->rows[j].contender) == 0;
		if (found)
			left++;
		else
			row->token = 0;
	}
	pfree(current);
	return left;
}

static void
wait_until_gone(Break *brk)
{
	static uint32 wait_event = 0;
	ZklTime		until = zkl_now() + ZKL_MS(brk->patience);

	while (count_still_there(brk) > 0 && zkl_now() < until)
		zkl_sleep(BREAK_POLL_MS, &wait_event, "ZklockView");
}

/*
 * A zklock server gives a lock up as soon as nothing can commit under it any more, and the
 * coordinator frees that of one that is gone. Whatever keeps it, its contender must not be
 * removed: a commit that has passed its check would be overtaken. That of another client
 * is removed.
 */
static void
remove_holders(Break *brk)
{
	for (int i = 0; i < brk->queue->nrows; i++)
	{
		ZklContenderRow *row = &brk->queue->rows[i];
		ZklQuestion question = {.kind = ZKL_QUESTION_REMOVE};

		if (!brk->holding[i] || row->token == 0)
			continue;
		if (row->ours)
		{
			brk->stubborn = row->data.server;
			continue;
		}
		strlcpy(question.name, brk->name, sizeof(question.name));
		strlcpy(question.contender, row->contender, sizeof(question.contender));
		(void) zkl_inquire(&question, false, INQUIRY_TIMEOUT_MS);
		brk->removed = true;
	}
}

/* After all that, there is still a holder. */
static void
raise_not_broken(const Break *brk)
{
	if (brk->stubborn != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("%s could not be taken from %s within %d ms", zkl_lock_label(brk->name),
						zkl_text_for_message(brk->holders.data), brk->patience),
				 errdetail("Server \"%s\" was asked and has not let go: a commit under the lock has passed its check and is not over, or the server's zklock worker does not answer.",
						   zkl_text_for_message(brk->stubborn)),
				 errhint("Look there for what a COMMIT waits for (a synchronous standby?), or end the zklock worker of that server.")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("%s could not be taken from its holder", zkl_lock_label(brk->name)),
			 errhint("Compare zklock.acl and zklock.credentials_file of all servers with the ACL of the lock's directory.")));
}

/* zk_lock_break(name text, patience interval) returns text */
Datum
zkl_lock_break(PG_FUNCTION_ARGS)
{
	Break		brk = {.nholding = 0};
	ZklHold    *own;

	zkl_require_preload();
	queue_argument(fcinfo, brk.name);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("patience must not be null")));
	brk.patience = zkl_interval_ms(PG_GETARG_INTERVAL_P(1));
	own = zkl_holds_find(brk.name);
	if (own != NULL && own->loss == ZKL_LOSS_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s is held by this backend", zkl_lock_label(brk.name)),
				 errhint("Release it with zk_lock_release.")));
	zkl_copy_as_utf8(brk.breaker, sizeof(brk.breaker),
					 psprintf("user \"%s\" of server \"%s\"", GetUserNameFromId(GetUserId(), false),
							  zkl_server_name));

	choose_holders(&brk);
	if (brk.nholding == 0)
		PG_RETURN_TEXT_P(cstring_to_text("free"));
	ask_holders(&brk);
	wait_until_gone(&brk);
	remove_holders(&brk);
	if (count_still_there(&brk) > 0)
		raise_not_broken(&brk);

	ereport(LOG,
			(errmsg("zklock: lock \"%s\" was taken from %s by %s: %s",
					zkl_text_for_message(brk.name), zkl_text_for_message(brk.holders.data),
					zkl_text_for_message(brk.breaker),
					brk.removed ? "its node was deleted" : "it let go when it was asked")));
	PG_RETURN_TEXT_P(cstring_to_text(brk.removed ? "deleted" : "released"));
}
