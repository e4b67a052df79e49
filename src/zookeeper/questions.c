/*-------------------------------------------------------------------------
 *
 * questions.c
 *	  What backends ask of the ensemble: who holds, who stands in a queue; and what
 *	  an operator does to it.
 *
 * What a connection loses is asked again on the next one; who asked gives up by itself.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zookeeper/internal.h"

static void begin(Zk *zk, int place, ZklTime now);
static void answer(Zk *zk, int place, int rc);
static void on_reply(Zk *zk, ZklOp *op, ZklTime now);
static void on_list(Zk *zk, ZklOp *op, ZklTime now);
static void on_row(Zk *zk, ZklOp *op, ZklTime now);
static void on_holder_list(Zk *zk, ZklOp *op, ZklTime now);
static void on_holder(Zk *zk, ZklOp *op, ZklTime now);

void
zk_ask(Zk *zk, const ZklQuestion *question)
{
	if (question->kind == ZKL_QUESTION_HOLDER)
	{
		Slot	   *slot = &zk->slots[question->place];

		zk_holder_forget(slot);
		slot->holder = zk_alloc(zk, sizeof(ZklQuestion));
		*slot->holder = *question;
		zk_mark(zk, question->place);
	}
	else
	{
		Asked	   *asked = &zk->asked[question->place];

		assert(question->place >= 0 && question->place < ZKL_ASKERS);
		asked->open = true;
		asked->begun = false;
		asked->turn++;
		asked->question = *question;
	}
}

/* What was sent cannot be taken back; it is not sent again. */
void
zk_withdraw(Zk *zk, int place)
{
	assert(place >= 0 && place < ZKL_ASKERS);
	zk->asked[place].open = zk->asked[place].begun = false;
	zk->asked[place].turn++;
}

/* Begin what has not begun. */
void
zk_questions_send(Zk *zk, ZklTime now)
{
	for (int i = 0; i < ZKL_ASKERS; i++)
		if (zk->asked[i].open && !zk->asked[i].begun && zk_is_ready(zk) &&
			zk->in_flight < MAX_IN_FLIGHT)
			begin(zk, i, now);
}

void
zk_questions_disconnected(Zk *zk)
{
	for (int i = 0; i < ZKL_ASKERS; i++)
		zk->asked[i].begun = false;
}

/* The client is no more, and with it the replies. */
void
zk_questions_client_gone(Zk *zk)
{
	zk_questions_disconnected(zk);
	for (int i = 0; i < zk->target.nslots; i++)
		if (zk->slots[i].holder != NULL && zk->slots[i].holder_asked)
		{
			zk->slots[i].holder_asked = false;
			zk->slots[i].holder_turn++;
			zk_mark(zk, i);
		}
}

/* Contenders' data for zk_lock_break(): a zklock server reads who asks, and gives up in
 * any case; Curator's holders hear this if they are revocable, others do not. */
static int
words_that_ask_back(const ZklQuestion *question, char buf[ZKL_NODEDATA_SIZE])
{
	if (question->ours)
		return (int) zkl_nodedata_write(&question->data, buf);
	strcpy(buf, ZKL_REVOKE_BYTES);
	return (int) strlen(ZKL_REVOKE_BYTES);
}

static void
begin(Zk *zk, int place, ZklTime now)
{
	Asked	   *asked = &zk->asked[place];
	ZklQuestion *question = &asked->question;
	const char *root = zk->target.root;
	char		path[ZKL_PATH_SIZE];
	char		data[ZKL_NODEDATA_SIZE];
	ZklOp	   *op = zk_op(zk, on_reply, -1, now);
	bool		sent = false;

	free(asked->answer);
	asked->answer = zk_alloc(zk, sizeof(ZklAnswer) + ZKL_ANSWER_ROWS * sizeof(ZklContenderRow));
	op->place = place;
	op->serial = ++asked->turn;
	switch (question->kind)
	{
		case ZKL_QUESTION_QUEUE:
			op->replied = on_list;
			op->want_names = true;
			zkl_dir_path(path, root, question->name);
			sent = zkl_send_list(op, path, false);
			break;
		case ZKL_QUESTION_ASK_BACK:
			zkl_node_path(path, root, question->name, question->contender);
			sent = zkl_send_set(op, path, data, words_that_ask_back(question, data));
			break;
		case ZKL_QUESTION_REMOVE:
			zkl_node_path(path, root, question->name, question->contender);
			sent = zkl_send_delete(op, path);
			break;
		case ZKL_QUESTION_HOLDER:
			assert(false);
			break;
	}
	asked->begun = zk_sent(zk, sent, now);
	asked->pending = 1;
}

