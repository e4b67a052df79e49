/*-------------------------------------------------------------------------
 *
 * client.c
 *	  The ZooKeeper client library, behind a door.
 *
 * See client.h. What the library forbids, learnt the hard way by others, is
 * kept here: all signals are blocked around zookeeper_init (its threads inherit
 * the mask, and an unblocked thread swallows PostgreSQL's latch wake-ups), the
 * resolution delay is off (else each request pays a getaddrinfo, and a failing
 * resolver stops a healthy connection), one watcher function and one context
 * serve everything (session events go to each distinct pair, in quadratic
 * time), and debug logging is never on (use after free before 3.9.3).
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "zookeeper/client.h"

#include <dirent.h>
#include <errno.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zookeeper/zookeeper.h>

_Static_assert(ZKL_RC_OK == ZOK && ZKL_RC_CONNECTIONLOSS == ZCONNECTIONLOSS &&
			   ZKL_RC_OPERATIONTIMEOUT == ZOPERATIONTIMEOUT &&
			   ZKL_RC_NONODE == ZNONODE &&
			   ZKL_RC_NOAUTH == ZNOAUTH &&
			   ZKL_RC_NOCHILDREN == ZNOCHILDRENFOREPHEMERALS && ZKL_RC_NODEEXISTS == ZNODEEXISTS &&
			   ZKL_RC_INVALIDACL == ZINVALIDACL && ZKL_RC_SESSIONMOVED == ZSESSIONMOVED &&
			   ZKL_RC_NOTREADONLY == ZNOTREADONLY &&
			   ZKL_RC_LOCALSESSION == ZEPHEMERALONLOCALSESSION &&
			   ZKL_RC_THROTTLED == ZTHROTTLEDOP &&
			   ZKL_RC_NOT_EXECUTED == ZRUNTIMEINCONSISTENCY,
			   "result codes differ from the library's");

/* The library reads the paths and data when it is called, and keeps the rest. */
struct ZklBatchRequests
{
	zoo_op_t	ops[ZKL_BATCH_MAX];
	zoo_op_result_t results[ZKL_BATCH_MAX];
	char	   *paths[ZKL_BATCH_MAX];
	char	   *data[ZKL_BATCH_MAX];
	char		names[ZKL_BATCH_MAX][ZKL_PATH_SIZE];
};

/* A server's address as it was given to the library. */
typedef struct Address
{
	int			family;
	unsigned char bytes[16];
	uint16_t	port;			/* network order */
} Address;

struct ZklClient
{
	zhandle_t  *zh;
	Address    *addresses;
	int			naddresses;

	/* protects everything below */
	pthread_mutex_t mutex;
	ZklOp		waiting;		/* ring head: sent, no reply yet */
	ZklOp		arrived;		/* ring head: for zkl_client_next() */
};

/*
 * One eventfd for the life of the process, shared by the clients that follow
 * each other, so that the main loop's wait set need not change with them.
 */
static int	wakeup_fd = -1;

/* The library's log, which has no context argument: the latest lines. */
#define LOG_LINES	32
#define LOG_WIDTH	256

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_lines[LOG_LINES][LOG_WIDTH];
static unsigned log_head,
			log_count;

static void
ring_init(ZklOp *head)
{
	head->next = head->previous = head;
}

static void
ring_remove(ZklOp *op)
{
	op->previous->next = op->next;
	op->next->previous = op->previous;
	op->next = op->previous = op;
}

static void
ring_append(ZklOp *head, ZklOp *op)
{
	op->previous = head->previous;
	op->next = head;
	head->previous->next = op;
	head->previous = op;
}

static void
wake_main_thread(void)
{
	uint64_t	one = 1;
	ssize_t		rc;

	do
		rc = write(wakeup_fd, &one, sizeof(one));
	while (rc < 0 && errno == EINTR);
}

