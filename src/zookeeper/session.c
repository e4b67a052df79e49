/*-------------------------------------------------------------------------
 *
 * session.c
 *	  One ZooKeeper session: getting there, keeping it, and its end.
 *
 * The session is kept by heartbeats, which are writes to a node of our own, the member
 * node, and lease.h says what each of them proves. It is not ours to leave: a new worker
 * finds it in the survivor and goes on with it. It ends when the ensemble says so, or
 * when we have a reason (a restored backup, another chroot, writes that are never
 * acknowledged); then the worker is asked first, see ZKL_EVENT_ENDING.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "zookeeper/internal.h"

static void on_root(Zk *zk, ZklOp *op, ZklTime now);
static void on_member(Zk *zk, ZklOp *op, ZklTime now);
static void on_heartbeat(Zk *zk, ZklOp *op, ZklTime now);
static void watch_for_black_hole(Zk *zk, ZklTime now);
static void close_gap(Zk *zk, ZklTime now);
static void look_up_hosts(Zk *zk, ZklTime now);
static void look_at_sockets(Zk *zk, ZklTime now);
static void open_client(Zk *zk, ZklTime now);
static void replace_client(Zk *zk, ZklTime now);
static void leave(Zk *zk);

/* T, or what will be asked for. */
ZklTime
zk_patience(const Zk *zk)
{
	return zk->lease.timeout != 0 ? zk->lease.timeout : zk->target.session_timeout;
}

/* The chroot at the end of zklock.hosts, "" when there is none. */
const char *
zk_chroot_of(const char *hosts)
{
	const char *slash = strchr(hosts, '/');

	return slash != NULL ? slash : "";
}

static void
use_chroot_of_hosts(Zk *zk)
{
	snprintf(zk->chroot, sizeof(zk->chroot), "%s", zk_chroot_of(zk->target.hosts));
}

static void
name_member(Zk *zk)
{
	snprintf(zk->member_path, sizeof(zk->member_path), "%s/.zklock/%s-%016" PRIx64 "",
			 zk->target.root, zk->target.server_name, zk->session);
}

/*
 * Take over the session of an earlier worker, if it was of this incarnation; "*goes_on"
 * says whether it was.
 */
