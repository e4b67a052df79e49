/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  One request's way through a lock's queue, as a state machine.
 *
 * queue.h has the table of states and events and the reasons. Here each event
 * is one function that changes facts, and zkl_queue_wanted() reads the facts;
 * transitions that several events share are the static functions on top.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "zookeeper/queue.h"

#include <string.h>

/*
 * The permits of a semaphore. Whoever made a child, it counts, unless it certainly came
 * after ours. Of several that want the last lease at the same time one gets it, then,
 * and none is kept from it by one that came too late and is about to go.
 */
static void
read_permits(ZklListing *listing, char *const *children, int nchildren)
{
	int64_t		own_place = -1;

	for (int i = 0; i < nchildren; i++)
	{
		size_t		len = strlen(children[i]);

		if (!zkl_node_has_uuid(children[i], listing->uuid) || len >= sizeof(listing->own))
			continue;
		listing->own_found = true;
		memcpy(listing->own, children[i], len + 1);
		own_place = zkl_node_place(children[i]);
	}
	for (int i = 0; i < nchildren; i++)
	{
		size_t		len = strlen(children[i]);

		if (listing->own_found && strcmp(children[i], listing->own) == 0)
			continue;
		if (listing->first[0] == '\0' && len < sizeof(listing->first))
			memcpy(listing->first, children[i], len + 1);
		if (own_place < 0 || zkl_node_place(children[i]) <= own_place)
			listing->ahead++;
	}
	listing->contenders = nchildren;
}

/* Which of the children is our own node, and is the write node beside it there? */
static void
find_own(ZklListing *listing, char *const *children, int nchildren)
{
	for (int i = 0; i < nchildren; i++)
	{
		ZklContender contender;

		if (listing->beside[0] != '\0' && strcmp(children[i], listing->beside) == 0)
			listing->beside_found = true;
		if (listing->uuid[0] == '\0' || !zkl_node_has_uuid(children[i], listing->uuid))
			continue;
		if (!zkl_contender_parse(children[i], &contender) ||
			strlen(children[i]) >= sizeof(listing->own))
			continue;
		listing->own_found = true;
		listing->own_digits = contender.digits;
		strcpy(listing->own, children[i]);
	}
}

/*
 * A contender with our digits is a tie, and then nobody can tell which of the two is
 * first; but a writer that also reads keeps its digits.
 */
static bool
is_downgrade(ZklMode mode, ZklContenderKind other)
{
	return (other == ZKL_CONTENDER_READ && mode == ZKL_MODE_WRITE) ||
		(other == ZKL_CONTENDER_WRITE && mode == ZKL_MODE_READ);
}

/*
 * Does "contender" stand before us, or would it, as we have no node yet? Notes what is
 * wrong if it has our digits.
 */
static bool
stands_before(ZklListing *listing, const char *child, const ZklContender *contender)
{
	if (!listing->own_found)
		return true;
	if (strcmp(child, listing->own) == 0)
		return false;
	if (contender->digits == listing->own_digits && !is_downgrade(listing->mode, contender->kind))
		listing->trouble = ZKL_TROUBLE_TIE;
	return contender->digits < listing->own_digits;
}

/* One that we must wait for; of all of them the last one is the predecessor. */
static void
count_ahead(ZklListing *listing, const char *child, const ZklContender *contender,
			int64_t *pred_digits)
{
	size_t		len = strlen(child);

	listing->ahead++;
	if (contender->digits <= *pred_digits && listing->pred[0] != '\0')
		return;
	if (len >= sizeof(listing->pred))
	{
		listing->trouble = ZKL_TROUBLE_LONG_NAME;
		return;
	}
	*pred_digits = contender->digits;
	listing->pred_is_mutex = contender->kind == ZKL_CONTENDER_LOCK;
	memcpy(listing->pred, child, len + 1);
}

/*
 * Two passes, because where "ahead" ends depends on our own digits, which may
 * stand last in the list.
 */