/* From a library thread: the op, complete, goes to the main thread. */
static void
deliver(ZklOp *op)
{
	ZklClient  *client = op->client;
	bool		was_empty;

	pthread_mutex_lock(&client->mutex);
	ring_remove(op);
	was_empty = client->arrived.next == &client->arrived;
	ring_append(&client->arrived, op);
	pthread_mutex_unlock(&client->mutex);
	if (was_empty)
		wake_main_thread();
}

static void
copy_stat(ZklOp *op, const struct Stat *stat)
{
	if (stat == NULL)
		return;
	op->czxid = stat->czxid;
	op->mzxid = stat->mzxid;
	op->owner = stat->ephemeralOwner;
	op->ctime = stat->ctime;
	op->version = stat->version;
}

static void
on_created(int rc, const char *path, const struct Stat *stat, const void *data)
{
	ZklOp	   *op = (ZklOp *) data;

	op->rc = rc;
	if (rc == ZOK && path != NULL)
	{
		const char *slash = strrchr(path, '/');

		strncpy(op->text, slash ? slash + 1 : path, sizeof(op->text) - 1);
		copy_stat(op, stat);
	}
	deliver(op);
}

static void
on_created_container(int rc, const char *path, const void *data)
{
	on_created(rc, path, NULL, data);
}

static int
compare_digits(const void *a, const void *b)
{
	const char *left = *(char *const *) a;
	const char *right = *(char *const *) b;

	return strcmp(left + strlen(left) - 10, right + strlen(right) - 10);
}

/* A contender, or a permit: what has digits to be ordered by, and fits. */
static bool
stands_in_queue(const char *child)
{
	size_t		len = strlen(child);
	ZklContender contender;

	if (len >= ZKL_NODE_SIZE || len < 10)
		return false;
	return zkl_contender_parse(child, &contender) ||
		(strstr(child, "-lease-") != NULL && strspn(child + len - 10, "0123456789") == 10);
}

/* All of them into one block of memory, in their order. */
static void
copy_names(ZklOp *op, char *const *children, int nchildren)
{
	const char **sorted = malloc((nchildren + 1) * sizeof(char *));
	size_t		size = 1;
	char	   *to;

	if (sorted == NULL)
		return;
	for (int i = 0; i < nchildren; i++)
		if (stands_in_queue(children[i]))
		{
			sorted[op->nnames++] = children[i];
			size += strlen(children[i]) + 1;
		}
	qsort(sorted, op->nnames, sizeof(char *), compare_digits);
	to = op->names = malloc(size);
	if (to == NULL)
		op->nnames = 0;
	for (int i = 0; i < op->nnames; i++)
	{
		size_t		len = strlen(sorted[i]) + 1;

		memcpy(to, sorted[i], len);
		to += len;
	}
	free(sorted);
}

static void
on_children(int rc, const struct String_vector *children, const struct Stat *stat,
			const void *data)
{
	ZklOp	   *op = (ZklOp *) data;

	op->rc = rc;
	if (rc == ZOK && children != NULL)
	{
		zkl_listing_read(&op->listing, children->data, children->count);
		op->listing.pzxid = stat != NULL ? stat->pzxid : 0;
		if (op->want_names)
			copy_names(op, children->data, children->count);
	}
	deliver(op);
}

static void
on_stat(int rc, const struct Stat *stat, const void *data)
{
	ZklOp	   *op = (ZklOp *) data;

	op->rc = rc;
	if (rc == ZOK)
		copy_stat(op, stat);
	deliver(op);
}

static void
on_data(int rc, const char *value, int len, const struct Stat *stat, const void *data)
{
	ZklOp	   *op = (ZklOp *) data;

	op->rc = rc;
	if (rc == ZOK)
	{
		copy_stat(op, stat);
		if (value != NULL && len > 0)
		{
			op->len = len < (int) sizeof(op->text) ? len : (int) sizeof(op->text);
			memcpy(op->text, value, op->len);
		}
	}
	deliver(op);
}

/*
 * If the batch failed, the result of each request is the error of the one that is to
 * blame, success for those before it, which were undone, and NOT_EXECUTED after it.
 * If the connection broke, or the batch as a whole was refused, there are no results.
 */
#define NO_RESULT	1

