/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  One request's way through a lock's queue, as a state machine.
 *
 * Events come in (replies, watches, connection changes, the owner's wishes),
 * requests to ZooKeeper come out as bits that the caller sends when it can.
 * The machine does no I/O and reads no clock, so every order of events can be
 * replayed in a test. It is level-triggered: what is wanted follows from the
 * facts, so a request that could not be sent is simply still wanted.
 *
 *	state		knows that				wants				goes on
 *	----------	----------------------	------------------	-----------------------
 *	NEW			no node of ours exists	try and not seen	free: NEW; taken: ENDED
 *										free: LIST				(BUSY)
 *										else MKDIRS if a	created: QUEUED
 *										parent is missing,	unknown: UNSURE
 *										CREATE, LIST		refused: ENDED (FAILED)
 *	UNSURE		a create or its reply	PROBE, LIST, when	found: QUEUED, DELETING
 *				was lost				nothing is under	absent and the probe
 *										way					succeeded: NEW, ENDED
 *	QUEUED		the node's name			OWN while its owner	first: GRANTED
 *										or watch is open,	try, not first:
 *										LIST while stale,		DELETING (BUSY)
 *										PRED				vanished: DELETING, NEW
 *	GRANTED		we are first			OWN until watched	vanished: DELETING (LOST)
 *	DELETING	the node must go		DELETE				gone: ENDED, or NEW when
 *															it has to queue again
 *	ENDED		no node of ours exists	nothing				(the caller frees it)
 *
 * A permit of a semaphore is taken by the same machine. It has no predecessor:
 * "first" then means that fewer nodes than there are permits came before its own,
 * and it watches the directory. Never more hold than there are permits, without
 * anything else that keeps them in order: if one too many held, look at the one
 * whose node came last. The nodes of the others were there before its own, and
 * still are; so they were in the listing that it was granted by, which shows that
 * as many as there are permits came before. Curator grants only when no more nodes
 * than leases are there at all, which is stricter, so the same is true of a
 * mixture. Requests that wait queue at a mutex beside it, as Curator's do, which is
 * another machine's; a try does not.
 *
 * A downgrade is the same machine as well: it makes a read
 * node with the digits of the write node that its backend holds, and the grant
 * counts only if that write node is in the same listing, since then it stood
 * when ours was made, and nobody can have come between.
 *
 *	event				NEW		UNSURE	QUEUED			GRANTED		DELETING
 *	------------------	-------	-------	--------------	----------	-----------
 *	abandon				ENDED*	stays	DELETING		DELETING	stays
 *	disconnected, connected: what was seen, listed and watched counts no more;
 *						a GRANTED machine asks to be seen again (recheck)
 *	ZooKeeper session	NEW		NEW		NEW				ENDED		ENDED
 *	gone				(with a fresh uuid; ENDED when abandoned)	(LOST)
 *	surrender			(lost as if it had been deleted)	DELETING (LOST)
 *	* while a CREATE is under way it waits for the reply first
 *
 * Invariants: at most one node per request. A grant only to a machine whose own
 * node was seen on this connection, owned by this ZooKeeper session, with no
 * conflicting node of lower digits. A node's absence is believed only from a
 * listing behind a write that succeeded.
 *
 * A try ends as BUSY only when somebody else is ahead than requests of this worker
 * that are over ("leaving"), whose nodes are being deleted: these hold nothing, and
 * may stand there for a while when a deletion did not get through. If there are only
 * such, it goes on: creates, or waits for them.
 *
 * The token is the node's czxid, which comes with the reply to a create, but not
 * when the create travels in a batch. Then, if the listing shows no contender but
 * us, the directory's pzxid takes its place, at no extra round trip: it is at
 * least our czxid, since our create was the directory's latest change or came
 * before it; so it is above the tokens of all earlier holders, who were gone or
 * alone before our node was there. And it is below those of all later ones: their
 * nodes are not in the listing, so they were created after the state that has
 * this pzxid. With others in the listing we read our own node. Whatever it
 * is, it is fixed then: a lower number read later would make the holder stale
 * against itself.
 *
 * When the predecessor goes away and it was the only one ahead, a mutex node,
 * and no read or write node was seen, nobody can have come before us since
 * (digits only grow), so we hold without listing again; but only while the
 * watch on our own node is confirmed on this connection and silent. Otherwise,
 * with A, B, C in the queue, the deletion of B's node while B waits would make
 * C watch A, and A's leaving would let both think they are next.
 *
 * The predecessor may be another request of this worker, which was granted and
 * whose owner has let go. Then nobody holds the lock by that node any more. It was
 * first when it was granted, and digits only grow, so there is nobody else ahead of
 * us, however many there were when we listed; so we hold from the moment that it is
 * let go, and not only when its deletion has been to the quorum and back. Everybody
 * else sees that node or ours ahead of its own. As above, no read or write node may
 * have been seen, and the watch on our own node must be silent.
 *
 * Pure, see lockname.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_QUEUE_H
#define ZKL_QUEUE_H

#include "common/contender.h"

/* Result codes of ZooKeeper that the machine tells apart. The numbers are the
 * protocol's; client.c asserts that they equal the library's. */
#define ZKL_RC_OK				0
#define ZKL_RC_NOT_EXECUTED		(-2)	/* another request of its batch failed */
#define ZKL_RC_CONNECTIONLOSS	(-4)
#define ZKL_RC_OPERATIONTIMEOUT	(-7)
#define ZKL_RC_NONODE			(-101)
#define ZKL_RC_NOAUTH			(-102)
#define ZKL_RC_NOCHILDREN		(-108)
#define ZKL_RC_NODEEXISTS		(-110)
#define ZKL_RC_INVALIDACL		(-114)
#define ZKL_RC_SESSIONMOVED		(-118)
#define ZKL_RC_NOTREADONLY		(-119)
#define ZKL_RC_LOCALSESSION		(-120)
#define ZKL_RC_QUOTAEXCEEDED	(-125)
#define ZKL_RC_THROTTLED		(-127)

/* What can be wrong with a lock directory. */
typedef enum ZklTrouble
{
	ZKL_TROUBLE_NONE = 0,
	ZKL_TROUBLE_TIE,			/* another contender has our digits */
	ZKL_TROUBLE_WRAPPED,		/* negative digits: the counter overflowed */
	ZKL_TROUBLE_LIMIT,			/* our digits are beyond ZKL_DIGITS_LIMIT */
	ZKL_TROUBLE_LONG_NAME,		/* a contender's name does not fit */
	ZKL_TROUBLE_NO_WRITER		/* the write node to downgrade from is gone */
} ZklTrouble;

/*
 * What the machine needs to know of a list of children. "uuid", "mode" and
 * "beside" are set by the asker; zkl_listing_read() fills in the rest. With
 * mode PERMIT every child is a contender, as it is for Curator.
 */
typedef struct ZklListing
{
	char		uuid[ZKL_UUID_SIZE];
	ZklMode		mode;
	char		beside[ZKL_OWN_NODE_SIZE];	/* the write node of a downgrade,
											 * or "" */
	bool		beside_found;

	bool		own_found;
	char		own[ZKL_OWN_NODE_SIZE];
	int64_t		own_digits;
	int			contenders;		/* all of them, ours included */
	int			ahead;			/* contenders that we must wait for; without a
								 * node of our own: all that conflict */
	char		pred[ZKL_NODE_SIZE];	/* the last of those ahead, or "" */
	bool		pred_is_mutex;
	char		first[ZKL_NODE_SIZE];	/* lowest digits of all, or "" */
	int64_t		pzxid;			/* of the directory: its latest create or
								 * delete; not from the children's names */
	int			leaving;		/* of those ahead, nodes of requests that are
								 * over and that this worker deletes; not from
								 * there either */
	bool		shared_seen;	/* any read or write node */
	ZklTrouble	trouble;
} ZklListing;

extern void zkl_listing_read(ZklListing *listing, char *const *children, int nchildren);

typedef enum ZklQueueState
{
	ZKL_QUEUE_NEW = 0,
	ZKL_QUEUE_UNSURE,
	ZKL_QUEUE_QUEUED,
	ZKL_QUEUE_GRANTED,
	ZKL_QUEUE_DELETING,
	ZKL_QUEUE_ENDED
} ZklQueueState;

typedef enum ZklQueueResult
{
	ZKL_RESULT_NONE = 0,
	ZKL_RESULT_BUSY,			/* a try found it taken */
	ZKL_RESULT_LOST,			/* was granted, and the node or the ZooKeeper
								 * session is gone */
	ZKL_RESULT_FAILED			/* see failure and trouble */
} ZklQueueResult;

/* Requests to ZooKeeper, in the order in which they must be sent. */
#define ZKL_OP_MKDIRS	0x01	/* create the missing parents */
#define ZKL_OP_CREATE	0x02	/* create our node */
#define ZKL_OP_PROBE	0x04	/* any write that tells whether this
								 * connection reaches the quorum */
#define ZKL_OP_LIST		0x08	/* children of the directory */
#define ZKL_OP_OWN		0x10	/* read our own node, with a watch */
#define ZKL_OP_PRED		0x20	/* read the predecessor, with a watch */
#define ZKL_OP_DELETE	0x40	/* delete our node */
#define ZKL_OP_LAST		ZKL_OP_DELETE

/* MKDIRS and CREATE again at most so often before it is a failure: the
 * server's reaper can take a parent between the two, but not every time. */
#define ZKL_MKDIRS_TRIES	5

typedef struct ZklQueue
{
	ZklQueueState state;
	ZklQueueResult result;
	int			failure;		/* ZooKeeper result code, with FAILED */
	ZklTrouble	trouble;		/* or what is wrong with the directory */

	ZklMode		mode;
	int			permits;		/* mode PERMIT: how many there may be */
	char		beside[ZKL_OWN_NODE_SIZE];	/* downgrade from this write node */
	bool		try;			/* do not wait */
	bool		abandoned;		/* the owner wants it gone */
	bool		requeue;		/* DELETING: queue again afterwards */

	int64_t		session;		/* our ZooKeeper session's id */
	uint32_t	connection;		/* number of the current connection; 0 = none */
	uint32_t	in_flight;		/* ZKL_OP_ bits without a reply yet */

	/* NEW */
	bool		seen_free;		/* try: the directory was listed and free */
	bool		mkdirs;			/* a parent is missing */
	int			mkdirs_tries;
	int			mkdirs_rc;

	/* UNSURE: the connection on which the probe succeeded; 0 = none */
	uint32_t	probed;
	int			odd_rc;			/* an answer that is neither yes nor no */

	/*
	 * The uuid of a create that was lost and whose node is not there. Old
	 * packets can still bring it to a server that was stopped, and to a
	 * leader that an old handshake has confused; so the caller takes the uuid
	 * from here and goes on looking for it for a while. "" = none.
	 */
	char		suspect[ZKL_UUID_SIZE];

	/* our node, from QUEUED on */
	char		uuid[ZKL_UUID_SIZE];	/* "" = the caller must set a fresh
										 * one before CREATE */
	char		node[ZKL_OWN_NODE_SIZE];
	int64_t		czxid;			/* 0 = not known yet */
	int64_t		owner;			/* ephemeralOwner; 0 = not known yet */
	bool		own_watched;	/* seen on this connection, watch set */
	bool		recheck;		/* GRANTED before this connection, and not
								 * seen on it yet */

	/* QUEUED */
	bool		listed;			/* the listing is of this connection and not
								 * overtaken by an event */
	bool		must_wait;		/* by that listing */
	char		pred[ZKL_NODE_SIZE];	/* "" = none */
	bool		pred_watched;
	bool		plain;			/* no read or write node, the predecessor a
								 * mutex */
	int			ahead;

	/*
	 * refused for a reason that is not the connection's: wants nothing until
	 * the next tick, so that a refusal does not become a busy loop
	 */
	bool		blocked;
} ZklQueue;

/* A fresh machine; give it the connection with zkl_queue_connected(). */
extern void zkl_queue_init(ZklQueue *queue, ZklMode mode, bool try);

/* After init or adopt: what the modes PERMIT and READ may know more. */
extern void zkl_queue_set_permits(ZklQueue *queue, int permits);
extern void zkl_queue_set_beside(ZklQueue *queue, const char *write_node);

/*
 * A machine for a request that an earlier worker left behind: node "" when its
 * name was never learnt. "granted" when the lock had been handed out.
 */
extern void zkl_queue_adopt(ZklQueue *queue, ZklMode mode, bool try, const char *uuid,
							const char *node, int64_t czxid, bool granted);

/* Bits to send now, none while disconnected. Send in ascending order. */
extern uint32_t zkl_queue_wanted(const ZklQueue *queue);
extern void zkl_queue_sent(ZklQueue *queue, uint32_t op);

/* Events. "connection" is the number under which the request was sent. */
extern void zkl_queue_connected(ZklQueue *queue, uint32_t connection, int64_t session);
extern void zkl_queue_disconnected(ZklQueue *queue);

/* The ZooKeeper session ended; replies still to come are to be ignored. */
extern void zkl_queue_session_gone(ZklQueue *queue);

/* The owner gave up or released. The machine ends when the node is gone. */
extern void zkl_queue_abandon(ZklQueue *queue);

/* Of a batch, another request failed, so this one was not executed. */
extern void zkl_queue_not_executed(ZklQueue *queue, uint32_t op);

extern void zkl_queue_made_dirs(ZklQueue *queue, int rc);
extern void zkl_queue_created(ZklQueue *queue, int rc, const char *node,
							  int64_t czxid, int64_t owner);
extern void zkl_queue_probed(ZklQueue *queue, int rc, uint32_t connection);
extern void zkl_queue_listed(ZklQueue *queue, int rc, uint32_t connection,
							 const ZklListing *listing);
extern void zkl_queue_own(ZklQueue *queue, int rc, uint32_t connection,
						  int64_t czxid, int64_t owner);
extern void zkl_queue_pred(ZklQueue *queue, int rc, uint32_t connection);
extern void zkl_queue_deleted(ZklQueue *queue, int rc);

/* A granted lock is taken away, though its node is still there. */
extern void zkl_queue_surrender(ZklQueue *queue);

/* Watches: the named node was deleted. */
extern void zkl_queue_own_gone(ZklQueue *queue);
extern void zkl_queue_pred_gone(ZklQueue *queue);

/* The node named "pred" was given up by its owner, a granted request of this worker,
 * which deletes it next. */
extern void zkl_queue_pred_released(ZklQueue *queue, const char *pred);

/* Watches that are used up without saying what we wait for: a node's data was
 * changed, the children of the directory (PERMIT) did. */
extern void zkl_queue_own_changed(ZklQueue *queue);
extern void zkl_queue_pred_changed(ZklQueue *queue);
extern void zkl_queue_children_changed(ZklQueue *queue);

/* Every second or so: try again what was refused. "rewatch", more rarely, sets the
 * watches of who waits or holds again, which covers one that got lost. */
extern void zkl_queue_tick(ZklQueue *queue, bool rewatch);

#endif							/* ZKL_QUEUE_H */
