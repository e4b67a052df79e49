/*-------------------------------------------------------------------------
 *
 * contender.c
 *	  Contenders: which children of a lock's directory stand in its queue, where
 *	  they live, and how they are called.
 *
 * Nothing here writes past a buffer, and nothing cuts: a path or node name
 * that does not fit becomes the empty string, which ZooKeeper refuses, rather
 * than the beginning of it, which may be somebody else's.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/contender.h"

#include <string.h>

/* How the server prints its 32-bit counter: "%010d". */
#define DIGITS	10

typedef struct Marker
{
	const char *text;
	size_t		len;
	ZklContenderKind kind;
} Marker;

#define MARKER(text, kind)	{(text), sizeof(text) - 1, (kind)}

static const Marker markers[] = {
	MARKER("lock-", ZKL_CONTENDER_LOCK),	/* Curator, Go, zklock */
	MARKER("__READ__", ZKL_CONTENDER_READ), /* Curator, zklock */
	MARKER("__WRIT__", ZKL_CONTENDER_WRITE),	/* Curator, zklock */
	MARKER("__lock__", ZKL_CONTENDER_LOCK), /* kazoo Lock, WriteLock */
	MARKER("__rlock__", ZKL_CONTENDER_READ),	/* kazoo ReadLock */
};

#define NMARKERS	(sizeof(markers) / sizeof(markers[0]))

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The kind that the marker at the end of "text" stands for. */
static ZklContenderKind
marker_kind(const char *text, size_t len)
{
	for (size_t i = 0; i < NMARKERS; i++)
	{
		const Marker *m = &markers[i];

		if (len >= m->len && memcmp(text + len - m->len, m->text, m->len) == 0)
			return m->kind;
	}
	return ZKL_CONTENDER_NONE;
}

bool
zkl_contender_parse_text(const char *child, size_t len, ZklContender *contender)
{
	size_t		ndigits = 0;
	bool		negative = false;

	contender->kind = ZKL_CONTENDER_NONE;
	contender->digits = 0;

	/* no marker ends in a digit, so the whole run of digits is the number */
	while (ndigits < len && ndigits <= DIGITS && is_digit(child[len - 1 - ndigits]))
		ndigits++;
	len -= ndigits;

	if (ndigits == DIGITS)
		contender->kind = marker_kind(child, len);

	if (contender->kind == ZKL_CONTENDER_NONE &&
		(ndigits == DIGITS || ndigits == DIGITS - 1) &&
		len > 0 && child[len - 1] == '-')
	{
		/* after a wrap; the sign takes one of the ten places if it can */
		contender->kind = marker_kind(child, len - 1);
		negative = true;
	}
	if (contender->kind == ZKL_CONTENDER_NONE)
		return false;

	for (size_t i = 0; i < ndigits; i++)
		contender->digits = contender->digits * 10 + (child[len + i] - '0');
	if (negative)
		contender->digits = -contender->digits;
	return true;
}

bool
zkl_contender_parse(const char *child, ZklContender *contender)
{
	return zkl_contender_parse_text(child, strlen(child), contender);
}

bool
zkl_mode_conflicts(ZklMode mine, ZklContenderKind other)
{
	switch (other)
	{
		case ZKL_CONTENDER_NONE:
			return false;
		case ZKL_CONTENDER_READ:
			return mine != ZKL_MODE_READ;
		case ZKL_CONTENDER_LOCK:
		case ZKL_CONTENDER_WRITE:
			return true;
	}
	/* a kind that this function does not know is better waited for */
	return true;
}

bool
zkl_node_has_uuid(const char *child, const char *uuid)
{
	/* a request without a uuid, not filled in yet, owns nothing */
	if (strlen(uuid) != ZKL_UUID_SIZE - 1)
		return false;
	return strncmp(child, "_c_", 3) == 0 &&
		strncmp(child + 3, uuid, ZKL_UUID_SIZE - 1) == 0 &&
		child[3 + ZKL_UUID_SIZE - 1] == '-';
}

int64_t
zkl_node_place(const char *child)
{
	size_t		len = strlen(child);
	int64_t		place = 0;

	if (len <= DIGITS || is_digit(child[len - DIGITS - 1]))
		return -1;
	/* the sign of a counter that wrapped, behind the minus sign of the name */
	if (len > DIGITS + 1 && child[len - DIGITS - 1] == '-' && child[len - DIGITS - 2] == '-')
		return -1;
	for (const char *c = child + len - DIGITS; *c != '\0'; c++)
	{
		if (!is_digit(*c))
			return -1;
		place = place * 10 + (*c - '0');
	}
	return place <= ZKL_DIGITS_LIMIT ? place : -1;
}

/* Join the parts, or leave "" when they do not fit. */
static void
join(char *buf, size_t size, const char *const *parts, int nparts)
{
	size_t		at = 0;

	for (int i = 0; i < nparts; i++)
	{
		size_t		len = strlen(parts[i]);

		if (len >= size - at)
		{
			buf[0] = '\0';
			return;
		}
		memcpy(buf + at, parts[i], len);
		at += len;
	}
	buf[at] = '\0';
}

void
zkl_node_prefix(char buf[ZKL_NODE_SIZE], const char *uuid, ZklMode mode)
{
	const char *parts[] = {"_c_", uuid, NULL};

	switch (mode)
	{
		case ZKL_MODE_READ:
			parts[2] = "-__READ__";
			break;
		case ZKL_MODE_WRITE:
			parts[2] = "-__WRIT__";
			break;
		case ZKL_MODE_EXCLUSIVE:
			parts[2] = "-lock-";
			break;
		case ZKL_MODE_PERMIT:
			parts[2] = "-lease-";
			break;
	}
	if (parts[2] == NULL)
		buf[0] = '\0';
	else
		join(buf, ZKL_NODE_SIZE, parts, 3);
}

const char *
zkl_node_digits(const char *node)
{
	ZklContender contender;

	if (!zkl_contender_parse(node, &contender))
		return "";
	/* the server prints at least ten characters, with the sign */
	node += strlen(node) - DIGITS;
	return contender.digits < 0 && node[0] != '-' ? node - 1 : node;
}

void
zkl_dir_path(char *buf, const char *root, const char *name)
{
	const char *parts[] = {root, "/", name};

	join(buf, ZKL_PATH_SIZE, parts, 3);
}

void
zkl_node_path(char *buf, const char *root, const char *name, const char *node)
{
	const char *parts[] = {root, "/", name, "/", node};

	join(buf, ZKL_PATH_SIZE, parts, 5);
}

void
zkl_uuid_format(char buf[ZKL_UUID_SIZE], const unsigned char random[16])
{
	static const char hex[] = "0123456789abcdef";
	size_t		at = 0;

	for (int i = 0; i < 16; i++)
	{
		unsigned char byte = random[i];

		if (i == 6)
			byte = (byte & 0x0F) | 0x40;	/* version 4 */
		if (i == 8)
			byte = (byte & 0x3F) | 0x80;	/* RFC 4122's variant */
		if (i == 4 || i == 6 || i == 8 || i == 10)
			buf[at++] = '-';
		buf[at++] = hex[byte >> 4];
		buf[at++] = hex[byte & 0x0F];
	}
	buf[at] = '\0';
}