/* The question that the reply is for, or NULL when nobody waits for it any more. */
static Asked *
asked_of(Zk *zk, const ZklOp *op)
{
	Asked	   *asked = &zk->asked[op->place / ZKL_ANSWER_ROWS];

	if (op->replied != on_row)
		asked = &zk->asked[op->place];
	if (!asked->open || !asked->begun || op->serial != asked->turn)
		return NULL;
	if (!zk_is_lost_reply(op))
		return asked;
	asked->begun = false;
	return NULL;
}

static ZklAnswerResult
result_of(int rc)
{
	return rc == ZKL_RC_OK ? ZKL_ANSWER_OK :
		rc == ZKL_RC_NONODE ? ZKL_ANSWER_NOTHING_THERE :
		rc == ZKL_RC_NOAUTH ? ZKL_ANSWER_DENIED : ZKL_ANSWER_REFUSED;
}

/* The event takes the answer over. */
static void
answer(Zk *zk, int place, int rc)
{
	Asked	   *asked = &zk->asked[place];
	ZklEvent   *event = zk_event(zk, ZKL_EVENT_ANSWERED);

	asked->answer->result = result_of(rc);
	snprintf(asked->answer->text, sizeof(asked->answer->text), "%s", zkl_rc_text(rc));
	event->question = asked->question.kind;
	event->slot = place;
	event->serial = asked->question.serial;
	event->answer = asked->answer;
	asked->answer = NULL;
	asked->open = asked->begun = false;
}

static void
on_reply(Zk *zk, ZklOp *op, ZklTime now)
{
	(void) now;
	if (asked_of(zk, op) != NULL)
		answer(zk, op->place, op->rc);
}

/* The contenders' names: what each says about itself comes next. */
static void
on_list(Zk *zk, ZklOp *op, ZklTime now)
{
	Asked	   *asked = asked_of(zk, op);
	const char *name = op->names;

	if (asked == NULL)
		return;
	if (op->rc == ZKL_RC_OK)
	{
		asked->answer->contenders = op->nnames;
		asked->answer->nrows = Min(op->nnames, ZKL_ANSWER_ROWS);
	}
	for (int i = 0; i < asked->answer->nrows; i++, name += strlen(name) + 1)
	{
		ZklContenderRow *row = &asked->answer->rows[i];
		ZklOp	   *get = zk_op(zk, on_row, -1, now);
		ZklContender contender;
		char		path[ZKL_PATH_SIZE];

		snprintf(row->contender, sizeof(row->contender), "%s", name);
		(void) zkl_contender_parse(name, &contender);
		row->kind = contender.kind;
		row->place = contender.digits;
		get->place = op->place * ZKL_ANSWER_ROWS + i;
		get->serial = op->serial;
		zkl_node_path(path, zk->target.root, asked->question.name, name);
		if (!zk_sent(zk, zkl_send_get(get, path, false), now))
		{
			asked->begun = false;	/* asked again */
			return;
		}
		asked->pending++;
	}
	if (--asked->pending == 0)
		answer(zk, op->place, op->rc);
}

