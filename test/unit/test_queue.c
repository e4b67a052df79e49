/*-------------------------------------------------------------------------
 *
 * test_queue.c
 *	  The queue machine: named orders of events, then random ones.
 *
 * The random part is a small ensemble in memory: one lock directory, three
 * clients with several machines each, connections that lose requests and
 * replies, reconnect late or as another server, ZooKeeper sessions that expire,
 * nodes that somebody deletes, a directory that is reaped. Every event is one
 * step; after each the invariants of queue.h are checked against the directory,
 * which the machines cannot see. Environment: QUEUE_STEPS, QUEUE_SEED.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"
#include "zookeeper/queue.h"

#define UUID_A "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
#define NODE_A "_c_" UUID_A "-lock-0000000007"
#define NODE_B "_c_bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb-lock-0000000005"
#define NODE_C "_c_cccccccc-cccc-4ccc-8ccc-cccccccccccc-lock-0000000003"
#define SESSION 42

/* ------------------------------------------------------------------------
 * Named orders
 * ------------------------------------------------------------------------
 */

static ZklListing
listing(int n,...)
{
	ZklListing	result;
	char	   *children[8];
	va_list		args;

	memset(&result, 0, sizeof(result));
	strcpy(result.uuid, UUID_A);
	va_start(args, n);
	for (int i = 0; i < n; i++)
		children[i] = va_arg(args, char *);
	va_end(args);
	zkl_listing_read(&result, children, n);
	return result;
}

/* Mark as sent what is wanted, and say what it was. */
static uint32_t
send_all(ZklQueue *queue)
{
	uint32_t	wanted = zkl_queue_wanted(queue);

	if (wanted & ZKL_OP_CREATE)
		strcpy(queue->uuid, UUID_A);
	for (uint32_t bit = 1; bit <= ZKL_OP_LAST; bit <<= 1)
		if (wanted & bit)
			zkl_queue_sent(queue, bit);
	return wanted;
}

static ZklQueue
fresh(bool try)
{
	ZklQueue	queue;

	zkl_queue_init(&queue, ZKL_MODE_EXCLUSIVE, try);
	zkl_queue_connected(&queue, 1, SESSION);
	return queue;
}

/* A machine whose node stands behind NODE_B, watched. */
static ZklQueue
waiting(void)
{
	ZklQueue	queue = fresh(false);
	ZklListing	l = listing(2, NODE_A, NODE_B);

	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	zkl_queue_pred(&queue, ZKL_RC_OK, 1);
	return queue;
}

static ZklQueue
held(void)
{
	ZklQueue	queue = fresh(false);
	ZklListing	l = listing(1, NODE_A);

	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	return queue;
}

static void
test_listing(void)
{
	ZklListing	l = listing(3, NODE_A, NODE_B, "lease_holder");

	CHECK_INT(l.ahead, 1, "one contender is ahead");
	CHECK_STR(l.pred, NODE_B, "the predecessor is the nearest one ahead");
	CHECK_INT(l.contenders, 2, "a child without a marker is no contender");
	l = listing(3, NODE_C, NODE_A, NODE_B);
	CHECK_STR(l.pred, NODE_B, "the predecessor does not depend on the order of the list");
	CHECK_STR(l.first, NODE_C, "the first is the lowest");
	l = listing(2, NODE_A, "_c_zzz-lock-0000000007");
	CHECK_INT(l.trouble, ZKL_TROUBLE_TIE, "equal_digits_are_refused");
	l = listing(2, NODE_A, "_c_zzz-lock--2147483648");
	CHECK_INT(l.trouble, ZKL_TROUBLE_WRAPPED, "negative_digits_are_refused");
	l = listing(1, "_c_" UUID_A "-lock-2000000001");
	CHECK_INT(l.trouble, ZKL_TROUBLE_LIMIT, "digits_near_the_end_are_refused");
	l = listing(2, "_c_" UUID_A "-lock-0000000010", "dead4beef__lock__0000000009");
	CHECK_INT(l.ahead, 1, "kazoo_contender_is_seen");
	/* ZOOKEEPER-2931: sorting by the whole name made two holders */
	l = listing(2, NODE_A, "_c_00000000-0000-4000-8000-000000000000-lock-0000000009");
	CHECK_INT(l.ahead, 0, "a_lower_guid_with_higher_digits_is_behind");
}

static void
test_uncontended(void)
{
	ZklQueue	queue = fresh(false);
	ZklListing	l = listing(1, NODE_A);

	CHECK_INT(send_all(&queue), ZKL_OP_CREATE | ZKL_OP_LIST, "create and list in one flight");
	CHECK_INT(zkl_queue_wanted(&queue), 0, "nothing twice");
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "no grant before the listing");
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "first in the listing: granted");
	CHECK_INT(queue.czxid, 100, "the token is the czxid");
	CHECK_INT(send_all(&queue), ZKL_OP_OWN, "the own node's watch is set afterwards");
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	CHECK_INT(zkl_queue_wanted(&queue), 0, "then there is peace");
	zkl_queue_abandon(&queue);
	CHECK_INT(send_all(&queue), ZKL_OP_DELETE, "release deletes");
	zkl_queue_deleted(&queue, ZKL_RC_OK);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "and ends");
	CHECK_INT(queue.result, ZKL_RESULT_NONE, "without a complaint");
}

static void
test_parents(void)
{
	ZklQueue	queue = fresh(false);

	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_NONODE, NULL, 0, 0);
	CHECK_INT(zkl_queue_wanted(&queue), 0, "the listing behind it has to come back first");
	zkl_queue_listed(&queue, ZKL_RC_NONODE, 1, NULL);
	CHECK_INT(send_all(&queue), ZKL_OP_MKDIRS | ZKL_OP_CREATE | ZKL_OP_LIST,
			  "missing parents: they and both again in one flight");
	for (int i = 0; i < 10 && queue.state == ZKL_QUEUE_NEW; i++)
	{
		zkl_queue_made_dirs(&queue, ZKL_RC_NODEEXISTS);
		zkl_queue_created(&queue, ZKL_RC_NONODE, NULL, 0, 0);
		zkl_queue_listed(&queue, ZKL_RC_NONODE, 1, NULL);
		send_all(&queue);
	}
	CHECK_INT(queue.result, ZKL_RESULT_FAILED, "reaped_each_time_is_a_failure_not_a_loop");

	queue = fresh(false);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_NONODE, NULL, 0, 0);
	zkl_queue_listed(&queue, ZKL_RC_NONODE, 1, NULL);
	send_all(&queue);
	zkl_queue_made_dirs(&queue, ZKL_RC_NOAUTH);
	zkl_queue_created(&queue, ZKL_RC_NONODE, NULL, 0, 0);
	CHECK_INT(queue.failure, ZKL_RC_NOAUTH, "parents that may not be made: that is the failure");
}

