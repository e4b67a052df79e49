/*-------------------------------------------------------------------------
 *
 * send.c
 *	  What the slots' machines want, singly or in batches.
 *
 * A machine says what it wants as bits (queue.h); what cannot be sent now is still wanted
 * later. Creates and deletes of many slots travel in one transaction, which the quorum
 * acknowledges as one.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "zookeeper/internal.h"

/*
 * Batches of creates under way at a time. While they are, the requests of other
 * backends gather, so a batch is as large as the load, and one backend alone never
 * waits for another.
 */
#define MAX_CREATE_BATCHES	2

/*
 * A newly granted lock is not watched at once: most are given back before. If its node is
 * deleted in between, setting the watch tells.
 */
#define WATCH_DELAY			ZKL_MS(50)

static void send_wanted_of(Zk *zk, bool deletes);
static void send_singly(Zk *zk, int i, uint32_t wanted, ZklTime now);
static void send_batch(Zk *zk, const int *indexes, int n, uint32_t bit, ZklTime now);
static int	prepare_create(Zk *zk, int i, char path[ZKL_PATH_SIZE], char json[ZKL_NODEDATA_SIZE]);

/* Put the slot on the list of those that may want to send something. */
void
zk_mark(Zk *zk, int i)
{
	if (!zk->slots[i].in_todo)
	{
		zk->slots[i].in_todo = true;
		zk->todo[zk->ntodo++] = i;
	}
	assert(zk->ntodo <= zk->target.nslots);
}

/*
 * Nothing is handed to the library while it is not connected: it would queue it, and
 * send it at a time of its own. Nor before the member node is there: what keeps us from
 * making it is what a waiter should hear, not what it does to its request.
 *
 * Deletes go first: a backend's next request for a lock that it has given back must
 * not find its old node.
 */
void
zk_send_wanted(Zk *zk)
{
	if (!zk_is_ready(zk) || zk->ntodo == 0)
		return;
	send_wanted_of(zk, true);
	send_wanted_of(zk, false);
}

/*
 * What a machine wants, if it may go into a batch with others: a deletion, or the
 * creation, and the listing behind it, of a node in a directory that is there. A try
 * that has not listed yet, a downgrade and a permit are left alone.
 */
static bool
may_be_batched(Zk *zk, int i, uint32_t wanted)
{
	Slot	   *slot = &zk->slots[i];

	if (slot->alone)
		return false;
	if (wanted == ZKL_OP_DELETE)
		return true;
	return wanted == (ZKL_OP_CREATE | ZKL_OP_LIST) && slot->queue.beside[0] == '\0' &&
		slot->queue.mode != ZKL_MODE_PERMIT &&
		*zk_known_dir(zk, slot->dir_hash) == slot->dir_hash;
}

/* Is all that it wants a watch that can wait? */
static bool
can_wait(const Slot *slot, uint32_t wanted, ZklTime now)
{
	return wanted == ZKL_OP_OWN && slot->queue.state == ZKL_QUEUE_GRANTED &&
		!slot->queue.recheck && slot->holder == NULL && now - slot->granted_at < WATCH_DELAY;
}

/*
 * Go through the slots that changed, once for what they delete and once for the
 * rest, and send what they want; what has to wait stays on the list.
 */
static void
send_wanted_of(Zk *zk, bool deletes)
{
	uint32_t	bit = deletes ? ZKL_OP_DELETE : ZKL_OP_CREATE;
	int			batch[ZKL_BATCH_MAX];
	uint64_t	dirs[ZKL_BATCH_MAX];
	int			nbatch = 0;
	int			kept = 0;
	ZklTime		now = zkl_now();

	for (int at = 0; at < zk->ntodo; at++)
	{
		int			i = zk->todo[at];
		Slot	   *slot = &zk->slots[i];
		uint32_t	wanted = slot->step != SLOT_FREE ? zkl_queue_wanted(&slot->queue) : 0;
		bool		twice = false;

		if (zk->in_flight >= MAX_IN_FLIGHT || !zkl_client_is_connected(zk->client) ||
			(deletes && wanted != ZKL_OP_DELETE) || can_wait(slot, wanted, now))
		{
			zk->todo[kept++] = i;
			continue;
		}
		if (slot->holder != NULL && !slot->holder_asked)
			zk_holder_send(zk, i, now);
		if (!may_be_batched(zk, i, wanted))
		{
			slot->in_todo = false;
			send_singly(zk, i, wanted, now);
			continue;
		}
		if (!deletes && zk->ncreate_batches >= MAX_CREATE_BATCHES)
		{
			zk->todo[kept++] = i;
			continue;
		}
		slot->in_todo = false;

		/*
		 * in one directory their czxids, which are their tokens, would be
		 * equal
		 */
		for (int j = 0; j < nbatch && !deletes && !twice; j++)
			twice = dirs[j] == slot->dir_hash;
		if (twice)
		{
			send_singly(zk, i, wanted, now);
			continue;
		}
		dirs[nbatch] = slot->dir_hash;
		batch[nbatch++] = i;
		if (nbatch == ZKL_BATCH_MAX)
		{
			send_batch(zk, batch, nbatch, bit, now);
			nbatch = 0;
		}
	}
	if (nbatch > 0)
		send_batch(zk, batch, nbatch, bit, now);
	zk->ntodo = kept;
}