static void
on_batch(int rc, const void *data)
{
	ZklOp	   *op = (ZklOp *) data;
	ZklBatch   *batch = op->batch;

	op->rc = rc;
	for (int i = 0; i < batch->n; i++)
	{
		ZklBatchItem *item = &batch->items[i];
		const char *name = batch->requests->names[i];
		const char *slash = strrchr(name, '/');

		item->rc = batch->requests->results[i].err;
		if (item->rc == NO_RESULT)
			item->rc = rc;
		else if (rc != ZOK && item->rc == ZOK)
			item->rc = ZKL_RC_NOT_EXECUTED;
		if (slash != NULL)
			strncpy(item->node, slash + 1, sizeof(item->node) - 1);
	}
	deliver(op);
}

static void
on_void(int rc, const void *data)
{
	ZklOp	   *op = (ZklOp *) data;

	op->rc = rc;
	deliver(op);
}

/*
 * Session events and watches. A record that cannot be allocated would be an
 * event that nobody hears of; the main thread's own clock and its re-listing
 * cover that too, so there is nothing better to do than to drop it.
 */
static void
on_watch(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	ZklClient  *client = context;
	ZklOp	   *op;

	(void) zh;
	if (type == ZOO_NOTWATCHING_EVENT || (op = zkl_op_new(client)) == NULL)
		return;

	if (type == ZOO_SESSION_EVENT)
	{
		op->kind = ZKL_KIND_SESSION;
		if (state == ZOO_CONNECTED_STATE)
			op->event = ZKL_CLIENT_CONNECTED;
		else if (state == ZOO_EXPIRED_SESSION_STATE)
			op->event = ZKL_CLIENT_EXPIRED;
		else if (state == ZOO_AUTH_FAILED_STATE)
			op->event = ZKL_CLIENT_AUTH_FAILED;
		else
			op->event = ZKL_CLIENT_DISCONNECTED;
	}
	else
	{
		op->kind = type == ZOO_DELETED_EVENT ? ZKL_KIND_WATCH_GONE :
			type == ZOO_CHILD_EVENT ? ZKL_KIND_WATCH_CHILDREN : ZKL_KIND_WATCH_CHANGED;
		strncpy(op->text, path, sizeof(op->text) - 1);
	}
	deliver(op);
}

static void
on_log(const char *message)
{
	pthread_mutex_lock(&log_mutex);
	strncpy(log_lines[(log_head + log_count) % LOG_LINES], message, LOG_WIDTH - 1);
	if (log_count < LOG_LINES)
		log_count++;
	else
		log_head = (log_head + 1) % LOG_LINES;
	pthread_mutex_unlock(&log_mutex);
}

bool
zkl_client_log_line(char *buf, size_t size, char *severity)
{
	char		line[LOG_WIDTH];
	const char *text;
	size_t		len;

	pthread_mutex_lock(&log_mutex);
	if (log_count == 0)
	{
		pthread_mutex_unlock(&log_mutex);
		return false;
	}
	memcpy(line, log_lines[log_head], LOG_WIDTH);
	log_head = (log_head + 1) % LOG_LINES;
	log_count--;
	pthread_mutex_unlock(&log_mutex);

	/* "time:pid(thread):ZOO_ERROR@function@line: text" */
	text = strstr(line, ":ZOO_");
	*severity = text != NULL ? text[5] : 'I';
	if (text != NULL && (text = strstr(text + 5, ": ")) != NULL)
		text += 2;
	else
		text = line;
	strncpy(buf, text, size - 1);
	buf[size - 1] = '\0';
	len = strlen(buf);
	while (len > 0 && (buf[len - 1] == '\n' || buf[len - 1] == '\r'))
		buf[--len] = '\0';
	return true;
}

static void
free_ring(ZklOp *head)
{
	while (head->next != head)
	{
		ZklOp	   *op = head->next;

		ring_remove(op);
		zkl_op_free(op);
	}
}

static void
free_client(ZklClient *client)
{
	free_ring(&client->waiting);
	free_ring(&client->arrived);
	pthread_mutex_destroy(&client->mutex);
	free(client->addresses);
	free(client);
}

