/*-------------------------------------------------------------------------
 *
 * test_names.c
 *	  Names that people give to locks, from a grammar, through the check.
 *
 *		test_names				100,000 of them: each is accepted, or refused with the
 *								component named that is at fault
 *		test_names --print N	the first N different ones that are accepted, for the
 *								tests that take these locks
 *
 * What is at fault is decided here by other means than in lockname.c: the name is split
 * first, and each component compared with what a regular expression would say.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/lockname.h"

#include <ctype.h>
#include <stdlib.h>

#include "check.h"

#define NAMES		100000
#define MOST_PARTS	64

static uint64_t seed = 20261130;

static int
below(int n)
{
	return (int) check_between(&seed, 0, n - 1);
}

#define PICK(array)	((array)[below((int) (sizeof(array) / sizeof((array)[0])))])

static const char *const nouns[] = {
	"customer", "invoice", "order", "billing", "nightly", "tenant", "job", "queue", "report",
	"public.orders", "orders_2026", "Kunde", "\xC3\x9C" "bersicht", "Stra\xC3\x9F" "e", "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E",
	"\xD0\xB7\xD0\xB0\xD0\xBA\xD0\xB0\xD0\xB7", "M\xC3\xBCller & S\xC3\xB6hne", "l'h\xC3\xB4tel", "cron", "export", "sync", "lock", "lockfile",
	"deadlock-check", "mutex", "leader", "master", "migrate", "vacuum", "refresh", "camelCase", "SHOUT",
	"db1", "pg-main", "eu-west-1", "release", "leases", "locks", "semaphore", "user", "account"
};

static const char *const verbs[] = {
	"import", "export", "rebuild", "send", "pay", "close", "archive", "index", "dedupe", "lock-", "un lock"
};

/* What somebody puts between two parts without a thought of paths. */
static const char *const joints[] = {":", "-", "_", ".", " ", "#", "|", "@", "=", "->", ", "};

/* Mistakes, and what is fine though it looks odd. */
static const char *const oddities[] = {
	"", "", ".", "..", ".env", ".git", ".zklock", "~", "*", "%s", "$1", "{}", "NULL", "null", "\\", "\"quoted\"", "'", "--", "-",
	"\xC2\xA0", "\xE2\x80\x8B", "\xEF\xBB\xBF", "tab\there", "line\nbreak", "\xF0\x9F\x94\x92", "caf\xE9", "\x7F", "a\xC2\x85",
	"lock-1", "lock-0000000012", "x__WRIT__0000000003", "read__READ__", "__lock__", "locks", "leases", "Locks", "0000000012", "-5", "0x1F",
	"_c_", "+", " leading", "trailing ", "a.b.", "?x=1&y=2", "[1,2]", "<none>", "\xEE\x80\x80"
};

static void
put(char *to, const char *fmt,...)
{
	size_t		used = strlen(to);
	va_list		args;

	va_start(args, fmt);
	vsnprintf(to + used, 2048 - used, fmt, args);
	va_end(args);
}

static void
put_hex(char *to, int digits, bool upper)
{
	for (int i = 0; i < digits; i++)
		put(to, upper ? "%X" : "%x", below(16));
}

static void
put_uuid(char *to, bool upper)
{
	put_hex(to, 8, upper);
	for (int i = 0; i < 3; i++)
	{
		put(to, "-");
		put_hex(to, 4, upper);
	}
	put(to, "-");
	put_hex(to, 12, upper);
}

/* A value that tells one from another: what a program appends. */
static void
put_value(char *to)
{
	static const int tens[] = {10, 100, 1000, 1000000, 2000000000};

	switch (below(16))
	{
		case 0:
		case 1:
		case 2:
			put(to, "%d", below(PICK(tens)));
			break;
		case 3:
		case 4:
			put_uuid(to, below(8) == 0);
			break;
		case 5:
			put(to, "%0*d", 2 + below(10), below(100000));
			break;
		case 6:
			put(to, "%04d-%02d-%02d", 1990 + below(50), 1 + below(12), 1 + below(31));
			break;
		case 7:
			put(to, "%04d-%02d-%02d%c%02d:%02d:%02d%s", 2026, 1 + below(12), 1 + below(31), below(2) ? 'T' : ' ',
				below(24), below(60), below(60), below(2) ? "Z" : "+02");
			break;
		case 8:
			put(to, "%s%d.example.com:%d", below(2) ? "db" : "www", below(10), 5432 + below(3));
			break;
		case 9:
			put(to, "10.%d.%d.%d", below(256), below(256), below(256));
			break;
		case 10:
			put_hex(to, 32 + 8 * below(2), false);
			break;
		case 11:
			put(to, "%s.%s@example.org", PICK(verbs), PICK(nouns));
			break;
		case 12:
			put(to, "{\"id\": %d}", below(1000));
			break;
		case 13:
			put(to, "v%d.%d.%d", below(3), below(20), below(10));
			break;
		case 14:
			put(to, "%d", -below(1000));
			break;
		case 15:
			put(to, "%d.%02d", below(1000), below(100));
			break;
	}
}

