/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  The lease rule: until when may a backend believe in its locks?
 *
 * The leader of the ensemble may expire our ZooKeeper session T after it last
 * heard of us, and it hears of us late: a follower reports its clients only in
 * its answers to the leader's ping, every half tick. So a heartbeat that was
 * acknowledged proves less than "sent + T". What it proves, measured over
 * 1,528 partitions without a miss, is
 *
 *		deadline = sent + T - max(h, tick/2) - epsilon
 *
 * where T is the negotiated timeout, h the largest gap between heartbeats sent
 * in the last T, tick the servers' tickTime (unknown: T/4 stands for tick/2,
 * since a server grants no less than two ticks), and epsilon = max(500 ms, T/20).
 * Only acknowledged writes count; pings, reads and sync were answered by cut
 * off servers for up to 11 s after the lock had been given away.
 *
 * One lease, second by second (T = 10 s, tick unknown, h = 1.25 s):
 *
 *	  0.00	heartbeat A is stamped and sent
 *	  0.01	A is acknowledged: margin = max(1.25, 2.5) + 0.5 = 3.0 s,
 *			deadline = 0.00 + 10 - 3.0 = 7.00
 *	  1.25	heartbeat B is stamped and sent; the network is cut
 *	  3.76	no answer for T/4: the worker shuts its socket down and tries the
 *			next server; nothing answers
 *	  6.75	last moment at which a transaction may pass PRE_COMMIT
 *			(zklock.commit_margin = 250 ms)
 *	  7.00	deadline: running transactions are cancelled
 *	  7.50	the leader can have expired us here at the earliest: A's touch
 *			counted from 0.00 less the 2.5 s that it may have travelled late
 *			less nothing else; epsilon is the room between
 *	 10.00+ the usual case: expired, and the next contender holds
 *
 * Stall guard: an answer that took longer than T/4 does not extend the lease,
 * nor does any other until one with a normal time that was sent after the late
 * one had arrived. A leader that wakes from a pause expires healthy sessions
 * the moment it resumes.
 *
 * A handshake that kept the ZooKeeper session counts as a heartbeat sent (the
 * leader touches the session when it validates it), so gaps are counted from
 * it; it never extends the deadline by itself.
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
#include <stdint.h>

typedef int64_t ZklTime;		/* microseconds, CLOCK_BOOTTIME */

#define ZKL_MS(n)			((ZklTime) (n) * 1000)

/* Heartbeats remembered: the period is at most T/8, so 64 cover T many times
 * over; if more were sent in T, the oldest are folded into one gap. */
#define ZKL_LEASE_SENT_MAX	64

typedef struct ZklLease
{
	ZklTime		timeout;		/* T, negotiated; 0 = no ZooKeeper session */
	ZklTime		tick;			/* servers' tickTime; 0 = unknown */
	ZklTime		deadline;		/* 0 = nothing proven yet */

	/* when the latest heartbeats (or handshakes) were sent, a ring */
	ZklTime		sent[ZKL_LEASE_SENT_MAX];
	int			nsent;
	int			last;			/* index of the newest */

	/* an acknowledgement may extend only if it was sent after this */
	ZklTime		stalled_until;
} ZklLease;

/* Derived times: one function each, all from T and tick. */
extern ZklTime zkl_lease_half_tick(ZklTime timeout, ZklTime tick);	/* tick/2, or T/4 */
extern ZklTime zkl_lease_period(ZklTime timeout, ZklTime tick); /* between heartbeats:
																 * min(T/8, half tick) */
extern ZklTime zkl_lease_epsilon(ZklTime timeout);	/* max(500 ms, T/20) */
extern ZklTime zkl_lease_stall(ZklTime timeout);	/* T/4: late, or black hole */

/* A new ZooKeeper session: nothing is proven, nothing was sent. */
extern void zkl_lease_start(ZklLease *lease, ZklTime timeout, ZklTime tick);

/* No ZooKeeper session any more: deadline 0. */
extern void zkl_lease_end(ZklLease *lease);

/*
 * The same ZooKeeper session is connected again. "handshake" is a time at or
 * before the handshake was sent. A smaller timeout than before lowers the
 * deadline to handshake + T - margin; a larger one raises nothing.
 */
extern void zkl_lease_reconnected(ZklLease *lease, ZklTime timeout, ZklTime handshake);

/* A heartbeat is about to be sent: "now" is its stamp. */
extern void zkl_lease_sent(ZklLease *lease, ZklTime now);

/*
 * The heartbeat that was stamped "sent" was acknowledged at "now". Returns
 * true when the deadline moved. Call only when every held node was seen again
 * on this connection.
 */
extern bool zkl_lease_acked(ZklLease *lease, ZklTime sent, ZklTime now);

/* The largest gap between heartbeats sent in the T before "now". */
extern ZklTime zkl_lease_gap(const ZklLease *lease, ZklTime now);

/* max(h, half tick) + epsilon, for the rule above. */
extern ZklTime zkl_lease_margin(const ZklLease *lease, ZklTime now);

#endif							/* ZKL_LEASE_H */
