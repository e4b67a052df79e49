/*-------------------------------------------------------------------------
 *
 * written.h
 *	  Has this transaction written something that others will see?
 *
 * A transaction id says so of this database only. What goes elsewhere is kept
 * here: rows of foreign tables and what dblink was told to do leave no id in
 * this database, and NOTIFY gets one when the commit has begun. A transaction
 * that has written keeps its locks to its end, and is ended when it is idle and
 * has lost one.
 *
 * Other effects outside (a file, a program, a sequence) are not seen.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_WRITTEN_H
#define ZKL_WRITTEN_H

#include <signal.h>

#include "nodes/execnodes.h"
#include "nodes/plannodes.h"

/*
 * What was written without a transaction id. A signal handler reads it beside
 * MyProc->xid; everybody else calls zkl_has_written().
 */
typedef enum ZklWritten
{
	ZKL_WRITTEN_NOTHING = 0,
	ZKL_WRITTEN_HERE,			/* NOTIFY; LOCK TABLE, which nobody may be
								 * left with */
	ZKL_WRITTEN_FAR				/* it went, or may have gone, to another
								 * server */
} ZklWritten;

extern volatile sig_atomic_t zkl_written_elsewhere; /* ZklWritten */

extern bool zkl_has_written(void);

/* LISTEN, UNLISTEN or NOTIFY waits for the commit of this transaction. */
extern bool zkl_notify_is_pending(void);

/*
 * For statements.c: a statement begins, in a backend that holds a lock if it is
 * "concerned"; it has run; a utility statement begins; a function is to be called.
 */
extern void zkl_written_note_plan(const PlannedStmt *stmt, bool concerned);
extern void zkl_written_note_routing(const EState *estate);
extern void zkl_written_note_utility(Node *stmt, bool concerned);
extern void zkl_written_note_function(Oid function);

/* A statement of the client's has ended in a transaction that relies on a lock. */
extern void zkl_written_note_notify(void);

/* Has a foreign data wrapper been used, since the last call, for the first time? */
extern bool zkl_written_wrapper_is_new(void);

/* The transaction is over. */
extern void zkl_written_forget(void);

#endif							/* ZKL_WRITTEN_H */