static void
put_part(char *to)
{
	switch (below(12))
	{
		case 0:
		case 1:
		case 2:
		case 3:
			put(to, "%s", PICK(nouns));
			break;
		case 4:
			put(to, "%s%s%s", PICK(verbs), PICK(joints), PICK(nouns));
			break;
		case 5:
		case 6:
		case 7:
			put_value(to);
			break;
		case 8:
			put(to, "%s%s", PICK(nouns), PICK(joints));
			put_value(to);
			break;
		case 9:
			put(to, "%s_%02d", PICK(nouns), below(100));
			break;
		case 10:
			put(to, "%s.%s", PICK(nouns), below(2) ? "csv" : "sql");
			break;
		case 11:
			if (below(4) == 0)
				put(to, "%s", PICK(oddities));
			else
				put(to, "%s", PICK(verbs));
			break;
	}
}

static void
make_name(char name[2048])
{
	int			parts = 1 + below(4);

	name[0] = '\0';
	if (below(200) == 0)
		parts = 7 + below(4);
	if (below(100) == 0)
		put(name, "https://example.com/");	/* two slashes */
	for (int i = 0; i < parts; i++)
	{
		if (i > 0)
			put(name, "%s", below(5) == 0 ? PICK(joints) : "/");
		put_part(name);
	}
	if (below(300) == 0)
		put(name, "/");
	/* the text of a query, for want of a better name */
	for (int n = below(200) == 0 ? 3 + below(6) : 0; n > 0; n--)
		put(name, " SELECT * FROM %s WHERE id = %d;", PICK(nouns), below(1000));
}

/* ---- what is at fault, by other means ---- */

/* Characters that ZooKeeper allows, as its own check has them, in what is valid UTF-8. */
static bool
has_refused_character(const char *text, bool *valid)
{
	const unsigned char *p = (const unsigned char *) text;
	bool		refused = false;

	*valid = true;
	while (*p != '\0')
	{
		int			more = *p < 0x80 ? 0 : *p >= 0xC2 && *p < 0xE0 ? 1 : (*p & 0xF0) == 0xE0 ? 2 :
			(*p & 0xF8) == 0xF0 ? 3 : -1;
		uint32_t	c = more == 0 ? *p : more > 0 ? *p & (0x3Fu >> more) : 0;

		for (int i = 1; i <= more; i++)
		{
			if ((p[i] & 0xC0) != 0x80)
				more = -1;
			else
				c = c << 6 | (p[i] & 0x3F);
		}
		if (more < 0)
		{
			*valid = false;
			return false;
		}
		refused |= c < 0x20 || (c >= 0x7F && c <= 0x9F) || (c >= 0xE000 && c <= 0xF8FF) || c >= 0xFFF0;
		p += more + 1;
	}
	return refused;
}

/* (lock-|__READ__|__WRIT__|__lock__|__rlock__)(\d{10}|-\d{9,10})$ */
static bool
looks_like_contender(const char *component)
{
	static const char *const marks[] = {"lock-", "__READ__", "__WRIT__", "__lock__", "__rlock__"};

	for (size_t m = 0; m < sizeof(marks) / sizeof(marks[0]); m++)
		for (const char *at = strstr(component, marks[m]); at != NULL; at = strstr(at + 1, marks[m]))
		{
			const char *number = at + strlen(marks[m]);
			int			sign = *number == '-';
			size_t		n = strspn(number + sign, "0123456789");

			if (number[sign + n] == '\0' && (n == 10 || (sign && n == 9)))
				return true;
		}
	return false;
}

/*
 * Is the verdict on this name right? If it was refused, then for a reason that is there
 * and, where it is one component's, in that component and in none before it.
 */