static void
test_try(void)
{
	ZklQueue	queue = fresh(true);
	ZklListing	l = listing(1, NODE_B);

	l.uuid[0] = '\0';
	CHECK_INT(send_all(&queue), ZKL_OP_LIST, "a try lists first");
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "taken: it ends");
	CHECK_INT(queue.result, ZKL_RESULT_BUSY, "busy, without a node");

	queue = fresh(true);
	send_all(&queue);
	zkl_queue_listed(&queue, ZKL_RC_NONODE, 1, NULL);
	CHECK_INT(send_all(&queue), ZKL_OP_MKDIRS | ZKL_OP_CREATE | ZKL_OP_LIST,
			  "no directory: it is free");
	l = listing(2, NODE_A, NODE_B);
	zkl_queue_made_dirs(&queue, ZKL_RC_OK);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_DELETING, "overtaken: it gives up at once");
	CHECK_INT(queue.result, ZKL_RESULT_BUSY, "and is busy");
}

static void
test_lost_reply(void)
{
	ZklQueue	queue = fresh(false);
	ZklListing	l = listing(1, NODE_A);

	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_CONNECTIONLOSS, NULL, 0, 0);
	zkl_queue_listed(&queue, ZKL_RC_CONNECTIONLOSS, 1, NULL);
	zkl_queue_disconnected(&queue);
	CHECK_INT(zkl_queue_wanted(&queue), 0, "nothing while disconnected");
	zkl_queue_connected(&queue, 2, SESSION);
	CHECK_INT(send_all(&queue), ZKL_OP_PROBE | ZKL_OP_LIST,
			  "lost_create_reply_is_looked_for_behind_a_write");
	zkl_queue_probed(&queue, ZKL_RC_OK, 2);
	zkl_queue_listed(&queue, ZKL_RC_OK, 2, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "the node is found by its uuid");
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 2, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 2, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "and granted after its owner was checked");

	/* an isolated leader answers reads, and sync, but no write */
	queue = fresh(false);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OPERATIONTIMEOUT, NULL, 0, 0);
	zkl_queue_listed(&queue, ZKL_RC_OPERATIONTIMEOUT, 1, NULL);
	zkl_queue_connected(&queue, 2, SESSION);
	send_all(&queue);
	l = listing(0);
	zkl_queue_probed(&queue, ZKL_RC_CONNECTIONLOSS, 2);
	zkl_queue_listed(&queue, ZKL_RC_OK, 2, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_UNSURE, "absence_without_a_write_proves_nothing");

	/* absent behind a write: but it may still come late */
	zkl_queue_connected(&queue, 3, SESSION);
	send_all(&queue);
	zkl_queue_probed(&queue, ZKL_RC_OK, 3);
	zkl_queue_listed(&queue, ZKL_RC_OK, 3, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_NEW, "absent behind a write: it queues again");
	CHECK_STR(queue.uuid, "", "with a fresh uuid");
	CHECK_STR(queue.suspect, UUID_A, "late_create_is_looked_out_for");

	/* an answer that says neither yes nor no is not asked for again and again */
	queue = fresh(false);
	send_all(&queue);
	zkl_queue_created(&queue, -5, NULL, 0, 0);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_probed(&queue, ZKL_RC_OK, 1);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.failure, -5, "odd_refusal_is_a_failure_not_a_loop");

	queue = fresh(false);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OPERATIONTIMEOUT, NULL, 0, 0);
	zkl_queue_listed(&queue, ZKL_RC_OPERATIONTIMEOUT, 1, NULL);

	/* the answer to the probe is of another connection than the listing */
	zkl_queue_connected(&queue, 3, SESSION);
	send_all(&queue);
	zkl_queue_probed(&queue, ZKL_RC_OK, 2);
	zkl_queue_listed(&queue, ZKL_RC_OK, 3, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_UNSURE, "a_probe_of_an_older_connection_does_not_count");

	/* CURATOR-498: a node of an earlier ZooKeeper session is not ours */
	queue = fresh(false);
	zkl_queue_adopt(&queue, ZKL_MODE_EXCLUSIVE, false, UUID_A, "", 0, false);
	zkl_queue_connected(&queue, 1, SESSION);
	send_all(&queue);
	l = listing(1, NODE_A);
	zkl_queue_probed(&queue, ZKL_RC_OK, 1);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION + 1);
	CHECK_INT(queue.state, ZKL_QUEUE_DELETING, "node_of_an_older_session_is_not_adopted");
	send_all(&queue);
	zkl_queue_deleted(&queue, ZKL_RC_OK);
	CHECK_INT(queue.state, ZKL_QUEUE_NEW, "it queues again");
	CHECK_STR(queue.uuid, "", "with a fresh uuid");

	queue = fresh(false);
	l = listing(1, NODE_A);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION + 1);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "node_of_another_session_is_not_granted");
}

static void
test_predecessor(void)
{
	ZklQueue	queue = waiting();
	ZklListing	l;

	CHECK_INT(zkl_queue_wanted(&queue), 0, "a waiter waits");
	zkl_queue_pred_gone(&queue);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "the only one ahead left: granted without a listing");

	/* A, B, C: somebody deletes B's node while B waits */
	queue = waiting();
	zkl_queue_own_gone(&queue);
	zkl_queue_pred_gone(&queue);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "own_node_gone_while_waiting_is_no_grant");

	queue = waiting();
	zkl_queue_disconnected(&queue);
	zkl_queue_connected(&queue, 2, SESSION);
	zkl_queue_pred_gone(&queue);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "own_watch_of_an_older_connection_is_not_enough");
	CHECK(zkl_queue_wanted(&queue) & ZKL_OP_LIST, "it lists again");
	l = listing(1, NODE_A);
	send_all(&queue);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "listing_of_an_older_connection_does_not_count");

	/* the predecessor's watch can be another request's: its event may come
	 * before our own node was seen */
	queue = fresh(false);
	l = listing(2, NODE_A, NODE_B);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_pred_gone(&queue);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "no_grant_without_a_listing_before_the_own_watch");

	/* a read or write node was seen: they do not come in the digits' order */
	queue = fresh(false);
	l = listing(3, NODE_A, NODE_B, "_c_zzz-__READ__0000000009");
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	zkl_queue_pred(&queue, ZKL_RC_OK, 1);
	zkl_queue_pred_gone(&queue);
	CHECK(queue.state != ZKL_QUEUE_GRANTED, "beside_read_nodes_it_lists_again");

	/* CURATOR-527: gone between the listing and the watch */
	queue = fresh(false);
	l = listing(2, NODE_A, NODE_B);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	zkl_queue_pred(&queue, ZKL_RC_NONODE, 1);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "predecessor_gone_before_the_watch_is_noticed");
}

