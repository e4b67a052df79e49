/*-------------------------------------------------------------------------
 *
 * check.h
 *	  The least that a unit test needs to speak to prove(1).
 *
 * Each CHECK prints one TAP line, and a failing one says where it is and what
 * it saw. A test that checks millions of things counts its failures and checks
 * that there were none, so that the output stays readable. End main() with
 * "return check_done();": without it there is no plan, and prove(1) counts a
 * program that returned early or crashed as failed.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_CHECK_H
#define ZKL_CHECK_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int	check_count = 0;
static int	check_failed = 0;

__attribute__((unused, format(printf, 4, 5)))
static bool
check_that(bool ok, const char *file, int line, const char *fmt,...)
{
	va_list		args;

	printf("%sok %d - ", ok ? "" : "not ", ++check_count);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\n");
	if (!ok)
	{
		check_failed++;
		printf("# failed at %s:%d\n", file, line);
	}
	/* what was printed must survive a crash in the next check */
	fflush(stdout);
	return ok;
}

__attribute__((unused))
static bool
check_int_that(int64_t got, int64_t want, const char *file, int line, const char *name)
{
	bool		ok = check_that(got == want, file, line, "%s", name);

	if (!ok)
		printf("# got %" PRId64 ", want %" PRId64 "\n", got, want);
	return ok;
}

__attribute__((unused))
static bool
check_str_that(const char *got, const char *want, const char *file, int line, const char *name)
{
	bool		ok = check_that(strcmp(got, want) == 0, file, line, "%s", name);

	if (!ok)
		printf("# got  \"%s\"\n# want \"%s\"\n", got, want);
	return ok;
}

/* CHECK(condition, "name", ...): the name is a printf format */
#define CHECK(condition, ...) \
	check_that((condition), __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_INT(got, want, name) \
	check_int_that((got), (want), __FILE__, __LINE__, (name))
#define CHECK_STR(got, want, name) \
	check_str_that((got), (want), __FILE__, __LINE__, (name))

__attribute__((unused))
static int
check_done(void)
{
	printf("1..%d\n", check_count);
	return check_failed > 0 ? 1 : 0;
}

/*
 * Random numbers that are the same everywhere for the same seed (splitmix64),
 * so that a failure can be repeated on another machine.
 */
__attribute__((unused))
static uint64_t
check_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* One of low..high, both included. */
__attribute__((unused))
static int64_t
check_between(uint64_t *state, int64_t low, int64_t high)
{
	return low + (int64_t) (check_random(state) % (uint64_t) (high - low + 1));
}

#endif							/* ZKL_CHECK_H */
