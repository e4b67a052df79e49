/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background worker: one ZooKeeper session for all backends.
 *
 * It connects four parts that know nothing of each other: the client library
 * (zkclient.c), the lease rule (lease.c), one state machine per lock entry
 * (queue.c) and the shared table (shmem.c). The main loop takes replies and
 * events from the library, wishes from the backends, feeds both to the
 * machines, sends what the machines want, and publishes what became of it.
 *
 * Rules that keep it harmless:
 *
 * - It never blocks except in its one wait, which has a bound, so it absorbs
 *	 barriers (CREATE DATABASE waits for every process that has a ProcSignal
 *	 slot). Names are resolved in a thread; all requests are asynchronous.
 * - It takes no lock that a backend could hold while it is stopped.
 * - Nothing that must outlive it is in its own memory: a new worker finds the
 *	 entries in shared memory and the ZooKeeper session in zkl_survivor, and goes
 *	 on with both. So it leaves without closing the ZooKeeper session (closing
 *	 frees every lock at once), except when the whole server stops.
 * - It ends with exit code 1, whatever the reason: after 0 the postmaster would
 *	 never start it again.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

#include "common/clock.h"
#include "common/compat.h"
#include "common/resolve.h"
#include "common/settings.h"
#include "shared/shmem.h"
#include "zookeeper/lease.h"
#include "worker/worker.h"

PGDLLEXPORT void zklock_worker_main(Datum main_arg);

/* The library closes its own connection beyond about 65,000; the ensemble
 * would rather have fewer. */
#define MAX_IN_FLIGHT		1000

/*
 * Batches of creates under way at a time. While they are, the requests of other
 * backends gather, so a batch is as large as the load, and one backend alone never
 * waits for another.
 */
#define MAX_CREATE_BATCHES	2

/* The watch on the node of a lock that was just granted can wait a moment: many are
 * given back before. What happens to the node meanwhile is found when it is set. */
#define WATCH_DELAY			ZKL_MS(50)

/* Directories that are known to exist: only their requests go into a batch, since one
 * that is missing would fail it as a whole. */
#define KNOWN_DIRS			4096

/* Connections of the library, at one look. */
#define LOOK_MAX		16

/* Request numbers begin at time(0) and turn negative at 2^31; a few small
 * negative ones mean something else. Ours is a wide berth. */
#define MAX_REQUESTS		2000000000

#define TICK_PERIOD			ZKL_MS(1000)
#define LONGEST_SLEEP		ZKL_MS(10000)
#define REWATCH_TICKS		15		/* each watch is set again every so many ticks */
#define LOG_PERIOD			ZKL_MS(15000)
#define RETRY_PERIOD		ZKL_MS(1000)
#define DISCONNECTED_POLL	ZKL_MS(20)
#define SUSPECT_PERIOD		ZKL_MS(60000)
#define SUSPECTS_PER_TICK	500
#define LOG_LINES_PER_PERIOD	3
#define LOSSES_LOGGED		100		/* lines about lost locks, per tick */

/* What a reply is for: the machine's ZKL_OP_ bit, or one of these. */
typedef enum Purpose
{
	PURPOSE_NOTHING = 0x100,
	PURPOSE_ROOT,				/* a parent of the member node */
	PURPOSE_MEMBER,				/* the member node itself; a heartbeat too */
	PURPOSE_HEARTBEAT,
	PURPOSE_CREATES,			/* batches */
	PURPOSE_DELETES,
	PURPOSE_PARENT,				/* a parent of a lock directory, not the last */
	PURPOSE_WHO_LIST,			/* who holds it: the first contender */
	PURPOSE_WHO_GET,			/* and what its node says */
	PURPOSE_SUSPECT_LIST,		/* has a lost create come after all? */
	PURPOSE_SUSPECT_DELETE,
	PURPOSE_SWEEP,				/* a directory that never had a node */
	PURPOSE_INQUIRY_LIST,		/* see inquiry.h; all else that is asked there */
	PURPOSE_INQUIRY_ROW,		/* is one request, or one for each row */
	PURPOSE_INQUIRY
} Purpose;

/* A lock entry as the worker sees it. */
typedef struct Slot
{
	bool		active;			/* the machine runs */
	bool		in_todo;
	bool		asking;			/* who holds it is being looked up */
	bool		waited;			/* somebody was ahead of it */
	bool		alone;			/* not in a batch: one that it was in failed */
	bool		rechecking;		/* counted in worker.nrecheck */
	bool		granted;		/* published as HELD */
	bool		made_dirs;		/* or may have */
	bool		had_node;
	uint32		serial;			/* replies with another one are stale */
	int			parent_rc;		/* first refusal while making parents */
	bool		revoked;		/* somebody wants the lock, see read_own_data() */
	bool		surrender;		/* as soon as the owner's commit is over */
	int			cost;			/* bytes of path, see ZKL_NODE_BUDGET */
	uint64		dir_hash;		/* of the directory's path */
	ZklQueue	queue;
} Slot;

/*
 * Which machine is it that a path concerns? Each can be found by the hash of three
 * paths: its own node's, its predecessor's, and for a lease the directory's.
 */
typedef enum Role
{
	ROLE_OWN,
	ROLE_PRED,
	ROLE_PERMITS
} Role;

#define ROLES	3

typedef struct Link
{
	uint64		hash;			/* 0 = not linked */
	int			next;			/* slot * ROLES + role, -1 = the last */
} Link;

static struct
{
	ZklClient  *client;			/* NULL: resolving, or waiting to try again */
	char	   *addresses;		/* the newest, NULL = none yet */
	char	   *client_addresses;	/* that the client was given */
	bool		has_connected;	/* the client has: it may remember a zxid */
	ZklTime		opened_at;
	ZklTime		retry_at;
	ZklResolution *resolution;
	ZklTime		next_lookup;
	ZklTime		last_lookup;
	bool		slow_lookup;	/* and that is said */
	char		chroot[ZKL_CHROOT_SIZE];	/* in use; the setting's, or the one
											 * before while its session lives */

	/* the ZooKeeper session is to be ended as soon as no commit that has passed its
	 * check stands in the way; "" = it is not */
	char		parting[128];
	ZklTime		parting_since;
	bool		parting_logged;

	int64		session;		/* of ours, 0 = none */
	bool		clearing;		/* the session is of before a crash: close it */
	uint32		connection;		/* number of the latest one */
	bool		connected;
	bool		member_known;	/* our member node exists */
	ZklTime		disconnected_at;
	ZklTime		handshake_bound;	/* at or before the handshake was sent */
	uint64		looked[LOOK_MAX];	/* sockets open at the last look */
	int			nlooked;
	ZklTime		last_look;
	ZklTime		acked_sent;		/* newest stamp of a request with a reply */
	ZklTime		answered_at;	/* when the latest reply came, or the start */
	ZklTime		written_at;		/* when the latest reply to a write of our own did */
	ZklTime		handshake_at;	/* when the latest one passed */
	int			handshakes;		/* so many since that write, one after the other */
	ZklTime		first_handshake;	/* of those */
	bool		fresh_logged;	/* a handle was replaced since the last answer */
	int64		zxid;			/* of the session's latest write; 0 = none */

	ZklLease	lease;
	bool		lapse_logged;
	ZklTime		next_heartbeat;

	/* an acknowledgement that waits for held nodes to be seen again */
	int			nrecheck;
	ZklTime		held_back_sent;
	ZklTime		held_back_at;

	int			in_flight;
	ZklTime		silent_since;	/* last answer, or first unanswered request */
	ZklTime		last_kick;
	uint64		requests;

	ZklTime		next_tick;
	ZklTime		next_log_period;
	uint32		ticks;
	int			log_budget;
	int			log_suppressed;
	int			losses_logged;

	Slot	   *slots;
	int			nactive;
	int		   *todo;
	int			ntodo;
	int		   *rung;			/* room for answer_doorbell() */
	Link	   *links;			/* ROLES for each slot */
	int		   *link_heads;		/* by hash, -1 = empty */
	int			nlink_heads;
	int		   *found;			/* room for find_links() */
	int			ncreate_batches;
	uint64		known_dirs[KNOWN_DIRS]; /* hashes of paths, by hash */
	int64		node_bytes;
	int64		watch_bytes;

	int			next_suspect;	/* where the next one is put */
	int			suspect_cursor; /* where the next look begins */
	int			nsuspects;
	int			suspects_dropped;

	/* what is under way for the desks of inquiry.h */
	struct
	{
		uint32		serial;		/* replies with another one are stale */
		bool		begun;
		int			pending;
		uint64		word;		/* this use of the desk, and */
		ZklTime		since;		/* since when it is in this state */
	}			desks[ZKL_DESKS];

	char		member_path[ZKL_PATH_SIZE];
	WaitEventSet *wait_set;
	uint32		wait_event;
} worker;

static volatile sig_atomic_t got_sigterm = false;

static void end_zookeeper_session(const char *why, bool close);
static void look_at_entry(int index);
static void begin_parting(const char *why);

static void
on_sigterm(SIGNAL_ARGS)
{
	int			save_errno = errno;

	got_sigterm = true;
	SetLatch(MyLatch);
	errno = save_errno;
}

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

/* ------------------------------------------------------------------------
 * The lease
 * ------------------------------------------------------------------------
 */

/* An owner that has left meanwhile leaves a place that is empty, or somebody else's,
 * who looks around and finds nothing. */
static void
wake_owner(ZklEntry *entry)
{
	SetLatch(&GetPGProcByNumber(entry->procno)->procLatch);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open	434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal	424
#endif

/*
 * Send the owner his signal. By the time that it is sent, the process may have ended
 * and its number be somebody else's, whom an unexpected real-time signal would kill. So
 * the process is taken hold of first, and then it is looked whether it is (still) the
 * owner; what we hold does not become somebody else. Where the kernel cannot do that
 * (before 5.3) the latch has to do: the owner's own timer notices a moment later.
 */
static void
push_owner(ZklEntry *entry)
{
	int			pid = entry->pid;
	uint32		serial = entry->serial;
	int			fd = (int) syscall(SYS_pidfd_open, pid, 0);

	if (fd >= 0)
	{
		if (GetPGProcByNumber(entry->procno)->pid == pid && entry->serial == serial &&
			(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO) == 0)
			(void) syscall(SYS_pidfd_send_signal, fd, entry->push_signal, NULL, 0);
		close(fd);
	}
	wake_owner(entry);
}

/* Locks that somebody still relies on. */
static int
count_held(void)
{
	int			held = 0;

	for (int i = 0; i < zkl_shared->nentries; i++)
		if (worker.slots[i].active && worker.slots[i].granted &&
			(pg_atomic_read_u32(&zkl_shared->entries[i].flags) & ZKL_FLAG_LET_GO) == 0)
			held++;
	return held;
}

/* The shortest lease that lasts to the next one. */
static ZklTime
useful_lease(void)
{
	return zkl_lease_period(worker.lease.timeout, worker.lease.tick) * 3 / 2;
}

/*
 * Publish the deadline. One that had passed and moves again is a lapse that
 * everybody must be able to see afterwards.
 */
static void
publish_lease(ZklTime now)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
	ZklTime		published = zkl_word_deadline(word);
	uint32		epoch = zkl_word_epoch(word);
	bool		lapsed = published != 0 && now >= published;

	/* what would be over before the next heartbeat's answer is not worth a new epoch:
	 * it would lapse again, and again */
	if (lapsed && worker.lease.deadline < now + useful_lease())
		return;
	if (lapsed && worker.lease.deadline > now)
	{
		epoch = (epoch & ~ZKL_LEASE_LAPSE_MASK) | ((epoch + 1) & ZKL_LEASE_LAPSE_MASK);
		pg_atomic_fetch_add_u64(&zkl_shared->health.lapses, 1);
	}
	pg_atomic_write_u64(&zkl_shared->lease,
						((uint64) (worker.lease.deadline / 1000) << ZKL_LEASE_EPOCH_BITS) | epoch);

	if (now >= published && worker.lease.deadline > now)
	{
		if (worker.lapse_logged)
			ereport(LOG,
					(errmsg("zklock: lease is current again, %d held locks, %ld ms left",
							count_held(), (long) ((worker.lease.deadline - now) / 1000)),
					 errdetail("The lease had lapsed %ld ms ago; the ZooKeeper session is still 0x%" PRIx64 ".",
							   (long) ((now - published) / 1000), worker.session)));
		worker.lapse_logged = false;
		zkl_trouble_write("");
		/* whoever was granted something meanwhile waits for this */
		for (int i = 0; i < zkl_shared->nentries; i++)
			if (worker.slots[i].active && worker.slots[i].granted)
				wake_owner(&zkl_shared->entries[i]);
	}
}