static void
test_loss(void)
{
	ZklQueue	queue = held();

	zkl_queue_own_gone(&queue);
	CHECK_INT(queue.result, ZKL_RESULT_LOST, "the node of a holder was deleted: lost");
	CHECK_INT(queue.state, ZKL_QUEUE_DELETING, "and deleted once more to make sure");

	queue = held();
	zkl_queue_session_gone(&queue);
	CHECK_INT(queue.result, ZKL_RESULT_LOST, "expiry while holding: lost");
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "and ended");

	queue = waiting();
	zkl_queue_session_gone(&queue);
	CHECK_INT(queue.state, ZKL_QUEUE_NEW, "expiry while waiting: queue again");
	CHECK_STR(queue.uuid, "", "with a fresh uuid");

	queue = held();
	zkl_queue_disconnected(&queue);
	zkl_queue_connected(&queue, 2, SESSION);
	CHECK(queue.recheck, "after a reconnect a held node has to be seen again");
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	CHECK(queue.recheck, "an answer of the older connection does not count");
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 2, 100, SESSION);
	CHECK(!queue.recheck, "one of this connection does");
	CHECK_INT(queue.czxid, 100, "the token stays");
}

static void
test_cancel(void)
{
	ZklQueue	queue = fresh(false);

	zkl_queue_abandon(&queue);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "abandoned before anything was sent: ended");

	queue = fresh(false);
	send_all(&queue);
	zkl_queue_abandon(&queue);
	CHECK(queue.state != ZKL_QUEUE_ENDED, "abandoned with the create under way: not yet");
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	CHECK_INT(queue.state, ZKL_QUEUE_DELETING, "cancel_at_the_create_leaves_no_node");

	queue = fresh(false);
	send_all(&queue);
	zkl_queue_abandon(&queue);
	zkl_queue_created(&queue, ZKL_RC_CONNECTIONLOSS, NULL, 0, 0);
	CHECK_INT(queue.state, ZKL_QUEUE_UNSURE, "cancel_with_a_lost_create_still_looks_for_it");

	queue = held();
	zkl_queue_abandon(&queue);
	send_all(&queue);
	zkl_queue_deleted(&queue, ZKL_RC_CONNECTIONLOSS);
	zkl_queue_disconnected(&queue);
	zkl_queue_connected(&queue, 2, SESSION);
	CHECK_INT(send_all(&queue), ZKL_OP_DELETE, "lost_delete_is_sent_again");
	zkl_queue_deleted(&queue, ZKL_RC_NONODE);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "until there is no node");

	queue = held();
	zkl_queue_abandon(&queue);
	send_all(&queue);
	zkl_queue_deleted(&queue, ZKL_RC_NOAUTH);
	CHECK_INT(zkl_queue_wanted(&queue), 0, "a_refused_delete_is_no_busy_loop");
	zkl_queue_tick(&queue, false);
	CHECK_INT(zkl_queue_wanted(&queue), ZKL_OP_DELETE, "but is tried again");
}

#define WRITER_A "_c_" UUID_A "-__WRIT__0000000007"
#define READER_A "_c_" UUID_A "-__READ__0000000007"
#define WRITER_B "_c_bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb-__WRIT__0000000007"
#define READER_C "_c_cccccccc-cccc-4ccc-8ccc-cccccccccccc-__READ__0000000003"

static ZklListing
listing_as(ZklMode mode, const char *beside, char *child, char *other)
{
	ZklListing	result;
	char	   *children[] = {child, other};

	memset(&result, 0, sizeof(result));
	strcpy(result.uuid, UUID_A);
	result.mode = mode;
	strcpy(result.beside, beside);
	zkl_listing_read(&result, children, other != NULL ? 2 : 1);
	return result;
}

/* A machine of the given mode whose create has been answered. */
static ZklQueue
created_as(ZklMode mode, const char *beside, const char *node)
{
	ZklQueue	queue;

	zkl_queue_init(&queue, mode, false);
	zkl_queue_set_permits(&queue, 1);
	zkl_queue_set_beside(&queue, beside);
	zkl_queue_connected(&queue, 1, SESSION);
	send_all(&queue);
	zkl_queue_created(&queue, ZKL_RC_OK, node, 100, SESSION);
	return queue;
}

static void
test_shared(void)
{
	ZklQueue	queue;
	ZklListing	l;

	queue = created_as(ZKL_MODE_READ, "", READER_A);
	l = listing_as(ZKL_MODE_READ, "", READER_A, READER_C);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "readers hold together");

	queue = created_as(ZKL_MODE_WRITE, "", WRITER_A);
	l = listing_as(ZKL_MODE_WRITE, "", WRITER_A, READER_C);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "a writer waits for a reader");
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	zkl_queue_pred(&queue, ZKL_RC_OK, 1);
	zkl_queue_pred_gone(&queue);
	CHECK_INT(zkl_queue_wanted(&queue), ZKL_OP_LIST, "behind_a_reader_it_lists_again");

	/* the writer's own digits, and the write node in the same listing */
	queue = created_as(ZKL_MODE_READ, WRITER_B, READER_A);
	l = listing_as(ZKL_MODE_READ, WRITER_B, READER_A, WRITER_B);
	CHECK_INT(l.trouble, ZKL_TROUBLE_NONE, "equal digits of a downgrade are no trouble");
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "downgrade beside the write node");

	queue = created_as(ZKL_MODE_READ, WRITER_B, READER_A);
	l = listing_as(ZKL_MODE_READ, WRITER_B, READER_A, NULL);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_DELETING, "downgrade_without_the_write_node_is_refused");
	CHECK_INT(queue.trouble, ZKL_TROUBLE_NO_WRITER, "and says why");

	queue = created_as(ZKL_MODE_READ, WRITER_B, READER_A);
	zkl_queue_session_gone(&queue);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "downgrade_does_not_outlive_the_zookeeper_session");

	/* permits: all children count, and the directory is watched */
	queue = created_as(ZKL_MODE_PERMIT, "", "_c_" UUID_A "-lease-0000000009");
	l = listing_as(ZKL_MODE_PERMIT, "", "_c_" UUID_A "-lease-0000000009", "junk");
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "a foreign child takes a lease, as in Curator");
	CHECK_INT(send_all(&queue), ZKL_OP_OWN, "who waits for a lease watches its own node");
	zkl_queue_children_changed(&queue);
	CHECK_INT(send_all(&queue), ZKL_OP_LIST, "and lists when the directory changes");
	l = listing_as(ZKL_MODE_PERMIT, "", "_c_" UUID_A "-lease-0000000009", NULL);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "a lease is free");

	/* created in a batch: the token comes with the listing, or with the own node */
	queue = created_as(ZKL_MODE_EXCLUSIVE, "", NODE_A);
	queue.czxid = 0;
	l = listing_as(ZKL_MODE_EXCLUSIVE, "", NODE_A, NULL);
	l.pzxid = 107;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK(queue.state == ZKL_QUEUE_GRANTED && queue.czxid == 107, "alone: the directory's number");
	send_all(&queue);
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	CHECK_INT(queue.czxid, 107, "which_no_lower_one_replaces_later");

	queue = created_as(ZKL_MODE_EXCLUSIVE, "", NODE_A);
	queue.czxid = 0;
	l = listing_as(ZKL_MODE_EXCLUSIVE, "", NODE_A,
				   "_c_dddddddd-dddd-4ddd-8ddd-dddddddddddd-lock-0000000009");
	l.pzxid = 107;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "not alone: not granted without a token");
	CHECK_INT(send_all(&queue), ZKL_OP_OWN, "which_is_read_from_the_own_node");
	zkl_queue_own(&queue, ZKL_RC_OK, 1, 100, SESSION);
	CHECK(queue.state == ZKL_QUEUE_GRANTED && queue.czxid == 100, "and then it is granted");

	/* of a batch that failed for another's sake */
	queue = fresh(false);
	send_all(&queue);
	zkl_queue_not_executed(&queue, ZKL_OP_CREATE);
	l = listing(1, NODE_B);
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(send_all(&queue), ZKL_OP_CREATE | ZKL_OP_LIST, "not_executed_is_sent_again");
	zkl_queue_abandon(&queue);
	zkl_queue_not_executed(&queue, ZKL_OP_CREATE);
	CHECK_INT(queue.state, ZKL_QUEUE_ENDED, "or ends, if it was abandoned");

	/* the predecessor is of this worker, and its owner has let go */
	queue = waiting();
	zkl_queue_pred_released(&queue, NODE_C);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "another one let go: still waiting");
	zkl_queue_pred_released(&queue, NODE_B);
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "the predecessor let go: granted at once");
	queue = waiting();
	queue.own_watched = false;
	zkl_queue_pred_released(&queue, NODE_B);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "not_handed_over_without_a_watch_on_the_own_node");
	zkl_queue_pred_gone(&queue);
	CHECK(zkl_queue_wanted(&queue) & ZKL_OP_LIST, "then its going is what counts, and a listing");

	/* a watch that went off for a change is set again */
	queue = held();
	zkl_queue_own_changed(&queue);
	CHECK_INT(zkl_queue_wanted(&queue), ZKL_OP_OWN, "own_node_written_to_is_watched_again");
	zkl_queue_surrender(&queue);
	CHECK_INT(queue.result, ZKL_RESULT_LOST, "a lock that is taken away is lost");
}

