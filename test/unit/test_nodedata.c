/*-------------------------------------------------------------------------
 *
 * test_nodedata.c
 *	  What is written into nodes, and what comes back from anybody's.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/nodedata.h"

#include <limits.h>
#include <stdlib.h>

#include "check.h"
#include "common/utf8.h"

/* Read from a copy that is exactly as long as it is. */
static bool
read_bytes(const char *bytes, size_t len, ZklNodeData *data)
{
	char	   *copy = malloc(len > 0 ? len : 1);
	bool		result;

	memcpy(copy, bytes, len);
	memset(data, 0x55, sizeof(*data));
	result = zkl_nodedata_read(copy, len, data);
	free(copy);
	return result;
}

static size_t
write_data(const ZklNodeData *data, char buf[ZKL_NODEDATA_SIZE])
{
	char	   *room = malloc(ZKL_NODEDATA_SIZE);
	size_t		len = zkl_nodedata_write(data, room);

	memcpy(buf, room, len + 1);
	free(room);
	return len;
}

/* Valid UTF-8 and nothing in it that a terminal would act upon. */
static bool
is_clean(const char *text, size_t size)
{
	size_t		len = strnlen(text, size);
	size_t		used;

	if (len == size)
		return false;
	for (size_t i = 0; i < len; i += used)
	{
		uint32_t	c = zkl_utf8_decode(text + i, len - i, &used);

		if (c == ZKL_UTF8_INVALID || c < 0x20 || (c >= 0x7F && c <= 0x9F) ||
			(c >= 0x2028 && c <= 0x202E))
			return false;
	}
	return true;
}

static bool
all_clean(const ZklNodeData *d)
{
	return is_clean(d->server, sizeof(d->server)) &&
		is_clean(d->database, sizeof(d->database)) &&
		is_clean(d->user, sizeof(d->user)) &&
		is_clean(d->application, sizeof(d->application)) &&
		is_clean(d->since, sizeof(d->since)) &&
		is_clean(d->breaker, sizeof(d->breaker)) && d->pid >= 0 && d->permits >= 0;
}

static bool
same(const ZklNodeData *a, const ZklNodeData *b)
{
	return strcmp(a->server, b->server) == 0 && a->pid == b->pid &&
		strcmp(a->database, b->database) == 0 &&
		strcmp(a->user, b->user) == 0 &&
		strcmp(a->application, b->application) == 0 &&
		strcmp(a->since, b->since) == 0 &&
		strcmp(a->breaker, b->breaker) == 0 && a->permits == b->permits && a->timeout == b->timeout;
}

