/*-------------------------------------------------------------------------
 *
 * fake.c
 *	  A coordinator in memory.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "fake.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONTENDERS	4096

typedef struct Contender
{
	ZklCoordinator *owner;		/* NULL = no contender */
	int			slot;
	int64_t		order;			/* which one it is; its token */
	ZklWant		want;
} Contender;

typedef struct FakeSlot
{
	bool		used;
	bool		let_go;
	bool		granted;
	bool		over;			/* an outcome that leaves nothing to come but
								 * GONE */
	bool		lost_later;		/* FAKE_ACKNOWLEDGED_BEFORE_LOST */
	ZklWant		want;
	int			contender;		/* -1 = none */
	int			told_ahead;
} FakeSlot;

struct ZklCoordinator
{
	ZklTarget	target;
	FakeSlot   *slots;
	int64_t		session;
	bool		parting;
	bool		deaf;
	ZklTime		deadline;
	uint64_t	requests;
	ZklEvent   *events;
	int			first;
	int			n;
	int			max;
	int			acks_to_lost;	/* FAKE_ACKNOWLEDGED_BEFORE_LOST */
};

typedef ZklCoordinator Fake;

FakeFlaw	fake_flaw = FAKE_SOUND;

static Contender contenders[MAX_CONTENDERS];
static int64_t next_order = 1;
static int64_t next_session = 1;

static ZklEvent *
event(Fake *fake, ZklEventKind kind)
{
	ZklEvent   *new_event;

	if (fake->first > 0 && fake->first + fake->n == fake->max)
	{
		memmove(fake->events, fake->events + fake->first, fake->n * sizeof(ZklEvent));
		fake->first = 0;
	}
	if (fake->n == fake->max)
	{
		fake->max = fake->max == 0 ? 64 : 2 * fake->max;
		fake->events = realloc(fake->events, fake->max * sizeof(ZklEvent));
	}
	new_event = &fake->events[fake->first + fake->n++];
	memset(new_event, 0, sizeof(*new_event));
	new_event->kind = kind;
	new_event->slot = -1;
	return new_event;
}

static ZklEvent *
slot_event(Fake *fake, ZklEventKind kind, int slot)
{
	ZklEvent   *new_event = event(fake, kind);

	new_event->slot = slot;
	new_event->serial = fake->slots[slot].want.serial;
	return new_event;
}

/* What the worker must not hear of a slot any more goes from the queue. */
static void
silence(Fake *fake, int slot)
{
	for (int i = fake->first; i < fake->first + fake->n; i++)
	{
		ZklEvent   *queued = &fake->events[i];

		if (queued->slot == slot && queued->kind >= ZKL_EVENT_QUEUED &&
			queued->kind <= ZKL_EVENT_ASKED_BACK)
		{
			memset(queued, 0, sizeof(*queued));
			queued->kind = ZKL_EVENT_TROUBLE;
		}
	}
}

static bool
conflict(const ZklWant *a, const ZklWant *b)
{
	return strcmp(a->name, b->name) == 0 &&
		!(a->mode == ZKL_MODE_READ && b->mode == ZKL_MODE_READ);
}

/* How many are in the way of this contender? */
static int
count_ahead(const Contender *mine)
{
	int			ahead = 0;

	for (int i = 0; i < MAX_CONTENDERS; i++)
		if (contenders[i].owner != NULL && contenders[i].order < mine->order &&
			conflict(&contenders[i].want, &mine->want))
			ahead++;
	return mine->want.mode == ZKL_MODE_PERMIT && ahead < mine->want.permits ? 0 : ahead;
}

static void
remove_contender(FakeSlot *slot)
{
	if (slot->contender >= 0)
		contenders[slot->contender].owner = NULL;
	slot->contender = -1;
	memset(slot->want.saved, 0, sizeof(ZklSaved));
}

static void
free_slot(Fake *fake, int i)
{
	(void) slot_event(fake, ZKL_EVENT_GONE, i);
	fake->slots[i].used = false;
	if (fake_flaw == FAKE_QUEUED_AFTER_GONE)
		(void) slot_event(fake, ZKL_EVENT_QUEUED, i);
}

static void
make_contender(Fake *fake, int i)
{
	FakeSlot   *slot = &fake->slots[i];
	int			at = 0;

	while (at < MAX_CONTENDERS && contenders[at].owner != NULL)
		at++;
	assert(at < MAX_CONTENDERS);
	contenders[at] = (Contender)
	{
		fake, i, next_order++, slot->want
	};
	slot->contender = at;
	snprintf(slot->want.saved->request, sizeof(slot->want.saved->request), "r%d",
			 (int) contenders[at].order);
	snprintf(slot->want.saved->contender, sizeof(slot->want.saved->contender), "c%d",
			 (int) contenders[at].order);
}

