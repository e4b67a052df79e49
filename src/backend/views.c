/*-------------------------------------------------------------------------
 *
 * views.c
 *	  What people look at, and the operator's last resort.
 *
 * zk_locks, zk_session and the statistics read shared memory and nothing else, so
 * they answer at once, also while the worker is stopped or ZooKeeper is away. They
 * take no lock; each row is right by itself, and two rows need not be of the same
 * moment. zk_lock_queue() and zk_lock_break() have the worker ask ZooKeeper.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "backend/inquire.h"
#include "backend/holds.h"
#include "backend/text.h"
#include "common/clock.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/shmem.h"

/* How long ZooKeeper may take to tell about a queue, ms. */
#define INQUIRY_TIMEOUT_MS	2000

/* How often zk_lock_break() looks whether the holder has let go, ms. */
#define BREAK_POLL_MS		50

/* PG_FUNCTION_INFO_V1 exports the functions themselves only from 16 on */
extern PGDLLEXPORT Datum zkl_locks_view(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_session_view(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_stats_view(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_stats_total(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_stats_reset(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_queue(PG_FUNCTION_ARGS);
extern PGDLLEXPORT Datum zkl_lock_break(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(zkl_locks_view);
PG_FUNCTION_INFO_V1(zkl_session_view);
PG_FUNCTION_INFO_V1(zkl_lock_stats_view);
PG_FUNCTION_INFO_V1(zkl_lock_stats_total);
PG_FUNCTION_INFO_V1(zkl_stats_reset);
PG_FUNCTION_INFO_V1(zkl_lock_queue);
PG_FUNCTION_INFO_V1(zkl_lock_break);

/* ------------------------------------------------------------------------
 * Values
 * ------------------------------------------------------------------------
 */

/* A row under construction. */
typedef struct Row
{
	Datum		values[32];
	bool		nulls[32];
	int			n;
} Row;

static void
put(Row *row, Datum value)
{
	row->values[row->n] = value;
	row->nulls[row->n++] = false;
}

static void
put_null(Row *row)
{
	row->values[row->n] = (Datum) 0;
	row->nulls[row->n++] = true;
}

/* Text as it is kept in shared memory: UTF-8, "" for none. */
static void
put_text(Row *row, const char *utf8)
{
	if (utf8[0] == '\0')
		put_null(row);
	else
		put(row, CStringGetTextDatum(zkl_text_for_message(utf8)));
}

static void
put_int(Row *row, int64 value)
{
	put(row, Int64GetDatum(value));
}

static void
put_counter(Row *row, pg_atomic_uint64 *counter)
{
	put_int(row, (int64) pg_atomic_read_u64(counter));
}

static void
put_interval(Row *row, ZklTime time)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = time;
	put(row, IntervalPGetDatum(interval));
}

/* A time of the lease's clock as one of the wall clock, as that stands now. */
static void
put_time(Row *row, ZklTime time)
{
	if (time == 0)
		put_null(row);
	else
		put(row, TimestampTzGetDatum(GetCurrentTimestamp() - (zkl_now() - time)));
}

static void
put_histogram(Row *row, const uint64 buckets[ZKL_STATS_BUCKETS])
{
	Datum		elements[ZKL_STATS_BUCKETS];

	for (int i = 0; i < ZKL_STATS_BUCKETS; i++)
		elements[i] = Int64GetDatum((int64) buckets[i]);
	put(row, PointerGetDatum(construct_array(elements, ZKL_STATS_BUCKETS, INT8OID,
											 sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE)));
}

static void
finish_row(FunctionCallInfo fcinfo, Row *row)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	Assert(row->n == rsinfo->setDesc->natts);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row->values, row->nulls);
	row->n = 0;
}

static Datum
single_row(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function returning record called in context that cannot accept type record")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), row->values, row->nulls));
}

/* ------------------------------------------------------------------------
 * zk_locks
 * ------------------------------------------------------------------------
 */

static const char *
state_of(const ZklEntry *entry, ZklPhase phase, uint32 flags, uint64 word, ZklTime now)
{
	if (flags & ZKL_FLAG_LET_GO)
		return "releasing";
	if (phase == ZKL_PHASE_WANTED)
		return "waiting";
	if (flags & ZKL_FLAG_LOST)
		return "lost";
	if (entry->generation != zkl_word_generation(word) || now >= zkl_word_deadline(word))
		return "lapsed";
	return "held";
}

/* Which use of the entry is it? Read before and after all else. */
static uint32
read_serial(const ZklEntry *entry)
{
	uint32		serial;

	pg_memory_barrier();
	serial = *(const volatile uint32 *) &entry->serial;
	pg_memory_barrier();
	return serial;
}

/* zk_locks() returns setof record */
Datum
zkl_locks_view(PG_FUNCTION_ARGS)
{
	static const char *const levels_text[] = {"", "backend", "transaction", "backend, transaction"};
	ZklEntry   *copy = palloc(sizeof(ZklEntry));
	Row			row = {.n = 0};

	zkl_require_preload();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		ZklEntry   *entry = &zkl_shared->entries[i];
		uint32		serial = read_serial(entry);
		ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
		uint32		flags = pg_atomic_read_u32(&entry->flags);
		uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
		ZklTime		now = zkl_now();
		const char *state;

		if (phase != ZKL_PHASE_WANTED && phase != ZKL_PHASE_HELD)
			continue;
		pg_read_barrier();
		memcpy(copy, entry, sizeof(*copy));
		pg_read_barrier();
		/* another use of it by now? then what was copied may be half of each */
		if (pg_atomic_read_u32(&entry->phase) != phase ||
			read_serial(entry) != serial)
			continue;

		state = state_of(copy, phase, flags, word, now);
		put_text(&row, copy->name);
		put_text(&row, zkl_mode_name(copy->mode));
		put_text(&row, levels_text[pg_atomic_read_u32(&copy->levels) & 3]);
		put_text(&row, state);
		put(&row, Int32GetDatum(copy->pid));
		put_text(&row, copy->database);
		put_text(&row, copy->user);
		put_text(&row, copy->application);
		if (phase == ZKL_PHASE_HELD)
			put_int(&row, copy->token);
		else
			put_null(&row);
		put_text(&row, copy->saved.contender);
		if (phase == ZKL_PHASE_WANTED && pg_atomic_read_u32(&copy->queued))
			put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&copy->ahead)));
		else
			put_null(&row);
		put_time(&row, copy->wait_start);
		put_time(&row, copy->granted_at);
		if (strcmp(state, "held") == 0)
			put_interval(&row, zkl_word_deadline(word) - now);
		else
			put_null(&row);
		finish_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* ------------------------------------------------------------------------
 * zk_session
 * ------------------------------------------------------------------------
 */

/* zk_session() returns record */
Datum
zkl_session_view(PG_FUNCTION_ARGS)
{
	ZklHealth  *health;
	Row			row = {.n = 0};
	ZklTime		now = zkl_now();
	uint64		word;
	uint32		pid;
	bool		connected;
	uint64		session;
	int			used = 0;
	char		text[ZKL_TROUBLE_SIZE];

	zkl_require_preload();
	health = &zkl_shared->health;
	word = pg_atomic_read_u64(&zkl_shared->lease);
	pid = pg_atomic_read_u32(&zkl_shared->worker_pid);
	connected = pg_atomic_read_u32(&health->connected) != 0;
	session = pg_atomic_read_u64(&health->session);

	put_text(&row, zkl_server_name);
	put_text(&row, pid == 0 ? "no worker" : connected ? "connected" : "connecting");
	if (pid == 0)
		put_null(&row);
	else
		put(&row, Int32GetDatum((int32) pid));
	put_text(&row, pid != 0 && connected && zkl_text_read(&zkl_shared->server, text) ? text : "");
	put_text(&row, session != 0 ? psprintf("0x%" PRIx64, session) : "");
	if (session != 0)
		put_interval(&row, pg_atomic_read_u64(&health->timeout));
	else
		put_null(&row);
	put_interval(&row, Max(zkl_word_deadline(word) - now, 0));
	put_time(&row, pg_atomic_read_u64(&health->heartbeat_sent));
	put_interval(&row, pg_atomic_read_u64(&health->heartbeat_took));
	put_counter(&row, &health->heartbeats);
	put_counter(&row, &health->heartbeat_failures);
	put_counter(&row, &health->connects);
	put_counter(&row, &health->expiries);
	put_counter(&row, &health->lapses);
	put_counter(&row, &health->requests);
	put_counter(&row, &health->in_flight);
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (pg_atomic_read_u32(&zkl_shared->entries[i].phase) != ZKL_PHASE_FREE)
			used++;
	put(&row, Int32GetDatum(used));
	put(&row, Int32GetDatum(zkl_shared->nentries));
	put_counter(&row, &health->node_bytes);
	put_counter(&row, &health->node_budget);
	put_counter(&row, &health->watch_bytes);
	put_counter(&row, &health->watch_budget);
	put_text(&row, zkl_trouble_read(text) ? text : "");
	return single_row(fcinfo, &row);
}

/* ------------------------------------------------------------------------
 * Statistics
 * ------------------------------------------------------------------------
 */

/* zk_lock_stats() returns setof record */
Datum
zkl_lock_stats_view(PG_FUNCTION_ARGS)
{
	ZklLockStats lock;
	Row			row = {.n = 0};

	zkl_require_preload();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < ZKL_STATS_NAMES; i++)
	{
		if (!zkl_stats_read(i, &lock))
			continue;
		put_text(&row, lock.name);
		for (int outcome = 0; outcome < ZKL_STATS_OUTCOMES; outcome++)
			put_int(&row, (int64) lock.count[outcome]);
		put_int(&row, (int64) lock.waited);
		put_interval(&row, lock.wait_total);
		put_interval(&row, lock.wait_max);
		put_interval(&row, lock.hold_total);
		put_interval(&row, lock.hold_max);
		put_histogram(&row, lock.wait_buckets);
		put_histogram(&row, lock.hold_buckets);
		put_time(&row, lock.last_use);
		finish_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* zk_lock_stats_total() returns record */
Datum
zkl_lock_stats_total(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};

	zkl_require_preload();
	for (int outcome = 0; outcome < ZKL_STATS_OUTCOMES; outcome++)
		put_counter(&row, &zkl_stats->total[outcome]);
	put_counter(&row, &zkl_stats->forgotten);
	put(&row, TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&zkl_stats->reset_at)));
	return single_row(fcinfo, &row);
}

