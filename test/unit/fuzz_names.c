/*-------------------------------------------------------------------------
 *
 * fuzz_names.c
 *	  libFuzzer target: everything that parses bytes of users or of other
 *	  ZooKeeper clients.
 *
 * The first byte chooses what the rest is given to, so that one corpus serves
 * all. Beyond the sanitizers' finds, promises are checked: an accepted name
 * makes a path that fits, what is read is clean, and writing it again loses
 * nothing. They are written without the code under test, where that matters.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/contender.h"
#include "common/lockname.h"
#include "common/nodedata.h"

#define UUID	"0f8fad5b-d9cb-469f-a165-70867728950e"

#define MUST(condition) \
	do { \
		if (!(condition)) \
		{ \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

extern int	LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/*
 * Valid UTF-8 without control characters? Decides by encoding every value
 * again, and not as the decoder in utf8.h does.
 */
static bool
is_clean(const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *) text;
	const unsigned char *end = p + len;

	while (p < end)
	{
		int			n = *p < 0x80 ? 1 : *p < 0xC0 ? 0 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : *p < 0xF8 ? 4 : 0;
		uint32_t	c;

		if (n == 0 || end - p < n)
			return false;
		c = n == 1 ? *p : *p & (0x7Fu >> n);
		for (int i = 1; i < n; i++)
		{
			if ((p[i] & 0xC0) != 0x80)
				return false;
			c = c << 6 | (p[i] & 0x3F);
		}
		if (c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0xD800 && c < 0xE000) ||
			c > 0x10FFFF || (n == 2 && c < 0x80) || (n == 3 && c < 0x800) ||
			(n == 4 && c < 0x10000))
			return false;
		p += n;
	}
	return true;
}

static void
must_be_clean(const char *text, size_t size)
{
	MUST(memchr(text, '\0', size) != NULL);
	MUST(is_clean(text, strlen(text)));
}

static void
fuzz_name(const char *bytes, size_t size)
{
	static char root[ZKL_ROOT_MAX + 1];
	char		node[ZKL_NODE_SIZE];
	char		name[ZKL_NAME_MAX + 1];
	char		path[ZKL_PATH_SIZE];
	ZklNameFault fault = zkl_name_fault(bytes, size);
	int			slashes = 0;

	for (size_t i = 0; i < size; i++)
		slashes += bytes[i] == '/';
	MUST(zkl_name_error_text(fault.error) != NULL);
	MUST(fault.error == zkl_name_check(bytes, size));
	MUST(fault.component >= 0 && fault.component <= slashes + 1);
	MUST((fault.character != 0) == (fault.error == ZKL_NAME_CONTROL_CHARACTER));
	if (fault.error != ZKL_NAME_OK)
		return;
	MUST(slashes < ZKL_COMPONENTS_MAX);
	MUST(size >= 1 && size <= ZKL_NAME_MAX);
	MUST(is_clean(bytes, size));
	memcpy(name, bytes, size);
	name[size] = '\0';

	memset(root, 'r', ZKL_ROOT_MAX);
	root[0] = '/';
	memset(node, 'n', sizeof(node) - 1);
	node[sizeof(node) - 1] = '\0';
	zkl_dir_path(path, root, name);
	MUST(strlen(path) == ZKL_ROOT_MAX + 1 + size);
	MUST(strcmp(path + ZKL_ROOT_MAX + 1, name) == 0);
	MUST(strstr(path, "//") == NULL && strstr(path, "/.") == NULL);
	MUST(path[strlen(path) - 1] != '/');
	/* ZooKeeper looks at UTF-16: nothing of four bytes */
	for (size_t i = 0; i < size; i++)
		MUST((unsigned char) name[i] < 0xF0);
	zkl_node_path(path, root, name, node);
	MUST(strlen(path) == ZKL_ROOT_MAX + 1 + size + 1 + ZKL_NODE_SIZE - 1);

	/* no component is a contender in somebody's eyes */
	for (char *c = strtok(name, "/"); c != NULL; c = strtok(NULL, "/"))
	{
		ZklContender contender;

		MUST(!zkl_contender_parse(c, &contender));
	}

	/* what is a name is the end of a root, too */
	if (size < ZKL_ROOT_MAX)
	{
		root[0] = '/';
		memcpy(root + 1, bytes, size);
		MUST(zkl_root_fault(root, size + 1).error == ZKL_NAME_OK);
	}
}

