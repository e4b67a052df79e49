/*-------------------------------------------------------------------------
 *
 * test_lease.c
 *	  The lease rule: by example, and against a model of an ensemble.
 *
 * The model is three servers and one client, driven by a queue of events in
 * simulated time. Server 0 leads. It knows of the client's ZooKeeper session
 * what a real leader knows: it is told at once by a client of its own, and for
 * a client of a follower only when the follower answers one of the pings that
 * it sends every half tick, or when a handshake is validated. Messages of one
 * connection arrive in order, late, and not before a cut is over. Processes
 * stop for a while, and find everything that arrived meanwhile. What is not
 * known about the order of things in a real leader is drawn at random.
 *
 * After every event the lease's deadline is held against the earliest moment
 * at which this leader can expire the ZooKeeper session.
 *
 *	ZKL_SIM_HOURS	simulated time, default 24
 *	ZKL_SIM_SEED	another course of events
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "zookeeper/lease.h"

#include <stdlib.h>

#include "check.h"

#define SEC(n)		ZKL_MS((n) * 1000)

/*
 * Examples
 */

static void
test_derived(void)
{
	CHECK_INT(zkl_lease_half_tick(SEC(10), 0), ZKL_MS(2500), "unknown tick: a quarter of T");
	CHECK_INT(zkl_lease_half_tick(SEC(10), SEC(2)), SEC(1), "known tick: half of it");
	CHECK_INT(zkl_lease_period(SEC(10), 0), ZKL_MS(625), "period, tick unknown");
	CHECK_INT(zkl_lease_period(SEC(10), SEC(1)), ZKL_MS(500), "period, limited by the tick");
	CHECK_INT(zkl_lease_period(SEC(4), SEC(2)), ZKL_MS(250), "period, T = 4 s");
	CHECK_INT(zkl_lease_period(SEC(30), SEC(20)), ZKL_MS(1875), "period, limited by T");
	CHECK_INT(zkl_lease_epsilon(SEC(4)), ZKL_MS(500), "epsilon of a short T");
	CHECK_INT(zkl_lease_epsilon(SEC(10)), ZKL_MS(500), "epsilon at 10 s");
	CHECK_INT(zkl_lease_epsilon(SEC(30)), ZKL_MS(1500), "epsilon of a long T");
	CHECK_INT(zkl_lease_stall(SEC(10)), ZKL_MS(2500), "stall");
}

/* The timeline in lease.h, number by number. */
static void
test_timeline(void)
{
	ZklLease	l;
	ZklTime		zero = SEC(100);

	zkl_lease_start(&l, SEC(10), 0);
	CHECK_INT(l.deadline, 0, "a new ZooKeeper session has proven nothing");
	CHECK_INT(zkl_lease_period(l.timeout, l.tick), ZKL_MS(625), "h = 0.625");
	zkl_lease_sent(&l, zero - ZKL_MS(625));
	CHECK_INT(l.deadline, 0, "sending proves nothing");
	zkl_lease_sent(&l, zero);
	CHECK(zkl_lease_acked(&l, zero, zero + ZKL_MS(10)), "0.010: A is acknowledged");
	CHECK_INT(zkl_lease_margin(&l, zero + ZKL_MS(10)), ZKL_MS(3635), "margin 3.635");
	CHECK_INT(l.deadline - zero, ZKL_MS(6365), "deadline 6.365");
	zkl_lease_sent(&l, zero + ZKL_MS(625));
	zkl_lease_sent(&l, zero + ZKL_MS(1250));
	CHECK_INT(l.deadline - zero, ZKL_MS(6365), "B and C into the void: still 6.365");
	CHECK_INT(625 + zkl_lease_stall(SEC(10)) / 1000, 3125, "3.125: B has waited long enough");
	CHECK_INT(l.deadline - zero - ZKL_MS(250), ZKL_MS(6115), "6.115: no commit from here on");
	CHECK_INT(l.timeout - ZKL_MS(3135), ZKL_MS(6865), "6.865: the leader at its earliest");
	CHECK_INT(l.deadline - zero + zkl_lease_epsilon(l.timeout), ZKL_MS(6865),
			  "which is epsilon after the deadline");
}

static void
test_acks(void)
{
	ZklLease	l;

	zkl_lease_start(&l, SEC(10), SEC(2));
	CHECK(!zkl_lease_acked(&l, SEC(100), SEC(100)), "what was never announced extends nothing");
	zkl_lease_sent(&l, SEC(100));
	CHECK(!zkl_lease_acked(&l, SEC(99), SEC(100)), "nor what was sent before the first");
	CHECK(!zkl_lease_acked(&l, SEC(100), SEC(99)), "nor what is acknowledged before it was sent");
	CHECK(zkl_lease_acked(&l, SEC(100), SEC(100) + 1), "an acknowledgement extends");
	CHECK_INT(l.deadline, SEC(110) - ZKL_MS(1500) - 1, "by the rule");
	CHECK(!zkl_lease_acked(&l, SEC(100), SEC(100) + 2), "the same again does not move it");

	/* out of order */
	zkl_lease_sent(&l, ZKL_MS(100400));
	zkl_lease_sent(&l, ZKL_MS(100800));
	CHECK(zkl_lease_acked(&l, ZKL_MS(100800), ZKL_MS(100900)), "the newer one first");
	CHECK(!zkl_lease_acked(&l, ZKL_MS(100400), ZKL_MS(100900)), "the older one does not lower it");
	CHECK_INT(l.deadline, ZKL_MS(110800 - 2000), "deadline of the newer one: 1 + 0.4 + 0.1 + 0.5");

	zkl_lease_end(&l);
	CHECK_INT(l.deadline, 0, "the end: no deadline");
	zkl_lease_sent(&l, SEC(101));
	CHECK(!zkl_lease_acked(&l, SEC(101), SEC(101) + 1) && l.deadline == 0,
		  "and none without a ZooKeeper session");
	zkl_lease_reconnected(&l, SEC(10), SEC(102));
	CHECK_INT(l.timeout, 0, "which cannot come back");
}

