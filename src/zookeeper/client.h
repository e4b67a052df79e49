/*-------------------------------------------------------------------------
 *
 * client.h
 *	  The ZooKeeper client library, behind a door.
 *
 * client.c is the only file that includes zookeeper.h, and it never includes
 * postgres.h: the library's two threads run its callbacks, and no PostgreSQL
 * function may be called there. A callback fills in the record of its request (or
 * of the event): it copies the reply, and reads a list of children into what the
 * queue machine needs of it, which takes malloc() and a sort and nothing of
 * PostgreSQL. It then appends the record to a list and wakes the main thread
 * through an eventfd. All decisions are made by the main thread, which takes the
 * records off the list.
 *
 * Everything is asynchronous. Every request is a ZklOp; the library may forget
 * one (it does, when a session expires at the wrong moment), so the client
 * keeps them all in a list of its own and frees what is left when it closes.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ZKCLIENT_H
#define ZKL_ZKCLIENT_H

#include "common/clock.h"
#include "common/nodedata.h"
#include "zookeeper/queue.h"

#define ZKL_PASSWORD_SIZE	16	/* of a ZooKeeper session; the protocol's */

typedef struct ZklClient ZklClient;

typedef enum ZklOpKind
{
	ZKL_KIND_CREATE,			/* create2: node, czxid, owner come back */
	ZKL_KIND_LIST,				/* children, read into "listing" */
	ZKL_KIND_GET,				/* data, czxid, owner, ctime */
	ZKL_KIND_SET,
	ZKL_KIND_DELETE,
	ZKL_KIND_BATCH,				/* several creates or deletes: see "batch" */
	ZKL_KIND_AUTH,				/* outcome of the credentials */
	ZKL_KIND_SESSION,			/* event: see "event" */
	ZKL_KIND_WATCH_GONE,		/* event: the node at "text" was deleted */
	ZKL_KIND_WATCH_CHANGED,		/* event: its data was changed */
	ZKL_KIND_WATCH_CHILDREN		/* event: its children changed */
} ZklOpKind;

typedef enum ZklClientEvent
{
	ZKL_CLIENT_CONNECTED,
	ZKL_CLIENT_DISCONNECTED,
	ZKL_CLIENT_EXPIRED,
	ZKL_CLIENT_AUTH_FAILED
} ZklClientEvent;

/* Room for a node's path and for a node's data. */
#define ZKL_OP_TEXT_SIZE	1152

_Static_assert(ZKL_OP_TEXT_SIZE >= ZKL_PATH_SIZE && ZKL_OP_TEXT_SIZE >= ZKL_NODEDATA_SIZE,
			   "a reply's text may not fit");

/*
 * Creates, or deletes, that ZooKeeper executes in one transaction: all or none. One
 * proposal to the quorum instead of many is what makes many backends fast.
 */
#define ZKL_BATCH_MAX	64

typedef struct ZklBatchItem
{
	/* the caller's, given back as they were */
	int			slot;
	uint32_t	serial;

	/* the reply */
	int			rc;				/* NOT_EXECUTED: another one failed */
	char		node[ZKL_OWN_NODE_SIZE];	/* creates: the name that it got */
} ZklBatchItem;

typedef struct ZklBatch
{
	int			n;
	ZklBatchItem items[ZKL_BATCH_MAX];
	struct ZklBatchRequests *requests;	/* the library's */
} ZklBatch;

struct ZklOp;
struct ZklCoordinator;

/* A reply's handler. All handlers are of one owner: who opened the client. */
typedef void (*ZklReplied) (struct ZklCoordinator *owner, struct ZklOp *op, ZklTime now);

typedef struct ZklOp
{
	struct ZklOp *next;
	struct ZklOp *previous;
	ZklClient  *client;

	ZklOpKind	kind;

	/* the caller's, given back as they were */
	ZklReplied	replied;		/* what to do with the reply; NULL = nothing */
	int			slot;			/* that it is for, -1 = none */
	int			place;
	uint32_t	serial;
	uint32_t	connection;
	uint32_t	bit;			/* the queue machine's ZKL_OP_ bit */
	int64_t		sent;

	/* the reply */
	int			rc;				/* ZKL_RC_, or another of the library's */
	ZklClientEvent event;
	int64_t		czxid;
	int64_t		mzxid;
	int64_t		owner;			/* ephemeralOwner */
	int64_t		ctime;			/* ms since 1970, the leader's clock */
	int			version;		/* how often its data were set */
	char	   *names;			/* LIST with want_names: the contenders, in
								 * order, each with its terminator; malloc'ed */
	int			nnames;
	bool		want_names;		/* the caller's */
	ZklBatch   *batch;			/* BATCH */
	ZklListing	listing;		/* LIST; uuid, mode and beside are the
								 * caller's */
	int			len;			/* GET: bytes in text */
	char		text[ZKL_OP_TEXT_SIZE]; /* CREATE: the node's name. GET: data,
										 * cut. WATCH_*: its path. */
} ZklOp;

