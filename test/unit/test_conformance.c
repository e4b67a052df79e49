/*-------------------------------------------------------------------------
 *
 * test_conformance.c
 *	  The conformance test finds what is out of order, and passes what is not.
 *
 * The coordinator is the fake one of test/conformance; test/t/068_conformance.pl runs
 * the same test on ZooKeeper.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"
#include "conformance/drive.h"
#include "conformance/fake.h"

#define SEEDS	10
#define STEPS	1500

static void
log_nothing(ZklLogLevel level, const char *message, const char *detail, const char *hint)
{
	(void) level;
	(void) message;
	(void) detail;
	(void) hint;
}

__attribute__((noreturn))
static void
fail(const char *message)
{
	fprintf(stderr, "%s\n", message);
	abort();
}

static void
fault(ZklCoordinator *fake, uint64_t random)
{
	int			slot = (int) (random / 8 % DRIVE_SLOTS);

	switch (random % 8)
	{
		case 0:
			fake_expire(fake);
			break;
		case 1:
			fake_part(fake, "It has to go.");
			break;
		case 2:
			fake_ask_back(fake, slot, true);
			break;
		case 3:
			fake_deaf(fake, random / 8 % 2 == 0);
			break;
		default:
			fake_deaf(fake, false);
			break;
	}
}

static void
calm(ZklCoordinator *fake)
{
	fake_deaf(fake, false);
}

static Drive
drive_with(uint64_t seed)
{
	static const ZklHost host = {log_nothing, fail};
	Drive		result = {.ops = &fake_coordinator,.n = 3,.seed = seed,.steps = STEPS,
	.fault = fault,.calm = calm};

	for (int i = 0; i < result.n; i++)
		result.targets[i] = (ZklTarget)
	{
		.host = &host,.session_timeout = ZKL_MS(4000)
	};
	(void) drive(&result);
	return result;
}

int
main(void)
{
	static const struct
	{
		FakeFlaw	flaw;
		const char *name;
		const char *found;
	}			flaws[] = {
		{FAKE_GRANTS_WITHOUT_SESSION, "granted_without_a_session", "without a session"},
		{FAKE_QUEUED_AFTER_GONE, "queued_after_gone", "QUEUED for slot"},
		{FAKE_LOST_AFTER_ENDED, "lost_after_ended", "granted by a session that has ended"},
		{FAKE_ACKNOWLEDGED_BEFORE_LOST, "acknowledged_before_lost", "ACKNOWLEDGED before LOST"},
		{FAKE_GRANTED_AFTER_LET_GO, "granted_after_let_go", "which is let go"},
		{FAKE_ANSWERS_TWICE, "answered_twice", "has its answer"}
	};
	uint64_t	seen[ZKL_EVENT_CANNOT_GO_ON + 1] = {0};
	int			failures = 0;
	Drive		result;

	for (uint64_t seed = 1; seed <= SEEDS; seed++)
	{
		result = drive_with(seed);
		if (result.wrong[0] != '\0')
		{
			failures++;
			printf("# %s\n", result.wrong);
		}
		for (int i = 0; i <= ZKL_EVENT_CANNOT_GO_ON; i++)
			seen[i] += result.events[i];
	}
	CHECK_INT(failures, 0, "a coordinator in order passes");
	for (int i = 0; i < ZKL_EVENT_CANNOT_GO_ON; i++)
		if (i != ZKL_EVENT_REFUSED && i != ZKL_EVENT_CHARGED && i != ZKL_EVENT_TROUBLE)
			CHECK(seen[i] > 0, "event %d came: %llu times", i, (unsigned long long) seen[i]);

	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
	{
		fake_flaw = flaws[i].flaw;
		result.wrong[0] = '\0';
		for (uint64_t seed = 1; seed <= SEEDS && result.wrong[0] == '\0'; seed++)
			result = drive_with(seed);
		if (!CHECK(strstr(result.wrong, flaws[i].found) != NULL, "found: %s", flaws[i].name))
			printf("# \"%s\"\n", result.wrong);
	}
	return check_done();
}