static void
test_stall_guard(void)
{
	ZklLease	l;

	zkl_lease_start(&l, SEC(10), 0);
	zkl_lease_sent(&l, SEC(100));
	CHECK(zkl_lease_acked(&l, SEC(100), ZKL_MS(102500)), "T/4 exactly is not late");
	zkl_lease_sent(&l, ZKL_MS(102500));
	zkl_lease_sent(&l, SEC(104));
	zkl_lease_sent(&l, ZKL_MS(105001));
	CHECK(!zkl_lease_acked(&l, ZKL_MS(102500), ZKL_MS(105000) + 1), "a microsecond more is");
	CHECK(!zkl_lease_acked(&l, SEC(104), ZKL_MS(105002)), "sent before the late one arrived");
	zkl_lease_sent(&l, ZKL_MS(105000) + 1);
	CHECK(!zkl_lease_acked(&l, ZKL_MS(105000) + 1, ZKL_MS(105003)), "sent in the same moment");
	CHECK(zkl_lease_acked(&l, ZKL_MS(105001), ZKL_MS(105004)), "sent after it");
	CHECK(!zkl_lease_acked(&l, SEC(100), ZKL_MS(108000)), "another late one");
	zkl_lease_sent(&l, ZKL_MS(107999));
	CHECK(!zkl_lease_acked(&l, ZKL_MS(107999), ZKL_MS(108001)), "guards again");

	/* a new ZooKeeper session starts without */
	zkl_lease_start(&l, SEC(10), 0);
	zkl_lease_sent(&l, ZKL_MS(107999));
	CHECK(zkl_lease_acked(&l, ZKL_MS(107999), ZKL_MS(108001)), "but not a new ZooKeeper session");
}

static void
test_reconnect(void)
{
	ZklLease	l;
	ZklTime		before;

	zkl_lease_start(&l, SEC(20), 0);
	zkl_lease_sent(&l, SEC(100));
	zkl_lease_acked(&l, SEC(100), SEC(100));
	before = l.deadline;
	CHECK_INT(before, SEC(114), "T = 20 s: 20 - 5 - 1");
	zkl_lease_reconnected(&l, SEC(20), SEC(103));
	CHECK_INT(l.deadline, before, "the same T: a handshake extends nothing");
	zkl_lease_reconnected(&l, SEC(30), SEC(104));
	CHECK_INT(l.deadline, before, "a larger T raises nothing");
	CHECK_INT(l.timeout, SEC(30), "but counts from now on");
	zkl_lease_reconnected(&l, SEC(20), SEC(104));
	CHECK_INT(l.deadline, before, "smaller, but not so small that it lowers");
	zkl_lease_reconnected(&l, SEC(10), SEC(105));
	CHECK_INT(l.deadline, SEC(112), "a smaller T lowers: 105 + 10 - 3");
	CHECK(!zkl_lease_acked(&l, SEC(104), SEC(105) + 1), "nothing sent before the handshake counts");
	zkl_lease_sent(&l, ZKL_MS(105100));
	CHECK_INT(zkl_lease_gap(&l, ZKL_MS(105100)), ZKL_MS(100), "gaps begin at the handshake");
	zkl_lease_sent(&l, ZKL_MS(105500));
	CHECK(zkl_lease_acked(&l, ZKL_MS(105500), ZKL_MS(105510)), "heartbeats count again");
	CHECK_INT(l.deadline, ZKL_MS(115500 - 3410), "with the new T: 2.5 + 0.4 + 0.01 + 0.5");

	/* nothing proven yet stays so */
	zkl_lease_start(&l, SEC(20), 0);
	zkl_lease_reconnected(&l, SEC(4), SEC(105));
	CHECK_INT(l.deadline, 0, "nothing proven, nothing lowered");
	zkl_lease_reconnected(&l, 0, SEC(106));
	CHECK_INT(l.timeout, 0, "no timeout is no ZooKeeper session");
}