#define LEASE_A(digits)	"_c_" UUID_A "-lease-" digits
#define LEASE_B(digits)	"_c_bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb-lease-" digits

/* What becomes of a request for the only lease, with one other node there. */
static ZklQueue
lease_beside(bool try, char *own, char *other)
{
	ZklQueue	queue = created_as(ZKL_MODE_PERMIT, "", own);
	ZklListing	l = listing_as(ZKL_MODE_PERMIT, "", own, other);

	queue.try = try;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	return queue;
}

static void
test_leases(void)
{
	ZklQueue	queue;

	/* of those who want the last lease at the same time the first one gets it */
	queue = lease_beside(true, LEASE_A("0000000009"), LEASE_B("0000000010"));
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "two_tries_for_the_last_lease_do_not_both_fail");
	queue = lease_beside(true, LEASE_A("0000000011"), LEASE_B("0000000010"));
	CHECK_INT(queue.result, ZKL_RESULT_BUSY, "the second one does");
	queue = lease_beside(false, LEASE_A("0000000009"), LEASE_B("0000000010"));
	CHECK_INT(queue.state, ZKL_QUEUE_GRANTED, "nor does a try that came later keep a waiter waiting");

	/* where the counter does not tell the order any more, all count, as for Curator */
	queue = lease_beside(false, LEASE_A("2000000001"), LEASE_B("2000000002"));
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "leases_beyond_the_limit_of_the_counter_all_count");
	queue = lease_beside(false, LEASE_A("2000000000"), LEASE_B("-2147483648"));
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "so_does_one_whose_counter_wrapped");
	queue = lease_beside(false, LEASE_A("-000000007"), LEASE_B("0000000008"));
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "and all for one whose own did");
}

/*
 * What is ahead of a try is a node of the same worker's, whose owner is done with it and
 * whose deletion did not get through.
 */
static void
test_leaving(void)
{
	ZklQueue	queue;
	ZklListing	l;

	zkl_queue_init(&queue, ZKL_MODE_EXCLUSIVE, true);
	zkl_queue_connected(&queue, 1, SESSION);
	strcpy(queue.uuid, UUID_A);
	send_all(&queue);
	l = listing_as(ZKL_MODE_EXCLUSIVE, "", NODE_B, NULL);
	l.leaving = 1;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.result, ZKL_RESULT_NONE, "a_node_on_its_way_out_is_no_holder");
	CHECK(send_all(&queue) & ZKL_OP_CREATE, "the try goes on");
	zkl_queue_created(&queue, ZKL_RC_OK, NODE_A, 100, SESSION);
	l = listing_as(ZKL_MODE_EXCLUSIVE, "", NODE_A, NODE_B);
	l.leaving = 1;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.state, ZKL_QUEUE_QUEUED, "but does not hold while it stands");
	CHECK(zkl_queue_wanted(&queue) & ZKL_OP_PRED, "it waits for it to go");
	l.leaving = 0;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.result, ZKL_RESULT_BUSY, "somebody else ahead means taken");

	zkl_queue_init(&queue, ZKL_MODE_EXCLUSIVE, true);
	zkl_queue_connected(&queue, 1, SESSION);
	strcpy(queue.uuid, UUID_A);
	send_all(&queue);
	l = listing_as(ZKL_MODE_EXCLUSIVE, "", NODE_B, NODE_C);
	l.leaving = 1;
	zkl_queue_listed(&queue, ZKL_RC_OK, 1, &l);
	CHECK_INT(queue.result, ZKL_RESULT_BUSY, "one on its way out hides nobody");
}

/* ------------------------------------------------------------------------
 * Random orders
 * ------------------------------------------------------------------------
 */

#define CLIENTS		3
#define MACHINES	4			/* of each client */
#define NODES		64
#define PACKETS		256
#define LEASES		2

/* What the machines ask for: each a run of its own. */
typedef enum Flavour
{
	MUTEX,
	SHARED,						/* all modes, and downgrades */
	SEMAPHORE
} Flavour;

typedef struct SimNode
{
	bool		exists;
	char		name[ZKL_NODE_SIZE];
	int64_t		czxid;
	int64_t		deleted;		/* zxid, 0 = not */
	int64_t		owner;
	bool		downgraded;		/* may come late, and then is not granted */
	unsigned	watchers;		/* bit per client */
} SimNode;

/* A request on its way there, or a reply or event on its way back: */
typedef enum PacketKind
{
	REQUEST, REPLY, NODE_GONE, NODE_CHANGED, CHILDREN_CHANGED, CONNECTED, DISCONNECTED, EXPIRED
} PacketKind;

typedef struct Packet
{
	PacketKind	kind;
	bool		sequential;
	int			machine;
	uint32_t	serial;
	uint32_t	op;
	uint32_t	connection;
	char		name[ZKL_NODE_SIZE];
	int			rc;
	int64_t		czxid;
	int64_t		owner;
	int64_t		zxid;			/* state that the reply is of */
	ZklListing	listing;
} Packet;

