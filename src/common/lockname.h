/*-------------------------------------------------------------------------
 *
 * lockname.h
 *	  Names: what a user may call a lock, where it lives in ZooKeeper, and
 *	  which children of a lock directory are contenders.
 *
 * Pure: knows neither PostgreSQL nor ZooKeeper, so that it can be unit-tested
 * and fuzzed without a server, and be called from the client library's threads.
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

/* A lock name: UTF-8, 1 to 255 bytes, of at most so many components: each is a
 * node in ZooKeeper that outlives its lock by a minute. */
#define ZKL_NAME_MAX		255
#define ZKL_COMPONENTS_MAX	8

/* A contender's node name (without directory), with its terminator. Ours have
 * 55 to 58 bytes; foreign ones that do not fit are reported, not cut. */
#define ZKL_NODE_SIZE		256

/* zklock.root and everything under it, with terminator. */
#define ZKL_ROOT_MAX		255
#define ZKL_PATH_SIZE		(ZKL_ROOT_MAX + 1 + ZKL_NAME_MAX + 1 + ZKL_NODE_SIZE)

/* A uuid in text with dashes, with terminator. */
#define ZKL_UUID_SIZE		37

/* The server's counter sticks at 2^31-1; we stop well before (zookeeper: a
 * stuck counter hands out equal digits, and equal digits mean two holders). */
#define ZKL_DIGITS_LIMIT	INT64_C(2000000000)

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
								 * U+FFF0-FFFF, and everything above (it
								 * looks at UTF-16, where that is two
								 * surrogates) */
	ZKL_NAME_LOOKS_LIKE_CONTENDER,	/* any component */
	ZKL_NAME_RESERVED,			/* a later component is "locks" or "leases" */
	ZKL_NAME_TOO_DEEP,			/* too many components */
	ZKL_NAME_NOT_ABSOLUTE		/* roots only: no slash at the beginning */
} ZklNameError;

/* What is wrong with a name, and where. */
typedef struct ZklNameFault
{
	ZklNameError error;
	int			component;		/* the one at fault, counted from 1; 0 when it is
								 * the name as a whole */
	uint32_t	character;		/* CONTROL_CHARACTER: the first such one */
} ZklNameFault;

typedef enum ZklContenderKind
{
	ZKL_CONTENDER_NONE = 0,		/* some other child: ignored */
	ZKL_CONTENDER_LOCK,			/* ...lock-, ...__lock__ */
	ZKL_CONTENDER_READ,			/* ...__READ__, ...__rlock__ */
	ZKL_CONTENDER_WRITE			/* ...__WRIT__ */
} ZklContenderKind;

typedef struct ZklContender
{
	ZklContenderKind kind;
	int64_t		digits;			/* negative after the server's counter
								 * wrapped */
} ZklContender;

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

/*
 * Classify a child of a lock directory by the end of its name: one of the
 * known markers followed by exactly ten digits, or by a minus sign and ten or
 * nine (the server prints its counter with %010d). Returns false (and kind NONE) for every other child.
 */
extern bool zkl_contender_parse(const char *child, ZklContender *contender);

/* Must "mine" wait for "other" when other's digits are lower? */
extern bool zkl_mode_conflicts(ZklMode mine, ZklContenderKind other);

/* Is "child" the node of the request with this uuid ("_c_<uuid>-...")? Never,
 * if the uuid is not one with dashes. */
extern bool zkl_node_has_uuid(const char *child, const char *uuid);

/*
 * The place of any child among those of its directory: the ten digits that the server
 * has put at its end, or -1 when it does not end in as many, or when the counter is
 * beyond ZKL_DIGITS_LIMIT and does not tell the order any more.
 */
extern int64_t zkl_node_place(const char *child);

/* "_c_<uuid>-lock-" and its like: what is handed to create(SEQUENTIAL). */
extern void zkl_node_prefix(char buf[ZKL_NODE_SIZE], const char *uuid, ZklMode mode);

/* The digits of a contender's name, sign included, as text; "" when there are none. */
extern const char *zkl_node_digits(const char *node);

/*
 * <root>/<name>, and <root>/<name>/<node>. Buffers of ZKL_PATH_SIZE, where
 * everything fits that was checked; what does not fit is "" and not cut, since
 * the beginning of a path is another node.
 */
extern void zkl_dir_path(char *buf, const char *root, const char *name);
extern void zkl_node_path(char *buf, const char *root, const char *name, const char *node);

/* Text of 16 random bytes as a version 4 uuid with dashes, lower case. */
extern void zkl_uuid_format(char buf[ZKL_UUID_SIZE], const unsigned char random[16]);

extern const char *zkl_mode_name(ZklMode mode);

/* "exclusive", "read", "write", exactly; false for anything else, "lease" too. */
extern bool zkl_mode_parse(const char *text, ZklMode *mode);

#endif							/* ZKL_LOCKNAME_H */