static void
test_gaps(void)
{
	ZklLease	l;
	uint64_t	seed = 3;
	int			low = 0;
	int			high = 0;

	zkl_lease_start(&l, SEC(10), SEC(2));
	CHECK_INT(zkl_lease_gap(&l, SEC(100)), 0, "nothing sent: no gap");
	zkl_lease_sent(&l, SEC(100));
	CHECK_INT(zkl_lease_gap(&l, SEC(105)), 0, "one sent: no gap");
	zkl_lease_sent(&l, SEC(103));
	zkl_lease_sent(&l, SEC(104));
	CHECK_INT(zkl_lease_gap(&l, SEC(104)), SEC(3), "the largest");
	CHECK_INT(zkl_lease_margin(&l, SEC(104)), ZKL_MS(4500), "and the margin: 1 + 3 + 0.5");
	CHECK_INT(zkl_lease_gap(&l, SEC(113) - 1), SEC(3), "counts while it ended within T");
	CHECK_INT(zkl_lease_gap(&l, SEC(113)), SEC(1), "and not after");
	CHECK_INT(zkl_lease_margin(&l, SEC(113)), ZKL_MS(2500), "1 + 1 + 0.5");
	zkl_lease_sent(&l, SEC(120));
	CHECK_INT(zkl_lease_gap(&l, SEC(120)), SEC(16), "a gap that began before T counts whole");
	zkl_lease_sent(&l, SEC(119));
	zkl_lease_sent(&l, SEC(120));
	CHECK_INT(zkl_lease_gap(&l, SEC(120)), SEC(16), "going back in time changes nothing");

	/* round trips: the slowest counts as long as it is remembered */
	zkl_lease_start(&l, SEC(10), SEC(2));
	zkl_lease_sent(&l, SEC(100));
	zkl_lease_acked(&l, SEC(100), ZKL_MS(100600));
	zkl_lease_sent(&l, ZKL_MS(100500));
	CHECK_INT(zkl_lease_margin(&l, ZKL_MS(100600)), ZKL_MS(2600),
			  "0.5 between, 0.6 late: 1 + 0.5 + 0.6 + 0.5");
	for (int i = 1; i <= 50; i++)
	{
		zkl_lease_sent(&l, ZKL_MS(100500 + 500 * i));
		zkl_lease_acked(&l, ZKL_MS(100500 + 500 * i), ZKL_MS(100510 + 500 * i));
		if (i == 19)
			CHECK_INT(zkl_lease_margin(&l, ZKL_MS(110000)), ZKL_MS(2600), "for T at least");
	}
	CHECK_INT(zkl_lease_margin(&l, ZKL_MS(125600)), ZKL_MS(2010), "and is forgotten after 2 T");

	/* an answer is remembered for T to 2 T, also when none comes for long */
	zkl_lease_start(&l, SEC(10), SEC(2));
	zkl_lease_sent(&l, SEC(100));
	zkl_lease_acked(&l, SEC(100), ZKL_MS(100100));
	zkl_lease_sent(&l, ZKL_MS(110200));
	zkl_lease_acked(&l, ZKL_MS(110200), ZKL_MS(110200));
	CHECK_INT(zkl_lease_margin(&l, SEC(130)), ZKL_MS(1600), "0.1 is remembered 10 s later");
	zkl_lease_sent(&l, SEC(131));
	zkl_lease_acked(&l, SEC(131), SEC(131));
	zkl_lease_sent(&l, SEC(160));
	CHECK_INT(zkl_lease_margin(&l, SEC(175)), ZKL_MS(1500), "and not 30 s later");
	zkl_lease_sent(&l, SEC(200));
	zkl_lease_acked(&l, SEC(200), ZKL_MS(200100));
	zkl_lease_sent(&l, SEC(230));
	zkl_lease_acked(&l, SEC(230), SEC(230));
	CHECK_INT(zkl_lease_margin(&l, SEC(245)), ZKL_MS(1500), "nor after 30 s of silence");

	/* what the stall guard catches counts as T/4 */
	zkl_lease_sent(&l, SEC(300));
	zkl_lease_acked(&l, SEC(300), SEC(308));
	CHECK_INT(zkl_lease_margin(&l, SEC(315)), ZKL_MS(4000), "a stall: 1 + 2.5 + 0.5");
	zkl_lease_reconnected(&l, SEC(10), SEC(309));
	CHECK_INT(zkl_lease_margin(&l, SEC(309)), ZKL_MS(1500), "a new connection is not blamed for it");

	/* more in T than are remembered: against all of them */
	for (int round = 0; round < 200; round++)
	{
		ZklTime		all[2000];
		int			n = 0;
		ZklTime		now = SEC(1000);
		ZklTime		most = check_between(&seed, 1, 200);

		zkl_lease_start(&l, SEC(10), SEC(2));
		while (n < 2000)
		{
			ZklTime		truth = 0;

			now += ZKL_MS(check_between(&seed, 1, most));
			if (check_between(&seed, 0, 99) == 0)
				now += ZKL_MS(check_between(&seed, 1, 3000));
			all[n++] = now;
			zkl_lease_sent(&l, now);
			for (int i = n - 1; i > 0 && all[i] > now - l.timeout; i--)
			{
				if (all[i] - all[i - 1] > truth)
					truth = all[i] - all[i - 1];
			}
			if (zkl_lease_gap(&l, now) < truth)
				low++;
			if (zkl_lease_gap(&l, now) > truth + 2 * l.timeout / 61)
				high++;
		}
	}
	CHECK_INT(low, 0, "400,000 heartbeats, up to 10,000 in T: no gap is hidden");
	CHECK_INT(high, 0, "and none made up by more than T/30");
}

/*
 * The model
 */

#define NSERVERS	3
#define LEADER		0
#define CLIENT		NSERVERS	/* as a process that may be stopped */

typedef enum EventType
{
	AT_CLIENT_HEARTBEAT,		/* the worker's timer */
	AT_CLIENT_WATCHDOG,
	AT_CLIENT_ACK,
	AT_CLIENT_PONG,				/* an answer that proves nothing */
	AT_CLIENT_EXPIRED,
	AT_CLIENT_CONNECTED,
	AT_SERVER_WRITE,
	AT_SERVER_HELLO,
	AT_LEADER_WRITE,			/* forwarded by a follower */
	AT_LEADER_COMMIT,			/* a quorum has it */
	AT_LEADER_HELLO,
	AT_LEADER_PING,				/* its timer */
	AT_LEADER_PONG,
	AT_LEADER_EXPIRY,
	AT_FOLLOWER_COMMIT,
	AT_FOLLOWER_PING,
	AT_FOLLOWER_WELCOME,
	FAULT
} EventType;

