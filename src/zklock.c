/*-------------------------------------------------------------------------
 *
 * zklock.c
 *	  What PostgreSQL calls when it loads the library.
 *
 * Loaded by shared_preload_libraries it reserves shared memory, registers the
 * worker and installs the hooks. Loaded by a backend it does none of that: the
 * lock functions then say what is missing, and everything that needs neither
 * ZooKeeper nor a worker works.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "backend/guard.h"
#include "common/compat.h"
#include "common/settings.h"
#include "shared/shmem.h"
#include "worker/worker.h"
#include "zookeeper/ensemble.h"

PG_MODULE_MAGIC_EXT(.name = "zklock",.version = ZKLOCK_VERSION);

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	zkl_settings_define();
	zkl_shmem_init(zkl_zookeeper.memory_size);
	zkl_guard_init();
	/* pg_upgrade's servers are nobody's to lock on */
	if (!IsBinaryUpgrade)
		zkl_worker_register();
}