static void
watch_for_lapse(ZklTime now)
{
	if (worker.lapse_logged || worker.lease.deadline == 0 || now < worker.lease.deadline)
		return;
	worker.lapse_logged = true;
	ereport(LOG,
			(errmsg("zklock: lease lapsed, %d held locks are not certain any more",
					count_held()),
			 errdetail("%s", worker.connected ?
					   "ZooKeeper has not acknowledged a heartbeat in time." :
					   "The connection to ZooKeeper is lost.")));
	if (worker.connected)
		zkl_trouble_write("ZooKeeper does not acknowledge heartbeats; it may have lost its quorum");
}

static void
lease_acked(ZklTime sent, ZklTime now)
{
	if (worker.nrecheck > 0)
	{
		/* not before every held node was seen on this connection */
		worker.held_back_sent = sent;
		worker.held_back_at = now;
		return;
	}
	if (zkl_lease_acked(&worker.lease, sent, now))
		publish_lease(now);
}

/* ------------------------------------------------------------------------
 * Entries and their machines
 * ------------------------------------------------------------------------
 */

static uint64
path_hash(const char *path)
{
	uint64		hash = UINT64CONST(14695981039346656037);

	for (; *path != '\0'; path++)
		hash = (hash ^ (unsigned char) *path) * UINT64CONST(1099511628211);
	return hash | 1;
}

/* Let the slot be found by this hash in this role, and by no other; 0: by none. */
static void
set_link(int index, Role role, uint64 hash)
{
	int			id = index * ROLES + role;
	Link	   *link = &worker.links[id];
	int		   *at;

	if (link->hash == hash)
		return;
	if (link->hash != 0)
	{
		for (at = &worker.link_heads[link->hash % worker.nlink_heads]; *at != id;
			 at = &worker.links[*at].next)
			;
		*at = link->next;
	}
	link->hash = hash;
	if (hash != 0)
	{
		at = &worker.link_heads[hash % worker.nlink_heads];
		link->next = *at;
		*at = id;
	}
}

/* Who can be found by this hash? Into worker.found, as slot * ROLES + role, since to
 * act on one changes the links. */
static int
find_links(uint64 hash)
{
	int			n = 0;

	for (int id = worker.link_heads[hash % worker.nlink_heads]; id >= 0;
		 id = worker.links[id].next)
		if (worker.links[id].hash == hash)
			worker.found[n++] = id;
	return n;
}

static uint64
node_hash(int index, const char *node)
{
	char		path[ZKL_PATH_SIZE];

	if (node[0] == '\0')
		return 0;
	zkl_node_path(path, zkl_root, zkl_shared->entries[index].name, node);
	return path_hash(path);
}

static void
mark(int index)
{
	if (!worker.slots[index].in_todo)
	{
		worker.slots[index].in_todo = true;
		worker.todo[worker.ntodo++] = index;
	}
}

static void
set_recheck(Slot *slot, bool recheck)
{
	if (slot->rechecking == recheck)
		return;
	slot->rechecking = recheck;
	worker.nrecheck += recheck ? 1 : -1;
}

/*
 * The lock is lost; "how" is a bit of its fate that says more, or 0. Whoever has let
 * go need not know; everybody else is told, and told at once. One who is between
 * PRE_COMMIT and the end of his commit decides himself what of that can be cancelled.
 */
static void
publish_loss(int index, uint32 how)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	uint32		bits = ZKL_FLAG_LOST | how;
	ZklTime		now = zkl_now();
	ZklTime		left = worker.lease.deadline - now;
	uint32		old;

	if (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LOST)
		return;
	entry->lost_at = now;
	pg_write_barrier();
	old = pg_atomic_fetch_or_u32(&entry->flags, bits);
	pg_atomic_fetch_add_u32(&zkl_shared->losses, 1);
	if (old & ZKL_FLAG_LET_GO)
		return;

	zkl_stats_count(entry->name, ZKL_OUTCOME_LOST, false, 0);
	/* of thousands that go together the tick says how many */
	if (worker.losses_logged++ < LOSSES_LOGGED)
		ereport(LOG,
				(errmsg("zklock: lock \"%s\" of process %d is lost", entry->name, entry->pid),
				 how == ZKL_FLAG_BROKEN ? errdetail("It was taken away by %s.", entry->breaker) :
				 errdetail("%s %ld ms of the lease were left.",
						   how == ZKL_FLAG_VANISHED ? "Its node was deleted." :
						   "The ZooKeeper session ended.",
						   Max((long) (left / 1000), 0L))));
	push_owner(entry);
}

/*
 * Take a granted lock away from its owner. From here on nothing commits under it,
 * except what is past PRE_COMMIT already: for that the node stays until it is over.
 */
static void
take_away(int index)
{
	Slot	   *slot = &worker.slots[index];

	publish_loss(index, ZKL_FLAG_BROKEN);
	slot->surrender = (pg_atomic_read_u32(&zkl_shared->entries[index].flags) &
					   ZKL_FLAG_COMMITTING) != 0;
	if (!slot->surrender)
		zkl_queue_surrender(&slot->queue);
}

/*
 * Our node's data is what we wrote, unless somebody asks for the lock: Curator's
 * Revoker, which asks and no more, or zk_lock_break(), which will delete the node
 * when we do not.
 */
static void
read_own_data(int index, const char *data, int len)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	Slot	   *slot = &worker.slots[index];
	ZklNodeData said;

	if (slot->revoked)
		return;
	if (len == strlen(ZKL_REVOKE_BYTES) && memcmp(data, ZKL_REVOKE_BYTES, len) == 0)
	{
		slot->revoked = zkl_on_revoke == ZKL_REVOKE_ABORT;
		ereport(LOG,
				(errmsg("zklock: another ZooKeeper client asks process %d to give up lock \"%s\"",
						entry->pid, entry->name),
				 slot->revoked ? 0 :
				 errdetail("It is not given up, since zklock.on_revoke is \"ignore\".")));
		strlcpy(entry->breaker, "another ZooKeeper client, which asked for it",
				sizeof(entry->breaker));
	}
	else if (zkl_nodedata_read(data, len, &said) && said.breaker[0] != '\0')
	{
		slot->revoked = true;
		strlcpy(entry->breaker, said.breaker, sizeof(entry->breaker));
	}
}

/* The oldest one has to make room. */
static void
add_suspect(const char *name, const char *uuid)
{
	ZklSuspect *suspects = zkl_suspects();
	int			n = zkl_suspects_count();
	ZklSuspect *suspect;

	for (int tried = 0; tried < n && suspects[worker.next_suspect].name[0] != '\0'; tried++)
		worker.next_suspect = (worker.next_suspect + 1) % n;
	suspect = &suspects[worker.next_suspect];
	worker.next_suspect = (worker.next_suspect + 1) % n;
	if (suspect->name[0] != '\0')
		worker.suspects_dropped++;
	else
		worker.nsuspects++;
	suspect->serial++;
	suspect->until = zkl_now() + SUSPECT_PERIOD;
	strlcpy(suspect->uuid, uuid, sizeof(suspect->uuid));
	strlcpy(suspect->name, name, sizeof(suspect->name));
	if (uuid[0] != '\0')
		ereport(DEBUG1,
				(errmsg_internal("zklock: looking out for a late node of request %s, lock \"%s\"",
								 uuid, name)));
}

static void
drop_suspect(ZklSuspect *suspect)
{
	suspect->name[0] = '\0';
	suspect->serial++;
	worker.nsuspects--;
}

/* No late create of a ZooKeeper session that is over can come; directories stay. */
static void
forget_late_creates(void)
{
	for (int i = 0; i < zkl_suspects_count(); i++)
		if (zkl_suspects()[i].name[0] != '\0' && zkl_suspects()[i].uuid[0] != '\0')
			drop_suspect(&zkl_suspects()[i]);
}

static void
release_budget(Slot *slot)
{
	worker.node_bytes -= slot->cost;
	worker.watch_bytes -= slot->granted ? slot->cost : 2 * slot->cost;
	slot->cost = 0;
}

static void
deactivate(int index)
{
	Slot	   *slot = &worker.slots[index];

	release_budget(slot);
	set_recheck(slot, false);
	if (slot->made_dirs && !slot->had_node)
		add_suspect(zkl_shared->entries[index].name, "");
	slot->made_dirs = slot->had_node = false;
	worker.nactive -= slot->active;
	slot->active = slot->granted = slot->revoked = slot->surrender = slot->waited = false;
	slot->asking = slot->alone = false;
	for (Role role = ROLE_OWN; role < ROLES; role++)
		set_link(index, role, 0);
	slot->serial++;
}

/* For the statistics: the owner is done with it, or never got it. */
static void
count_end(int index, ZklOutcome outcome)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	ZklTime		since = entry->granted_at != 0 ? entry->granted_at : entry->wait_start;

	zkl_stats_count(entry->name, outcome, worker.slots[index].waited, zkl_now() - since);
}

/*
 * Copy what the machine has come to into the entry. Called after every event;
 * cheap when nothing changed.
 */
static void
publish(int index)
{
	Slot	   *slot = &worker.slots[index];
	ZklQueue   *queue = &slot->queue;
	ZklEntry   *entry = &zkl_shared->entries[index];
	ZklPhase	phase = pg_atomic_read_u32(&entry->phase);

	set_recheck(slot, queue->recheck);
	if (queue->suspect[0] != '\0')
	{
		add_suspect(entry->name, queue->suspect);
		queue->suspect[0] = '\0';
	}

	/* the node's name, for the next worker and for those who look */
	if (strcmp(entry->node, queue->node) != 0)
	{
		memcpy(entry->node, queue->node, sizeof(entry->node));
		set_link(index, ROLE_OWN, node_hash(index, queue->node));
		slot->had_node |= queue->node[0] != '\0';
	}
	pg_atomic_write_u32(&entry->ahead, queue->ahead);
	slot->waited |= queue->must_wait;
	if (queue->state == ZKL_QUEUE_QUEUED)
	{
		set_link(index, ROLE_PRED, node_hash(index, queue->pred));
		if (queue->listed)
			pg_atomic_write_u32(&entry->queued, 1);
	}
	else
	{
		set_link(index, ROLE_PRED, 0);
		pg_atomic_write_u32(&entry->queued, 0);
	}

	if (queue->state == ZKL_QUEUE_GRANTED && phase == ZKL_PHASE_WANTED)
	{
		entry->token = entry->inherited_token != 0 ? entry->inherited_token : queue->czxid;
		entry->generation = zkl_word_generation(pg_atomic_read_u64(&zkl_shared->lease));
		worker.watch_bytes -= slot->cost;
		slot->granted = true;
		count_end(index, ZKL_OUTCOME_ACQUIRED);
		entry->granted_at = zkl_now();
		pg_write_barrier();
		pg_atomic_write_u32(&entry->phase, ZKL_PHASE_HELD);
		wake_owner(entry);
	}
	else if (queue->result == ZKL_RESULT_LOST)
		publish_loss(index, worker.session != 0 ? ZKL_FLAG_VANISHED : 0);
	else if (queue->result == ZKL_RESULT_BUSY && phase == ZKL_PHASE_WANTED)
	{
		pg_atomic_write_u32(&entry->phase, ZKL_PHASE_BUSY);
		wake_owner(entry);
		count_end(index, ZKL_OUTCOME_BUSY);
	}
	else if (queue->result == ZKL_RESULT_FAILED && phase == ZKL_PHASE_WANTED)
	{
		entry->failure = queue->failure;
		entry->trouble = queue->trouble;
		pg_write_barrier();
		pg_atomic_write_u32(&entry->phase, ZKL_PHASE_FAILED);
		wake_owner(entry);
		count_end(index, ZKL_OUTCOME_FAILED);
	}

	if (queue->state == ZKL_QUEUE_GRANTED && slot->revoked && !slot->surrender)
		take_away(index);

	if (queue->state == ZKL_QUEUE_ENDED)
	{
		deactivate(index);
		if (pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO)
			zkl_entry_free(index);
	}
	else
		mark(index);
}

