/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  What the backends and the worker share: the lease, the lock entries.
 *
 * shmem.h says who writes what. Here is how it comes to be, and the few
 * operations that both sides need.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "common/compat.h"
#include "common/settings.h"
#include "shared/quota.h"
#include "shared/shmem.h"

ZklShared  *zkl_shared = NULL;
void	   *zkl_survivor = NULL;

/* How much shared memory does the coordinator need for itself? */
static size_t (*coordinator_memory) (int nslots) = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
doorbell_offset(void)
{
	return MAXALIGN(add_size(offsetof(ZklShared, entries),
							 mul_size(zkl_max_locks, sizeof(ZklEntry))));
}

static Size
slips_offset(void)
{
	return MAXALIGN(add_size(doorbell_offset(),
							 mul_size((zkl_max_locks + 63) / 64, sizeof(pg_atomic_uint64))));
}

static Size
owners_offset(void)
{
	return MAXALIGN(add_size(slips_offset(), mul_size(MaxBackends, sizeof(ZklSlip))));
}

/* The coordinator's own piece comes last. */
static Size
coordinator_offset(void)
{
	return MAXALIGN(add_size(owners_offset(), mul_size(zkl_max_locks, sizeof(pg_atomic_uint64))));
}

static Size
shared_size(void)
{
	return add_size(coordinator_offset(), coordinator_memory(zkl_max_locks));
}

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(shared_size());
}

static void
init_health(ZklHealth *health)
{
	pg_atomic_uint64 *fields[] = {
		&health->session, &health->timeout, &health->heartbeat_sent,
		&health->heartbeat_took, &health->heartbeats, &health->heartbeat_failures,
		&health->connects, &health->expiries, &health->lapses, &health->node_bytes,
		&health->node_budget, &health->watch_bytes, &health->watch_budget,
		&health->in_flight, &health->requests
	};

	pg_atomic_init_u32(&health->connected, 0);
	for (int i = 0; i < lengthof(fields); i++)
		pg_atomic_init_u64(fields[i], 0);
}

/*
 * Runs once in the postmaster, and again after a crash, on fresh memory.
 */