static void
fuzz_root(const char *bytes, size_t size)
{
	if (zkl_root_fault(bytes, size).error == ZKL_NAME_OK)
	{
		MUST(size >= 2 && size <= ZKL_ROOT_MAX);
		MUST(bytes[0] == '/' && bytes[size - 1] != '/');
		MUST(is_clean(bytes, size));
	}
}

static void
fuzz_child(const char *bytes, size_t size)
{
	char	   *child = malloc(size + 1);
	ZklContender c;
	bool		found;
	size_t		len;

	memcpy(child, bytes, size);
	child[size] = '\0';
	len = strlen(child);
	found = zkl_contender_parse(child, &c);
	MUST(found == (c.kind != ZKL_CONTENDER_NONE));
	if (found)
	{
		char		digits[32];

		/* written as the server writes it, the number is the end again */
		snprintf(digits, sizeof(digits), "%010" PRId64, c.digits);
		MUST(len > strlen(digits));
		if (c.digits > 0)
			MUST(strcmp(child + len - strlen(digits), digits) == 0);
		MUST(c.digits <= INT64_C(9999999999) && c.digits >= -INT64_C(9999999999));
		MUST(zkl_mode_conflicts(ZKL_MODE_EXCLUSIVE, c.kind));
		MUST(zkl_mode_conflicts(ZKL_MODE_WRITE, c.kind));
	}
	else
		MUST(c.digits == 0);
	if (zkl_node_place(child) >= 0)
	{
		char		place[32];

		snprintf(place, sizeof(place), "%010" PRId64, zkl_node_place(child));
		MUST(len > 10 && strcmp(child + len - 10, place) == 0);
	}
	if (zkl_node_has_uuid(child, UUID))
		MUST(strncmp(child, "_c_" UUID "-", 40) == 0);
	MUST(!zkl_node_has_uuid("_c_" UUID "-lock-0000000012", child) || strcmp(child, UUID) == 0);
	free(child);
}

static void
fuzz_data(const char *bytes, size_t size)
{
	ZklNodeData data;
	ZklNodeData again;
	char		first[ZKL_NODEDATA_SIZE];
	char		second[ZKL_NODEDATA_SIZE];
	size_t		len;

	zkl_nodedata_read(bytes, size, &data);
	must_be_clean(data.server, sizeof(data.server));
	must_be_clean(data.database, sizeof(data.database));
	must_be_clean(data.user, sizeof(data.user));
	must_be_clean(data.application, sizeof(data.application));
	must_be_clean(data.since, sizeof(data.since));
	must_be_clean(data.breaker, sizeof(data.breaker));
	MUST(data.pid >= 0);

	len = zkl_nodedata_write(&data, first);
	MUST(len < ZKL_NODEDATA_SIZE && first[len] == '\0' && is_clean(first, len));
	MUST(zkl_nodedata_read(first, len, &again));
	MUST(memcmp(data.server, again.server, strlen(data.server) + 1) == 0);
	MUST(strcmp(data.database, again.database) == 0);
	MUST(strcmp(data.user, again.user) == 0);
	MUST(strcmp(data.application, again.application) == 0);
	MUST(strcmp(data.since, again.since) == 0);
	MUST(strcmp(data.breaker, again.breaker) == 0 && data.permits == again.permits);
	MUST(data.pid == again.pid);
	MUST(zkl_nodedata_write(&again, second) == len && memcmp(first, second, len) == 0);
}

/* The bytes are the structure itself: anything may be in the fields. */
static void
fuzz_write(const char *bytes, size_t size)
{
	ZklNodeData data;
	ZklNodeData back;
	char		buf[ZKL_NODEDATA_SIZE];
	size_t		len;

	memset(&data, 0, sizeof(data));
	memcpy(&data, bytes, size < sizeof(data) ? size : sizeof(data));
	len = zkl_nodedata_write(&data, buf);
	MUST(len < ZKL_NODEDATA_SIZE && is_clean(buf, len));
	MUST(zkl_nodedata_read(buf, len, &back));
	fuzz_data(buf, len);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	const char *rest = (const char *) bytes + 1;

	if (size == 0)
		return 0;
	switch (bytes[0] % 5)
	{
		case 0:
			fuzz_name(rest, size - 1);
			break;
		case 1:
			fuzz_root(rest, size - 1);
			break;
		case 2:
			fuzz_child(rest, size - 1);
			break;
		case 3:
			fuzz_data(rest, size - 1);
			break;
		case 4:
			fuzz_write(rest, size - 1);
			break;
	}
	return 0;
}
