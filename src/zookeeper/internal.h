/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files of this folder share: the coordinator's state, and who does what.
 *
 *	ensemble.c		the functions of coordinator.h, events, log lines
 *	session.c		connecting, the member node and its heartbeats, the session's end
 *	contenders.c	slots: one queue machine for each, and the paths that concern it
 *	send.c			what the machines want, singly or in batches
 *	questions.c		what backends ask of the ensemble
 *	suspects.c		creates that may come late, directories that nobody will use
 *
 * All of it runs in the worker's main thread. What the client library's threads do is
 * in client.c; replies come from there as records (ZklOp), each with its handler.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ZOOKEEPER_INTERNAL_H
#define ZKL_ZOOKEEPER_INTERNAL_H

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/resolve.h"
#include "coordinator.h"
#include "zookeeper/client.h"
#include "zookeeper/lease.h"
#include "zookeeper/queue.h"

#define Max(a, b)	((a) > (b) ? (a) : (b))
#define Min(a, b)	((a) < (b) ? (a) : (b))

/* The library closes its own connection beyond about 65,000 requests; so many are enough
 * to keep an ensemble busy. */
#define MAX_IN_FLIGHT		1000

#define RETRY_PERIOD		ZKL_MS(1000)

/* Directories that are known to exist: only their requests go into a batch, since one
 * that is missing would fail it as a whole. */
#define KNOWN_DIRS			4096

/* Connections of the library, at one look. */
#define LOOK_MAX			16

/*
 * Budgets of one ZooKeeper session, in bytes of path. At its end the leader
 * writes all its nodes into one transaction, and one above jute.maxbuffer
 * (1 MB) stops the ensemble for good. After a reconnect the library sends all
 * watches in one packet, with the same limit.
 */
#define NODE_BUDGET			900000
#define WATCH_BUDGET		900000

/* How far is a slot, by what the worker has been told? */
typedef enum SlotStep
{
	SLOT_FREE = 0,				/* not in use */
	SLOT_WANTED,				/* no outcome yet */
	SLOT_GRANTED,
	SLOT_OVER					/* taken, refused, lost or given up: only GONE
								 * is to come */
} SlotStep;

/* A request, and the lock that it became. */
typedef struct Slot
{
	SlotStep	step;
	ZklWant		want;
	bool		let_go;			/* by the worker */
	ZklQueue	queue;
	uint32_t	turn;			/* replies with another one are stale */
	int			told_ahead;		/* by the latest QUEUED */
	bool		waited;			/* somebody was ahead of it */
	ZklTime		granted_at;

	bool		in_todo;
	bool		alone;			/* not in a batch: one that it was in failed */
	bool		made_dirs;		/* or may have */
	bool		had_node;
	int			parent_rc;		/* first refusal while making parents */
	uint64_t	dir_hash;		/* of the directory's path */
	int			cost;			/* bytes of path, see NODE_BUDGET */
	int			watches;		/* watches that it may set, each for that cost */

	/* who holds the lock? May be asked of a slot that is FREE by now */
	ZklQuestion *holder;		/* to be answered; NULL = nothing */
	bool		holder_asked;	/* it is under way ... */
	uint32_t	holder_turn;	/* ... as the one with this number */
} Slot;

/*
 * Which machine is it that a path concerns? Each can be found by the hash of three
 * paths: its own node's, its predecessor's, and for a permit the directory's.
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
	uint64_t	hash;			/* 0 = not linked */
	int			next;			/* slot * ROLES + role, -1 = the last */
} Link;

/*
 * A node that may come late, or a directory that may have been left without ever
 * having had a node: what has to be looked after when the request itself is over. In
 * shared memory, since the next worker has to go on with it.
 *
 * A create that was lost, and whose node was not there when we looked behind a
 * write: ZooKeeper drops what comes late from an old connection, but not quite always.
 * A handshake of ours that was stuck as well can tell the leader that we have moved
 * back, and let the create pass that was stuck with it. Seen once in half an hour of
 * chaos, as a node that nobody would ever have deleted. So we look again, every
 * second, for as long as old packets may live.
 *
 * A container that never had a child is never removed by ZooKeeper. A request that made
 * one and then no node (it was cancelled, or refused) asks for it to be removed, which
 * fails where somebody uses it.
 */
typedef struct Suspect
{
	char		name[ZKL_NAME_MAX + 1]; /* of the lock; "" = unused */
	char		uuid[ZKL_UUID_SIZE];	/* "" = the directory */
	uint32_t	serial;			/* which use of this place it is */
	ZklTime		until;
} Suspect;

/*
 * What a session needs to be attached to again, in shared memory that the postmaster
 * keeps when it restarts its children after a crash. Never on disk, so a copy of the
 * data directory cannot touch the original's session.
 */
