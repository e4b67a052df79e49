/*-------------------------------------------------------------------------
 *
 * ensemble.c
 *	  The coordinator that is a ZooKeeper ensemble: the functions of coordinator.h.
 *
 * receive() takes replies and events off the client library's list and hands each to its
 * handler; run() does what is due and sends what the machines want. internal.h says what
 * is in which file.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "zookeeper/ensemble.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zookeeper/internal.h"

#define TICK_PERIOD			ZKL_MS(1000)
#define LONGEST_SLEEP		ZKL_MS(10000)
#define DISCONNECTED_POLL	ZKL_MS(20)
#define LOG_PERIOD			ZKL_MS(15000)
#define LOG_LINES_PER_PERIOD	3

/*
 * The library's request numbers begin at time(0) and turn negative at 2^31, and a few
 * small negative ones are reserved. A process ends long before its requests get there.
 */
#define MAX_REQUESTS		2000000000

static void
receive(Zk *zk)
{
	ZklOp	   *op;

	while (zk->client != NULL && zk->link != LINK_LEAVING && (op = zkl_client_next(zk->client)) != NULL)
	{
		/* a session event may end the client; the op is ours by then */
		zk_handle(zk, op);
		zkl_op_free(op);
	}
	zk_lease_release_held_back(zk);
}

/* Lines that the library logged. Errors tell what is wrong with the connection. */
static void
relay_log_lines(Zk *zk)
{
	char		line[256];
	char		severity;

	while (zkl_client_log_line(line, sizeof(line), &severity))
	{
		if (severity == 'E' && zk->link != LINK_CONNECTED)
		{
			/* what the library says of a connection that was closed on it */
			if (strstr(line, "errno=112") != NULL)
				zk_trouble(zk, "the ZooKeeper server closes the connection; its log says why");
			else
				zk_trouble(zk, line);
		}
		if (severity != 'E')
			zk_debug(zk, "zklock: client library: %s", line);
		else if (zk->log_budget > 0)
		{
			zk->log_budget--;
			zk_log(zk, NULL, "zklock: client library: %s", line);
		}
		else
			zk->log_suppressed++;
	}
}

static void
tick(Zk *zk, ZklTime now)
{
	if (now < zk->next_tick)
		return;
	zk->next_tick = now + TICK_PERIOD;
	zk->ticks++;
	if (zk->suspects_dropped > 0)
		zk_log(zk, NULL, "zklock: %d lost requests cannot be looked out for any more, since there are too many",
			   zk->suspects_dropped);
	zk->suspects_dropped = 0;
	if (now >= zk->next_log_period)
	{
		zk->next_log_period = now + LOG_PERIOD;
		if (zk->log_suppressed > 0)
			zk_log(zk, NULL, "zklock: client library: %d more lines not shown",
				   zk->log_suppressed);
		zk->log_suppressed = 0;
		zk->log_budget = LOG_LINES_PER_PERIOD;
	}
	zk_suspects_send(zk, now);
	zk_contenders_tick(zk);
}

/* When does run() want to be called again, if nothing comes in before? */
static ZklTime
next_run(const Zk *zk, ZklTime now)
{
	ZklTime		until = now + LONGEST_SLEEP;

	/* without anything to look after the heartbeats are often enough */
	if (zk->link != LINK_CONNECTED || zk->nactive > 0 || zk->nsuspects > 0)
		until = zk->next_tick;
	if (zk->link == LINK_CONNECTED)
		until = Min(until, zk->next_heartbeat);
	if (zk->link == LINK_CONNECTED && zk->in_flight > 0)
		until = Min(until, zk->silent_since + zkl_lease_stall(zk->lease.timeout));
	if (zk->link != LINK_CONNECTED ||
		(zk->ntodo > 0 && zk->member_known && zk->in_flight < MAX_IN_FLIGHT))
		until = Min(until, now + DISCONNECTED_POLL);
	return until;
}

