/*-------------------------------------------------------------------------
 *
 * test_worker.c
 *	  What the worker decides: requests, grants, losses, the lease word.
 *
 * The coordinator is the fake one of test/conformance, shared memory is this program's,
 * and of the server there are only the few functions that src/worker calls.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conformance/fake.h"
#include "worker/internal.h"

#undef printf
#undef vprintf
#undef fprintf
#undef snprintf
#undef vsnprintf
#include "check.h"

#define ENTRIES		8
#define T			ZKL_MS(10000)

/* ------------------------------------------------------------------------
 * The server's part
 * ------------------------------------------------------------------------
 */

MemoryContext TopMemoryContext = NULL;
PROC_HDR   *ProcGlobal;
ZklShared  *zkl_shared;
int			zkl_on_revoke = ZKL_REVOKE_IGNORE;
int			zkl_session_timeout = 10000;
Worker		zkl_worker;

static pg_atomic_uint64 doorbell;
static uint64 counted[ZKL_STATS_OUTCOMES];
static int	charged;
static int	wakeups;
static int	freed;

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	return malloc(size);
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return calloc(1, size);
}

bool
errstart(int elevel, const char *domain)
{
	return false;
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

int
errmsg(const char *fmt,...)
{
	return 0;
}

int
errdetail(const char *fmt,...)
{
	return 0;
}

int
errhint(const char *fmt,...)
{
	return 0;
}

int
pg_snprintf(char *str, size_t count, const char *fmt,...)
{
	va_list		args;
	int			n;

	va_start(args, fmt);
	n = vsnprintf(str, count, fmt, args);
	va_end(args);
	return n;
}

size_t
strlcpy(char *dst, const char *src, size_t size)
{
	return snprintf(dst, size, "%s", src);
}

void
SetLatch(Latch *latch)
{
	wakeups++;
}

void
zkl_stats_count(const char *name, ZklOutcome outcome, bool waited, ZklTime took)
{
	counted[outcome]++;
}

void
zkl_quota_charge(Oid role, ZklTime now)
{
	charged++;
}

void
zkl_trouble_write(const char *text)
{
}

pg_atomic_uint64 *
zkl_doorbell_words(void)
{
	return &doorbell;
}

int
zkl_doorbell_count(void)
{
	return 1;
}

void
zkl_entry_free(int entryno)
{
	pg_atomic_write_u32(&zkl_shared->entries[entryno].phase, ZKL_PHASE_FREE);
	freed++;
}

/* ------------------------------------------------------------------------
 * A worker's turn, and an owner's acts
 * ------------------------------------------------------------------------
 */

static void
log_nothing(ZklLogLevel level, const char *message, const char *detail, const char *hint)
{
}

pg_noreturn static void fail(const char *message);

static void
fail(const char *message)
{
	fprintf(stderr, "%s\n", message);
	abort();
}

static void
drain(void)
{
	ZklEvent	event;

	while (zkl_worker.ops->next(zkl_worker.coordinator, &event))
	{
		if (event.kind <= ZKL_EVENT_MARKED)
			zkl_deadline_event(&event);
		else if (event.kind == ZKL_EVENT_ANSWERED && event.question != ZKL_QUESTION_HOLDER)
			zkl_desks_answered(&event);
		else if (event.kind != ZKL_EVENT_TROUBLE)
			zkl_entries_event(&event);
		free(event.answer);
	}
}

static void
turn(void)
{
	drain();
	zkl_entries_answer_doorbell();
	zkl_deadline_advance_ending(zkl_now());
	zkl_desks_look(zkl_now());
	zkl_worker.ops->run(zkl_worker.coordinator);
	drain();
	zkl_worker.next_tick = 0;
	zkl_entries_tick(zkl_now());
}

/* The coordinators of the workers of this server: what they hold stays until it ends. */
static ZklCoordinator *coordinators[4];
static int	ncoordinators;

static void
stop_server(void)
{
	while (ncoordinators > 0)
		fake_coordinator.close(coordinators[--ncoordinators]);
	free(zkl_worker.requests);
	free(zkl_worker.rung);
	memset(&zkl_worker, 0, sizeof(zkl_worker));
	free(zkl_shared);
	free(zkl_desks);
	free(zkl_slips);
}

/* A worker that begins, with the shared memory that there is. */
static void
start_worker(bool session_goes_on)
{
	static const ZklHost host = {log_nothing, fail};
	ZklTarget	target = {.host = &host,.nslots = ENTRIES,.session_timeout = T};
	bool		ignored;

	free(zkl_worker.requests);
	free(zkl_worker.rung);
	memset(&zkl_worker, 0, sizeof(zkl_worker));
	zkl_worker.ops = &fake_coordinator;
	zkl_deadline_init();
	zkl_worker.coordinator = zkl_worker.ops->attach(&target, zkl_now(), &ignored);
	coordinators[ncoordinators++] = zkl_worker.coordinator;
	zkl_entries_init(session_goes_on);
}

/* Everything from the beginning. */
static void
start_server(void)
{
	static PROC_HDR header;
	static PGPROC processes[2];

	header.allProcs = processes;
	ProcGlobal = &header;
	stop_server();
	zkl_shared = calloc(1, sizeof(ZklShared) + ENTRIES * sizeof(ZklEntry));
	zkl_desks = calloc(ZKL_DESKS, sizeof(ZklDesk));
	zkl_slips = calloc(2, sizeof(ZklSlip));
	zkl_shared->nentries = ENTRIES;
	zkl_desks_init(zkl_desks);
	memset(counted, 0, sizeof(counted));
	charged = wakeups = freed = 0;
	zkl_on_revoke = ZKL_REVOKE_IGNORE;
	start_worker(false);
	turn();
}

static void
ring(int i)
{
	pg_atomic_fetch_or_u64(&doorbell, UINT64CONST(1) << i);
}

static ZklEntry *
submit(int i, const char *name, bool try)
{
	ZklEntry   *entry = &zkl_shared->entries[i];
	uint32		serial = entry->serial + 1;

	memset(entry, 0, sizeof(*entry));
	entry->serial = serial;
	entry->try = try;
	strlcpy(entry->name, name, sizeof(entry->name));
	pg_atomic_write_u32(&entry->phase, ZKL_PHASE_WANTED);
	ring(i);
	return entry;
}

static void
set_flag(int i, uint32 flag)
{
	pg_atomic_fetch_or_u32(&zkl_shared->entries[i].flags, flag);
	ring(i);
}

static ZklPhase
phase_of(int i)
{
	return pg_atomic_read_u32(&zkl_shared->entries[i].phase);
}

static uint32
flags_of(int i)
{
	return pg_atomic_read_u32(&zkl_shared->entries[i].flags);
}

static uint64
lease_word(void)
{
	return pg_atomic_read_u64(&zkl_shared->lease);
}

/* ------------------------------------------------------------------------
 * Tests
 * ------------------------------------------------------------------------
 */

static void
test_requests(void)
{
	ZklEntry   *first;
	ZklEntry   *second;

	start_server();
	first = submit(0, "a", false);
	turn();
	CHECK_INT(phase_of(0), ZKL_PHASE_HELD, "a free lock is granted");
	CHECK(first->token > 0, "with a token");
	CHECK_INT(first->generation, zkl_word_generation(lease_word()), "and the session's generation");
	second = submit(1, "a", false);
	turn();
	CHECK_INT(phase_of(1), ZKL_PHASE_WANTED, "the second one waits");
	CHECK_INT(pg_atomic_read_u32(&second->ahead), 1, "behind one");
	CHECK_INT(pg_atomic_read_u32(&second->queued), 1, "in the queue");
	(void) submit(2, "a", true);
	turn();
	CHECK_INT(phase_of(2), ZKL_PHASE_BUSY, "a try finds it taken");
	set_flag(2, ZKL_FLAG_LET_GO);
	set_flag(0, ZKL_FLAG_LET_GO);
	turn();
	turn();
	CHECK_INT(phase_of(0), ZKL_PHASE_FREE, "what was let go is free when it is gone");
	CHECK_INT(phase_of(1), ZKL_PHASE_HELD, "the next one holds");
	CHECK(second->token > 0 && freed == 2, "each entry was freed once");
	CHECK_INT(counted[ZKL_OUTCOME_ACQUIRED], 2, "acquired: counted");
	CHECK_INT(counted[ZKL_OUTCOME_BUSY], 1, "busy: counted");
	CHECK_INT(counted[ZKL_OUTCOME_RELEASED], 1, "released: counted once");

	(void) submit(3, "b", false);
	set_flag(3, ZKL_FLAG_LET_GO);
	turn();
	CHECK_INT(phase_of(3), ZKL_PHASE_FREE, "cancelled before the worker saw it: freed at once");
	(void) submit(4, "a", false);
	turn();
	set_flag(4, ZKL_FLAG_LET_GO | ZKL_FLAG_TIMED_OUT);
	turn();
	turn();
	CHECK_INT(phase_of(4), ZKL_PHASE_FREE, "timed out: freed");
	CHECK_INT(counted[ZKL_OUTCOME_TIMED_OUT], 1, "and counted");

	first = submit(5, "c", false);
	first->inherited_token = 4711;
	turn();
	CHECK_INT(first->token, 4711, "a_downgraded_lock_keeps_its_token");
}

static void
test_losses(void)
{
	uint64		before;
	int			woken;

	start_server();
	(void) submit(0, "a", false);
	(void) submit(1, "b", false);
	(void) submit(2, "b", false);
	turn();
	fake_remove(zkl_worker.coordinator, 0);
	woken = wakeups;
	turn();
	CHECK_INT(flags_of(0), ZKL_FLAG_LOST | ZKL_FLAG_VANISHED, "a contender that vanished is a lost lock");
	CHECK(wakeups > woken, "its owner is told");
	CHECK(zkl_shared->entries[0].lost_at > 0, "and when");

	before = lease_word();
	fake_expire(zkl_worker.coordinator);
	drain();
	CHECK_INT(zkl_word_deadline(lease_word()), 0, "session over: no deadline");
	CHECK_INT(zkl_word_generation(lease_word()), zkl_word_generation(before) + 1, "another generation");
	CHECK_INT(flags_of(1), ZKL_FLAG_LOST, "what was held is lost");
	CHECK_INT(flags_of(2), 0, "who waited is not told");
	turn();
	CHECK_INT(phase_of(2), ZKL_PHASE_HELD, "and holds with the next session");
	CHECK_INT(zkl_shared->entries[2].generation, zkl_word_generation(lease_word()), "in its generation");
	CHECK_INT(counted[ZKL_OUTCOME_LOST], 2, "lost: counted");

	set_flag(1, ZKL_FLAG_LET_GO);
	turn();
	CHECK_INT(phase_of(1), ZKL_PHASE_FREE, "a lost one is freed when its owner lets go");

	/* an owner that lets go just before its loss is told need not hear of it */
	set_flag(2, ZKL_FLAG_LET_GO);
	fake_remove(zkl_worker.coordinator, 2);
	turn();
	turn();
	CHECK_INT(counted[ZKL_OUTCOME_LOST], 2, "let go before the loss: not counted as lost");
	CHECK_INT(phase_of(2), ZKL_PHASE_FREE, "and freed");
}

static void
test_ending_waits_for_commits(void)
{
	start_server();
	(void) submit(0, "a", false);
	(void) submit(1, "b", false);
	turn();
	set_flag(0, ZKL_FLAG_COMMITTING);
	fake_part(zkl_worker.coordinator, "It has to go.");
	turn();
	CHECK(flags_of(0) & ZKL_FLAG_LOST, "while a session is to be ended its locks are lost");
	CHECK(flags_of(1) & ZKL_FLAG_LOST, "all of them");
	CHECK_INT(pg_atomic_read_u64(&zkl_shared->health.expiries), 0, "no_end_while_a_commit_is_past_its_check");
	turn();
	CHECK_INT(pg_atomic_read_u64(&zkl_shared->health.expiries), 0, "however often it is looked");
	pg_atomic_fetch_and_u32(&zkl_shared->entries[0].flags, ~ZKL_FLAG_COMMITTING);
	turn();
	turn();
	CHECK_INT(pg_atomic_read_u64(&zkl_shared->health.expiries), 1, "the commit is over: ended");
}

static void
test_asked_back(void)
{
	ZklEntry   *entry;

	start_server();
	(void) submit(0, "a", false);
	turn();
	fake_ask_back(zkl_worker.coordinator, 0, true);
	turn();
	CHECK_INT(flags_of(0), 0, "a foreign client's request is ignored, by default");
	zkl_on_revoke = ZKL_REVOKE_ABORT;
	fake_ask_back(zkl_worker.coordinator, 0, true);
	turn();
	CHECK_INT(flags_of(0), ZKL_FLAG_LOST | ZKL_FLAG_BROKEN, "or obeyed, when the setting says so");

	zkl_on_revoke = ZKL_REVOKE_IGNORE;
	entry = submit(1, "b", false);
	turn();
	set_flag(1, ZKL_FLAG_COMMITTING);
	fake_ask_back(zkl_worker.coordinator, 1, false);
	turn();
	turn();
	CHECK_INT(flags_of(1), ZKL_FLAG_LOST | ZKL_FLAG_BROKEN | ZKL_FLAG_COMMITTING, "zk_lock_break is obeyed");
	CHECK_STR(entry->breaker, "somebody", "and says who");
	CHECK_INT(zkl_worker.requests[1].state, REQUEST_MADE, "not_given_up_while_a_commit_is_past_its_check");
	pg_atomic_fetch_and_u32(&entry->flags, ~ZKL_FLAG_COMMITTING);
	turn();
	turn();
	CHECK_INT(zkl_worker.requests[1].state, REQUEST_NONE, "the commit is over: given up");
	CHECK_INT(zkl_worker.nbeing_taken, 0, "nothing waits for a commit any more");

	/* asked for while it waits: it does not keep what it gets */
	(void) submit(2, "c", false);
	(void) submit(3, "c", false);
	turn();
	fake_ask_back(zkl_worker.coordinator, 3, false);
	turn();
	CHECK_INT(flags_of(3), 0, "asked back while it waits: nothing yet");
	set_flag(2, ZKL_FLAG_LET_GO);
	turn();
	turn();
	CHECK(flags_of(3) & ZKL_FLAG_BROKEN, "but it does not keep what it is granted");
}

static void
acknowledge(ZklTime deadline, ZklTime period)
{
	ZklEvent	event = {.kind = ZKL_EVENT_ACKNOWLEDGED,.deadline = deadline,.period = period};

	zkl_deadline_event(&event);
}

static void
test_lease_word(void)
{
	ZklTime		now;
	uint64		word;

	start_server();
	now = zkl_now();
	acknowledge(now + ZKL_MS(5000), ZKL_MS(600));
	word = lease_word();
	CHECK(zkl_word_deadline(word) <= now + ZKL_MS(5000) && zkl_word_deadline(word) > now + ZKL_MS(4998),
		  "the deadline is rounded down");
	acknowledge(now + ZKL_MS(6000), ZKL_MS(600));
	CHECK_INT(zkl_word_epoch(lease_word()), zkl_word_epoch(word), "extended in time: the same epoch");

	/* a deadline that has passed */
	pg_atomic_write_u64(&zkl_shared->lease, zkl_word_make(now - ZKL_MS(1000), 5, ZKL_LEASE_LAPSE_MASK));
	acknowledge(now + ZKL_MS(500), ZKL_MS(600));
	CHECK_INT(zkl_word_lapses(lease_word()), ZKL_LEASE_LAPSE_MASK, "too_short_to_be_of_use_is_no_new_epoch");
	acknowledge(now + ZKL_MS(5000), ZKL_MS(600));
	CHECK_INT(zkl_word_lapses(lease_word()), 0, "a lapse counts, round");
	CHECK_INT(zkl_word_generation(lease_word()), 5, "and leaves the generation alone");
	CHECK_INT(pg_atomic_read_u64(&zkl_shared->health.lapses), 1, "once");
}

static void
test_next_worker(void)
{
	ZklEntry   *held;
	ZklEntry   *old;
	uint32		generation;

	start_server();
	held = submit(0, "a", false);
	(void) submit(1, "a", false);
	old = submit(2, "b", false);
	turn();
	(void) submit(3, "d", false);
	turn();
	set_flag(3, ZKL_FLAG_LET_GO);
	generation = zkl_word_generation(lease_word());
	old->generation = generation - 1;
	start_worker(true);
	CHECK_INT(flags_of(0), 0, "a worker goes on with what an earlier one held");
	CHECK_INT(flags_of(2), ZKL_FLAG_LOST, "held_by_an_earlier_session_is_lost");
	CHECK_INT(zkl_worker.requests[1].state, REQUEST_MADE, "with what waits");
	CHECK_INT(zkl_worker.requests[3].state, REQUEST_LET_GO, "and with what was let go");
	CHECK(held->token > 0, "the token stays");

	start_server();
	(void) submit(0, "a", false);
	(void) submit(1, "a", false);
	turn();
	fake_expire(coordinators[0]);
	start_worker(false);
	CHECK_INT(flags_of(0), ZKL_FLAG_LOST, "without the session what was held is lost");
	CHECK_INT(flags_of(1), 0, "and what waits is asked for again");
	turn();
	CHECK_INT(phase_of(1), ZKL_PHASE_HELD, "and granted");
}

static void
test_desks(void)
{
	uint64		word = zkl_desk_word(1, 1, ZKL_DESK_ASKED);

	start_server();
	zkl_slips[1].question.kind = ZKL_QUESTION_QUEUE;
	pg_atomic_write_u64(&zkl_desks[0].word, word);
	turn();
	turn();
	CHECK_INT(zkl_desk_state(pg_atomic_read_u64(&zkl_desks[0].word)), ZKL_DESK_ANSWERED, "a question is answered");

	/*
	 * the asker leaves, and another one takes the desk, before the answer is
	 * there
	 */
	pg_atomic_write_u64(&zkl_desks[1].word, word);
	zkl_desks_look(zkl_now());
	pg_atomic_write_u64(&zkl_desks[1].word, zkl_desk_word(2, 1, ZKL_DESK_ASKED));
	drain();
	CHECK_INT(pg_atomic_read_u64(&zkl_desks[1].word), zkl_desk_word(2, 1, ZKL_DESK_ASKED),
			  "an_answer_for_an_earlier_asker_is_dropped");
	turn();
	turn();
	CHECK_INT(zkl_desk_state(pg_atomic_read_u64(&zkl_desks[1].word)), ZKL_DESK_ANSWERED, "the new one gets its own");

	pg_atomic_write_u64(&zkl_desks[2].word, zkl_desk_word(1, 1, ZKL_DESK_ABANDONED));
	turn();
	CHECK_INT(pg_atomic_read_u64(&zkl_desks[2].word), zkl_desk_word(2, 0, ZKL_DESK_FREE), "an abandoned desk is cleared");
}

static void
test_stale_events(void)
{
	ZklEvent	event = {.kind = ZKL_EVENT_LOST,.slot = 0};

	start_server();
	event.serial = submit(0, "a", false)->serial - 1;
	turn();
	zkl_entries_event(&event);
	CHECK_INT(flags_of(0), 0, "an_event_of_an_earlier_use_is_passed_over");
}

int
main(void)
{
	test_requests();
	test_losses();
	test_ending_waits_for_commits();
	test_asked_back();
	test_lease_word();
	test_next_worker();
	test_desks();
	test_stale_events();
	stop_server();
	return check_done();
}
