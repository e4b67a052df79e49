/*-------------------------------------------------------------------------
 *
 * release.c
 *	  Release a backend-level lock or permit.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "backend/guard.h"
#include "backend/release.h"
#include "backend/text.h"
#include "common/errors.h"
#include "shared/shmem.h"

ZklHold *
zkl_find_backend_hold(const char *name, ZklMode mode)
{
	for (int i = 0; i < zkl_nholds; i++)
		if (zkl_holds[i].mode == mode && zkl_holds[i].backend_count > 0 &&
			strcmp(zkl_holds[i].name, name) == 0)
			return &zkl_holds[i];
	return NULL;
}

bool
zkl_is_ours_to_release(const ZklHold *hold)
{
	if (hold->loss != ZKL_LOSS_NONE)
		return false;
	if (zkl_guard_is_certain(hold))
		return true;
	pg_atomic_fetch_or_u32(&zkl_shared->entries[hold->entryno].flags, ZKL_FLAG_UNCERTAIN);
	return false;
}

static char *
describe_loss(const ZklHold *hold)
{
	if (hold->loss == ZKL_LOSS_EXPIRED)
		return psprintf("The %s session ended.", zkl_coordinator_name());
	if (hold->loss == ZKL_LOSS_VANISHED)
		return psprintf("Its node in %s was deleted.", zkl_coordinator_name());
	return psprintf("It was taken away by %s.",
					zkl_text_for_message(zkl_shared->entries[hold->entryno].breaker));
}

bool
zkl_release(const char *name, ZklHold *hold)
{
	bool		ours;

	if (hold == NULL)
	{
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("you don't own a backend-level %s", zkl_lock_label(name))));
		return false;
	}
	if (hold->loss != ZKL_LOSS_NONE)
	{
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%s had been lost", zkl_lock_label(name)),
				 errdetail("%s", describe_loss(hold))));
		zkl_hold_drop(hold);
		return false;
	}
	ours = zkl_is_ours_to_release(hold);
	if (!ours)
		ereport(WARNING,
				(errcode(ZKL_ERRCODE_LOCK_LOST),
				 errmsg("%s had lapsed", zkl_lock_label(name)),
				 errdetail("%s did not confirm in time that this server still holds it; another client may hold it by now.",
						   zkl_coordinator_name())));
	zkl_hold_release(hold);
	return ours;
}
