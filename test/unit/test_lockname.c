/*-------------------------------------------------------------------------
 *
 * test_lockname.c
 *	  Names, paths, and who counts as a contender.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/contender.h"
#include "common/lockname.h"

#include <stdlib.h>

#include "check.h"

#define UUID	"0f8fad5b-d9cb-469f-a165-70867728950e"
#define HEX32	"0f8fad5bd9cb469fa16570867728950e"

static const char *const error_names[] = {
	"OK", "EMPTY", "TOO_LONG", "NOT_UTF8", "EMPTY_COMPONENT", "DOT_COMPONENT",
	"CONTROL_CHARACTER", "LOOKS_LIKE_CONTENDER", "RESERVED", "TOO_DEEP", "NOT_ABSOLUTE"
};

typedef struct NameCase
{
	const char *bytes;
	size_t		len;
	ZklNameError want;
} NameCase;

#define CASE(text, want)	{(text), sizeof(text) - 1, (want)}

static const NameCase name_cases[] = {
	CASE("a", ZKL_NAME_OK),
	CASE("billing/nightly", ZKL_NAME_OK),
	CASE("billing:nightly run", ZKL_NAME_OK),
	CASE("a/b/c/d/e", ZKL_NAME_OK),
	CASE("a.b", ZKL_NAME_OK),
	CASE("a..", ZKL_NAME_OK),
	CASE("a/b.", ZKL_NAME_OK),
	CASE("Stra\xC3\x9F" "e", ZKL_NAME_OK),
	CASE("", ZKL_NAME_EMPTY),

	/* slashes and dots */
	CASE("/", ZKL_NAME_EMPTY_COMPONENT),
	CASE("/a", ZKL_NAME_EMPTY_COMPONENT),
	CASE("a/", ZKL_NAME_EMPTY_COMPONENT),
	CASE("a//b", ZKL_NAME_EMPTY_COMPONENT),
	CASE(".", ZKL_NAME_DOT_COMPONENT),
	CASE("..", ZKL_NAME_DOT_COMPONENT),
	CASE(".zklock", ZKL_NAME_DOT_COMPONENT),
	CASE("a/.", ZKL_NAME_DOT_COMPONENT),
	CASE("a/../b", ZKL_NAME_DOT_COMPONENT),
	CASE("a/.b", ZKL_NAME_DOT_COMPONENT),
	CASE("...", ZKL_NAME_DOT_COMPONENT),

	/* control characters, each edge from both sides */
	CASE("\x01", ZKL_NAME_CONTROL_CHARACTER),
	CASE("a\nb", ZKL_NAME_CONTROL_CHARACTER),
	CASE("\x1F", ZKL_NAME_CONTROL_CHARACTER),
	CASE(" ", ZKL_NAME_OK),
	CASE("~", ZKL_NAME_OK),
	CASE("\x7F", ZKL_NAME_CONTROL_CHARACTER),
	CASE("\xC2\x80", ZKL_NAME_CONTROL_CHARACTER),
	CASE("\xC2\x9F", ZKL_NAME_CONTROL_CHARACTER),
	CASE("\xC2\xA0", ZKL_NAME_OK),
	CASE("\xED\x9F\xBF", ZKL_NAME_OK),	/* U+D7FF */
	CASE("\xEE\x80\x80", ZKL_NAME_CONTROL_CHARACTER),	/* U+E000 */
	CASE("\xEF\xA3\xBF", ZKL_NAME_CONTROL_CHARACTER),	/* U+F8FF */
	CASE("\xEF\xA4\x80", ZKL_NAME_OK),	/* U+F900 */
	CASE("\xEF\xBF\xAF", ZKL_NAME_OK),	/* U+FFEF */
	CASE("\xEF\xBF\xB0", ZKL_NAME_CONTROL_CHARACTER),	/* U+FFF0 */
	CASE("\xEF\xBF\xBD", ZKL_NAME_CONTROL_CHARACTER),	/* U+FFFD */
	CASE("\xEF\xBF\xBF", ZKL_NAME_CONTROL_CHARACTER),	/* U+FFFF */
	/* ZooKeeper sees two surrogates and refuses them */
	CASE("\xF0\x90\x80\x80", ZKL_NAME_CONTROL_CHARACTER),	/* U+10000 */
	CASE("\xF0\x9F\x98\x80", ZKL_NAME_CONTROL_CHARACTER),	/* U+1F600 */
	CASE("\xF4\x8F\xBF\xBF", ZKL_NAME_CONTROL_CHARACTER),	/* U+10FFFF */

	/* not UTF-8 */
	CASE("a\0b", ZKL_NAME_NOT_UTF8),
	CASE("\0", ZKL_NAME_NOT_UTF8),
	CASE("a\0", ZKL_NAME_NOT_UTF8),
	CASE("\x80", ZKL_NAME_NOT_UTF8),
	CASE("a\xBF", ZKL_NAME_NOT_UTF8),
	CASE("\xC0\xAF", ZKL_NAME_NOT_UTF8),	/* overlong slash */
	CASE("\xC0\x80", ZKL_NAME_NOT_UTF8),	/* overlong NUL */
	CASE("\xC1\xBF", ZKL_NAME_NOT_UTF8),
	CASE("\xE0\x80\xAF", ZKL_NAME_NOT_UTF8),
	CASE("\xE0\x9F\xBF", ZKL_NAME_NOT_UTF8),
	CASE("\xE0\xA0\x80", ZKL_NAME_OK),	/* U+0800 */
	CASE("\xF0\x80\x80\xAF", ZKL_NAME_NOT_UTF8),
	CASE("\xF0\x8F\xBF\xBF", ZKL_NAME_NOT_UTF8),
	CASE("\xED\xA0\x80", ZKL_NAME_NOT_UTF8),	/* U+D800 */
	CASE("\xED\xBF\xBF", ZKL_NAME_NOT_UTF8),	/* U+DFFF */
	CASE("\xED\xA0\xBD\xED\xB8\x80", ZKL_NAME_NOT_UTF8),	/* CESU-8 */
	CASE("\xF4\x90\x80\x80", ZKL_NAME_NOT_UTF8),	/* U+110000 */
	CASE("\xF5\x80\x80\x80", ZKL_NAME_NOT_UTF8),
	CASE("\xFF", ZKL_NAME_NOT_UTF8),
	CASE("\xC3", ZKL_NAME_NOT_UTF8),	/* cut */
	CASE("\xE2\x82", ZKL_NAME_NOT_UTF8),
	CASE("\xF0\x9F\x98", ZKL_NAME_NOT_UTF8),
	CASE("\xC3/", ZKL_NAME_NOT_UTF8),
	CASE("\xE2\x82/x", ZKL_NAME_NOT_UTF8),

	/* contenders, at any depth */
	CASE("lock-0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("_c_" UUID "-lock-0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/lock-0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("lock-0000000012/a", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/x__READ__0000000012/b", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/__WRIT__0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/" HEX32 "__lock__0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/" HEX32 "__rlock__0000000012", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/lock--2147483648", ZKL_NAME_LOOKS_LIKE_CONTENDER),
	CASE("a/lock-00000000012", ZKL_NAME_OK),	/* eleven */
	CASE("a/0000000012", ZKL_NAME_OK),	/* no marker */
	CASE("lock-000000012", ZKL_NAME_OK),
	CASE("lock-00000000012", ZKL_NAME_OK),
	CASE("lock-", ZKL_NAME_OK),
	CASE("lock-0000000012x", ZKL_NAME_OK),

	/* what would mislead others from inside a lock's directory */
	CASE("locks", ZKL_NAME_OK),
	CASE("leases", ZKL_NAME_OK),
	CASE("12", ZKL_NAME_OK),
	CASE("0000000012", ZKL_NAME_OK),
	CASE("a/locks", ZKL_NAME_RESERVED),
	CASE("a/leases", ZKL_NAME_RESERVED),
	CASE("a/leases/b", ZKL_NAME_RESERVED),
	CASE("a/b/locks", ZKL_NAME_RESERVED),
	CASE("locks/a", ZKL_NAME_OK),
	CASE("a/lock", ZKL_NAME_OK),
	CASE("a/locks2", ZKL_NAME_OK),
	CASE("a/Locks", ZKL_NAME_OK),
	CASE("a/xlocks", ZKL_NAME_OK),

	/*
	 * what Curator or Go, one level up, may wait behind: names that people
	 * use
	 */
	CASE("customer/42", ZKL_NAME_OK),
	CASE("invoice/2026/11", ZKL_NAME_OK),
	CASE("order/" UUID, ZKL_NAME_OK),
	CASE("a/0", ZKL_NAME_OK),
	CASE("a/1", ZKL_NAME_OK),
	CASE("a/1x", ZKL_NAME_OK),
	CASE("a/0x", ZKL_NAME_OK),
	CASE("a/2026-08", ZKL_NAME_OK),
	CASE("a/12/b", ZKL_NAME_OK),
	CASE("-x", ZKL_NAME_OK),
	CASE("a/-x", ZKL_NAME_OK),
	CASE("a/ x", ZKL_NAME_OK),
	CASE("a/deadlock-", ZKL_NAME_OK),
	CASE("a/lock-0", ZKL_NAME_OK),
	CASE("a/lock- ", ZKL_NAME_OK),
	CASE("a/lock-x", ZKL_NAME_OK),
	CASE("a/lock-1", ZKL_NAME_OK),
	CASE("a/lock-1lock-", ZKL_NAME_OK),
	CASE("a/lock--lock-x", ZKL_NAME_OK),
	CASE("a/x__WRIT__", ZKL_NAME_OK),
	CASE("a/x__READ__-", ZKL_NAME_OK),

	/* each component is a node more */
	CASE("1/2/3/4/5/6/7/8", ZKL_NAME_OK),
	CASE("1/2/3/4/5/6/7/8/9", ZKL_NAME_TOO_DEEP),
	CASE("1/2/3/4/5/6/7/8/", ZKL_NAME_EMPTY_COMPONENT),
	CASE("1/2/3/4/5/6/7/8/locks", ZKL_NAME_RESERVED),
	CASE("a/\xC3\x9F", ZKL_NAME_OK),
};

static void
test_names(void)
{
	char		name[600];

	for (size_t i = 0; i < sizeof(name_cases) / sizeof(name_cases[0]); i++)
	{
		const NameCase *c = &name_cases[i];
		char	   *copy = malloc(c->len > 0 ? c->len : 1);
		ZklNameError got;

		/* exactly as long as it is, so that a byte too far is noticed */
		memcpy(copy, c->bytes, c->len);
		got = zkl_name_check(copy, c->len);
		free(copy);
		if (!CHECK(got == c->want, "name case %zu is %s", i, error_names[c->want]))
			printf("# got %s\n", error_names[got]);
	}

	memset(name, 'a', sizeof(name));
	CHECK_INT(zkl_name_check(name, 255), ZKL_NAME_OK, "255 bytes are a name");
	CHECK_INT(zkl_name_check(name, 256), ZKL_NAME_TOO_LONG, "256 bytes are not");
	CHECK_INT(zkl_name_check(name, 1000000000), ZKL_NAME_TOO_LONG,
			  "too long is decided without reading");

	/* the limit is in bytes, also when the last character has several */
	memcpy(name + 253, "\xC3\x9F", 2);
	CHECK_INT(zkl_name_check(name, 255), ZKL_NAME_OK, "two-byte character ends at byte 255");
	CHECK_INT(zkl_name_check(name, 254), ZKL_NAME_NOT_UTF8, "cut inside it");
	memcpy(name + 252, "a\xC3\x9F\xC3", 4);
	memcpy(name + 254, "\xC3\x9F", 2);
	CHECK_INT(zkl_name_check(name, 256), ZKL_NAME_TOO_LONG, "two-byte character over byte 256");
	CHECK_INT(zkl_name_check(name, 255), ZKL_NAME_NOT_UTF8, "and cut to 255");
}

/* Which component is at fault. */
static void
test_faults(void)
{
	static const struct
	{
		const char *name;
		ZklNameError error;
		int			component;
		uint32_t	character;
	}			cases[] =
	{
		{"a/b", ZKL_NAME_OK, 0, 0},
		{"", ZKL_NAME_EMPTY, 0, 0},
		{"/a", ZKL_NAME_EMPTY_COMPONENT, 1, 0},
		{"a/", ZKL_NAME_EMPTY_COMPONENT, 2, 0},
		{"a//b", ZKL_NAME_EMPTY_COMPONENT, 2, 0},
		{".a/b", ZKL_NAME_DOT_COMPONENT, 1, 0},
		{"a/b/.c", ZKL_NAME_DOT_COMPONENT, 3, 0},
		{"a/b/lock-0000000012/c", ZKL_NAME_LOOKS_LIKE_CONTENDER, 3, 0},
		{"a/locks", ZKL_NAME_RESERVED, 2, 0},
		{"a/b/leases/c", ZKL_NAME_RESERVED, 3, 0},
		{"a/\n/\t", ZKL_NAME_CONTROL_CHARACTER, 2, 0x0A},
		{"a/b/\xF0\x9F\x98\x80", ZKL_NAME_CONTROL_CHARACTER, 3, 0x1F600},
		{"1/2/3/4/5/6/7/8/9/10", ZKL_NAME_TOO_DEEP, 9, 0},
		{"a/\xFF", ZKL_NAME_NOT_UTF8, 0, 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		ZklNameFault got = zkl_name_fault(cases[i].name, strlen(cases[i].name));

		if (!CHECK(got.error == cases[i].error && got.component == cases[i].component &&
				   got.character == cases[i].character, "fault case %zu", i))
			printf("# got %s, component %d, U+%04X\n", error_names[got.error], got.component,
				   (unsigned) got.character);
	}
	CHECK_INT(zkl_root_fault("/a//b", 5).component, 2, "a root's component, likewise");
}

static void
test_roots(void)
{
	static const NameCase cases[] = {
		CASE("/zklock", ZKL_NAME_OK),
		CASE("/a/b/c", ZKL_NAME_OK),
		CASE("/a/1", ZKL_NAME_OK),
		CASE("/a/locks", ZKL_NAME_OK),
		CASE("/lock-0000000012", ZKL_NAME_OK),
		CASE("/a/-x", ZKL_NAME_OK),
		CASE("/1/2/3/4/5/6/7/8/9/10", ZKL_NAME_OK),
		CASE("", ZKL_NAME_EMPTY),
		CASE("zklock", ZKL_NAME_NOT_ABSOLUTE),
		CASE("/", ZKL_NAME_EMPTY_COMPONENT),
		CASE("//a", ZKL_NAME_EMPTY_COMPONENT),
		CASE("/a/", ZKL_NAME_EMPTY_COMPONENT),
		CASE("/a//b", ZKL_NAME_EMPTY_COMPONENT),
		CASE("/.a", ZKL_NAME_DOT_COMPONENT),
		CASE("/a/..", ZKL_NAME_DOT_COMPONENT),
		CASE("/a\tb", ZKL_NAME_CONTROL_CHARACTER),
		CASE("/a\xF0\x9F\x98\x80", ZKL_NAME_CONTROL_CHARACTER),
		CASE("/a\xFF", ZKL_NAME_NOT_UTF8),
		CASE("/a\0b", ZKL_NAME_NOT_UTF8),
	};
	char		root[300];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		ZklNameError got = zkl_root_fault(cases[i].bytes, cases[i].len).error;

		if (!CHECK(got == cases[i].want, "root case %zu is %s", i, error_names[cases[i].want]))
			printf("# got %s\n", error_names[got]);
	}
	memset(root, 'r', sizeof(root));
	root[0] = '/';
	CHECK_INT(zkl_root_fault(root, 255).error, ZKL_NAME_OK, "a root of 255 bytes");
	CHECK_INT(zkl_root_fault(root, 256).error, ZKL_NAME_TOO_LONG, "a root of 256 bytes");
}

static void
test_error_texts(void)
{
	bool		distinct = true;

	for (int i = 0; i <= ZKL_NAME_NOT_ABSOLUTE; i++)
	{
		const char *text = zkl_name_error_text((ZklNameError) i);

		if (text == NULL || text[0] == '\0')
			distinct = false;
		for (int j = 0; distinct && j < i; j++)
		{
			if (strcmp(text, zkl_name_error_text((ZklNameError) j)) == 0)
				distinct = false;
		}
	}
	CHECK(distinct, "every error has its own text");
	CHECK(zkl_name_error_text((ZklNameError) 99) != NULL, "an unknown error has one too");
}

typedef struct ContenderCase
{
	const char *child;
	ZklContenderKind kind;
	int64_t		digits;
} ContenderCase;

static const ContenderCase contender_cases[] = {
	/* everybody's own */
	{"_c_" UUID "-lock-0000000012", ZKL_CONTENDER_LOCK, 12},
	{"_c_" UUID "-__READ__0000000012", ZKL_CONTENDER_READ, 12},
	{"_c_" UUID "-__WRIT__0000000012", ZKL_CONTENDER_WRITE, 12},
	{HEX32 "__lock__0000000012", ZKL_CONTENDER_LOCK, 12},
	{HEX32 "__rlock__0000000012", ZKL_CONTENDER_READ, 12},
	{"_c_" HEX32 "-lock-0000000012", ZKL_CONTENDER_LOCK, 12},
	{"lock-0000000000", ZKL_CONTENDER_LOCK, 0},
	{"__READ__0000000001", ZKL_CONTENDER_READ, 1},
	{"__WRIT__2147483647", ZKL_CONTENDER_WRITE, INT32_MAX},
	{"__lock__2000000001", ZKL_CONTENDER_LOCK, 2000000001},
	{"__rlock__0000000000", ZKL_CONTENDER_READ, 0},
	{"deadlock-0000000012", ZKL_CONTENDER_LOCK, 12},
	{"lock-lock-0000000012", ZKL_CONTENDER_LOCK, 12},
	{"__READ__0000000007__WRIT__0000000012", ZKL_CONTENDER_WRITE, 12},
	{"lock-9999999999", ZKL_CONTENDER_LOCK, INT64_C(9999999999)},

	/* a counter that wrapped; "%010d" leaves room for the sign */
	{"lock--2147483648", ZKL_CONTENDER_LOCK, INT32_MIN},
	{"lock--1000000000", ZKL_CONTENDER_LOCK, -1000000000},
	{"lock--999999999", ZKL_CONTENDER_LOCK, -999999999},
	{"lock--000000005", ZKL_CONTENDER_LOCK, -5},
	{"x__WRIT__-2147483648", ZKL_CONTENDER_WRITE, INT32_MIN},
	{"x__READ__-000000001", ZKL_CONTENDER_READ, -1},
	{"x__rlock__-2147483648", ZKL_CONTENDER_READ, INT32_MIN},

	/* not quite */
	{"", ZKL_CONTENDER_NONE, 0},
	{"0000000012", ZKL_CONTENDER_NONE, 0},
	{"-0000000012", ZKL_CONTENDER_NONE, 0},
	{"lock-", ZKL_CONTENDER_NONE, 0},
	{"_c_" UUID "-lock-", ZKL_CONTENDER_NONE, 0},
	{"__READ__", ZKL_CONTENDER_NONE, 0},
	{"lock-1", ZKL_CONTENDER_NONE, 0},
	{"lock-000000012", ZKL_CONTENDER_NONE, 0},	/* nine */
	{"lock-00000000012", ZKL_CONTENDER_NONE, 0},	/* eleven */
	{"lock-100000000000000000000012", ZKL_CONTENDER_NONE, 0},
	{"lock--00000005", ZKL_CONTENDER_NONE, 0},	/* eight after a sign */
	{"lock--00000000005", ZKL_CONTENDER_NONE, 0},	/* eleven after a sign */
	{"lock---2147483648", ZKL_CONTENDER_NONE, 0},
	{"lock-+0000000012", ZKL_CONTENDER_NONE, 0},
	{"lock- 0000000012", ZKL_CONTENDER_NONE, 0},
	{"lock-0000000012 ", ZKL_CONTENDER_NONE, 0},
	{"lock-0000000012\n", ZKL_CONTENDER_NONE, 0},
	{"lock-0000000012x", ZKL_CONTENDER_NONE, 0},
	{"lock-0000000012/x", ZKL_CONTENDER_NONE, 0},
	{"lock-00000x0012", ZKL_CONTENDER_NONE, 0},
	{"lock-0x00000012", ZKL_CONTENDER_NONE, 0},
	{"lock0000000012", ZKL_CONTENDER_NONE, 0},
	{"lock_0000000012", ZKL_CONTENDER_NONE, 0},
	{"LOCK-0000000012", ZKL_CONTENDER_NONE, 0},
	{"Lock-0000000012", ZKL_CONTENDER_NONE, 0},
	{"__read__0000000012", ZKL_CONTENDER_NONE, 0},
	{"__READ_0000000012", ZKL_CONTENDER_NONE, 0},
	{"_READ__0000000012", ZKL_CONTENDER_NONE, 0},
	{"_lock__0000000012", ZKL_CONTENDER_NONE, 0},
	{"__wlock__0000000012", ZKL_CONTENDER_NONE, 0},
	{"ock-0000000012", ZKL_CONTENDER_NONE, 0},
	{"_c_" UUID "-lease-0000000012", ZKL_CONTENDER_NONE, 0},
	{"latch-0000000012", ZKL_CONTENDER_NONE, 0},
	/* digits of other scripts are no digits: U+0660 */
	{"lock-\xD9\xA0\xD9\xA0\xD9\xA0\xD9\xA0\xD9\xA0", ZKL_CONTENDER_NONE, 0},
	{"lock-\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", ZKL_CONTENDER_NONE, 0},
};

static void
test_contenders(void)
{
	ZklContender c;
	char	   *big;
	size_t		size = 1024 * 1024;

	for (size_t i = 0; i < sizeof(contender_cases) / sizeof(contender_cases[0]); i++)
	{
		const ContenderCase *want = &contender_cases[i];
		char	   *copy = strdup(want->child);
		bool		found;

		c.kind = (ZklContenderKind) 77;
		c.digits = 77;
		found = zkl_contender_parse(copy, &c);
		free(copy);
		if (!CHECK(found == (want->kind != ZKL_CONTENDER_NONE) &&
				   c.kind == want->kind && c.digits == want->digits,
				   "contender case %zu", i))
			printf("# %s: got kind %d, digits %" PRId64 "\n", want->child, c.kind, c.digits);
	}

	big = malloc(size + 1);
	memset(big, 'x', size);
	big[size] = '\0';
	CHECK(!zkl_contender_parse(big, &c), "a megabyte of nothing");
	memcpy(big + size - 15, "lock-0000000012", 15);
	CHECK(zkl_contender_parse(big, &c) && c.digits == 12, "a megabyte before the marker");
	memset(big, '0', size);
	CHECK(!zkl_contender_parse(big, &c), "a megabyte of digits");
	memset(big, '-', size);
	CHECK(!zkl_contender_parse(big, &c), "a megabyte of signs");
	free(big);
}

static void
test_conflicts(void)
{
	CHECK(zkl_mode_conflicts(ZKL_MODE_EXCLUSIVE, ZKL_CONTENDER_LOCK) &&
		  zkl_mode_conflicts(ZKL_MODE_EXCLUSIVE, ZKL_CONTENDER_READ) &&
		  zkl_mode_conflicts(ZKL_MODE_EXCLUSIVE, ZKL_CONTENDER_WRITE) &&
		  !zkl_mode_conflicts(ZKL_MODE_EXCLUSIVE, ZKL_CONTENDER_NONE),
		  "exclusive waits for everybody");
	CHECK(zkl_mode_conflicts(ZKL_MODE_WRITE, ZKL_CONTENDER_LOCK) &&
		  zkl_mode_conflicts(ZKL_MODE_WRITE, ZKL_CONTENDER_READ) &&
		  zkl_mode_conflicts(ZKL_MODE_WRITE, ZKL_CONTENDER_WRITE) &&
		  !zkl_mode_conflicts(ZKL_MODE_WRITE, ZKL_CONTENDER_NONE),
		  "write waits for everybody");
	CHECK(zkl_mode_conflicts(ZKL_MODE_READ, ZKL_CONTENDER_LOCK) &&
		  !zkl_mode_conflicts(ZKL_MODE_READ, ZKL_CONTENDER_READ) &&
		  zkl_mode_conflicts(ZKL_MODE_READ, ZKL_CONTENDER_WRITE) &&
		  !zkl_mode_conflicts(ZKL_MODE_READ, ZKL_CONTENDER_NONE),
		  "read waits for all but readers");
}

static void
test_nodes(void)
{
	static const struct
	{
		ZklMode		mode;
		const char *prefix;
		ZklContenderKind kind;
	}			modes[] =
	{
		{ZKL_MODE_EXCLUSIVE, "_c_" UUID "-lock-", ZKL_CONTENDER_LOCK},
		{ZKL_MODE_READ, "_c_" UUID "-__READ__", ZKL_CONTENDER_READ},
		{ZKL_MODE_WRITE, "_c_" UUID "-__WRIT__", ZKL_CONTENDER_WRITE},
	};
	char		buf[ZKL_NODE_SIZE];
	char		node[ZKL_NODE_SIZE + 16];
	char		longest[300];
	ZklContender c;
	ZklMode		mode;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
	{
		zkl_node_prefix(buf, UUID, modes[i].mode);
		CHECK_STR(buf, modes[i].prefix, "prefix of a node");
		snprintf(node, sizeof(node), "%s%010d", buf, 2147483647);
		CHECK(zkl_contender_parse(node, &c) && c.kind == modes[i].kind &&
			  c.digits == INT32_MAX, "which is a contender of its kind");
		CHECK(strlen(node) >= 55 && strlen(node) <= 58, "and as long as promised");
		CHECK(zkl_node_has_uuid(node, UUID), "and is recognized");
		CHECK(zkl_mode_parse(zkl_mode_name(modes[i].mode), &mode) &&
			  mode == modes[i].mode, "mode and name, both ways");
	}
	memset(longest, 'u', sizeof(longest));
	longest[299] = '\0';
	zkl_node_prefix(buf, longest, ZKL_MODE_READ);
	CHECK_STR(buf, "", "a uuid that is none does not overflow");
	zkl_node_prefix(buf, UUID, (ZklMode) 99);
	CHECK_STR(buf, "", "a mode that is none makes no node");

	mode = ZKL_MODE_WRITE;
	CHECK(!zkl_mode_parse("Exclusive", &mode) && !zkl_mode_parse("", &mode) &&
		  !zkl_mode_parse("exclusive ", &mode) && !zkl_mode_parse("excl", &mode) &&
		  !zkl_mode_parse("unknown", &mode) && mode == ZKL_MODE_WRITE,
		  "nothing else is a mode");
	CHECK(zkl_mode_name((ZklMode) 99) != NULL, "a mode that is none has a name");

	CHECK(!zkl_node_has_uuid("_c_" UUID, UUID), "uuid without what follows");
	CHECK(!zkl_node_has_uuid("_c_" UUID "x", UUID), "uuid followed by something else");
	CHECK(!zkl_node_has_uuid("_c_0f8fad5b-d9cb-469f-a165-70867728950f-lock-0000000012", UUID),
		  "uuid that differs in the last place");
	CHECK(!zkl_node_has_uuid("x_c_" UUID "-lock-0000000012", UUID), "uuid not at the beginning");
	CHECK(!zkl_node_has_uuid("_c_0F8FAD5B-D9CB-469F-A165-70867728950E-lock-0000000012", UUID),
		  "uuid in upper case is another");
	CHECK(!zkl_node_has_uuid("", UUID) && !zkl_node_has_uuid("_c_", UUID), "short children");
	CHECK(!zkl_node_has_uuid("_c_-lock-0000000012", "") && !zkl_node_has_uuid("_c_", ""),
		  "an empty uuid owns nothing");
	CHECK(!zkl_node_has_uuid("_c_" UUID "-lock-0000000012", UUID "x"), "nor does a longer one");
	CHECK(!zkl_node_has_uuid("_c_0f8fad5b-d9cb-lock-0000000012", "0f8fad5b-d9cb"),
		  "nor does part of one");
}

/* Where a child stands among the others of its directory. */
static void
test_places(void)
{
	static const struct
	{
		const char *child;
		int64_t		place;
	}			cases[] =
	{
		{"_c_" UUID "-lease-0000000012", 12},
		{"_c_" UUID "-lock-0000000000", 0},
		{"x2000000000", 2000000000},
		{"x2000000001", -1},	/* the counter sticks, or has wrapped */
		{"x2147483647", -1},
		{"_c_" UUID "-lease--2147483648", -1},
		{"_c_" UUID "-lease--1000000000", -1},
		{"_c_" UUID "-lease--000000005", -1},
		{"x00000000012", -1},	/* eleven */
		{"x000000012", -1},		/* nine */
		{"0000000012", -1},		/* nothing but a number: nobody's */
		{"x00000 0012", -1},
		{"junk", -1},
		{"", -1},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		CHECK_INT(zkl_node_place(cases[i].child), cases[i].place, cases[i].child);
}

static void
test_paths(void)
{
	char	   *buf = malloc(ZKL_PATH_SIZE);
	char		root[ZKL_ROOT_MAX + 2];
	char		name[ZKL_NAME_MAX + 2];
	char		node[ZKL_NODE_SIZE + 1];

	zkl_dir_path(buf, "/zklock", "billing/nightly");
	CHECK_STR(buf, "/zklock/billing/nightly", "path of a directory");
	zkl_node_path(buf, "/zklock", "billing/nightly", "_c_x-lock-0000000012");
	CHECK_STR(buf, "/zklock/billing/nightly/_c_x-lock-0000000012", "path of a node");

	memset(root, 'r', sizeof(root));
	memset(name, 'n', sizeof(name));
	memset(node, 'c', sizeof(node));
	root[0] = '/';
	root[ZKL_ROOT_MAX] = '\0';
	name[ZKL_NAME_MAX] = '\0';
	node[ZKL_NODE_SIZE - 1] = '\0';
	zkl_node_path(buf, root, name, node);
	CHECK_INT((int64_t) strlen(buf), ZKL_PATH_SIZE - 1, "the longest path fits exactly");
	zkl_dir_path(buf, root, name);
	CHECK_INT((int64_t) strlen(buf), ZKL_ROOT_MAX + 1 + ZKL_NAME_MAX, "the longest directory");

	node[ZKL_NODE_SIZE - 1] = 'c';
	node[ZKL_NODE_SIZE] = '\0';
	zkl_node_path(buf, root, name, node);
	CHECK_STR(buf, "", "a byte more is no path, rather than another one");
	free(buf);
}

static void
test_uuids(void)
{
	static const unsigned char bytes[16] = {
		0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
		0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff
	};
	unsigned char random[16];
	char		buf[ZKL_UUID_SIZE];

	zkl_uuid_format(buf, bytes);
	CHECK_STR(buf, "00112233-4455-4677-8899-aabbccddeeff", "uuid of a pattern");
	memset(random, 0xFF, sizeof(random));
	zkl_uuid_format(buf, random);
	CHECK_STR(buf, "ffffffff-ffff-4fff-bfff-ffffffffffff", "uuid of ones");
	memset(random, 0, sizeof(random));
	zkl_uuid_format(buf, random);
	CHECK_STR(buf, "00000000-0000-4000-8000-000000000000", "uuid of zeros");
}

/*
 * Names put together from the pieces that matter. Checked against the rules in
 * another form: an accepted name has none of the forbidden pieces.
 */
static void
test_random_names(void)
{
	static const char *const pieces[] = {
		"a", "b", "/", "//", ".", "..", "lock-", "__READ__", "__WRIT__",
		"__lock__", "__rlock__", "0000000012", "012", "7", "-", "locks",
		"leases", "\xC3\x9F", "\xC3", "\xED\xA0\x80", "\n", " ", "_c_"
	};
	uint64_t	seed = 4711;
	int			accepted = 0;
	int			wrong = 0;

	for (int i = 0; i < 300000; i++)
	{
		char		name[256] = "/";	/* and a slash on both sides */
		int			n = (int) check_between(&seed, 1, 6);
		size_t		len;

		for (int j = 0; j < n; j++)
			strcat(name, pieces[check_between(&seed, 0, (int64_t) (sizeof(pieces) / sizeof(pieces[0])) - 1)]);
		len = strlen(name) - 1;
		if (zkl_name_check(name + 1, len) != ZKL_NAME_OK)
			continue;
		accepted++;
		strcat(name, "/");
		if (strstr(name, "//") || strstr(name, "/.") || strstr(name, "\n") ||
			strstr(name, "\xED\xA0") || strstr(name + 1, "/locks/") ||
			strstr(name + 1, "/leases/") ||
			strstr(name, "/lock-0000000012/") || strstr(name, "__READ__0000000012/") ||
			strstr(name, "__lock__0000000012/") || strstr(name, "__rlock__0000000012/"))
		{
			if (wrong++ == 0)
				printf("# accepted: %s\n", name);
		}
	}
	CHECK_INT(wrong, 0, "no forbidden piece in 300,000 random names");
	CHECK(accepted > 20000, "of which enough were accepted (%d)", accepted);
}

int
main(void)
{
	test_names();
	test_faults();
	test_roots();
	test_error_texts();
	test_contenders();
	test_conflicts();
	test_nodes();
	test_places();
	test_paths();
	test_uuids();
	test_random_names();
	return check_done();
}
