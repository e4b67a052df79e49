/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  Host names to numeric addresses, in a thread of its own.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADDRESSES_MAX	63
#define HOST_SIZE		256

/* "address:port", for the library, which splits at the last colon and knows no brackets. */
typedef char AddressText[80];

typedef struct AddressList
{
	int			n;
	AddressText texts[ADDRESSES_MAX];
} AddressList;

struct ZklResolution
{
	pthread_mutex_t mutex;		/* protects all below */
	int			references;		/* the thread's and the caller's */
	bool		done;
	char	   *hosts;
	char		addresses[sizeof(AddressText) * ADDRESSES_MAX];
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
		else if (len >= ZKL_CHROOT_SIZE)
			wrong = "the chroot is too long";
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

bool
zkl_hosts_are_numeric(const char *hosts)
{
	const char *cursor = hosts;
	char		host[HOST_SIZE];
	char		port[8];

	for (;;)
	{
		unsigned char address[16];

		if (next_host(&cursor, host, port) != NULL ||
			(inet_pton(AF_INET, host, address) != 1 && inet_pton(AF_INET6, host, address) != 1))
			return false;
		if (*cursor != ',')
			return true;
		cursor++;
	}
}

/* Can this machine have a socket of that family at all? */
static bool
family_works(int family)
{
	int			fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/*
 * Will the library take it? It hands each address to getaddrinfo() in this way, and
 * goes without the flag when that is what is wrong.
 */
static bool
library_takes(const char *address, const char *port)
{
	struct addrinfo hints;
	struct addrinfo *list = NULL;
	int			rc;

	memset(&hints, 0, sizeof(hints));
	hints.ai_flags = AI_ADDRCONFIG;
	hints.ai_socktype = SOCK_STREAM;
	hints.ai_protocol = IPPROTO_TCP;
	rc = getaddrinfo(address, port, &hints, &list);
	if (rc == 0)
		freeaddrinfo(list);
	return rc == 0 || rc == EAI_BADFLAGS || rc == EAI_NODATA || rc == EAI_ADDRFAMILY;
}

/* Add each address of the host; returns how many, 0 with an error. */
static int
resolve_host(const char *host, const char *port, AddressList *addresses, char *error,
			 size_t error_size)
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

		if (getnameinfo(ai->ai_addr, ai->ai_addrlen, text, sizeof(text), NULL, 0,
						NI_NUMERICHOST) != 0 ||
			strlen(text) + strlen(port) + 2 > sizeof(AddressText) ||
			!family_works(ai->ai_family) || !library_takes(text, port))
			continue;
		if (addresses->n == ADDRESSES_MAX)
			break;
		snprintf(addresses->texts[addresses->n++], sizeof(AddressText), "%.64s:%s", text, port);
		count++;
	}
	freeaddrinfo(list);
	if (count == 0)
		snprintf(error, error_size, "host \"%s\" has no address that this machine can use", host);
	return count;
}

static int
compare_addresses(const void *a, const void *b)
{
	return strcmp(a, b);
}

/*
 * In one order, since name servers change theirs from answer to answer; each once; and
 * then the first a second time where they would be even in number.
 */
static void
write_addresses(AddressList *addresses, char *to)
{
	int			n = 0;
	char	   *end = to;

	qsort(addresses->texts, addresses->n, sizeof(AddressText), compare_addresses);
	for (int i = 0; i < addresses->n; i++)
		if (n == 0 || strcmp(addresses->texts[n - 1], addresses->texts[i]) != 0)
			memmove(addresses->texts[n++], addresses->texts[i], sizeof(AddressText));
	/* there is room, since the most is an odd number */
	if (n > 0 && n % 2 == 0)
		memcpy(addresses->texts[n++], addresses->texts[0], sizeof(AddressText));
	for (int i = 0; i < n; i++)
		end += sprintf(end, "%s%s", i > 0 ? "," : "", addresses->texts[i]);
}

static void *
resolve_main(void *arg)
{
	ZklResolution *resolution = arg;
	AddressList *addresses = calloc(1, sizeof(AddressList));
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

	pthread_mutex_lock(&resolution->mutex);
	if (count > 0)
		write_addresses(addresses, resolution->addresses);
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
