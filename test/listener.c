/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  Stands for any preloaded library that has TCP sockets in the postmaster, an exporter
 *	  of metrics, say: one that listens on LISTENER_PORT, and one that is connected to
 *	  LISTENER_PEER, a port as well.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	struct sockaddr_in address = {0};
	int			one = 1;
	int			listener = socket(AF_INET, SOCK_STREAM, 0);
	int			peer = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons(atoi(getenv("LISTENER_PORT")));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *) &address, sizeof(address)) != 0 ||
		listen(listener, 5) != 0)
		elog(FATAL, "listener: %m");
	address.sin_port = htons(atoi(getenv("LISTENER_PEER")));
	if (connect(peer, (struct sockaddr *) &address, sizeof(address)) != 0)
		elog(FATAL, "peer: %m");
}
