/*-------------------------------------------------------------------------
 *
 * fakeclock.c
 *	  A wall clock that a test can set, to be preloaded into a server.
 *
 * FAKECLOCK names a file of eight bytes: how many microseconds the wall clock is off,
 * as a native integer. It is mapped, so what a test writes there holds at once, for all
 * processes, in a signal handler as well: libfaketime reads its file, and not
 * there, so a timer that is due when the clock is set would not see it.
 * The monotonic clocks are left alone.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *offset = &none;

__attribute__((constructor))
static void
map_offset(void)
{
	const char *file = getenv("FAKECLOCK");
	int			fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
	void	   *p;

	if (fd < 0)
		return;
	p = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		offset = p;
}

int
clock_gettime(clockid_t id, struct timespec *ts)
{
	int			rc = (int) syscall(SYS_clock_gettime, id, ts);

	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
	{
		int64_t		us = *offset;
		int64_t		ns = ts->tv_nsec + us % 1000000 * 1000;

		ts->tv_sec += us / 1000000;
		if (ns < 0)
		{
			ns += 1000000000;
			ts->tv_sec--;
		}
		else if (ns >= 1000000000)
		{
			ns -= 1000000000;
			ts->tv_sec++;
		}
		ts->tv_nsec = ns;
	}
	return rc;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;

	(void) tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (t != NULL)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