typedef struct Fifo
{
	Packet	   *packets;
	int			head;
	int			count;
} Fifo;

typedef struct SimMachine
{
	ZklQueue	queue;
	uint32_t	serial;
	bool		active;
	bool		quits;			/* lets go as soon as it may */
	ZklQueueState seen;
	bool		was_granted;
} SimMachine;

typedef struct SimClient
{
	bool		up;				/* connected, as the library knows */
	bool		believes;		/* as the main thread knows */
	uint32_t	connection;		/* the main thread's number */
	int64_t		session;
	bool		expired;		/* at the servers, not told yet */
	Fifo		to_server;
	Fifo		from_server;
	SimMachine	machines[MACHINES];
} SimClient;

static struct
{
	uint64_t	rng;
	int64_t		zxid;
	int64_t		next_digits;
	int64_t		next_session;
	uint64_t	next_uuid;
	Flavour		flavour;
	bool		directory;
	int64_t		pzxid;			/* its latest create or delete */
	int64_t		last_token;		/* of an exclusive or write grant */
	int64_t		batched;		/* creates that were answered without a czxid */
	unsigned	child_watchers;
	bool		quiet;			/* no more faults */
	SimNode		nodes[NODES];
	SimClient	clients[CLIENTS];
	int64_t		grants;
	int64_t		faults;
	int64_t		fast_grants;
	int64_t		downgrades;
	int64_t		handovers;		/* within one client */
	int			violations;
	char		first_violation[256];
	int64_t		step;
} sim;

static uint32_t
random_below(uint32_t n)
{
	/* xorshift64* */
	sim.rng ^= sim.rng >> 12;
	sim.rng ^= sim.rng << 25;
	sim.rng ^= sim.rng >> 27;
	return (uint32_t) ((sim.rng * UINT64_C(2685821657736338717)) >> 33) % n;
}

static void
violation(const char *fmt,...)
{
	va_list		args;

	if (sim.violations++ > 0)
		return;
	va_start(args, fmt);
	vsnprintf(sim.first_violation, sizeof(sim.first_violation), fmt, args);
	va_end(args);
}

static Packet *
push(Fifo *fifo)
{
	Packet	   *packet;

	if (fifo->count == PACKETS)
		abort();				/* far more than the machines can have open */
	packet = &fifo->packets[(fifo->head + fifo->count++) % PACKETS];
	memset(packet, 0, sizeof(*packet));
	return packet;
}

static Packet
pop(Fifo *fifo)
{
	Packet		packet = fifo->packets[fifo->head];

	fifo->head = (fifo->head + 1) % PACKETS;
	fifo->count--;
	return packet;
}

static SimNode *
find_node(const char *name)
{
	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && strcmp(sim.nodes[i].name, name) == 0)
			return &sim.nodes[i];
	return NULL;
}

/* Tell those who watch the node, or the directory when node is NULL. */
static void
fire(unsigned *watchers, PacketKind kind, const char *name)
{
	for (int c = 0; c < CLIENTS; c++)
	{
		Packet	   *event;

		if ((*watchers & (1u << c)) == 0)
			continue;
		/* a client that is away gets it from SetWatches when it comes back */
		event = push(&sim.clients[c].from_server);
		event->kind = kind;
		event->zxid = sim.zxid;
		if (name != NULL)
			strcpy(event->name, name);
	}
	*watchers = 0;
}

/* "sequential": the directory's counter is appended, which each create moves. */
static SimNode *
create_node(const char *prefix, bool sequential, int64_t owner)
{
	for (int i = 0; i < NODES; i++)
	{
		SimNode    *node = &sim.nodes[i];

		if (node->exists)
			continue;
		memset(node, 0, sizeof(*node));
		node->exists = true;
		if (sequential)
			snprintf(node->name, sizeof(node->name), "%s%010" PRId64, prefix, sim.next_digits);
		else
			strcpy(node->name, prefix);
		sim.next_digits++;
		node->downgraded = !sequential;
		node->czxid = sim.pzxid = ++sim.zxid;
		node->owner = owner;
		fire(&sim.child_watchers, CHILDREN_CHANGED, NULL);
		return node;
	}
	return NULL;
}

static void
delete_node(SimNode *node)
{
	node->exists = false;
	node->deleted = sim.pzxid = ++sim.zxid;
	fire(&node->watchers, NODE_GONE, node->name);
	fire(&sim.child_watchers, CHILDREN_CHANGED, NULL);
}

/* The server executes one request and answers, or does not. */
static void
execute(int c, Packet *request, bool answer)
{
	SimClient  *client = &sim.clients[c];
	Packet		reply = *request;
	SimNode    *node;

	reply.kind = REPLY;
	reply.rc = ZKL_RC_OK;
	switch (request->op)
	{
		case ZKL_OP_MKDIRS:
			if (!sim.directory)
				sim.next_digits = 0;
			sim.directory = true;
			break;
		case ZKL_OP_CREATE:
			if (request->sequential && random_below(20) == 0)
				reply.rc = ZKL_RC_NOT_EXECUTED;
			else if (!sim.directory)
				reply.rc = ZKL_RC_NONODE;
			else if ((node = create_node(request->name, request->sequential,
										 client->session)) == NULL)
				reply.rc = ZKL_RC_THROTTLED;
			else
			{
				strcpy(reply.name, node->name);
				/* half of them as if they had travelled in a batch */
				reply.czxid = random_below(2) ? node->czxid : 0;
				sim.batched += reply.czxid == 0;
				reply.owner = node->owner;
			}
			break;
		case ZKL_OP_PROBE:
			sim.zxid++;
			break;
		case ZKL_OP_LIST:
			{
				char	   *children[NODES];
				int			n = 0;

				if (!sim.directory)
				{
					reply.rc = ZKL_RC_NONODE;
					break;
				}
				for (int i = 0; i < NODES; i++)
					if (sim.nodes[i].exists)
						children[n++] = sim.nodes[i].name;
				zkl_listing_read(&reply.listing, children, n);
				reply.listing.pzxid = sim.pzxid;
				if (answer && request->listing.mode == ZKL_MODE_PERMIT)
					sim.child_watchers |= 1u << c;
				break;
			}
		case ZKL_OP_OWN:
		case ZKL_OP_PRED:
			node = find_node(request->name);
			if (node == NULL)
				reply.rc = ZKL_RC_NONODE;
			else
			{
				reply.czxid = node->czxid;
				reply.owner = node->owner;
				if (answer)
					node->watchers |= 1u << c;
			}
			break;
		case ZKL_OP_DELETE:
			node = find_node(request->name);
			if (node == NULL)
				reply.rc = ZKL_RC_NONODE;
			else
				delete_node(node);
			break;
	}
	reply.zxid = sim.zxid;
	if (!answer)
		reply.rc = random_below(2) ? ZKL_RC_CONNECTIONLOSS : ZKL_RC_OPERATIONTIMEOUT;
	*push(&client->from_server) = reply;
}