/* A slot of a session that lives: go on with it. */
static void
advance(Fake *fake, int i)
{
	FakeSlot   *slot = &fake->slots[i];
	int			ahead;

	if (slot->let_go || slot->over)
	{
		remove_contender(slot);
		free_slot(fake, i);
		return;
	}
	if (slot->granted)
		return;
	if (slot->contender < 0)
		make_contender(fake, i);
	ahead = count_ahead(&contenders[slot->contender]);
	if (ahead == 0)
	{
		slot_event(fake, ZKL_EVENT_GRANTED, i)->token = contenders[slot->contender].order;
		slot->granted = true;
	}
	else if (slot->want.try)
	{
		slot_event(fake, ZKL_EVENT_TAKEN, i)->ahead = ahead;
		slot->over = true;
	}
	else if (ahead != slot->told_ahead)
		slot_event(fake, ZKL_EVENT_QUEUED, i)->ahead = slot->told_ahead = ahead;
}

static void
acknowledge(Fake *fake)
{
	ZklEvent   *ack;

	/* a sound one tells of what it has lost before */
	for (int i = 0; i < fake->target.nslots; i++)
		if (fake->slots[i].lost_later && fake->acks_to_lost-- <= 0)
		{
			(void) slot_event(fake, ZKL_EVENT_LOST, i);
			fake->slots[i].lost_later = false;
			fake->slots[i].over = true;
		}
	fake->deadline = zkl_now() + fake->target.session_timeout;
	ack = event(fake, ZKL_EVENT_ACKNOWLEDGED);
	ack->deadline = fake->deadline;
	ack->period = ZKL_MS(100);
	ack = event(fake, ZKL_EVENT_MARKED);
	ack->token = next_order;
	ack->sent = zkl_now();
}

static ZklTime
run(Fake *fake)
{
	if (fake->deaf)
		return zkl_now() + ZKL_MS(10);
	if (fake->session == 0)
	{
		ZklEvent   *begin = event(fake, ZKL_EVENT_BEGAN);

		fake->session = next_session++;
		begin->session = fake->session;
		begin->timeout = fake->target.session_timeout;
	}
	fake->requests++;
	acknowledge(fake);
	for (int i = 0; i < fake->target.nslots && !fake->parting; i++)
		if (fake->slots[i].used && !fake->slots[i].lost_later)
			advance(fake, i);
	return zkl_now() + ZKL_MS(10);
}

/* ------------------------------------------------------------------------
 * Faults
 * ------------------------------------------------------------------------
 */

static void
end_session(Fake *fake, const char *why)
{
	ZklEvent   *end = event(fake, ZKL_EVENT_ENDED);

	end->session = fake->session;
	snprintf(end->text, sizeof(end->text), "%s", why);
	fake->session = 0;
	fake->parting = false;
	fake->deadline = 0;
	for (int i = 0; i < fake->target.nslots; i++)
	{
		FakeSlot   *slot = &fake->slots[i];

		if (!slot->used)
			continue;
		slot->told_ahead = -1;
		slot->lost_later = false;
		if (slot->granted && fake_flaw == FAKE_LOST_AFTER_ENDED)
			(void) slot_event(fake, ZKL_EVENT_LOST, i);
		remove_contender(slot);
		if (slot->granted || slot->let_go || slot->over)
			free_slot(fake, i);
		else if (fake_flaw == FAKE_GRANTS_WITHOUT_SESSION)
		{
			(void) slot_event(fake, ZKL_EVENT_GRANTED, i);
			slot->granted = true;
		}
	}
}

void
fake_expire(Fake *fake)
{
	if (fake->session != 0)
		end_session(fake, "It was expired.");
}

void
fake_part(Fake *fake, const char *why)
{
	if (fake->session == 0 || fake->parting)
		return;
	snprintf(event(fake, ZKL_EVENT_ENDING)->text, ZKL_TROUBLE_SIZE, "%s", why);
	fake->parting = true;
}

void
fake_remove(Fake *fake, int i)
{
	FakeSlot   *slot = &fake->slots[i];

	ZklSaved	saved;

	if (!slot->used || slot->contender < 0 || slot->lost_later)
		return;
	saved = *slot->want.saved;
	remove_contender(slot);
	if (!slot->granted || slot->let_go || slot->over || fake->parting)
		return;					/* queues again, or is on its way out */
	if (fake_flaw == FAKE_ACKNOWLEDGED_BEFORE_LOST)
	{
		*slot->want.saved = saved;	/* as far as it knows */
		slot->lost_later = true;
		fake->acks_to_lost = 3;
		return;
	}
	(void) slot_event(fake, ZKL_EVENT_LOST, i);
	slot->over = true;
}

