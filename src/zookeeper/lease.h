/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The lease rule: until when may a backend believe in its locks?
 *
 * The leader of the ensemble may expire our ZooKeeper session T after it last
 * heard of us, and it hears of us late: a follower reports its clients only in
 * its answers to the leader's ping, every half tick. So a heartbeat that was
 * acknowledged proves less than "sent + T". What it proves is
 *
 *		deadline = sent + T - (tick/2 + h + r + epsilon)
 *
 * where T is the negotiated timeout, tick the servers' tickTime (unknown: T/4
 * stands for tick/2, since a server grants no less than two ticks), h the
 * largest gap between heartbeats sent in the last T, r the slowest answer in
 * that time, and epsilon = max(500 ms, T/20) for timers that are late. Only
 * acknowledged writes count; pings, reads and sync were answered by cut off
 * servers for up to 11 s after the lock had been given away.
 *
 * Why the sum: two heartbeats that were sent h apart arrive up to h + r apart,
 * whatever is slow. If nothing arrived between two of the leader's pings, the
 * touch that it heard last was from before the first of them, and the heartbeat
 * that we count from may have come just before the next: tick/2 more. In the
 * same way a leader that stops may do so for h + r before a heartbeat is late
 * enough to tell, and then its ping is that much later than tick/2. Half a tick
 * and h do not cover each other: with max(h, tick/2) in place of the sum the
 * model in test/unit/test_lease.c finds deadlines that are seconds too late.
 *
 * One lease, second by second (T = 10 s, tick unknown, h = 0.625 s, r = 10 ms):
 *
 *	 -0.625	the heartbeat before was sent
 *	  0.000	heartbeat A is stamped and sent
 *	  0.010	A is acknowledged: margin = 2.5 + 0.625 + 0.01 + 0.5 = 3.635 s,
 *			deadline = 0 + 10 - 3.635 = 6.365
 *	  0.620	the network is cut
 *	  0.625	heartbeat B is stamped and sent, C at 1.25, and so on into the void
 *	  3.125	B has waited for T/4: the worker shuts its socket down and tries
 *			the next server; nothing answers
 *	  6.115	from here on no transaction passes PRE_COMMIT
 *			(zklock.commit_margin = 250 ms)
 *	  6.365	deadline: running transactions are cancelled
 *	  6.865	the earliest moment at which the leader may expire us: all it need
 *			have heard when A was acknowledged is a touch from -3.135, and T
 *			later is here; what is left to the deadline is epsilon
 *	 10.000+	the usual case: expired, and the next contender holds
 *
 * Heartbeats are T/16 apart, or half a tick if that is less: h shortens the
 * lease, and a black hole is noticed T/4 after the first that falls into it.
 *
 * Stall guard: an answer that took longer than T/4 does not extend the lease,
 * nor does any other until one with a normal time that was sent after the late
 * one had arrived. A leader that wakes from a pause expires healthy ZooKeeper
 * sessions the moment it resumes, and it has not pinged anybody meanwhile: a
 * heartbeat sent just before it resumed is answered quickly and proves nothing.
 * (In r such an answer counts as T/4, so that one stall does not shorten the
 * lease to nothing for as long as it is remembered.)
 *
 * A handshake counts as a heartbeat sent, since the leader touches the
 * ZooKeeper session when it makes or validates it. Gaps are counted from it:
 * what was sent on an earlier connection may not have arrived. It never extends
 * the deadline by itself.
 *
 * Pure: all times are arguments, in microseconds of one monotonic clock that
 * also runs while the machine is suspended (CLOCK_BOOTTIME). See lockname.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_LEASE_H
#define ZKL_LEASE_H

#include <stdbool.h>

#include "common/clock.h"

/* Heartbeats remembered: the period is at most T/16, so 64 usually cover T many
 * times over. If more were sent in T, the closest neighbours are folded into
 * one: h may then come out larger than it was, but not above T/30 by that. */
#define ZKL_LEASE_SENT_MAX	64

typedef struct ZklLease
{
	ZklTime		timeout;		/* T, negotiated; 0 = no ZooKeeper session */
	ZklTime		tick;			/* servers' tickTime; 0 = unknown */
	ZklTime		deadline;		/* 0 = nothing proven yet */

	/* when the latest heartbeats, or the handshake, were sent; oldest first */
	ZklTime		sent[ZKL_LEASE_SENT_MAX];
	int			nsent;

	/* the slowest answer since then, and in the period of T before that */
	ZklTime		slowest;
	ZklTime		slowest_since;
	ZklTime		slowest_before;

	/* an acknowledgement may extend only if it was sent after this */
	ZklTime		stalled_until;
} ZklLease;

/* Derived times: one function each, all from T and tick. */
extern ZklTime zkl_lease_half_tick(ZklTime timeout, ZklTime tick);	/* tick/2, or T/4 */
extern ZklTime zkl_lease_period(ZklTime timeout, ZklTime tick); /* between heartbeats:
																 * min(T/16, half tick) */
extern ZklTime zkl_lease_epsilon(ZklTime timeout);	/* max(500 ms, T/20) */
extern ZklTime zkl_lease_stall(ZklTime timeout);	/* T/4: late, or black
													 * hole */

/*
 * A new ZooKeeper session: nothing is proven, nothing was sent. Follow it by
 * zkl_lease_sent() with a time at or before the handshake, else the time from
 * there to the first heartbeat is a gap that nobody sees.
 */
extern void zkl_lease_start(ZklLease *lease, ZklTime timeout, ZklTime tick);

/* No ZooKeeper session any more: deadline 0. */
extern void zkl_lease_end(ZklLease *lease);

/*
 * The same ZooKeeper session is connected again. "handshake" is a time at or
 * before the handshake was sent. A smaller timeout than before lowers the
 * deadline to handshake + T - margin; a larger one raises nothing. Without a
 * ZooKeeper session (or with a timeout that is none) it ends the lease.
 */
extern void zkl_lease_reconnected(ZklLease *lease, ZklTime timeout, ZklTime handshake);

/* A heartbeat is about to be sent: "now" is its stamp. Another write may count
 * as one, but must be announced here too. */
extern void zkl_lease_sent(ZklLease *lease, ZklTime now);

/*
 * The heartbeat that was stamped "sent" was acknowledged at "now". Returns
 * true when the deadline moved. Call only when every held node was seen again
 * on this connection. One that was sent before the last handshake, or was never
 * announced, extends nothing.
 */
extern bool zkl_lease_acked(ZklLease *lease, ZklTime sent, ZklTime now);

/* The largest gap that ended in the T before "now": from a heartbeat that was
 * sent then back to the one before it, though that may be older. */
extern ZklTime zkl_lease_gap(const ZklLease *lease, ZklTime now);

/* half tick + h + r + epsilon, for the rule above. */
extern ZklTime zkl_lease_margin(const ZklLease *lease, ZklTime now);

#endif							/* ZKL_LEASE_H */
