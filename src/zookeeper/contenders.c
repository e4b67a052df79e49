/*-------------------------------------------------------------------------
 *
 * contenders.c
 *	  Slots: one request of the worker's each, and the contender that stands for it in
 *	  a lock's queue.
 *
 * What a request goes through is in queue.c, as a state machine that knows no I/O. Here
 * replies and watches find the machine that they concern, and what a machine has come to
 * becomes an event for the worker (zk_tell()). What a machine wants is sent by send.c.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "zookeeper/internal.h"

/* Each watch is set again every so many ticks. */
#define REWATCH_TICKS		15

/*
 * What a node adds to the packets that have budgets, beside the path of its directory:
 * the slash, our longest name, and the length that the protocol writes in front.
 */
#define NODE_COST(directory)	((int) strlen(directory) + 1 + 58 + 4)

static void end_slot(Zk *zk, int i);
static void set_link(Zk *zk, int i, Role role, uint64_t hash);
static int	find_links(Zk *zk, uint64_t hash);
static uint64_t node_hash(const Zk *zk, int i, const char *node);

void
zk_contenders_init(Zk *zk)
{
	int			n = zk->target.nslots;

	zk->slots = zk_alloc(zk, n * sizeof(Slot));
	zk->todo = zk_alloc(zk, n * sizeof(int));
	zk->links = zk_alloc(zk, n * ROLES * sizeof(Link));
	zk->found = zk_alloc(zk, n * ROLES * sizeof(int));
	zk->nlink_heads = n * 2 + 1;
	zk->link_heads = zk_alloc(zk, zk->nlink_heads * sizeof(int));
	for (int i = 0; i < zk->nlink_heads; i++)
		zk->link_heads[i] = -1;
}

/* ------------------------------------------------------------------------
 * What the worker wants
 * ------------------------------------------------------------------------
 */

static void
begin_slot(Zk *zk, const ZklWant *want)
{
	Slot	   *slot = &zk->slots[want->slot];
	char		path[ZKL_PATH_SIZE];

	assert(slot->step == SLOT_FREE);
	slot->step = SLOT_WANTED;
	slot->want = *want;
	slot->let_go = slot->waited = slot->alone = false;
	zk_holder_forget(slot);
	slot->made_dirs = slot->had_node = false;
	slot->told_ahead = -1;
	slot->parent_rc = ZKL_RC_OK;
	slot->turn++;
	zk->nactive++;

	zkl_dir_path(path, zk->target.root, want->name);
	slot->dir_hash = zk_path_hash(path);
	slot->cost = NODE_COST(path);
	slot->watches = 2;
	zk->node_bytes += slot->cost;
	zk->watch_bytes += slot->watches * slot->cost;
	if (want->mode == ZKL_MODE_PERMIT)
		set_link(zk, want->slot, ROLE_PERMITS, slot->dir_hash);
}

/* A slot has its grant: it watches one node less. */
static void
note_granted(Zk *zk, Slot *slot)
{
	slot->step = SLOT_GRANTED;
	slot->watches--;
	zk->watch_bytes -= slot->cost;
}

static void
adopt(Zk *zk, const ZklWant *want)
{
	int			i = want->slot;
	Slot	   *slot = &zk->slots[i];

	slot->had_node = want->saved->contender[0] != '\0';
	slot->made_dirs = true;
	zkl_queue_adopt(&slot->queue, want->mode, want->try, want->saved->request,
					want->saved->contender, want->token, want->held);
	set_link(zk, i, ROLE_OWN, node_hash(zk, i, want->saved->contender));
	if (want->held)
		note_granted(zk, slot);
}

void
zk_want(Zk *zk, const ZklWant *want)
{
	Slot	   *slot = &zk->slots[want->slot];
	ZklEvent   *event;

	assert(want->slot >= 0 && want->slot < zk->target.nslots);
	begin_slot(zk, want);
	if (want->adopt)
		adopt(zk, want);
	else
		zkl_queue_init(&slot->queue, want->mode, want->try);
	zkl_queue_set_permits(&slot->queue, want->permits);
	zkl_queue_set_beside(&slot->queue, want->beside);

	if (!want->adopt && (zk->node_bytes > NODE_BUDGET || zk->watch_bytes > WATCH_BUDGET))
	{
		event = zk_slot_event(zk, ZKL_EVENT_REFUSED, want->slot);
		event->refusal = ZKL_REFUSAL_BUDGET;
		end_slot(zk, want->slot);
		return;
	}
	if (zk->link == LINK_CONNECTED && zk->parting[0] == '\0')
		zkl_queue_connected(&slot->queue, zk->connection, zk->session);
	zk_tell(zk, want->slot);
}