static void
sleep_ms(long ms)
{
	static uint32 wait_event = 0;

	zkl_sleep(ms, &wait_event, "ZklockView");
}

/* zk_stats_reset() returns void */
Datum
zkl_stats_reset(PG_FUNCTION_ARGS)
{
	ZklTime		until = zkl_now() + ZKL_MS(INQUIRY_TIMEOUT_MS);

	zkl_require_preload();
	pg_atomic_write_u32(&zkl_stats->reset_wanted, 1);
	zkl_wake_worker();
	while (pg_atomic_read_u32(&zkl_stats->reset_wanted) != 0)
	{
		if (zkl_now() >= until)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the zklock worker has not reset the statistics yet"),
					 errdetail("It will do so when it runs again.")));
		sleep_ms(10);
	}
	PG_RETURN_VOID();
}

/* ------------------------------------------------------------------------
 * The queue, from ZooKeeper
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
				 errmsg("ZooKeeper does not list the queue of %s", zkl_lock_label(name)),
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
	Row			row = {.n = 0};
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
		put(&row, Int32GetDatum(++position));
		put(&row, BoolGetDatum(holds(queue, i)));
		put_text(&row, mode_text(contender->kind));
		put_text(&row, contender->data.server);
		if (contender->data.pid > 0)
			put(&row, Int32GetDatum(contender->data.pid));
		else
			put_null(&row);
		put_text(&row, contender->data.database);
		put_text(&row, contender->data.user);
		put_text(&row, contender->data.application);
		put(&row, TimestampTzGetDatum((TimestampTz) contender->created * 1000 -
									  (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY));
		put_int(&row, contender->token);
		put_text(&row, psprintf("0x%" PRIx64, (uint64) contender->session));
		put_text(&row, contender->contender);
		finish_row(fcinfo, &row);
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

/* Ask the holder to let go: a zklock server says who asks and gives up in any case,
 * Curator's holders hear it if they are revocable, others do not. */
