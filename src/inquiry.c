/*-------------------------------------------------------------------------
 *
 * inquiry.c
 *	  Questions of backends that only ZooKeeper can answer: the backend's side.
 *
 * See inquiry.h; the worker's side is in worker.c.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "clock.h"
#include "compat.h"
#include "inquiry.h"
#include "locks.h"
#include "shmem.h"
#include "zklock.h"

ZklDesk    *zkl_desks = NULL;

void
zkl_desks_init(ZklDesk *desks)
{
	zkl_desks = desks;
	memset(desks, 0, ZKL_DESKS * sizeof(*desks));
	for (int i = 0; i < ZKL_DESKS; i++)
		pg_atomic_init_u32(&desks[i].state, ZKL_DESK_FREE);
}

static ZklDesk *
take_desk(void)
{
	for (int i = 0; i < ZKL_DESKS; i++)
	{
		uint32		expected = ZKL_DESK_FREE;

		if (pg_atomic_compare_exchange_u32(&zkl_desks[i].state, &expected, ZKL_DESK_FILLING))
			return &zkl_desks[i];
	}
	return NULL;
}

/* On error and at exit. */
static void
leave_desk(int code, Datum arg)
{
	ZklDesk    *desk = (ZklDesk *) DatumGetPointer(arg);
	uint32		expected = ZKL_DESK_ASKED;

	/* the worker may be at it, or may just have finished */
	if (!pg_atomic_compare_exchange_u32(&desk->state, &expected, ZKL_DESK_ABANDONED))
		pg_atomic_write_u32(&desk->state, ZKL_DESK_FREE);
	zkl_wake_worker();
}

static void
wait_a_little(ZklTime until)
{
	static uint32 wait_event = 0;

	zkl_sleep(Min((until - zkl_now()) / 1000, 100), &wait_event, "ZklockInquiry");
}

static void
raise_no_answer(const char *name, int timeout)
{
	char		trouble[ZKL_TROUBLE_SIZE];

	ereport(ERROR,
			(errcode(ZKL_ERRCODE_COORDINATOR_UNAVAILABLE),
			 errmsg("ZooKeeper did not tell about %s within %d ms", zkl_lock_label(name), timeout),
			 zkl_trouble_read(trouble) ? errdetail("%s", zkl_text_for_message(trouble)) : 0,
			 errhint("Check the ZooKeeper servers and zklock.hosts; the server log has the worker's messages.")));
}

ZklDesk *
zkl_inquire(ZklQuestion question, const char *name, const char *node, const char *data, int len,
			int timeout)
{
	ZklTime		until = zkl_now() + ZKL_MS(timeout);
	ZklDesk    *answer = palloc(sizeof(ZklDesk));
	ZklDesk    *desk;

	while ((desk = take_desk()) == NULL)
	{
		if (zkl_now() >= until)
			raise_no_answer(name, timeout);
		wait_a_little(until);
	}

	PG_ENSURE_ERROR_CLEANUP(leave_desk, PointerGetDatum(desk));
	{
		desk->procno = MyProcNumber;
		desk->question = question;
		strlcpy(desk->name, name, sizeof(desk->name));
		strlcpy(desk->node, node, sizeof(desk->node));
		desk->len = Min(len, (int) sizeof(desk->data));
		memcpy(desk->data, data, desk->len);
		desk->contenders = desk->nrows = 0;
		pg_write_barrier();
		pg_atomic_write_u32(&desk->state, ZKL_DESK_ASKED);
		zkl_wake_worker();

		while (pg_atomic_read_u32(&desk->state) != ZKL_DESK_ANSWERED)
		{
			if (zkl_now() >= until)
				raise_no_answer(name, timeout);
			wait_a_little(until);
		}
		pg_read_barrier();
		memcpy(answer, desk, sizeof(*answer));
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_desk, PointerGetDatum(desk));
	pg_atomic_write_u32(&desk->state, ZKL_DESK_FREE);
	return answer;
}
