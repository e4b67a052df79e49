/*-------------------------------------------------------------------------
 *
 * quota.c
 *	  That neither one backend nor one role can have all there is.
 *
 * See quota.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"

#include "common/clock.h"
#include "common/compat.h"
#include "common/settings.h"
#include "shared/quota.h"
#include "shared/shmem.h"

pg_atomic_uint64 *zkl_owners = NULL;

void
zkl_quota_init(ZklAllowance *allowances, pg_atomic_uint64 *owners)
{
	for (int i = 0; i < ZKL_ALLOWANCES; i++)
	{
		pg_atomic_init_u32(&allowances[i].role, InvalidOid);
		pg_atomic_init_u64(&allowances[i].whole_at, 0);
	}
	for (int i = 0; i < zkl_max_locks; i++)
		pg_atomic_init_u64(&owners[i], 0);
}

/* -1 stands for a part of the table. */
static int
cap(int setting, int divisor)
{
	return setting >= 0 ? setting : Max(zkl_shared->nentries / divisor, 1);
}

static ZklTime
cost_of_directory(void)
{
	return ZKL_MS(1000) / zkl_new_directories_per_second;
}

void
zkl_quota_charge(Oid role, ZklTime now)
{
	ZklAllowance *allowance = NULL;
	ZklTime		whole_at;

	if (zkl_new_directories_per_second == 0)
		return;
	for (int i = 0; i < ZKL_ALLOWANCES; i++)
	{
		ZklAllowance *other = &zkl_shared->allowances[i];

		if (pg_atomic_read_u32(&other->role) == role)
		{
			allowance = other;
			break;
		}
		/* else take the place of who has made least of late */
		if (allowance == NULL ||
			pg_atomic_read_u64(&other->whole_at) < pg_atomic_read_u64(&allowance->whole_at))
			allowance = other;
	}
	if (pg_atomic_read_u32(&allowance->role) != role)
	{
		pg_atomic_write_u64(&allowance->whole_at, 0);
		pg_write_barrier();
		pg_atomic_write_u32(&allowance->role, role);
	}
	whole_at = Max((ZklTime) pg_atomic_read_u64(&allowance->whole_at), now) + cost_of_directory();
	pg_atomic_write_u64(&allowance->whole_at, whole_at);
}

static void
check_allowance(Oid role)
{
	for (int i = 0; i < ZKL_ALLOWANCES; i++)
	{
		ZklAllowance *allowance = &zkl_shared->allowances[i];
		ZklTime		too_far;

		if (pg_atomic_read_u32(&allowance->role) != role)
			continue;
		pg_read_barrier();
		too_far = (ZklTime) pg_atomic_read_u64(&allowance->whole_at) - zkl_now() -
			ZKL_MS(1000 * ZKL_ALLOWANCE_BURST);
		if (too_far <= 0)
			return;
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many new lock names for role \"%s\"", GetUserNameFromId(role, true)),
				 errdetail("Each name is a directory in %s. The role has made more than %d, faster than %d a second.",
						   zkl_coordinator_name(),
						   ZKL_ALLOWANCE_BURST * zkl_new_directories_per_second,
						   zkl_new_directories_per_second),
				 errhint("Use the same names again, or fewer at a time. A superuser can raise zklock.new_directories_per_second; see what the ensemble bears first.")));
	}
}

int
zkl_quota_take_entry(void)
{
	Oid			role = GetSessionUserId();
	uint64		owner = ((uint64) role << 32) | (uint32) MyProcPid;
	bool		superuser = superuser_arg(role);
	bool		reserve = superuser || has_privs_of_role(role, ROLE_PG_MONITOR);
	int			of_backend_cap = cap(zkl_max_locks_per_backend, 4);
	int			of_role_cap = cap(zkl_max_locks_per_role, 2);
	int			reserved = Min(zkl_reserved_locks, zkl_shared->nentries / 2);
	int			of_backend = 0;
	int			of_role = 0;
	int			used = 0;
	int			index;
	bool		too_many;

	if (!superuser && zkl_new_directories_per_second != 0)
		check_allowance(role);

	/*
	 * First take it, then count: of two who come at once both may be refused
	 * at the limit, but never both let in.
	 */
	index = zkl_entry_take();
	if (index < 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many zklock locks"),
				 errdetail("All %d entries are in use by holders, waiters and locks on their way out.",
						   zkl_shared->nentries),
				 errhint("Release locks, or increase zklock.max_locks and restart the server.")));
	zkl_shared->entries[index].role = role;
	pg_atomic_write_u64(&zkl_owners[index], owner);
	pg_memory_barrier();
	if (superuser)
		return index;

	for (int i = 0; i < zkl_shared->nentries; i++)
	{
		uint64		other = pg_atomic_read_u64(&zkl_owners[i]);

		used += other != 0;
		of_role += (Oid) (other >> 32) == role;
		of_backend += other == owner;
	}
	too_many = (of_backend_cap > 0 && of_backend > of_backend_cap) ||
		(of_role_cap > 0 && of_role > of_role_cap) ||
		(!reserve && used > zkl_shared->nentries - reserved);
	if (!too_many)
		return index;

	zkl_entry_free(index);
	if (of_backend_cap > 0 && of_backend > of_backend_cap)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many zklock locks for one backend"),
				 errdetail("It may hold and wait for %d at a time; locks on their way out count.",
						   of_backend_cap),
				 errhint("Release locks. A superuser can raise zklock.max_locks_per_backend.")));
	if (of_role_cap > 0 && of_role > of_role_cap)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many zklock locks for role \"%s\"", GetUserNameFromId(role, true)),
				 errdetail("All its backends together may hold and wait for %d at a time; locks on their way out count.",
						   of_role_cap),
				 errhint("Release locks. A superuser can raise zklock.max_locks_per_role.")));
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many zklock locks"),
			 errdetail("The last %d of %d entries are reserved for superusers and members of pg_monitor.",
					   reserved, zkl_shared->nentries),
			 errhint("Release locks, or increase zklock.max_locks and restart the server.")));
	return -1;
}