/* ------------------------------------------------------------------------
 * Sockets
 *
 * The library does not tell its socket. It is known by three marks: it was not there
 * before the first client was (what a library that was preloaded has in the
 * postmaster is inherited, and shutdown() would act on that), nobody listens on it,
 * and it is or will be connected to an address that the library was given.
 * ------------------------------------------------------------------------
 */

static pthread_mutex_t others_mutex = PTHREAD_MUTEX_INITIALIZER;
static ino_t *others;
static int	nothers;
static bool others_noted;

static bool
is_socket(int fd, ino_t *inode)
{
	struct stat status;

	if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode))
		return false;
	*inode = status.st_ino;
	return true;
}

static bool
is_of_others(ino_t inode)
{
	bool		found = false;

	pthread_mutex_lock(&others_mutex);
	for (int i = 0; i < nothers && !found; i++)
		found = others[i] == inode;
	pthread_mutex_unlock(&others_mutex);
	return found;
}

/* Calls "visit" for each descriptor of this process; false when they are not to be had. */
static bool
visit_descriptors(void (*visit) (int fd, void *arg), void *arg)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (dir == NULL)
		return false;
	while ((entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
			visit(atoi(entry->d_name), arg);
	closedir(dir);
	return true;
}

static void
note_other(int fd, void *failed)
{
	ino_t		inode;
	ino_t	   *more;

	if (!is_socket(fd, &inode) || is_of_others(inode))
		return;
	pthread_mutex_lock(&others_mutex);
	more = realloc(others, (nothers + 1) * sizeof(*others));
	if (more != NULL)
	{
		others = more;
		others[nothers++] = inode;
	}
	else
		*(bool *) failed = true;
	pthread_mutex_unlock(&others_mutex);
}

/* A client that closes in a thread of its own is one of the others too. */
static bool
note_sockets_of_others(void)
{
	bool		failed = false;

	if (others_noted)
		return true;
	others_noted = visit_descriptors(note_other, &failed) && !failed;
	return others_noted;
}

static bool
read_addresses(ZklClient *client, const char *hosts)
{
	int			n = 1;

	for (const char *p = hosts; *p != '\0' && *p != '/'; p++)
		n += *p == ',';
	client->addresses = calloc(n, sizeof(Address));
	if (client->addresses == NULL)
		return false;
	for (const char *p = hosts;; p++)
	{
		size_t		len = strcspn(p, ",/");
		char		text[128];
		char	   *colon;
		char	   *scope;
		Address    *address = &client->addresses[client->naddresses];

		if (len < sizeof(text))
		{
			memcpy(text, p, len);
			text[len] = '\0';
			colon = strrchr(text, ':');
			if (colon != NULL)
			{
				*colon = '\0';
				address->port = htons((uint16_t) atoi(colon + 1));
				scope = strchr(text, '%');
				if (scope != NULL)
					*scope = '\0';
				address->family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
				if (inet_pton(address->family, text, address->bytes) == 1)
					client->naddresses++;
			}
		}
		p += len;
		if (*p != ',')
			return true;
	}
}

/*
 * Is the descriptor the library's connection for this client? "inode", if not NULL,
 * gets the number that no other socket has.
 */
static bool
is_of_client(ZklClient *client, int fd, uint64_t *inode)
{
	ino_t		number;
	int			value;
	int			family;
	socklen_t	len = sizeof(value);
	struct sockaddr_storage peer;

	if (!is_socket(fd, &number) ||
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len) != 0 || value != SOCK_STREAM ||
		getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) != 0 || value != 0 ||
		getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) != 0 ||
		(family != AF_INET && family != AF_INET6))
		return false;

	/*
	 * not getpeername(), which knows nothing before the connection is there;
	 * and not with more room than an address takes, which this one refuses
	 */
	len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &peer, &len) != 0 || is_of_others(number))
		return false;
	if (inode != NULL)
		*inode = number;
	for (int i = 0; i < client->naddresses && peer.ss_family == family; i++)
	{
		Address    *address = &client->addresses[i];
		struct sockaddr_in *in = (struct sockaddr_in *) &peer;
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *) &peer;

		if (address->family != peer.ss_family)
			continue;
		if (peer.ss_family == AF_INET && in->sin_port == address->port &&
			memcmp(&in->sin_addr, address->bytes, 4) == 0)
			return true;
		if (peer.ss_family == AF_INET6 && in6->sin6_port == address->port &&
			memcmp(&in6->sin6_addr, address->bytes, 16) == 0)
			return true;
	}
	return false;
}

