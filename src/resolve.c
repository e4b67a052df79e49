/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  Host names to numeric addresses, in a thread of its own.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ADDRESSES_SIZE	4096
#define HOST_SIZE		256

struct ZklResolution
{
	pthread_mutex_t mutex;		/* protects all below */
	int			references;		/* the thread's and the caller's */
	bool		done;
	char	   *hosts;
	char		addresses[ADDRESSES_SIZE];
	char		error[512];
};

/*
 * Split off the next host:port of "*cursor", which ends at a comma, a slash or
 * the end. Returns NULL, or what is wrong with it.
 */
static const char *
next_host(const char **cursor, char host[HOST_SIZE], char port[8])
{
	const char *begin = *cursor;
	size_t		len = strcspn(begin, ",/");
	const char *colon = NULL;
	size_t		host_len;

	*cursor = begin + len;
	for (const char *p = begin; p < begin + len; p++)
		if (*p == ':')
			colon = p;
	if (len == 0)
		return "an entry is empty";
	if (colon == NULL)
		return "an entry has no port";

	host_len = colon - begin;
	if (host_len >= 2 && begin[0] == '[' && colon[-1] == ']')
	{
		begin++;
		host_len -= 2;
	}
	if (host_len == 0 || host_len >= HOST_SIZE)
		return "a host name is empty or too long";
	memcpy(host, begin, host_len);
	host[host_len] = '\0';
	if (strcspn(host, " \t\r\n") != host_len)
		return "there is white space in it";

	len = *cursor - colon - 1;
	if (len == 0 || len > 5)
		return "a port is not a number from 1 to 65535";
	memcpy(port, colon + 1, len);
	port[len] = '\0';
	if (strspn(port, "0123456789") != len || atoi(port) < 1 || atoi(port) > 65535)
		return "a port is not a number from 1 to 65535";
	return NULL;
}

bool
zkl_hosts_check(const char *hosts, char *reason, size_t size)
{
	const char *cursor = hosts;
	const char *wrong;
	char		host[HOST_SIZE];
	char		port[8];

	for (;;)
	{
		wrong = next_host(&cursor, host, port);
		if (wrong != NULL || *cursor != ',')
			break;
		cursor++;
	}
	if (wrong == NULL && *cursor == '/')
	{
		size_t		len = strlen(cursor);

		if (strchr(cursor, ',') != NULL)
			wrong = "the chroot comes once, after the last host";
		else if (len == 1 || cursor[len - 1] == '/' || strstr(cursor, "//") != NULL)
			wrong = "the chroot ends with a slash or has an empty component";
	}
	if (wrong != NULL)
		snprintf(reason, size, "%s", wrong);
	return wrong == NULL;
}

static void
release(ZklResolution *resolution)
{
	bool		last;

	pthread_mutex_lock(&resolution->mutex);
	last = --resolution->references == 0;
	pthread_mutex_unlock(&resolution->mutex);
	if (last)
	{
		pthread_mutex_destroy(&resolution->mutex);
		free(resolution->hosts);
		free(resolution);
	}
}

/* Append "host:port" for each address; returns how many, 0 with an error. */
static int
resolve_host(const char *host, const char *port, char *addresses, char *error, size_t error_size)
{
	struct addrinfo hints;
	struct addrinfo *list = NULL;
	int			count = 0;
	int			rc;

	memset(&hints, 0, sizeof(hints));
	hints.ai_socktype = SOCK_STREAM;
	rc = getaddrinfo(host, port, &hints, &list);
	if (rc != 0)
	{
		snprintf(error, error_size, "could not resolve host \"%s\": %s", host, gai_strerror(rc));
		return 0;
	}
	for (struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next)
	{
		char		text[NI_MAXHOST];
		size_t		used = strlen(addresses);

		if (getnameinfo(ai->ai_addr, ai->ai_addrlen, text, sizeof(text), NULL, 0,
						NI_NUMERICHOST) != 0)
			continue;
		if (used + strlen(text) + strlen(port) + 5 > ADDRESSES_SIZE / 2)
			break;
		snprintf(addresses + used, ADDRESSES_SIZE - used,
				 ai->ai_family == AF_INET6 ? "%s[%s]:%s" : "%s%s:%s",
				 used > 0 ? "," : "", text, port);
		count++;
	}
	freeaddrinfo(list);
	return count;
}

static void *
resolve_main(void *arg)
{
	ZklResolution *resolution = arg;
	char	   *addresses = calloc(1, ADDRESSES_SIZE);
	char		error[sizeof(resolution->error)] = "out of memory";
	const char *cursor = resolution->hosts;
	int			count = 0;

	while (addresses != NULL)
	{
		char		host[HOST_SIZE];
		char		port[8];

		if (next_host(&cursor, host, port) != NULL)
			break;
		/* one name that is not found need not stop the others */
		count += resolve_host(host, port, addresses, error, sizeof(error));
		if (*cursor != ',')
			break;
		cursor++;
	}
	if (count > 0 && count % 2 == 0)
	{
		size_t		used = strlen(addresses);
		size_t		first = strcspn(addresses, ",");

		addresses[used++] = ',';
		memcpy(addresses + used, addresses, first);
		addresses[used + first] = '\0';
	}

	pthread_mutex_lock(&resolution->mutex);
	if (count > 0)
		snprintf(resolution->addresses, sizeof(resolution->addresses), "%s%s", addresses,
				 *cursor == '/' ? cursor : "");
	else
		memcpy(resolution->error, error, sizeof(error));
	resolution->done = true;
	pthread_mutex_unlock(&resolution->mutex);
	free(addresses);
	release(resolution);
	return NULL;
}

ZklResolution *
zkl_resolve_start(const char *hosts)
{
	ZklResolution *resolution = calloc(1, sizeof(*resolution));
	pthread_t	thread;
	pthread_attr_t attr;
	sigset_t	all,
				old;
	int			rc;

	if (resolution == NULL)
		return NULL;
	pthread_mutex_init(&resolution->mutex, NULL);
	resolution->references = 2;
	resolution->hosts = strdup(hosts);
	if (resolution->hosts == NULL)
	{
		free(resolution);
		return NULL;
	}

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, resolve_main, resolution);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc != 0)
	{
		free(resolution->hosts);
		free(resolution);
		return NULL;
	}
	return resolution;
}

bool
zkl_resolve_done(ZklResolution *resolution, const char **addresses, const char **error)
{
	bool		done;

	pthread_mutex_lock(&resolution->mutex);
	done = resolution->done;
	pthread_mutex_unlock(&resolution->mutex);
	if (done)
	{
		/* the thread writes no more */
		*addresses = resolution->addresses[0] != '\0' ? resolution->addresses : NULL;
		*error = resolution->error;
	}
	return done;
}

void
zkl_resolve_free(ZklResolution *resolution)
{
	release(resolution);
}