static void
activate(int index)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	Slot	   *slot = &worker.slots[index];
	char		path[ZKL_PATH_SIZE];

	slot->active = true;
	worker.nactive++;
	slot->serial++;
	slot->parent_rc = ZKL_RC_OK;
	zkl_dir_path(path, zkl_root, entry->name);
	slot->cost = strlen(path) + 1 + 58 + 4;
	worker.node_bytes += slot->cost;
	worker.watch_bytes += 2 * slot->cost;
	slot->dir_hash = path_hash(path);
	if (entry->mode == ZKL_MODE_PERMIT)
		set_link(index, ROLE_PERMITS, slot->dir_hash);
}

/* What the machine has to know of the request beside its mode. */
static void
set_request(ZklQueue *queue, const ZklEntry *entry)
{
	zkl_queue_set_permits(queue, entry->permits);
	zkl_queue_set_beside(queue, entry->beside);
}

static void
begin_request(int index)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	Slot	   *slot = &worker.slots[index];

	activate(index);
	zkl_queue_init(&slot->queue, entry->mode, entry->try);
	set_request(&slot->queue, entry);
	if (worker.node_bytes > ZKL_NODE_BUDGET || worker.watch_bytes > ZKL_WATCH_BUDGET)
	{
		deactivate(index);
		entry->failure = ZKL_FAILURE_NODE_BUDGET;
		pg_write_barrier();
		pg_atomic_write_u32(&entry->phase, ZKL_PHASE_FAILED);
		wake_owner(entry);
		return;
	}
	if (worker.connected)
		zkl_queue_connected(&slot->queue, worker.connection, worker.session);
	mark(index);
}

/*
 * The owner gave a lock back: the next one in the queue, if it is of this server, has
 * it now.
 */
static void
hand_over(int index)
{
	const char *node = worker.slots[index].queue.node;
	int			n = find_links(worker.links[index * ROLES + ROLE_OWN].hash);

	for (int i = 0; i < n; i++)
	{
		int			next = worker.found[i] / ROLES;

		if (worker.found[i] % ROLES != ROLE_PRED ||
			strcmp(zkl_shared->entries[next].name, zkl_shared->entries[index].name) != 0)
			continue;
		zkl_queue_pred_released(&worker.slots[next].queue, node);
		publish(next);
	}
}

/* A wish of the owner's, or one that an earlier worker did not get to. */
static void
look_at_entry(int index)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	Slot	   *slot = &worker.slots[index];
	ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
	uint32		flags;

	if (phase == ZKL_PHASE_FREE || phase == ZKL_PHASE_FILLING)
		return;
	pg_read_barrier();
	flags = pg_atomic_read_u32(&entry->flags);

	if (flags & ZKL_FLAG_LET_GO)
	{
		if (!slot->active || !slot->queue.abandoned)
		{
			if (phase == ZKL_PHASE_HELD)
			{
				count_end(index, ZKL_OUTCOME_RELEASED);
				if ((flags & (ZKL_FLAG_UNCERTAIN | ZKL_FLAG_LOST)) == ZKL_FLAG_UNCERTAIN)
					zkl_stats_count(entry->name, ZKL_OUTCOME_LOST, false, 0);
			}
			else if (phase == ZKL_PHASE_WANTED)
				count_end(index, (flags & ZKL_FLAG_TIMED_OUT) ? ZKL_OUTCOME_TIMED_OUT :
						  ZKL_OUTCOME_CANCELLED);
		}
		if (slot->active)
		{
			bool		held = slot->queue.state == ZKL_QUEUE_GRANTED;

			zkl_queue_abandon(&slot->queue);
			if (held)
				hand_over(index);
			publish(index);
		}
		else
			zkl_entry_free(index);
		return;
	}
	/* while the ZooKeeper session is being ended, requests wait for the next one */
	if (phase == ZKL_PHASE_WANTED && !slot->active && worker.parting[0] == '\0')
		begin_request(index);
	if ((flags & (ZKL_FLAG_ASKED | ZKL_FLAG_ANSWERED)) == ZKL_FLAG_ASKED)
		mark(index);
}

/*
 * Entries that an earlier worker left: go on with them. Held ones must be seen
 * again before the lease moves.
 */
static void
adopt_entries(void)
{
	uint32		generation = zkl_word_generation(pg_atomic_read_u64(&zkl_shared->lease));

	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		ZklEntry   *entry = &zkl_shared->entries[i];
		Slot	   *slot = &worker.slots[i];
		ZklPhase	phase = pg_atomic_read_u32(&entry->phase);
		bool		held = phase == ZKL_PHASE_HELD;

		if (phase == ZKL_PHASE_FREE || phase == ZKL_PHASE_FILLING)
			continue;
		if (held && (worker.session == 0 || entry->generation != generation))
		{
			publish_loss(i, 0);
			entry->uuid[0] = '\0';
		}
		if (worker.session == 0)
		{
			/* its nodes are gone with the ZooKeeper session */
			entry->uuid[0] = '\0';
			entry->node[0] = '\0';
		}
		if (entry->uuid[0] != '\0')
		{
			uint32		flags = pg_atomic_read_u32(&entry->flags);

			activate(i);
			slot->had_node = entry->node[0] != '\0';
			slot->made_dirs = true;
			/* being taken away, but a commit that has passed its check goes on */
			slot->surrender = held && (flags & ZKL_FLAG_LOST) &&
				(flags & (ZKL_FLAG_COMMITTING | ZKL_FLAG_LET_GO)) == ZKL_FLAG_COMMITTING;
			held = held && ((flags & ZKL_FLAG_LOST) == 0 || slot->surrender);
			zkl_queue_adopt(&slot->queue, entry->mode, entry->try, entry->uuid, entry->node,
							entry->token, held);
			set_request(&slot->queue, entry);
			set_link(i, ROLE_OWN, node_hash(i, entry->node));
			if (held)
			{
				worker.watch_bytes -= slot->cost;
				slot->granted = true;
			}
			if (!held && phase != ZKL_PHASE_WANTED)
				zkl_queue_abandon(&slot->queue);
			publish(i);
		}
		look_at_entry(i);
	}
}

/* ------------------------------------------------------------------------
 * Sending
 * ------------------------------------------------------------------------
 */

static ZklOp *
new_op(int purpose, int index, ZklTime now)
{
	ZklOp	   *op = zkl_op_new(worker.client);

	if (op == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	op->purpose = purpose;
	op->slot = index;
	op->serial = index >= 0 ? worker.slots[index].serial : 0;
	op->connection = worker.connection;
	op->sent = now;
	return op;
}

/* Count a request that the library took, or notice that it did not. */
static bool
account(bool sent, ZklTime now)
{
	if (!sent)
		return false;
	if (worker.in_flight++ == 0)
		worker.silent_since = now;
	worker.requests++;
	return true;
}

/*
 * Make every directory of "path", "last" being the purpose of the final one.
 * The parts up to and including zklock.root are persistent, as is all beneath
 * its .zklock; a lock's directories are containers, which the server removes
 * when they have been empty for a while.
 */
static bool
send_mkdirs(const char *path, int last, int others, int index, ZklTime now)
{
	char		part[ZKL_PATH_SIZE];
	size_t		root_len = strlen(zkl_root);
	const char *slash = path;

	for (;;)
	{
		size_t		len;
		int			flags;

		slash = strchr(slash + 1, '/');
		len = slash != NULL ? (size_t) (slash - path) : strlen(path);
		memcpy(part, path, len);
		part[len] = '\0';
		flags = len <= root_len || index < 0 ? ZKL_CREATE_PERSISTENT : ZKL_CREATE_CONTAINER;
		if (!account(zkl_send_create(new_op(slash != NULL ? others : last, index, now),
									 part, "", 0, flags, zkl_acl == ZKL_ACL_CREATOR), now))
			return false;
		if (slash == NULL)
			return true;
	}
}

/* The member node: what heartbeats write to, and who is there for others. */
static bool
send_member(ZklTime now)
{
	char		directory[ZKL_PATH_SIZE];
	ZklNodeData data;
	char		json[ZKL_NODEDATA_SIZE];
	size_t		len;

	snprintf(directory, sizeof(directory), "%s/.zklock", zkl_root);
	if (!send_mkdirs(directory, PURPOSE_ROOT, PURPOSE_ROOT, -1, now))
		return false;

	memset(&data, 0, sizeof(data));
	strlcpy(data.server, zkl_server_name, sizeof(data.server));
	data.pid = MyProcPid;
	strlcpy(data.application, "zklock worker", sizeof(data.application));
	len = zkl_nodedata_write(&data, json);
	return account(zkl_send_create(new_op(PURPOSE_MEMBER, -1, now), worker.member_path,
								   json, (int) len, ZKL_CREATE_EPHEMERAL,
								   zkl_acl == ZKL_ACL_CREATOR), now);
}

static void
send_heartbeat(ZklTime now)
{
	bool		sent;

	zkl_lease_sent(&worker.lease, now);
	if (worker.member_known)
		sent = account(zkl_send_set(new_op(PURPOSE_HEARTBEAT, -1, now), worker.member_path,
									"", 0), now);
	else
		sent = send_member(now);
	(void) sent;				/* the next one is due soon anyway */
	worker.next_heartbeat = now + zkl_lease_period(worker.lease.timeout, worker.lease.tick);
}

static bool
fresh_uuid(char uuid[ZKL_UUID_SIZE])
{
	unsigned char random[16];

	if (!pg_strong_random(random, sizeof(random)))
		return false;
	zkl_uuid_format(uuid, random);
	return true;
}

static uint64 *
known_dir(uint64 hash)
{
	return &worker.known_dirs[hash % KNOWN_DIRS];
}

/*
 * What is needed to create a machine's node: the path up to its digits, and the data.
 * The uuid is in shared memory before anything is sent: whoever comes after us must
 * find it. Returns the data's length, or -1.
 */
static int
prepare_create(int index, char path[ZKL_PATH_SIZE], char json[ZKL_NODEDATA_SIZE])
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	ZklQueue   *queue = &worker.slots[index].queue;
	ZklNodeData data;
	char		prefix[ZKL_NODE_SIZE];

	if (queue->uuid[0] == '\0' && !fresh_uuid(queue->uuid))
		return -1;
	memcpy(entry->uuid, queue->uuid, sizeof(entry->uuid));
	pg_write_barrier();

	memset(&data, 0, sizeof(data));
	strlcpy(data.server, zkl_server_name, sizeof(data.server));
	data.pid = entry->pid;
	strlcpy(data.database, entry->database, sizeof(data.database));
	strlcpy(data.user, entry->user, sizeof(data.user));
	strlcpy(data.application, entry->application, sizeof(data.application));
	strlcpy(data.since, entry->since, sizeof(data.since));
	data.permits = entry->permits;
	data.timeout = (int) (worker.lease.timeout / 1000);

	zkl_node_prefix(prefix, queue->uuid, queue->mode);
	if (queue->beside[0] != '\0')
		strlcat(prefix, zkl_node_digits(queue->beside), sizeof(prefix));
	zkl_node_path(path, zkl_root, entry->name, prefix);
	return (int) zkl_nodedata_write(&data, json);
}

/* Send one request that a machine wants. */
static bool
send_op(int index, uint32 op_bit, ZklTime now)
{
	ZklEntry   *entry = &zkl_shared->entries[index];
	Slot	   *slot = &worker.slots[index];
	ZklQueue   *queue = &slot->queue;
	char		directory[ZKL_PATH_SIZE];
	char		path[ZKL_PATH_SIZE];

	zkl_dir_path(directory, zkl_root, entry->name);

	switch (op_bit)
	{
		case ZKL_OP_MKDIRS:
			slot->parent_rc = ZKL_RC_OK;
			slot->made_dirs = true;
			return send_mkdirs(directory, ZKL_OP_MKDIRS, PURPOSE_PARENT, index, now);

		case ZKL_OP_CREATE:
			{
				char		json[ZKL_NODEDATA_SIZE];
				int			len = prepare_create(index, path, json);

				return len >= 0 &&
					account(zkl_send_create(new_op(op_bit, index, now), path, json, len,
											ZKL_CREATE_EPHEMERAL |
											(queue->beside[0] == '\0' ? ZKL_CREATE_SEQUENTIAL : 0),
											zkl_acl == ZKL_ACL_CREATOR), now);
			}

		case ZKL_OP_PROBE:
			return account(zkl_send_set(new_op(op_bit, index, now), worker.member_path, "", 0),
						   now);

		case ZKL_OP_LIST:
			{
				ZklOp	   *op = new_op(op_bit, index, now);

				memcpy(op->listing.uuid, queue->uuid, sizeof(op->listing.uuid));
				op->listing.mode = queue->mode;
				memcpy(op->listing.beside, queue->beside, sizeof(op->listing.beside));
				return account(zkl_send_list(op, directory, queue->mode == ZKL_MODE_PERMIT), now);
			}

		case ZKL_OP_OWN:
		case ZKL_OP_PRED:
			zkl_node_path(path, zkl_root, entry->name,
						  op_bit == ZKL_OP_OWN ? queue->node : queue->pred);
			return account(zkl_send_get(new_op(op_bit, index, now), path, true), now);

		case ZKL_OP_DELETE:
			zkl_node_path(path, zkl_root, entry->name, queue->node);
			return account(zkl_send_delete(new_op(op_bit, index, now), path), now);
	}
	return false;
}

