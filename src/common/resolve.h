/*-------------------------------------------------------------------------
 *
 * resolve.h
 *	  Host names to numeric addresses, in a thread of its own.
 *
 * The client library resolves names in its I/O loop, where a resolver that
 * does not answer stops a healthy connection; and the worker's main loop must
 * not block either, or CREATE DATABASE would wait for a name server. So each
 * resolution is a short-lived thread, with all signals blocked, that leaves its
 * result where the main loop finds it. Never includes postgres.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_RESOLVE_H
#define ZKL_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ZklResolution ZklResolution;

/* Is "hosts" a comma-separated list of host:port with at most one /chroot at
 * its end? If not, "reason" says in what way, as a fragment for a detail. */
#define ZKL_CHROOT_SIZE	1024

extern bool zkl_hosts_check(const char *hosts, char *reason, size_t size);

/* Are all of them addresses, so that no name server can have another answer? */
extern bool zkl_hosts_are_numeric(const char *hosts);

/* Begin; NULL when there is no memory or no thread to be had. */
extern ZklResolution *zkl_resolve_start(const char *hosts);

/*
 * Is it done? Then "addresses" points to a list for the client library, without the
 * chroot (each address that it can use once, but an odd number of them: with an even
 * one it may skip the only server that is alive), or is NULL and "error" says what failed. Valid until freed.
 */
extern bool zkl_resolve_done(ZklResolution *resolution, const char **addresses,
							 const char **error);

/* A thread that is still at work frees it when it ends. */
extern void zkl_resolve_free(ZklResolution *resolution);

#endif							/* ZKL_RESOLVE_H */