static void
test_write(void)
{
	ZklNodeData d;
	char		buf[ZKL_NODEDATA_SIZE];
	size_t		len;

	memset(&d, 0, sizeof(d));
	strcpy(d.server, "db1:5432");
	d.pid = 4711;
	strcpy(d.database, "billing");
	strcpy(d.user, "app");
	strcpy(d.application, "psql");
	strcpy(d.since, "2026-08-01T12:00:00.000000+02:00");
	len = write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"db1:5432\",\"pid\":4711,\"database\":\"billing\","
			  "\"user\":\"app\",\"application\":\"psql\","
			  "\"since\":\"2026-08-01T12:00:00.000000+02:00\"}", "a full object");
	CHECK_INT((int64_t) len, (int64_t) strlen(buf), "and its length");
	memset(&d, 0, sizeof(d));
	strcpy(d.server, "db1");
	strcpy(d.breaker, "user \"dba\"");
	d.permits = 3;
	d.timeout = 10000;
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"db1\",\"breaker\":\"user \\\"dba\\\"\",\"timeout\":10000,\"leases\":3}",
			  "who breaks it, for how long its owner relies on it, and a semaphore's leases");

	memset(&d, 0, sizeof(d));
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"\"}", "an empty one");
	d.pid = INT_MAX;
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"\",\"pid\":2147483647}", "the largest pid");
	d.pid = INT_MIN;
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"\"}", "a pid that is none");

	d.pid = 0;
	strcpy(d.server, "a\"b\\c/d\n\t\x01\x7F");
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"a\\\"b\\\\c/d\\u000a\\u0009\\u0001\\u007f\"}", "escapes");
	strcpy(d.server, "\xC2\x9B" "31m\xE2\x80\xAE" "x\xE2\x80\xA8\xC2\xA0\xF0\x9F\x98\x80");
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"\\u009b31m\\u202ex\\u2028\xC2\xA0\xF0\x9F\x98\x80\"}",
			  "what a terminal acts upon is escaped, the rest is not");
	strcpy(d.server, "a\xFF" "b\xE2\x82");
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"a\xEF\xBF\xBD" "b\xEF\xBF\xBD\"}", "what is not UTF-8");
	strcpy(d.server, "\xC0\xAF\xED\xA0\x80");
	write_data(&d, buf);
	CHECK_STR(buf, "{\"server\":\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"}",
			  "overlong forms and surrogates, byte for byte");

	/* no terminator anywhere: the field's size is the end */
	memset(&d, 'x', sizeof(d));
	d.pid = 1;
	len = write_data(&d, buf);
	CHECK(len < ZKL_NODEDATA_SIZE && strstr(buf, "\"user\":\"xxx") != NULL,
		  "fields without a terminator");

	/* 254 bytes of room for the server: 42 escapes of 6 bytes */
	memset(&d, 0, sizeof(d));
	memset(d.server, 0x01, sizeof(d.server) - 1);
	strcpy(d.user, "app");
	len = write_data(&d, buf);
	CHECK_INT((int64_t) len, (int64_t) strlen("{\"server\":\"\",\"user\":\"app\"}") + 42 * 6,
			  "escapes are written whole or not at all");
	CHECK(strstr(buf, "\\u0001\",\"user\":\"app\"}") != NULL, "and do not push out what follows");

	/* 84 replacements of 3 bytes, and 2 bytes left */
	memset(d.server, 0xFF, sizeof(d.server) - 1);
	len = write_data(&d, buf);
	CHECK_INT((int64_t) len, (int64_t) strlen("{\"server\":\"\",\"user\":\"app\"}") + 84 * 3,
			  "so are characters");

	memset(&d, '"', sizeof(d));
	d.pid = INT_MAX;
	len = write_data(&d, buf);
	CHECK(len < ZKL_NODEDATA_SIZE && buf[len] == '\0' && buf[len - 1] == '}',
		  "the longest object fits (%zu of %d)", len, ZKL_NODEDATA_SIZE);
}

typedef struct ReadCase
{
	const char *bytes;
	size_t		len;
	bool		want;
	const char *server;
	int			pid;
	const char *user;
} ReadCase;

#define JSON(text, server, pid, user) \
	{(text), sizeof(text) - 1, true, (server), (pid), (user)}
#define OTHER(text, server) \
	{(text), sizeof(text) - 1, false, (server), 0, ""}