/* Somebody's wait is about to time out and wants to say who was in the way. */
static void
send_who(int index, ZklTime now)
{
	char		directory[ZKL_PATH_SIZE];

	ZklOp	   *op = new_op(PURPOSE_WHO_LIST, index, now);

	worker.slots[index].asking = true;
	zkl_dir_path(directory, zkl_root, zkl_shared->entries[index].name);
	op->listing.mode = zkl_shared->entries[index].mode;
	memcpy(op->listing.uuid, zkl_shared->entries[index].uuid, sizeof(op->listing.uuid));
	(void) account(zkl_send_list(op, directory, false), now);
}

/* Remove a lock's directory and its parents, as far as nothing is in them. */
static void
send_sweep(int i, ZklTime now)
{
	ZklSuspect *suspect = &zkl_suspects()[i];
	char		path[ZKL_PATH_SIZE];
	size_t		root_len = strlen(zkl_root);

	zkl_dir_path(path, zkl_root, suspect->name);
	while (strlen(path) > root_len + 1)
	{
		ZklOp	   *op = new_op(PURPOSE_NOTHING, -1, now);
		char	   *slash = strrchr(path, '/');

		if ((size_t) (slash - path) <= root_len)
		{
			/* the last of them: its reply says that all have been executed */
			op->purpose = PURPOSE_SWEEP;
			op->serial = suspect->serial;
			op->place = i;
		}
		(void) account(zkl_send_delete(op, path), now);
		*slash = '\0';
	}
}

/* Look for creates that came late, and at directories that may never have had a node. */
static void
send_suspects(ZklTime now)
{
	int			n = zkl_suspects_count();
	int			sent = 0;

	if (!worker.connected || !worker.member_known)
		return;
	for (int tried = 0; tried < n && worker.nsuspects > 0; tried++)
	{
		int			i = worker.suspect_cursor;
		ZklSuspect *suspect = &zkl_suspects()[i];
		char		directory[ZKL_PATH_SIZE];
		ZklOp	   *op;

		if (sent >= SUSPECTS_PER_TICK || worker.in_flight >= MAX_IN_FLIGHT)
			return;
		worker.suspect_cursor = (i + 1) % n;
		if (suspect->name[0] == '\0')
			continue;
		sent++;
		if (suspect->uuid[0] == '\0')
		{
			send_sweep(i, now);
			continue;
		}
		if (now > suspect->until)
		{
			drop_suspect(suspect);
			continue;
		}
		zkl_dir_path(directory, zkl_root, suspect->name);
		op = new_op(PURPOSE_SUSPECT_LIST, -1, now);
		op->serial = suspect->serial;
		op->place = i;
		memcpy(op->listing.uuid, suspect->uuid, sizeof(op->listing.uuid));
		(void) account(zkl_send_list(op, directory, false), now);
	}
}

/* Send what a machine wants, each by itself, in the order of the bits. */
static void
send_singly(int index, uint32 wanted, ZklTime now)
{
	for (uint32 bit = 1; bit <= ZKL_OP_LAST; bit <<= 1)
	{
		if ((wanted & bit) == 0)
			continue;
		if (!send_op(index, bit, now))
			break;
		zkl_queue_sent(&worker.slots[index].queue, bit);
	}
}

/*
 * What a machine wants, if it may go into a batch with others: a deletion, or the
 * creation, and the listing behind it, of a node in a directory that is there. A try
 * that has not listed yet, a downgrade and a lease are left alone.
 */
static bool
may_be_batched(int index, uint32 wanted)
{
	Slot	   *slot = &worker.slots[index];

	if (slot->alone)
		return false;
	if (wanted == ZKL_OP_DELETE)
		return true;
	return wanted == (ZKL_OP_CREATE | ZKL_OP_LIST) && slot->queue.beside[0] == '\0' &&
		slot->queue.mode != ZKL_MODE_PERMIT &&
		*known_dir(slot->dir_hash) == slot->dir_hash;
}

/* Send a batch of creates or deletes; singly when there is but one. */
static void
send_batch(const int *indexes, int n, uint32 op_bit, ZklTime now)
{
	ZklOp	   *op;
	uint32		wanted = op_bit == ZKL_OP_CREATE ? ZKL_OP_CREATE | ZKL_OP_LIST : ZKL_OP_DELETE;
	int			added = 0;

	if (n > 1)
	{
		op = new_op(op_bit == ZKL_OP_CREATE ? PURPOSE_CREATES : PURPOSE_DELETES, -1, now);
		if (zkl_batch_begin(op))
			for (added = 0; added < n; added++)
			{
				int			index = indexes[added];
				uint32		serial = worker.slots[index].serial;
				char		path[ZKL_PATH_SIZE];
				char		json[ZKL_NODEDATA_SIZE];
				int			len;

				if (op_bit == ZKL_OP_DELETE)
				{
					zkl_node_path(path, zkl_root, zkl_shared->entries[index].name,
								  worker.slots[index].queue.node);
					if (!zkl_batch_delete(op, index, serial, path))
						break;
				}
				else if ((len = prepare_create(index, path, json)) < 0 ||
						 !zkl_batch_create(op, index, serial, path, json, len,
										   zkl_acl == ZKL_ACL_CREATOR))
					break;
			}
		if (added == 0)
			zkl_op_free(op);
		else if (account(zkl_send_batch(op), now))
		{
			for (int i = 0; i < added; i++)
				zkl_queue_sent(&worker.slots[indexes[i]].queue, op_bit);
			if (op_bit == ZKL_OP_CREATE)
				worker.ncreate_batches++;
			wanted &= ~op_bit;
		}
		else
			added = 0;
	}
	for (int i = 0; i < added; i++)
		send_singly(indexes[i], wanted, now);
	for (int i = added; i < n; i++)
		send_singly(indexes[i], wanted | op_bit, now);
}

/*
 * Go through the machines that changed, once for what they delete and once for the
 * rest, and send what they want; what has to wait stays on the list.
 */
static void
send_wanted_of(bool deletes)
{
	int			batch[ZKL_BATCH_MAX];
	uint64		dirs[ZKL_BATCH_MAX];
	int			nbatch = 0;
	int			kept = 0;
	ZklTime		now = zkl_now();

	for (int i = 0; i < worker.ntodo; i++)
	{
		int			index = worker.todo[i];
		Slot	   *slot = &worker.slots[index];
		uint32		flags = pg_atomic_read_u32(&zkl_shared->entries[index].flags);
		uint32		wanted = slot->active ? zkl_queue_wanted(&slot->queue) : 0;
		bool		full = worker.in_flight >= MAX_IN_FLIGHT ||
			!zkl_client_is_connected(worker.client);
		bool		twice = false;

		if (full || (deletes && wanted != ZKL_OP_DELETE) ||
			(wanted == ZKL_OP_OWN && slot->queue.state == ZKL_QUEUE_GRANTED &&
			 !slot->queue.recheck && !(flags & ZKL_FLAG_ASKED) &&
			 now - zkl_shared->entries[index].granted_at < WATCH_DELAY))
		{
			worker.todo[kept++] = index;
			continue;
		}
		if ((flags & (ZKL_FLAG_ASKED | ZKL_FLAG_ANSWERED)) == ZKL_FLAG_ASKED && !slot->asking)
			send_who(index, now);
		if (!may_be_batched(index, wanted))
		{
			slot->in_todo = false;
			send_singly(index, wanted, now);
			continue;
		}
		if (!deletes && worker.ncreate_batches >= MAX_CREATE_BATCHES)
		{
			worker.todo[kept++] = index;
			continue;
		}
		slot->in_todo = false;
		/* in one directory their czxids, which are their tokens, would be equal */
		for (int j = 0; j < nbatch && !deletes && !twice; j++)
			twice = dirs[j] == slot->dir_hash;
		if (twice)
		{
			send_singly(index, wanted, now);
			continue;
		}
		dirs[nbatch] = slot->dir_hash;
		batch[nbatch++] = index;
		if (nbatch == ZKL_BATCH_MAX)
		{
			send_batch(batch, nbatch, deletes ? ZKL_OP_DELETE : ZKL_OP_CREATE, now);
			nbatch = 0;
		}
	}
	if (nbatch > 0)
		send_batch(batch, nbatch, deletes ? ZKL_OP_DELETE : ZKL_OP_CREATE, now);
	worker.ntodo = kept;
}

/*
 * Nothing is handed to the library while it is not connected: it would queue it, and
 * send it who knows when. Nor before the member node is there: what keeps us from
 * making it is what a waiter should hear, not what it does to his request.
 *
 * Deletes go first: a backend's next request for a lock that it has given back must
 * not find its old node.
 */
static void
send_wanted(void)
{
	if (!worker.connected || !worker.member_known || worker.ntodo == 0)
		return;
	send_wanted_of(true);
	send_wanted_of(false);
}

/* ------------------------------------------------------------------------
 * The ZooKeeper session
 * ------------------------------------------------------------------------
 */

static void
remember_session(int64 session)
{
	/* an entry of 0 while the rest changes: a torn one would be refused as a
	 * wrong password, which is safe but loses the locks */
	zkl_survivor->session = 0;
	pg_write_barrier();
	if (session == 0)
		return;
	zkl_client_password(worker.client, zkl_survivor->password);
	zkl_survivor->timeout = worker.lease.timeout;
	zkl_survivor->incarnation = zkl_shared->incarnation;
	zkl_survivor->member_version = -1;
	strlcpy(zkl_survivor->chroot, worker.chroot, sizeof(zkl_survivor->chroot));
	pg_write_barrier();
	zkl_survivor->session = session;
}

/* The client is no more, and what was asked of it. */
static void
forget_client(void)
{
	worker.client = NULL;
	worker.connected = false;
	worker.in_flight = worker.ncreate_batches = 0;
	for (int i = 0; i < ZKL_DESKS; i++)
		worker.desks[i].begun = false;
}

/* End the ZooKeeper session, if connected, without waiting for that. */
static void
close_client(void)
{
	if (worker.client == NULL)
		return;
	zkl_client_close_later(worker.client);
	forget_client();
}

static void handle(ZklOp *op);

/*
 * Give the library's handle up, and not the ZooKeeper session. What it had not answered
 * is lost, as by a break of the connection.
 */
static void
lose_client(void)
{
	ZklClient  *client = worker.client;
	ZklOp	   *op;

	if (client == NULL)
		return;
	if (!zkl_client_drop(client))
	{
		ereport(LOG,
				(errmsg("zklock: the ZooKeeper client library does not let go of its connection, restarting the worker")));
		proc_exit(1);
	}
	while ((op = zkl_client_next(client)) != NULL)
	{
		/* what it has to say of the session the next one will say again */
		if (op->kind != ZKL_KIND_SESSION)
			handle(op);
		zkl_op_free(op);
	}
	zkl_client_free(client);
	forget_client();
}

/* T, or what will be asked for. */
static ZklTime
patience(void)
{
	return worker.lease.timeout != 0 ? worker.lease.timeout : ZKL_MS(zkl_session_timeout);
}

/* "" when there is none. */
static const char *
chroot_of(const char *hosts)
{
	const char *slash = strchr(hosts, '/');

	return slash != NULL ? slash : "";
}

/*
 * The ZooKeeper session is over: first the deadline, so that nobody believes
 * any more, then each lock, then start anew. "close": it is we who end it. If that
 * cannot be said now, the next connection does.
 */