void
zkl_listing_read(ZklListing *listing, char *const *children, int nchildren)
{
	int64_t		pred_digits = -1;
	int64_t		first_digits = INT64_MAX;

	listing->own_found = listing->beside_found = false;
	listing->own[0] = listing->pred[0] = listing->first[0] = '\0';
	listing->own_digits = 0;
	listing->contenders = listing->ahead = 0;
	listing->pred_is_mutex = listing->shared_seen = false;
	listing->trouble = ZKL_TROUBLE_NONE;

	if (listing->mode == ZKL_MODE_PERMIT)
	{
		read_permits(listing, children, nchildren);
		return;
	}

	find_own(listing, children, nchildren);
	for (int i = 0; i < nchildren; i++)
	{
		const char *child = children[i];
		size_t		len = strlen(child);
		ZklContender contender;

		if (!zkl_contender_parse(child, &contender))
			continue;			/* another lock's directory, say */
		listing->contenders++;
		if (contender.kind != ZKL_CONTENDER_LOCK)
			listing->shared_seen = true;
		if (contender.digits < 0)
			listing->trouble = ZKL_TROUBLE_WRAPPED;
		if (contender.digits < first_digits && len < sizeof(listing->first))
		{
			first_digits = contender.digits;
			memcpy(listing->first, child, len + 1);
		}
		if (stands_before(listing, child, &contender) &&
			zkl_mode_conflicts(listing->mode, contender.kind))
			count_ahead(listing, child, &contender, &pred_digits);
	}

	if (listing->own_found && listing->own_digits > ZKL_DIGITS_LIMIT)
		listing->trouble = ZKL_TROUBLE_LIMIT;
}

/* Does this result only say that the connection broke? The next one cures it. */
static bool
connection_broke(int rc)
{
	return rc == ZKL_RC_CONNECTIONLOSS || rc == ZKL_RC_OPERATIONTIMEOUT ||
		rc == ZKL_RC_SESSIONMOVED;
}

/* What was seen on a connection does not count on another. */
static void
forget_sightings(ZklQueue *queue)
{
	queue->own_watched = false;
	queue->pred_watched = false;
	queue->listed = false;
	queue->plain = false;
	queue->probed = 0;
}

static void
end(ZklQueue *queue)
{
	queue->state = ZKL_QUEUE_ENDED;
	queue->recheck = false;
	queue->node[0] = '\0';
}

/* No node exists: begin (again), or end when nobody wants it any more. */
static void
begin(ZklQueue *queue)
{
	if (queue->abandoned)
	{
		end(queue);
		return;
	}
	queue->state = ZKL_QUEUE_NEW;
	queue->requeue = false;
	queue->seen_free = false;
	queue->node[0] = '\0';
	queue->pred[0] = '\0';
	queue->must_wait = false;
	queue->czxid = queue->owner = 0;
	queue->ahead = 0;
	queue->blocked = false;
	forget_sightings(queue);
}

/* The node has to go; its name is known. */
static void
begin_delete(ZklQueue *queue, ZklQueueResult result, bool requeue)
{
	queue->state = ZKL_QUEUE_DELETING;
	if (queue->result == ZKL_RESULT_NONE)
		queue->result = result;
	queue->requeue = requeue;
	queue->recheck = false;
	queue->blocked = false;
}

static void
fail(ZklQueue *queue, int rc, ZklTrouble trouble)
{
	queue->result = ZKL_RESULT_FAILED;
	queue->failure = rc;
	queue->trouble = trouble;
	if (queue->node[0] != '\0')
		begin_delete(queue, ZKL_RESULT_FAILED, false);
	else
		end(queue);
}

/* Our node is gone, or is not ours. Deleting it once more costs nothing and
 * makes sure, whatever made us believe so. */
static void
vanished(ZklQueue *queue)
{
	if (queue->state == ZKL_QUEUE_GRANTED)
		begin_delete(queue, ZKL_RESULT_LOST, false);
	else if (queue->state == ZKL_QUEUE_QUEUED)
		begin_delete(queue, ZKL_RESULT_NONE, true);
}

/* QUEUED with a current listing: are we first, and is that certain? */
static void
consider_grant(ZklQueue *queue)
{
	if (queue->state != ZKL_QUEUE_QUEUED || !queue->listed || queue->must_wait)
		return;
	if (queue->czxid == 0 || queue->owner == 0)
		return;					/* OWN is wanted and will tell */
	if (queue->owner != queue->session)
		vanished(queue);
	else
		queue->state = ZKL_QUEUE_GRANTED;
}

