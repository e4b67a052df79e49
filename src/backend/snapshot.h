/*-------------------------------------------------------------------------
 *
 * snapshot.h
 *	  Which transactions came before, and what a snapshot shows of them.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_SNAPSHOT_H
#define ZKL_SNAPSHOT_H

/* Is "xid" this transaction or a part of it, also one that was rolled back? */
extern bool zkl_is_own_transaction(TransactionId xid);

/*
 * Refuse a snapshot that is older than the end of "lower", with 40001. "function": the one
 * that was called; "call": it is not a write, but zk_fence_check.
 */
extern void zkl_refuse_old_snapshot(Oid function, const char *resource, int64 token,
									TransactionId lower, bool call);

#endif							/* ZKL_SNAPSHOT_H */
