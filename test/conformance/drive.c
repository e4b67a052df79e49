/*-------------------------------------------------------------------------
 *
 * drive.c
 *	  Drive coordinators by random calls, and check what comes back.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "order.h"

#define NAMES		6
#define PERMITS		2

/* How long what is let go may take to be gone, once nothing is wrong any more. */
#define PATIENCE	ZKL_MS(60000)

typedef struct DrivenSlot
{
	bool		used;
	bool		granted;
	bool		let_go;
	ZklWant		want;
	ZklSaved	saved;
} DrivenSlot;

typedef struct Driven
{
	ZklCoordinator *coordinator;
	OrderCheck	order;
	ZklTime		deadline;
	bool		ending;
	uint32_t	serial;
	DrivenSlot	slots[DRIVE_SLOTS];
	int			removing;		/* coordinator * DRIVE_SLOTS + slot that this
								 * one removes */
	char		removed[ZKL_OWN_NODE_SIZE];
} Driven;

static Drive *current;
static Driven driven[DRIVE_MAX];
static int64_t tokens[NAMES];
static char lock_names[NAMES][32];
static uint64_t state;

static uint64_t
draw(void)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return state >> 33;
}

static void
wrong(int who, const char *what)
{
	if (current->wrong[0] == '\0')
		snprintf(current->wrong, sizeof(current->wrong), "coordinator %d, seed %llu: %s", who,
				 (unsigned long long) current->seed, what);
}

static bool
is_certain(const Driven *one, int slot, ZklTime now)
{
	return one->slots[slot].used && one->slots[slot].granted && now < one->deadline;
}

/* Does the lock that was just granted conflict with one that is certain elsewhere? */
static void
check_exclusion(int who, int slot, const ZklEvent *event)
{
	Driven	   *mine = &driven[who];
	const ZklWant *want = &mine->slots[slot].want;
	ZklTime		now = zkl_now();
	int			others = 0;
	int			name = want->name[strlen(want->name) - 1] - '0';

	if (!is_certain(mine, slot, now))
		return;
	for (int i = 0; i < current->n; i++)
		for (int j = 0; j < DRIVE_SLOTS; j++)
		{
			const ZklWant *other = &driven[i].slots[j].want;

			if ((i == who && j == slot) || !is_certain(&driven[i], j, now) ||
				strcmp(other->name, want->name) != 0)
				continue;
			others++;
			if (want->mode != ZKL_MODE_PERMIT &&
				(want->mode != ZKL_MODE_READ || other->mode != ZKL_MODE_READ))
				wrong(who, "two hold a lock that is for one");
		}
	if (want->mode == ZKL_MODE_PERMIT && others >= PERMITS)
		wrong(who, "more hold a permit than there are");
	if (want->mode == ZKL_MODE_EXCLUSIVE && event->token <= tokens[name])
		wrong(who, "a fencing token does not rise");
	if (want->mode == ZKL_MODE_EXCLUSIVE)
		tokens[name] = event->token;
}

static void
take_event(int who, const ZklEvent *event)
{
	Driven	   *one = &driven[who];
	DrivenSlot *slot = event->slot >= 0 && event->slot < DRIVE_SLOTS ? &one->slots[event->slot] : NULL;

	switch (event->kind)
	{
		case ZKL_EVENT_ACKNOWLEDGED:
			one->deadline = event->deadline;
			break;
		case ZKL_EVENT_ENDING:
		case ZKL_EVENT_ENDED:
			one->ending = event->kind == ZKL_EVENT_ENDING;
			one->deadline = 0;
			for (int i = 0; i < DRIVE_SLOTS; i++)
				one->slots[i].granted = false;
			break;
		case ZKL_EVENT_GRANTED:
			slot->granted = true;
			check_exclusion(who, event->slot, event);
			break;
		case ZKL_EVENT_LOST:
			slot->granted = false;
			break;
		case ZKL_EVENT_GONE:
			slot->used = slot->granted = false;
			break;
		case ZKL_EVENT_ANSWERED:
			if (event->question == ZKL_QUESTION_REMOVE && event->answer->result == ZKL_ANSWER_OK)
			{
				Driven	   *other = &driven[one->removing / DRIVE_SLOTS];
				int			removed = one->removing % DRIVE_SLOTS;

				/* still the one that was removed? */
				if (strcmp(other->slots[removed].saved.contender, one->removed) == 0)
					order_removed(&other->order, removed, zkl_now());
			}
			free(event->answer);
			break;
		case ZKL_EVENT_CANNOT_GO_ON:
			wrong(who, event->text);
			break;
		default:
			break;
	}
}