static void
keep_highest(int fd, void *highest)
{
	if (fd > *(int *) highest)
		*(int *) highest = fd;
}

static int
highest_descriptor(void)
{
	int			highest = 0;

	(void) visit_descriptors(keep_highest, &highest);
	return highest;
}

typedef struct Visit
{
	ZklClient  *client;
	char	   *peer;
	size_t		peer_size;
	uint64_t   *inodes;
	int			n;
	int			max;
} Visit;

static void
cut_socket(int fd, void *arg)
{
	if (is_of_client(((Visit *) arg)->client, fd, NULL))
		shutdown(fd, SHUT_RDWR);
}

/* Nothing else makes the library give a silent connection up. */
void
zkl_client_kick(ZklClient *client)
{
	Visit		visit = {.client = client};

	(void) visit_descriptors(cut_socket, &visit);
}

static void
ask_peer(int fd, void *arg)
{
	Visit	   *visit = arg;
	union
	{
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	}			peer;
	socklen_t	len = sizeof(peer);
	char		host[INET6_ADDRSTRLEN];

	if (!is_of_client(visit->client, fd, NULL) || getpeername(fd, &peer.any, &len) != 0)
		return;
	if (peer.any.sa_family == AF_INET &&
		inet_ntop(AF_INET, &peer.in.sin_addr, host, sizeof(host)) != NULL)
		snprintf(visit->peer, visit->peer_size, "%s:%u", host, ntohs(peer.in.sin_port));
	else if (peer.any.sa_family == AF_INET6 &&
			 inet_ntop(AF_INET6, &peer.in6.sin6_addr, host, sizeof(host)) != NULL)
		snprintf(visit->peer, visit->peer_size, "[%s]:%u", host, ntohs(peer.in6.sin6_port));
}

void
zkl_client_peer(ZklClient *client, char *buf, size_t size)
{
	Visit		visit = {.client = client,.peer = buf,.peer_size = size};

	buf[0] = '\0';
	(void) visit_descriptors(ask_peer, &visit);
}

static void
note_open(int fd, void *arg)
{
	Visit	   *visit = arg;
	struct tcp_info info;
	socklen_t	len = sizeof(info);

	if (visit->n == visit->max || !is_of_client(visit->client, fd, &visit->inodes[visit->n]))
		return;
	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_SYN_SENT)
		return;					/* nothing can have been sent yet */
	visit->n++;
}

int
zkl_client_open_sockets(ZklClient *client, uint64_t *inodes, int max)
{
	Visit		visit = {.client = client,.inodes = inodes,.max = max};

	return visit_descriptors(note_open, &visit) ? visit.n : max;
}

int
zkl_client_eventfd(void)
{
	if (wakeup_fd < 0)
		wakeup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return wakeup_fd;
}