/*
 * A lock is given back: the next one in the queue, if it is one of our slots, has it now.
 */
static void
hand_over(Zk *zk, int i)
{
	const char *node = zk->slots[i].queue.node;
	int			n = find_links(zk, zk->links[i * ROLES + ROLE_OWN].hash);

	for (int j = 0; j < n; j++)
	{
		int			next = zk->found[j] / ROLES;

		if (zk->found[j] % ROLES != ROLE_PRED ||
			strcmp(zk->slots[next].want.name, zk->slots[i].want.name) != 0)
			continue;
		zkl_queue_pred_released(&zk->slots[next].queue, node);
		zk_tell(zk, next);
	}
}

void
zk_let_go(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];
	bool		held = slot->queue.state == ZKL_QUEUE_GRANTED;

	if (slot->step == SLOT_FREE || slot->let_go)
		return;
	slot->let_go = true;
	zkl_queue_abandon(&slot->queue);
	if (held)
		hand_over(zk, i);
	zk_tell(zk, i);
}

/* Taken away from its owner, who was told. */
void
zk_give_up(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];

	if (slot->step == SLOT_FREE || slot->let_go)
		return;
	slot->step = SLOT_OVER;
	zkl_queue_surrender(&slot->queue);
	zk_tell(zk, i);
}

/* ------------------------------------------------------------------------
 * What became of it
 * ------------------------------------------------------------------------
 */

/* The end of a slot: nothing of it is left in the ensemble. */
static void
end_slot(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];

	assert(slot->step != SLOT_FREE);
	zk->node_bytes -= slot->cost;
	zk->watch_bytes -= slot->watches * slot->cost;
	if (slot->made_dirs && !slot->had_node)
		zk_suspect_add(zk, slot->want.name, "");
	for (Role role = ROLE_OWN; role < ROLES; role++)
		set_link(zk, i, role, 0);
	(void) zk_slot_event(zk, ZKL_EVENT_GONE, i);
	slot->step = SLOT_FREE;
	slot->turn++;
	zk->nactive--;
}

/* Why the machine gave up. */
static ZklRefusal
refusal_of(const ZklQueue *queue)
{
	switch (queue->trouble)
	{
		case ZKL_TROUBLE_NONE:
			break;
		case ZKL_TROUBLE_TIE:
		case ZKL_TROUBLE_WRAPPED:
		case ZKL_TROUBLE_LIMIT:
			return ZKL_REFUSAL_COUNTER;
		case ZKL_TROUBLE_LONG_NAME:
			return ZKL_REFUSAL_LONG_NAME;
		case ZKL_TROUBLE_NO_WRITER:
			return ZKL_REFUSAL_NO_WRITER;
	}
	if (queue->failure == ZKL_RC_NOAUTH || queue->failure == ZKL_RC_INVALIDACL)
		return ZKL_REFUSAL_DENIED;
	return ZKL_REFUSAL_OTHER;
}

/* Of a slot without an outcome: is there one? */
static void
tell_outcome(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];
	ZklQueue   *queue = &slot->queue;
	ZklEvent   *event;

	assert(slot->step == SLOT_WANTED);
	if (queue->state == ZKL_QUEUE_GRANTED)
	{
		event = zk_slot_event(zk, ZKL_EVENT_GRANTED, i);
		event->token = queue->czxid;
		note_granted(zk, slot);
		slot->granted_at = zkl_now();
	}
	else if (queue->result == ZKL_RESULT_BUSY)
	{
		event = zk_slot_event(zk, ZKL_EVENT_TAKEN, i);
		slot->step = SLOT_OVER;
	}
	else if (queue->result == ZKL_RESULT_FAILED)
	{
		event = zk_slot_event(zk, ZKL_EVENT_REFUSED, i);
		event->refusal = refusal_of(queue);
		snprintf(event->text, ZKL_REFUSAL_SIZE, "%s", zkl_rc_text(queue->failure));
		slot->step = SLOT_OVER;
	}
	else
		return;
	event->ahead = queue->ahead;
	event->waited = slot->waited;
}

/* Where in the queue does it stand? */
static void
tell_place(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];
	ZklQueue   *queue = &slot->queue;
	int			ahead = slot->told_ahead;

	if (queue->state != ZKL_QUEUE_QUEUED)
		ahead = -1;
	else if (queue->listed || ahead >= 0)
		ahead = queue->ahead;
	if (slot->step == SLOT_WANTED && ahead != slot->told_ahead)
		zk_slot_event(zk, ZKL_EVENT_QUEUED, i)->ahead = ahead;
	slot->told_ahead = ahead;
}

