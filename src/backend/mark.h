/*-------------------------------------------------------------------------
 *
 * mark.h
 *	  The table zk_fence: the newest token of each resource, its mark.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_MARK_H
#define ZKL_MARK_H

/* A row of it. */
typedef struct ZklMark
{
	int64		token;			/* 0: there is none */
	char	   *presented_by;
	char	   *username;		/* or NULL */
	char	   *client;			/* or NULL */
	TransactionId last;			/* who passed last, whatever became of him */
	TransactionId lower;		/* who passed last with a lower token */
} ZklMark;

/*
 * With the resource locked until the end of the transaction: compare "token" with the
 * mark, and lock the row or raise it. Returns the mark as it was, with "lower" as it is
 * for this token; when the token is below it nothing was done. "function": the one that
 * was called, whose extension's table it is; "before": the transaction that had passed
 * last when we did first; "call": see zkl_refuse_old_snapshot().
 */
extern ZklMark zkl_mark_advance(Oid function, const char *resource, int64 token,
								TransactionId before, bool call);

/* Set the mark, whatever it is. All that was presented before counts as lower. */
extern void zkl_mark_reset(Oid function, const char *resource, int64 token);

/*
 * Who presented the mark, with the client's address for those to whom
 * pg_stat_activity shows it too.
 */
extern char *zkl_mark_describe_presenter(const ZklMark *mark);

#endif							/* ZKL_MARK_H */