static void
ask_to_let_go(const char *name, const ZklContenderRow *row, const char *breaker)
{
	ZklQuestion question = {.kind = ZKL_QUESTION_ASK_BACK, .ours = row->ours, .data = row->data};

	strlcpy(question.name, name, sizeof(question.name));
	strlcpy(question.contender, row->contender, sizeof(question.contender));
	strlcpy(question.data.breaker, breaker, sizeof(question.data.breaker));
	(void) zkl_inquire(&question, false, INQUIRY_TIMEOUT_MS);
}

static void
remove_contender(const char *name, const ZklContenderRow *row)
{
	ZklQuestion question = {.kind = ZKL_QUESTION_REMOVE};

	strlcpy(question.name, name, sizeof(question.name));
	strlcpy(question.contender, row->contender, sizeof(question.contender));
	(void) zkl_inquire(&question, false, INQUIRY_TIMEOUT_MS);
}

/* How many of the holders in "queue" are still there? Marks those that are gone. */
static int
count_still_there(const char *name, ZklDesk *queue, const bool *holding)
{
	ZklDesk    *current = ask_for_queue(name, false);
	int			left = 0;

	for (int i = 0; i < queue->nrows; i++)
	{
		bool		found = false;

		if (!holding[i] || queue->rows[i].token == 0)
			continue;
		for (int j = 0; j < current->nrows && !found; j++)
			found = strcmp(queue->rows[i].contender, current->rows[j].contender) == 0;
		if (found)
			left++;
		else
			queue->rows[i].token = 0;
	}
	pfree(current);
	return left;
}

