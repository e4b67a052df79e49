/*-------------------------------------------------------------------------
 *
 * nodedata.c
 *	  What a contender's node says about its owner: a short JSON object.
 *
 * PostgreSQL's JSON code needs a backend, and this runs in the worker on
 * bytes that anybody who can reach the ensemble may have written; they end up
 * in error messages and in psql. So the two directions are strict about
 * different things. The writer produces printable characters only, escaping
 * the rest, because people read it with zkCli on a terminal. The reader takes
 * nothing but correct JSON for JSON, and whatever it returns is printable:
 * control characters, and those that turn the direction of the text around
 * them, become question marks.
 *
 * Every string has its own room in the written object, twice its longest
 * content. A quote or backslash takes two bytes, so everything that was read
 * can be written and read again without loss, and a long name cannot push out
 * what comes after it.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "common/nodedata.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "common/utf8.h"

/* Objects and arrays inside each other that the reader follows. */
#define MAX_DEPTH	16

/* Longest text of an int. */
#define INT_CHARS	11

/* Room for a string in the output, without quotes. */
#define ROOM(field)	(2 * (sizeof(((ZklNodeData *) 0)->field) - 1))

_Static_assert(sizeof("{\"server\":\"\",\"pid\":,\"database\":\"\",\"user\":\"\","
					  "\"application\":\"\",\"since\":\"\",\"breaker\":\"\","
					  "\"timeout\":,\"leases\":}") + 3 * INT_CHARS +
			   ROOM(server) + ROOM(database) + ROOM(user) +
			   ROOM(application) + ROOM(since) + ROOM(breaker) <= ZKL_NODEDATA_SIZE,
			   "the longest object must fit");

typedef struct Writer
{
	char	   *buf;
	size_t		at;
} Writer;

typedef struct Reader
{
	const char *at;
	const char *end;
} Reader;

/* A string field: its key, and where it is in ZklNodeData. */
typedef struct Field
{
	const char *key;
	size_t		offset;
	size_t		size;
} Field;