static void
end_zookeeper_session(const char *why, bool close)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
	uint32		generation = (zkl_word_generation(word) + 1) & 0xFFF;
	int64		session = worker.session;

	pg_atomic_write_u64(&zkl_shared->lease, (uint64) generation << 12);
	zkl_lease_end(&worker.lease);
	if (close && !worker.connected)
		zkl_survivor->incarnation = 0;
	else
		remember_session(0);
	worker.session = 0;
	pg_atomic_fetch_add_u64(&zkl_shared->health.expiries, 1);
	forget_late_creates();
	memset(worker.known_dirs, 0, sizeof(worker.known_dirs));
	worker.member_known = false;
	worker.zxid = 0;
	worker.lapse_logged = false;
	worker.held_back_sent = 0;

	ereport(LOG,
			(errmsg("zklock: ZooKeeper session 0x%" PRIx64 " ended, %d held locks are lost",
					session, count_held()),
			 errdetail("%s", why)));

	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		Slot	   *slot = &worker.slots[i];

		if (!slot->active)
			continue;
		slot->serial++;
		slot->asking = false;
		zkl_queue_session_gone(&slot->queue);
		publish(i);
	}
	if (close)
		close_client();
	else
		lose_client();
	strlcpy(worker.chroot, chroot_of(zkl_hosts), sizeof(worker.chroot));
	if (worker.parting[0] != '\0')
	{
		worker.parting[0] = '\0';
		/* what was asked for meanwhile */
		for (int i = 0; i < zkl_shared->nentries; i++)
			look_at_entry(i);
	}
	zkl_trouble_write(why);
	worker.retry_at = zkl_now();
}

/*
 * Take the ZooKeeper session for one that has to go, for a reason of ours. What is held
 * is lost from now on, so nothing passes its check any more; what has passed it is
 * waited for. What waits goes back to its beginning, and begins with the next session.
 */
static void
begin_parting(const char *why)
{
	if (worker.parting[0] != '\0')
		return;
	strlcpy(worker.parting, why, sizeof(worker.parting));
	worker.parting_since = zkl_now();
	worker.parting_logged = false;
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (worker.slots[i].active && worker.slots[i].granted)
			publish_loss(i, 0);
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		Slot	   *slot = &worker.slots[i];

		if (!slot->active || slot->granted ||
			(slot->queue.state == ZKL_QUEUE_DELETING && !slot->queue.requeue))
			continue;
		slot->serial++;
		slot->asking = false;
		zkl_queue_session_gone(&slot->queue);
		publish(i);
	}
}

/* Is somebody between the check of his commit and its end? */
static bool
somebody_commits(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		uint32		flags = pg_atomic_read_u32(&zkl_shared->entries[i].flags);

		if (pg_atomic_read_u32(&zkl_shared->entries[i].phase) == ZKL_PHASE_HELD &&
			(flags & (ZKL_FLAG_COMMITTING | ZKL_FLAG_LET_GO)) == ZKL_FLAG_COMMITTING)
			return true;
	}
	return false;
}

static void
advance_parting(ZklTime now)
{
	char		why[sizeof(worker.parting)];

	if (worker.parting[0] == '\0')
		return;
	if (somebody_commits())
	{
		if (!worker.parting_logged && now - worker.parting_since >= patience())
		{
			worker.parting_logged = true;
			ereport(LOG,
					(errmsg("zklock: ZooKeeper session 0x%" PRIx64 " is not ended yet, since a transaction under one of its locks is being committed",
							worker.session),
					 errdetail("%s", worker.parting)));
		}
		return;
	}
	strlcpy(why, worker.parting, sizeof(why));
	end_zookeeper_session(why, true);
}

/*
 * Look whether the handshake of the next connection can have been sent: not as long as
 * there is no connection to send it over, or only one that was there before and broke.
 * A connection that is new was not there at the look before, so neither was its
 * handshake.
 */
static void
look_at_sockets(ZklTime now)
{
	uint64		open[LOOK_MAX];
	int			n = zkl_client_open_sockets(worker.client, open, LOOK_MAX);
	bool		fresh = false;

	if (n == LOOK_MAX)
		return;					/* cannot tell: the bound stays where it was */
	for (int i = 0; i < n && !fresh; i++)
	{
		fresh = true;
		for (int j = 0; j < worker.nlooked && fresh; j++)
			fresh = open[i] != worker.looked[j];
	}
	if (n == 0)
		worker.handshake_bound = now;
	else if (fresh)
		worker.handshake_bound = worker.last_look;
	memcpy(worker.looked, open, n * sizeof(open[0]));
	worker.nlooked = n;
	worker.last_look = now;
}

static void
on_connected(ZklTime now)
{
	int64		session = zkl_client_session(worker.client);
	ZklTime		timeout = ZKL_MS(zkl_client_timeout(worker.client));

	if (worker.clearing)
	{
		/* ours of before a crash: its locks belong to nobody any more */
		ereport(LOG,
				(errmsg("zklock: closing ZooKeeper session 0x%" PRIx64 ", whose locks are nobody's any more",
						session)));
		close_client();
		remember_session(0);
		worker.clearing = false;
		worker.retry_at = now;
		return;
	}

	/* a server that silently replaces a session must not keep our locks */
	if (worker.session != 0 && session != worker.session)
	{
		close_client();
		end_zookeeper_session("The server answered with another ZooKeeper session.", false);
		return;
	}

	look_at_sockets(now);
	worker.connection++;
	worker.connected = worker.has_connected = true;
	/* a series that an outage interrupted has not kept the session alive */
	if (worker.handshakes == 0 || now - worker.handshake_at > patience())
	{
		worker.handshakes = 0;
		worker.first_handshake = now;
	}
	worker.handshake_at = now;
	worker.handshakes++;
	pg_atomic_fetch_add_u64(&zkl_shared->health.connects, 1);
	pg_atomic_write_u64(&zkl_shared->health.peer, zkl_client_peer(worker.client));
	worker.silent_since = now;
	worker.held_back_sent = 0;

	if (worker.session == 0)
	{
		worker.session = session;
		worker.answered_at = worker.written_at = now;
		zkl_lease_start(&worker.lease, timeout, ZKL_MS(zkl_server_tick_time));
		zkl_lease_sent(&worker.lease, worker.handshake_bound);
		remember_session(session);
		snprintf(worker.member_path, sizeof(worker.member_path), "%s/.zklock/%s-%016" PRIx64 "",
				 zkl_root, zkl_server_name, session);
		worker.member_known = false;
		ereport(LOG,
				(errmsg("zklock: ZooKeeper session 0x%" PRIx64 ", timeout %d ms",
						session, zkl_client_timeout(worker.client)),
				 timeout != ZKL_MS(zkl_session_timeout) ?
				 errdetail("The servers' limits changed the timeout of %d ms that zklock.session_timeout asks for.",
						   zkl_session_timeout) : 0));
	}
	else
	{
		ereport(LOG,
				(errmsg("zklock: connected again, ZooKeeper session 0x%" PRIx64 " is kept",
						session)));
		zkl_lease_reconnected(&worker.lease, timeout, worker.handshake_bound);
		publish_lease(now);
		zkl_survivor->timeout = timeout;
	}

	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		if (!worker.slots[i].active ||
			(worker.parting[0] != '\0' && worker.slots[i].queue.state == ZKL_QUEUE_NEW))
			continue;
		zkl_queue_connected(&worker.slots[i].queue, worker.connection, worker.session);
		publish(i);
	}

	/* first of all a write: reads behind it cannot be older than it is, also
	 * where this server lags behind the one that we were connected to */
	send_heartbeat(now);
}

static void
on_disconnected(ZklTime now)
{
	if (!worker.connected)
		return;
	worker.connected = false;
	for (int i = 0; i < ZKL_DESKS; i++)
		worker.desks[i].begun = false;
	worker.disconnected_at = now;
	worker.last_kick = now;
	/* what it was connected by was there when the latest look was taken, if not before */
	worker.last_look = Max(worker.last_look, worker.acked_sent);
	worker.handshake_bound = worker.last_look;
	worker.next_lookup = Max(now, worker.last_lookup + RETRY_PERIOD);
	for (int i = 0; i < zkl_shared->nentries; i++)
		if (worker.slots[i].active)
			zkl_queue_disconnected(&worker.slots[i].queue);
}

static void
on_session_event(ZklSessionEvent event, ZklTime now)
{
	switch (event)
	{
		case ZKL_EVENT_CONNECTED:
			on_connected(now);
			break;
		case ZKL_EVENT_DISCONNECTED:
			on_disconnected(now);
			break;
		case ZKL_EVENT_EXPIRED:
			if (worker.clearing)
			{
				lose_client();
				remember_session(0);
				worker.clearing = false;
				worker.retry_at = now;
			}
			else
				end_zookeeper_session("ZooKeeper has expired it.", false);
			break;
		case ZKL_EVENT_AUTH_FAILED:
			end_zookeeper_session("ZooKeeper does not accept the credentials in zklock.credentials_file.", false);
			worker.retry_at = now + RETRY_PERIOD;
			break;
	}
}

/*
 * One line of the credentials file, "user:password". Returns false, with the
 * trouble written down, when there should be one and it cannot be had.
 */
