/*-------------------------------------------------------------------------
 *
 * contender.h
 *	  Contenders: which children of a lock's directory stand in its queue, where
 *	  they live, and how they are called.
 *
 * Pure, see lockname.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_CONTENDER_H
#define ZKL_CONTENDER_H

#include "common/lockname.h"

/* A contender's node name (without directory), with its terminator. Ours have
 * 55 to 58 bytes; foreign ones that do not fit are reported, not cut. */
#define ZKL_NODE_SIZE		256

/* Our own contenders' names: "_c_" + uuid + "-__READ__" + ten digits, with terminator. */
#define ZKL_OWN_NODE_SIZE	64

/* zklock.root and everything under it, with terminator. */
#define ZKL_PATH_SIZE		(ZKL_ROOT_MAX + 1 + ZKL_NAME_MAX + 1 + ZKL_NODE_SIZE)

/* A uuid in text with dashes, with terminator. */
#define ZKL_UUID_SIZE		37

/* The server's counter sticks at 2^31-1; we stop well before (zookeeper: a
 * stuck counter hands out equal digits, and equal digits mean two holders). */
#define ZKL_DIGITS_LIMIT	INT64_C(2000000000)

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
	int64_t		digits;			/* negative after the server's counter wrapped */
} ZklContender;

/*
 * Classify a child of a lock directory by the end of its name: one of the
 * known markers followed by exactly ten digits, or by a minus sign and ten or
 * nine (the server prints its counter with %010d). Returns false (and kind NONE) for every other child.
 */
extern bool zkl_contender_parse(const char *child, ZklContender *contender);

/* The same of "len" bytes that need no terminator. */
extern bool zkl_contender_parse_text(const char *child, size_t len, ZklContender *contender);

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

#endif							/* ZKL_CONTENDER_H */
