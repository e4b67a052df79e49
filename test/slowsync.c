/*-------------------------------------------------------------------------
 *
 * slowsync.c
 *	  A disk that takes its time over the files of tables.
 *
 * Preloaded into a server (LD_PRELOAD): while the file that SLOWSYNC names exists,
 * fsync and fdatasync of a file below base/ take SLOWSYNC_MS milliseconds more.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void
take_time(int fd)
{
	const char *flag = getenv("SLOWSYNC");
	const char *ms = getenv("SLOWSYNC_MS");
	char		link[64];
	char		path[4096];
	ssize_t		len;
	struct timespec wait;

	if (flag == NULL || ms == NULL || access(flag, F_OK) != 0)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < 0)
		return;
	path[len] = '\0';
	if (strstr(path, "/base/") == NULL)
		return;
	wait.tv_sec = atoi(ms) / 1000;
	wait.tv_nsec = (long) (atoi(ms) % 1000) * 1000000;
	while (nanosleep(&wait, &wait) != 0)
		;
}

int
fsync(int fd)
{
	static int	(*real) (int);

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fsync");
	take_time(fd);
	return real(fd);
}

int
fdatasync(int fd)
{
	static int	(*real) (int);

	if (real == NULL)
		real = (int (*) (int)) dlsym(RTLD_NEXT, "fdatasync");
	take_time(fd);
	return real(fd);
}