static bool
read_credentials(char line[256])
{
	FILE	   *file;
	struct stat status;
	const char *wrong = NULL;

	line[0] = '\0';
	if (zkl_credentials_file[0] == '\0')
		return true;
	file = AllocateFile(zkl_credentials_file, "r");
	if (file == NULL)
		wrong = "could not be opened";
	else
	{
		if (fstat(fileno(file), &status) != 0 || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
			wrong = "is accessible by others; its permissions should be 0600 or less";
		else if (fgets(line, 256, file) == NULL || strchr(line, ':') == NULL)
			wrong = "does not hold a line of the form user:password";
		FreeFile(file);
	}
	if (wrong != NULL)
	{
		char		text[ZKL_TROUBLE_SIZE];

		snprintf(text, sizeof(text), "zklock.credentials_file %s", wrong);
		zkl_trouble_write(text);
		ereport(LOG,
				(errmsg("zklock: zklock.credentials_file \"%s\" %s",
						zkl_credentials_file, wrong)));
		return false;
	}
	line[strcspn(line, "\r\n")] = '\0';
	return true;
}

static void
open_client(ZklTime now)
{
	char		credentials[256];
	char	   *hosts;

	worker.retry_at = now + RETRY_PERIOD;
	if (!read_credentials(credentials))
		return;
	worker.clearing = zkl_survivor->session != 0 &&
		zkl_survivor->incarnation != zkl_shared->incarnation;
	hosts = psprintf("%s%s", worker.addresses, worker.chroot);
	worker.client = zkl_client_open(hosts, zkl_session_timeout, zkl_survivor->session,
									zkl_survivor->password);
	if (worker.client == NULL)
	{
		zkl_trouble_write("the ZooKeeper client library could not be started");
		ereport(LOG,
				(errmsg("zklock: could not start the ZooKeeper client library: %m")));
	}
	else if (credentials[0] != '\0')
		(void) account(zkl_client_add_digest(worker.client, credentials), now);
	explicit_bzero(credentials, sizeof(credentials));
	pfree(hosts);
	worker.handshake_bound = worker.last_look = now;
	worker.nlooked = 0;
	worker.opened_at = now;
	worker.disconnected_at = now;
	worker.last_kick = now;
	worker.has_connected = false;
	if (worker.client_addresses != NULL)
		pfree(worker.client_addresses);
	worker.client_addresses = MemoryContextStrdup(TopMemoryContext, worker.addresses);
}

/* Another handle of the library for the same ZooKeeper session. */
static void
replace_client(ZklTime now)
{
	on_disconnected(now);
	lose_client();
	open_client(now);
}

/*
 * Look the names in zklock.hosts up, again and again: what they stand for may change
 * while we are connected to one of the last that are as before, and then it is too late
 * to learn of the others.
 */
static void
look_up_hosts(ZklTime now)
{
	const char *addresses;
	const char *error;
	ZklTime		again = worker.connected ?
		Min(Max(patience() / 4, ZKL_MS(2000)), ZKL_MS(15000)) :
		Min(Max(patience() / 10, RETRY_PERIOD), ZKL_MS(5000));

	if (worker.resolution == NULL)
	{
		if (now < worker.next_lookup ||
			(worker.addresses != NULL && zkl_hosts_are_numeric(zkl_hosts)))
			return;
		worker.resolution = zkl_resolve_start(zkl_hosts);
		worker.last_lookup = now;
		worker.next_lookup = now + RETRY_PERIOD;
		worker.slow_lookup = false;
		if (worker.resolution == NULL)
			return;
	}
	if (!zkl_resolve_done(worker.resolution, &addresses, &error))
	{
		/* under way for a while; a client has other troubles than this */
		if (worker.client == NULL && !worker.slow_lookup &&
			now - worker.last_lookup >= RETRY_PERIOD)
		{
			worker.slow_lookup = true;
			zkl_trouble_write("could not resolve the names in zklock.hosts: no answer from the name servers yet");
		}
		return;
	}
	worker.next_lookup = now + (worker.addresses == NULL ? RETRY_PERIOD : again);
	if (addresses == NULL)
	{
		if (worker.client == NULL)
			zkl_trouble_write(error);
		ereport(DEBUG1, (errmsg_internal("zklock: %s", error)));
	}
	else if (worker.addresses == NULL || strcmp(addresses, worker.addresses) != 0)
	{
		if (worker.addresses != NULL)
		{
			ereport(LOG,
					(errmsg("zklock: the addresses of zklock.hosts changed"),
					 errdetail("They were %s and are %s.", worker.addresses, addresses)));
			pfree(worker.addresses);
		}
		worker.addresses = MemoryContextStrdup(TopMemoryContext, addresses);
	}
	zkl_resolve_free(worker.resolution);
	worker.resolution = NULL;
}

/*
 * Get from no client to one that connects, and from one that never will to another.
 *
 * A handle of the library can be in a state that it does not come out of: it remembers
 * the highest zxid that it has seen, and servers that lost their data refuse it for
 * ever; it sets all its watches in one packet, which a server may refuse as too large.
 * So when T has passed without an answer, a fresh handle takes its place, which offers
 * the same ZooKeeper session: what the ensemble kept, we keep. One that has never been
 * connected remembers nothing, and is replaced rarely.
 *
 * If handshakes pass and nothing else does, they keep the ZooKeeper session alive and
 * its locks from everybody; so it is given up then.
 */
static void
advance_connection(ZklTime now)
{
	ZklTime		silent = now - Max(worker.answered_at, worker.opened_at);

	look_up_hosts(now);
	if (worker.client == NULL)
	{
		if (worker.addresses != NULL && now >= worker.retry_at)
			open_client(now);
		return;
	}
	if (!worker.connected)
		look_at_sockets(now);

	if (worker.session != 0 && worker.handshakes >= 2 &&
		now - Max(worker.written_at, worker.first_handshake) >= 2 * patience() &&
		now - worker.handshake_at < patience())
		begin_parting("ZooKeeper lets us connect, but has not acknowledged a write for twice the session timeout.");
	else if (silent >= (worker.has_connected ? 1 : 6) * patience())
	{
		if (!worker.fresh_logged)
			ereport(LOG,
					(errmsg("zklock: no answer from ZooKeeper for %ld ms, beginning with a fresh handle of the client library",
							(long) ((now - worker.answered_at) / 1000)),
					 worker.session != 0 ?
					 errdetail("It offers ZooKeeper session 0x%" PRIx64 " again.", worker.session) : 0));
		worker.fresh_logged = true;
		replace_client(now);
	}
	else if (!worker.connected && strcmp(worker.client_addresses, worker.addresses) != 0)
		replace_client(now);
}

/*
 * A server that swallows everything: the library would notice after two thirds
 * of T, and the lease may be gone by then. So does a server that does not
 * answer the handshake. Cut, and it goes on to the next server.
 */
static void
watch_for_black_hole(ZklTime now)
{
	ZklTime		limit = zkl_lease_stall(patience());
	ZklTime		since = worker.connected ? worker.silent_since : worker.disconnected_at;

	if (worker.client == NULL || (worker.connected && worker.in_flight == 0))
		return;
	if (now - since < limit || now - worker.last_kick < limit)
		return;
	worker.last_kick = now;
	look_at_sockets(now);
	if (worker.connected)
		ereport(LOG,
				(errmsg("zklock: no answer from ZooKeeper for %ld ms, trying the next server",
						(long) ((now - since) / 1000))));
	zkl_client_kick(worker.client);
}

/*
 * We were held up ourselves, and nothing was sent for so long that what heartbeats
 * prove is too little to be of use, until that gap is T in the past. A handshake
 * touches the ZooKeeper session as well, and gaps are counted from it.
 */
static void
close_gap(ZklTime now)
{
	ZklTime		gap = zkl_lease_gap(&worker.lease, now);

	if (!worker.connected || worker.lease.timeout == 0 || gap <= zkl_lease_stall(patience()) ||
		worker.lease.timeout - zkl_lease_margin(&worker.lease, now) >= useful_lease() ||
		now - worker.last_kick < zkl_lease_stall(patience()))
		return;
	worker.last_kick = now;
	look_at_sockets(now);
	ereport(LOG,
			(errmsg("zklock: no heartbeat was sent for %ld ms, connecting again for a full lease",
					(long) (gap / 1000))));
	zkl_client_kick(worker.client);
}

/* ------------------------------------------------------------------------
 * Receiving
 * ------------------------------------------------------------------------
 */

/*
 * How far the ensemble has counted, for fence.c. One that counts from a lower number is
 * not the one that it was, or has lost its data.
 */
static void
publish_zxid(int64 zxid, ZklTime sent)
{
	int64		known = (int64) pg_atomic_read_u64(&zkl_shared->zxid);

	if (zxid < known)
		ereport(LOG,
				(errmsg("zklock: ZooKeeper counts from a lower number than before"),
				 errdetail("It had come to " INT64_FORMAT " and is at " INT64_FORMAT ".", known, zxid),
				 errhint("If the ensemble was rebuilt, fencing tokens are lower than the marks in zk_fence: see \"Rebuilding the ensemble\" in the manual.")));
	if (zxid != known)
		pg_atomic_write_u64(&zkl_shared->zxid, zxid);
	pg_write_barrier();
	pg_atomic_write_u64(&zkl_shared->zxid_sent, sent);
}

static void
note_heartbeat(ZklOp *op, ZklTime now)
{
	ZklHealth  *health = &zkl_shared->health;

	if (op->rc == ZKL_RC_OK)
	{
		pg_atomic_fetch_add_u64(&health->heartbeats, 1);
		pg_atomic_write_u64(&health->heartbeat_sent, op->sent);
		pg_atomic_write_u64(&health->heartbeat_took, now - op->sent);
	}
	else
		pg_atomic_fetch_add_u64(&health->heartbeat_failures, 1);
}

/*
 * Our writes to the member node count up, its version and the ensemble's zxid. If one
 * has gone back, the ensemble was restored from a backup that has our ZooKeeper session
 * in it, and with it the nodes of locks that were given back since: they would be
 * there as long as we are.
 */
static bool
has_gone_back(ZklOp *op)
{
	int64		version = op->purpose == PURPOSE_HEARTBEAT ? op->version : 0;
	bool		back = op->mzxid < worker.zxid ||
		(op->purpose == PURPOSE_HEARTBEAT && version <= zkl_survivor->member_version);

	worker.zxid = op->mzxid;
	zkl_survivor->member_version = version;
	return back;
}

static void
on_member_reply(ZklOp *op, ZklTime now)
{
	if (op->rc != ZKL_RC_CONNECTIONLOSS && op->rc != ZKL_RC_OPERATIONTIMEOUT)
	{
		worker.written_at = now;
		worker.handshakes = 0;
	}
	if ((op->purpose == PURPOSE_HEARTBEAT || op->purpose == PURPOSE_MEMBER) &&
		op->rc == ZKL_RC_OK && worker.session != 0 && has_gone_back(op))
	{
		begin_parting("The ensemble has lost what it had acknowledged: it was restored from a backup.");
		return;
	}
	if (op->purpose == PURPOSE_HEARTBEAT ||
		(op->purpose == PURPOSE_MEMBER && op->rc == ZKL_RC_OK))
		note_heartbeat(op, now);
	if (op->rc == ZKL_RC_OK && op->mzxid != 0)
		publish_zxid(op->mzxid, op->sent);

	switch (op->purpose)
	{
		case PURPOSE_ROOT:
			if (op->rc == ZKL_RC_NONODE)
				zkl_trouble_write("a parent of zklock.root does not exist in ZooKeeper; if zklock.hosts ends in a chroot, create that node first");
			else if (op->rc == ZKL_RC_NOAUTH)
				zkl_trouble_write("ZooKeeper does not permit to create zklock.root: not authenticated");
			else if (op->rc == ZKL_RC_QUOTAEXCEEDED)
				zkl_trouble_write("ZooKeeper does not permit to create zklock.root: quota exceeded");
			break;

		case PURPOSE_MEMBER:
			if (op->rc == ZKL_RC_OK || op->rc == ZKL_RC_NODEEXISTS)
				worker.member_known = true;
			if (op->rc == ZKL_RC_OK)
				lease_acked(op->sent, now);
			else if (op->rc == ZKL_RC_NODEEXISTS)
				worker.next_heartbeat = now;	/* a lost reply: write to it */
			else if (op->rc == ZKL_RC_NOAUTH)
				zkl_trouble_write("ZooKeeper does not permit to create a node below zklock.root: not authenticated");
			else if (op->rc == ZKL_RC_QUOTAEXCEEDED)
				zkl_trouble_write("ZooKeeper does not permit to create a node below zklock.root: quota exceeded");
			break;

		case PURPOSE_HEARTBEAT:
			if (op->rc == ZKL_RC_OK)
				lease_acked(op->sent, now);
			else if (op->rc == ZKL_RC_NONODE)
			{
				worker.member_known = false;
				worker.next_heartbeat = now;
			}
			else if (op->rc == ZKL_RC_NOAUTH)
				zkl_trouble_write("ZooKeeper does not permit to write our member node: not authenticated");
			break;
	}
}

static void
on_suspect_reply(ZklOp *op, ZklTime now)
{
	ZklSuspect *suspect = &zkl_suspects()[op->place];
	char		path[ZKL_PATH_SIZE];

	if (op->serial != suspect->serial || op->rc != ZKL_RC_OK || !op->listing.own_found ||
		!worker.connected)
		return;
	ereport(LOG,
			(errmsg("zklock: deleting node \"%s\" of lock \"%s\", whose creation came late",
					op->listing.own, suspect->name)));
	zkl_node_path(path, zkl_root, suspect->name, op->listing.own);
	(void) account(zkl_send_delete(new_op(PURPOSE_SUSPECT_DELETE, -1, now), path), now);
}

static void
on_sweep_reply(ZklOp *op)
{
	ZklSuspect *suspect = &zkl_suspects()[op->place];

	if (op->serial == suspect->serial && suspect->name[0] != '\0' &&
		op->rc != ZKL_RC_CONNECTIONLOSS && op->rc != ZKL_RC_OPERATIONTIMEOUT)
		drop_suspect(suspect);
}

static void
on_who_reply(ZklOp *op, ZklTime now)
{
	ZklEntry   *entry = &zkl_shared->entries[op->slot];
	char		path[ZKL_PATH_SIZE];

	if (op->serial != worker.slots[op->slot].serial)
		return;
	worker.slots[op->slot].asking = false;
	memset(&entry->holder, 0, sizeof(entry->holder));
	entry->holder_token = 0;
	if (op->purpose == PURPOSE_WHO_LIST && op->rc == ZKL_RC_OK && op->listing.first[0] != '\0' &&
		worker.connected)
	{
		zkl_node_path(path, zkl_root, entry->name, op->listing.first);
		worker.slots[op->slot].asking = true;
		(void) account(zkl_send_get(new_op(PURPOSE_WHO_GET, op->slot, now), path, false), now);
		return;
	}
	if (op->purpose == PURPOSE_WHO_GET && op->rc == ZKL_RC_OK)
	{
		zkl_nodedata_read(op->text, op->len, &entry->holder);
		entry->holder_token = op->czxid;
	}
	else if (op->rc != ZKL_RC_NONODE)
		return;
	pg_write_barrier();
	pg_atomic_fetch_or_u32(&entry->flags, ZKL_FLAG_ANSWERED);
	wake_owner(entry);
}

/*
 * The desks of inquiry.h: begin what was asked, and clear what was given up. What a
 * connection loses is begun again; the asker gives up when it has had enough.
 */
static void
begin_inquiry(int i, ZklTime now)
{
	ZklDesk    *desk = &zkl_desks[i];
	ZklSlip    *slip = &desk->slip;
	char		path[ZKL_PATH_SIZE];
	ZklOp	   *op;
	bool		sent = false;

	if (!zkl_desk_read_slip(desk, worker.desks[i].word))
		return;
	desk->contenders = desk->nrows = 0;
	op = new_op(slip->question == ZKL_QUESTION_QUEUE ? PURPOSE_INQUIRY_LIST : PURPOSE_INQUIRY,
				-1, now);
	op->place = i;
	op->serial = ++worker.desks[i].serial;
	switch (slip->question)
	{
		case ZKL_QUESTION_QUEUE:
		case ZKL_QUESTION_LOOK:
			zkl_dir_path(path, zkl_root, slip->name);
			op->want_names = true;
			sent = account(zkl_send_list(op, path, false), now);
			break;
		case ZKL_QUESTION_SET:
			zkl_node_path(path, zkl_root, slip->name, slip->node);
			sent = account(zkl_send_set(op, path, slip->data, slip->len), now);
			break;
		case ZKL_QUESTION_DELETE:
			zkl_node_path(path, zkl_root, slip->name, slip->node);
			sent = account(zkl_send_delete(op, path), now);
			break;
	}
	worker.desks[i].begun = sent;
	worker.desks[i].pending = 1;
}

/*
 * An asker waits no longer than INQUIRY_ASKED_MS, and fetches an answer at once. One that
 * does neither is stopped, and must not keep the desk from others.
 */
#define INQUIRY_ASKED_MS	3000
#define INQUIRY_ANSWERED_MS 500

static void
look_at_desks(ZklTime now)
{
	for (int i = 0; i < ZKL_DESKS; i++)
	{
		uint64		word = pg_atomic_read_u64(&zkl_desks[i].word);
		ZklDeskState state = zkl_desk_state(word);
		ZklTime		patience = ZKL_MS(state == ZKL_DESK_ANSWERED ? INQUIRY_ANSWERED_MS :
									  INQUIRY_ASKED_MS);

		if (word != worker.desks[i].word)
		{
			if (zkl_desk_generation(word) != zkl_desk_generation(worker.desks[i].word))
				worker.desks[i].begun = false;
			worker.desks[i].word = word;
			worker.desks[i].since = now;
		}
		if (state == ZKL_DESK_FREE)
			continue;
		pg_read_barrier();
		if (state == ZKL_DESK_ABANDONED || now - worker.desks[i].since > patience)
		{
			worker.desks[i].serial++;
			worker.desks[i].begun = false;
			zkl_desk_clear(&zkl_desks[i], word);
		}
		else if (state == ZKL_DESK_ASKED && !worker.desks[i].begun && worker.connected &&
				 worker.member_known && worker.in_flight < MAX_IN_FLIGHT)
			begin_inquiry(i, now);
	}
}

static void
answer_inquiry(int i, int rc)
{
	ZklDesk    *desk = &zkl_desks[i];
	uint64		expected = worker.desks[i].word;

	worker.desks[i].begun = false;
	worker.desks[i].serial++;
	desk->rc = rc;
	if (pg_atomic_compare_exchange_u64(&desk->word, &expected,
									   zkl_desk_with_state(expected, ZKL_DESK_ANSWERED)))
		SetLatch(&GetPGProcByNumber(zkl_desk_procno(expected))->procLatch);
}

static void
on_inquiry_reply(ZklOp *op, ZklTime now)
{
	int			i = op->purpose == PURPOSE_INQUIRY_ROW ? op->place / ZKL_INQUIRY_ROWS : op->place;
	ZklDesk    *desk = &zkl_desks[i];
	const char *name = op->names;

	if (op->serial != worker.desks[i].serial || !worker.desks[i].begun ||
		zkl_desk_state(worker.desks[i].word) != ZKL_DESK_ASKED ||
		pg_atomic_read_u64(&desk->word) != worker.desks[i].word)
		return;
	if (op->rc == ZKL_RC_CONNECTIONLOSS || op->rc == ZKL_RC_OPERATIONTIMEOUT)
	{
		worker.desks[i].begun = false;
		return;
	}

	if (op->purpose == PURPOSE_INQUIRY_LIST && op->rc == ZKL_RC_OK)
	{
		desk->contenders = op->nnames;
		desk->nrows = Min(op->nnames, ZKL_INQUIRY_ROWS);
		for (int row = 0; row < desk->nrows; row++, name += strlen(name) + 1)
		{
			ZklOp	   *get = new_op(PURPOSE_INQUIRY_ROW, -1, now);
			char		path[ZKL_PATH_SIZE];

			memset(&desk->rows[row], 0, sizeof(desk->rows[row]));
			strlcpy(desk->rows[row].node, name, sizeof(desk->rows[row].node));
			get->place = i * ZKL_INQUIRY_ROWS + row;
			get->serial = op->serial;
			zkl_node_path(path, zkl_root, desk->slip.name, name);
			if (!account(zkl_send_get(get, path, false), now))
			{
				worker.desks[i].begun = false;	/* asked again */
				return;
			}
			worker.desks[i].pending++;
		}
	}
	else if (op->purpose == PURPOSE_INQUIRY_ROW && op->rc == ZKL_RC_OK)
	{
		ZklContenderRow *row = &desk->rows[op->place % ZKL_INQUIRY_ROWS];

		row->ours = zkl_nodedata_read(op->text, op->len, &row->data);
		row->owner = op->owner;
		row->created = op->ctime;
		row->czxid = op->czxid;
	}
	else if (op->purpose == PURPOSE_INQUIRY_ROW && op->rc != ZKL_RC_NONODE)
	{
		/* a holder that we may not read is no reason to name somebody else */
		answer_inquiry(i, op->rc);
		return;
	}
	if (--worker.desks[i].pending == 0)
		answer_inquiry(i, op->purpose == PURPOSE_INQUIRY_ROW ? ZKL_RC_OK : op->rc);
}

/* What a create says about its directory. */
static void
note_dir(const Slot *slot, int rc)
{
	uint64	   *known = known_dir(slot->dir_hash);

	if (rc == ZKL_RC_OK)
		*known = slot->dir_hash;
	else if (rc == ZKL_RC_NONODE && *known == slot->dir_hash)
		*known = 0;
}

static void
on_batch_reply(ZklOp *op)
{
	bool		creates = op->purpose == PURPOSE_CREATES;

	if (creates)
		worker.ncreate_batches--;
	for (int i = 0; i < op->batch->n; i++)
	{
		ZklBatchItem *item = &op->batch->items[i];
		Slot	   *slot = &worker.slots[item->slot];

		if (!slot->active || item->serial != slot->serial)
			continue;
		/* what is left of a batch that failed does not go into another one */
		slot->alone = op->rc != ZKL_RC_OK;
		if (item->rc == ZKL_RC_NOT_EXECUTED)
			zkl_queue_not_executed(&slot->queue, creates ? ZKL_OP_CREATE : ZKL_OP_DELETE);
		else if (creates)
		{
			/* made by this ZooKeeper session, since it was that which asked */
			note_dir(slot, item->rc);
			zkl_queue_created(&slot->queue, item->rc, item->node, 0, worker.session);
		}
		else
			zkl_queue_deleted(&slot->queue, item->rc);
		publish(item->slot);
	}
}

/*
 * How many of those ahead of a try are nodes of ours that nobody needs any more? Such a
 * node is in a listing when its deletion was sent after it, or did not get through.
 */
static int
count_leaving(int index, const ZklListing *listing)
{
	Slot	   *slot = &worker.slots[index];
	int64_t		place = zkl_node_place(slot->queue.node);
	int			leaving = 0;

	if (!slot->queue.try || listing->ahead == 0)
		return 0;
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		Slot	   *other = &worker.slots[i];
		ZklContender contender;

		if (!other->active || other->dir_hash != slot->dir_hash || i == index ||
			other->queue.state != ZKL_QUEUE_DELETING || other->queue.node[0] == '\0' ||
			strcmp(zkl_shared->entries[i].name, zkl_shared->entries[index].name) != 0)
			continue;
		(void) zkl_contender_parse(other->queue.node, &contender);
		if (slot->queue.mode != ZKL_MODE_PERMIT &&
			!zkl_mode_conflicts(slot->queue.mode, contender.kind))
			continue;
		if (place < 0 || zkl_node_place(other->queue.node) < place)
			leaving++;
	}
	for (int i = 0; i < zkl_suspects_count() && worker.nsuspects > 0; i++)
		if (zkl_suspects()[i].name[0] != '\0' &&
			zkl_node_has_uuid(listing->pred, zkl_suspects()[i].uuid))
			leaving++;
	return leaving;
}