ZklClient *
zkl_client_open(const char *hosts, int timeout_ms, int64_t session,
				const unsigned char password[ZKL_PASSWORD_SIZE])
{
	ZklClient  *client;
	clientid_t	id;
	sigset_t	all,
				old;
	int			save_errno;

	if (zkl_client_eventfd() < 0 || (client = calloc(1, sizeof(*client))) == NULL)
		return NULL;
	pthread_mutex_init(&client->mutex, NULL);
	ring_init(&client->waiting);
	ring_init(&client->arrived);
	if (!note_sockets_of_others() || !read_addresses(client, hosts))
	{
		free_client(client);
		errno = ENOMEM;
		return NULL;
	}

	memset(&id, 0, sizeof(id));
	id.client_id = session;
	if (session != 0)
		memcpy(id.passwd, password, ZKL_PASSWORD_SIZE);
	zoo_set_debug_level(ZOO_LOG_LEVEL_INFO);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* 2: ZOO_NO_LOG_CLIENTENV, which spares getpwuid and the like */
	client->zh = zookeeper_init2(hosts, on_watch, timeout_ms,
								 session != 0 ? &id : NULL, client, 2, on_log);
	save_errno = errno;
	if (client->zh != NULL)
		zoo_set_servers_resolution_delay(client->zh, -1);
	pthread_sigmask(SIG_SETMASK, &old, NULL);

	if (client->zh == NULL)
	{
		free_client(client);
		errno = save_errno;
		return NULL;
	}
	return client;
}

/* A thread that cuts the connection unless it is told within a second that
 * this is not needed any more. */
typedef struct CloseWatchdog
{
	ZklClient  *client;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool		closed;
} CloseWatchdog;

static void *
watchdog_main(void *arg)
{
	CloseWatchdog *watchdog = arg;
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 1;
	pthread_mutex_lock(&watchdog->mutex);
	while (!watchdog->closed &&
		   pthread_cond_timedwait(&watchdog->cond, &watchdog->mutex, &limit) == 0)
		;
	if (!watchdog->closed)
		zkl_client_kick(watchdog->client);
	pthread_mutex_unlock(&watchdog->mutex);
	return NULL;
}

void
zkl_client_close(ZklClient *client)
{
	CloseWatchdog watchdog = {client, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
	pthread_t	thread;
	bool		have_thread;
	sigset_t	all,
				old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	have_thread = pthread_create(&thread, NULL, watchdog_main, &watchdog) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);

	zookeeper_close(client->zh);

	if (have_thread)
	{
		pthread_mutex_lock(&watchdog.mutex);
		watchdog.closed = true;
		pthread_cond_signal(&watchdog.cond);
		pthread_mutex_unlock(&watchdog.mutex);
		pthread_join(thread, NULL);
	}

	/* its threads are gone: what it did not answer, it never will */
	free_client(client);
}

static void *
close_main(void *arg)
{
	zkl_client_close(arg);
	return NULL;
}

void
zkl_client_close_later(ZklClient *client)
{
	pthread_t	thread;
	pthread_attr_t attr;
	sigset_t	all,
				old;
	bool		begun;

	/* what it is connected by must not be taken for the next client's */
	others_noted = false;
	(void) note_sockets_of_others();
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	begun = pthread_create(&thread, &attr, close_main, client) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (!begun)
		zkl_client_close(client);
}

/*
 * The library sends its goodbye when it is connected at that moment, so it must not
 * be: as long as this process may not open descriptors, its thread, having lost the
 * connection, cannot get another.
 */
#define DROP_TRIES	500

bool
zkl_client_drop(ZklClient *client)
{
	struct rlimit limit,
				none;
	int			highest = highest_descriptor() + 64;
	bool		cut = false;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return false;
	none = limit;
	none.rlim_cur = 3;			/* those are open; and poll() refuses more
								 * than the limit */
	if (setrlimit(RLIMIT_NOFILE, &none) != 0)
		return false;
	for (int i = 0; i < DROP_TRIES && !cut; i++)
	{
		bool		any = false;

		for (int fd = 0; fd <= highest; fd++)
			if (is_of_client(client, fd, NULL))
			{
				shutdown(fd, SHUT_RDWR);
				any = true;
			}
		cut = !any && !zkl_client_is_connected(client);
		if (!cut)
			usleep(1000);
	}
	if (cut)
		zookeeper_close(client->zh);
	setrlimit(RLIMIT_NOFILE, &limit);
	if (!cut)
		return false;

	/* its threads are gone: what was not answered goes to the caller as lost */
	for (ZklOp *op = client->waiting.next; op != &client->waiting; op = client->waiting.next)
	{
		op->rc = ZCONNECTIONLOSS;
		if (op->batch != NULL)
			for (int i = 0; i < op->batch->n; i++)
				op->batch->items[i].rc = ZCONNECTIONLOSS;
		ring_remove(op);
		ring_append(&client->arrived, op);
	}
	for (ZklOp *op = client->arrived.next; op != &client->arrived; op = op->next)
	{
		if (op->rc == ZCLOSING || op->rc == ZINVALIDSTATE)
			op->rc = ZCONNECTIONLOSS;
		if (op->batch != NULL)
			for (int i = 0; i < op->batch->n; i++)
				if (op->batch->items[i].rc == ZCLOSING || op->batch->items[i].rc == ZINVALIDSTATE)
					op->batch->items[i].rc = ZCONNECTIONLOSS;
	}
	return true;
}

