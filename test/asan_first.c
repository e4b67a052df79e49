/*-------------------------------------------------------------------------
 *
 * asan_first.c
 *	  A library that makes the first allocation of a process.
 *
 * test/run --asan preloads it into the server. libgpg-error has a constructor that
 * allocates while it holds a lock. AddressSanitizer starts at the first allocation,
 * and its start asks for the same lock, so the server would hang before main().
 * This library is linked with -z initfirst, so that its constructor is the first.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

__attribute__((constructor)) static void
allocate_first(void)
{
	void	   *volatile p = malloc(1);

	free(p);
}