static void
on_queue_reply(ZklOp *op)
{
	Slot	   *slot = &worker.slots[op->slot];
	ZklQueue   *queue = &slot->queue;

	if (!slot->active || op->serial != slot->serial)
		return;
	if ((op->purpose == PURPOSE_PARENT || op->purpose == ZKL_OP_MKDIRS) && op->rc == ZKL_RC_OK)
		zkl_quota_charge(zkl_shared->entries[op->slot].role, zkl_now());
	switch (op->purpose)
	{
		case PURPOSE_PARENT:
			if (op->rc != ZKL_RC_OK && op->rc != ZKL_RC_NODEEXISTS && slot->parent_rc == ZKL_RC_OK)
				slot->parent_rc = op->rc;
			return;
		case ZKL_OP_MKDIRS:
			zkl_queue_made_dirs(queue, slot->parent_rc != ZKL_RC_OK ? slot->parent_rc : op->rc);
			break;
		case ZKL_OP_CREATE:
			note_dir(slot, op->rc);
			zkl_queue_created(queue, op->rc, op->text, op->czxid, op->owner);
			break;
		case ZKL_OP_PROBE:
			if (op->rc == ZKL_RC_NONODE)
				worker.member_known = false;
			zkl_queue_probed(queue, op->rc, op->connection);
			break;
		case ZKL_OP_LIST:
			op->listing.leaving = op->rc == ZKL_RC_OK ? count_leaving(op->slot, &op->listing) : 0;
			zkl_queue_listed(queue, op->rc, op->connection, &op->listing);
			break;
		case ZKL_OP_OWN:
			if (op->rc == ZKL_RC_OK)
				read_own_data(op->slot, op->text, op->len);
			zkl_queue_own(queue, op->rc, op->connection, op->czxid, op->owner);
			break;
		case ZKL_OP_PRED:
			zkl_queue_pred(queue, op->rc, op->connection);
			break;
		case ZKL_OP_DELETE:
			zkl_queue_deleted(queue, op->rc);
			break;
	}
	publish(op->slot);
}

/* A watch went off: tell the machines that it was for. */
static void
on_watch_event(const char *path, bool gone)
{
	int			n = find_links(path_hash(path));

	for (int i = 0; i < n; i++)
	{
		int			index = worker.found[i] / ROLES;
		ZklQueue   *queue = &worker.slots[index].queue;
		const char *name = zkl_shared->entries[index].name;
		char		watched[ZKL_PATH_SIZE];

		switch ((Role) (worker.found[i] % ROLES))
		{
			case ROLE_OWN:
				zkl_node_path(watched, zkl_root, name, queue->node);
				if (strcmp(watched, path) != 0)
					continue;
				if (gone)
					zkl_queue_own_gone(queue);
				else
					zkl_queue_own_changed(queue);
				break;
			case ROLE_PRED:
				zkl_node_path(watched, zkl_root, name, queue->pred);
				if (strcmp(watched, path) != 0)
					continue;
				if (gone)
					zkl_queue_pred_gone(queue);
				else
					zkl_queue_pred_changed(queue);
				break;
			case ROLE_PERMITS:
				zkl_queue_children_changed(queue);
				break;
		}
		publish(index);
	}
}

static void
handle(ZklOp *op)
{
	ZklTime		now = zkl_now();

	switch (op->kind)
	{
		case ZKL_KIND_SESSION:
			on_session_event(op->event, now);
			return;
		case ZKL_KIND_WATCH_GONE:
			worker.silent_since = now;
			on_watch_event(op->text, true);
			return;
		case ZKL_KIND_WATCH_CHANGED:
		case ZKL_KIND_WATCH_CHILDREN:
			worker.silent_since = now;
			on_watch_event(op->text, false);
			return;
		default:
			break;
	}

	worker.in_flight--;
	if (op->rc != ZKL_RC_CONNECTIONLOSS && op->rc != ZKL_RC_OPERATIONTIMEOUT)
	{
		worker.silent_since = worker.answered_at = now;
		worker.fresh_logged = false;
		worker.acked_sent = Max(worker.acked_sent, op->sent);
	}

	if (op->kind == ZKL_KIND_AUTH)
		return;					/* a refusal comes as a session event */
	if (op->kind == ZKL_KIND_BATCH)
		on_batch_reply(op);
	else if (op->purpose == PURPOSE_WHO_LIST || op->purpose == PURPOSE_WHO_GET)
		on_who_reply(op, now);
	else if (op->purpose == PURPOSE_SUSPECT_LIST)
		on_suspect_reply(op, now);
	else if (op->purpose == PURPOSE_SWEEP)
		on_sweep_reply(op);
	else if (op->purpose == PURPOSE_INQUIRY_LIST || op->purpose == PURPOSE_INQUIRY_ROW ||
			 op->purpose == PURPOSE_INQUIRY)
		on_inquiry_reply(op, now);
	else if (op->slot >= 0)
		on_queue_reply(op);
	else
		on_member_reply(op, now);

	/* the last of the held nodes was seen: what was held back counts now */
	if (worker.nrecheck == 0 && worker.held_back_sent != 0)
	{
		ZklTime		sent = worker.held_back_sent;

		worker.held_back_sent = 0;
		if (zkl_lease_acked(&worker.lease, sent, worker.held_back_at))
			publish_lease(now);
	}
}