void
zkl_client_free(ZklClient *client)
{
	free_client(client);
}

ZklOp *
zkl_client_next(ZklClient *client)
{
	ZklOp	   *op = NULL;

	pthread_mutex_lock(&client->mutex);
	if (client->arrived.next != &client->arrived)
	{
		op = client->arrived.next;
		ring_remove(op);
	}
	else
	{
		/* empty, and nobody can append now: the wake-up is consumed */
		uint64_t	count;

		(void) !read(wakeup_fd, &count, sizeof(count));
	}
	pthread_mutex_unlock(&client->mutex);
	return op;
}

ZklOp *
zkl_op_new(ZklClient *client)
{
	ZklOp	   *op = calloc(1, sizeof(ZklOp));

	if (op != NULL)
	{
		op->client = client;
		op->next = op->previous = op;
	}
	return op;
}

static void
free_batch(ZklBatch *batch)
{
	if (batch == NULL)
		return;
	if (batch->requests != NULL)
	{
		for (int i = 0; i < batch->n; i++)
		{
			free(batch->requests->paths[i]);
			free(batch->requests->data[i]);
		}
		free(batch->requests);
	}
	free(batch);
}

void
zkl_op_free(ZklOp *op)
{
	free_batch(op->batch);
	free(op->names);
	free(op);
}

bool
zkl_client_is_connected(ZklClient *client)
{
	return zoo_state(client->zh) == ZOO_CONNECTED_STATE;
}

int64_t
zkl_client_session(ZklClient *client)
{
	return zoo_client_id(client->zh)->client_id;
}

void
zkl_client_password(ZklClient *client, unsigned char password[ZKL_PASSWORD_SIZE])
{
	memcpy(password, zoo_client_id(client->zh)->passwd, ZKL_PASSWORD_SIZE);
}

int
zkl_client_timeout(ZklClient *client)
{
	return zoo_recv_timeout(client->zh);
}

/* Before the library can answer, the op must be where deliver() expects it. */
static void
enlist(ZklOp *op, ZklOpKind kind)
{
	op->kind = kind;
	pthread_mutex_lock(&op->client->mutex);
	ring_append(&op->client->waiting, op);
	pthread_mutex_unlock(&op->client->mutex);
}

static bool
sent(ZklOp *op, int rc)
{
	if (rc == ZOK)
		return true;
	pthread_mutex_lock(&op->client->mutex);
	ring_remove(op);
	pthread_mutex_unlock(&op->client->mutex);
	zkl_op_free(op);
	return false;
}

bool
zkl_client_add_digest(ZklClient *client, const char *credentials)
{
	ZklOp	   *op = zkl_op_new(client);

	if (op == NULL)
		return false;
	enlist(op, ZKL_KIND_AUTH);
	return sent(op, zoo_add_auth(client->zh, "digest", credentials,
								 (int) strlen(credentials), on_void, op));
}

bool
zkl_send_create(ZklOp *op, const char *path, const char *data, int len,
				int flags, bool creator_only)
{
	const struct ACL_vector *acl = creator_only ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
	zhandle_t  *zh = op->client->zh;

	enlist(op, ZKL_KIND_CREATE);
	if (flags & ZKL_CREATE_CONTAINER)
		return sent(op, zoo_acreate(zh, path, data, len, acl, ZOO_CONTAINER,
									on_created_container, op));
	return sent(op, zoo_acreate2(zh, path, data, len, acl,
								 ((flags & ZKL_CREATE_EPHEMERAL) ? ZOO_EPHEMERAL : 0) |
								 ((flags & ZKL_CREATE_SEQUENTIAL) ? ZOO_SEQUENCE : 0),
								 on_created, op));
}