static const ReadCase read_cases[] = {
	JSON("{\"server\":\"db1\",\"pid\":12,\"user\":\"app\"}", "db1", 12, "app"),
	JSON(" \t\r\n{ \"user\" : \"app\" , \"server\" : \"db1\" } \n", "db1", 0, "app"),
	JSON("{\"server\":\"\"}", "", 0, ""),

	/* escapes */
	JSON("{\"server\":\"a\\\"\\\\\\/b\"}", "a\"\\/b", 0, ""),
	JSON("{\"server\":\"\\b\\f\\n\\r\\t\"}", "?????", 0, ""),
	JSON("{\"server\":\"\\u0041\\u00e9\\u20AC\"}", "A\xC3\xA9\xE2\x82\xAC", 0, ""),
	JSON("{\"server\":\"\\uD83D\\uDE00\"}", "\xF0\x9F\x98\x80", 0, ""),
	JSON("{\"server\":\"\\uD83Dx\"}", "\xEF\xBF\xBDx", 0, ""),
	JSON("{\"server\":\"\\uDE00\"}", "\xEF\xBF\xBD", 0, ""),
	JSON("{\"server\":\"\\uD83D\\uD83D\\uDE00\"}", "\xEF\xBF\xBD\xF0\x9F\x98\x80", 0, ""),
	JSON("{\"server\":\"\\uD83D\\u0041\"}", "\xEF\xBF\xBD" "A", 0, ""),
	JSON("{\"server\":\"\\uD83D\\uE000\"}", "\xEF\xBF\xBD\xEE\x80\x80", 0, ""),
	JSON("{\"server\":\"\\uD83D\\n\"}", "\xEF\xBF\xBD?", 0, ""),
	JSON("{\"server\":\"a\\u0000b\"}", "a?b", 0, ""),
	JSON("{\"server\":\"\\u001b[31m\\u009b\\u007f\\u202e\"}", "?[31m???", 0, ""),
	JSON("{\"server\":\"\x7F\xC2\x9B\xE2\x80\xAE\xC2\xA0\"}", "???\xC2\xA0", 0, ""),
	JSON("{\"\\u0073erver\":\"db1\"}", "db1", 0, ""),
	JSON("{\"server\\u0000\":\"x\",\"server\":\"db1\"}", "db1", 0, ""),
	JSON("{\"serverserverserver\":\"x\",\"server\":\"db1\"}", "db1", 0, ""),

	/* keys that come twice, or with something else */
	JSON("{\"server\":\"a\",\"server\":\"b\"}", "b", 0, ""),
	JSON("{\"server\":1,\"server\":\"b\"}", "b", 0, ""),
	OTHER("{\"server\":\"a\",\"server\":1}", "{\"server\":\"a\",\"server\":1}"),
	JSON("{\"server\":\"a\",\"user\":\"x\",\"user\":null}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"user\":[\"x\"]}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":5,\"pid\":\"6\"}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"x\":{\"server\":\"b\",\"pid\":[1,2,{}]},\"y\":[],\"z\":true}", "a", 0, ""),

	/* numbers */
	JSON("{\"server\":\"a\",\"pid\":2147483647}", "a", INT_MAX, ""),
	JSON("{\"server\":\"a\",\"pid\":2147483648}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":99999999999999999999999999}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":-1}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":0}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":1.0}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"pid\":1e3}", "a", 0, ""),
	JSON("{\"server\":\"a\",\"x\":-0.5E+10,\"y\":0,\"pid\":7}", "a", 7, ""),
	OTHER("{\"server\":\"a\",\"pid\":01}", "{\"server\":\"a\",\"pid\":01}"),
	OTHER("{\"server\":\"a\",\"pid\":1.}", "{\"server\":\"a\",\"pid\":1.}"),
	OTHER("{\"server\":\"a\",\"pid\":-}", "{\"server\":\"a\",\"pid\":-}"),
	OTHER("{\"server\":\"a\",\"x\":+1}", "{\"server\":\"a\",\"x\":+1}"),
	OTHER("{\"server\":\"a\",\"x\":1e}", "{\"server\":\"a\",\"x\":1e}"),
	OTHER("{\"server\":\"a\",\"x\":.5}", "{\"server\":\"a\",\"x\":.5}"),

	/* not JSON, not an object, or not ours */
	OTHER("", ""),
	OTHER("{}", "{}"),
	OTHER("[]", "[]"),
	OTHER("\"server\"", "\"server\""),
	OTHER("{\"user\":\"app\"}", "{\"user\":\"app\"}"),
	OTHER("{\"x\":{\"server\":\"a\"}}", "{\"x\":{\"server\":\"a\"}}"),
	OTHER("{\"server\":\"a\"", "{\"server\":\"a\""),
	OTHER("{\"server\":\"a\",}", "{\"server\":\"a\",}"),
	OTHER("{\"server\":\"a\"}x", "{\"server\":\"a\"}x"),
	OTHER("{\"server\":\"a\"}\0", "{\"server\":\"a\"}"),
	OTHER("{\"server\":\"a", "{\"server\":\"a"),
	OTHER("{\"server\":\"a\\", "{\"server\":\"a\\"),
	OTHER("{\"server\":\"\\u12", "{\"server\":\"\\u12"),
	OTHER("{\"server\":\"\\u12g4\"}", "{\"server\":\"\\u12g4\"}"),
	OTHER("{\"server\":\"\\x\"}", "{\"server\":\"\\x\"}"),
	OTHER("{\"server\":\"a\nb\"}", "{\"server\":\"a"),
	OTHER("{\"server\":\"a\0b\"}", "{\"server\":\"a"),
	OTHER("{\"server\":\"a\xFF\"}", "{\"server\":\"a"),
	OTHER("{\"server\":\"a\xE2\x82\"}", "{\"server\":\"a"),
	OTHER("{\"server\":\"\xC0\xAF\"}", "{\"server\":\""),
	OTHER("{\"server\":\"a\" \"pid\":1}", "{\"server\":\"a\" \"pid\":1}"),
	OTHER("{\"server\" \"a\"}", "{\"server\" \"a\"}"),
	OTHER("{server:\"a\"}", "{server:\"a\"}"),
	OTHER("{\"server\":\"a\",\"x\":[1,]}", "{\"server\":\"a\",\"x\":[1,]}"),
	OTHER("{\"server\":\"a\",\"x\":[1}", "{\"server\":\"a\",\"x\":[1}"),
	OTHER("{\"server\":\"a\",\"x\":{1:2}}", "{\"server\":\"a\",\"x\":{1:2}}"),
	OTHER("{\"server\":\"a\",\"x\":tru}", "{\"server\":\"a\",\"x\":tru}"),
	OTHER("{\"server\":\"a\",\"x\":nul", "{\"server\":\"a\",\"x\":nul"),
	OTHER("{\"server\":\"a\",\"x\":}", "{\"server\":\"a\",\"x\":}"),
	OTHER("{\"server\":\"a\",\"x\":", "{\"server\":\"a\",\"x\":"),
	OTHER("{\"server\":\"a\",\"pid\":", "{\"server\":\"a\",\"pid\":"),
	OTHER("\xEF\xBB\xBF{\"server\":\"a\"}", "\xEF\xBB\xBF{\"server\":\"a\"}"),

	/* what the others leave there */
	OTHER("192.168.1.17", "192.168.1.17"),
	OTHER("fe80::1%eth0", "fe80::1%eth0"),
	OTHER("worker-3.example.com-4711", "worker-3.example.com-4711"),
	OTHER(ZKL_REVOKE_BYTES, "__REVOKE__"),
	OTHER("host\nand more", "host"),
	OTHER("\x01\x02", ""),
	OTHER("\0\0\0\0", ""),
	OTHER("ho\x1B[31mst", "ho"),
	OTHER("ho\xE2\x80\xAEst", "ho"),
	OTHER("Z\xC3\xBCrich\xFF", "Z\xC3\xBCrich"),
};

