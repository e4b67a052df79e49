/*-------------------------------------------------------------------------
 *
 * bare.c
 *	  The cycle of an uncontended lock with ZooKeeper's C client and nothing else.
 *
 *		bare HOSTS SECONDS WARM_UP
 *
 * What zklock adds to this is SQL and the way through its worker. One cycle at a time: the
 * create and the listing behind it in one flight, as zklock does, and when both are answered
 * the delete, which is waited for as well. Prints what all the peers print: cycles per
 * second, median and p99 of a cycle's latency in microseconds.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zookeeper/zookeeper.h>

#define DIRECTORY "/bare"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static int	outstanding;
static int	connected;
static char node[256];

static void
fail(const char *what, int rc)
{
	fprintf(stderr, "bare: %s: %s\n", what, zerror(rc));
	exit(1);
}

static void
answer(const char *what, int rc)
{
	if (rc != ZOK)
		fail(what, rc);
	pthread_mutex_lock(&mutex);
	outstanding--;
	pthread_cond_signal(&answered);
	pthread_mutex_unlock(&mutex);
}

static void
wait_for(int *value, int wanted)
{
	pthread_mutex_lock(&mutex);
	while (*value != wanted)
		pthread_cond_wait(&answered, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void
on_event(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	pthread_mutex_lock(&mutex);
	connected = (state == ZOO_CONNECTED_STATE);
	pthread_cond_signal(&answered);
	pthread_mutex_unlock(&mutex);
}

static void
on_create(int rc, const char *value, const struct Stat *stat, const void *data)
{
	if (rc == ZOK)
		snprintf(node, sizeof(node), "%s", value);
	answer("create", rc);
}

static void
on_children(int rc, const struct String_vector *children, const void *data)
{
	answer("children", rc);
}

static void
on_delete(int rc, const void *data)
{
	answer("delete", rc);
}

static void
cycle(zhandle_t *zh)
{
	static const char name[] = DIRECTORY "/_c_00000000-0000-0000-0000-000000000000-lock-";
	static const char data[] = "{\"server\":\"somewhere\",\"pid\":12345,\"database\":\"postgres\"}";
	int			rc;

	outstanding = 2;
	if ((rc = zoo_acreate2(zh, name, data, sizeof(data) - 1, &ZOO_OPEN_ACL_UNSAFE,
						   ZOO_EPHEMERAL | ZOO_SEQUENCE, on_create, NULL)) != ZOK)
		fail("create", rc);
	if ((rc = zoo_aget_children(zh, DIRECTORY, 0, on_children, NULL)) != ZOK)
		fail("children", rc);
	wait_for(&outstanding, 0);
	outstanding = 1;
	if ((rc = zoo_adelete(zh, node, -1, on_delete, NULL)) != ZOK)
		fail("delete", rc);
	wait_for(&outstanding, 0);
}

static double
now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	size_t		room = 1024;
	size_t		n = 0;
	double	   *took = malloc(room * sizeof(double));
	double		seconds;
	double		begin;
	double		start;
	zhandle_t  *zh;
	int			rc;

	if (argc != 4)
	{
		fprintf(stderr, "usage: bare HOSTS SECONDS WARM_UP\n");
		return 2;
	}
	seconds = atof(argv[2]);
	zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
	zh = zookeeper_init(argv[1], on_event, 10000, NULL, NULL, 0);
	if (zh == NULL)
		return 1;
	/* or it looks up the names with each request */
	zoo_set_servers_resolution_delay(zh, -1);
	wait_for(&connected, 1);
	rc = zoo_create(zh, DIRECTORY, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
	if (rc != ZOK && rc != ZNODEEXISTS)
		fail(DIRECTORY, rc);

	begin = now_us() + atof(argv[3]) * 1e6;
	for (start = now_us(); start < begin + seconds * 1e6;)
	{
		double		end;

		cycle(zh);
		end = now_us();
		if (end >= begin && end < begin + seconds * 1e6)
		{
			if (n == room)
				took = realloc(took, (room *= 2) * sizeof(double));
			took[n++] = end - start;
		}
		start = end;
	}
	zookeeper_close(zh);
	if (n == 0)
		fail("no cycle ended in time", 0);
	qsort(took, n, sizeof(double), compare);
	printf("%.2f %.1f %.1f\n", n / seconds, took[n / 2], took[(size_t) (n * 0.99)]);
	return 0;
}