static void
drain(int who)
{
	Driven	   *one = &driven[who];
	ZklCoordinatorHealth health;
	ZklEvent	event;

	current->ops->health(one->coordinator, &health);
	while (current->ops->next(one->coordinator, &event))
	{
		const char *text = order_event(&one->order, &event, health.connects);

		current->events[event.kind]++;
		if (text != NULL)
		{
			wrong(who, text);
			free(event.answer);
			return;
		}
		take_event(who, &event);
	}
}

static void
want(int who, int i)
{
	Driven	   *one = &driven[who];
	DrivenSlot *slot = &one->slots[i];
	int			name = (int) (draw() % NAMES);

	memset(slot, 0, sizeof(*slot));
	slot->used = true;
	slot->want = (ZklWant)
	{
		.slot = i,.serial = ++one->serial,.name = lock_names[name],.beside = "",
			.mode = name < 2 ? ZKL_MODE_EXCLUSIVE : name < 4 ? (draw() % 2 ? ZKL_MODE_READ : ZKL_MODE_WRITE) :
			ZKL_MODE_PERMIT,
			.permits = name < 4 ? 0 : PERMITS,.try = draw() % 4 == 0,
			.pid = 1,.database = "d",.user = "u",.application = "a",.since = "s",
			.saved = &slot->saved
	};
	order_want(&one->order, &slot->want);
	current->ops->want(one->coordinator, &slot->want);
}

static void
let_go(int who, int i)
{
	Driven	   *one = &driven[who];

	if (one->slots[i].let_go)
		return;
	/* the calls of the worker come when it has drained all events */
	drain(who);
	if (!one->slots[i].used)
		return;
	one->slots[i].let_go = true;
	if (one->slots[i].granted && draw() % 4 == 0)
	{
		order_give_up(&one->order, i);
		current->ops->give_up(one->coordinator, i);
	}
	else
	{
		order_let_go(&one->order, i);
		current->ops->let_go(one->coordinator, i);
	}
	one->slots[i].granted = false;
}

static void
ask(int who, ZklQuestionKind kind)
{
	Driven	   *one = &driven[who];
	int			other = (int) (draw() % current->n);
	int			slot = (int) (draw() % DRIVE_SLOTS);
	DrivenSlot *asked = &driven[other].slots[slot];
	ZklQuestion question = {.kind = kind,.serial = ++one->serial,.ours = true};

	if (kind == ZKL_QUESTION_HOLDER)
	{
		other = who;
		asked = &one->slots[slot];
		question.place = slot;
		question.mode = asked->want.mode;
	}
	else
		question.place = (int) kind;
	if (!asked->used || (kind == ZKL_QUESTION_REMOVE && asked->saved.contender[0] == '\0'))
		return;
	snprintf(question.name, sizeof(question.name), "%s", asked->want.name);
	memcpy(question.contender, asked->saved.contender, sizeof(asked->saved.contender));
	memcpy(question.request, asked->saved.request, sizeof(question.request));
	snprintf(question.data.server, sizeof(question.data.server), "s");
	snprintf(question.data.breaker, sizeof(question.data.breaker), "b");
	if (kind == ZKL_QUESTION_REMOVE)
	{
		/* from here on nobody can say whether it is held */
		asked->granted = false;
		one->removing = other * DRIVE_SLOTS + slot;
		memcpy(one->removed, asked->saved.contender, sizeof(one->removed));
	}
	order_ask(&one->order, &question);
	current->ops->ask(one->coordinator, &question);
}

