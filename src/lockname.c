/*-------------------------------------------------------------------------
 *
 * lockname.c
 *	  Names: what a user may call a lock, where it lives in ZooKeeper, and
 *	  which children of a lock directory are contenders.
 *
 * A lock name becomes part of a path that other programs read, so the rules
 * here are of three kinds: what ZooKeeper's servers refuse, what would make
 * two names one path or leave the root, and what would sit as a child in
 * another lock's directory and be taken for somebody waiting there. The last
 * kind matters because names nest: the directory of "a/b" is a child of the
 * directory of "a".
 *
 * ZooKeeper checks paths as UTF-16. A character beyond U+FFFF is two
 * surrogates there, which it refuses, so we refuse those characters too (they
 * count as "control characters" below); otherwise the user would see a bad
 * arguments error from the first create.
 *
 * Nothing here writes past a buffer, and nothing cuts: a path or node name
 * that does not fit becomes the empty string, which ZooKeeper refuses, rather
 * than the beginning of it, which may be somebody else's.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "lockname.h"

#include <string.h>

#include "utf8.h"

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

/* May this character not be part of a name? */
static bool
is_refused(uint32_t c)
{
	return c <= 0x1F || (c >= 0x7F && c <= 0x9F) ||
		(c >= 0xD800 && c <= 0xF8FF) || c >= 0xFFF0;
}

static bool
component_is(const char *component, size_t len, const char *text)
{
	return len == strlen(text) && memcmp(component, text, len) == 0;
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

/* zkl_contender_parse(), for text that is not terminated. */
static bool
parse_contender(const char *child, size_t len, ZklContender *contender)
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

/*
 * Would a directory of this name, as a child of a lock directory, stand before
 * the contenders there?
 *
 * Curator does not filter the children: it cuts each after the last marker it
 * knows and sorts what is left as text, so a child "-x", or one that ends in a
 * marker, is first for ever and nobody gets the lock. What begins with a
 * digit above zero or with a letter is behind every contender while the
 * counter is below 10^9; all digits are refused elsewhere.
 */
static bool
sorts_before_contenders(const char *component, size_t len)
{
	for (size_t i = 0; i < NMARKERS; i++)
	{
		const Marker *m = &markers[i];
		size_t		tail = 0;	/* where the part that is sorted begins */

		for (size_t at = 0; at + m->len <= len; at++)
		{
			if (memcmp(component + at, m->text, m->len) == 0)
				tail = at + m->len;
		}
		if (tail == len || (unsigned char) component[tail] <= '0')
			return true;
	}
	return false;
}

/*
 * What names and roots have in common: the characters, and that no component
 * is empty or begins with a dot.
 */
static ZklNameError
check_text(const char *text, size_t len)
{
	bool		refused = false;
	size_t		used;

	for (size_t i = 0; i < len; i += used)
	{
		uint32_t	c = zkl_utf8_decode(text + i, len - i, &used);

		if (c == ZKL_UTF8_INVALID || c == 0)
			return ZKL_NAME_NOT_UTF8;
		if (is_refused(c))
			refused = true;
	}
	if (refused)
		return ZKL_NAME_CONTROL_CHARACTER;

	for (size_t i = 0; i <= len; i++)
	{
		/* a component begins here */
		if (i == 0 || text[i - 1] == '/')
		{
			if (i == len || text[i] == '/')
				return ZKL_NAME_EMPTY_COMPONENT;
			if (text[i] == '.')
				return ZKL_NAME_DOT_COMPONENT;
		}
	}
	return ZKL_NAME_OK;
}

ZklNameError
zkl_name_check(const char *name, size_t len)
{
	ZklNameError error;
	size_t		begin = 0;

	if (len == 0)
		return ZKL_NAME_EMPTY;
	if (len > ZKL_NAME_MAX)
		return ZKL_NAME_TOO_LONG;
	error = check_text(name, len);
	if (error != ZKL_NAME_OK)
		return error;

	while (begin < len)
	{
		const char *component = name + begin;
		const char *slash = memchr(component, '/', len - begin);
		size_t		clen = slash ? (size_t) (slash - component) : len - begin;
		ZklContender contender;

		if (parse_contender(component, clen, &contender))
			return ZKL_NAME_LOOKS_LIKE_CONTENDER;

		/* from the second on it is a child of another lock's directory */
		if (begin > 0)
		{
			size_t		ndigits = 0;

			while (ndigits < clen && is_digit(component[ndigits]))
				ndigits++;
			if (ndigits == clen ||
				component_is(component, clen, "locks") ||
				component_is(component, clen, "leases") ||
				sorts_before_contenders(component, clen))
				return ZKL_NAME_RESERVED;
		}
		begin += clen + 1;
	}
	return ZKL_NAME_OK;
}

const char *
zkl_name_error_text(ZklNameError error)
{
	switch (error)
	{
		case ZKL_NAME_OK:
			return "is valid";
		case ZKL_NAME_EMPTY:
			return "is empty";
		case ZKL_NAME_TOO_LONG:
			return "is longer than 255 bytes";
		case ZKL_NAME_NOT_UTF8:
			return "is not valid UTF-8";
		case ZKL_NAME_EMPTY_COMPONENT:
			return "has an empty component between slashes, or a slash too many at its beginning or end";
		case ZKL_NAME_DOT_COMPONENT:
			return "has a component that begins with a dot";
		case ZKL_NAME_CONTROL_CHARACTER:
			return "has a control character, or another character that ZooKeeper does not allow in a path";
		case ZKL_NAME_LOOKS_LIKE_CONTENDER:
			return "has a component that looks like the node of a lock request";
		case ZKL_NAME_RESERVED:
			return "has a component after the first that other ZooKeeper clients would mistake for a lock request or a semaphore";
		case ZKL_NAME_NOT_ABSOLUTE:
			return "does not begin with a slash";
	}
	return "is not valid";
}

ZklNameError
zkl_root_check(const char *root, size_t len)
{
	if (len == 0)
		return ZKL_NAME_EMPTY;
	if (len > ZKL_ROOT_MAX)
		return ZKL_NAME_TOO_LONG;
	if (root[0] != '/')
		return ZKL_NAME_NOT_ABSOLUTE;
	return check_text(root + 1, len - 1);
}

bool
zkl_contender_parse(const char *child, ZklContender *contender)
{
	return parse_contender(child, strlen(child), contender);
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
		case ZKL_MODE_LEASE:
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

const char *
zkl_mode_name(ZklMode mode)
{
	switch (mode)
	{
		case ZKL_MODE_EXCLUSIVE:
			return "exclusive";
		case ZKL_MODE_READ:
			return "read";
		case ZKL_MODE_WRITE:
			return "write";
		case ZKL_MODE_LEASE:
			return "lease";
	}
	return "unknown";
}

bool
zkl_mode_parse(const char *text, ZklMode *mode)
{
	static const ZklMode modes[] = {ZKL_MODE_EXCLUSIVE, ZKL_MODE_READ, ZKL_MODE_WRITE};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
	{
		if (strcmp(text, zkl_mode_name(modes[i])) == 0)
		{
			*mode = modes[i];
			return true;
		}
	}
	return false;
}