void
zkl_queue_init(ZklQueue *queue, ZklMode mode, bool try)
{
	memset(queue, 0, sizeof(*queue));
	queue->mode = mode;
	queue->try = try;
}

void
zkl_queue_set_permits(ZklQueue *queue, int permits)
{
	queue->permits = permits;
}

void
zkl_queue_set_beside(ZklQueue *queue, const char *write_node)
{
	strncpy(queue->beside, write_node, sizeof(queue->beside) - 1);
}

/* Must we wait, with so many ahead of us? */
static bool
is_taken(const ZklQueue *queue, int ahead)
{
	return ahead >= (queue->mode == ZKL_MODE_PERMIT ? queue->permits : 1);
}

void
zkl_queue_adopt(ZklQueue *queue, ZklMode mode, bool try, const char *uuid,
				const char *node, int64_t czxid, bool granted)
{
	zkl_queue_init(queue, mode, try);
	strncpy(queue->uuid, uuid, sizeof(queue->uuid) - 1);
	if (uuid[0] == '\0')
		return;					/* nothing was sent */
	if (node[0] == '\0')
	{
		queue->state = ZKL_QUEUE_UNSURE;
		return;
	}
	strncpy(queue->node, node, sizeof(queue->node) - 1);
	queue->czxid = czxid;
	queue->state = granted ? ZKL_QUEUE_GRANTED : ZKL_QUEUE_QUEUED;
	queue->recheck = granted;
}

uint32_t
zkl_queue_wanted(const ZklQueue *queue)
{
	uint32_t	wanted = 0;

	if (queue->connection == 0 || queue->blocked)
		return 0;

	switch (queue->state)
	{
		case ZKL_QUEUE_NEW:
			/* a reply to come could be mistaken for one to the new requests */
			if (queue->in_flight != 0)
				return 0;
			if (queue->try && !queue->seen_free)
				return ZKL_OP_LIST;
			return ZKL_OP_CREATE | ZKL_OP_LIST | (queue->mkdirs ? ZKL_OP_MKDIRS : 0);

		case ZKL_QUEUE_UNSURE:
			return queue->in_flight != 0 ? 0 : ZKL_OP_PROBE | ZKL_OP_LIST;

		case ZKL_QUEUE_QUEUED:
			if (!queue->listed)
				wanted |= ZKL_OP_LIST;
			else if (queue->pred[0] != '\0' && !queue->pred_watched)
				wanted |= ZKL_OP_PRED;

			/* while waiting, and where owner or token is not known */
			if (!queue->own_watched &&
				(queue->owner == 0 ||
				 (queue->listed && (queue->must_wait || queue->czxid == 0))))
				wanted |= ZKL_OP_OWN;
			break;

		case ZKL_QUEUE_GRANTED:
			if (!queue->own_watched)
				wanted |= ZKL_OP_OWN;
			break;

		case ZKL_QUEUE_DELETING:
			wanted |= ZKL_OP_DELETE;
			break;

		case ZKL_QUEUE_ENDED:
			break;
	}
	return wanted & ~queue->in_flight;
}

void
zkl_queue_sent(ZklQueue *queue, uint32_t op)
{
	queue->in_flight |= op;
}

void
zkl_queue_connected(ZklQueue *queue, uint32_t connection, int64_t session)
{
	forget_sightings(queue);
	queue->connection = connection;
	queue->session = session;
	queue->blocked = false;
	if (queue->state == ZKL_QUEUE_GRANTED)
		queue->recheck = true;
}

void
zkl_queue_disconnected(ZklQueue *queue)
{
	forget_sightings(queue);
	queue->connection = 0;
}

void
zkl_queue_session_gone(ZklQueue *queue)
{
	queue->connection = 0;
	queue->in_flight = 0;
	queue->uuid[0] = '\0';

	switch (queue->state)
	{
		case ZKL_QUEUE_GRANTED:
			queue->result = ZKL_RESULT_LOST;
			end(queue);
			break;
		case ZKL_QUEUE_DELETING:
			if (queue->requeue)
				begin(queue);
			else
				end(queue);
			break;
		case ZKL_QUEUE_ENDED:
			break;
		default:
			/* the write node of a downgrade is gone as well */
			if (queue->beside[0] != '\0' && !queue->abandoned)
			{
				queue->node[0] = '\0';
				fail(queue, ZKL_RC_OK, ZKL_TROUBLE_NO_WRITER);
			}
			else
				begin(queue);
			break;
	}
}

