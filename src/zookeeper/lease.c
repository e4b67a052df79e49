/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The lease rule: until when may a backend believe in its locks?
 *
 * The rule and its reasons are in the header. What this file adds is the
 * memory it needs: when heartbeats were sent. It keeps the times of the last
 * T in order, oldest first, and one older than that, because a gap that began
 * before the window may be the one that matters.
 *
 * When in doubt, everything here errs towards a shorter lease: a heartbeat
 * that was not recorded makes a gap larger, an acknowledgement that was not
 * counted leaves the deadline where it was.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "zookeeper/lease.h"

#include <string.h>

static ZklTime
min_time(ZklTime a, ZklTime b)
{
	return a < b ? a : b;
}

static ZklTime
max_time(ZklTime a, ZklTime b)
{
	return a > b ? a : b;
}

ZklTime
zkl_lease_half_tick(ZklTime timeout, ZklTime tick)
{
	return tick > 0 ? tick / 2 : timeout / 4;
}

ZklTime
zkl_lease_period(ZklTime timeout, ZklTime tick)
{
	return min_time(timeout / 16, zkl_lease_half_tick(timeout, tick));
}

ZklTime
zkl_lease_epsilon(ZklTime timeout)
{
	return max_time(ZKL_MS(500), timeout / 20);
}

ZklTime
zkl_lease_stall(ZklTime timeout)
{
	return timeout / 4;
}

void
zkl_lease_start(ZklLease *lease, ZklTime timeout, ZklTime tick)
{
	memset(lease, 0, sizeof(*lease));
	lease->timeout = timeout;
	lease->tick = tick;
	lease->stalled_until = INT64_MIN;
}

void
zkl_lease_end(ZklLease *lease)
{
	zkl_lease_start(lease, 0, lease->tick);
}

static void
forget_sent(ZklLease *lease, int i)
{
	lease->nsent--;
	memmove(&lease->sent[i], &lease->sent[i + 1],
			(size_t) (lease->nsent - i) * sizeof(lease->sent[0]));
}

void
zkl_lease_sent(ZklLease *lease, ZklTime now)
{
	if (lease->timeout <= 0)
		return;
	if (lease->nsent > 0 && now <= lease->sent[lease->nsent - 1])
		return;

	/* of what is older than T, only the newest bounds a gap */
	while (lease->nsent > 1 && lease->sent[1] <= now - lease->timeout)
		forget_sent(lease, 0);

	/*
	 * Full: forget the one whose neighbours are closest to each other. At
	 * least 61 pairs of neighbours are inside T and span at most 2 T
	 * together, so the gap that this makes is at most T/30, less than the
	 * T/16 that heartbeats are apart by themselves. (Forgetting the oldest
	 * would hide its gap, and keeping it at the cost of the second would make
	 * a gap of nearly T out of a burst.)
	 */
	if (lease->nsent == ZKL_LEASE_SENT_MAX)
	{
		int			closest = 1;

		for (int i = 2; i < lease->nsent - 1; i++)
		{
			if (lease->sent[i + 1] - lease->sent[i - 1] <
				lease->sent[closest + 1] - lease->sent[closest - 1])
				closest = i;
		}
		forget_sent(lease, closest);
	}

	lease->sent[lease->nsent++] = now;
}

void
zkl_lease_reconnected(ZklLease *lease, ZklTime timeout, ZklTime handshake)
{
	bool		smaller = timeout < lease->timeout;

	if (lease->timeout <= 0 || timeout <= 0)
	{
		zkl_lease_end(lease);
		return;
	}

	/*
	 * Whatever was sent before may never have arrived, but the leader touched
	 * the ZooKeeper session for this handshake: gaps begin here.
	 */
	lease->timeout = timeout;
	lease->nsent = 0;
	lease->slowest = 0;
	lease->slowest_before = 0;
	zkl_lease_sent(lease, handshake);

	if (smaller)
		lease->deadline = min_time(lease->deadline,
								   handshake + timeout -
								   zkl_lease_margin(lease, handshake));
}

/*
 * Remember the slowest answer of the last T at least, in two periods of T so
 * that nothing else need be kept. What the stall guard catches is late enough
 * to be forgotten: it counts as just not caught, else one long stall would
 * shorten the lease to nothing for as long as it is remembered.
 */
static void
note_round_trip(ZklLease *lease, ZklTime round_trip, ZklTime now)
{
	if (now - lease->slowest_since >= lease->timeout)
	{
		lease->slowest_before =
			now - lease->slowest_since < 2 * lease->timeout ? lease->slowest : 0;
		lease->slowest = 0;
		lease->slowest_since = now;
	}
	lease->slowest = max_time(lease->slowest,
							  min_time(round_trip, zkl_lease_stall(lease->timeout)));
}

bool
zkl_lease_acked(ZklLease *lease, ZklTime sent, ZklTime now)
{
	ZklTime		deadline;
	bool		known;

	if (lease->timeout <= 0 || sent > now)
		return false;

	/* sent before this connection, or never announced: its gap is not known */
	known = lease->nsent > 0 && sent >= lease->sent[0];
	if (known)
		note_round_trip(lease, now - sent, now);

	if (now - sent > zkl_lease_stall(lease->timeout))
	{
		lease->stalled_until = max_time(lease->stalled_until, now);
		return false;
	}
	if (!known || sent <= lease->stalled_until)
		return false;

	deadline = sent + lease->timeout - zkl_lease_margin(lease, now);
	if (deadline <= lease->deadline)
		return false;
	lease->deadline = deadline;
	return true;
}

ZklTime
zkl_lease_gap(const ZklLease *lease, ZklTime now)
{
	ZklTime		largest = 0;

	for (int i = 1; i < lease->nsent; i++)
	{
		if (lease->sent[i] > now - lease->timeout)
			largest = max_time(largest, lease->sent[i] - lease->sent[i - 1]);
	}
	return largest;
}

ZklTime
zkl_lease_margin(const ZklLease *lease, ZklTime now)
{
	return zkl_lease_half_tick(lease->timeout, lease->tick) +
		zkl_lease_gap(lease, now) +
		max_time(lease->slowest, lease->slowest_before) +
		zkl_lease_epsilon(lease->timeout);
}