/*
 * Note what the slot's machine has come to, and tell the worker. Called after every
 * event of the machine; cheap when nothing changed.
 */
void
zk_tell(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];
	ZklQueue   *queue = &slot->queue;
	ZklSaved   *saved = slot->want.saved;

	assert(slot->step != SLOT_FREE);
	if (queue->suspect[0] != '\0')
	{
		zk_suspect_add(zk, slot->want.name, queue->suspect);
		queue->suspect[0] = '\0';
	}

	/* the node's name, for the next worker and for those who look */
	if (strcmp(saved->contender, queue->node) != 0)
	{
		memcpy(saved->contender, queue->node, sizeof(saved->contender));
		set_link(zk, i, ROLE_OWN, node_hash(zk, i, queue->node));
		slot->had_node |= queue->node[0] != '\0';
	}
	slot->waited |= queue->must_wait;
	set_link(zk, i, ROLE_PRED,
			 queue->state == ZKL_QUEUE_QUEUED ? node_hash(zk, i, queue->pred) : 0);

	if (slot->step == SLOT_WANTED)
		tell_outcome(zk, i);
	else if (slot->step == SLOT_GRANTED && queue->result == ZKL_RESULT_LOST)
	{
		(void) zk_slot_event(zk, ZKL_EVENT_LOST, i);
		slot->step = SLOT_OVER;
	}
	tell_place(zk, i);

	if (queue->state == ZKL_QUEUE_ENDED)
		end_slot(zk, i);
	else
		zk_mark(zk, i);
}

/* ------------------------------------------------------------------------
 * What concerns all slots
 * ------------------------------------------------------------------------
 */

/* While the session is being ended, who has not begun waits for the next one. */
void
zk_contenders_connected(Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
	{
		Slot	   *slot = &zk->slots[i];

		if (slot->step == SLOT_FREE ||
			(zk->parting[0] != '\0' && slot->queue.state == ZKL_QUEUE_NEW))
			continue;
		zkl_queue_connected(&slot->queue, zk->connection, zk->session);
		zk_tell(zk, i);
	}
}

void
zk_contenders_disconnected(Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
		if (zk->slots[i].step != SLOT_FREE)
			zkl_queue_disconnected(&zk->slots[i].queue);
}

/* Back to the beginning, where the slot waits, or has waited until now. */
static void
forget_session(Zk *zk, int i)
{
	Slot	   *slot = &zk->slots[i];

	slot->turn++;
	zkl_queue_session_gone(&slot->queue);
	zk_tell(zk, i);
}

/* The session is to be ended: ENDING has told of what is granted. */
void
zk_contenders_parting(Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
	{
		Slot	   *slot = &zk->slots[i];

		if (slot->step == SLOT_GRANTED)
			slot->step = SLOT_OVER;
		else if (slot->step != SLOT_FREE && slot->queue.state != ZKL_QUEUE_GRANTED &&
				 (slot->queue.state != ZKL_QUEUE_DELETING || slot->queue.requeue))
			forget_session(zk, i);
	}
}

/* The session has ended, and ENDED has told of what was granted. */
void
zk_contenders_session_gone(Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
	{
		if (zk->slots[i].step == SLOT_GRANTED)
			zk->slots[i].step = SLOT_OVER;
		if (zk->slots[i].step != SLOT_FREE)
			forget_session(zk, i);
	}
}

/* A part of them sets its watches again each time, so that it is never many at once. */
void
zk_contenders_tick(Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
	{
		if (zk->slots[i].step == SLOT_FREE)
			continue;
		zkl_queue_tick(&zk->slots[i].queue, (zk->ticks + i) % REWATCH_TICKS == 0);
		zk_mark(zk, i);
	}
}

/* Is there one that is granted and was not seen on this connection yet? */
bool
zk_contenders_unseen(const Zk *zk)
{
	for (int i = 0; i < zk->target.nslots; i++)
		if (zk->slots[i].step != SLOT_FREE && zk->slots[i].queue.recheck)
			return true;
	return false;
}

/* ------------------------------------------------------------------------
 * Replies
 * ------------------------------------------------------------------------
 */

/*
 * Our node's data is what we wrote, unless somebody asks for the lock: Curator's
 * Revoker, which asks and no more, or zk_lock_break(), which will delete the node
 * when we do not.
 */