/* zk_lock_break(name text, patience interval) returns text */
Datum
zkl_lock_break(PG_FUNCTION_ARGS)
{
	char		name[ZKL_NAME_MAX + 1];
	char		breaker[sizeof(((ZklNodeData *) 0)->breaker)];
	bool		holding[ZKL_ANSWER_ROWS] = {false};
	const char *outcome = "released";
	const char *stubborn = NULL;
	ZklDesk    *queue;
	int			nholding = 0;
	int			patience;
	ZklTime		until;
	ZklHold    *own;
	StringInfoData holders;

	zkl_require_preload();
	queue_argument(fcinfo, name);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("patience must not be null")));
	patience = zkl_interval_ms(PG_GETARG_INTERVAL_P(1));
	own = zkl_holds_find(name);
	if (own != NULL && own->loss == ZKL_LOSS_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s is held by this backend", zkl_lock_label(name)),
				 errhint("Release it with zk_lock_release.")));

	zkl_copy_as_utf8(breaker, sizeof(breaker),
					 psprintf("user \"%s\" of server \"%s\"", GetUserNameFromId(GetUserId(), false),
							  zkl_server_name));
	queue = ask_for_queue(name, false);
	initStringInfo(&holders);
	for (int i = 0; i < queue->nrows; i++)
	{
		ZklContenderRow *row = &queue->rows[i];

		if (row->token == 0 || !holds(queue, i))
			continue;
		holding[i] = true;
		nholding++;
		appendStringInfoString(&holders, holders.len > 0 ? ", " : "");
		if (row->data.server[0] != '\0')
			appendStringInfo(&holders, "\"%s\"", row->data.server);
		else
			appendStringInfoString(&holders, "a client that does not say who it is");
		if (row->data.pid > 0)
			appendStringInfo(&holders, " process %d", row->data.pid);
	}
	/* of a semaphore that so many hold: those that were seen, and then the next ones */
	if (queue->contenders > queue->nrows && nholding == queue->nrows)
		ereport(NOTICE,
				(errmsg("more than %d clients hold %s", queue->nrows, zkl_lock_label(name)),
				 errhint("It is taken from the first %d; repeat the call for the others.", queue->nrows)));
	if (nholding == 0)
		PG_RETURN_TEXT_P(cstring_to_text("free"));

	for (int i = 0; i < queue->nrows; i++)
		if (holding[i])
		{
			ask_to_let_go(name, &queue->rows[i], breaker);
			/* a commit that is past its check has T to get over it, and a server that is
			 * gone a little more until the ensemble has noticed */
			if (queue->rows[i].ours)
				patience = Max(patience,
							   Min(queue->rows[i].data.timeout, ZKL_SESSION_TIMEOUT_MAX_MS) / 4 * 5);
		}
	until = zkl_now() + ZKL_MS(patience);
	while (count_still_there(name, queue, holding) > 0 && zkl_now() < until)
		sleep_ms(BREAK_POLL_MS);
	for (int i = 0; i < queue->nrows; i++)
	{
		if (!holding[i] || queue->rows[i].token == 0)
			continue;

		/*
		 * A zklock server gives a lock up as soon as nothing can commit under it any
		 * more, and the ensemble frees that of one that is gone. Whatever keeps it,
		 * its node must not be deleted: a commit that has passed its check would be
		 * overtaken.
		 */
		if (queue->rows[i].ours)
		{
			stubborn = queue->rows[i].data.server;
			continue;
		}
		remove_contender(name, &queue->rows[i]);
		outcome = "deleted";
	}
	if (count_still_there(name, queue, holding) > 0 && stubborn != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("%s could not be taken from %s within %d ms", zkl_lock_label(name),
						zkl_text_for_message(holders.data), patience),
				 errdetail("Server \"%s\" was asked and has not let go: a commit under the lock has passed its check and is not over, or the server's zklock worker does not answer.",
						   zkl_text_for_message(stubborn)),
				 errhint("Look there for what a COMMIT waits for (a synchronous standby?), or end the zklock worker of that server.")));
	if (count_still_there(name, queue, holding) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s could not be taken from its holder", zkl_lock_label(name)),
				 errhint("Compare zklock.acl and zklock.credentials_file of all servers with the ACL of the lock's directory.")));

	ereport(LOG,
			(errmsg("zklock: lock \"%s\" was taken from %s by %s: %s",
					zkl_text_for_message(name), zkl_text_for_message(holders.data),
					zkl_text_for_message(breaker),
					strcmp(outcome, "deleted") == 0 ? "its node was deleted" : "it let go when it was asked")));
	PG_RETURN_TEXT_P(cstring_to_text(outcome));
}