typedef struct Survivor
{
	int64_t		session;		/* 0 = none */
	ZklTime		timeout;		/* negotiated */
	unsigned char password[ZKL_PASSWORD_SIZE];
	uint64_t	incarnation;	/* of the shared memory whose slots it belongs
								 * to; another's, or 0: it has to be closed */
	char		chroot[ZKL_CHROOT_SIZE];	/* below which its nodes are, or
											 * "" */
	int64_t		member_version; /* of our member node, as acknowledged; -1 =
								 * not known */
} Survivor;

_Static_assert(sizeof(Survivor) <= ZKL_SURVIVOR_SIZE, "the survivor does not fit");

/* Our connection, by what may be done with it. */
typedef enum LinkState
{
	LINK_NONE = 0,				/* no handle: resolving, or waiting to try
								 * again */
	LINK_CONNECTING,			/* a handle without a connection */
	LINK_CLEARING,				/* the same, for a session of before a crash,
								 * to close it */
	LINK_CONNECTED,
	LINK_LEAVING				/* the session is over; the handle goes in the
								 * next run(), when the worker has heard of it */
} LinkState;

/* A question of backends, see ZklQuestion. */
typedef struct Asked
{
	bool		open;			/* to be answered */
	bool		begun;			/* under way on this connection */
	uint32_t	turn;			/* replies with another one are stale */
	int			pending;		/* replies still to come */
	ZklQuestion question;
	ZklAnswer  *answer;			/* under construction */
} Asked;

struct ZklCoordinator
{
	ZklTarget	target;
	char	   *hosts;			/* its "hosts", our copy */
	Survivor   *survivor;

	/* events, oldest first, in a ring */
	ZklEvent   *events;
	int			first_event;
	int			nevents;
	int			max_events;

	/* session.c: the way there */
	LinkState	link;
	ZklClient  *client;			/* NULL if LINK_NONE */
	char	   *addresses;		/* the newest, NULL = none yet */
	char	   *client_addresses;	/* that the client was given */
	bool		has_connected;	/* the client has: it may remember a zxid */
	ZklTime		opened_at;
	ZklTime		retry_at;
	ZklResolution *resolution;
	ZklTime		next_lookup;
	ZklTime		last_lookup;
	bool		slow_lookup;	/* and that is said */
	bool		chroot_changed; /* while no worker was there */
	char		chroot[ZKL_CHROOT_SIZE];	/* in use; the setting's, or the
											 * one before while its session
											 * lives */

	/* session.c: the session */
	int64_t		session;		/* 0 = none */
	bool		goodbye;		/* LINK_LEAVING: the handle ends the session */
	char		parting[128];	/* why it is to be ended; "" = it is not */
	uint32_t	connection;		/* number of the latest one */
	bool		member_known;	/* our member node exists */
	char		member_path[ZKL_PATH_SIZE];
	int64_t		zxid;			/* of the session's latest write; 0 = none */
	ZklTime		disconnected_at;
	ZklTime		handshake_bound;	/* at or before the handshake was sent */
	uint64_t	looked[LOOK_MAX];	/* sockets open at the last look */
	int			nlooked;
	ZklTime		last_look;
	ZklTime		acked_sent;		/* newest stamp of a request with a reply */
	ZklTime		answered_at;	/* when the latest reply came, or the start */
	ZklTime		written_at;		/* when the latest reply to a write of our own
								 * did */
	ZklTime		handshake_at;	/* when the latest one passed */
	int			handshakes;		/* so many since that write, one after the
								 * other */
	ZklTime		first_handshake;	/* of those */
	bool		fresh_logged;	/* a handle was replaced since the last answer */
	ZklTime		silent_since;	/* last answer, or first unanswered request */
	ZklTime		last_kick;
	char		server[ZKL_SERVER_SIZE];

	/* session.c: the lease */
	ZklLease	lease;
	ZklTime		next_heartbeat;
	bool		mark_wanted;	/* a heartbeat at once */
	ZklTime		held_back_sent; /* of an acknowledgement that waits for
								 * granted */
	ZklTime		held_back_at;	/* slots to be seen again; 0 = none */

	/* for health() */
	ZklTime		heartbeat_sent;
	ZklTime		heartbeat_took;
	uint64_t	heartbeats;
	uint64_t	heartbeat_failures;
	uint64_t	connects;
	uint64_t	requests;

	/* contenders.c */
	Slot	   *slots;
	int			nactive;
	Link	   *links;			/* ROLES for each slot */
	int		   *link_heads;		/* by hash, -1 = empty */
	int			nlink_heads;
	int		   *found;			/* room for find_links() */
	int64_t		node_bytes;
	int64_t		watch_bytes;

	/* send.c */
	int			in_flight;
	int		   *todo;			/* slots that may want to send something */
	int			ntodo;
	int			ncreate_batches;
	uint64_t	known_dirs[KNOWN_DIRS]; /* hashes of paths, by hash */