typedef struct Event
{
	ZklTime		at;
	uint64_t	order;			/* decides between events of one moment */
	EventType	type;
	int			process;		/* where it happens */
	int			server;			/* whose client this is about */
	int			connection;		/* the client's, counted */
	int			session;		/* ZooKeeper session, counted; 0 = make one */
	ZklTime		stamp;
	ZklTime		timeout;
} Event;

/* Two directions; messages of one arrive in order. */
typedef struct Link
{
	ZklTime		cut_until;
	ZklTime		last[2];
} Link;

typedef struct Rule
{
	ZklTime		deadline;
	int64_t		wrong;			/* moments at which it was too late */
	int64_t		shared;			/* expiries that came before it */
	ZklTime		worst;			/* by how much, at most */
} Rule;

typedef struct Model
{
	uint64_t	seed;
	ZklTime		now;
	bool		faults;
	ZklTime		tick;			/* what the servers use */
	ZklTime		phase;			/* of the leader's expiry buckets */
	ZklTime		usual_delay;
	bool		pongs;			/* pings keep a connection that has no leader */
	ZklTime		granted[NSERVERS];	/* largest T */

	Event	   *heap;
	int			nheap;
	int			size;
	uint64_t	order;
	ZklTime		stopped_until[NSERVERS + 1];
	Link		client_link[NSERVERS];
	Link		peer_link[NSERVERS];	/* follower and leader */
	ZklTime		last_commit;

	/* what the servers know */
	int			session;
	bool		alive;
	ZklTime		touched;		/* when the leader heard of us */
	ZklTime		touched_timeout;
	ZklTime		expired;
	ZklTime		pending[NSERVERS];	/* T to report at the next ping, or 0 */
	bool		shrinking;		/* a smaller T is granted, but not yet told */

	/* the client */
	ZklLease	lease;
	int			my_session;		/* 0 = none */
	int			connection;
	int			server;
	bool		connected;
	ZklTime		handshake;
	ZklTime		waiting_since;	/* 0 = nothing outstanding */

	/* the rules that are compared */
	Rule		rule;
	Rule		naive;			/* sent + T */
	Rule		unguarded;		/* the margin, but no stall guard */
	Rule		measured;		/* max(h, half tick) + epsilon, guarded */
	int64_t		acks;
	int64_t		expiries;
	int64_t		reconnects;
	int64_t		lapses;
	int64_t		events;
} Model;

static bool
chance(Model *m, int one_in)
{
	return check_between(&m->seed, 1, one_in) == 1;
}

static ZklTime
between(Model *m, ZklTime low, ZklTime high)
{
	return high <= low ? low : check_between(&m->seed, low, high);
}

