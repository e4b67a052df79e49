/*-------------------------------------------------------------------------
 *
 * order.c
 *	  The order of events that coordinator.h promises, as a checker.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "order.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
	[ZKL_EVENT_BEGAN] = "BEGAN",[ZKL_EVENT_ENDING] = "ENDING",[ZKL_EVENT_ENDED] = "ENDED",
	[ZKL_EVENT_ACKNOWLEDGED] = "ACKNOWLEDGED",[ZKL_EVENT_MARKED] = "MARKED",
	[ZKL_EVENT_QUEUED] = "QUEUED",[ZKL_EVENT_GRANTED] = "GRANTED",[ZKL_EVENT_TAKEN] = "TAKEN",
	[ZKL_EVENT_REFUSED] = "REFUSED",[ZKL_EVENT_LOST] = "LOST",
	[ZKL_EVENT_ASKED_BACK] = "ASKED_BACK",[ZKL_EVENT_CHARGED] = "CHARGED",
	[ZKL_EVENT_GONE] = "GONE",[ZKL_EVENT_ANSWERED] = "ANSWERED",
	[ZKL_EVENT_TROUBLE] = "TROUBLE",[ZKL_EVENT_CANNOT_GO_ON] = "CANNOT_GO_ON"
};

static const char *const states[] = {
	[ORDER_FREE] = "not in use",[ORDER_WANTED] = "wanted",[ORDER_GRANTED] = "granted",
	[ORDER_ORPHANED] = "granted by a session that has ended",[ORDER_OVER] = "over",
	[ORDER_LET_GO] = "let go"
};

__attribute__((format(printf, 2, 3)))
static const char *
wrong(OrderCheck *check, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(check->wrong, sizeof(check->wrong), format, args);
	va_end(args);
	return check->wrong;
}

void
order_init(OrderCheck *check, int nslots, bool session, ZklTime timeout)
{
	memset(check, 0, sizeof(*check));
	check->nslots = nslots;
	check->slots = calloc(nslots, sizeof(*check->slots));
	check->session = session;
	check->timeout = timeout;
}

void
order_want(OrderCheck *check, const ZklWant *want)
{
	check->slots[want->slot].state = want->adopt && want->held ? ORDER_GRANTED : ORDER_WANTED;
	check->slots[want->slot].serial = want->serial;
	check->slots[want->slot].removed_at = 0;
}

void
order_let_go(OrderCheck *check, int slot)
{
	check->slots[slot].state = ORDER_LET_GO;
	check->slots[slot].removed_at = 0;
}

void
order_give_up(OrderCheck *check, int slot)
{
	order_let_go(check, slot);
}

void
order_ask(OrderCheck *check, const ZklQuestion *question)
{
	if (question->kind == ZKL_QUESTION_HOLDER)
	{
		check->slots[question->place].holder_asked = true;
		check->slots[question->place].question = question->serial;
	}
	else
	{
		check->askers[question->place].asked = true;
		check->askers[question->place].question = question->serial;
	}
}

void
order_removed(OrderCheck *check, int slot, ZklTime when)
{
	if (check->slots[slot].state == ORDER_GRANTED)
		check->slots[slot].removed_at = when;
}

/* The session is over, or about to be: what is granted hears no more of it. */
static void
orphan_granted(OrderCheck *check)
{
	for (int i = 0; i < check->nslots; i++)
	{
		if (check->slots[i].state == ORDER_GRANTED)
			check->slots[i].state = ORDER_ORPHANED;
		check->slots[i].removed_at = 0;
	}
}

static const char *
check_acknowledged(OrderCheck *check, const ZklEvent *event, uint64_t connects)
{
	if (!check->session)
		return wrong(check, "ACKNOWLEDGED without a session");
	if (event->deadline < check->deadline && connects == check->connects)
		return wrong(check, "ACKNOWLEDGED takes %ld ms of the deadline back",
					 (long) ((check->deadline - event->deadline) / 1000));

	/*
	 * what the deadline follows from was sent at "deadline - timeout" or
	 * later
	 */
	for (int i = 0; i < check->nslots; i++)
		if (check->slots[i].removed_at != 0 &&
			event->deadline > check->slots[i].removed_at + check->timeout)
			return wrong(check, "ACKNOWLEDGED before LOST of slot %d", i);
	check->deadline = event->deadline;
	check->connects = connects;
	return NULL;
}