bool
zkl_send_list(ZklOp *op, const char *path, bool watch)
{
	enlist(op, ZKL_KIND_LIST);
	return sent(op, zoo_awget_children2(op->client->zh, path, watch ? on_watch : NULL,
										op->client, on_children, op));
}

bool
zkl_send_get(ZklOp *op, const char *path, bool watch)
{
	enlist(op, ZKL_KIND_GET);
	return sent(op, zoo_awget(op->client->zh, path, watch ? on_watch : NULL, op->client,
							  on_data, op));
}

bool
zkl_send_set(ZklOp *op, const char *path, const char *data, int len)
{
	enlist(op, ZKL_KIND_SET);
	return sent(op, zoo_aset(op->client->zh, path, data, len, -1, on_stat, op));
}

bool
zkl_send_delete(ZklOp *op, const char *path)
{
	enlist(op, ZKL_KIND_DELETE);
	return sent(op, zoo_adelete(op->client->zh, path, -1, on_void, op));
}

bool
zkl_batch_begin(ZklOp *op)
{
	op->batch = calloc(1, sizeof(ZklBatch));
	if (op->batch != NULL)
		op->batch->requests = malloc(sizeof(struct ZklBatchRequests));
	return op->batch != NULL && op->batch->requests != NULL;
}

/* Room for one more, with its path; NULL when there is none. */
static zoo_op_t *
add_to_batch(ZklOp *op, int slot, uint32_t serial, const char *path)
{
	ZklBatch   *batch = op->batch;
	struct ZklBatchRequests *requests = batch->requests;
	int			i = batch->n;

	if (i == ZKL_BATCH_MAX || (requests->paths[i] = strdup(path)) == NULL)
		return NULL;
	requests->data[i] = NULL;
	requests->names[i][0] = '\0';
	memset(&requests->results[i], 0, sizeof(requests->results[i]));
	requests->results[i].err = NO_RESULT;
	batch->items[i].slot = slot;
	batch->items[i].serial = serial;
	batch->n++;
	return &requests->ops[i];
}

bool
zkl_batch_create(ZklOp *op, int slot, uint32_t serial, const char *path,
				 const char *data, int len, bool creator_only)
{
	zoo_op_t   *request = add_to_batch(op, slot, serial, path);
	struct ZklBatchRequests *requests = op->batch->requests;
	int			i = op->batch->n - 1;

	if (request == NULL)
		return false;
	requests->data[i] = malloc(len + 1);
	if (requests->data[i] == NULL)
	{
		free(requests->paths[i]);
		op->batch->n--;
		return false;
	}
	memcpy(requests->data[i], data, len);
	zoo_create_op_init(request, requests->paths[i], requests->data[i], len,
					   creator_only ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE,
					   ZOO_EPHEMERAL | ZOO_SEQUENCE, requests->names[i],
					   sizeof(requests->names[i]));
	return true;
}

bool
zkl_batch_delete(ZklOp *op, int slot, uint32_t serial, const char *path)
{
	zoo_op_t   *request = add_to_batch(op, slot, serial, path);

	if (request == NULL)
		return false;
	zoo_delete_op_init(request, op->batch->requests->paths[op->batch->n - 1], -1);
	return true;
}

bool
zkl_send_batch(ZklOp *op)
{
	enlist(op, ZKL_KIND_BATCH);
	return sent(op, zoo_amulti(op->client->zh, op->batch->n, op->batch->requests->ops,
							   op->batch->requests->results, on_batch, op));
}

const char *
zkl_rc_text(int rc)
{
	/* the library of 3.8 does not know this one */
	return rc == ZKL_RC_QUOTAEXCEEDED ? "quota exceeded" : zerror(rc);
}