void
zkl_queue_abandon(ZklQueue *queue)
{
	queue->abandoned = true;

	switch (queue->state)
	{
		case ZKL_QUEUE_NEW:
			if ((queue->in_flight & ZKL_OP_CREATE) == 0)
				end(queue);
			break;
		case ZKL_QUEUE_QUEUED:
		case ZKL_QUEUE_GRANTED:
			begin_delete(queue, ZKL_RESULT_NONE, false);
			break;
		case ZKL_QUEUE_DELETING:
			queue->requeue = false;
			break;
		case ZKL_QUEUE_UNSURE:
		case ZKL_QUEUE_ENDED:
			break;
	}
}

void
zkl_queue_not_executed(ZklQueue *queue, uint32_t op)
{
	queue->in_flight &= ~op;
	if (op == ZKL_OP_CREATE && queue->state == ZKL_QUEUE_NEW && queue->abandoned)
		end(queue);
}

void
zkl_queue_made_dirs(ZklQueue *queue, int rc)
{
	queue->in_flight &= ~ZKL_OP_MKDIRS;
	queue->mkdirs_rc = (rc == ZKL_RC_NODEEXISTS) ? ZKL_RC_OK : rc;
}

void
zkl_queue_created(ZklQueue *queue, int rc, const char *node, int64_t czxid, int64_t owner)
{
	queue->in_flight &= ~ZKL_OP_CREATE;
	if (queue->state != ZKL_QUEUE_NEW)
		return;

	switch (rc)
	{
		case ZKL_RC_OK:
			strncpy(queue->node, node, sizeof(queue->node) - 1);
			queue->czxid = czxid;
			queue->owner = owner;
			queue->state = ZKL_QUEUE_QUEUED;
			queue->mkdirs = false;
			queue->mkdirs_tries = 0;
			if (queue->abandoned)
				begin_delete(queue, ZKL_RESULT_NONE, false);
			break;

		case ZKL_RC_NONODE:
			/* the directory is not there, or was reaped under us */
			if (queue->abandoned)
				end(queue);
			else if (queue->beside[0] != '\0')
				fail(queue, ZKL_RC_OK, ZKL_TROUBLE_NO_WRITER);
			else if (queue->mkdirs && queue->mkdirs_rc != ZKL_RC_OK &&
					 queue->mkdirs_rc != ZKL_RC_CONNECTIONLOSS &&
					 queue->mkdirs_rc != ZKL_RC_OPERATIONTIMEOUT)
				fail(queue, queue->mkdirs_rc, ZKL_TROUBLE_NONE);
			else if (queue->mkdirs_tries++ >= ZKL_MKDIRS_TRIES)
				fail(queue, rc, ZKL_TROUBLE_NONE);
			else
				queue->mkdirs = true;
			break;

		case ZKL_RC_THROTTLED:
			/* refused before it did anything */
			if (queue->abandoned)
				end(queue);
			else
				queue->blocked = true;
			break;

		case ZKL_RC_NOAUTH:
		case ZKL_RC_NOCHILDREN:
		case ZKL_RC_NODEEXISTS:
		case ZKL_RC_INVALIDACL:
		case ZKL_RC_NOTREADONLY:
		case ZKL_RC_LOCALSESSION:
		case ZKL_RC_QUOTAEXCEEDED:
			if (queue->abandoned)
				end(queue);
			else
				fail(queue, rc, ZKL_TROUBLE_NONE);
			break;

		default:
			/* -4, -7 and whatever else does not say that nothing happened */
			queue->state = ZKL_QUEUE_UNSURE;
			queue->odd_rc = connection_broke(rc) ? ZKL_RC_OK : rc;
			break;
	}
}

void
zkl_queue_probed(ZklQueue *queue, int rc, uint32_t connection)
{
	queue->in_flight &= ~ZKL_OP_PROBE;
	if (rc == ZKL_RC_OK && connection == queue->connection)
		queue->probed = connection;
	else if (rc != ZKL_RC_OK && !connection_broke(rc))
		queue->blocked = true;
}

