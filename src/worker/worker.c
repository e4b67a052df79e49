/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker: one session for all backends.
 *
 * It stands between the backends, whose wishes and whose truth are in shared memory, and
 * the coordinator, which keeps the locks (coordinator.h). Each turn of the main loop
 * takes in what the coordinator has heard, hands it the owners' wishes, lets it send, and
 * writes its events into shared memory.
 *
 * Rules that keep it harmless:
 *
 * - It never blocks except in its one wait, which has a bound, so it absorbs
 *	 barriers (CREATE DATABASE waits for every process that has a ProcSignal
 *	 slot). The coordinator's calls do not block; only to end the session when the
 *	 server stops may take a second, and to get rid of a handle of the client library
 *	 half of one.
 * - It takes no lock that a backend could hold while it is stopped.
 * - Nothing that must outlive it is in its own memory: a new worker finds the
 *	 entries in shared memory and the session in zkl_survivor, and goes
 *	 on with both. So it leaves without closing the session (closing
 *	 frees every lock at once), except when the whole server stops.
 * - It ends with exit code 1, whatever the reason: after 0 the postmaster would
 *	 never start it again.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"

#include "common/compat.h"
#include "common/settings.h"
#include "worker/internal.h"
#include "worker/worker.h"
#include "zookeeper/ensemble.h"

PGDLLEXPORT void zklock_worker_main(Datum main_arg);

/* The coordinator's eventfd, and its client library's socket and pipe. */
#define EXTERNAL_FDS		4

/* While something has to be looked at that rings no bell, ms. */
#define POLL_MS				20
#define STOPPING_POLL_MS	50

Worker		zkl_worker;

static WaitEventSet *wait_set;
static uint32 wait_event;

pg_noreturn static void fail_for_coordinator(const char *message);
static void initialise(void);
static void drain_events(void);
static void publish_health(void);
static void reload(void);
static void stop_if_wanted(void);
static long sleep_ms(ZklTime until);

void
zklock_worker_main(Datum main_arg)
{
	WaitEvent	event;
	ZklTime		until;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("zklock worker");
	initialise();
	ereport(LOG, (errmsg("zklock: worker started, server name \"%s\"", zkl_server_name)));

	for (;;)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
			reload();
		if (ShutdownRequestPending)
			stop_if_wanted();

		/* before an answer that ends it: a lapse that nobody saw was one too */
		zkl_deadline_watch(zkl_now());
		zkl_worker.ops->receive(zkl_worker.coordinator);
		drain_events();
		zkl_entries_answer_doorbell();
		zkl_deadline_advance_ending(zkl_now());
		zkl_entries_tick(zkl_now());
		/* that a session has ended is written down before its handle goes */
		drain_events();
		zkl_desks_look(zkl_now());
		if (pg_atomic_read_u32(&zkl_shared->mark_wanted) != 0 &&
			pg_atomic_exchange_u32(&zkl_shared->mark_wanted, 0) != 0)
			zkl_worker.ops->want_mark(zkl_worker.coordinator);
		until = zkl_worker.ops->run(zkl_worker.coordinator);
		drain_events();
		zkl_deadline_watch(zkl_now());
		zkl_stats_reset_if_wanted();
		publish_health();

		WaitEventSetWait(wait_set, sleep_ms(until), &event, 1, wait_event);
	}
}

