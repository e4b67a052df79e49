/*-------------------------------------------------------------------------
 *
 * order.h
 *	  The order of events that coordinator.h promises, as a checker.
 *
 * It is told each call and each event, in their order, and says what is wrong with the
 * latest one, or NULL. It knows nothing of the implementation.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ORDER_H
#define ORDER_H

#include "coordinator.h"

typedef enum OrderSlot
{
	ORDER_FREE = 0,				/* not in use: nothing may come */
	ORDER_WANTED,
	ORDER_GRANTED,
	ORDER_ORPHANED,				/* granted, and the session ended under it */
	ORDER_OVER,					/* taken, refused or lost: only GONE is to
								 * come */
	ORDER_LET_GO				/* by the caller: only GONE is to come */
} OrderSlot;

typedef struct OrderCheck
{
	int			nslots;
	struct
	{
		OrderSlot	state;
		uint32_t	serial;
		ZklTime		removed_at; /* its contender was removed by somebody; 0 =
								 * not */
		bool		holder_asked;
		uint32_t	question;	/* serial of that */
	}		   *slots;
	struct
	{
		bool		asked;
		uint32_t	question;
	}			askers[ZKL_ASKERS];
	bool		session;
	bool		ending;
	ZklTime		timeout;
	ZklTime		deadline;
	uint64_t	connects;		/* of the coordinator's health, when the
								 * deadline came */
	char		wrong[160];
} OrderCheck;

/* "session": an earlier one goes on, with this timeout. */
extern void order_init(OrderCheck *check, int nslots, bool session, ZklTime timeout);

extern void order_want(OrderCheck *check, const ZklWant *want);
extern void order_let_go(OrderCheck *check, int slot);
extern void order_give_up(OrderCheck *check, int slot);
extern void order_ask(OrderCheck *check, const ZklQuestion *question);

/* Somebody else has removed the slot's contender; this had happened by "when". */
extern void order_removed(OrderCheck *check, int slot, ZklTime when);

/* What is wrong with this event, or NULL. "connects" is of the coordinator's health. */
extern const char *order_event(OrderCheck *check, const ZklEvent *event, uint64_t connects);

#endif							/* ORDER_H */
