/*-------------------------------------------------------------------------
 *
 * test_queue.c
 *	  The queue machine: named orders of events, then random ones.
 *
 * The named orders come first. Then the machines are tried on random ones, in the
 * simulator of sim_queue.h. Environment: QUEUE_STEPS, QUEUE_SEED.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"
#include "sim_queue.h"
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

	/*
	 * the predecessor's watch can be another request's: its event may come
	 * before our own node was seen
	 */
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

	/*
	 * created in a batch: the token comes with the listing, or with the own
	 * node
	 */
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

	/*
	 * where the counter does not tell the order any more, all count, as for
	 * Curator
	 */
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

static void
test_random_orders(Flavour flavour, int64_t steps, uint64_t seed)
{
	static const char *const names[] = {"mutex", "shared", "semaphore"};
	SimResult	r = sim_queue_run(flavour, steps, seed);

	CHECK(r.violations == 0, "%s: random_orders_break_no_invariant", names[flavour]);
	if (r.violations > 0)
		printf("# seed %" PRIu64 ": %s\n", seed, r.first_violation);
	CHECK(r.unfinished == 0, "%s: after_the_storm_every_request_ends_and_no_node_is_left",
		  names[flavour]);
	CHECK(r.grants > steps / 10000 && r.faults > steps / 1000 &&
		  (flavour != MUTEX || (r.fast_grants > 0 && r.handovers > 0)) && (flavour != SHARED || r.downgrades > 0),
		  "%s: the_random_orders_were_worth_it", names[flavour]);
	printf("# %s, seed %" PRIu64 ": %" PRId64 " steps, %" PRId64 " grants (%" PRId64
		   " without a listing, %" PRId64 " handed over, %" PRId64 " downgrades), %" PRId64 " creates without a czxid, %"
		   PRId64 " faults\n", names[flavour], seed, r.steps, r.grants, r.fast_grants,
		   r.handovers, r.downgrades, r.batched, r.faults);
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