/* One thing that a worker might do. */
static void
act(int who)
{
	int			i = (int) (draw() % DRIVE_SLOTS);
	uint64_t	what = draw() % 100;

	if (what < 60 && !driven[who].slots[i].used)
		want(who, i);
	else if (what < 60)
		let_go(who, i);
	else if (what < 62)
		ask(who, ZKL_QUESTION_QUEUE);
	else if (what < 64)
		ask(who, ZKL_QUESTION_HOLDER);
	else if (what < 67)
		ask(who, ZKL_QUESTION_REMOVE);
	else if (what < 68)
		ask(who, ZKL_QUESTION_ASK_BACK);
	else if (what < 70)
		current->ops->want_mark(driven[who].coordinator);
	else if (driven[who].ending && what < 90)
		current->ops->end(driven[who].coordinator);
}

static void
turn(int who)
{
	current->ops->receive(driven[who].coordinator);
	drain(who);
	(void) current->ops->run(driven[who].coordinator);
	drain(who);
}

static void
begin(void)
{
	state = current->seed;
	for (int i = 0; i < NAMES; i++)
	{
		snprintf(lock_names[i], sizeof(lock_names[i]), "conform/%llu/n%d",
				 (unsigned long long) current->seed, i);
		tokens[i] = 0;
	}
	memset(driven, 0, sizeof(driven));
	memset(current->events, 0, sizeof(current->events));
	current->wrong[0] = '\0';
	for (int who = 0; who < current->n; who++)
	{
		ZklTarget  *target = &current->targets[who];
		bool		goes_on;

		target->nslots = DRIVE_SLOTS;
		target->survivor = calloc(1, ZKL_SURVIVOR_SIZE);
		target->memory = calloc(1, current->ops->memory_size(DRIVE_SLOTS) + 1);
		order_init(&driven[who].order, DRIVE_SLOTS, false, 0);
		driven[who].coordinator = current->ops->attach(target, zkl_now(), &goes_on);
	}
}

/* Let everything go, and wait until it is gone. */
static void
finish(void)
{
	ZklTime		until = zkl_now() + PATIENCE;
	bool		left = true;

	for (int who = 0; who < current->n && current->calm != NULL; who++)
		current->calm(driven[who].coordinator);
	while (left && current->wrong[0] == '\0')
	{
		left = false;
		for (int who = 0; who < current->n; who++)
		{
			for (int i = 0; i < DRIVE_SLOTS; i++)
				if (driven[who].slots[i].used)
				{
					left = true;
					let_go(who, i);
				}
			if (driven[who].ending)
				current->ops->end(driven[who].coordinator);
			turn(who);
		}
		if (left && zkl_now() > until)
			wrong(0, "what was let go is not gone");
		if (current->pause_us > 0)
			usleep(current->pause_us);
	}
	for (int who = 0; who < current->n; who++)
	{
		current->ops->close(driven[who].coordinator);
		free(driven[who].order.slots);
		free(current->targets[who].survivor);
		free(current->targets[who].memory);
	}
}

bool
drive(Drive *wanted)
{
	ZklTime		until;

	current = wanted;
	begin();
	until = zkl_now() + wanted->lasts;
	for (int step = 0; wanted->wrong[0] == '\0' &&
		 (wanted->steps > 0 ? step < wanted->steps : zkl_now() < until); step++)
	{
		int			who = (int) (draw() % wanted->n);

		if (wanted->fault != NULL && draw() % 50 == 0)
		{
			wanted->fault(driven[who].coordinator, draw());
			drain(who);
		}
		act(who);
		for (int i = 0; i < wanted->n; i++)
			turn(i);
		if (wanted->pause_us > 0)
			usleep(wanted->pause_us);
	}
	finish();
	return wanted->wrong[0] == '\0';
}
