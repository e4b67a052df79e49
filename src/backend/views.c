/*-------------------------------------------------------------------------
 *
 * views.c
 *	  What people look at: zk_locks, zk_session, the statistics.
 *
 * They read shared memory and nothing else, so they answer at once, also while the
 * worker is stopped or the coordinator is away. They take no lock; each row is right by
 * itself, and two rows need not be of the same moment.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>

#include "funcapi.h"

#include "backend/functions.h"
#include "backend/row.h"
#include "backend/text.h"
#include "common/compat.h"
#include "common/settings.h"
#include "shared/shmem.h"

/* How long the worker may take to reset the statistics, ms. */
#define RESET_TIMEOUT_MS	2000

ZKL_SQL_FUNCTION(zkl_locks_view);
ZKL_SQL_FUNCTION(zkl_session_view);
ZKL_SQL_FUNCTION(zkl_lock_stats_view);
ZKL_SQL_FUNCTION(zkl_lock_stats_total);
ZKL_SQL_FUNCTION(zkl_stats_reset);

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
	ZklRow		row = {.n = 0};

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
		zkl_row_put_text(&row, copy->name);
		zkl_row_put_text(&row, zkl_mode_name(copy->mode));
		zkl_row_put_text(&row, levels_text[pg_atomic_read_u32(&copy->levels) & 3]);
		zkl_row_put_text(&row, state);
		zkl_row_put(&row, Int32GetDatum(copy->pid));
		zkl_row_put_text(&row, copy->database);
		zkl_row_put_text(&row, copy->user);
		zkl_row_put_text(&row, copy->application);
		if (phase == ZKL_PHASE_HELD)
			zkl_row_put_int(&row, copy->token);
		else
			zkl_row_put_null(&row);
		zkl_row_put_text(&row, copy->saved.contender);
		if (phase == ZKL_PHASE_WANTED && pg_atomic_read_u32(&copy->queued))
			zkl_row_put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&copy->ahead)));
		else
			zkl_row_put_null(&row);
		zkl_row_put_time(&row, copy->wait_start);
		zkl_row_put_time(&row, copy->granted_at);
		if (strcmp(state, "held") == 0)
			zkl_row_put_interval(&row, zkl_word_deadline(word) - now);
		else
			zkl_row_put_null(&row);
		zkl_row_finish(fcinfo, &row);
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
	ZklRow		row = {.n = 0};
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

	zkl_row_put_text(&row, zkl_server_name);
	zkl_row_put_text(&row, pid == 0 ? "no worker" : connected ? "connected" : "connecting");
	if (pid == 0)
		zkl_row_put_null(&row);
	else
		zkl_row_put(&row, Int32GetDatum((int32) pid));
	zkl_row_put_text(&row, zkl_coordinator_name());
	zkl_row_put_text(&row, pid != 0 && connected && zkl_text_read(&zkl_shared->server, text) ? text : "");
	zkl_row_put_text(&row, session != 0 ? psprintf("0x%" PRIx64, session) : "");
	if (session != 0)
		zkl_row_put_interval(&row, pg_atomic_read_u64(&health->timeout));
	else
		zkl_row_put_null(&row);
	zkl_row_put_interval(&row, Max(zkl_word_deadline(word) - now, 0));
	zkl_row_put_time(&row, pg_atomic_read_u64(&health->heartbeat_sent));
	zkl_row_put_interval(&row, pg_atomic_read_u64(&health->heartbeat_took));
	zkl_row_put_counter(&row, &health->heartbeats);
	zkl_row_put_counter(&row, &health->heartbeat_failures);
	zkl_row_put_counter(&row, &health->connects);
	zkl_row_put_counter(&row, &health->expiries);
	zkl_row_put_counter(&row, &health->lapses);
	zkl_row_put_counter(&row, &health->requests);
	zkl_row_put_counter(&row, &health->in_flight);
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (pg_atomic_read_u32(&zkl_shared->entries[i].phase) != ZKL_PHASE_FREE)
			used++;
	zkl_row_put(&row, Int32GetDatum(used));
	zkl_row_put(&row, Int32GetDatum(zkl_shared->nentries));
	zkl_row_put_counter(&row, &health->node_bytes);
	zkl_row_put_counter(&row, &health->node_budget);
	zkl_row_put_counter(&row, &health->watch_bytes);
	zkl_row_put_counter(&row, &health->watch_budget);
	zkl_row_put_text(&row, zkl_trouble_read(text) ? text : "");
	return zkl_row_only(fcinfo, &row);
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
	ZklRow		row = {.n = 0};

	zkl_require_preload();
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < ZKL_STATS_NAMES; i++)
	{
		if (!zkl_stats_read(i, &lock))
			continue;
		zkl_row_put_text(&row, lock.name);
		for (int outcome = 0; outcome < ZKL_STATS_OUTCOMES; outcome++)
			zkl_row_put_int(&row, (int64) lock.count[outcome]);
		zkl_row_put_int(&row, (int64) lock.waited);
		zkl_row_put_interval(&row, lock.wait_total);
		zkl_row_put_interval(&row, lock.wait_max);
		zkl_row_put_interval(&row, lock.hold_total);
		zkl_row_put_interval(&row, lock.hold_max);
		zkl_row_put_histogram(&row, lock.wait_buckets);
		zkl_row_put_histogram(&row, lock.hold_buckets);
		zkl_row_put_time(&row, lock.last_use);
		zkl_row_finish(fcinfo, &row);
	}
	return (Datum) 0;
}

/* zk_lock_stats_total() returns record */
Datum
zkl_lock_stats_total(PG_FUNCTION_ARGS)
{
	ZklRow		row = {.n = 0};

	zkl_require_preload();
	for (int outcome = 0; outcome < ZKL_STATS_OUTCOMES; outcome++)
		zkl_row_put_counter(&row, &zkl_stats->total[outcome]);
	zkl_row_put_counter(&row, &zkl_stats->forgotten);
	zkl_row_put(&row, TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&zkl_stats->reset_at)));
	return zkl_row_only(fcinfo, &row);
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
	ZklTime		until = zkl_now() + ZKL_MS(RESET_TIMEOUT_MS);

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