static const char *
check_session(OrderCheck *check, const ZklEvent *event)
{
	if (event->kind == ZKL_EVENT_BEGAN)
	{
		if (check->session)
			return wrong(check, "BEGAN before ENDED");
		check->session = true;
		check->timeout = event->timeout;
		check->deadline = 0;
		return NULL;
	}
	if (!check->session)
		return wrong(check, "%s without a session", names[event->kind]);
	if (event->kind == ZKL_EVENT_ENDING && check->ending)
		return wrong(check, "ENDING twice");
	check->ending = event->kind == ZKL_EVENT_ENDING;
	check->session = event->kind == ZKL_EVENT_ENDING;
	orphan_granted(check);
	return NULL;
}

static const char *
check_answered(OrderCheck *check, const ZklEvent *event)
{
	bool	   *asked;
	uint32_t	question;

	if (event->question == ZKL_QUESTION_HOLDER)
	{
		asked = &check->slots[event->slot].holder_asked;
		question = check->slots[event->slot].question;
	}
	else
	{
		asked = &check->askers[event->slot].asked;
		question = check->askers[event->slot].question;
	}
	if (!*asked)
		return wrong(check, "ANSWERED, and place %d has not asked, or has its answer", event->slot);
	if (question != event->serial)
		return wrong(check, "ANSWERED is for an earlier question of place %d", event->slot);
	if (event->answer == NULL)
		return wrong(check, "ANSWERED has no answer");
	*asked = false;
	return NULL;
}

/* May this come in the slot's state? Then what is its next state? */
static bool
advance(OrderSlot *state, ZklEventKind kind)
{
	switch (kind)
	{
		case ZKL_EVENT_QUEUED:
			return *state == ORDER_WANTED;
		case ZKL_EVENT_GRANTED:
			if (*state != ORDER_WANTED)
				return false;
			*state = ORDER_GRANTED;
			return true;
		case ZKL_EVENT_TAKEN:
		case ZKL_EVENT_REFUSED:
			if (*state != ORDER_WANTED)
				return false;
			*state = ORDER_OVER;
			return true;
		case ZKL_EVENT_LOST:
			if (*state != ORDER_GRANTED)
				return false;
			*state = ORDER_OVER;
			return true;
		case ZKL_EVENT_ASKED_BACK:
			return *state == ORDER_WANTED || *state == ORDER_GRANTED || *state == ORDER_ORPHANED ||
				*state == ORDER_OVER;
		case ZKL_EVENT_CHARGED:
			return *state != ORDER_FREE;
		case ZKL_EVENT_GONE:
			if (*state == ORDER_FREE || *state == ORDER_WANTED || *state == ORDER_GRANTED)
				return false;
			*state = ORDER_FREE;
			return true;
		default:
			return true;
	}
}

static const char *
check_slot(OrderCheck *check, const ZklEvent *event)
{
	OrderSlot  *state;
	OrderSlot	before;

	if (event->slot < 0 || event->slot >= check->nslots)
		return wrong(check, "%s for slot %d, which there is not", names[event->kind], event->slot);
	state = &check->slots[event->slot].state;
	before = *state;
	if (event->serial != check->slots[event->slot].serial)
		return wrong(check, "%s for an earlier use of slot %d", names[event->kind], event->slot);
	if (!advance(state, event->kind))
		return wrong(check, "%s for slot %d, which is %s", names[event->kind], event->slot,
					 states[before]);
	if (event->kind == ZKL_EVENT_GRANTED && (!check->session || check->ending))
		return wrong(check, "GRANTED for slot %d without a session", event->slot);
	if (event->kind == ZKL_EVENT_LOST)
		check->slots[event->slot].removed_at = 0;
	return NULL;
}

const char *
order_event(OrderCheck *check, const ZklEvent *event, uint64_t connects)
{
	switch (event->kind)
	{
		case ZKL_EVENT_BEGAN:
		case ZKL_EVENT_ENDING:
		case ZKL_EVENT_ENDED:
			return check_session(check, event);
		case ZKL_EVENT_ACKNOWLEDGED:
			return check_acknowledged(check, event, connects);
		case ZKL_EVENT_ANSWERED:
			return check_answered(check, event);
		case ZKL_EVENT_MARKED:
		case ZKL_EVENT_TROUBLE:
		case ZKL_EVENT_CANNOT_GO_ON:
			return NULL;
		default:
			return check_slot(check, event);
	}
}