static void
on_row(Zk *zk, ZklOp *op, ZklTime now)
{
	Asked	   *asked = asked_of(zk, op);
	int			place = op->place / ZKL_ANSWER_ROWS;

	(void) now;
	if (asked == NULL)
		return;
	if (op->rc == ZKL_RC_OK)
	{
		ZklContenderRow *row = &asked->answer->rows[op->place % ZKL_ANSWER_ROWS];

		row->ours = zkl_nodedata_read(op->text, op->len, &row->data);
		row->session = op->owner;
		row->created = op->ctime;
		row->token = op->czxid;
	}
	else if (op->rc != ZKL_RC_NONODE)
	{
		/* a holder that we may not read is no reason to name somebody else */
		answer(zk, place, op->rc);
		return;
	}
	if (--asked->pending == 0)
		answer(zk, place, ZKL_RC_OK);
}

/* ------------------------------------------------------------------------
 * Who holds what a slot waits for
 * ------------------------------------------------------------------------
 */

/* Nobody wants to know any more, or something else. */
void
zk_holder_forget(Slot *slot)
{
	free(slot->holder);
	slot->holder = NULL;
	slot->holder_asked = false;
	slot->holder_turn++;
}

/* Look which contender is the first. */
void
zk_holder_send(Zk *zk, int i, ZklTime now)
{
	Slot	   *slot = &zk->slots[i];
	char		directory[ZKL_PATH_SIZE];
	ZklOp	   *op = zk_op(zk, on_holder_list, i, now);

	op->serial = slot->holder_turn;
	zkl_dir_path(directory, zk->target.root, slot->holder->name);
	op->listing.mode = slot->holder->mode;
	/* our own contender is not the holder; it may be newer than the question */
	memcpy(op->listing.uuid,
		   slot->step != SLOT_FREE ? slot->queue.uuid : slot->holder->request,
		   sizeof(op->listing.uuid));
	slot->holder_asked = zk_sent(zk, zkl_send_list(op, directory, false), now);
	if (!slot->holder_asked)
		zk_mark(zk, i);
}

/* The slot whose question this reply is for; NULL when it is for none any more. */
static Slot *
holder_slot_of(Zk *zk, const ZklOp *op)
{
	Slot	   *slot = &zk->slots[op->slot];

	if (slot->holder == NULL || !slot->holder_asked || op->serial != slot->holder_turn)
		return NULL;
	slot->holder_asked = false;
	if (!zk_is_lost_reply(op))
		return slot;
	zk_mark(zk, op->slot);		/* asked again */
	return NULL;
}

static void
answer_holder(Zk *zk, int i, const ZklOp *op)
{
	Slot	   *slot = &zk->slots[i];
	ZklEvent   *event = zk_event(zk, ZKL_EVENT_ANSWERED);
	ZklAnswer  *found = zk_alloc(zk, sizeof(ZklAnswer) + sizeof(ZklContenderRow));

	if (op->rc == ZKL_RC_OK)
	{
		found->contenders = found->nrows = 1;
		found->rows[0].ours = zkl_nodedata_read(op->text, op->len, &found->rows[0].data);
		found->rows[0].token = op->czxid;
	}
	event->question = ZKL_QUESTION_HOLDER;
	event->slot = i;
	event->serial = slot->holder->serial;
	event->answer = found;
	zk_holder_forget(slot);
}

/* Then read what that one says about itself. */
static void
on_holder_list(Zk *zk, ZklOp *op, ZklTime now)
{
	Slot	   *slot = holder_slot_of(zk, op);
	char		path[ZKL_PATH_SIZE];
	ZklOp	   *get;

	if (slot == NULL)
		return;
	if (op->rc == ZKL_RC_OK && op->listing.first[0] != '\0' && zk->link == LINK_CONNECTED)
	{
		get = zk_op(zk, on_holder, op->slot, now);
		get->serial = slot->holder_turn;
		zkl_node_path(path, zk->target.root, slot->holder->name, op->listing.first);
		slot->holder_asked = zk_sent(zk, zkl_send_get(get, path, false), now);
	}
	else if (op->rc == ZKL_RC_NONODE)
		answer_holder(zk, op->slot, op);
}

static void
on_holder(Zk *zk, ZklOp *op, ZklTime now)
{
	(void) now;
	if (holder_slot_of(zk, op) != NULL &&
		(op->rc == ZKL_RC_OK || op->rc == ZKL_RC_NONODE))
		answer_holder(zk, op->slot, op);
}
