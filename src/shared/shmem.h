/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What the backends and the worker share: the lease, the lock entries.
 *
 * There is no lock here. A process that is stopped while it holds one would
 * stop all others, and the whole point of the lease is that everybody notices
 * for himself when the worker stops. So each field has one writer at a time,
 * which the entry's phase names, and what checks read are atomics.
 *
 * The lock entries are in entry.h, with who may write what.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_SHMEM_H
#define ZKL_SHMEM_H

#include "common/clock.h"
#include "common/nodedata.h"
#include "shared/desk.h"
#include "shared/entry.h"
#include "port/atomics.h"
#include "common/resolve.h"
#include "shared/quota.h"
#include "shared/stats.h"
#include "zookeeper/client.h"
#include "zookeeper/queue.h"

/*
 * The lease as one word, so that nobody can read half of it and no writer can
 * be stopped in the middle of it:
 *
 *		deadline, ms of CLOCK_BOOTTIME, rounded down: 40 bits (34 years)
 *		generation: 12 bits, one up with each ZooKeeper session
 *		lapses: 12 bits, one up when a deadline that had passed moved again
 *
 * A transaction remembers generation and lapses when it begins to rely on a
 * lock, and so notices a lapse that came and went while it was stopped.
 */
#define ZKL_LEASE_EPOCH_BITS	24
#define ZKL_LEASE_LAPSE_MASK	0xFFF
#define ZKL_LEASE_EPOCH_MASK	0xFFFFFF

static inline ZklTime
zkl_word_deadline(uint64 word)
{
	return ZKL_MS((int64) (word >> ZKL_LEASE_EPOCH_BITS));
}

static inline uint32
zkl_word_epoch(uint64 word)
{
	return (uint32) (word & ZKL_LEASE_EPOCH_MASK);
}

static inline uint32
zkl_word_generation(uint64 word)
{
	return zkl_word_epoch(word) >> 12;
}

/*
 * A node that may come late, or a directory that may have been left without ever
 * having had a node: what the worker has to look after when the request itself is over.
 * Here, and not in its own memory, since the next worker has to go on with it.
 *
 * A create that was lost, and whose node was not there when the worker looked behind a
 * write: ZooKeeper drops what comes late from an old connection, but not quite always.
 * A handshake of ours that was stuck as well can tell the leader that we have moved
 * back, and let the create pass that was stuck with it. Seen once in half an hour of
 * chaos, as a node that nobody would ever have deleted. So the worker looks again, every
 * second, for as long as old packets may live.
 *
 * A container that never had a child is never removed by ZooKeeper. A request that made
 * one and then no node (it was cancelled, or refused) asks for it to be removed, which
 * fails where somebody uses it.
 */
typedef struct ZklSuspect
{
	char		name[ZKL_NAME_MAX + 1]; /* of the lock; "" = unused */
	char		uuid[ZKL_UUID_SIZE];	/* "" = the directory */
	uint32		serial;			/* which use of this place it is */
	ZklTime		until;
} ZklSuspect;

/* What keeps the worker from having a lease; text for an error's detail. */
#define ZKL_TROUBLE_SIZE	256

/* How the ZooKeeper session is, for those who look. The worker's; each field by
 * itself is right, together they need not be of one moment. */
typedef struct ZklHealth
{
	pg_atomic_uint32 connected;
	pg_atomic_uint64 session;	/* id, 0 = none */
	pg_atomic_uint64 timeout;	/* negotiated */
	pg_atomic_uint64 peer;		/* IPv4 address << 16 | port; 0 = none or not IPv4 */
	pg_atomic_uint64 heartbeat_sent;	/* stamp of the latest acknowledged one */
	pg_atomic_uint64 heartbeat_took;	/* and how long that took */
	pg_atomic_uint64 heartbeats;
	pg_atomic_uint64 heartbeat_failures;	/* not acknowledged, or refused */
	pg_atomic_uint64 connects;
	pg_atomic_uint64 expiries;
	pg_atomic_uint64 lapses;
	pg_atomic_uint64 node_bytes;
	pg_atomic_uint64 watch_bytes;
	pg_atomic_uint64 in_flight;
	pg_atomic_uint64 requests;
} ZklHealth;

