/*-------------------------------------------------------------------------
 *
 * lockname.c
 *	  Names: what a user may call a lock, where it lives in ZooKeeper, and
 *	  which children of a lock directory are contenders.
 *
 * A lock name becomes part of a path that other programs read, so the rules
 * here are of three kinds: what ZooKeeper's servers refuse, what would make
 * two names one path or leave the root, and what would sit as a child in
 * another lock's directory and be taken by zklock for somebody waiting there.
 * The last kind matters because names nest: the directory of "a/b" is a child
 * of the directory of "a".
 *
 * Curator and Go do not filter what they find in the directory of a lock, and
 * may queue behind a child such as "0". They then wait for longer than they
 * had to, but two never hold: a child more moves nobody forward. To refuse
 * every name that could do that would refuse what people call their locks (a
 * number, a date, any uuid), for the sake of a client that locks an ancestor;
 * so those names are good, and doc/interop.md says what it means.
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
#include "common/lockname.h"

#include <string.h>

#include "common/utf8.h"

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
 * What names and roots have in common: the characters, and that no component
 * is empty or begins with a dot. A name has more rules.
 */
static ZklNameFault
find_fault(const char *text, size_t len, bool is_name)
{
	ZklNameFault fault = {ZKL_NAME_OK, 1, 0};
	ZklNameFault refused = {ZKL_NAME_OK, 0, 0};
	size_t		begin = 0;
	size_t		used;

	for (size_t i = 0; i < len; i += used)
	{
		uint32_t	c = zkl_utf8_decode(text + i, len - i, &used);

		/* it may be cut anywhere, so that components mean nothing */
		if (c == ZKL_UTF8_INVALID || c == 0)
			return (ZklNameFault) {ZKL_NAME_NOT_UTF8, 0, 0};
		if (is_refused(c) && refused.error == ZKL_NAME_OK)
			refused = (ZklNameFault) {ZKL_NAME_CONTROL_CHARACTER, fault.component, c};
		fault.component += c == '/';
	}
	if (refused.error != ZKL_NAME_OK)
		return refused;

	/* at the end of a name that ends in a slash there is one more, an empty one */
	for (fault.component = 1; begin <= len; fault.component++)
	{
		const char *component = text + begin;
		const char *slash = memchr(component, '/', len - begin);
		size_t		clen = slash ? (size_t) (slash - component) : len - begin;
		ZklContender contender;

		if (clen == 0)
			fault.error = ZKL_NAME_EMPTY_COMPONENT;
		else if (component[0] == '.')
			fault.error = ZKL_NAME_DOT_COMPONENT;
		else if (!is_name)
			fault.error = ZKL_NAME_OK;
		else if (parse_contender(component, clen, &contender))
			fault.error = ZKL_NAME_LOOKS_LIKE_CONTENDER;
		/* from the second on it is a child of another lock's directory */
		else if (begin > 0 && (component_is(component, clen, "locks") ||
							   component_is(component, clen, "leases")))
			fault.error = ZKL_NAME_RESERVED;
		else if (fault.component > ZKL_COMPONENTS_MAX)
			fault.error = ZKL_NAME_TOO_DEEP;

		if (fault.error != ZKL_NAME_OK)
			return fault;
		begin += clen + 1;
	}
	fault.component = 0;
	return fault;
}

ZklNameFault
zkl_name_fault(const char *name, size_t len)
{
	if (len == 0)
		return (ZklNameFault) {ZKL_NAME_EMPTY, 0, 0};
	if (len > ZKL_NAME_MAX)
		return (ZklNameFault) {ZKL_NAME_TOO_LONG, 0, 0};
	return find_fault(name, len, true);
}

ZklNameError
zkl_name_check(const char *name, size_t len)
{
	return zkl_name_fault(name, len).error;
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
			return "is empty: there is a slash too many beside it";
		case ZKL_NAME_DOT_COMPONENT:
			return "begins with a dot";
		case ZKL_NAME_CONTROL_CHARACTER:
			return "has a character that ZooKeeper does not allow in a path";
		case ZKL_NAME_LOOKS_LIKE_CONTENDER:
			return "looks like the node of a lock request";
		case ZKL_NAME_RESERVED:
			return "is what a semaphore's directory is called";
		case ZKL_NAME_TOO_DEEP:
			return "is one too many: a name has at most 8";
		case ZKL_NAME_NOT_ABSOLUTE:
			return "does not begin with a slash";
	}
	return "is not valid";
}

ZklNameFault
zkl_root_fault(const char *root, size_t len)
{
	if (len == 0)
		return (ZklNameFault) {ZKL_NAME_EMPTY, 0, 0};
	if (len > ZKL_ROOT_MAX)
		return (ZklNameFault) {ZKL_NAME_TOO_LONG, 0, 0};
	if (root[0] != '/')
		return (ZklNameFault) {ZKL_NAME_NOT_ABSOLUTE, 0, 0};
	return find_fault(root + 1, len - 1, false);
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
		case ZKL_MODE_PERMIT:
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