	/* questions.c */
	Asked		asked[ZKL_ASKERS];

	/* suspects.c */
	Suspect    *suspects;
	int			max_suspects;
	int			nsuspects;
	int			next_suspect;	/* where the next one is put */
	int			suspect_cursor; /* where the next look begins */
	int			suspects_dropped;

	/* ensemble.c */
	ZklTime		next_tick;
	ZklTime		next_log_period;
	uint32_t	ticks;
	int			log_budget;
	int			log_suppressed;
};

typedef struct ZklCoordinator Zk;

static inline bool
zk_is_lost_reply(const ZklOp *op)
{
	return op->rc == ZKL_RC_CONNECTIONLOSS || op->rc == ZKL_RC_OPERATIONTIMEOUT;
}

/* There is no going on: the worker ends. */
__attribute__((noreturn))
static inline void
zk_fail(const ZklHost *host, const char *message)
{
	host->fail(message);
	abort();
}

/* May requests of slots be sent? */
static inline bool
zk_is_ready(const Zk *zk)
{
	return zk->link == LINK_CONNECTED && zk->member_known;
}

/* ensemble.c */
extern ZklEvent *zk_event(Zk *zk, ZklEventKind kind);
extern ZklEvent *zk_slot_event(Zk *zk, ZklEventKind kind, int slot);
extern void zk_trouble(Zk *zk, const char *text);
extern void zk_log(Zk *zk, const char *detail, const char *format,...) __attribute__((format(printf, 3, 4)));
extern void zk_debug(Zk *zk, const char *format,...) __attribute__((format(printf, 2, 3)));
extern void *zk_alloc(Zk *zk, size_t size);
extern void zk_handle(Zk *zk, ZklOp *op);

/* session.c */
extern void zk_session_attach(Zk *zk, ZklTime now, bool *goes_on);
extern void zk_session_event(Zk *zk, ZklClientEvent event, ZklTime now);
extern void zk_session_end(Zk *zk, const char *why, bool close);
extern void zk_session_part(Zk *zk, const char *why);
extern void zk_session_chroot_changed(Zk *zk);
extern void zk_connection_advance(Zk *zk, ZklTime now);
extern void zk_heartbeat_if_due(Zk *zk, ZklTime now);
extern void zk_lease_release_held_back(Zk *zk);
extern ZklTime zk_patience(const Zk *zk);
extern const char *zk_chroot_of(const char *hosts);

/* contenders.c */
extern void zk_contenders_init(Zk *zk);
extern void zk_want(Zk *zk, const ZklWant *want);
extern void zk_let_go(Zk *zk, int slot);
extern void zk_give_up(Zk *zk, int slot);
extern void zk_contenders_connected(Zk *zk);
extern void zk_contenders_disconnected(Zk *zk);
extern void zk_contenders_parting(Zk *zk);
extern void zk_contenders_session_gone(Zk *zk);
extern void zk_contenders_tick(Zk *zk);
extern bool zk_contenders_unseen(const Zk *zk);
extern void zk_contenders_watch(Zk *zk, const char *path, bool gone);
extern void zk_tell(Zk *zk, int slot);
extern void zk_on_queue_reply(Zk *zk, ZklOp *op, ZklTime now);
extern void zk_on_parent_reply(Zk *zk, ZklOp *op, ZklTime now);
extern void zk_on_batch_reply(Zk *zk, ZklOp *op, ZklTime now);
extern uint64_t zk_path_hash(const char *path);

/* send.c */
extern ZklOp *zk_op(Zk *zk, ZklReplied replied, int slot, ZklTime now);
extern bool zk_sent(Zk *zk, bool sent, ZklTime now);
extern bool zk_send_mkdirs(Zk *zk, const char *path, ZklReplied last, ZklReplied others,
						   int slot, ZklTime now);
extern void zk_mark(Zk *zk, int slot);
extern void zk_send_wanted(Zk *zk);
extern uint64_t *zk_known_dir(Zk *zk, uint64_t hash);

/* questions.c */
extern void zk_ask(Zk *zk, const ZklQuestion *question);
extern void zk_withdraw(Zk *zk, int place);
extern void zk_questions_send(Zk *zk, ZklTime now);
extern void zk_questions_disconnected(Zk *zk);
extern void zk_questions_client_gone(Zk *zk);
extern void zk_holder_send(Zk *zk, int slot, ZklTime now);
extern void zk_holder_forget(Slot *slot);

/* suspects.c */
extern void zk_suspects_init(Zk *zk);
extern void zk_suspect_add(Zk *zk, const char *name, const char *uuid);
extern void zk_suspects_forget_creates(Zk *zk);
extern int	zk_suspects_leaving(const Zk *zk, const char *node);
extern void zk_suspects_send(Zk *zk, ZklTime now);

#endif							/* ZKL_ZOOKEEPER_INTERNAL_H */