static bool
before(const Event *a, const Event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void
push(Model *m, const Event *e)
{
	int			i;

	if (m->nheap == m->size)
	{
		m->size = m->size ? 2 * m->size : 256;
		m->heap = realloc(m->heap, (size_t) m->size * sizeof(Event));
	}
	for (i = m->nheap++; i > 0 && before(e, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
		m->heap[i] = m->heap[(i - 1) / 2];
	m->heap[i] = *e;
}

static Event
pop(Model *m)
{
	Event		top = m->heap[0];
	Event		e = m->heap[--m->nheap];
	int			i = 0;

	for (;;)
	{
		int			child = 2 * i + 1;

		if (child >= m->nheap)
			break;
		if (child + 1 < m->nheap && before(&m->heap[child + 1], &m->heap[child]))
			child++;
		if (!before(&m->heap[child], &e))
			break;
		m->heap[i] = m->heap[child];
		i = child;
	}
	m->heap[i] = e;
	return top;
}

static void
schedule(Model *m, EventType type, int process, ZklTime at, Event e)
{
	e.type = type;
	e.process = process;
	e.at = at;
	e.order = ++m->order;
	push(m, &e);
}

/* One message's way, without queueing. */
static ZklTime
delay(Model *m)
{
	if (m->faults && chance(m, 50))
		return between(m, 100, ZKL_MS(80));
	return between(m, 100, m->usual_delay);
}

static void
send_over(Model *m, Link *link, int direction, EventType type, int process, Event e)
{
	ZklTime		from = m->now > link->cut_until ? m->now : link->cut_until;
	ZklTime		at = from + delay(m);

	if (at <= link->last[direction])
		at = link->last[direction] + 1;
	link->last[direction] = at;
	schedule(m, type, process, at, e);
}

static void
to_server(Model *m, EventType type, Event e)
{
	send_over(m, &m->client_link[e.server], 0, type, e.server, e);
}

static void
to_client(Model *m, EventType type, Event e)
{
	send_over(m, &m->client_link[e.server], 1, type, CLIENT, e);
}

static void
to_leader(Model *m, int follower, EventType type, Event e)
{
	send_over(m, &m->peer_link[follower], 0, type, LEADER, e);
}

static void
to_follower(Model *m, int follower, EventType type, Event e)
{
	send_over(m, &m->peer_link[follower], 1, type, follower, e);
}

static void
set_later(Rule *rule, ZklTime deadline)
{
	if (deadline > rule->deadline)
		rule->deadline = deadline;
}

/* The leader hears of the ZooKeeper session. */
static void
touch(Model *m, int session, ZklTime timeout)
{
	Event		e = {.session = session};
	ZklTime		at;

	if (session != m->session || !m->alive)
		return;
	m->touched = m->now;
	m->touched_timeout = timeout;

	/* the bucket that the server puts it in: later than T, never earlier */
	at = ((m->now + timeout + m->phase) / m->tick + 1) * m->tick - m->phase;
	e.stamp = m->touched;
	schedule(m, AT_LEADER_EXPIRY, LEADER, at, e);
}

/* The leader takes a write into its queue; when will a quorum have it? */
static void
propose(Model *m, Event e)
{
	ZklTime		at = INT64_MAX;

	for (int f = 1; f < NSERVERS; f++)
	{
		ZklTime		t = m->now;

		if (t < m->peer_link[f].cut_until)
			t = m->peer_link[f].cut_until;
		if (t < m->stopped_until[f])
			t = m->stopped_until[f];
		t += delay(m) + delay(m);
		if (t < at)
			at = t;
	}
	if (at <= m->last_commit)
		at = m->last_commit + 1;
	m->last_commit = at;
	schedule(m, AT_LEADER_COMMIT, LEADER, at, e);
}

static void
connect_to(Model *m, int server)
{
	Event		e = {0};

	m->connection++;
	m->server = server;
	m->connected = false;
	m->waiting_since = 0;
	m->handshake = m->now;
	m->reconnects++;
	memset(m->client_link[server].last, 0, sizeof(m->client_link[server].last));
	e.server = server;
	e.connection = m->connection;
	e.session = m->my_session;
	e.stamp = m->now;
	e.timeout = m->my_session ? m->lease.timeout : SEC(1000);
	if (e.timeout > m->granted[server])
		e.timeout = m->granted[server];
	to_server(m, AT_SERVER_HELLO, e);
}

static void
heartbeat(Model *m)
{
	Event		e = {0};

	e.server = m->server;
	e.connection = m->connection;
	e.session = m->my_session;
	e.stamp = m->now;
	e.timeout = m->lease.timeout;
	zkl_lease_sent(&m->lease, m->now);
	if (m->waiting_since == 0)
		m->waiting_since = m->now;
	to_server(m, AT_SERVER_WRITE, e);
}

/* A fault that ends later than the one that is there, if any. */
static void
extend(ZklTime *fault_until, ZklTime until)
{
	if (until > *fault_until)
		*fault_until = until;
}

static void
fault(Model *m)
{
	ZklTime		T = m->granted[LEADER];
	Event		e = {0};
	int			server = (int) between(m, 0, NSERVERS - 1);
	int			follower = (int) between(m, 1, NSERVERS - 1);
	ZklTime		until;

	schedule(m, FAULT, -1, m->now + between(m, ZKL_MS(200), 3 * T), e);
	switch (between(m, 0, 7))
	{
		case 0:
		case 1:
			if (chance(m, 2) && m->server != LEADER)
				follower = m->server;
			extend(&m->peer_link[follower].cut_until, m->now + between(m, ZKL_MS(10), chance(m, 2) ? T / 3 : 2 * T));
			break;
		case 2:
			if (chance(m, 2))
				server = m->server;
			extend(&m->client_link[server].cut_until, m->now + between(m, ZKL_MS(10), chance(m, 2) ? T / 3 : 2 * T));
			break;
		case 3:					/* the client alone */
			until = m->now + between(m, ZKL_MS(10), 3 * T / 2);
			for (int i = 0; i < NSERVERS; i++)
				extend(&m->client_link[i].cut_until, until);
			break;
		case 4:					/* a connection breaks */
			if (m->connected)
				connect_to(m, server);
			break;
		case 5:					/* a server stops, and is cut off as it wakes */
		case 6:
			if (chance(m, 2))
				server = LEADER;
			until = m->now + between(m, ZKL_MS(1), chance(m, 2) ? m->tick : 3 * T / 2);
			extend(&m->stopped_until[server], until);
			if (chance(m, 2))
			{
				for (int i = 1; i < NSERVERS; i++)
				{
					e.server = i;
					e.stamp = until + T;
					schedule(m, FAULT, -1, until + between(m, 1, chance(m, 2) ? ZKL_MS(5) : ZKL_MS(50)), e);
				}
			}
			break;
		case 7:					/* the worker hangs */
			extend(&m->stopped_until[CLIENT], m->now + between(m, ZKL_MS(10), T / 2));
			break;
	}
}

/* The leader gives the lock away: does its holder know? */
static void
at_expiry(Model *m, Rule *rule)
{
	if (m->my_session == m->session && rule->deadline > m->now)
		rule->shared++;
}

/* Is it of the connection and the session that the worker has now? */
static bool
is_mine(const Model *m, Event e)
{
	return e.connection == m->connection && e.session == m->my_session;
}

/* The worker's period is over: it writes, unless this is the timer of an old connection. */
static void
at_client_heartbeat(Model *m, Event e)
{
	ZklTime		T = m->lease.timeout;
	Event		next = {0};

	next.connection = m->connection;
	if (e.connection != m->connection || !m->connected)
		return;					/* CONNECTED starts the timer again */
	heartbeat(m);
	schedule(m, AT_CLIENT_HEARTBEAT, CLIENT,
			 m->now + zkl_lease_period(T, m->lease.tick) +
			 between(m, 0, ZKL_MS(10)), next);
}

/* The worker looks whether the server has been silent for too long, and goes to another. */
static void
at_client_watchdog(Model *m)
{
	ZklTime		T = m->lease.timeout;
	Event		next = {0};

	schedule(m, AT_CLIENT_WATCHDOG, CLIENT, m->now + ZKL_MS(100), next);
	if (m->connected ?
		m->waiting_since > 0 && m->now - m->waiting_since > T / 4 :
		m->now - m->handshake > (T ? T : m->granted[LEADER]) / 4)
		connect_to(m, (m->server + 1) % NSERVERS);
}

/* A write of ours was acknowledged. Each rule moves its deadline. */
static void
at_client_ack(Model *m, Event e)
{
	ZklTime		T = m->lease.timeout;
	ZklTime		was;

	if (!is_mine(m, e))
		return;
	m->acks++;
	m->waiting_since = 0;
	set_later(&m->naive, e.stamp + T);
	set_later(&m->unguarded, e.stamp + T - zkl_lease_margin(&m->lease, m->now));
	if (m->now - e.stamp <= T / 4 && e.stamp > m->lease.stalled_until)
	{
		ZklTime		half = zkl_lease_half_tick(T, m->lease.tick);
		ZklTime		gap = zkl_lease_gap(&m->lease, m->now);

		set_later(&m->measured, e.stamp + T - (gap > half ? gap : half) -
				  zkl_lease_epsilon(T));
	}
	was = m->lease.deadline;
	if (zkl_lease_acked(&m->lease, e.stamp, m->now) && was != 0 && m->now >= was)
		m->lapses++;
	m->rule.deadline = m->lease.deadline;
}

/* The server has answered, but acknowledged nothing. */
static void
at_client_pong(Model *m, Event e)
{
	if (is_mine(m, e))
		m->waiting_since = m->now;
}

/* The servers say that our session is over. */
static void
at_client_expired(Model *m, Event e)
{
	if (!is_mine(m, e))
		return;
	m->my_session = 0;
	zkl_lease_end(&m->lease);
	m->rule.deadline = m->naive.deadline = 0;
	m->unguarded.deadline = m->measured.deadline = 0;
	connect_to(m, (int) between(m, 0, NSERVERS - 1));
}

/* The handshake has passed: a new session, or the one that we had. */
static void
at_client_connected(Model *m, Event e)
{
	ZklTime		T = m->lease.timeout;
	Event		next = {0};

	if (e.connection != m->connection)
		return;
	m->connected = true;
	if (m->my_session == 0)
	{
		m->my_session = e.session;
		zkl_lease_start(&m->lease, e.timeout, m->lease.tick);
		zkl_lease_sent(&m->lease, m->handshake);
	}
	else
	{
		zkl_lease_reconnected(&m->lease, e.timeout, m->handshake);
		m->rule.deadline = m->lease.deadline;
		if (e.timeout < T)
		{
			/* let the others know as much as the rule does */
			ZklTime		lowered = m->handshake + e.timeout;

			if (m->naive.deadline > lowered)
				m->naive.deadline = lowered;
			lowered -= zkl_lease_margin(&m->lease, m->now);
			if (m->unguarded.deadline > lowered)
				m->unguarded.deadline = lowered;
			if (m->measured.deadline > lowered)
				m->measured.deadline = lowered;
		}
	}
	m->shrinking = false;
	next.connection = m->connection;
	schedule(m, AT_CLIENT_HEARTBEAT, CLIENT, m->now, next);
}

/* A write has reached the leader, which proposes it if the session is alive. */
static void
at_leader_write(Model *m, Event e)
{
	Event		refusal = {0};

	if (e.session == m->session && m->alive)
		propose(m, e);
	else if (e.server == LEADER)
		to_client(m, AT_CLIENT_EXPIRED, e);
	else
	{
		refusal.server = e.server;
		refusal.connection = e.connection;
		refusal.session = e.session;
		refusal.stamp = -1;
		to_follower(m, e.server, AT_FOLLOWER_COMMIT, refusal);
	}
}

/* A write has reached the server that we are connected to. */
static void
at_server_write(Model *m, Event e)
{
	/* what an old connection still delivers could only help us */
	if (e.connection != m->connection)
		return;
	if (m->pongs)
		to_client(m, AT_CLIENT_PONG, e);
	if (e.server != LEADER)
	{
		m->pending[e.server] = e.timeout;
		to_leader(m, e.server, AT_LEADER_WRITE, e);
		return;
	}
	touch(m, e.session, e.timeout);
	at_leader_write(m, e);
}

/* The quorum has the write: its server is told. */
static void
at_leader_commit(Model *m, Event e)
{
	if (e.server == LEADER)
		to_client(m, AT_CLIENT_ACK, e);
	else
		to_follower(m, e.server, AT_FOLLOWER_COMMIT, e);
}

/* A follower learns what became of a write, and tells the client. */
static void
at_follower_commit(Model *m, Event e)
{
	to_client(m, e.stamp < 0 ? AT_CLIENT_EXPIRED : AT_CLIENT_ACK, e);
}

/* A handshake has reached the leader: a new session, one that goes on, or one that is over. */
static void
at_leader_hello(Model *m, Event e)
{
	if (e.session == 0)
	{
		if (e.connection != m->connection)
			return;
		m->session++;
		m->alive = true;
		e.session = m->session;
		memset(m->pending, 0, sizeof(m->pending));
	}
	else if (e.session != m->session || !m->alive)
	{
		e.stamp = -1;
	}
	else if (e.timeout < m->lease.timeout)
	{
		if (e.connection != m->connection)
			return;
		m->shrinking = true;
	}
	if (e.stamp >= 0)
		touch(m, e.session, e.timeout);
	if (e.server != LEADER)
		to_follower(m, e.server, AT_FOLLOWER_WELCOME, e);
	else
		to_client(m, e.stamp < 0 ? AT_CLIENT_EXPIRED : AT_CLIENT_CONNECTED, e);
}

/* A handshake has reached the server that we connect to. */
static void
at_server_hello(Model *m, Event e)
{
	if (e.server != LEADER)
	{
		to_leader(m, e.server, AT_LEADER_HELLO, e);
		return;
	}
	at_leader_hello(m, e);
}

/* A follower learns what became of a handshake, and tells the client. */
static void
at_follower_welcome(Model *m, Event e)
{
	to_client(m, e.stamp < 0 ? AT_CLIENT_EXPIRED : AT_CLIENT_CONNECTED, e);
}

/* The leader pings its followers. */
static void
at_leader_ping(Model *m)
{
	Event		ping = {0};
	Event		next = {0};

	for (int f = 1; f < NSERVERS; f++)
	{
		ping.server = f;
		to_follower(m, f, AT_FOLLOWER_PING, ping);
	}
	schedule(m, AT_LEADER_PING, LEADER,
			 m->now + m->tick / 2 + between(m, 0, ZKL_MS(2)), next);
}

/* A follower answers the leader's ping with the sessions that it heard of. */
static void
at_follower_ping(Model *m, Event e)
{
	e.session = m->session;
	e.timeout = m->pending[e.server];
	m->pending[e.server] = 0;
	to_leader(m, e.server, AT_LEADER_PONG, e);
}

/* The leader learns from a follower's answer that a session is alive. */
static void
at_leader_pong(Model *m, Event e)
{
	if (e.timeout > 0)
		touch(m, e.session, e.timeout);
}

/* The time of the session is over at the leader, unless it was heard of meanwhile. */
static void
at_leader_expiry(Model *m, Event e)
{
	if (e.session != m->session || e.stamp != m->touched || !m->alive)
		return;
	m->alive = false;
	m->expired = m->now;
	at_expiry(m, &m->rule);
	at_expiry(m, &m->naive);
	at_expiry(m, &m->unguarded);
	at_expiry(m, &m->measured);
	m->shrinking = false;
	m->expiries++;
}

/* A fault begins; or, with a stamp, a server is cut off as it wakes. */
static void
at_fault(Model *m, Event e)
{
	if (e.stamp > 0)
		extend(&m->peer_link[e.server].cut_until, e.stamp);
	else
		fault(m);
}

static void
happen(Model *m, Event e)
{
	switch (e.type)
	{
		case AT_CLIENT_HEARTBEAT:
			at_client_heartbeat(m, e);
			break;
		case AT_CLIENT_WATCHDOG:
			at_client_watchdog(m);
			break;
		case AT_CLIENT_ACK:
			at_client_ack(m, e);
			break;
		case AT_CLIENT_PONG:
			at_client_pong(m, e);
			break;
		case AT_CLIENT_EXPIRED:
			at_client_expired(m, e);
			break;
		case AT_CLIENT_CONNECTED:
			at_client_connected(m, e);
			break;
		case AT_SERVER_WRITE:
			at_server_write(m, e);
			break;
		case AT_LEADER_WRITE:
			at_leader_write(m, e);
			break;
		case AT_LEADER_COMMIT:
			at_leader_commit(m, e);
			break;
		case AT_FOLLOWER_COMMIT:
			at_follower_commit(m, e);
			break;
		case AT_SERVER_HELLO:
			at_server_hello(m, e);
			break;
		case AT_LEADER_HELLO:
			at_leader_hello(m, e);
			break;
		case AT_FOLLOWER_WELCOME:
			at_follower_welcome(m, e);
			break;
		case AT_LEADER_PING:
			at_leader_ping(m);
			break;
		case AT_FOLLOWER_PING:
			at_follower_ping(m, e);
			break;
		case AT_LEADER_PONG:
			at_leader_pong(m, e);
			break;
		case AT_LEADER_EXPIRY:
			at_leader_expiry(m, e);
			break;
		case FAULT:
			at_fault(m, e);
			break;
	}
}

static void
judge(Model *m, Rule *rule)
{
	ZklTime		earliest = m->alive ? m->touched + m->touched_timeout : m->expired;

	if (m->my_session == 0 || m->my_session != m->session ||
		(m->alive && m->shrinking))
		return;
	if (rule->deadline > earliest)
	{
		rule->wrong++;
		if (rule->deadline - earliest > rule->worst)
			rule->worst = rule->deadline - earliest;
	}
}

/* Let "length" pass with these parameters; adds to the counts in "total". */
static void
simulate(Model *total, uint64_t seed, bool faults, ZklTime T, ZklTime tick,
		 bool tick_known, bool shrink, ZklTime length)
{
	Model		m;
	Event		e = {0};

	memset(&m, 0, sizeof(m));
	m.seed = seed;
	m.faults = faults;
	m.tick = tick;
	m.phase = between(&m, 0, tick);
	m.pongs = chance(&m, 2);
	m.usual_delay = between(&m, 200, ZKL_MS(20));
	for (int i = 0; i < NSERVERS; i++)
		m.granted[i] = T;
	if (shrink)
		m.granted[2] = T / 2 > 2 * tick ? T / 2 : 2 * tick;
	m.now = SEC(1000);
	zkl_lease_start(&m.lease, 0, tick_known ? tick : 0);

	schedule(&m, AT_LEADER_PING, LEADER, m.now + between(&m, 0, tick / 2), e);
	schedule(&m, AT_CLIENT_WATCHDOG, CLIENT, m.now + ZKL_MS(100), e);
	if (faults)
		schedule(&m, FAULT, -1, m.now + T, e);
	connect_to(&m, (int) between(&m, 0, NSERVERS - 1));

	while (m.now < SEC(1000) + length)
	{
		e = pop(&m);
		if (e.process >= 0 && e.at < m.stopped_until[e.process])
		{
			/*
			 * It will find this when it goes on, after all that came before,
			 * except that the threads of a leader have no order: its expiry
			 * and its ping may come first.
			 */
			e.at = m.stopped_until[e.process];
			if (e.type == AT_LEADER_PING ||
				(e.type == AT_LEADER_EXPIRY && chance(&m, 2)))
				e.order = 0;
			push(&m, &e);
			continue;
		}
		m.now = e.at;
		happen(&m, e);
		m.events++;
		judge(&m, &m.rule);
		judge(&m, &m.naive);
		judge(&m, &m.unguarded);
		judge(&m, &m.measured);
	}
	free(m.heap);

#define ADD(what)	total->what += m.what
#define WORST(what)	\
	do { \
		ADD(what.wrong); \
		ADD(what.shared); \
		if (m.what.worst > total->what.worst) \
			total->what.worst = m.what.worst; \
	} while (0)
	WORST(rule);
	WORST(naive);
	WORST(unguarded);
	WORST(measured);
	ADD(acks);
	ADD(expiries);
	ADD(reconnects);
	ADD(lapses);
	ADD(events);
}

static void
report(const char *what, const Model *m)
{
	printf("# %s: %" PRId64 " events, %" PRId64 " acknowledgements, %" PRId64
		   " connections, %" PRId64 " expiries, %" PRId64 " times back from a lapse\n",
		   what, m->events, m->acks, m->reconnects, m->expiries, m->lapses);
#define REPORT(name, rule) \
	printf("#   %-28s too late %7" PRId64 " times, by up to %6.3f s; expired before it %" PRId64 " times\n", \
		   name, (rule).wrong, (double) (rule).worst / 1e6, (rule).shared)
	REPORT("the rule", m->rule);
	REPORT("sent + T", m->naive);
	REPORT("without stall guard", m->unguarded);
	REPORT("max(h, half tick) + epsilon", m->measured);
}

static const int ticks[] = {500, 1000, 2000, 3000};

static ZklTime
pick_tick(uint64_t *seed, ZklTime T)
{
	ZklTime		tick;

	/* a server grants no less than two of its ticks */
	do
		tick = ZKL_MS(ticks[check_between(seed, 0, 3)]);
	while (2 * tick > T);
	return tick;
}

static void
test_simulation(void)
{
	const char *hours = getenv("ZKL_SIM_HOURS");
	const char *course = getenv("ZKL_SIM_SEED");
	uint64_t	seed = course ? strtoull(course, NULL, 10) : 1;
	ZklTime		length = (hours ? atoi(hours) : 24) * SEC(3600);
	ZklTime		run = SEC(600);
	Model		usual;
	Model		healthy;

	memset(&usual, 0, sizeof(usual));
	for (ZklTime t = 0; t < length; t += run)
	{
		ZklTime		T = ZKL_MS(check_between(&seed, 4000, 30000));
		ZklTime		tick = pick_tick(&seed, T);
		int64_t		before_wrong = usual.rule.wrong;
		uint64_t	run_seed = check_random(&seed);
		bool		known = check_between(&seed, 0, 1) == 1;
		bool		shrink = check_between(&seed, 0, 3) == 0;

		simulate(&usual, run_seed, true, T, tick, known, shrink, run);
		if (usual.rule.wrong > before_wrong && before_wrong == 0)
			printf("# first in the run of seed %" PRIu64 ", T %.3f, tick %.1f %s%s\n",
				   run_seed, (double) T / 1e6, (double) tick / 1e6,
				   known ? "known" : "unknown", shrink ? ", shrinking" : "");
	}
	report("faults", &usual);
	CHECK_INT(usual.rule.wrong, 0, "the deadline was never later than the leader's earliest expiry");
	CHECK_INT(usual.rule.shared, 0, "and no expiry came before it");
	CHECK(usual.naive.wrong > 0, "while sent + T would have been");
	CHECK(usual.unguarded.wrong > 0, "and so would the rule without its stall guard");
	CHECK(usual.measured.wrong > 0, "and max(h, half tick)");
	CHECK(usual.expiries > length / SEC(3600) && usual.acks > 100 * usual.expiries,
		  "the model both expires and lives");

	memset(&healthy, 0, sizeof(healthy));
	for (ZklTime T = SEC(4); T <= SEC(30); T += SEC(1))
	{
		for (size_t i = 0; i < sizeof(ticks) / sizeof(ticks[0]); i++)
		{
			for (int known = 0; known <= 1; known++)
			{
				if (2 * ZKL_MS(ticks[i]) <= T)
					simulate(&healthy, check_random(&seed), false, T,
							 ZKL_MS(ticks[i]), known, false, SEC(60));
			}
		}
	}
	report("healthy", &healthy);
	CHECK_INT(healthy.rule.wrong, 0, "nor in a healthy network");
	CHECK_INT(healthy.lapses, 0, "where the lease never lapses");
	CHECK_INT(healthy.expiries, 0, "and nothing expires");
}

int
main(void)
{
	test_derived();
	test_timeline();
	test_acks();
	test_stall_guard();
	test_reconnect();
	test_gaps();
	test_simulation();
	return check_done();
}