static void
test_read(void)
{
	ZklNodeData d;
	char		bytes[4096];
	size_t		len;

	for (size_t i = 0; i < sizeof(read_cases) / sizeof(read_cases[0]); i++)
	{
		const ReadCase *c = &read_cases[i];
		bool		got = read_bytes(c->bytes, c->len, &d);

		if (!CHECK(got == c->want && strcmp(d.server, c->server) == 0 &&
				   d.pid == c->pid && strcmp(d.user, c->user) == 0 &&
				   all_clean(&d), "read case %zu", i))
			printf("# %s: got %d, \"%s\", %d, \"%s\"\n", c->bytes, got, d.server, d.pid, d.user);
	}

	CHECK(!zkl_nodedata_read(NULL, 0, &d) && d.server[0] == '\0', "no data at all");

	/* too long for the field, with a character over its end */
	memset(bytes, 'x', sizeof(bytes));
	CHECK(!read_bytes(bytes, sizeof(bytes), &d) && strlen(d.server) == 127,
		  "a stranger's long text fills the field");
	memcpy(bytes + 126, "\xC3\x9F", 2);
	CHECK(!read_bytes(bytes, sizeof(bytes), &d) && strlen(d.server) == 126,
		  "and is cut before a character, not in it");
	memset(bytes, 'x', sizeof(bytes));
	memcpy(bytes, "{\"server\":\"", 11);
	memcpy(bytes + 11 + 126, "\xC3\x9F" "y\"}", 5);
	CHECK(read_bytes(bytes, 11 + 126 + 5, &d) && strlen(d.server) == 126 &&
		  d.server[125] == 'x', "so is a string in JSON, and nothing comes after the cut");
	memcpy(bytes + 11 + 125, "\xC3\x9F" "y\"}", 5);
	CHECK(read_bytes(bytes, 11 + 125 + 5, &d) && strlen(d.server) == 127,
		  "a character that just fits is not");

	/* only so much is read */
	memset(bytes, ' ', sizeof(bytes));
	memcpy(bytes, "{\"server\":\"a\"}", 14);
	CHECK(read_bytes(bytes, ZKL_NODEDATA_SIZE, &d), "spaces to the limit");
	bytes[ZKL_NODEDATA_SIZE] = 'x';
	CHECK(read_bytes(bytes, sizeof(bytes), &d), "what is behind the limit is not read");
	bytes[ZKL_NODEDATA_SIZE - 1] = 'x';
	CHECK(!read_bytes(bytes, sizeof(bytes), &d), "what is before it is");

	/* depth: the object itself is level 0 */
	for (int depth = 14; depth <= 400; depth = depth < 20 ? depth + 1 : depth * 2)
	{
		len = (size_t) sprintf(bytes, "{\"server\":\"a\",\"x\":");
		for (int i = 0; i < depth; i++)
			bytes[len++] = '[';
		for (int i = 0; i < depth; i++)
			bytes[len++] = ']';
		bytes[len++] = '}';
		CHECK(read_bytes(bytes, len, &d) == (depth <= 15), "%d arrays inside each other", depth);
	}
	memset(bytes, '[', sizeof(bytes));
	CHECK(!read_bytes(bytes, sizeof(bytes), &d), "nothing but brackets");
	for (size_t i = 0; i < sizeof(bytes) - 5; i += 5)
		memcpy(bytes + i, "{\"a\":", 5);
	CHECK(!read_bytes(bytes, sizeof(bytes), &d), "nothing but objects");
}