void
fake_ask_back(Fake *fake, int i, bool foreign)
{
	ZklEvent   *asked;

	if (!fake->slots[i].used || fake->slots[i].let_go)
		return;
	asked = slot_event(fake, ZKL_EVENT_ASKED_BACK, i);
	asked->foreign = foreign;
	snprintf(asked->text, sizeof(asked->text), "somebody");
}

void
fake_deaf(Fake *fake, bool deaf)
{
	fake->deaf = deaf;
}

/* ------------------------------------------------------------------------
 * The rest of coordinator.h
 * ------------------------------------------------------------------------
 */

static size_t
memory_size(int nslots)
{
	(void) nslots;
	return 0;
}

static Fake *
attach(const ZklTarget *target, ZklTime now, bool *goes_on)
{
	Fake	   *fake = calloc(1, sizeof(Fake));

	(void) now;
	fake->target = *target;
	fake->slots = calloc(target->nslots, sizeof(FakeSlot));
	*goes_on = false;
	return fake;
}

static void
want(Fake *fake, const ZklWant *wanted)
{
	FakeSlot   *slot = &fake->slots[wanted->slot];

	assert(!slot->used);
	*slot = (FakeSlot)
	{
		.used = true,.want = *wanted,.contender = -1,.told_ahead = -1
	};
}

static void
let_go(Fake *fake, int i)
{
	FakeSlot   *slot = &fake->slots[i];

	if (!slot->used || slot->let_go)
		return;
	silence(fake, i);
	slot->let_go = true;
	slot->lost_later = false;
	if (fake_flaw == FAKE_GRANTED_AFTER_LET_GO && !slot->granted)
		(void) slot_event(fake, ZKL_EVENT_GRANTED, i);
}

static void
ask(Fake *fake, const ZklQuestion *question)
{
	for (int times = fake_flaw == FAKE_ANSWERS_TWICE ? 2 : 1; times > 0; times--)
	{
		ZklEvent   *answered = event(fake, ZKL_EVENT_ANSWERED);

		answered->question = question->kind;
		answered->slot = question->place;
		answered->serial = question->serial;
		answered->answer = calloc(1, sizeof(ZklAnswer));
	}
	if (question->kind == ZKL_QUESTION_REMOVE)
		for (int i = 0; i < MAX_CONTENDERS; i++)
		{
			Contender  *contender = &contenders[i];

			if (contender->owner != NULL &&
				strcmp(contender->want.saved->contender, question->contender) == 0)
				fake_remove(contender->owner, contender->slot);
		}
}

static void
withdraw(Fake *fake, int place)
{
	(void) fake;
	(void) place;
}

static void
want_mark(Fake *fake)
{
	(void) fake;
}

static void
end(Fake *fake)
{
	if (fake->parting)
		end_session(fake, "It had to be ended.");
}

static void
reload(Fake *fake, const ZklTarget *target)
{
	fake->target = *target;
}

static void
receive(Fake *fake)
{
	(void) fake;
}

static bool
next(Fake *fake, ZklEvent *next_event)
{
	if (fake->n == 0)
		return false;
	*next_event = fake->events[fake->first++];
	fake->n--;
	return true;
}

static int
no_fd(void)
{
	return -1;
}

static void
health(Fake *fake, ZklCoordinatorHealth *current)
{
	memset(current, 0, sizeof(*current));
	current->connected = fake->session != 0;
	current->session = fake->session;
	current->timeout = fake->target.session_timeout;
	current->requests = fake->requests;
}

static void
close_session(Fake *fake)
{
	fake_expire(fake);
	for (int i = 0; i < fake->n; i++)
		free(fake->events[fake->first + i].answer);
	free(fake->events);
	free(fake->slots);
	free(fake);
}

const ZklCoordinatorOps fake_coordinator = {
	.name = "fake",
	.memory_size = memory_size,
	.attach = attach,
	.want = want,
	.let_go = let_go,
	.give_up = let_go,
	.ask = ask,
	.withdraw = withdraw,
	.want_mark = want_mark,
	.end = end,
	.reload = reload,
	.receive = receive,
	.run = run,
	.next = next,
	.fd = no_fd,
	.health = health,
	.close = close_session
};