static void
shmem_startup(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	zkl_shared = ShmemInitStruct("zklock", shared_size(), &found);
	if (!found)
	{
		memset(zkl_shared, 0, shared_size());
		if (!pg_strong_random(&zkl_shared->incarnation, sizeof(zkl_shared->incarnation)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		zkl_shared->nentries = zkl_max_locks;
		zkl_shared->doorbell_offset = doorbell_offset();
		zkl_shared->coordinator_offset = coordinator_offset();
		pg_atomic_init_u64(&zkl_shared->lease, 0);
		pg_atomic_init_u32(&zkl_shared->losses, 0);
		pg_atomic_init_u32(&zkl_shared->worker_procno, PG_UINT32_MAX);
		pg_atomic_init_u32(&zkl_shared->worker_pid, 0);
		pg_atomic_init_u64(&zkl_shared->mark, 0);
		pg_atomic_init_u64(&zkl_shared->mark_sent, 0);
		pg_atomic_init_u32(&zkl_shared->mark_wanted, 0);
		pg_atomic_init_u32(&zkl_shared->trouble.version, 0);
		pg_atomic_init_u32(&zkl_shared->server.version, 0);
		init_health(&zkl_shared->health);
		zkl_stats_init(&zkl_shared->stats);
		zkl_desks_init(zkl_shared->desks);
		for (int i = 0; i < zkl_shared->nentries; i++)
		{
			ZklEntry   *entry = &zkl_shared->entries[i];

			pg_atomic_init_u32(&entry->phase, ZKL_PHASE_FREE);
			pg_atomic_init_u32(&entry->flags, 0);
			pg_atomic_init_u32(&entry->ahead, 0);
			pg_atomic_init_u32(&entry->queued, 0);
			pg_atomic_init_u32(&entry->levels, 0);
		}
		for (int i = 0; i < zkl_doorbell_count(); i++)
			pg_atomic_init_u64(&zkl_doorbell_words()[i], 0);
		zkl_quota_init(zkl_shared->allowances,
					   (pg_atomic_uint64 *) ((char *) zkl_shared + owners_offset()));
	}
	zkl_stats = &zkl_shared->stats;
	zkl_desks = zkl_shared->desks;
	zkl_slips = (ZklSlip *) ((char *) zkl_shared + slips_offset());
	zkl_owners = (pg_atomic_uint64 *) ((char *) zkl_shared + owners_offset());
	LWLockRelease(AddinShmemInitLock);
}

void
zkl_shmem_init(size_t (*memory_size) (int nslots))
{
	coordinator_memory = memory_size;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;

	zkl_survivor = mmap(NULL, ZKL_SURVIVOR_SIZE, PROT_READ | PROT_WRITE,
						MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (zkl_survivor == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map anonymous shared memory for zklock: %m")));
}

pg_atomic_uint64 *
zkl_doorbell_words(void)
{
	return (pg_atomic_uint64 *) ((char *) zkl_shared + zkl_shared->doorbell_offset);
}

int
zkl_doorbell_count(void)
{
	return (zkl_shared->nentries + 63) / 64;
}

void
zkl_wake_worker(void)
{
	uint32		procno = pg_atomic_read_u32(&zkl_shared->worker_procno);

	if (procno != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

void
zkl_ring_doorbell(int entryno)
{
	pg_atomic_fetch_or_u64(&zkl_doorbell_words()[entryno / 64], UINT64CONST(1) << (entryno % 64));
	zkl_wake_worker();
}

int
zkl_entry_take(void)
{
	static int	hint = -1;
	int			n = zkl_shared->nentries;

	/* processes begin their search in different places */
	if (hint < 0)
		hint = MyProcPid % n;

	for (int tried = 0; tried < n; tried++)
	{
		int			entryno = (hint + tried) % n;
		ZklEntry   *entry = &zkl_shared->entries[entryno];
		uint32		expected = ZKL_PHASE_FREE;

		if (pg_atomic_read_u32(&entry->phase) != ZKL_PHASE_FREE ||
			!pg_atomic_compare_exchange_u32(&entry->phase, &expected, ZKL_PHASE_FILLING))
			continue;

		hint = entryno;

		/*
		 * before all else, for those who read without a lock: it is another
		 * use now
		 */
		entry->serial++;
		pg_write_barrier();
		memset(&entry->saved, 0, sizeof(entry->saved));
		entry->token = 0;
		entry->refusal = ZKL_REFUSAL_NONE;
		pg_atomic_write_u32(&entry->flags, 0);
		pg_atomic_write_u32(&entry->ahead, 0);
		pg_atomic_write_u32(&entry->queued, 0);
		entry->granted_at = 0;
		return entryno;
	}
	return -1;
}

void
zkl_entry_submit(int entryno)
{
	Assert(pg_atomic_read_u32(&zkl_shared->entries[entryno].phase) == ZKL_PHASE_FILLING);
	pg_write_barrier();
	pg_atomic_write_u32(&zkl_shared->entries[entryno].phase, ZKL_PHASE_WANTED);
	zkl_ring_doorbell(entryno);
}

void
zkl_entry_let_go(int entryno)
{
	Assert(pg_atomic_read_u32(&zkl_shared->entries[entryno].phase) >= ZKL_PHASE_WANTED);
	pg_atomic_fetch_or_u32(&zkl_shared->entries[entryno].flags, ZKL_FLAG_LET_GO);
	zkl_ring_doorbell(entryno);
}

void
zkl_entry_free(int entryno)
{
	Assert(pg_atomic_read_u32(&zkl_shared->entries[entryno].flags) & ZKL_FLAG_LET_GO);
	pg_atomic_write_u64(&zkl_owners[entryno], 0);
	pg_write_barrier();
	pg_atomic_write_u32(&zkl_shared->entries[entryno].phase, ZKL_PHASE_FREE);
}

bool
zkl_text_read(ZklText *text, char buf[ZKL_TROUBLE_SIZE])
{
	for (int tries = 0; tries < 10; tries++)
	{
		uint32		before = pg_atomic_read_u32(&text->version);

		pg_read_barrier();
		memcpy(buf, text->text, ZKL_TROUBLE_SIZE);
		pg_read_barrier();
		if (before % 2 == 0 && before == pg_atomic_read_u32(&text->version))
			return buf[0] != '\0';
		pg_usleep(1000);
	}
	buf[0] = '\0';
	return false;
}

void
zkl_text_write(ZklText *text, const char *to)
{
	/* a worker that was killed while it wrote leaves an odd number behind */
	uint32		version = pg_atomic_read_u32(&text->version) | 1;

	if (strncmp(text->text, to, ZKL_TROUBLE_SIZE - 1) == 0 &&
		pg_atomic_read_u32(&text->version) % 2 == 0)
		return;
	pg_atomic_write_u32(&text->version, version);
	pg_write_barrier();
	strlcpy(text->text, to, ZKL_TROUBLE_SIZE);
	pg_write_barrier();
	pg_atomic_write_u32(&text->version, version + 1);
}

bool
zkl_trouble_read(char buf[ZKL_TROUBLE_SIZE])
{
	return zkl_text_read(&zkl_shared->trouble, buf);
}

void
zkl_trouble_write(const char *text)
{
	zkl_text_write(&zkl_shared->trouble, text);
}
