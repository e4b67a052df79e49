/*-------------------------------------------------------------------------
 *
 * zkcli.c
 *	  A small ZooKeeper client for the tests.
 *
 * Debian's zkCli.sh starts a JVM for each question (a second each); the tests
 * ask hundreds of times what is in a directory *now*. This asks in a few
 * milliseconds, over a ZooKeeper session of its own, so that what it sees owes
 * nothing to the extension under test.
 *
 *		zkcli [-t SECONDS] [-T MS] HOST:PORT[,...] COMMAND ARGUMENT...
 *
 *	  ls PATH					names of the children, sorted, one a line
 *	  lsr PATH					paths of all nodes below PATH, sorted
 *	  get PATH					the data, as it is
 *	  stat PATH					name=value lines; ephemeralOwner in hex
 *	  create PATH DATA [FLAGS]	prints the path; FLAGS of e (ephemeral),
 *								s (sequential), c (container), p (parents too)
 *	  set PATH DATA
 *	  delete PATH				deleter PATH: with everything below it
 *	  fill PATH N				create PATH1 to PATHN, persistent and empty
 *	  hold PATH DATA [FLAGS]	create an ephemeral sequential node (FLAGS: just
 *								these) with its parents, print "path czxid
 *								session password", stay until stdin ends
 *	  close-session ID PASSWORD	attach to that ZooKeeper session and close it;
 *								both in hex, as printed by hold
 *
 * -t limits the whole call (10 s; hold: only until the node stands), so that no
 * test hangs on a frozen server. -T is the session timeout asked for (10 s).
 *
 * Exit codes, to be told apart by a test: see EX_* below.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zookeeper/zookeeper.h>

enum
{
	EX_DONE = 0,
	EX_NONODE = 1,				/* no such node */
	EX_USAGE = 2,
	EX_UNREACHABLE = 3,			/* no connection, connection lost, out of time */
	EX_EXISTS = 4,				/* the node is there already */
	EX_NOTEMPTY = 5,			/* the node has children */
	EX_SESSION_GONE = 6,		/* the ZooKeeper session is closed or expired */
	EX_OTHER = 7				/* any other answer of ZooKeeper */
};

#define MAX_DATA	(1024 * 1024)

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t state_changed = PTHREAD_COND_INITIALIZER;
static int	session_state;		/* guarded by state_lock */

static void
usage(void)
{
	fprintf(stderr,
			"usage: zkcli [-t SECONDS] [-T SESSION_TIMEOUT_MS] HOST:PORT[,...] COMMAND ARGUMENT...\n"
			"commands: ls lsr get stat create set delete deleter fill hold close-session\n");
	exit(EX_USAGE);
}

/*
 * Out of time. Whatever thread holds the library's locks, _exit() needs none.
 */
static void
on_alarm(int signo)
{
	static const char text[] = "zkcli: no answer in time\n";

	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(EX_UNREACHABLE);
	_exit(EX_UNREACHABLE);
}

static void
watcher(zhandle_t *zh, int type, int state, const char *path, void *context)
{
	if (type != ZOO_SESSION_EVENT)
		return;
	pthread_mutex_lock(&state_lock);
	session_state = state;
	pthread_cond_broadcast(&state_changed);
	pthread_mutex_unlock(&state_lock);
}

/*
 * Open a ZooKeeper session, or attach to "session" when that is given, and wait
 * until the server has said yes or no. The alarm is what bounds the wait. Returns
 * NULL when the session is gone.
 */