/* From _PG_init, when preloading. */
void
zkl_worker_register(void)
{
	BackgroundWorker bgw;

	memset(&bgw, 0, sizeof(bgw));
	strlcpy(bgw.bgw_name, "zklock worker", BGW_MAXLEN);
	strlcpy(bgw.bgw_type, "zklock worker", BGW_MAXLEN);
	bgw.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	bgw.bgw_start_time = BgWorkerStart_ConsistentState;
	bgw.bgw_restart_time = 1;
	strlcpy(bgw.bgw_library_name, "zklock", sizeof(bgw.bgw_library_name));
	strlcpy(bgw.bgw_function_name, "zklock_worker_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&bgw);
}

/* How long may the main loop sleep? "until" is when the coordinator wants to run again. */
static long
sleep_ms(ZklTime until)
{
	ZklTime		now = zkl_now();

	if (zkl_worker.deadline > now)
		until = Min(until, zkl_worker.deadline);
	if (zkl_worker.nbeing_taken > 0 || zkl_worker.losses_logged > 0)
		until = Min(until, zkl_worker.next_tick);
	if (zkl_worker.ending[0] != '\0')
		until = Min(until, now + ZKL_MS(POLL_MS));

	/*
	 * a backend that lets go while the server stops rings the doorbell, but
	 * one that never held anything does not: look again soon
	 */
	if (ShutdownRequestPending)
		until = Min(until, now + ZKL_MS(STOPPING_POLL_MS));
	return until <= now ? 0 : (long) ((until - now + 999) / 1000);
}

/* ------------------------------------------------------------------------
 * The coordinator
 * ------------------------------------------------------------------------
 */

static void
log_for_coordinator(ZklLogLevel level, const char *message, const char *detail, const char *hint)
{
	ereport(level == ZKL_LOG_DEBUG ? DEBUG1 : LOG,
			(errmsg_internal("%s", message),
			 detail != NULL ? errdetail_internal("%s", detail) : 0,
			 hint != NULL ? errhint("%s", hint) : 0));
}

/* The next worker begins with what is in shared memory. */
static void
fail_for_coordinator(const char *message)
{
	ereport(FATAL,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("zklock worker cannot go on: %s", message)));
	pg_unreachable();
}

/* The settings as they are now. */
static ZklTarget
current_target(void)
{
	static const ZklHost host = {log_for_coordinator, fail_for_coordinator};
	ZklTarget	target = {
		.hosts = zkl_hosts,
		.tick = ZKL_MS(zkl_server_tick_time),
		.root = zkl_root,
		.server_name = zkl_server_name,
		.credentials_file = zkl_credentials_file,
		.creator_only = zkl_acl == ZKL_ACL_CREATOR,
		.session_timeout = ZKL_MS(zkl_session_timeout),
		.pid = MyProcPid,
		.nslots = zkl_shared->nentries,
		.host = &host,
		.incarnation = zkl_shared->incarnation,
		.survivor = zkl_survivor,
		.memory = (char *) zkl_shared + zkl_shared->coordinator_offset,
		.deadline = zkl_worker.deadline
	};

	return target;
}

/* Write down what the coordinator says, in the order in which it says it. */
static void
drain_events(void)
{
	ZklEvent	event;
	char		cannot_go_on[ZKL_TROUBLE_SIZE] = "";

	while (zkl_worker.ops->next(zkl_worker.coordinator, &event))
	{
		switch (event.kind)
		{
			case ZKL_EVENT_BEGAN:
			case ZKL_EVENT_ENDING:
			case ZKL_EVENT_ENDED:
			case ZKL_EVENT_ACKNOWLEDGED:
			case ZKL_EVENT_MARKED:
				zkl_deadline_event(&event);
				break;
			case ZKL_EVENT_TROUBLE:
				zkl_trouble_write(event.text);
				break;
			case ZKL_EVENT_CANNOT_GO_ON:
				strlcpy(cannot_go_on, event.text, sizeof(cannot_go_on));
				break;
			case ZKL_EVENT_ANSWERED:
				if (event.question == ZKL_QUESTION_HOLDER)
					zkl_entries_event(&event);
				else
					zkl_desks_answered(&event);
				free(event.answer);
				break;
			default:
				zkl_entries_event(&event);
				break;
		}
	}
	/* what came behind it was written down first: a session may have ended */
	if (cannot_go_on[0] != '\0')
	{
		ereport(LOG, (errmsg("zklock: %s", cannot_go_on)));
		proc_exit(1);
	}
}

/* Counts go on where an earlier worker's ended: add what is new since the last look. */
static void
add_since(pg_atomic_uint64 *total, uint64 now, uint64 *before)
{
	pg_atomic_fetch_add_u64(total, now - *before);
	*before = now;
}