static void
read_own_data(Zk *zk, int i, const ZklOp *op)
{
	ZklNodeData said;
	ZklEvent   *event;

	if (op->len == (int) strlen(ZKL_REVOKE_BYTES) &&
		memcmp(op->text, ZKL_REVOKE_BYTES, op->len) == 0)
	{
		event = zk_slot_event(zk, ZKL_EVENT_ASKED_BACK, i);
		event->foreign = true;
		snprintf(event->text, sizeof(event->text), "another ZooKeeper client, which asked for it");
	}
	else if (zkl_nodedata_read(op->text, op->len, &said) && said.breaker[0] != '\0')
	{
		event = zk_slot_event(zk, ZKL_EVENT_ASKED_BACK, i);
		snprintf(event->text, sizeof(event->text), "%s", said.breaker);
	}
}

/*
 * How many of those ahead of a try are nodes of ours that nobody needs any more? Such a
 * node is in a listing when its deletion was sent after it, or did not get through.
 */
static int
count_leaving(const Zk *zk, int i, const ZklListing *listing)
{
	const Slot *slot = &zk->slots[i];
	int64_t		place = zkl_node_place(slot->queue.node);
	int			leaving = 0;

	if (!slot->queue.try || listing->ahead == 0)
		return 0;
	for (int j = 0; j < zk->target.nslots; j++)
	{
		const Slot *other = &zk->slots[j];
		ZklContender contender;

		if (other->step == SLOT_FREE || other->dir_hash != slot->dir_hash || j == i ||
			other->queue.state != ZKL_QUEUE_DELETING || other->queue.node[0] == '\0' ||
			strcmp(other->want.name, slot->want.name) != 0)
			continue;
		(void) zkl_contender_parse(other->queue.node, &contender);
		if (slot->queue.mode != ZKL_MODE_PERMIT &&
			!zkl_mode_conflicts(slot->queue.mode, contender.kind))
			continue;
		if (place < 0 || zkl_node_place(other->queue.node) < place)
			leaving++;
	}
	return leaving + zk_suspects_leaving(zk, listing->pred);
}

/* What a create says about its directory. */
static void
note_dir(Zk *zk, const Slot *slot, int rc)
{
	uint64_t   *known = zk_known_dir(zk, slot->dir_hash);

	if (rc == ZKL_RC_OK)
		*known = slot->dir_hash;
	else if (rc == ZKL_RC_NONODE && *known == slot->dir_hash)
		*known = 0;
}

/* A directory of the lock was made: it outlives the request. */
static void
charge(Zk *zk, const ZklOp *op)
{
	if (op->rc == ZKL_RC_OK)
		(void) zk_slot_event(zk, ZKL_EVENT_CHARGED, op->slot);
}

/* A parent of a lock's directory. */
void
zk_on_parent_reply(Zk *zk, ZklOp *op, ZklTime now)
{
	Slot	   *slot = &zk->slots[op->slot];

	(void) now;
	if (slot->step == SLOT_FREE || op->serial != slot->turn)
		return;
	charge(zk, op);
	if (op->rc != ZKL_RC_OK && op->rc != ZKL_RC_NODEEXISTS && slot->parent_rc == ZKL_RC_OK)
		slot->parent_rc = op->rc;
}

/* What a machine asked for by itself. */
void
zk_on_queue_reply(Zk *zk, ZklOp *op, ZklTime now)
{
	Slot	   *slot = &zk->slots[op->slot];
	ZklQueue   *queue = &slot->queue;

	(void) now;
	if (slot->step == SLOT_FREE || op->serial != slot->turn)
		return;
	switch (op->bit)
	{
		case ZKL_OP_MKDIRS:
			charge(zk, op);
			zkl_queue_made_dirs(queue, slot->parent_rc != ZKL_RC_OK ? slot->parent_rc : op->rc);
			break;
		case ZKL_OP_CREATE:
			note_dir(zk, slot, op->rc);
			zkl_queue_created(queue, op->rc, op->text, op->czxid, op->owner);
			break;
		case ZKL_OP_PROBE:
			if (op->rc == ZKL_RC_NONODE)
				zk->member_known = false;
			zkl_queue_probed(queue, op->rc, op->connection);
			break;
		case ZKL_OP_LIST:
			op->listing.leaving = op->rc == ZKL_RC_OK ? count_leaving(zk, op->slot, &op->listing) : 0;
			zkl_queue_listed(queue, op->rc, op->connection, &op->listing);
			break;
		case ZKL_OP_OWN:
			if (op->rc == ZKL_RC_OK)
				read_own_data(zk, op->slot, op);
			zkl_queue_own(queue, op->rc, op->connection, op->czxid, op->owner);
			break;
		case ZKL_OP_PRED:
			zkl_queue_pred(queue, op->rc, op->connection);
			break;
		case ZKL_OP_DELETE:
			zkl_queue_deleted(queue, op->rc);
			break;
	}
	zk_tell(zk, op->slot);
}

