/*-------------------------------------------------------------------------
 *
 * lockname.c
 *	  Names: what a user may call a lock, and what zklock.root may be.
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
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/lockname.h"

#include <string.h>

#include "common/contender.h"
#include "common/utf8.h"

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

static ZklNameFault
make_fault(ZklNameError error, int component, uint32_t character)
{
	ZklNameFault fault = {error, component, character};

	return fault;
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
			return make_fault(ZKL_NAME_NOT_UTF8, 0, 0);
		if (is_refused(c) && refused.error == ZKL_NAME_OK)
			refused = make_fault(ZKL_NAME_CONTROL_CHARACTER, fault.component, c);
		fault.component += c == '/';
	}
	if (refused.error != ZKL_NAME_OK)
		return refused;

	/*
	 * at the end of a name that ends in a slash there is one more, an empty
	 * one
	 */
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
		else if (zkl_contender_parse_text(component, clen, &contender))
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
		return make_fault(ZKL_NAME_EMPTY, 0, 0);
	if (len > ZKL_NAME_MAX)
		return make_fault(ZKL_NAME_TOO_LONG, 0, 0);
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
		return make_fault(ZKL_NAME_EMPTY, 0, 0);
	if (len > ZKL_ROOT_MAX)
		return make_fault(ZKL_NAME_TOO_LONG, 0, 0);
	if (root[0] != '/')
		return make_fault(ZKL_NAME_NOT_ABSOLUTE, 0, 0);
	return find_fault(root + 1, len - 1, false);
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