static void
publish_health(void)
{
	static ZklCoordinatorHealth before;
	ZklCoordinatorHealth now;
	ZklHealth  *health = &zkl_shared->health;

	zkl_worker.ops->health(zkl_worker.coordinator, &now);
	zkl_worker.connected = now.connected;
	pg_atomic_write_u32(&health->connected, now.connected);
	pg_atomic_write_u64(&health->session, now.session);
	pg_atomic_write_u64(&health->timeout, now.timeout);
	if (now.heartbeat_sent != 0)
	{
		pg_atomic_write_u64(&health->heartbeat_sent, now.heartbeat_sent);
		pg_atomic_write_u64(&health->heartbeat_took, now.heartbeat_took);
	}
	add_since(&health->heartbeats, now.heartbeats, &before.heartbeats);
	add_since(&health->heartbeat_failures, now.heartbeat_failures, &before.heartbeat_failures);
	add_since(&health->connects, now.connects, &before.connects);
	pg_atomic_write_u64(&health->node_bytes, now.node_bytes);
	pg_atomic_write_u64(&health->node_budget, now.node_budget);
	pg_atomic_write_u64(&health->watch_bytes, now.watch_bytes);
	pg_atomic_write_u64(&health->watch_budget, now.watch_budget);
	pg_atomic_write_u64(&health->in_flight, now.in_flight);
	pg_atomic_write_u64(&health->requests, now.requests);
	zkl_text_write(&zkl_shared->server, now.server);
}

/* ------------------------------------------------------------------------
 * Beginning, reload, end
 * ------------------------------------------------------------------------
 */

static void
clear_worker(int code, Datum arg)
{
	pg_atomic_write_u32(&zkl_shared->worker_procno, PG_UINT32_MAX);
	pg_atomic_write_u32(&zkl_shared->worker_pid, 0);
}

static void
initialise(void)
{
	ZklTarget	target;
	bool		session_goes_on;

	on_shmem_exit(clear_worker, (Datum) 0);
	pg_atomic_write_u32(&zkl_shared->worker_pid, MyProcPid);
	pg_atomic_write_u32(&zkl_shared->worker_procno, MyProcNumber);
	wait_event = WaitEventExtensionNew("ZklockWorkerMain");
	for (int i = 0; i < EXTERNAL_FDS; i++)
		ReserveExternalFD();

	zkl_worker.ops = &zkl_zookeeper;
	zkl_deadline_init();
	target = current_target();
	zkl_worker.coordinator = zkl_worker.ops->attach(&target, zkl_now(), &session_goes_on);
	if (session_goes_on)
		zkl_worker.session = (int64) pg_atomic_read_u64(&zkl_shared->health.session);
	else
		zkl_deadline_forget();
	zkl_entries_init(session_goes_on);

	wait_set = CreateWaitEventSet(ZKL_WAIT_SET_OWNER, 3);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, zkl_worker.ops->fd(), NULL, NULL);
}

static void
reload(void)
{
	ZklTarget	target;

	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	target = current_target();
	zkl_worker.ops->reload(zkl_worker.coordinator, &target);
}

/* Is the server stopping, or only this worker? The postmaster writes it down
 * before it tells anybody. */
static bool
server_is_stopping(void)
{
	FILE	   *file = AllocateFile("postmaster.pid", "r");
	char		line[MAXPGPATH];
	bool		stopping = false;

	if (file == NULL)
		return false;
	for (int i = 1; fgets(line, sizeof(line), file) != NULL; i++)
		if (i == LOCK_FILE_LINE_PM_STATUS)
			stopping = strncmp(line, PM_STATUS_STOPPING, 8) == 0;
	FreeFile(file);
	return stopping;
}

/* On SIGTERM. A worker that stops by itself leaves the session to the next one. */
static void
stop_if_wanted(void)
{
	if (!server_is_stopping())
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("terminating zklock worker due to administrator command"),
				 errdetail("The %s session and the locks are kept for the next worker.",
						   zkl_worker.ops->name)));
	if (zkl_entries_all_let_go())
	{
		zkl_worker.ops->close(zkl_worker.coordinator);
		proc_exit(1);
	}
}
