/*-------------------------------------------------------------------------
 *
 * lockname.h
 *	  Names: what a user may call a lock, and what zklock.root may be.
 *
 * Pure: includes neither PostgreSQL's headers nor a client library's, so that it can
 * be tested and fuzzed without a server, and be called from a library thread.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_LOCKNAME_H
#define ZKL_LOCKNAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* zklock.root, without terminator. */
#define ZKL_ROOT_MAX		255

/* A lock name: UTF-8, 1 to 255 bytes, of at most so many components: each is a
 * node in ZooKeeper that outlives its lock by a minute. */
#define ZKL_NAME_MAX		255
#define ZKL_COMPONENTS_MAX	8

typedef enum ZklMode
{
	ZKL_MODE_EXCLUSIVE = 0,		/* Curator InterProcessMutex */
	ZKL_MODE_READ,				/* Curator InterProcessReadWriteLock */
	ZKL_MODE_WRITE,
	ZKL_MODE_PERMIT				/* one of a semaphore's permits, Curator
								 * InterProcessSemaphoreV2: no queue, only so
								 * many at a time */
} ZklMode;

/* The two directories of a semaphore, below its name: a mutex by which those
 * who want a lease queue, and the permits. No lock can have such a name. */
#define ZKL_SEMAPHORE_LOCKS		"/locks"
#define ZKL_SEMAPHORE_LEASES	"/leases"

typedef enum ZklNameError
{
	ZKL_NAME_OK = 0,
	ZKL_NAME_EMPTY,
	ZKL_NAME_TOO_LONG,
	ZKL_NAME_NOT_UTF8,			/* includes an embedded NUL byte */
	ZKL_NAME_EMPTY_COMPONENT,	/* leading, trailing or double slash */
	ZKL_NAME_DOT_COMPONENT,		/* a component begins with a dot */
	ZKL_NAME_CONTROL_CHARACTER, /* U+0001-001F, U+007F-009F, and what else
								 * ZooKeeper refuses: U+E000-F8FF,
								 * U+FFF0-FFFF, and everything above (it looks
								 * at UTF-16, where that is two surrogates) */
	ZKL_NAME_LOOKS_LIKE_CONTENDER,	/* any component */
	ZKL_NAME_RESERVED,			/* a later component is "locks" or "leases" */
	ZKL_NAME_TOO_DEEP,			/* too many components */
	ZKL_NAME_NOT_ABSOLUTE		/* roots only: no slash at the beginning */
} ZklNameError;

/* What is wrong with a name, and where. */
typedef struct ZklNameFault
{
	ZklNameError error;
	int			component;		/* the one at fault, counted from 1; 0 when it
								 * is the name as a whole */
	uint32_t	character;		/* CONTROL_CHARACTER: the first such one */
} ZklNameFault;

/* Is this a valid lock name? "len" bytes at "name", which may hold anything. */
extern ZklNameError zkl_name_check(const char *name, size_t len);

/* The same, with the component at fault. */
extern ZklNameFault zkl_name_fault(const char *name, size_t len);

/* Why not: a predicate of that component, or of the name ("Component 2 %s."), never NULL. */
extern const char *zkl_name_error_text(ZklNameError error);

/* The same for zklock.root, which begins with one slash and does not end with
 * one. Characters, empty components and dots as in names; what looks like a
 * contender or is reserved may be in it, and as many as fit, since no lock lives above. */
extern ZklNameFault zkl_root_fault(const char *root, size_t len);

extern const char *zkl_mode_name(ZklMode mode);

/* "exclusive", "read", "write", exactly; false for anything else, "lease" too. */
extern bool zkl_mode_parse(const char *text, ZklMode *mode);

#endif							/* ZKL_LOCKNAME_H */