#define FIELD(name) \
	{#name, offsetof(ZklNodeData, name), sizeof(((ZklNodeData *) 0)->name)}

static const Field fields[] = {
	FIELD(server),
	FIELD(database),
	FIELD(user),
	FIELD(application),
	FIELD(since),
	FIELD(breaker),
};

#define NFIELDS	(sizeof(fields) / sizeof(fields[0]))


/*
 * May this character be shown? Not if it moves the cursor, starts an escape
 * sequence, breaks the line or reorders what stands around it.
 */
static bool
is_printable(uint32_t c)
{
	return c >= 0x20 && !(c >= 0x7F && c <= 0x9F) &&
		!(c >= 0x200E && c <= 0x200F) &&
		!(c >= 0x2028 && c <= 0x202E) &&
		!(c >= 0x2066 && c <= 0x2069);
}

static void
put_text(Writer *w, const char *text)
{
	size_t		len = strlen(text);

	memcpy(w->buf + w->at, text, len);
	w->at += len;
}

/* The digits of a positive number; printf() would do, but has a locale. */
static void
put_int(Writer *w, int value)
{
	char		digits[INT_CHARS];
	size_t		n = 0;

	do
	{
		digits[n++] = (char) ('0' + value % 10);
		value /= 10;
	} while (value > 0);
	while (n > 0)
		w->buf[w->at++] = digits[--n];
}

/*
 * The content of a string of at most "size" bytes, in at most "room" bytes. A
 * character with its escape is written whole or not at all. The terminator is
 * not relied upon: a field that was filled to its end has none.
 */
static void
put_string(Writer *w, const char *text, size_t size, size_t room)
{
	static const char hex[] = "0123456789abcdef";
	const char *nul = memchr(text, '\0', size);
	size_t		len = nul ? (size_t) (nul - text) : size;
	size_t		used;

	for (size_t i = 0; i < len; i += used)
	{
		uint32_t	c = zkl_utf8_decode(text + i, len - i, &used);
		char		out[6];
		size_t		n;

		if (c == ZKL_UTF8_INVALID)
			c = ZKL_UTF8_REPLACEMENT;

		if (c == '"' || c == '\\')
		{
			out[0] = '\\';
			out[1] = (char) c;
			n = 2;
		}
		else if (!is_printable(c))
		{
			/* all of them are below U+FFFF */
			out[0] = '\\';
			out[1] = 'u';
			for (int digit = 0; digit < 4; digit++)
				out[2 + digit] = hex[(c >> (12 - 4 * digit)) & 0x0F];
			n = 6;
		}
		else
			n = zkl_utf8_encode(c, out);

		if (n > room)
			break;
		memcpy(w->buf + w->at, out, n);
		w->at += n;
		room -= n;
	}
}

size_t
zkl_nodedata_write(const ZklNodeData *data, char buf[ZKL_NODEDATA_SIZE])
{
	Writer		w = {buf, 0};

	for (size_t i = 0; i < NFIELDS; i++)
	{
		const Field *f = &fields[i];
		const char *text = (const char *) data + f->offset;

		/* the server is what the reader recognizes us by */
		if (i > 0 && text[0] == '\0')
			continue;
		put_text(&w, i == 0 ? "{\"" : ",\"");
		put_text(&w, f->key);
		put_text(&w, "\":\"");
		put_string(&w, text, f->size, 2 * (f->size - 1));
		put_text(&w, "\"");
		if (i == 0 && data->pid > 0)
		{
			put_text(&w, ",\"pid\":");
			put_int(&w, data->pid);
		}
	}
	if (data->timeout > 0)
	{
		put_text(&w, ",\"timeout\":");
		put_int(&w, data->timeout);
	}
	if (data->permits > 0)
	{
		put_text(&w, ",\"leases\":");
		put_int(&w, data->permits);
	}
	put_text(&w, "}");
	buf[w.at] = '\0';
	return w.at;
}

/*
 * Add a character to a string of "size" bytes that has "len", as something
 * that may be shown. Returns false, and adds nothing more, when it is full.
 */
static bool
append(char *text, size_t size, size_t *len, uint32_t c)
{
	char		out[4];
	size_t		n;

	n = zkl_utf8_encode(is_printable(c) ? c : '?', out);
	if (n >= size - *len)
		return false;
	memcpy(text + *len, out, n);
	*len += n;
	text[*len] = '\0';
	return true;
}

static void
skip_space(Reader *r)
{
	while (r->at < r->end &&
		   (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
		r->at++;
}

/* Take this character, if it is next. */
static bool
take(Reader *r, char c)
{
	if (r->at == r->end || *r->at != c)
		return false;
	r->at++;
	return true;
}

static bool
take_word(Reader *r, const char *word)
{
	size_t		len = strlen(word);

	if ((size_t) (r->end - r->at) < len || memcmp(r->at, word, len) != 0)
		return false;
	r->at += len;
	return true;
}

static bool
take_hex4(Reader *r, uint32_t *value)
{
	*value = 0;
	for (int i = 0; i < 4; i++)
	{
		uint32_t	digit;
		char		c;

		if (r->at == r->end)
			return false;
		c = *r->at++;
		if (c >= '0' && c <= '9')
			digit = (uint32_t) (c - '0');
		else if (c >= 'a' && c <= 'f')
			digit = (uint32_t) (c - 'a') + 10;
		else if (c >= 'A' && c <= 'F')
			digit = (uint32_t) (c - 'A') + 10;
		else
			return false;
		*value = *value << 4 | digit;
	}
	return true;
}

/* What follows a backslash. */
static bool
take_escape(Reader *r, uint32_t *c)
{
	uint32_t	low;
	Reader		ahead;

	if (r->at == r->end)
		return false;
	switch (*r->at++)
	{
		case '"':
			*c = '"';
			return true;
		case '\\':
			*c = '\\';
			return true;
		case '/':
			*c = '/';
			return true;
		case 'b':
		case 'f':
		case 'n':
		case 'r':
		case 't':
			*c = '\n';			/* which one does not matter: none is shown */
			return true;
		case 'u':
			break;
		default:
			return false;
	}

	if (!take_hex4(r, c))
		return false;
	if (*c >= 0xD800 && *c <= 0xDBFF)
	{
		ahead = *r;
		if (take_word(&ahead, "\\u") && take_hex4(&ahead, &low) &&
			low >= 0xDC00 && low <= 0xDFFF)
		{
			*r = ahead;
			*c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
			return true;
		}
	}
	/* half a pair: correct JSON, but no character */
	if (*c >= 0xD800 && *c <= 0xDFFF)
		*c = ZKL_UTF8_REPLACEMENT;
	return true;
}

/*
 * Take a string, and store as much of it as fits in "text", unless that is
 * NULL. It need not be terminated where it was found wrong.
 */
static bool
take_string(Reader *r, char *text, size_t size)
{
	size_t		len = 0;
	bool		room = text != NULL;

	if (!take(r, '"'))
		return false;
	if (room)
		text[0] = '\0';
	while (r->at < r->end)
	{
		size_t		used;
		uint32_t	c = zkl_utf8_decode(r->at, (size_t) (r->end - r->at), &used);

		if (c == ZKL_UTF8_INVALID || c < 0x20)
			return false;
		r->at += used;
		if (c == '"')
			return true;
		if (c == '\\' && !take_escape(r, &c))
			return false;
		/* once something did not fit, nothing shorter may follow it */
		if (room)
			room = append(text, size, &len, c);
	}
	return false;
}

/* One or more digits. */
static bool
take_digits(Reader *r)
{
	const char *begin = r->at;

	while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
		r->at++;
	return r->at > begin;
}

/* Take a number; *value is set if it is a process id, to 0 otherwise. */
static bool
take_number(Reader *r, int *value)
{
	const char *begin = r->at;
	bool		plain = true;
	int64_t		n = 0;

	*value = 0;
	if (take(r, '-'))
		plain = false;
	/* a zero stands alone before the point */
	if (!take(r, '0') && !take_digits(r))
		return false;
	if (take(r, '.'))
	{
		plain = false;
		if (!take_digits(r))
			return false;
	}
	if (take(r, 'e') || take(r, 'E'))
	{
		plain = false;
		if (!take(r, '+'))
			(void) take(r, '-');
		if (!take_digits(r))
			return false;
	}

	for (const char *p = begin; plain && p < r->at; p++)
	{
		n = n * 10 + (*p - '0');
		if (n > INT_MAX)
			plain = false;
	}
	if (plain)
		*value = (int) n;
	return true;
}

/* Take any value and forget it. */
static bool
skip_value(Reader *r, int depth)
{
	int			ignored;
	bool		object;

	if (r->at == r->end)
		return false;
	switch (*r->at)
	{
		case '"':
			return take_string(r, NULL, 0);
		case 't':
			return take_word(r, "true");
		case 'f':
			return take_word(r, "false");
		case 'n':
			return take_word(r, "null");
		case '{':
		case '[':
			break;
		default:
			return take_number(r, &ignored);
	}

	/* bytes of a stranger must not decide how deep our stack goes */
	if (depth >= MAX_DEPTH)
		return false;
	object = *r->at++ == '{';
	skip_space(r);
	if (take(r, object ? '}' : ']'))
		return true;
	do
	{
		skip_space(r);
		if (object)
		{
			if (!take_string(r, NULL, 0))
				return false;
			skip_space(r);
			if (!take(r, ':'))
				return false;
			skip_space(r);
		}
		if (!skip_value(r, depth + 1))
			return false;
		skip_space(r);
	} while (take(r, ','));
	return take(r, object ? '}' : ']');
}

/*
 * Take the whole object. Of a key that comes twice the last one counts, as in
 * jsonb, also if that one has no value for us.
 */
static bool
take_object(Reader *r, ZklNodeData *data, bool *has_server)
{
	*has_server = false;
	skip_space(r);
	if (!take(r, '{'))
		return false;
	skip_space(r);
	if (!take(r, '}'))
	{
		do
		{
			char		key[16];	/* longer than any that we know */
			size_t		i = 0;

			skip_space(r);
			if (!take_string(r, key, sizeof(key)))
				return false;
			skip_space(r);
			if (!take(r, ':'))
				return false;
			skip_space(r);

			while (i < NFIELDS && strcmp(key, fields[i].key) != 0)
				i++;
			if (i < NFIELDS)
			{
				char	   *text = (char *) data + fields[i].offset;
				bool		is_string = r->at < r->end && *r->at == '"';

				text[0] = '\0';
				if (is_string)
				{
					if (!take_string(r, text, fields[i].size))
						return false;
				}
				else if (!skip_value(r, 1))
					return false;
				if (i == 0)
					*has_server = is_string;
			}
			else if (strcmp(key, "pid") == 0 || strcmp(key, "timeout") == 0 ||
					 strcmp(key, "leases") == 0)
			{
				int		   *number = key[0] == 'p' ? &data->pid :
					key[0] == 't' ? &data->timeout : &data->permits;

				*number = 0;
				if (r->at < r->end && *r->at >= '0' && *r->at <= '9')
				{
					if (!take_number(r, number))
						return false;
				}
				else if (!skip_value(r, 1))
					return false;
			}
			else if (!skip_value(r, 1))
				return false;
			skip_space(r);
		} while (take(r, ','));
		if (!take(r, '}'))
			return false;
	}
	skip_space(r);
	return r->at == r->end;
}

bool
zkl_nodedata_read(const char *bytes, size_t len, ZklNodeData *data)
{
	Reader		r;
	bool		has_server;
	size_t		at = 0;
	size_t		used;

	memset(data, 0, sizeof(*data));
	if (len == 0)
		return false;
	if (len > ZKL_NODEDATA_SIZE)
		len = ZKL_NODEDATA_SIZE;

	r.at = bytes;
	r.end = bytes + len;
	if (take_object(&r, data, &has_server) && has_server)
		return true;

	/* what was found before the mistake is no better than the rest */
	memset(data, 0, sizeof(*data));
	for (size_t i = 0; i < len; i += used)
	{
		uint32_t	c = zkl_utf8_decode(bytes + i, len - i, &used);

		if (c == ZKL_UTF8_INVALID || !is_printable(c) ||
			!append(data->server, sizeof(data->server), &at, c))
			break;
	}
	return false;
}
