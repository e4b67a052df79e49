/*-------------------------------------------------------------------------
 *
 * conform.c
 *	  The conformance test on a real ensemble.
 *
 *		conform HOSTS ROOT SEED SECONDS
 *
 * Three coordinators of one process contend for some locks below ROOT, each over its own
 * session, for so many seconds. Faults come from outside: whoever runs this cuts
 * connections, stops servers. Prints what came and ends with 0 when all was in order.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drive.h"
#include "zookeeper/ensemble.h"

static void
log_line(ZklLogLevel level, const char *message, const char *detail, const char *hint)
{
	(void) hint;
	if (level == ZKL_LOG_LOG)
		fprintf(stderr, "%s%s%s\n", message, detail != NULL ? ": " : "",
				detail != NULL ? detail : "");
}

__attribute__((noreturn))
static void
fail(const char *message)
{
	fprintf(stderr, "cannot go on: %s\n", message);
	exit(2);
}

int
main(int argc, char **argv)
{
	static const ZklHost host = {log_line, fail};
	static char names[DRIVE_MAX][32];
	Drive		run = {.ops = &zkl_zookeeper,.n = 3,.pause_us = 2000};
	bool		well;

	if (argc != 5)
		fail("usage: conform HOSTS ROOT SEED SECONDS");
	run.seed = strtoull(argv[3], NULL, 10);
	run.lasts = ZKL_MS(1000 * atoi(argv[4]));
	for (int i = 0; i < run.n; i++)
	{
		snprintf(names[i], sizeof(names[i]), "conform%d", i);
		run.targets[i] = (ZklTarget)
		{
			.hosts = argv[1],.root = argv[2],.server_name = names[i],.credentials_file = "",
				.session_timeout = ZKL_MS(4000),.pid = (int) getpid(),.host = &host,
				.incarnation = 1
		};
	}
	well = drive(&run);
	printf("began %llu ended %llu acknowledged %llu granted %llu taken %llu lost %llu asked_back %llu answered %llu gone %llu\n",
		   (unsigned long long) run.events[ZKL_EVENT_BEGAN],
		   (unsigned long long) run.events[ZKL_EVENT_ENDED],
		   (unsigned long long) run.events[ZKL_EVENT_ACKNOWLEDGED],
		   (unsigned long long) run.events[ZKL_EVENT_GRANTED],
		   (unsigned long long) run.events[ZKL_EVENT_TAKEN],
		   (unsigned long long) run.events[ZKL_EVENT_LOST],
		   (unsigned long long) run.events[ZKL_EVENT_ASKED_BACK],
		   (unsigned long long) run.events[ZKL_EVENT_ANSWERED],
		   (unsigned long long) run.events[ZKL_EVENT_GONE]);
	if (!well)
		printf("%s\n", run.wrong);
	return well ? 0 : 1;
}