/*
 * The connection breaks: some of the requests under way were executed, none is
 * answered. Then the library says so, and some time later connects again.
 */
static void
break_connection(int c)
{
	SimClient  *client = &sim.clients[c];
	int			executed = client->to_server.count ? (int) random_below(client->to_server.count + 1) : 0;

	sim.faults++;
	for (int i = 0; client->to_server.count > 0; i++)
	{
		Packet		request = pop(&client->to_server);

		if (i < executed && !client->expired)
			execute(c, &request, false);
		else
		{
			request.kind = REPLY;
			request.rc = ZKL_RC_CONNECTIONLOSS;
			*push(&client->from_server) = request;
		}
	}
	client->up = false;
	push(&client->from_server)->kind = DISCONNECTED;
}

static void
reconnect(int c)
{
	SimClient  *client = &sim.clients[c];

	if (client->expired)
	{
		push(&client->from_server)->kind = EXPIRED;
		return;
	}
	client->up = true;
	push(&client->from_server)->kind = CONNECTED;
}

static void
expire(int c)
{
	SimClient  *client = &sim.clients[c];

	if (client->up || client->expired)
		return;
	sim.faults++;
	client->expired = true;
	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && sim.nodes[i].owner == client->session)
			delete_node(&sim.nodes[i]);
	for (int i = 0; i < NODES; i++)
		sim.nodes[i].watchers &= ~(1u << c);
	sim.child_watchers &= ~(1u << c);
}

/* Is the machine's node still there, at the servers? */
static SimNode *
its_node(SimMachine *machine)
{
	return machine->queue.node[0] != '\0' ? find_node(machine->queue.node) : NULL;
}

/* A node of this client whose owner has let go: nobody holds by it any more. */
static bool
is_released(const SimClient *client, const char *node)
{
	for (int m = 0; m < MACHINES; m++)
		if (client->machines[m].active && client->machines[m].queue.abandoned &&
			strcmp(client->machines[m].queue.node, node) == 0)
			return true;
	return false;
}

/*
 * After each event: "zxid" is the state that the event told of.
 */
static void
check_machine(int c, int m, int64_t zxid)
{
	SimClient  *client = &sim.clients[c];
	SimMachine *machine = &client->machines[m];
	ZklQueue   *queue = &machine->queue;
	int			mine = 0;

	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && queue->uuid[0] != '\0' &&
			zkl_node_has_uuid(sim.nodes[i].name, queue->uuid))
			mine++;
	if (mine > 1)
		violation("step %" PRId64 ": %d nodes for one request", sim.step, mine);

	if (queue->state == ZKL_QUEUE_GRANTED && machine->seen != ZKL_QUEUE_GRANTED)
	{
		ZklContender own;

		sim.grants++;
		if (queue->czxid == 0)
			violation("step %" PRId64 ": granted without a token", sim.step);
		if (queue->owner != client->session)
			violation("step %" PRId64 ": granted a node of another session", sim.step);
		if (queue->mode != ZKL_MODE_READ && queue->mode != ZKL_MODE_PERMIT &&
			its_node(machine) != NULL)
		{
			if (queue->czxid <= sim.last_token)
				violation("step %" PRId64 ": token %" PRId64 " after %" PRId64, sim.step,
						  queue->czxid, sim.last_token);
			sim.last_token = queue->czxid;
		}
		zkl_contender_parse(queue->node, &own);
		for (int i = 0; i < NODES; i++)
		{
			ZklContender other;

			if (strcmp(sim.nodes[i].name, queue->node) == 0)
			{
				if (!sim.nodes[i].exists && sim.nodes[i].deleted <= zxid)
					violation("step %" PRId64 ": granted a node known to be deleted", sim.step);
				continue;
			}
			if (sim.flavour != SEMAPHORE &&
				sim.nodes[i].exists && !sim.nodes[i].downgraded &&
				!is_released(client, sim.nodes[i].name) && zkl_contender_parse(sim.nodes[i].name, &other) &&
				zkl_mode_conflicts(queue->mode, other.kind) &&
				other.digits < own.digits && its_node(machine) != NULL)
				violation("step %" PRId64 ": granted %s behind %s", sim.step, queue->node,
						  sim.nodes[i].name);
		}
	}
	if (queue->state == ZKL_QUEUE_GRANTED && machine->seen != ZKL_QUEUE_GRANTED &&
		queue->beside[0] != '\0')
		sim.downgrades++;
	machine->seen = queue->state;

	if (queue->state == ZKL_QUEUE_ENDED)
	{
		if (mine > 0)
			violation("step %" PRId64 ": ended with a node left", sim.step);
		machine->active = false;
	}
	if (queue->state == ZKL_QUEUE_ENDED || queue->uuid[0] == '\0')
		machine->serial++;
}

static bool
may_hold_together(const ZklQueue *a, const ZklQueue *b)
{
	return (a->mode == ZKL_MODE_READ && b->mode == ZKL_MODE_READ) ||
		strcmp(a->beside, b->node) == 0 || strcmp(b->beside, a->node) == 0;
}

static void
check_exclusion(void)
{
	ZklQueue   *holders[CLIENTS * MACHINES];
	int			n = 0;

	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
		{
			SimMachine *machine = &sim.clients[c].machines[m];

			if (machine->active && machine->queue.state == ZKL_QUEUE_GRANTED &&
				its_node(machine) != NULL)
				holders[n++] = &machine->queue;
		}
	if (sim.flavour == SEMAPHORE)
	{
		if (n > LEASES)
			violation("step %" PRId64 ": %d leases with nodes", sim.step, n);
		return;
	}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < i; j++)
			if (!may_hold_together(holders[i], holders[j]))
				violation("step %" PRId64 ": %s and %s hold together", sim.step,
						  holders[i]->node, holders[j]->node);
}

static void
send_wanted(int c)
{
	SimClient  *client = &sim.clients[c];

	if (!client->believes || !client->up)
		return;
	for (int m = 0; m < MACHINES; m++)
	{
		SimMachine *machine = &client->machines[m];
		ZklQueue   *queue = &machine->queue;
		uint32_t	wanted;

		if (!machine->active || random_below(2) == 0)
			continue;
		wanted = zkl_queue_wanted(queue);
		for (uint32_t bit = 1; bit <= ZKL_OP_LAST; bit <<= 1)
		{
			Packet	   *packet;

			if ((wanted & bit) == 0)
				continue;
			if (bit == ZKL_OP_CREATE && queue->uuid[0] == '\0')
				snprintf(queue->uuid, sizeof(queue->uuid), "%08x-0000-4000-8000-%012x",
						 random_below(INT32_MAX), (unsigned) ++sim.next_uuid);
			packet = push(&client->to_server);
			packet->kind = REQUEST;
			packet->machine = m;
			packet->serial = machine->serial;
			packet->op = bit;
			packet->connection = client->connection;
			if (bit == ZKL_OP_CREATE)
			{
				zkl_node_prefix(packet->name, queue->uuid, queue->mode);
				strcat(packet->name, zkl_node_digits(queue->beside));
				packet->sequential = queue->beside[0] == '\0';
			}
			else if (bit == ZKL_OP_PRED)
				strcpy(packet->name, queue->pred);
			else
				strcpy(packet->name, queue->node);
			strcpy(packet->listing.uuid, queue->uuid);
			packet->listing.mode = queue->mode;
			strcpy(packet->listing.beside, queue->beside);
			zkl_queue_sent(queue, bit);
		}
	}
}

