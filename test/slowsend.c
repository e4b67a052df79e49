/*-------------------------------------------------------------------------
 *
 * slowsend.c
 *	  A thread that loses the processor right after it has sent the handshake.
 *
 *	LD_PRELOAD=slowsend.so SLOWSEND=/path/to/file program
 *
 * While the file is there and holds a number, what looks like ZooKeeper's handshake is
 * sent, the moment (CLOCK_BOOTTIME, in microseconds) written into the file's name with
 * ".sent", and the thread sleeps for so many milliseconds before send() returns.
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

ssize_t
send(int fd, const void *buf, size_t len, int flags)
{
	ssize_t		(*real) (int, const void *, size_t, int);
	const char *path = getenv("SLOWSEND");
	struct timespec now;
	FILE	   *file;
	char		sent[1024];
	int			ms = 0;
	ssize_t		rc;

	*(void **) &real = dlsym(RTLD_NEXT, "send");
	clock_gettime(CLOCK_BOOTTIME, &now);
	rc = real(fd, buf, len, flags);
	/* its protocol version is 0; a request begins with its number */
	if (path == NULL || (len != 44 && len != 45) || memcmp(buf, "\0\0\0\0", 4) != 0 ||
		(file = fopen(path, "r")) == NULL)
		return rc;
	if (fscanf(file, "%d", &ms) != 1)
		ms = 0;
	fclose(file);
	snprintf(sent, sizeof(sent), "%s.sent", path);
	if (ms > 0 && (file = fopen(sent, "w")) != NULL)
	{
		fprintf(file, "%ld%06ld\n", (long) now.tv_sec, now.tv_nsec / 1000);
		fclose(file);
		usleep(ms * 1000);
	}
	return rc;
}
