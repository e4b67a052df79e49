/*-------------------------------------------------------------------------
 *
 * nodedata.h
 *	  What a contender's node says about its owner: a short JSON object.
 *
 * Written for other zklock servers and for people with a ZooKeeper shell;
 * read back from nodes that anybody may have written (Curator leaves an IP
 * address there, kazoo an identifier), so the reader takes any bytes.
 * Pure, see lockname.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_NODEDATA_H
#define ZKL_NODEDATA_H

#include <stdbool.h>
#include <stddef.h>

/* Longest data written, and the most that is read of anybody's. */
#define ZKL_NODEDATA_SIZE	1152

/* What Curator's Revoker writes into a node to ask its holder to let go. */
#define ZKL_REVOKE_BYTES	"__REVOKE__"

typedef struct ZklNodeData
{
	char		server[128];	/* zklock.server_name */
	int			pid;			/* backend's process id there; 0 = not said
								 * (what is not positive is not written) */
	char		database[64];
	char		user[64];
	char		application[64];
	char		since[40];		/* ISO 8601 with zone, when it asked */
	char		breaker[128];	/* somebody takes the lock away: who. Written
								 * into another's node, by zk_lock_break() */
	int			timeout;		/* of the ZooKeeper session, ms: the owner may
								 * rely on the lock for as long when nobody
								 * reaches it; 0 = not said */
	int			permits;		/* a semaphore's, as its owner was told; 0 =
								 * not said */
} ZklNodeData;

/*
 * Write "data" as one JSON object without line breaks into "buf"; returns its
 * length without the terminator. Strings are UTF-8; what is not becomes U+FFFD,
 * and what does not fit is cut at a character. The result is always valid UTF-8
 * and valid JSON, and printable: control characters are escaped. What came out
 * of zkl_nodedata_read() always fits.
 */
extern size_t zkl_nodedata_write(const ZklNodeData *data, char buf[ZKL_NODEDATA_SIZE]);

/*
 * Read what zkl_nodedata_write() wrote. Any input is safe, NULL with length 0
 * too. Returns false when it is not a JSON object with a "server" string; then
 * server holds the printable start of the bytes (Curator's address, kazoo's
 * identifier), or "". Strict as JSON goes, except that more than 16 levels are
 * not followed; of a key that comes twice the last one counts, unknown keys and
 * values of another type are passed over. All strings that come out are valid
 * UTF-8 without control characters (and without those that change the direction
 * of text): these are replaced by question marks.
 */
extern bool zkl_nodedata_read(const char *bytes, size_t len, ZklNodeData *data);

#endif							/* ZKL_NODEDATA_H */