static void
deliver_reply(SimClient *client, Packet *packet)
{
	SimMachine *machine = &client->machines[packet->machine];
	ZklQueue   *queue = &machine->queue;
	bool		was_waiting = queue->state == ZKL_QUEUE_QUEUED;

	if (!machine->active || packet->serial != machine->serial)
		return;
	switch (packet->op)
	{
		case ZKL_OP_MKDIRS:
			zkl_queue_made_dirs(queue, packet->rc);
			break;
		case ZKL_OP_CREATE:
			if (packet->rc == ZKL_RC_NOT_EXECUTED)
				zkl_queue_not_executed(queue, packet->op);
			else
				zkl_queue_created(queue, packet->rc, packet->name, packet->czxid,
								  packet->owner);
			break;
		case ZKL_OP_PROBE:
			zkl_queue_probed(queue, packet->rc, packet->connection);
			break;
		case ZKL_OP_LIST:
			zkl_queue_listed(queue, packet->rc, packet->connection, &packet->listing);
			break;
		case ZKL_OP_OWN:
			zkl_queue_own(queue, packet->rc, packet->connection, packet->czxid, packet->owner);
			break;
		case ZKL_OP_PRED:
			zkl_queue_pred(queue, packet->rc, packet->connection);
			break;
		case ZKL_OP_DELETE:
			zkl_queue_deleted(queue, packet->rc);
			break;
	}
	if (was_waiting && queue->state == ZKL_QUEUE_GRANTED && packet->op == ZKL_OP_PRED)
		sim.fast_grants++;
}

static void
deliver(int c)
{
	SimClient  *client = &sim.clients[c];
	Packet		packet = pop(&client->from_server);

	switch (packet.kind)
	{
		case REPLY:
			deliver_reply(client, &packet);
			break;
		case CONNECTED:
			client->believes = true;
			client->connection++;
			break;
		case DISCONNECTED:
			client->believes = false;
			break;
		case EXPIRED:
			client->believes = client->expired = false;
			client->session = ++sim.next_session;
			break;
		default:
			break;
	}
	for (int m = 0; m < MACHINES; m++)
	{
		SimMachine *machine = &client->machines[m];

		if (!machine->active)
			continue;
		switch (packet.kind)
		{
			case NODE_GONE:
				if (strcmp(packet.name, machine->queue.node) == 0)
					zkl_queue_own_gone(&machine->queue);
				else if (machine->queue.state == ZKL_QUEUE_QUEUED &&
						 strcmp(packet.name, machine->queue.pred) == 0)
				{
					zkl_queue_pred_gone(&machine->queue);
					if (machine->queue.state == ZKL_QUEUE_GRANTED)
						sim.fast_grants++;
				}
				break;
			case NODE_CHANGED:
				if (strcmp(packet.name, machine->queue.node) == 0)
					zkl_queue_own_changed(&machine->queue);
				else if (strcmp(packet.name, machine->queue.pred) == 0)
					zkl_queue_pred_changed(&machine->queue);
				break;
			case CHILDREN_CHANGED:
				zkl_queue_children_changed(&machine->queue);
				break;
			case CONNECTED:
				zkl_queue_connected(&machine->queue, client->connection, client->session);
				break;
			case DISCONNECTED:
				zkl_queue_disconnected(&machine->queue);
				break;
			case EXPIRED:
				machine->serial++;
				zkl_queue_session_gone(&machine->queue);
				break;
			default:
				break;
		}
		check_machine(c, m, packet.zxid);
	}
}

/* The write hold of this client that a downgrade could start from, or NULL. */
static SimMachine *
find_writer(SimClient *client)
{
	for (int m = 0; m < MACHINES; m++)
		if (client->machines[m].active &&
			client->machines[m].queue.mode == ZKL_MODE_WRITE &&
			client->machines[m].queue.state == ZKL_QUEUE_GRANTED)
			return &client->machines[m];
	return NULL;
}

/* Does anybody queue? At a semaphore a mutex lets in one at a time; a try needs none. */
static bool
somebody_waits(void)
{
	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
			if (sim.clients[c].machines[m].active && !sim.clients[c].machines[m].queue.try &&
				sim.clients[c].machines[m].queue.state != ZKL_QUEUE_GRANTED)
				return true;
	return false;
}

static void
begin_request(SimClient *client, SimMachine *machine)
{
	SimMachine *writer = find_writer(client);
	ZklMode		mode = sim.flavour == SEMAPHORE ? ZKL_MODE_PERMIT :
		sim.flavour == MUTEX ? ZKL_MODE_EXCLUSIVE : (ZklMode) random_below(3);
	bool		downgrade = sim.flavour == SHARED && writer != NULL && random_below(2) == 0;
	bool		try = !downgrade &&
		(random_below(4) == 0 || (sim.flavour == SEMAPHORE && somebody_waits()));

	machine->active = true;
	machine->serial++;
	machine->seen = ZKL_QUEUE_NEW;
	zkl_queue_init(&machine->queue, downgrade ? ZKL_MODE_READ : mode, try);
	zkl_queue_set_permits(&machine->queue, LEASES);
	if (downgrade)
		zkl_queue_set_beside(&machine->queue, writer->queue.node);
}

/* Who gives a write hold up while it is being downgraded gives both up. */
static void
abandon(SimClient *client, SimMachine *machine)
{
	for (int m = 0; m < MACHINES; m++)
	{
		ZklQueue   *other = &client->machines[m].queue;

		if (client->machines[m].active && !other->abandoned && machine->queue.node[0] != '\0' &&
			strcmp(other->beside, machine->queue.node) == 0 &&
			other->state != ZKL_QUEUE_GRANTED)
			zkl_queue_abandon(other);
	}
	if (machine->queue.state == ZKL_QUEUE_GRANTED)
	{
		char		node[ZKL_OWN_NODE_SIZE];

		strcpy(node, machine->queue.node);
		zkl_queue_abandon(&machine->queue);
		for (int m = 0; m < MACHINES; m++)
		{
			ZklQueue   *next = &client->machines[m].queue;
			ZklQueueState before = next->state;

			if (!client->machines[m].active || next == &machine->queue)
				continue;
			zkl_queue_pred_released(next, node);
			sim.handovers += next->state == ZKL_QUEUE_GRANTED && before == ZKL_QUEUE_QUEUED;
		}
	}
	else
		zkl_queue_abandon(&machine->queue);
}