static ZklTime
run(Zk *zk)
{
	ZklTime		now = zkl_now();

	zk_connection_advance(zk, now);
	zk_heartbeat_if_due(zk, now);
	tick(zk, now);
	zk_questions_send(zk, now);
	zk_send_wanted(zk);
	relay_log_lines(zk);
	if (zk->requests > MAX_REQUESTS)
		snprintf(zk_event(zk, ZKL_EVENT_CANNOT_GO_ON)->text, ZKL_TROUBLE_SIZE,
				 "restarting the worker before the client library's request numbers run out");
	return next_run(zk, zkl_now());
}

/* One record of the library: a reply, or an event. */
void
zk_handle(Zk *zk, ZklOp *op)
{
	ZklTime		now = zkl_now();

	switch (op->kind)
	{
		case ZKL_KIND_SESSION:
			zk_session_event(zk, op->event, now);
			return;
		case ZKL_KIND_WATCH_GONE:
		case ZKL_KIND_WATCH_CHANGED:
		case ZKL_KIND_WATCH_CHILDREN:
			zk->silent_since = now;
			zk_contenders_watch(zk, op->text, op->kind == ZKL_KIND_WATCH_GONE);
			return;
		default:
			break;
	}

	assert(zk->in_flight > 0);
	zk->in_flight--;
	if (!zk_is_lost_reply(op))
	{
		zk->silent_since = zk->answered_at = now;
		zk->fresh_logged = false;
		zk->acked_sent = Max(zk->acked_sent, op->sent);
	}
	/* a refusal of credentials comes as a session event */
	if (op->replied != NULL)
		op->replied(zk, op, now);
}

/* ------------------------------------------------------------------------
 * Events
 * ------------------------------------------------------------------------
 */

void *
zk_alloc(Zk *zk, size_t size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		zk_fail(zk->target.host, "out of memory");
	return memory;
}

/* A fresh event behind all others, to be filled in at once. */
ZklEvent *
zk_event(Zk *zk, ZklEventKind kind)
{
	ZklEvent   *event;

	if (zk->nevents == zk->max_events)
	{
		int			more = Max(64, 2 * zk->max_events);
		ZklEvent   *events = zk_alloc(zk, more * sizeof(ZklEvent));

		for (int i = 0; i < zk->nevents; i++)
			events[i] = zk->events[(zk->first_event + i) % zk->max_events];
		free(zk->events);
		zk->events = events;
		zk->max_events = more;
		zk->first_event = 0;
	}
	event = &zk->events[(zk->first_event + zk->nevents++) % zk->max_events];
	memset(event, 0, offsetof(ZklEvent, text) + 1);
	event->kind = kind;
	event->slot = -1;
	return event;
}

ZklEvent *
zk_slot_event(Zk *zk, ZklEventKind kind, int slot)
{
	ZklEvent   *event = zk_event(zk, kind);

	event->slot = slot;
	event->serial = zk->slots[slot].want.serial;
	return event;
}

/* Is this what a worker that has let the slot go must not hear any more? */
static bool
is_overtaken(const Zk *zk, const ZklEvent *event)
{
	switch (event->kind)
	{
		case ZKL_EVENT_QUEUED:
		case ZKL_EVENT_GRANTED:
		case ZKL_EVENT_TAKEN:
		case ZKL_EVENT_REFUSED:
		case ZKL_EVENT_LOST:
		case ZKL_EVENT_ASKED_BACK:
			return zk->slots[event->slot].let_go;
		case ZKL_EVENT_ANSWERED:
			return event->question == ZKL_QUESTION_HOLDER && zk->slots[event->slot].let_go;
		default:
			return false;
	}
}

static bool
next(Zk *zk, ZklEvent *event)
{
	while (zk->nevents > 0)
	{
		*event = zk->events[zk->first_event];
		zk->first_event = (zk->first_event + 1) % zk->max_events;
		zk->nevents--;
		if (!is_overtaken(zk, event))
			return true;
		free(event->answer);
	}
	return false;
}

void
zk_trouble(Zk *zk, const char *text)
{
	snprintf(zk_event(zk, ZKL_EVENT_TROUBLE)->text, ZKL_TROUBLE_SIZE, "%s", text);
}

/* A line for the server's log; "detail" may be NULL. */
void
zk_log(Zk *zk, const char *detail, const char *format,...)
{
	char		message[1024];
	va_list		args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	zk->target.host->log(ZKL_LOG_LOG, message, detail, NULL);
}

