/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  What happened to locks: counts and times, per lock and in total.
 *
 * See stats.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "common/clock.h"
#include "common/compat.h"
#include "shared/stats.h"

ZklStats   *zkl_stats = NULL;

void
zkl_stats_init(ZklStats *stats)
{
	zkl_stats = stats;
	memset(stats, 0, sizeof(*stats));
	for (int i = 0; i < ZKL_STATS_NAMES; i++)
		pg_atomic_init_u32(&stats->names[i].version, 0);
	for (int i = 0; i < ZKL_STATS_OUTCOMES; i++)
		pg_atomic_init_u64(&stats->total[i], 0);
	pg_atomic_init_u64(&stats->forgotten, 0);
	pg_atomic_init_u64(&stats->reset_at, (uint64) GetCurrentTimestamp());
	pg_atomic_init_u32(&stats->reset_wanted, 0);
}

/* A worker that was killed while it wrote leaves an odd number behind. */
static void
begin_write(int i)
{
	pg_atomic_write_u32(&zkl_stats->names[i].version,
						pg_atomic_read_u32(&zkl_stats->names[i].version) | 1);
	pg_write_barrier();
}

static void
end_write(int i)
{
	pg_write_barrier();
	pg_atomic_write_u32(&zkl_stats->names[i].version,
						pg_atomic_read_u32(&zkl_stats->names[i].version) + 1);
}

/* Where the numbers of this name are, or can be. */
static int
find_place(const char *name)
{
	uint32		hash = hash_bytes((const unsigned char *) name, strlen(name));
	int			place = -1;

	for (int way = 0; way < ZKL_STATS_WAYS; way++)
	{
		int			i = (hash + way) % ZKL_STATS_NAMES;
		ZklLockStats *lock = &zkl_stats->names[i].lock;

		if (strcmp(lock->name, name) == 0)
			return i;
		/* an unused one was used at 0 */
		if (place < 0 || lock->last_use < zkl_stats->names[place].lock.last_use)
			place = i;
	}
	return place;
}

static int
bucket(ZklTime took)
{
	ZklTime		limit = ZKL_MS(1);
	int			i;

	for (i = 0; i < ZKL_STATS_BUCKETS - 1 && took >= limit; i++)
		limit *= 10;
	return i;
}

void
zkl_stats_count(const char *name, ZklOutcome outcome, bool waited, ZklTime took)
{
	int			i = find_place(name);
	ZklLockStats *lock = &zkl_stats->names[i].lock;

	took = Max(took, 0);
	pg_atomic_fetch_add_u64(&zkl_stats->total[outcome], 1);
	begin_write(i);
	if (strcmp(lock->name, name) != 0)
	{
		if (lock->name[0] != '\0')
			pg_atomic_fetch_add_u64(&zkl_stats->forgotten, 1);
		memset(lock, 0, sizeof(*lock));
		strlcpy(lock->name, name, sizeof(lock->name));
	}
	lock->last_use = zkl_now();
	lock->count[outcome]++;
	if (outcome == ZKL_OUTCOME_ACQUIRED)
	{
		lock->waited += waited;
		lock->wait_total += took;
		lock->wait_max = Max(lock->wait_max, took);
		lock->wait_buckets[bucket(took)]++;
	}
	else if (outcome == ZKL_OUTCOME_RELEASED)
	{
		lock->hold_total += took;
		lock->hold_max = Max(lock->hold_max, took);
		lock->hold_buckets[bucket(took)]++;
	}
	end_write(i);
}

void
zkl_stats_reset_if_wanted(void)
{
	if (pg_atomic_read_u32(&zkl_stats->reset_wanted) == 0)
		return;
	for (int i = 0; i < ZKL_STATS_NAMES; i++)
	{
		begin_write(i);
		memset(&zkl_stats->names[i].lock, 0, sizeof(ZklLockStats));
		end_write(i);
	}
	for (int i = 0; i < ZKL_STATS_OUTCOMES; i++)
		pg_atomic_write_u64(&zkl_stats->total[i], 0);
	pg_atomic_write_u64(&zkl_stats->forgotten, 0);
	pg_atomic_write_u64(&zkl_stats->reset_at, (uint64) GetCurrentTimestamp());
	pg_write_barrier();
	pg_atomic_write_u32(&zkl_stats->reset_wanted, 0);
}

bool
zkl_stats_read(int i, ZklLockStats *copy)
{
	for (int tries = 0; tries < 10; tries++)
	{
		uint32		before = pg_atomic_read_u32(&zkl_stats->names[i].version);

		pg_read_barrier();
		memcpy(copy, &zkl_stats->names[i].lock, sizeof(*copy));
		pg_read_barrier();
		if (before % 2 == 0 && before == pg_atomic_read_u32(&zkl_stats->names[i].version))
			return copy->name[0] != '\0';
		pg_usleep(1000);
	}
	return false;
}