static bool
is_right(const char *name, ZklNameFault fault)
{
	char		copy[2048];
	char	   *part[MOST_PARTS];
	int			nparts = 0;
	int			worst = 0;		/* the first that is at fault, from 1 on */
	bool		valid;
	bool		refused = has_refused_character(name, &valid);

	if (name[0] == '\0')
		return fault.error == ZKL_NAME_EMPTY;
	if (strlen(name) > ZKL_NAME_MAX)
		return fault.error == ZKL_NAME_TOO_LONG;
	if (!valid)
		return fault.error == ZKL_NAME_NOT_UTF8;

	strcpy(copy, name);
	part[nparts++] = copy;
	for (char *slash = strchr(copy, '/'); slash != NULL; slash = strchr(slash + 1, '/'))
	{
		*slash = '\0';
		part[nparts++] = slash + 1;
	}
	for (int i = 0; i < nparts && worst == 0; i++)
	{
		bool		ignored;

		if (refused ? has_refused_character(part[i], &ignored) :
			(part[i][0] == '\0' || part[i][0] == '.' || looks_like_contender(part[i]) || i >= 8 ||
			 (i > 0 && (strcmp(part[i], "locks") == 0 || strcmp(part[i], "leases") == 0))))
			worst = i + 1;
	}
	if (fault.component != worst)
		return false;
	if (worst == 0)
		return fault.error == ZKL_NAME_OK;
	if (refused)
		return fault.error == ZKL_NAME_CONTROL_CHARACTER && fault.character != 0;
	switch (fault.error)
	{
		case ZKL_NAME_EMPTY_COMPONENT:
			return part[worst - 1][0] == '\0';
		case ZKL_NAME_DOT_COMPONENT:
			return part[worst - 1][0] == '.';
		case ZKL_NAME_LOOKS_LIKE_CONTENDER:
			return looks_like_contender(part[worst - 1]);
		case ZKL_NAME_RESERVED:
			return strcmp(part[worst - 1], "locks") == 0 || strcmp(part[worst - 1], "leases") == 0;
		case ZKL_NAME_TOO_DEEP:
			return worst == 9;
		default:
			return false;
	}
}

static void
test_grammar(void)
{
	int			counts[ZKL_NAME_NOT_ABSOLUTE + 1] = {0};
	int			wrong = 0;
	char		name[2048];

	for (int i = 0; i < NAMES; i++)
	{
		ZklNameFault fault;

		make_name(name);
		fault = zkl_name_fault(name, strlen(name));
		counts[fault.error]++;
		if (!is_right(name, fault) && wrong++ < 5)
			printf("# error %d, component %d: %s\n", fault.error, fault.component, name);
	}
	CHECK_INT(wrong, 0, "100,000 names that people write: accepted, or refused with the component named");
	for (int error = ZKL_NAME_EMPTY; error < ZKL_NAME_NOT_ABSOLUTE; error++)
		CHECK(counts[error] > 0, "error %d is among the refusals: \"%s\", %d times", error,
			  zkl_name_error_text((ZklNameError) error), counts[error]);
	CHECK(counts[ZKL_NAME_OK] > NAMES * 85 / 100, "most of them are good names (%d)", counts[ZKL_NAME_OK]);
}

/* A thousand uuids behind a slash: all, where six in a hundred were refused. */
static void
test_uuids(void)
{
	char		name[2048];
	int			refused = 0;

	for (int i = 0; i < 1000; i++)
	{
		strcpy(name, "order/");
		put_uuid(name, false);
		refused += zkl_name_check(name, strlen(name)) != ZKL_NAME_OK;
	}
	CHECK_INT(refused, 0, "a_uuid_is_a_good_component_whatever_it_begins_with");
}

static void
print_names(int wanted)
{
	char		(*printed)[ZKL_NAME_MAX + 1] = calloc((size_t) wanted, sizeof(*printed));
	char		name[2048];

	for (int n = 0; n < wanted;)
	{
		bool		twice = false;

		make_name(name);
		if (zkl_name_check(name, strlen(name)) != ZKL_NAME_OK)
			continue;
		for (int i = 0; i < n && !twice; i++)
			twice = strcmp(printed[i], name) == 0;
		if (twice)
			continue;
		strcpy(printed[n++], name);
		printf("%s\n", name);
	}
	free(printed);
}

int
main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--print") == 0)
	{
		print_names(atoi(argv[2]));
		return 0;
	}
	test_grammar();
	test_uuids();
	return check_done();
}