void
zk_debug(Zk *zk, const char *format,...)
{
	char		message[1024];
	va_list		args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	zk->target.host->log(ZKL_LOG_DEBUG, message, NULL, NULL);
}

/* ------------------------------------------------------------------------
 * Beginning, end, and in between
 * ------------------------------------------------------------------------
 */

/* One cut of the connection can lose the creates of all slots. */
static int
suspects_for(int nslots)
{
	return Max(nslots, 1024);
}

static size_t
memory_size(int nslots)
{
	return suspects_for(nslots) * sizeof(Suspect);
}

/* The strings of settings that can change are the caller's for now only. */
static void
set_target(Zk *zk, const ZklTarget *target)
{
	zk->target = *target;
	zk->hosts = strdup(target->hosts);
	if (zk->hosts == NULL)
		zk_fail(target->host, "out of memory");
	zk->target.hosts = zk->hosts;
}

static Zk *
attach(const ZklTarget *target, ZklTime now, bool *goes_on)
{
	Zk		   *zk = calloc(1, sizeof(Zk));

	if (zk == NULL)
		zk_fail(target->host, "out of memory");
	set_target(zk, target);
	zk->survivor = target->survivor;
	zk->suspects = target->memory;
	zk->max_suspects = suspects_for(target->nslots);
	zk->log_budget = LOG_LINES_PER_PERIOD;
	if (zkl_client_eventfd() < 0)
		zk_fail(target->host, "could not create an eventfd");
	zk_contenders_init(zk);
	zk_session_attach(zk, now, goes_on);
	zk_suspects_init(zk);
	return zk;
}

static void
reload(Zk *zk, const ZklTarget *target)
{
	char	   *old_hosts = zk->hosts;

	set_target(zk, target);
	zk->lease.tick = target->tick;
	if (strcmp(zk->chroot, zk_chroot_of(target->hosts)) != 0)
		zk_session_chroot_changed(zk);
	if (strncmp(old_hosts, zk->hosts, Max(strcspn(old_hosts, "/"), strcspn(zk->hosts, "/"))) != 0)
		snprintf(zk_event(zk, ZKL_EVENT_CANNOT_GO_ON)->text, ZKL_TROUBLE_SIZE,
				 "zklock.hosts changed, restarting the worker with the same ZooKeeper session");
	free(old_hosts);
}

static void
want_mark(Zk *zk)
{
	zk->mark_wanted = true;
}

static void
end(Zk *zk)
{
	char		why[sizeof(zk->parting)];

	if (zk->parting[0] == '\0')
		return;
	memcpy(why, zk->parting, sizeof(why));
	zk_session_end(zk, why, true);
}

static void
health(Zk *zk, ZklCoordinatorHealth *health)
{
	memset(health, 0, sizeof(*health));
	health->connected = zk->link == LINK_CONNECTED;
	health->session = zk->session;
	health->timeout = zk->lease.timeout;
	memcpy(health->server, zk->server, sizeof(health->server));
	health->heartbeat_sent = zk->heartbeat_sent;
	health->heartbeat_took = zk->heartbeat_took;
	health->heartbeats = zk->heartbeats;
	health->heartbeat_failures = zk->heartbeat_failures;
	health->connects = zk->connects;
	health->requests = zk->requests;
	health->in_flight = zk->in_flight;
	health->node_bytes = zk->node_bytes;
	health->node_budget = NODE_BUDGET;
	health->watch_bytes = zk->watch_bytes;
	health->watch_budget = WATCH_BUDGET;
}

static void
close_session(Zk *zk)
{
	if (zk->client != NULL)
		zkl_client_close(zk->client);
}

const ZklCoordinatorOps zkl_zookeeper = {
	.name = "ZooKeeper",
	.memory_size = memory_size,
	.attach = attach,
	.want = zk_want,
	.let_go = zk_let_go,
	.give_up = zk_give_up,
	.ask = zk_ask,
	.withdraw = zk_withdraw,
	.want_mark = want_mark,
	.end = end,
	.reload = reload,
	.receive = receive,
	.run = run,
	.next = next,
	.fd = zkl_client_eventfd,
	.health = health,
	.close = close_session
};