/* UNSURE: "listing" NULL when there is no directory. */
static void
settle_unsure(ZklQueue *queue, uint32_t connection, const ZklListing *listing)
{
	if (listing != NULL && listing->own_found)
	{
		/* its czxid and owner come with OWN */
		memcpy(queue->node, listing->own, sizeof(queue->node));
		queue->czxid = queue->owner = 0;
		queue->state = ZKL_QUEUE_QUEUED;
		forget_sightings(queue);
		if (queue->abandoned)
			begin_delete(queue, ZKL_RESULT_NONE, false);
	}
	else if (queue->probed == connection && connection != 0)
	{
		memcpy(queue->suspect, queue->uuid, sizeof(queue->suspect));
		queue->uuid[0] = '\0';
		if (queue->odd_rc != ZKL_RC_OK && !queue->abandoned)
			fail(queue, queue->odd_rc, ZKL_TROUBLE_NONE);	/* asking again would
															 * not help */
		else
			begin(queue);
	}
}

/* May create but not list: nobody could tell who is first. */
static void
listing_refused(ZklQueue *queue, int rc)
{
	if (rc == ZKL_RC_NOAUTH &&
		(queue->state == ZKL_QUEUE_QUEUED ||
		 (queue->state == ZKL_QUEUE_NEW && (queue->in_flight & ZKL_OP_CREATE) == 0)))
		fail(queue, rc, ZKL_TROUBLE_NONE);
	else if (!connection_broke(rc) && queue->state != ZKL_QUEUE_DELETING)
		queue->blocked = true;
}

/*
 * A try asks before it creates; else this is the listing behind a create that failed,
 * which says nothing. "listing" is NULL when there is no directory.
 */
static void
listed_when_new(ZklQueue *queue, const ZklListing *listing)
{
	if (!queue->try || queue->seen_free)
		return;
	if (listing != NULL && listing->trouble != ZKL_TROUBLE_NONE)
		fail(queue, ZKL_RC_OK, listing->trouble);
	else if (listing != NULL && is_taken(queue, listing->ahead - listing->leaving))
	{
		queue->result = ZKL_RESULT_BUSY;
		queue->ahead = listing->ahead;
		end(queue);
	}
	else
		queue->seen_free = true;
	if (listing == NULL)
		queue->mkdirs = true;
}

static void
listed_when_queued(ZklQueue *queue, const ZklListing *listing)
{
	if (listing == NULL || !listing->own_found)
	{
		vanished(queue);
		return;
	}
	if (listing->trouble != ZKL_TROUBLE_NONE)
	{
		fail(queue, ZKL_RC_OK, listing->trouble);
		return;
	}
	if (queue->beside[0] != '\0' && !listing->beside_found)
	{
		fail(queue, ZKL_RC_OK, ZKL_TROUBLE_NO_WRITER);
		return;
	}
	queue->ahead = listing->ahead;
	if (is_taken(queue, listing->ahead - listing->leaving) && queue->try)
	{
		begin_delete(queue, ZKL_RESULT_BUSY, false);
		return;
	}

	if (strcmp(queue->pred, listing->pred) != 0)
	{
		memcpy(queue->pred, listing->pred, sizeof(queue->pred));
		queue->pred_watched = false;
	}
	/* alone: the directory's number serves as our token, see queue.h */
	if (queue->czxid == 0 && listing->contenders == 1 && queue->mode != ZKL_MODE_PERMIT)
		queue->czxid = listing->pzxid;
	queue->listed = true;
	queue->must_wait = is_taken(queue, listing->ahead);
	queue->plain = listing->pred_is_mutex && !listing->shared_seen;
	consider_grant(queue);
}

void
zkl_queue_listed(ZklQueue *queue, int rc, uint32_t connection, const ZklListing *listing)
{
	bool		current = connection == queue->connection && connection != 0;

	queue->in_flight &= ~ZKL_OP_LIST;
	if (!current)
		return;
	if (rc == ZKL_RC_NONODE)
		listing = NULL;
	else if (rc != ZKL_RC_OK)
	{
		listing_refused(queue, rc);
		return;
	}
	if (queue->state == ZKL_QUEUE_NEW)
		listed_when_new(queue, listing);
	else if (queue->state == ZKL_QUEUE_UNSURE)
		settle_unsure(queue, connection, listing);
	else if (queue->state == ZKL_QUEUE_QUEUED)
		listed_when_queued(queue, listing);
}