/*
 * Budgets of one ZooKeeper session, in bytes of path. At its end the leader
 * writes all its nodes into one transaction, and one above jute.maxbuffer
 * (1 MB) stops the ensemble for good. After a reconnect the library sends all
 * watches in one packet, with the same limit.
 */
#define ZKL_NODE_BUDGET		900000
#define ZKL_WATCH_BUDGET	900000

typedef struct ZklShared
{
	uint64		incarnation;	/* random, written once by whoever initialises:
								 * tells a worker's restart from the server's */
	int			nentries;		/* written once */

	pg_atomic_uint64 lease;		/* written by the worker only */
	pg_atomic_uint32 losses;	/* one up whenever some entry's LOST is set: as
								 * long as it stands still nobody need look */
	pg_atomic_uint32 worker_procno; /* for its latch; UINT32_MAX = no worker */
	pg_atomic_uint32 worker_pid;

	/*
	 * The ensemble's counter, from which tokens come: "zxid" is that of a
	 * heartbeat sent at "zxid_sent" or later, and written before it. Written
	 * by the worker only, rising. "heartbeat_wanted" asks it for one at once.
	 */
	pg_atomic_uint64 zxid;
	pg_atomic_uint64 zxid_sent;
	pg_atomic_uint32 heartbeat_wanted;

	/* the worker's: even = stable, odd = being written; readers give up after
	 * a few tries, because the writer may be stopped */
	pg_atomic_uint32 trouble_version;
	char		trouble[ZKL_TROUBLE_SIZE];

	ZklHealth	health;
	ZklStats	stats;
	ZklDesk		desks[ZKL_DESKS];
	ZklAllowance allowances[ZKL_ALLOWANCES];

	/* set with fetch-or by owners, exchanged for 0 by the worker: which entries
	 * to look at. Follows the entries. */
	Size		doorbell_offset;

	/* the worker's; they follow the doorbell */
	Size		suspects_offset;

	ZklEntry	entries[FLEXIBLE_ARRAY_MEMBER];
} ZklShared;

/*
 * What survives a crash restart of the server: shared memory made by the
 * postmaster when it loads the library, outside of the part that a restart
 * initialises again. Never on disk, so a copy of the data directory cannot
 * touch the original's ZooKeeper session. Written by the worker only.
 */
typedef struct ZklSurvivor
{
	int64		session;		/* 0 = none */
	ZklTime		timeout;		/* negotiated */
	unsigned char password[ZKL_PASSWORD_SIZE];
	uint64		incarnation;	/* of the ZklShared whose entries it belongs to;
								 * another's, or 0: it has to be closed */
	char		chroot[ZKL_CHROOT_SIZE];	/* below which its nodes are, or "" */
	int64		member_version; /* of our member node, as acknowledged; -1 = not known */
} ZklSurvivor;

extern ZklShared *zkl_shared;	/* NULL when not preloaded */
extern ZklSurvivor *zkl_survivor;

extern void zkl_shmem_init(void);

/* Tell the worker to look at entry "index"; or to look around. */
extern void zkl_ring_doorbell(int index);
extern void zkl_wake_worker(void);
extern pg_atomic_uint64 *zkl_doorbell_words(void);
extern int	zkl_doorbell_count(void);
extern ZklSuspect *zkl_suspects(void);
extern int	zkl_suspects_count(void);

/* Why there is no lease; false when no trouble is known. */
extern bool zkl_trouble_read(char buf[ZKL_TROUBLE_SIZE]);
extern void zkl_trouble_write(const char *text);

#endif							/* ZKL_SHMEM_H */
