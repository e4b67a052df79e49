/*-------------------------------------------------------------------------
 *
 * names.c
 *	  Name servers whose answers a test writes.
 *
 *	LD_PRELOAD=names.so ZKTEST_NAMES=/path/to/file program
 *
 * The file has lines "name address ...", read anew at each question; what is not in it,
 * numeric addresses among them, is asked of the C library. Only the forms of question
 * that zklock asks are answered: a name, a numeric port, stream sockets.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*Getaddrinfo) (const char *, const char *, const struct addrinfo *,
							struct addrinfo **);

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
			struct addrinfo **res)
{
	Getaddrinfo real = (Getaddrinfo) dlsym(RTLD_NEXT, "getaddrinfo");
	const char *path = getenv("ZKTEST_NAMES");
	FILE	   *file = node != NULL && path != NULL ? fopen(path, "r") : NULL;
	char		line[1024];
	struct addrinfo *list = NULL;
	int			known = 0;

	while (file != NULL && !known && fgets(line, sizeof(line), file) != NULL)
	{
		char	   *next;
		char	   *word = strtok_r(line, " \n", &next);

		if (word == NULL || strcmp(word, node) != 0)
			continue;
		known = 1;
		while ((word = strtok_r(NULL, " \n", &next)) != NULL)
		{
			struct addrinfo *one;
			struct addrinfo **end = &list;

			if (real(word, service, hints, &one) != 0)
				continue;
			while (*end != NULL)
				end = &(*end)->ai_next;
			*end = one;			/* the C library frees a list element by
								 * element */
		}
	}
	if (file != NULL)
		fclose(file);
	if (!known)
		return real(node, service, hints, res);
	*res = list;
	return list != NULL ? 0 : EAI_NONAME;
}