static void
receive(void)
{
	ZklOp	   *op;

	while (worker.client != NULL && (op = zkl_client_next(worker.client)) != NULL)
	{
		/* a session event may close the client; the op is ours by then */
		handle(op);
		zkl_op_free(op);
	}
}

/*
 * In two passes, what is given back first: then the deletion of a backend's last
 * lock travels ahead of the creation for its next, which so finds it gone.
 */
static void
answer_doorbell(void)
{
	pg_atomic_uint64 *words = zkl_doorbell_words();
	int			nrung = 0;

	for (int i = 0; i < zkl_doorbell_count(); i++)
	{
		uint64		bits;

		if (pg_atomic_read_u64(&words[i]) == 0)
			continue;
		bits = pg_atomic_exchange_u64(&words[i], 0);
		for (int j = 0; bits != 0; j++, bits >>= 1)
		{
			int			index = i * 64 + j;

			if ((bits & 1) == 0)
				continue;
			if (pg_atomic_read_u32(&zkl_shared->entries[index].flags) & ZKL_FLAG_LET_GO)
				look_at_entry(index);
			else
				worker.rung[nrung++] = index;
		}
	}
	for (int i = 0; i < nrung; i++)
		look_at_entry(worker.rung[i]);
}

/* ------------------------------------------------------------------------
 * Main loop
 * ------------------------------------------------------------------------
 */

/* The library's own words: errors tell what is wrong with the connection. */
static void
relay_log_lines(void)
{
	char		line[256];
	char		severity;

	while (zkl_client_log_line(line, sizeof(line), &severity))
	{
		if (severity == 'E' && !worker.connected)
		{
			/* what the library says of a connection that was closed on it */
			if (strstr(line, "errno=112") != NULL)
				zkl_trouble_write("the ZooKeeper server closes the connection; its log says why");
			else
				zkl_trouble_write(line);
		}
		if (severity != 'E')
			ereport(DEBUG1, (errmsg_internal("zklock: client library: %s", line)));
		else if (worker.log_budget > 0)
		{
			worker.log_budget--;
			ereport(LOG, (errmsg("zklock: client library: %s", line)));
		}
		else
			worker.log_suppressed++;
	}
}

static void
tick(ZklTime now)
{
	if (now < worker.next_tick)
		return;
	worker.next_tick = now + TICK_PERIOD;
	worker.ticks++;
	if (worker.losses_logged > LOSSES_LOGGED)
		ereport(LOG,
				(errmsg("zklock: %d more locks are lost, not shown one by one",
						worker.losses_logged - LOSSES_LOGGED)));
	worker.losses_logged = 0;
	if (worker.suspects_dropped > 0)
		ereport(LOG,
				(errmsg("zklock: %d lost requests cannot be looked out for any more, since there are too many",
						worker.suspects_dropped)));
	worker.suspects_dropped = 0;
	if (now >= worker.next_log_period)
	{
		worker.next_log_period = now + LOG_PERIOD;
		if (worker.log_suppressed > 0)
			ereport(LOG,
					(errmsg("zklock: client library: %d more lines not shown",
							worker.log_suppressed)));
		worker.log_suppressed = 0;
		worker.log_budget = LOG_LINES_PER_PERIOD;
	}
	send_suspects(now);
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		if (!worker.slots[i].active)
			continue;
		/* a part of them each time, so that it is never many at once */
		zkl_queue_tick(&worker.slots[i].queue,
					   (worker.ticks + i) % REWATCH_TICKS == 0);
		if (worker.slots[i].surrender)
			take_away(i);
		mark(i);
	}
}

static void
publish_health(void)
{
	ZklHealth  *health = &zkl_shared->health;

	pg_atomic_write_u32(&health->connected, worker.connected);
	pg_atomic_write_u64(&health->session, worker.session);
	pg_atomic_write_u64(&health->timeout, worker.lease.timeout);
	pg_atomic_write_u64(&health->node_bytes, worker.node_bytes);
	pg_atomic_write_u64(&health->watch_bytes, worker.watch_bytes);
	pg_atomic_write_u64(&health->in_flight, worker.in_flight);
	pg_atomic_write_u64(&health->requests, worker.requests);
}

/* How long may the main loop sleep? */
static long
wait_ms(ZklTime now)
{
	ZklTime		until = now + LONGEST_SLEEP;

	/* without anything to look after the heartbeats are often enough */
	if (!worker.connected || worker.nactive > 0 || worker.nsuspects > 0)
		until = worker.next_tick;
	if (worker.connected)
		until = Min(until, worker.next_heartbeat);
	if (worker.lease.deadline > now)
		until = Min(until, worker.lease.deadline);
	if (worker.connected && worker.in_flight > 0)
		until = Min(until, worker.silent_since + zkl_lease_stall(worker.lease.timeout));
	if (!worker.connected || worker.parting[0] != '\0' ||
		(worker.ntodo > 0 && worker.member_known && worker.in_flight < MAX_IN_FLIGHT))
		until = Min(until, now + DISCONNECTED_POLL);
	return until <= now ? 0 : (long) ((until - now + 999) / 1000);
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

/* Has every owner let go? Then nobody can be in the middle of a commit. */
static bool
all_let_go(void)
{
	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		ZklEntry   *entry = &zkl_shared->entries[i];

		if (pg_atomic_read_u32(&entry->phase) != ZKL_PHASE_FREE &&
			(pg_atomic_read_u32(&entry->flags) & ZKL_FLAG_LET_GO) == 0)
			return false;
	}
	return true;
}

static void
clear_worker(int code, Datum arg)
{
	pg_atomic_write_u32(&zkl_shared->worker_procno, PG_UINT32_MAX);
	pg_atomic_write_u32(&zkl_shared->worker_pid, 0);
}

/*
 * Another tree: our nodes are not there, and here nobody would delete them as long as
 * the ZooKeeper session lives.
 */
static void
change_chroot(void)
{
	if (worker.session != 0)
		begin_parting("zklock.hosts has another chroot.");
	else
	{
		if (worker.client != NULL)
			lose_client();
		strlcpy(worker.chroot, chroot_of(zkl_hosts), sizeof(worker.chroot));
	}
}

static void
reload(void)
{
	char	   *old_hosts = pstrdup(zkl_hosts);

	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	worker.lease.tick = ZKL_MS(zkl_server_tick_time);
	if (strcmp(worker.chroot, chroot_of(zkl_hosts)) != 0)
		change_chroot();
	if (strncmp(old_hosts, zkl_hosts, Max(strcspn(old_hosts, "/"), strcspn(zkl_hosts, "/"))) != 0)
	{
		ereport(LOG,
				(errmsg("zklock: zklock.hosts changed, restarting the worker with the same ZooKeeper session")));
		proc_exit(1);
	}
	pfree(old_hosts);
}

static void
initialise(void)
{
	worker.slots = MemoryContextAllocZero(TopMemoryContext,
										  zkl_shared->nentries * sizeof(Slot));
	worker.todo = MemoryContextAlloc(TopMemoryContext, zkl_shared->nentries * sizeof(int));
	worker.links = MemoryContextAllocZero(TopMemoryContext,
										  zkl_shared->nentries * ROLES * sizeof(Link));
	worker.found = MemoryContextAlloc(TopMemoryContext, zkl_shared->nentries * ROLES * sizeof(int));
	worker.nlink_heads = zkl_shared->nentries * 2 + 1;
	worker.link_heads = MemoryContextAlloc(TopMemoryContext, worker.nlink_heads * sizeof(int));
	for (int i = 0; i < worker.nlink_heads; i++)
		worker.link_heads[i] = -1;
	worker.rung = MemoryContextAlloc(TopMemoryContext, zkl_shared->nentries * sizeof(int));
	worker.log_budget = LOG_LINES_PER_PERIOD;
	worker.wait_event = WaitEventExtensionNew("ZklockWorkerMain");

	if (zkl_client_eventfd() < 0)
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("could not create an eventfd: %m")));
	/* the eventfd, and the library's socket and pipe */
	for (int i = 0; i < 4; i++)
		ReserveExternalFD();

	worker.wait_set = CreateWaitEventSet(ZKL_WAIT_SET_OWNER, 3);
	AddWaitEventToSet(worker.wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(worker.wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(worker.wait_set, WL_SOCKET_READABLE, zkl_client_eventfd(), NULL, NULL);

	strlcpy(worker.chroot, chroot_of(zkl_hosts), sizeof(worker.chroot));
	worker.answered_at = worker.written_at = zkl_now();

	/* an earlier worker's ZooKeeper session, if it was of this incarnation */
	if (zkl_survivor->session != 0 && zkl_survivor->incarnation == zkl_shared->incarnation)
	{
		worker.session = zkl_survivor->session;
		strlcpy(worker.chroot, zkl_survivor->chroot, sizeof(worker.chroot));
		zkl_lease_start(&worker.lease, zkl_survivor->timeout, ZKL_MS(zkl_server_tick_time));
		worker.lease.deadline = zkl_word_deadline(pg_atomic_read_u64(&zkl_shared->lease));
		worker.member_known = true;
		snprintf(worker.member_path, sizeof(worker.member_path), "%s/.zklock/%s-%016" PRIx64 "",
				 zkl_root, zkl_server_name, worker.session);
	}
	for (int i = 0; i < zkl_suspects_count(); i++)
		worker.nsuspects += zkl_suspects()[i].name[0] != '\0';
	if (worker.session == 0)
		forget_late_creates();
	adopt_entries();
	/* a reload that came while no worker was there, or that one did not finish */
	if (strcmp(worker.chroot, chroot_of(zkl_hosts)) != 0)
		change_chroot();
}

void
zklock_worker_main(Datum main_arg)
{
	WaitEvent	event;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, on_sigterm);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("zklock worker");

	on_shmem_exit(clear_worker, (Datum) 0);
	pg_atomic_write_u32(&zkl_shared->worker_pid, MyProcPid);
	pg_atomic_write_u32(&zkl_shared->worker_procno, MyProcNumber);
	initialise();
	ereport(LOG, (errmsg("zklock: worker started, server name \"%s\"", zkl_server_name)));

	for (;;)
	{
		ZklTime		now;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
			reload();
		if (got_sigterm)
		{
			if (!server_is_stopping())
				ereport(FATAL,
						(errcode(ERRCODE_ADMIN_SHUTDOWN),
						 errmsg("terminating zklock worker due to administrator command"),
						 errdetail("The ZooKeeper session and the locks are kept for the next worker.")));
			if (all_let_go())
			{
				if (worker.client != NULL)
					zkl_client_close(worker.client);
				proc_exit(1);
			}
		}

		/* before an answer that ends it: a lapse that nobody saw was one too */
		watch_for_lapse(zkl_now());
		receive();
		answer_doorbell();
		now = zkl_now();
		advance_connection(now);
		advance_parting(now);
		watch_for_lapse(now);
		watch_for_black_hole(now);
		close_gap(now);
		if (worker.connected &&
			(now >= worker.next_heartbeat ||
			 pg_atomic_exchange_u32(&zkl_shared->heartbeat_wanted, 0) != 0))
			send_heartbeat(now);
		tick(now);
		look_at_desks(now);
		zkl_stats_reset_if_wanted();
		send_wanted();
		publish_health();
		relay_log_lines();

		if (worker.requests > MAX_REQUESTS)
		{
			ereport(LOG,
					(errmsg("zklock: restarting the worker before the client library's request numbers run out")));
			proc_exit(1);
		}

		/* a backend that lets go while the server stops rings the doorbell, but
		 * one that never held anything does not: look again soon */
		WaitEventSetWait(worker.wait_set, got_sigterm ? Min(wait_ms(now), 50) : wait_ms(now),
						 &event, 1, worker.wait_event);
	}
}