/* What a backend does: ask, let go, give up. */
static void
owner_step(int c)
{
	SimClient  *client = &sim.clients[c];
	int			m = (int) random_below(MACHINES);
	SimMachine *machine = &client->machines[m];

	if (!machine->active)
	{
		if (sim.quiet)
			return;
		begin_request(client, machine);
		if (client->believes)
			zkl_queue_connected(&machine->queue, client->connection, client->session);
	}
	else if (sim.flavour == SHARED && !sim.quiet && machine->queue.mode == ZKL_MODE_WRITE &&
			 machine->queue.state == ZKL_QUEUE_GRANTED && random_below(4) > 0)
		return;					/* it stays, to be downgraded */
	else if (machine->queue.result != ZKL_RESULT_NONE ||
			 machine->queue.state == ZKL_QUEUE_GRANTED || random_below(20) == 0)
	{
		if (!machine->queue.abandoned)
			abandon(client, machine);
	}
	for (m = 0; m < MACHINES; m++)
		if (client->machines[m].active)
			check_machine(c, m, 0);
}

static void
fault_step(void)
{
	int			c = (int) random_below(CLIENTS);
	int			i = (int) random_below(NODES);

	for (int n = 0; n < NODES && !sim.nodes[i].exists; n++)
		i = (i + 1) % NODES;
	switch (random_below(7))
	{
		case 0:
		case 1:
			if (sim.clients[c].up)
				break_connection(c);
			break;
		case 2:
			expire(c);
			break;
		case 3:
			/* somebody deletes a node */
			if (sim.nodes[i].exists)
			{
				sim.faults++;
				delete_node(&sim.nodes[i]);
			}
			break;
		case 4:
			/* a foreign contender comes */
			if (sim.directory)
				(void) create_node(sim.flavour == SHARED && random_below(2) ?
								   "feedfacefeedface__rlock__" : "feedfacefeedface__lock__",
								   true, -1);
			break;
		case 6:
			/* somebody writes into a node */
			if (sim.nodes[i].exists)
			{
				sim.zxid++;
				fire(&sim.nodes[i].watchers, NODE_CHANGED, sim.nodes[i].name);
			}
			break;
		case 5:
			/* the reaper */
			for (i = 0; i < NODES; i++)
				if (sim.nodes[i].exists)
					return;
			sim.directory = false;
			break;
	}
}

static void
sim_step(void)
{
	int			c = (int) random_below(CLIENTS);
	SimClient  *client = &sim.clients[c];

	sim.step++;
	switch (random_below(10))
	{
		case 0:
			owner_step(c);
			break;
		case 1:
		case 2:
		case 3:
			send_wanted(c);
			break;
		case 4:
		case 5:
		case 6:
			if (client->up && client->to_server.count > 0)
			{
				Packet		request = pop(&client->to_server);

				execute(c, &request, true);
			}
			break;
		case 7:
		case 8:
			if (client->from_server.count > 0)
				deliver(c);
			break;
		case 9:
			if (!client->up && client->from_server.count == 0)
				reconnect(c);
			else if (!sim.quiet && random_below(2) == 0)
				fault_step();
			else if (random_below(50) == 0)
				for (int m = 0; m < MACHINES; m++)
					if (client->machines[m].active)
					{
						zkl_queue_tick(&client->machines[m].queue, random_below(2));
						check_machine(c, m, 0);
					}
			break;
	}
	/* foreign contenders do not stay for ever */
	if (random_below(40) == 0)
		for (int i = 0; i < NODES; i++)
			if (sim.nodes[i].exists && sim.nodes[i].owner == -1)
			{
				delete_node(&sim.nodes[i]);
				break;
			}
	check_exclusion();
}

static int
count_left(void)
{
	int			left = 0;

	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
			left += sim.clients[c].machines[m].active;
	for (int i = 0; i < NODES; i++)
		left += sim.nodes[i].exists;
	return left;
}

static void
test_random_orders(Flavour flavour, int64_t steps, uint64_t seed)
{
	static const char *const names[] = {"mutex", "shared", "semaphore"};
	int			unfinished = 0;

	memset(&sim, 0, sizeof(sim));
	sim.flavour = flavour;
	sim.rng = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
	for (int c = 0; c < CLIENTS; c++)
	{
		sim.clients[c].session = ++sim.next_session;
		sim.clients[c].to_server.packets = calloc(PACKETS, sizeof(Packet));
		sim.clients[c].from_server.packets = calloc(PACKETS, sizeof(Packet));
	}

	while (sim.step < steps && sim.violations == 0)
	{
		/* storms with calm between them, in which everything has to end */
		sim.quiet = false;
		for (int i = 0; i < 2000 && sim.violations == 0; i++)
			sim_step();
		sim.quiet = true;
		for (int i = 0; i < 200000 && sim.violations == 0 && count_left() > 0; i++)
			sim_step();
		if (count_left() > 0)
			unfinished++;
	}

	CHECK(sim.violations == 0, "%s: random_orders_break_no_invariant", names[flavour]);
	if (sim.violations > 0)
		printf("# seed %" PRIu64 ": %s\n", seed, sim.first_violation);
	CHECK(unfinished == 0, "%s: after_the_storm_every_request_ends_and_no_node_is_left",
		  names[flavour]);
	CHECK(sim.grants > steps / 10000 && sim.faults > steps / 1000 &&
		  (flavour != MUTEX || (sim.fast_grants > 0 && sim.handovers > 0)) && (flavour != SHARED || sim.downgrades > 0),
		  "%s: the_random_orders_were_worth_it", names[flavour]);
	printf("# %s, seed %" PRIu64 ": %" PRId64 " steps, %" PRId64 " grants (%" PRId64
		   " without a listing, %" PRId64 " handed over, %" PRId64 " downgrades), %" PRId64 " creates without a czxid, %"
		   PRId64 " faults\n", names[flavour], seed, sim.step, sim.grants, sim.fast_grants,
		   sim.handovers, sim.downgrades, sim.batched, sim.faults);
	for (int c = 0; c < CLIENTS; c++)
	{
		free(sim.clients[c].to_server.packets);
		free(sim.clients[c].from_server.packets);
	}
}

int
main(void)
{
	const char *steps = getenv("QUEUE_STEPS");
	const char *seed = getenv("QUEUE_SEED");

	test_listing();
	test_uncontended();
	test_parents();
	test_try();
	test_lost_reply();
	test_predecessor();
	test_loss();
	test_cancel();
	test_shared();
	test_leases();
	test_leaving();
	for (Flavour flavour = MUTEX; flavour <= SEMAPHORE; flavour++)
		test_random_orders(flavour, steps ? atoll(steps) : 1000000,
						   seed ? (uint64_t) atoll(seed) : 1);
	return check_done();
}
