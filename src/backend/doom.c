/*-------------------------------------------------------------------------
 *
 * doom.c
 *	  What is wrong with this transaction's locks, and how it is said.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"


#include "backend/guard_state.h"
#include "backend/text.h"
#include "backend/written.h"
#include "common/compat.h"
#include "common/errors.h"
#include "common/settings.h"

ZklGuard	zkl_guard;


/* Look for losses that the worker has marked since the last call. */
static void
refresh(void)
{
	uint32		losses = pg_atomic_read_u32(&zkl_shared->losses);

	if (losses == zkl_guard.losses)
		return;
	zkl_guard.losses = losses;
	pg_read_barrier();
	for (int i = 0; i < zkl_nholds; i++)
	{
		uint32		flags = pg_atomic_read_u32(&zkl_shared->entries[zkl_holds[i].entryno].flags);

		if (flags & ZKL_FLAG_LOST)
			zkl_holds[i].loss = zkl_loss_of_flags(flags);
	}
}

static const ZklHold *
find_lost(void)
{
	refresh();
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].loss != ZKL_LOSS_NONE && !zkl_holds[i].superseded)
			return &zkl_holds[i];
	return NULL;
}

bool
zkl_guard_is_certain(const ZklHold *hold)
{
	uint64		word = pg_atomic_read_u64(&zkl_shared->lease);

	return hold->loss == ZKL_LOSS_NONE &&
		zkl_shared->entries[hold->entryno].generation == zkl_word_generation(word) &&
		(!zkl_guard.relying || zkl_word_epoch(word) == zkl_guard.epoch) &&
		zkl_now() < zkl_word_deadline(word);
}

/* The transaction cannot commit any more, because of this lock. */
void
zkl_doom(const ZklHold *hold)
{
	ZklTime		now = zkl_now();

	if (zkl_guard.doom != ZKL_LOSS_NONE)
		return;
	if (hold->loss != ZKL_LOSS_NONE)
	{
		zkl_guard.doom = hold->loss;
		zkl_guard.since = zkl_shared->entries[hold->entryno].lost_at;
		strlcpy(zkl_guard.breaker, zkl_shared->entries[hold->entryno].breaker, sizeof(zkl_guard.breaker));
	}
	else
	{
		uint64		word = pg_atomic_read_u64(&zkl_shared->lease);
		ZklTime		deadline = zkl_word_deadline(word);

		zkl_guard.doom = deadline <= now ? ZKL_LOSS_LAPSED :
			zkl_guard.relying && zkl_word_epoch(word) != zkl_guard.epoch ? ZKL_LOSS_LAPSED_BEFORE :
			ZKL_LOSS_SHORT;
		zkl_guard.since = deadline != 0 ? deadline : now;
	}
	strlcpy(zkl_guard.name, hold->name, sizeof(zkl_guard.name));
	if (!zkl_guard.timer_found)
		zkl_guard.found_at = now;
}

/*
 * Layer 1 and 2 at their core. "margin": how much of the lease has to be left.
 * Returns false after dooming the transaction.
 */
bool
zkl_still_good(ZklTime margin)
{
	const ZklHold *lost;
	uint64		word;

	if (zkl_guard.doom != ZKL_LOSS_NONE)
		return false;
	if (zkl_nholds == 0)
	{
		zkl_guard.relying = false;
		return true;
	}
	lost = find_lost();
	if (lost != NULL)
	{
		zkl_doom(lost);
		return false;
	}
	if (!zkl_guard.relying)
		return true;
	word = pg_atomic_read_u64(&zkl_shared->lease);
	if (zkl_word_epoch(word) == zkl_guard.epoch && zkl_now() + margin < zkl_word_deadline(word))
		return true;
	zkl_doom(&zkl_holds[0]);
	return false;
}

void
zkl_guard_refresh(void)
{
	const ZklHold *lost = find_lost();

	if (zkl_guard.relying)
		(void) zkl_still_good(0);
	else if (lost != NULL && zkl_has_written())
		zkl_doom(lost);			/* whatever it was that no hook has seen */
}

const char *
zkl_doom_detail(ZklTime now)
{
	long		ago = (long) ((now - zkl_guard.since) / 1000);

	switch (zkl_guard.doom)
	{
		case ZKL_LOSS_EXPIRED:
			return psprintf("The %s session ended, as was seen %ld ms ago.",
							zkl_coordinator_name(), ago);
		case ZKL_LOSS_VANISHED:
			return psprintf("Its node in %s was deleted, as was seen %ld ms ago.",
							zkl_coordinator_name(), ago);
		case ZKL_LOSS_BROKEN:
			return psprintf("It was taken away by %s, %ld ms ago.",
							zkl_text_for_message(zkl_guard.breaker), ago);
		case ZKL_LOSS_LAPSED_BEFORE:
			return pstrdup("The lease had run out in the meantime, and another client may have held it; it is current again.");
		case ZKL_LOSS_SHORT:
			return psprintf("%ld ms of the lease were left, which is too little to commit, or to begin what no rollback takes back.",
							Max(-ago, 0L));
		case ZKL_LOSS_LAPSED:
		case ZKL_LOSS_NONE:
			break;
	}
	return psprintf("%s did not confirm in time that this server still holds it; the lease ran out %ld ms ago.",
					zkl_coordinator_name(), ago);
}

/*
 * Raise what dooms us. Inside nested levels it has to be an error that is not
 * caught by accident; at_level_0() turns it into ZK001 on its way out.
 */
void
zkl_raise_doom(void)
{
	const char *elsewhere = zkl_guard.committed_elsewhere ?
		" Foreign servers may have committed their part of the transaction already." : "";

	/*
	 * The timer has already chosen to end the connection. Act on it now: an
	 * exception handler that catches this error need never check for
	 * interrupts.
	 */
	if (zkl_guard.dying)
		CHECK_FOR_INTERRUPTS();
	zkl_guard.travelling = zkl_guard.nesting > 0;
	ereport(ERROR,
			(errcode(zkl_guard.nesting > 0 ? ERRCODE_QUERY_CANCELED : ZKL_ERRCODE_LOCK_LOST),
			 errmsg("%s is lost", zkl_lock_label(zkl_guard.name)),
			 errdetail("%s%s", zkl_doom_detail(zkl_now()), elsewhere),
			 errhint(ZKL_DOOM_HINT)));
}

void
zkl_guard_check_doom(void)
{
	/*
	 * the timer may have looked just when the transaction began to rely on a
	 * lock
	 */
	if (zkl_guard.timer_found && zkl_still_good(0))
		zkl_guard.timer_found = false;
	if (zkl_guard.doom != ZKL_LOSS_NONE)
		zkl_raise_doom();
}

void
zkl_guard_check(void)
{
	if (!zkl_still_good(0))
		zkl_raise_doom();
}

bool
zkl_guard_check_hold(const ZklHold *hold)
{
	bool		relying = zkl_guard.relying;

	zkl_guard_check();
	/* relying on a lock, to be certain of one is to be certain of all */
	return relying || zkl_guard_is_certain(hold);
}

void
zkl_guard_raise(const ZklHold *hold)
{
	zkl_doom(hold);
	zkl_raise_doom();
	pg_unreachable();
}

const PlannedStmt *
zkl_guard_statement(void)
{
	return zkl_guard.running == 1 ? zkl_guard.statement : NULL;
}

bool
zkl_guard_is_nested(void)
{
	return zkl_guard.nesting > 1;
}