/*
 * Connect to "hosts" (numeric addresses, comma-separated, IPv6 ones without brackets,
 * with /chroot), as
 * the given ZooKeeper session or, with session 0, as a new one. Returns NULL
 * with errno when the library refuses. Signals stay blocked in its threads.
 */
extern ZklClient *zkl_client_open(const char *hosts, int timeout_ms, int64_t session,
								  const unsigned char password[ZKL_PASSWORD_SIZE]);

/* Close: ends the ZooKeeper session if connected. A frozen server gets a second
 * to say goodbye, then the connection is cut. Pending records are freed. */
extern void zkl_client_close(ZklClient *client);

/* The same in a thread of its own, without waiting for it. */
extern void zkl_client_close_later(ZklClient *client);

/*
 * Give the library's handle up but not the ZooKeeper session, which the next client may
 * offer: it remembers what this handle cannot forget, such as the highest zxid that it
 * has seen. What was not answered comes out of zkl_client_next() as lost; then call
 * zkl_client_free(). False when the library does not let go of its connection; the
 * client is as before then.
 */
extern bool zkl_client_drop(ZklClient *client);
extern void zkl_client_free(ZklClient *client);

/* Becomes readable when there is something for zkl_client_next(). */
extern int	zkl_client_eventfd(void);

/* The next reply or event, or NULL; free it with zkl_op_free(). */
extern ZklOp *zkl_client_next(ZklClient *client);
extern void zkl_op_free(ZklOp *op);

/* What the library believes just now. Proves nothing about locks; tells
 * whether a request would be sent or queued. */
extern bool zkl_client_is_connected(ZklClient *client);

/*
 * The library's connections over which a handshake may have been sent, by the numbers
 * of their sockets; returns how many, "max" when it cannot tell. (Its state would not
 * do: it becomes "associating" after the handshake was sent, and its thread can be
 * held up in between.)
 */
extern int	zkl_client_open_sockets(ZklClient *client, uint64_t *inodes, int max);

/* Of the ZooKeeper session, valid once connected. */
extern int64_t zkl_client_session(ZklClient *client);
extern void zkl_client_password(ZklClient *client, unsigned char password[ZKL_PASSWORD_SIZE]);
extern int	zkl_client_timeout(ZklClient *client);	/* negotiated, ms */

/* "digest" credentials; before any other request. */
extern bool zkl_client_add_digest(ZklClient *client, const char *credentials);

/*
 * A request to fill in (replied, slot, ...) and to send with one of the calls
 * below; NULL when out of memory. They take the op over. False means that it
 * was not sent and is freed.
 */
extern ZklOp *zkl_op_new(ZklClient *client);

#define ZKL_CREATE_PERSISTENT	0
#define ZKL_CREATE_EPHEMERAL	1
#define ZKL_CREATE_SEQUENTIAL	2
#define ZKL_CREATE_CONTAINER	4

/* "creator_only": all rights for our credentials, none for anybody else. */
extern bool zkl_send_create(ZklOp *op, const char *path, const char *data, int len,
							int flags, bool creator_only);
extern bool zkl_send_list(ZklOp *op, const char *path, bool watch);

/*
 * A watch is set with get, not with exists: exists on a node that is gone would
 * leave a watch for its creation behind, which never comes.
 */
extern bool zkl_send_get(ZklOp *op, const char *path, bool watch);
extern bool zkl_send_set(ZklOp *op, const char *path, const char *data, int len);
extern bool zkl_send_delete(ZklOp *op, const char *path);

/*
 * A batch: begin with a fresh op, add ephemeral sequential creates or deletes, send.
 * False: not added or not sent, for want of memory or, sending, as above.
 */
extern bool zkl_batch_begin(ZklOp *op);
extern bool zkl_batch_create(ZklOp *op, int slot, uint32_t serial, const char *path,
							 const char *data, int len, bool creator_only);
extern bool zkl_batch_delete(ZklOp *op, int slot, uint32_t serial, const char *path);
extern bool zkl_send_batch(ZklOp *op);

/* Shut the library's TCP socket down: it reconnects to the next server at
 * once, instead of after 2/3 of the timeout. */
extern void zkl_client_kick(ZklClient *client);

/* The server that the socket is connected to, as host:port; "" when there is none. */
extern void zkl_client_peer(ZklClient *client, char *buf, size_t size);

/* Lines that the library logged, oldest first; false when there are none.
 * "severity": 'E'rror, 'W'arning, 'I'nformation. */
extern bool zkl_client_log_line(char *buf, size_t size, char *severity);

/* The library's text for a result code. */
extern const char *zkl_rc_text(int rc);

#endif							/* ZKL_ZKCLIENT_H */
