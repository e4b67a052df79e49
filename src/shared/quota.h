/*-------------------------------------------------------------------------
 *
 * quota.h
 *	  That neither one backend nor one role can have all there is.
 *
 * The table of locks is one for the whole server, and the ensemble is one for all
 * servers. So there are caps on how many entries one backend and one role may have, a
 * reserve for those who have to look into it, and a bound on how many directories a
 * role may make with the coordinator in a given time. Superusers are exempt, as they are from
 * CONNECTION LIMIT.
 *
 * Whose an entry is stands in a small array beside the table: it is written by the
 * owner when it takes the entry and by the worker when that is free again, and counted
 * by each backend that takes one. The role is the one that connected: SET ROLE and SECURITY
 * DEFINER functions lift no cap.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_QUOTA_H
#define ZKL_QUOTA_H

#include "common/clock.h"
#include "port/atomics.h"

/*
 * What a role may still make: its allowance is whole again at "whole_at", which moves on
 * with each directory and is never further away than the burst. Written by the worker only.
 */
typedef struct ZklAllowance
{
	pg_atomic_uint32 role;
	pg_atomic_uint64 whole_at;	/* ZklTime */
} ZklAllowance;

#define ZKL_ALLOWANCES		256

/* A burst of this many seconds' worth of directories is allowed. */
#define ZKL_ALLOWANCE_BURST 50

/* role << 32 | pid of each entry's owner; 0 = free */
extern pg_atomic_uint64 *zkl_owners;

extern void zkl_quota_init(ZklAllowance *allowances, pg_atomic_uint64 *owners);

/* For an owner: zkl_entry_take() within the caps, or an error. */
extern int	zkl_quota_take_entry(void);

/* For the worker: a directory was made for an entry of this role. */
extern void zkl_quota_charge(Oid role, ZklTime now);

#endif							/* ZKL_QUOTA_H */