void
zkl_queue_own(ZklQueue *queue, int rc, uint32_t connection, int64_t czxid, int64_t owner)
{
	queue->in_flight &= ~ZKL_OP_OWN;
	if (connection != queue->connection || connection == 0 ||
		(queue->state != ZKL_QUEUE_QUEUED && queue->state != ZKL_QUEUE_GRANTED))
		return;

	/* a node that we may not even see is as good as gone */
	if (rc == ZKL_RC_NONODE || rc == ZKL_RC_NOAUTH ||
		(rc == ZKL_RC_OK && owner != queue->session))
	{
		vanished(queue);
		return;
	}
	if (rc != ZKL_RC_OK)
	{
		queue->blocked = !connection_broke(rc);
		return;
	}

	/* the token was fixed when the node was first seen */
	if (queue->czxid == 0)
		queue->czxid = czxid;
	queue->owner = owner;
	queue->own_watched = true;
	queue->recheck = false;
	consider_grant(queue);
}

void
zkl_queue_pred(ZklQueue *queue, int rc, uint32_t connection)
{
	queue->in_flight &= ~ZKL_OP_PRED;
	if (connection != queue->connection || connection == 0 ||
		queue->state != ZKL_QUEUE_QUEUED)
		return;
	if (rc == ZKL_RC_NONODE)
		zkl_queue_pred_gone(queue);
	else if (rc == ZKL_RC_OK)
		queue->pred_watched = true;
	else
		queue->blocked = !connection_broke(rc);
}

void
zkl_queue_deleted(ZklQueue *queue, int rc)
{
	queue->in_flight &= ~ZKL_OP_DELETE;
	if (queue->state != ZKL_QUEUE_DELETING)
		return;

	if (rc != ZKL_RC_OK && rc != ZKL_RC_NONODE)
		queue->blocked = !connection_broke(rc);
	else if (queue->requeue)
	{
		queue->uuid[0] = '\0';
		begin(queue);
	}
	else
		end(queue);
}

void
zkl_queue_own_gone(ZklQueue *queue)
{
	vanished(queue);
}

/* Nobody is ahead any more. */
static void
take_over(ZklQueue *queue)
{
	queue->pred[0] = '\0';
	queue->must_wait = false;
	queue->ahead = 0;
	consider_grant(queue);
}

void
zkl_queue_pred_gone(ZklQueue *queue)
{
	if (queue->state != ZKL_QUEUE_QUEUED)
		return;
	queue->pred_watched = false;
	/* the only one ahead of us, and nobody can have come between */
	if (queue->listed && queue->plain && queue->ahead == 1 && queue->own_watched)
		take_over(queue);
	else
		queue->listed = false;
}

void
zkl_queue_pred_released(ZklQueue *queue, const char *pred)
{
	if (queue->state == ZKL_QUEUE_QUEUED && queue->listed && queue->plain &&
		queue->own_watched && strcmp(queue->pred, pred) == 0)
		take_over(queue);
}

void
zkl_queue_surrender(ZklQueue *queue)
{
	vanished(queue);
}

void
zkl_queue_own_changed(ZklQueue *queue)
{
	queue->own_watched = false;
}

void
zkl_queue_pred_changed(ZklQueue *queue)
{
	queue->pred_watched = false;
}

void
zkl_queue_children_changed(ZklQueue *queue)
{
	if (queue->mode == ZKL_MODE_PERMIT && queue->state == ZKL_QUEUE_QUEUED)
		queue->listed = false;
}

void
zkl_queue_tick(ZklQueue *queue, bool rewatch)
{
	/* a granted one need only see that its node is there */
	if (rewatch && queue->state == ZKL_QUEUE_GRANTED)
		queue->own_watched = false;
	if (rewatch && queue->state == ZKL_QUEUE_QUEUED)
	{
		/* a lease has no predecessor, and a few names to list */
		if (queue->mode == ZKL_MODE_PERMIT)
			queue->listed = false;
		queue->own_watched = queue->pred_watched = false;
	}
	queue->blocked = false;
}