/* ------------------------------------------------------------------------
 * One request
 * ------------------------------------------------------------------------
 */

/* A fresh request, to be filled in and sent; slot -1: it is for none. */
ZklOp *
zk_op(Zk *zk, ZklReplied replied, int i, ZklTime now)
{
	ZklOp	   *op = zkl_op_new(zk->client);

	if (op == NULL)
		zk_fail(zk->target.host, "out of memory");
	op->replied = replied;
	op->slot = i;
	op->serial = i >= 0 ? zk->slots[i].turn : 0;
	op->connection = zk->connection;
	op->sent = now;
	return op;
}

/* Count a request that the library took; returns whether it did. */
bool
zk_sent(Zk *zk, bool sent, ZklTime now)
{
	if (!sent)
		return false;
	if (zk->in_flight++ == 0)
		zk->silent_since = now;
	zk->requests++;
	return true;
}

/*
 * Make every directory of "path", "last" being the handler of the final one.
 * The parts up to and including zklock.root are persistent, as is all beneath
 * its .zklock; a lock's directories are containers, which the server removes
 * when they have been empty for a while.
 */
bool
zk_send_mkdirs(Zk *zk, const char *path, ZklReplied last, ZklReplied others, int i, ZklTime now)
{
	char		part[ZKL_PATH_SIZE];
	size_t		root_len = strlen(zk->target.root);
	const char *slash = path;

	for (;;)
	{
		size_t		len;
		int			flags;
		ZklOp	   *op;

		slash = strchr(slash + 1, '/');
		len = slash != NULL ? (size_t) (slash - path) : strlen(path);
		memcpy(part, path, len);
		part[len] = '\0';
		flags = len <= root_len || i < 0 ? ZKL_CREATE_PERSISTENT : ZKL_CREATE_CONTAINER;
		op = zk_op(zk, slash != NULL ? others : last, i, now);
		op->bit = ZKL_OP_MKDIRS;
		if (!zk_sent(zk, zkl_send_create(op, part, "", 0, flags, zk->target.creator_only), now))
			return false;
		if (slash == NULL)
			return true;
	}
}

/* A request that the slot's machine wants, of which it hears by zk_on_queue_reply(). */
static ZklOp *
machine_op(Zk *zk, int i, uint32_t bit, ZklTime now)
{
	ZklOp	   *op = zk_op(zk, zk_on_queue_reply, i, now);

	op->bit = bit;
	return op;
}

static bool
send_create(Zk *zk, int i, ZklTime now)
{
	char		path[ZKL_PATH_SIZE];
	char		json[ZKL_NODEDATA_SIZE];
	bool		sequential = zk->slots[i].queue.beside[0] == '\0';
	int			len = prepare_create(zk, i, path, json);

	return len >= 0 &&
		zk_sent(zk, zkl_send_create(machine_op(zk, i, ZKL_OP_CREATE, now), path, json, len,
									ZKL_CREATE_EPHEMERAL | (sequential ? ZKL_CREATE_SEQUENTIAL : 0),
									zk->target.creator_only), now);
}

static bool
send_list(Zk *zk, int i, const char *directory, ZklTime now)
{
	ZklQueue   *queue = &zk->slots[i].queue;
	ZklOp	   *op = machine_op(zk, i, ZKL_OP_LIST, now);

	memcpy(op->listing.uuid, queue->uuid, sizeof(op->listing.uuid));
	op->listing.mode = queue->mode;
	memcpy(op->listing.beside, queue->beside, sizeof(op->listing.beside));
	return zk_sent(zk, zkl_send_list(op, directory, queue->mode == ZKL_MODE_PERMIT), now);
}

/* Send one request that a machine wants; false when it could not be sent. */
static bool
send_one(Zk *zk, int i, uint32_t bit, ZklTime now)
{
	Slot	   *slot = &zk->slots[i];
	ZklQueue   *queue = &slot->queue;
	const char *root = zk->target.root;
	char		path[ZKL_PATH_SIZE];

	switch (bit)
	{
		case ZKL_OP_MKDIRS:
			slot->parent_rc = ZKL_RC_OK;
			slot->made_dirs = true;
			zkl_dir_path(path, root, slot->want.name);
			return zk_send_mkdirs(zk, path, zk_on_queue_reply, zk_on_parent_reply, i, now);

		case ZKL_OP_CREATE:
			return send_create(zk, i, now);

		case ZKL_OP_PROBE:
			return zk_sent(zk, zkl_send_set(machine_op(zk, i, bit, now), zk->member_path, "", 0),
						   now);

		case ZKL_OP_LIST:
			zkl_dir_path(path, root, slot->want.name);
			return send_list(zk, i, path, now);

		case ZKL_OP_OWN:
		case ZKL_OP_PRED:
			zkl_node_path(path, root, slot->want.name,
						  bit == ZKL_OP_OWN ? queue->node : queue->pred);
			return zk_sent(zk, zkl_send_get(machine_op(zk, i, bit, now), path, true), now);

		case ZKL_OP_DELETE:
			zkl_node_path(path, root, slot->want.name, queue->node);
			return zk_sent(zk, zkl_send_delete(machine_op(zk, i, bit, now), path), now);
	}
	return false;
}