void
zk_session_attach(Zk *zk, ZklTime now, bool *goes_on)
{
	Survivor   *survivor = zk->survivor;

	*goes_on = survivor->session != 0 && survivor->incarnation == zk->target.incarnation;
	zk->answered_at = zk->written_at = now;
	use_chroot_of_hosts(zk);
	if (!*goes_on)
		return;
	zk->session = survivor->session;
	zkl_lease_start(&zk->lease, survivor->timeout, zk->target.tick);
	zk->lease.deadline = zk->target.deadline;
	zk->member_known = true;
	name_member(zk);

	/*
	 * a reload that came while no worker was there, or that one did not
	 * finish
	 */
	if (strcmp(survivor->chroot, zk->chroot) != 0)
	{
		memcpy(zk->chroot, survivor->chroot, sizeof(zk->chroot));
		zk->chroot_changed = true;
	}
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
advance_client(Zk *zk, ZklTime now)
{
	ZklTime		silent = now - Max(zk->answered_at, zk->opened_at);
	char		detail[128];

	look_up_hosts(zk, now);
	if (zk->link == LINK_NONE)
	{
		if (zk->addresses != NULL && now >= zk->retry_at)
			open_client(zk, now);
		return;
	}
	if (zk->link != LINK_CONNECTED)
		look_at_sockets(zk, now);

	if (zk->session != 0 && zk->handshakes >= 2 &&
		now - Max(zk->written_at, zk->first_handshake) >= 2 * zk_patience(zk) &&
		now - zk->handshake_at < zk_patience(zk))
		zk_session_part(zk, "ZooKeeper lets us connect, but has not acknowledged a write for twice the session timeout.");
	else if (silent >= (zk->has_connected ? 1 : 6) * zk_patience(zk))
	{
		snprintf(detail, sizeof(detail), "It offers ZooKeeper session 0x%" PRIx64 " again.",
				 zk->session);
		if (!zk->fresh_logged)
			zk_log(zk, zk->session != 0 ? detail : NULL,
				   "zklock: no answer from ZooKeeper for %ld ms, beginning with a fresh handle of the client library",
				   (long) ((now - zk->answered_at) / 1000));
		zk->fresh_logged = true;
		replace_client(zk, now);
	}
	else if (zk->link != LINK_CONNECTED && strcmp(zk->client_addresses, zk->addresses) != 0)
		replace_client(zk, now);
}

/* What is due for the connection; called all the time. */
void
zk_connection_advance(Zk *zk, ZklTime now)
{
	if (zk->link == LINK_LEAVING)
		leave(zk);
	if (zk->chroot_changed)
		zk_session_chroot_changed(zk);
	advance_client(zk, now);
	watch_for_black_hole(zk, now);
	close_gap(zk, now);
}

/* ------------------------------------------------------------------------
 * The survivor
 * ------------------------------------------------------------------------
 */

/* Write down what the next worker needs; session 0: there is nothing to go on with. */
static void
remember_session(Zk *zk, int64_t session)
{
	Survivor   *survivor = zk->survivor;

	/*
	 * The id is 0 while password and timeout change. A worker that died in
	 * between would otherwise offer the session with a wrong password and
	 * lose the locks.
	 */
	survivor->session = 0;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	if (session == 0)
		return;
	zkl_client_password(zk->client, survivor->password);
	survivor->timeout = zk->lease.timeout;
	survivor->incarnation = zk->target.incarnation;
	survivor->member_version = -1;
	memcpy(survivor->chroot, zk->chroot, sizeof(survivor->chroot));
	__atomic_thread_fence(__ATOMIC_RELEASE);
	survivor->session = session;
}

/* ------------------------------------------------------------------------
 * The client, and giving it up
 * ------------------------------------------------------------------------
 */

/* The client is no more, and what was asked of it. */
static void
forget_client(Zk *zk)
{
	zk->client = NULL;
	zk->link = LINK_NONE;
	zk->server[0] = '\0';
	zk->in_flight = zk->ncreate_batches = 0;
	zk_questions_client_gone(zk);
}

/* End the ZooKeeper session, if connected, without waiting for that. */
static void
close_client(Zk *zk)
{
	if (zk->client == NULL)
		return;
	zkl_client_close_later(zk->client);
	forget_client(zk);
}

/*
 * Give the library's handle up, and not the ZooKeeper session. What it had not answered
 * is lost, as by a break of the connection.
 */
static void
lose_client(Zk *zk)
{
	ZklClient  *client = zk->client;
	ZklOp	   *op;

	if (client == NULL)
		return;
	if (!zkl_client_drop(client))
		zk_fail(zk->target.host, "the ZooKeeper client library does not let go of its connection");
	while ((op = zkl_client_next(client)) != NULL)
	{
		/* what it has to say of the session the next one will say again */
		if (op->kind != ZKL_KIND_SESSION)
			zk_handle(zk, op);
		zkl_op_free(op);
	}
	zkl_client_free(client);
	forget_client(zk);
}

/*
 * One line of the credentials file, "user:password". Returns false, with the
 * trouble written down, when there should be one and it cannot be had.
 */
static bool
read_credentials(Zk *zk, char line[256])
{
	const char *path = zk->target.credentials_file;
	FILE	   *file;
	struct stat status;
	const char *wrong = NULL;
	char		text[ZKL_TROUBLE_SIZE];

	line[0] = '\0';
	if (path[0] == '\0')
		return true;
	file = fopen(path, "re");
	if (file == NULL)
		wrong = "could not be opened";
	else
	{
		if (fstat(fileno(file), &status) != 0 || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
			wrong = "is accessible by others; its permissions should be 0600 or less";
		else if (fgets(line, 256, file) == NULL || strchr(line, ':') == NULL)
			wrong = "does not hold a line of the form user:password";
		fclose(file);
	}
	if (wrong != NULL)
	{
		snprintf(text, sizeof(text), "zklock.credentials_file %s", wrong);
		zk_trouble(zk, text);
		zk_log(zk, NULL, "zklock: zklock.credentials_file \"%s\" %s", path, wrong);
		return false;
	}
	line[strcspn(line, "\r\n")] = '\0';
	return true;
}

static void
open_client(Zk *zk, ZklTime now)
{
	Survivor   *survivor = zk->survivor;
	char		credentials[256];
	char	   *hosts;

	assert(zk->link == LINK_NONE && zk->addresses != NULL);
	zk->retry_at = now + RETRY_PERIOD;
	if (!read_credentials(zk, credentials))
		return;
	hosts = zk_alloc(zk, strlen(zk->addresses) + strlen(zk->chroot) + 1);
	sprintf(hosts, "%s%s", zk->addresses, zk->chroot);
	zk->client = zkl_client_open(hosts, (int) (zk->target.session_timeout / 1000),
								 survivor->session, survivor->password);
	if (zk->client == NULL)
	{
		zk_log(zk, NULL, "zklock: could not start the ZooKeeper client library: %m");
		zk_trouble(zk, "the ZooKeeper client library could not be started");
	}
	else
	{
		zk->link = survivor->session != 0 && survivor->incarnation != zk->target.incarnation ?
			LINK_CLEARING : LINK_CONNECTING;
		if (credentials[0] != '\0')
			(void) zk_sent(zk, zkl_client_add_digest(zk->client, credentials), now);
	}
	explicit_bzero(credentials, sizeof(credentials));
	free(hosts);
	zk->handshake_bound = zk->last_look = now;
	zk->nlooked = 0;
	zk->opened_at = now;
	zk->disconnected_at = now;
	zk->last_kick = now;
	zk->has_connected = false;
	free(zk->client_addresses);
	zk->client_addresses = strdup(zk->addresses);
	if (zk->client_addresses == NULL)
		zk_fail(zk->target.host, "out of memory");
}

/* ------------------------------------------------------------------------
 * The session's end
 * ------------------------------------------------------------------------
 */

/*
 * The ZooKeeper session is over: first the worker hears it, so that nobody believes
 * any more, then each slot, then start anew. "close": it is we who end it. If that
 * cannot be said now, the next connection does.
 */
void
zk_session_end(Zk *zk, const char *why, bool close)
{
	ZklEvent   *event = zk_event(zk, ZKL_EVENT_ENDED);

	event->session = zk->session;
	snprintf(event->text, sizeof(event->text), "%s", why);

	zkl_lease_end(&zk->lease);

	/*
	 * what we end has to be closed, if not by this handle then by the next
	 * worker
	 */
	zk->goodbye = close && zk->link == LINK_CONNECTED;
	if (close)
		zk->survivor->incarnation = 0;
	else
		remember_session(zk, 0);
	zk->session = 0;
	zk->parting[0] = '\0';
	zk_suspects_forget_creates(zk);
	memset(zk->known_dirs, 0, sizeof(zk->known_dirs));
	zk->member_known = false;
	zk->zxid = 0;
	zk->held_back_sent = 0;

	zk_contenders_session_gone(zk);
	if (zk->client != NULL)
		zk->link = LINK_LEAVING;
	use_chroot_of_hosts(zk);
	zk_trouble(zk, why);
	zk->retry_at = zkl_now();
}

/* The worker has heard that the session is over: now its handle may go. */
static void
leave(Zk *zk)
{
	if (zk->goodbye)
	{
		close_client(zk);
		remember_session(zk, 0);
	}
	else
		lose_client(zk);
}

/*
 * The ZooKeeper session has to go, for a reason of ours. The worker takes all that is
 * granted for lost from now on, and calls end() when no commit is past its check. What
 * waits goes back to its beginning, and begins with the next session.
 */
void
zk_session_part(Zk *zk, const char *why)
{
	if (zk->parting[0] != '\0')
		return;
	snprintf(zk->parting, sizeof(zk->parting), "%s", why);
	snprintf(zk_event(zk, ZKL_EVENT_ENDING)->text, ZKL_TROUBLE_SIZE, "%s", why);
	zk_contenders_parting(zk);
}

/*
 * Another tree: our nodes are not there, and here nobody would delete them as long as
 * the ZooKeeper session lives.
 */
void
zk_session_chroot_changed(Zk *zk)
{
	zk->chroot_changed = false;
	if (zk->session != 0)
		zk_session_part(zk, "zklock.hosts has another chroot.");
	else
	{
		lose_client(zk);
		use_chroot_of_hosts(zk);
	}
}

/* ------------------------------------------------------------------------
 * Connections that come and go
 * ------------------------------------------------------------------------
 */

/*
 * Look whether the handshake of the next connection can have been sent: not as long as
 * there is no connection to send it over, or only one that was there before and broke.
 * A connection that is new was not there at the look before, so neither was its
 * handshake.
 */
static void
look_at_sockets(Zk *zk, ZklTime now)
{
	uint64_t	open[LOOK_MAX];
	int			n = zkl_client_open_sockets(zk->client, open, LOOK_MAX);
	bool		fresh = false;

	if (n == LOOK_MAX)
		return;					/* cannot tell: the bound stays where it was */
	for (int i = 0; i < n && !fresh; i++)
	{
		fresh = true;
		for (int j = 0; j < zk->nlooked && fresh; j++)
			fresh = open[i] != zk->looked[j];
	}
	if (n == 0)
		zk->handshake_bound = now;
	else if (fresh)
		zk->handshake_bound = zk->last_look;
	memcpy(zk->looked, open, n * sizeof(open[0]));
	zk->nlooked = n;
	zk->last_look = now;
}

/* A session that is new to us. */
static void
begin_session(Zk *zk, int64_t session, ZklTime timeout, ZklTime now)
{
	ZklEvent   *event = zk_event(zk, ZKL_EVENT_BEGAN);

	event->session = session;
	event->timeout = timeout;
	zk->session = session;
	zk->answered_at = zk->written_at = now;
	zkl_lease_start(&zk->lease, timeout, zk->target.tick);
	zkl_lease_sent(&zk->lease, zk->handshake_bound);
	remember_session(zk, session);
	name_member(zk);
	zk->member_known = false;
}

/* Publish the deadline. */
static void
acknowledge(Zk *zk)
{
	ZklEvent   *event = zk_event(zk, ZKL_EVENT_ACKNOWLEDGED);

	event->deadline = zk->lease.deadline;
	event->period = zkl_lease_period(zk->lease.timeout, zk->lease.tick);
}

/* The one that we had, over another connection. */
static void
resume_session(Zk *zk, ZklTime timeout)
{
	zk_log(zk, NULL, "zklock: connected again, ZooKeeper session 0x%" PRIx64 " is kept",
		   zk->session);
	zkl_lease_reconnected(&zk->lease, timeout, zk->handshake_bound);
	acknowledge(zk);
	zk->survivor->timeout = timeout;
}

static void
on_connected(Zk *zk, ZklTime now)
{
	int64_t		session = zkl_client_session(zk->client);
	ZklTime		timeout = ZKL_MS(zkl_client_timeout(zk->client));

	if (zk->link == LINK_CLEARING)
	{
		/* ours of before a crash: its locks belong to nobody any more */
		zk_log(zk, NULL, "zklock: closing ZooKeeper session 0x%" PRIx64 ", whose locks are nobody's any more",
			   session);
		close_client(zk);
		remember_session(zk, 0);
		zk->retry_at = now;
		return;
	}

	/* a server that silently replaces a session must not keep our locks */
	if (zk->session != 0 && session != zk->session)
	{
		close_client(zk);
		zk_session_end(zk, "The server answered with another ZooKeeper session.", false);
		return;
	}

	look_at_sockets(zk, now);
	zk->connection++;
	zk->link = LINK_CONNECTED;
	zk->has_connected = true;
	/* a series that an outage interrupted has not kept the session alive */
	if (zk->handshakes == 0 || now - zk->handshake_at > zk_patience(zk))
	{
		zk->handshakes = 0;
		zk->first_handshake = now;
	}
	zk->handshake_at = now;
	zk->handshakes++;
	zk->connects++;
	zkl_client_peer(zk->client, zk->server, sizeof(zk->server));
	zk->silent_since = now;
	zk->held_back_sent = 0;

	if (zk->session == 0)
		begin_session(zk, session, timeout, now);
	else
		resume_session(zk, timeout);
	zk_contenders_connected(zk);

	/*
	 * first of all a write: reads behind it cannot be older than it is, also
	 * where this server lags behind the one that we were connected to
	 */
	zk->next_heartbeat = now;
	zk_heartbeat_if_due(zk, now);
}

static void
on_disconnected(Zk *zk, ZklTime now)
{
	if (zk->link != LINK_CONNECTED)
		return;
	zk->link = LINK_CONNECTING;
	zk_questions_disconnected(zk);
	zk->disconnected_at = now;
	zk->last_kick = now;

	/*
	 * what it was connected by was there when the latest look was taken, if
	 * not before
	 */
	zk->last_look = Max(zk->last_look, zk->acked_sent);
	zk->handshake_bound = zk->last_look;
	zk->next_lookup = Max(now, zk->last_lookup + RETRY_PERIOD);
	zk_contenders_disconnected(zk);
}

void
zk_session_event(Zk *zk, ZklClientEvent event, ZklTime now)
{
	switch (event)
	{
		case ZKL_CLIENT_CONNECTED:
			on_connected(zk, now);
			break;
		case ZKL_CLIENT_DISCONNECTED:
			on_disconnected(zk, now);
			break;
		case ZKL_CLIENT_EXPIRED:
			if (zk->link == LINK_CLEARING)
			{
				lose_client(zk);
				remember_session(zk, 0);
				zk->retry_at = now;
			}
			else
				zk_session_end(zk, "ZooKeeper has expired it.", false);
			break;
		case ZKL_CLIENT_AUTH_FAILED:
			zk_session_end(zk, "ZooKeeper does not accept the credentials in zklock.credentials_file.",
						   false);
			zk->retry_at = now + RETRY_PERIOD;
			break;
	}
}

/* Another handle of the library for the same ZooKeeper session. */
static void
replace_client(Zk *zk, ZklTime now)
{
	on_disconnected(zk, now);
	lose_client(zk);
	open_client(zk, now);
}

/* The names are known: note what is new about them. */
static void
take_addresses(Zk *zk, const char *addresses)
{
	char		detail[2 * 1024];

	if (zk->addresses != NULL && strcmp(addresses, zk->addresses) == 0)
		return;
	if (zk->addresses != NULL)
	{
		snprintf(detail, sizeof(detail), "They were %s and are %s.", zk->addresses, addresses);
		zk_log(zk, detail, "zklock: the addresses of zklock.hosts changed");
		free(zk->addresses);
	}
	zk->addresses = strdup(addresses);
	if (zk->addresses == NULL)
		zk_fail(zk->target.host, "out of memory");
}

/*
 * Look the names in zklock.hosts up, again and again: what they stand for may change
 * while we are connected to one of the last that are as before, and then it is too late
 * to learn of the others.
 */
static void
look_up_hosts(Zk *zk, ZklTime now)
{
	const char *addresses;
	const char *error;
	ZklTime		again = zk->link == LINK_CONNECTED ?
		Min(Max(zk_patience(zk) / 4, ZKL_MS(2000)), ZKL_MS(15000)) :
		Min(Max(zk_patience(zk) / 10, RETRY_PERIOD), ZKL_MS(5000));

	if (zk->resolution == NULL)
	{
		if (now < zk->next_lookup ||
			(zk->addresses != NULL && zkl_hosts_are_numeric(zk->target.hosts)))
			return;
		zk->resolution = zkl_resolve_start(zk->target.hosts);
		zk->last_lookup = now;
		zk->next_lookup = now + RETRY_PERIOD;
		zk->slow_lookup = false;
		if (zk->resolution == NULL)
			return;
	}
	if (!zkl_resolve_done(zk->resolution, &addresses, &error))
	{
		/* under way for a while; a client has other troubles than this */
		if (zk->link == LINK_NONE && !zk->slow_lookup && now - zk->last_lookup >= RETRY_PERIOD)
		{
			zk->slow_lookup = true;
			zk_trouble(zk, "could not resolve the names in zklock.hosts: no answer from the name servers yet");
		}
		return;
	}
	zk->next_lookup = now + (zk->addresses == NULL ? RETRY_PERIOD : again);
	if (addresses != NULL)
		take_addresses(zk, addresses);
	else
	{
		if (zk->link == LINK_NONE)
			zk_trouble(zk, error);
		zk_debug(zk, "zklock: %s", error);
	}
	zkl_resolve_free(zk->resolution);
	zk->resolution = NULL;
}

/*
 * A server that swallows everything: the library would notice after two thirds
 * of T, and the lease may be gone by then. So does a server that does not
 * answer the handshake. Cut, and it goes on to the next server.
 */
static void
watch_for_black_hole(Zk *zk, ZklTime now)
{
	bool		connected = zk->link == LINK_CONNECTED;
	ZklTime		limit = zkl_lease_stall(zk_patience(zk));
	ZklTime		since = connected ? zk->silent_since : zk->disconnected_at;

	if (zk->link == LINK_NONE || (connected && zk->in_flight == 0))
		return;
	if (now - since < limit || now - zk->last_kick < limit)
		return;
	zk->last_kick = now;
	look_at_sockets(zk, now);
	if (connected)
		zk_log(zk, NULL, "zklock: no answer from ZooKeeper for %ld ms, trying the next server",
			   (long) ((now - since) / 1000));
	zkl_client_kick(zk->client);
}

/*
 * We were held up ourselves, and nothing was sent for so long that what heartbeats
 * prove is too little to be of use, until that gap is T in the past. A handshake
 * touches the ZooKeeper session as well, and gaps are counted from it.
 */
static void
close_gap(Zk *zk, ZklTime now)
{
	ZklTime		gap = zkl_lease_gap(&zk->lease, now);
	ZklTime		period = zkl_lease_period(zk->lease.timeout, zk->lease.tick);

	if (zk->link != LINK_CONNECTED || zk->lease.timeout == 0 ||
		gap <= zkl_lease_stall(zk_patience(zk)) ||
		zk->lease.timeout - zkl_lease_margin(&zk->lease, now) >= period * 3 / 2 ||
		now - zk->last_kick < zkl_lease_stall(zk_patience(zk)))
		return;
	zk->last_kick = now;
	look_at_sockets(zk, now);
	zk_log(zk, NULL, "zklock: no heartbeat was sent for %ld ms, connecting again for a full lease",
		   (long) (gap / 1000));
	zkl_client_kick(zk->client);
}

/* ------------------------------------------------------------------------
 * The member node and its heartbeats
 * ------------------------------------------------------------------------
 */

/* The member node: what heartbeats write to, and who is there for others. */
static void
send_member(Zk *zk, ZklTime now)
{
	char		directory[ZKL_PATH_SIZE];
	ZklNodeData data;
	char		json[ZKL_NODEDATA_SIZE];
	size_t		len;

	snprintf(directory, sizeof(directory), "%s/.zklock", zk->target.root);
	if (!zk_send_mkdirs(zk, directory, on_root, on_root, -1, now))
		return;

	memset(&data, 0, sizeof(data));
	snprintf(data.server, sizeof(data.server), "%s", zk->target.server_name);
	data.pid = zk->target.pid;
	snprintf(data.application, sizeof(data.application), "zklock worker");
	len = zkl_nodedata_write(&data, json);
	(void) zk_sent(zk, zkl_send_create(zk_op(zk, on_member, -1, now), zk->member_path, json,
									   (int) len, ZKL_CREATE_EPHEMERAL, zk->target.creator_only),
				   now);
}

/* One that cannot be sent does no harm: the next one is due soon anyway. */
void
zk_heartbeat_if_due(Zk *zk, ZklTime now)
{
	if (zk->link != LINK_CONNECTED || (now < zk->next_heartbeat && !zk->mark_wanted))
		return;
	zk->mark_wanted = false;
	zkl_lease_sent(&zk->lease, now);
	if (zk->member_known)
		(void) zk_sent(zk, zkl_send_set(zk_op(zk, on_heartbeat, -1, now), zk->member_path, "", 0),
					   now);
	else
		send_member(zk, now);
	zk->next_heartbeat = now + zkl_lease_period(zk->lease.timeout, zk->lease.tick);
}

/*
 * A heartbeat that was stamped "sent" was acknowledged at "now". It does not count before
 * every granted slot was seen on this connection.
 */
static void
lease_acked(Zk *zk, ZklTime sent, ZklTime now)
{
	if (zk_contenders_unseen(zk))
	{
		zk->held_back_sent = sent;
		zk->held_back_at = now;
	}
	else if (zkl_lease_acked(&zk->lease, sent, now))
		acknowledge(zk);
}

/* The last of the granted slots may have been seen: what was held back counts now. */
void
zk_lease_release_held_back(Zk *zk)
{
	ZklTime		sent = zk->held_back_sent;

	if (sent == 0 || zk_contenders_unseen(zk))
		return;
	zk->held_back_sent = 0;
	if (zkl_lease_acked(&zk->lease, sent, zk->held_back_at))
		acknowledge(zk);
}

/*
 * Our writes to the member node count up, its version and the ensemble's zxid. If one
 * has gone back, the ensemble was restored from a backup that has our ZooKeeper session
 * in it, and with it the nodes of locks that were given back since: they would be
 * there as long as we are. "version" is 0 for its creation.
 */
static bool
has_gone_back(Zk *zk, const ZklOp *op, int64_t version)
{
	bool		back = op->mzxid < zk->zxid ||
		(version > 0 && version <= zk->survivor->member_version);

	zk->zxid = op->mzxid;
	zk->survivor->member_version = version;
	return back;
}

/* Any answer about the member node or the way there: the ensemble takes our writes. */
static void
note_write(Zk *zk, const ZklOp *op, ZklTime now)
{
	if (!zk_is_lost_reply(op))
	{
		zk->written_at = now;
		zk->handshakes = 0;
	}
}

/* A write to the member node was acknowledged; false when that is of no use. */
static bool
note_acknowledged(Zk *zk, const ZklOp *op, int64_t version, ZklTime now)
{
	if (zk->session != 0 && has_gone_back(zk, op, version))
	{
		zk_session_part(zk, "The ensemble has lost what it had acknowledged: it was restored from a backup.");
		return false;
	}
	zk->heartbeats++;
	zk->heartbeat_sent = op->sent;
	zk->heartbeat_took = now - op->sent;
	if (op->mzxid != 0)
	{
		ZklEvent   *event = zk_event(zk, ZKL_EVENT_MARKED);

		event->token = op->mzxid;
		event->sent = op->sent;
	}
	return true;
}

static void
on_heartbeat(Zk *zk, ZklOp *op, ZklTime now)
{
	note_write(zk, op, now);
	if (op->rc == ZKL_RC_OK)
	{
		if (note_acknowledged(zk, op, op->version, now))
			lease_acked(zk, op->sent, now);
		return;
	}
	zk->heartbeat_failures++;
	if (op->rc == ZKL_RC_NONODE)
	{
		zk->member_known = false;
		zk->next_heartbeat = now;
	}
	else if (op->rc == ZKL_RC_NOAUTH)
		zk_trouble(zk, "ZooKeeper does not permit to write our member node: not authenticated");
}

/* Why may we not make a node? For the trouble; NULL = that is not it. */
static const char *
refusal_of(int rc)
{
	return rc == ZKL_RC_NOAUTH ? "not authenticated" :
		rc == ZKL_RC_QUOTAEXCEEDED ? "quota exceeded" : NULL;
}

static void
tell_refusal(Zk *zk, const char *what, int rc)
{
	char		text[ZKL_TROUBLE_SIZE];

	if (refusal_of(rc) == NULL)
		return;
	snprintf(text, sizeof(text), "ZooKeeper does not permit to create %s: %s", what,
			 refusal_of(rc));
	zk_trouble(zk, text);
}

static void
on_member(Zk *zk, ZklOp *op, ZklTime now)
{
	note_write(zk, op, now);
	if (op->rc == ZKL_RC_OK)
	{
		if (!note_acknowledged(zk, op, 0, now))
			return;
		zk->member_known = true;
		lease_acked(zk, op->sent, now);
	}
	else if (op->rc == ZKL_RC_NODEEXISTS)
	{
		zk->member_known = true;
		zk->next_heartbeat = now;	/* a lost reply: write to it */
	}
	else
		tell_refusal(zk, "a node below zklock.root", op->rc);
}

/* A parent of the member node. */
static void
on_root(Zk *zk, ZklOp *op, ZklTime now)
{
	note_write(zk, op, now);
	if (op->rc == ZKL_RC_NONODE)
		zk_trouble(zk, "a parent of zklock.root does not exist in ZooKeeper; if zklock.hosts ends in a chroot, create that node first");
	else
		tell_refusal(zk, "zklock.root", op->rc);
}
