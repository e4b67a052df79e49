/*-------------------------------------------------------------------------
 *
 * utf8.h
 *	  Decoding one UTF-8 character, for the pure parts.
 *
 * PostgreSQL's own decoder is no use here: it needs the server, and it takes
 * some sequences on trust, while these bytes come from users and from nodes
 * that anybody may have written. The C library's depends on the locale.
 *
 * Inline, because two files need it and neither should depend on the other.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_UTF8_H
#define ZKL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* What stands for bytes that are no character. */
#define ZKL_UTF8_REPLACEMENT	0xFFFD
#define ZKL_UTF8_INVALID		UINT32_MAX

/*
 * Decode the character at "s", of which "len" > 0 bytes may be read, and store
 * the number of bytes it takes. Overlong forms, surrogates and values above
 * U+10FFFF are invalid; then *used is the length of the beginning that could
 * still have become a character, at least 1, so that a character that somebody
 * cut counts as one mistake and not as three.
 */
static inline uint32_t
zkl_utf8_decode(const char *s, size_t len, size_t *used)
{
	const unsigned char *p = (const unsigned char *) s;
	unsigned char low = 0x80;
	unsigned char high = 0xBF;
	uint32_t	c;
	size_t		need;

	*used = 1;
	if (p[0] < 0x80)
		return p[0];

	if (p[0] >= 0xC2 && p[0] <= 0xDF)
	{
		need = 2;
		c = p[0] & 0x1F;
	}
	else if (p[0] >= 0xE0 && p[0] <= 0xEF)
	{
		need = 3;
		c = p[0] & 0x0F;
		if (p[0] == 0xE0)
			low = 0xA0;			/* below is overlong */
		else if (p[0] == 0xED)
			high = 0x9F;		/* above are surrogates */
	}
	else if (p[0] >= 0xF0 && p[0] <= 0xF4)
	{
		need = 4;
		c = p[0] & 0x07;
		if (p[0] == 0xF0)
			low = 0x90;			/* below is overlong */
		else if (p[0] == 0xF4)
			high = 0x8F;		/* above is beyond Unicode */
	}
	else
		return ZKL_UTF8_INVALID;

	for (size_t i = 1; i < need; i++)
	{
		if (i >= len || p[i] < low || p[i] > high)
			return ZKL_UTF8_INVALID;
		c = (c << 6) | (p[i] & 0x3F);
		*used = i + 1;
		low = 0x80;
		high = 0xBF;
	}
	return c;
}

/* Encode a valid character; returns the number of bytes, 1 to 4. */
static inline size_t
zkl_utf8_encode(uint32_t c, char out[4])
{
	if (c < 0x80)
	{
		out[0] = (char) c;
		return 1;
	}
	if (c < 0x800)
	{
		out[0] = (char) (0xC0 | (c >> 6));
		out[1] = (char) (0x80 | (c & 0x3F));
		return 2;
	}
	if (c < 0x10000)
	{
		out[0] = (char) (0xE0 | (c >> 12));
		out[1] = (char) (0x80 | ((c >> 6) & 0x3F));
		out[2] = (char) (0x80 | (c & 0x3F));
		return 3;
	}
	out[0] = (char) (0xF0 | (c >> 18));
	out[1] = (char) (0x80 | ((c >> 12) & 0x3F));
	out[2] = (char) (0x80 | ((c >> 6) & 0x3F));
	out[3] = (char) (0x80 | (c & 0x3F));
	return 4;
}

#endif							/* ZKL_UTF8_H */