void
zk_on_batch_reply(Zk *zk, ZklOp *op, ZklTime now)
{
	bool		creates = op->bit == ZKL_OP_CREATE;

	(void) now;
	if (creates)
	{
		assert(zk->ncreate_batches > 0);
		zk->ncreate_batches--;
	}
	for (int i = 0; i < op->batch->n; i++)
	{
		ZklBatchItem *item = &op->batch->items[i];
		Slot	   *slot = &zk->slots[item->slot];

		if (slot->step == SLOT_FREE || item->serial != slot->turn)
			continue;
		/* what is left of a batch that failed does not go into another one */
		slot->alone = op->rc != ZKL_RC_OK;
		if (item->rc == ZKL_RC_NOT_EXECUTED)
			zkl_queue_not_executed(&slot->queue, op->bit);
		else if (creates)
		{
			/* made by this ZooKeeper session, since it was that which asked */
			note_dir(zk, slot, item->rc);
			zkl_queue_created(&slot->queue, item->rc, item->node, 0, zk->session);
		}
		else
			zkl_queue_deleted(&slot->queue, item->rc);
		zk_tell(zk, item->slot);
	}
}

/* Is "path" the node of this name in the slot's directory? */
static bool
is_path_of(const Zk *zk, const Slot *slot, const char *node, const char *path)
{
	char		other[ZKL_PATH_SIZE];

	zkl_node_path(other, zk->target.root, slot->want.name, node);
	return strcmp(other, path) == 0;
}

/* A watch went off: tell the machines that it was for. */
void
zk_contenders_watch(Zk *zk, const char *path, bool gone)
{
	int			n = find_links(zk, zk_path_hash(path));

	for (int j = 0; j < n; j++)
	{
		int			i = zk->found[j] / ROLES;
		Slot	   *slot = &zk->slots[i];
		ZklQueue   *queue = &slot->queue;

		switch ((Role) (zk->found[j] % ROLES))
		{
			case ROLE_OWN:
				if (!is_path_of(zk, slot, queue->node, path))
					continue;
				if (gone)
					zkl_queue_own_gone(queue);
				else
					zkl_queue_own_changed(queue);
				break;
			case ROLE_PRED:
				if (!is_path_of(zk, slot, queue->pred, path))
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
		zk_tell(zk, i);
	}
}

/* ------------------------------------------------------------------------
 * Which slots does a path concern?
 * ------------------------------------------------------------------------
 */

uint64_t
zk_path_hash(const char *path)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	for (; *path != '\0'; path++)
		hash = (hash ^ (unsigned char) *path) * UINT64_C(1099511628211);
	return hash | 1;
}

static uint64_t
node_hash(const Zk *zk, int i, const char *node)
{
	char		path[ZKL_PATH_SIZE];

	if (node[0] == '\0')
		return 0;
	zkl_node_path(path, zk->target.root, zk->slots[i].want.name, node);
	return zk_path_hash(path);
}

/* Let the slot be found by this hash in this role, and by no other; 0: by none. */
static void
set_link(Zk *zk, int i, Role role, uint64_t hash)
{
	int			id = i * ROLES + role;
	Link	   *link = &zk->links[id];
	int		   *at;

	if (link->hash == hash)
		return;
	if (link->hash != 0)
	{
		for (at = &zk->link_heads[link->hash % zk->nlink_heads]; *at != id;
			 at = &zk->links[*at].next)
			;
		*at = link->next;
	}
	link->hash = hash;
	if (hash != 0)
	{
		at = &zk->link_heads[hash % zk->nlink_heads];
		link->next = *at;
		*at = id;
	}
}

/* Fill zk->found with what can be found by this hash, as slot * ROLES + role, since to
 * act on one changes the links. Returns how many there are. */
static int
find_links(Zk *zk, uint64_t hash)
{
	int			n = 0;

	for (int id = zk->link_heads[hash % zk->nlink_heads]; id >= 0; id = zk->links[id].next)
		if (zk->links[id].hash == hash)
			zk->found[n++] = id;
	return n;
}
