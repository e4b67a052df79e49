/*-------------------------------------------------------------------------
 *
 * inquire.c
 *	  What a backend asks of the coordinator: the asker's side of the desks.
 *
 * See desk.h; the worker's side is in worker/desks.c.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "backend/inquire.h"
#include "backend/holds.h"
#include "backend/text.h"
#include "common/clock.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"
#include "shared/shmem.h"

/* Our use of a desk, ASKED. */
static uint64 my_word;

/* Take a free desk, and with it ask what is on our slip. */
static ZklDesk *
take_desk(bool looks)
{
	for (int i = looks ? ZKL_DESKS_OPERATORS : 0; i < ZKL_DESKS; i++)
	{
		uint64		word = pg_atomic_read_u64(&zkl_desks[i].word);

		if (zkl_desk_state(word) != ZKL_DESK_FREE)
			continue;
		my_word = zkl_desk_word(zkl_desk_generation(word), MyProcNumber, ZKL_DESK_ASKED);
		if (pg_atomic_compare_exchange_u64(&zkl_desks[i].word, &word, my_word))
			return &zkl_desks[i];
	}
	return NULL;
}

/* On error and at exit. */
static void
leave_desk(int code, Datum arg)
{
	ZklDesk    *desk = (ZklDesk *) DatumGetPointer(arg);
	uint64		expected = my_word;

	/*
	 * the worker may be at it, or may just have finished, or have taken it
	 * back
	 */
	if (!pg_atomic_compare_exchange_u64(&desk->word, &expected,
										zkl_desk_with_state(my_word, ZKL_DESK_ABANDONED)))
		zkl_desk_clear(desk, zkl_desk_with_state(my_word, ZKL_DESK_ANSWERED));
	zkl_wake_worker();
}

/* Sleep for "ms" or until the latch is set, but not beyond "until". */
static void
wait_a_little(ZklTime until, int ms)
{
	static uint32 wait_event = 0;

	zkl_sleep(Min((until - zkl_now()) / 1000, ms), &wait_event, "ZklockInquiry");
}

static void
raise_no_answer(const char *name, int timeout)
{
	char		trouble[ZKL_TROUBLE_SIZE];

	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("%s did not tell about %s within %d ms", zkl_coordinator_name(),
					zkl_lock_label(name), timeout),
			 zkl_trouble_read(trouble) ? errdetail("%s", zkl_text_for_message(trouble)) : 0,
			 errhint("Check the %s servers and zklock.hosts; the server log has the worker's messages.",
					 zkl_coordinator_name())));
}

/*
 * Wait for the answer at our desk and copy it; false when the desk was taken back before
 * we had it.
 */
static bool
wait_for_answer(ZklDesk *desk, ZklDesk *answer, ZklTime until, int timeout)
{
	uint64		answered = zkl_desk_with_state(my_word, ZKL_DESK_ANSWERED);
	uint64		word;

	while ((word = pg_atomic_read_u64(&desk->word)) == my_word)
	{
		if (zkl_now() >= until)
			raise_no_answer(zkl_slips[MyProcNumber].question.name, timeout);
		wait_a_little(until, 100);
	}
	if (word != answered)
		return false;
	pg_read_barrier();
	memcpy(answer, desk, sizeof(*answer));

	/*
	 * a full barrier: what was copied is this use's if the desk still was
	 * ours
	 */
	return pg_atomic_compare_exchange_u64(&desk->word, &word, zkl_desk_cleared(word));
}

ZklDesk *
zkl_inquire(const ZklQuestion *question, bool looks, int timeout)
{
	ZklTime		until = zkl_now() + ZKL_MS(timeout);
	ZklDesk    *answer = palloc(sizeof(ZklDesk));
	bool		answered = false;
	ZklDesk    *desk;

	zkl_slips[MyProcNumber].question = *question;
	while (!answered)
	{
		while ((desk = take_desk(looks)) == NULL)
		{
			if (zkl_now() >= until)
				raise_no_answer(question->name, timeout);
			/* often: those who ask all the time leave it for a moment only */
			wait_a_little(until, 5);
		}
		PG_ENSURE_ERROR_CLEANUP(leave_desk, PointerGetDatum(desk));
		{
			zkl_wake_worker();
			answered = wait_for_answer(desk, answer, until, timeout);
		}
		PG_END_ENSURE_ERROR_CLEANUP(leave_desk, PointerGetDatum(desk));
		if (!answered && zkl_now() >= until)
			raise_no_answer(question->name, timeout);
	}
	return answer;
}