/* Every beginning of an object is wrong in a way of its own. */
static void
test_truncation(void)
{
	static const char whole[] =
		"{\"server\":\"d\xC3\xA4\\u00e4\\uD83D\\uDE00\",\"pid\":12,\"x\":[{\"a\":-1.5e-3},true,"
		"false,null],\"database\":\"b\\n\",\"user\":\"u\",\"application\":\"\",\"since\":\"s\"}";
	ZklNodeData d;
	int			taken = 0;
	int			unclean = 0;

	CHECK(read_bytes(whole, sizeof(whole) - 1, &d), "the whole object is read");
	CHECK_STR(d.database, "b?", "its database");
	CHECK_STR(d.since, "s", "its time");
	for (size_t len = 0; len < sizeof(whole) - 1; len++)
	{
		if (read_bytes(whole, len, &d))
			taken++;
		if (!all_clean(&d) || d.pid != 0 || d.database[0] != '\0')
			unclean++;
	}
	CHECK_INT(taken, 0, "no beginning of it is");
	CHECK_INT(unclean, 0, "and none leaves anything but a server");
}

static void
random_text(uint64_t *seed, char *text, size_t size, bool clean)
{
	size_t		len = (size_t) check_between(seed, 0, (int64_t) size - 1);
	size_t		at = 0;

	memset(text, 0, size);
	while (at < len)
	{
		char		out[4];
		uint32_t	c;
		size_t		n;

		if (!clean)
		{
			text[at++] = (char) check_random(seed);
			continue;
		}
		switch (check_between(seed, 0, 5))
		{
			case 0:
				c = '"';
				break;
			case 1:
				c = '\\';
				break;
			case 2:
				c = (uint32_t) check_between(seed, 0xA0, 0x1FFF);
				break;
			case 3:
				c = (uint32_t) check_between(seed, 0x10000, 0x10FFFF);
				break;
			default:
				c = (uint32_t) check_between(seed, 0x20, 0x7E);
				break;
		}
		n = zkl_utf8_encode(c, out);
		if (at + n > len)
			break;
		memcpy(text + at, out, n);
		at += n;
	}
}

static void
test_round_trip(void)
{
	uint64_t	seed = 12;
	int			lost = 0;
	int			bad = 0;
	int			unstable = 0;
	size_t		longest = 0;

	for (int i = 0; i < 40000; i++)
	{
		bool		clean = i % 2 == 0;
		ZklNodeData d;
		ZklNodeData back;
		ZklNodeData again;
		char		buf[ZKL_NODEDATA_SIZE];
		char		buf2[ZKL_NODEDATA_SIZE];
		size_t		len;

		random_text(&seed, d.server, sizeof(d.server), clean);
		random_text(&seed, d.database, sizeof(d.database), clean);
		random_text(&seed, d.user, sizeof(d.user), clean);
		random_text(&seed, d.application, sizeof(d.application), clean);
		random_text(&seed, d.since, sizeof(d.since), clean);
		random_text(&seed, d.breaker, sizeof(d.breaker), clean);
		d.pid = (int) check_between(&seed, 0, INT_MAX);

		len = write_data(&d, buf);
		if (len > longest)
			longest = len;
		if (len >= ZKL_NODEDATA_SIZE || strlen(buf) != len || !is_clean(buf, sizeof(buf)))
			bad++;
		if (!read_bytes(buf, len, &back) || !all_clean(&back) || back.pid != d.pid)
			bad++;
		if (clean && !same(&d, &back))
			lost++;
		len = write_data(&back, buf2);
		if (!read_bytes(buf2, len, &again) || !same(&back, &again))
			unstable++;
	}
	CHECK_INT(bad, 0, "40,000 random objects are clean when written and when read");
	CHECK_INT(lost, 0, "clean ones come back as they were");
	CHECK_INT(unstable, 0, "what was read can be written and read again");
	CHECK(longest > 500, "and some of them were long (%zu)", longest);
}

int
main(void)
{
	test_write();
	test_read();
	test_truncation();
	test_round_trip();
	return check_done();
}
