/*-------------------------------------------------------------------------
 *
 * suspects.c
 *	  Creates that may come late, and directories that nobody will use.
 *
 * internal.h (Suspect) says why they have to be looked after.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "zookeeper/internal.h"

/* So long may an old packet live. */
#define SUSPECT_PERIOD		ZKL_MS(60000)
#define SUSPECTS_PER_TICK	500

static void send_sweep(Zk *zk, int i, ZklTime now);
static void on_sweep(Zk *zk, ZklOp *op, ZklTime now);
static void on_list(Zk *zk, ZklOp *op, ZklTime now);

/* Take over what an earlier worker left. */
void
zk_suspects_init(Zk *zk)
{
	for (int i = 0; i < zk->max_suspects; i++)
		zk->nsuspects += zk->suspects[i].name[0] != '\0';
	if (zk->session == 0)
		zk_suspects_forget_creates(zk);
}

/* Look out for a node of this request, or, with uuid "", after the lock's directory. The
 * oldest suspect makes room. */
void
zk_suspect_add(Zk *zk, const char *name, const char *uuid)
{
	int			n = zk->max_suspects;
	Suspect    *suspect;

	for (int tried = 0; tried < n && zk->suspects[zk->next_suspect].name[0] != '\0'; tried++)
		zk->next_suspect = (zk->next_suspect + 1) % n;
	suspect = &zk->suspects[zk->next_suspect];
	zk->next_suspect = (zk->next_suspect + 1) % n;
	if (suspect->name[0] != '\0')
		zk->suspects_dropped++;
	else
		zk->nsuspects++;
	suspect->serial++;
	suspect->until = zkl_now() + SUSPECT_PERIOD;
	snprintf(suspect->uuid, sizeof(suspect->uuid), "%s", uuid);
	snprintf(suspect->name, sizeof(suspect->name), "%s", name);
	if (uuid[0] != '\0')
		zk_debug(zk, "zklock: looking out for a late node of request %s, lock \"%s\"", uuid, name);
}

static void
drop_suspect(Zk *zk, Suspect *suspect)
{
	assert(zk->nsuspects > 0);
	suspect->name[0] = '\0';
	suspect->serial++;
	zk->nsuspects--;
}

/* No late create of a ZooKeeper session that is over can come; directories stay. */
void
zk_suspects_forget_creates(Zk *zk)
{
	for (int i = 0; i < zk->max_suspects; i++)
		if (zk->suspects[i].name[0] != '\0' && zk->suspects[i].uuid[0] != '\0')
			drop_suspect(zk, &zk->suspects[i]);
}

/* How many suspects have this node? */
int
zk_suspects_leaving(const Zk *zk, const char *node)
{
	int			n = 0;

	for (int i = 0; i < zk->max_suspects && zk->nsuspects > 0; i++)
		if (zk->suspects[i].name[0] != '\0' && zkl_node_has_uuid(node, zk->suspects[i].uuid))
			n++;
	return n;
}

/* Look for creates that came late, and at directories that may never have had a node. */
void
zk_suspects_send(Zk *zk, ZklTime now)
{
	int			n = zk->max_suspects;
	int			sent = 0;

	if (!zk_is_ready(zk))
		return;
	for (int tried = 0; tried < n && zk->nsuspects > 0; tried++)
	{
		int			i = zk->suspect_cursor;
		Suspect    *suspect = &zk->suspects[i];
		char		directory[ZKL_PATH_SIZE];
		ZklOp	   *op;

		if (sent >= SUSPECTS_PER_TICK || zk->in_flight >= MAX_IN_FLIGHT)
			return;
		zk->suspect_cursor = (i + 1) % n;
		if (suspect->name[0] == '\0')
			continue;
		sent++;
		if (suspect->uuid[0] == '\0')
		{
			send_sweep(zk, i, now);
			continue;
		}
		if (now > suspect->until)
		{
			drop_suspect(zk, suspect);
			continue;
		}
		zkl_dir_path(directory, zk->target.root, suspect->name);
		op = zk_op(zk, on_list, -1, now);
		op->serial = suspect->serial;
		op->place = i;
		memcpy(op->listing.uuid, suspect->uuid, sizeof(op->listing.uuid));
		(void) zk_sent(zk, zkl_send_list(op, directory, false), now);
	}
}

/* Has a lost create come after all? Then its node goes. */
static void
on_list(Zk *zk, ZklOp *op, ZklTime now)
{
	Suspect    *suspect = &zk->suspects[op->place];
	char		path[ZKL_PATH_SIZE];

	if (op->serial != suspect->serial || op->rc != ZKL_RC_OK || !op->listing.own_found ||
		zk->link != LINK_CONNECTED)
		return;
	zk_log(zk, NULL, "zklock: deleting node \"%s\" of lock \"%s\", whose creation came late",
		   op->listing.own, suspect->name);
	zkl_node_path(path, zk->target.root, suspect->name, op->listing.own);
	(void) zk_sent(zk, zkl_send_delete(zk_op(zk, NULL, -1, now), path), now);
}

/* Remove a lock's directory and its parents, as far as nothing is in them. */
static void
send_sweep(Zk *zk, int i, ZklTime now)
{
	Suspect    *suspect = &zk->suspects[i];
	char		path[ZKL_PATH_SIZE];
	size_t		root_len = strlen(zk->target.root);

	zkl_dir_path(path, zk->target.root, suspect->name);
	while (strlen(path) > root_len + 1)
	{
		ZklOp	   *op = zk_op(zk, NULL, -1, now);
		char	   *slash = strrchr(path, '/');

		if ((size_t) (slash - path) <= root_len)
		{
			/* the last of them: its reply says that all have been executed */
			op->replied = on_sweep;
			op->serial = suspect->serial;
			op->place = i;
		}
		(void) zk_sent(zk, zkl_send_delete(op, path), now);
		*slash = '\0';
	}
}

static void
on_sweep(Zk *zk, ZklOp *op, ZklTime now)
{
	Suspect    *suspect = &zk->suspects[op->place];

	(void) now;
	if (op->serial == suspect->serial && suspect->name[0] != '\0' && !zk_is_lost_reply(op))
		drop_suspect(zk, suspect);
}