static zhandle_t *
open_session(const char *hosts, int timeout_ms, const clientid_t *session)
{
	zhandle_t  *zh;
	sigset_t	all;
	sigset_t	before;
	int			state;

	session_state = 0;
	/* The library's threads inherit the mask: only main shall see signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	zh = zookeeper_init(hosts, watcher, timeout_ms, session, NULL, 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (zh == NULL)
	{
		fprintf(stderr, "zkcli: %s: %s\n", hosts, strerror(errno));
		exit(EX_USAGE);
	}
	zoo_set_servers_resolution_delay(zh, -1);

	pthread_mutex_lock(&state_lock);
	while (session_state != ZOO_CONNECTED_STATE &&
		   session_state != ZOO_EXPIRED_SESSION_STATE &&
		   session_state != ZOO_AUTH_FAILED_STATE)
		pthread_cond_wait(&state_changed, &state_lock);
	state = session_state;
	pthread_mutex_unlock(&state_lock);

	if (state != ZOO_CONNECTED_STATE)
	{
		zookeeper_close(zh);
		return NULL;
	}
	return zh;
}

static int
exit_code(int rc)
{
	switch (rc)
	{
		case ZOK:
			return EX_DONE;
		case ZNONODE:
			return EX_NONODE;
		case ZNODEEXISTS:
			return EX_EXISTS;
		case ZNOTEMPTY:
			return EX_NOTEMPTY;
		case ZCONNECTIONLOSS:
		case ZOPERATIONTIMEOUT:
			return EX_UNREACHABLE;
		case ZSESSIONEXPIRED:
		case ZINVALIDSTATE:
		case ZCLOSING:
			return EX_SESSION_GONE;
		default:
			return EX_OTHER;
	}
}

/* Say what went wrong and where; returns the exit code. */
static int
report(int rc, const char *command, const char *path)
{
	if (rc != ZOK)
		fprintf(stderr, "zkcli: %s %s: %s\n", command, path, zerror(rc));
	return exit_code(rc);
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

static char *
join(const char *dir, const char *name)
{
	char	   *path = malloc(strlen(dir) + strlen(name) + 2);

	if (path == NULL)
		abort();
	sprintf(path, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, name);
	return path;
}

/*
 * Walk the tree below "path". Nodes that vanish on the way are no error: a test
 * lists directories in which locks come and go.
 */
static int
walk(zhandle_t *zh, const char *path, bool top, bool remove)
{
	struct String_vector names = {0, NULL};
	int			rc = zoo_get_children(zh, path, 0, &names);

	if (rc == ZNONODE && !top)
		return ZOK;
	if (rc != ZOK)
		return rc;
	qsort(names.data, names.count, sizeof(char *), compare_strings);
	for (int i = 0; i < names.count && rc == ZOK; i++)
	{
		char	   *child = join(path, names.data[i]);

		if (!remove)
			puts(child);
		rc = walk(zh, child, false, remove);
		free(child);
	}
	deallocate_String_vector(&names);
	if (rc == ZOK && remove)
	{
		rc = zoo_delete(zh, path, -1);
		if (rc == ZNONODE && !top)
			rc = ZOK;
	}
	return rc;
}

static int
list(zhandle_t *zh, const char *path)
{
	struct String_vector names = {0, NULL};
	int			rc = zoo_get_children(zh, path, 0, &names);

	if (rc != ZOK)
		return rc;
	qsort(names.data, names.count, sizeof(char *), compare_strings);
	for (int i = 0; i < names.count; i++)
		puts(names.data[i]);
	deallocate_String_vector(&names);
	return ZOK;
}

static int
get(zhandle_t *zh, const char *path)
{
	char	   *data = malloc(MAX_DATA);
	int			len = MAX_DATA;
	int			rc;

	if (data == NULL)
		abort();
	rc = zoo_get(zh, path, 0, data, &len, NULL);
	if (rc == ZOK && len > 0)
		fwrite(data, 1, len, stdout);
	free(data);
	return rc;
}

static int
show_stat(zhandle_t *zh, const char *path)
{
	struct Stat stat;
	int			rc = zoo_exists(zh, path, 0, &stat);

	if (rc == ZOK)
		printf("czxid=%" PRId64 "\nmzxid=%" PRId64 "\nctime=%" PRId64 "\nmtime=%" PRId64 "\n"
			   "version=%d\ncversion=%d\nephemeralOwner=%" PRIx64 "\ndataLength=%d\nnumChildren=%d\n",
			   stat.czxid, stat.mzxid, stat.ctime, stat.mtime,
			   stat.version, stat.cversion, stat.ephemeralOwner, stat.dataLength, stat.numChildren);
	return rc;
}

static int
make_parents(zhandle_t *zh, const char *path)
{
	char	   *copy = strdup(path);
	int			rc = ZOK;

	if (copy == NULL)
		abort();
	for (char *p = copy + 1; rc == ZOK && (p = strchr(p, '/')) != NULL; p++)
	{
		*p = '\0';
		rc = zoo_create(zh, copy, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
		if (rc == ZNODEEXISTS)
			rc = ZOK;
		*p = '/';
	}
	free(copy);
	return rc;
}

static int
create(zhandle_t *zh, const char *path, const char *data, const char *flags,
	   char *made, int madelen, struct Stat *stat)
{
	bool		ephemeral = strchr(flags, 'e') != NULL;
	bool		sequential = strchr(flags, 's') != NULL;
	int			mode = 0;
	int			rc = ZOK;

	if (strspn(flags, "escp") != strlen(flags))
		usage();
	if (strchr(flags, 'c') != NULL)
	{
		if (ephemeral || sequential)
			usage();
		mode = ZOO_CONTAINER;
	}
	if (ephemeral)
		mode |= ZOO_EPHEMERAL;
	if (sequential)
		mode |= ZOO_SEQUENCE;
	if (strchr(flags, 'p') != NULL)
		rc = make_parents(zh, path);
	if (rc == ZOK)
		rc = zoo_create2(zh, path, data, (int) strlen(data), &ZOO_OPEN_ACL_UNSAFE,
						 mode, made, madelen, stat);
	return rc;
}

static int
fill(zhandle_t *zh, const char *path, int count)
{
	int			rc = ZOK;

	for (int i = 1; i <= count && rc == ZOK; i++)
	{
		char		child[4096];

		snprintf(child, sizeof(child), "%s%d", path, i);
		rc = zoo_create(zh, child, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
	}
	return rc;
}

/*
 * Keep a node until stdin ends, and tell whether it stood until then.
 */
static int
hold(zhandle_t *zh, const char *path, const char *data, const char *flags)
{
	const clientid_t *id;
	char		made[4096];
	struct Stat stat;
	char		byte;
	int			rc = create(zh, path, data, flags, made, sizeof(made), &stat);

	if (rc != ZOK)
		return rc;
	alarm(0);
	id = zoo_client_id(zh);
	printf("%s %" PRId64 " %" PRIx64 " ", made, stat.czxid, id->client_id);
	for (size_t i = 0; i < sizeof(id->passwd); i++)
		printf("%02x", (unsigned char) id->passwd[i]);
	putchar('\n');
	fflush(stdout);

	for (;;)
	{
		ssize_t		n = read(STDIN_FILENO, &byte, 1);

		if (n == 0 || (n < 0 && errno != EINTR))
			break;
	}
	/* Neither must this hang: the server may be frozen by now. */
	alarm(5);
	rc = zoo_exists(zh, made, 0, &stat);
	if (rc == ZOK && stat.ephemeralOwner != id->client_id)
		rc = ZNONODE;
	return rc;
}

static void
parse_session(const char *id, const char *password, clientid_t *session)
{
	char	   *end;

	session->client_id = (int64_t) strtoull(id, &end, 16);
	if (*id == '\0' || *end != '\0' || strlen(password) != 2 * sizeof(session->passwd))
		usage();
	for (size_t i = 0; i < sizeof(session->passwd); i++)
	{
		unsigned int byte;

		if (sscanf(password + 2 * i, "%2x", &byte) != 1)
			usage();
		session->passwd[i] = (char) byte;
	}
}

/*
 * Close somebody else's session. Its owner is thrown off by our attaching, comes
 * back at once and throws us off, and the request to close may be lost on the
 * way. So try until the server says that there is no such session.
 */
static int
close_session(const char *hosts, int timeout_ms, const clientid_t *session)
{
	zhandle_t  *zh;
	int			rc = EX_SESSION_GONE;

	while ((zh = open_session(hosts, timeout_ms, session)) != NULL)
	{
		zookeeper_close(zh);
		rc = EX_DONE;
	}
	if (rc != EX_DONE)
		fprintf(stderr, "zkcli: there is no such ZooKeeper session\n");
	return rc;
}

int
main(int argc, char **argv)
{
	int			timeout = 10;
	int			session_timeout = 10000;
	const char *hosts;
	const char *command;
	const char *path;
	const char *data;
	const char *flags;
	zhandle_t  *zh;
	int			opt;
	int			nargs;
	int			rc;

	while ((opt = getopt(argc, argv, "+t:T:")) != -1)
	{
		if (opt == 't')
			timeout = atoi(optarg);
		else if (opt == 'T')
			session_timeout = atoi(optarg);
		else
			usage();
	}
	nargs = argc - optind;
	if (nargs < 3 || nargs > 5 || timeout <= 0)
		usage();
	hosts = argv[optind];
	command = argv[optind + 1];
	path = argv[optind + 2];
	data = nargs > 3 ? argv[optind + 3] : "";
	flags = nargs > 4 ? argv[optind + 4] : "";

	signal(SIGALRM, on_alarm);
	signal(SIGPIPE, SIG_IGN);
	alarm(timeout);
	zoo_set_debug_level((ZooLogLevel) 0);

	if (strcmp(command, "close-session") == 0)
	{
		clientid_t	session;

		parse_session(path, data, &session);
		return close_session(hosts, session_timeout, &session);
	}

	zh = open_session(hosts, session_timeout, NULL);
	if (zh == NULL)
		return EX_SESSION_GONE;
	if (strcmp(command, "ls") == 0)
		rc = list(zh, path);
	else if (strcmp(command, "lsr") == 0)
		rc = walk(zh, path, true, false);
	else if (strcmp(command, "get") == 0)
		rc = get(zh, path);
	else if (strcmp(command, "stat") == 0)
		rc = show_stat(zh, path);
	else if (strcmp(command, "create") == 0)
	{
		char		made[4096];

		rc = create(zh, path, data, flags, made, sizeof(made), NULL);
		if (rc == ZOK)
			puts(made);
	}
	else if (strcmp(command, "set") == 0)
		rc = zoo_set(zh, path, data, (int) strlen(data), -1);
	else if (strcmp(command, "delete") == 0)
		rc = zoo_delete(zh, path, -1);
	else if (strcmp(command, "deleter") == 0)
		rc = walk(zh, path, true, true);
	else if (strcmp(command, "fill") == 0)
		rc = fill(zh, path, atoi(data));
	else if (strcmp(command, "hold") == 0)
		rc = hold(zh, path, data, nargs > 4 ? flags : "esp");
	else
		usage();

	rc = report(rc, command, path);
	zookeeper_close(zh);
	return fflush(stdout) == 0 ? rc : EX_OTHER;
}