/* Send what a machine wants, each by itself: the order of the bits is that of the requests. */
static void
send_singly(Zk *zk, int i, uint32_t wanted, ZklTime now)
{
	for (uint32_t bit = 1; bit <= ZKL_OP_LAST; bit <<= 1)
	{
		if ((wanted & bit) == 0)
			continue;
		if (!send_one(zk, i, bit, now))
			break;
		zkl_queue_sent(&zk->slots[i].queue, bit);
	}
}

static bool
fresh_uuid(char uuid[ZKL_UUID_SIZE])
{
	unsigned char random[16];

	if (getentropy(random, sizeof(random)) != 0)
		return false;
	zkl_uuid_format(uuid, random);
	return true;
}

/*
 * What is needed to create a machine's node: the path up to its digits, and the data.
 * The uuid is in shared memory before anything is sent: the next worker must find it.
 * Returns the data's length, or -1.
 */
static int
prepare_create(Zk *zk, int i, char path[ZKL_PATH_SIZE], char json[ZKL_NODEDATA_SIZE])
{
	const ZklWant *want = &zk->slots[i].want;
	ZklQueue   *queue = &zk->slots[i].queue;
	ZklNodeData data;
	char		prefix[ZKL_NODE_SIZE];

	if (queue->uuid[0] == '\0' && !fresh_uuid(queue->uuid))
		return -1;
	memcpy(want->saved->request, queue->uuid, sizeof(want->saved->request));
	__atomic_thread_fence(__ATOMIC_RELEASE);

	memset(&data, 0, sizeof(data));
	snprintf(data.server, sizeof(data.server), "%s", zk->target.server_name);
	data.pid = want->pid;
	snprintf(data.database, sizeof(data.database), "%s", want->database);
	snprintf(data.user, sizeof(data.user), "%s", want->user);
	snprintf(data.application, sizeof(data.application), "%s", want->application);
	snprintf(data.since, sizeof(data.since), "%s", want->since);
	data.permits = want->permits;
	data.timeout = (int) (zk->lease.timeout / 1000);

	zkl_node_prefix(prefix, queue->uuid, queue->mode);
	if (queue->beside[0] != '\0')
		strncat(prefix, zkl_node_digits(queue->beside), sizeof(prefix) - strlen(prefix) - 1);
	zkl_node_path(path, zk->target.root, want->name, prefix);
	return (int) zkl_nodedata_write(&data, json);
}

/* The place where a directory's hash is, if it is known to exist. */
uint64_t *
zk_known_dir(Zk *zk, uint64_t hash)
{
	return &zk->known_dirs[hash % KNOWN_DIRS];
}

/* ------------------------------------------------------------------------
 * Batches
 * ------------------------------------------------------------------------
 */

static bool
add_to_batch(Zk *zk, ZklOp *op, int i, uint32_t bit)
{
	Slot	   *slot = &zk->slots[i];
	char		path[ZKL_PATH_SIZE];
	char		json[ZKL_NODEDATA_SIZE];
	int			len;

	if (bit == ZKL_OP_DELETE)
	{
		zkl_node_path(path, zk->target.root, slot->want.name, slot->queue.node);
		return zkl_batch_delete(op, i, slot->turn, path);
	}
	len = prepare_create(zk, i, path, json);
	return len >= 0 &&
		zkl_batch_create(op, i, slot->turn, path, json, len, zk->target.creator_only);
}

/* Returns how many of them are in a batch that was sent: the first ones. */
static int
try_batch(Zk *zk, const int *indexes, int n, uint32_t bit, ZklTime now)
{
	ZklOp	   *op = zk_op(zk, zk_on_batch_reply, -1, now);
	int			added = 0;

	op->bit = bit;
	if (zkl_batch_begin(op))
		while (added < n && add_to_batch(zk, op, indexes[added], bit))
			added++;
	if (added == 0)
		zkl_op_free(op);
	else if (!zk_sent(zk, zkl_send_batch(op), now))
		added = 0;
	return added;
}

/* Send a batch of creates or deletes; singly when there is but one. */
static void
send_batch(Zk *zk, const int *indexes, int n, uint32_t bit, ZklTime now)
{
	uint32_t	rest = bit == ZKL_OP_CREATE ? ZKL_OP_LIST : 0;
	int			added = n > 1 ? try_batch(zk, indexes, n, bit, now) : 0;

	if (added > 0 && bit == ZKL_OP_CREATE)
		zk->ncreate_batches++;
	for (int j = 0; j < added; j++)
		zkl_queue_sent(&zk->slots[indexes[j]].queue, bit);
	for (int j = 0; j < added; j++)
		send_singly(zk, indexes[j], rest, now);
	for (int j = added; j < n; j++)
		send_singly(zk, indexes[j], rest | bit, now);
}
