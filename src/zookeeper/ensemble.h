/*-------------------------------------------------------------------------
 *
 * ensemble.h
 *	  The coordinator that is a ZooKeeper ensemble.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_ENSEMBLE_H
#define ZKL_ENSEMBLE_H

#include "coordinator.h"

extern const ZklCoordinatorOps zkl_zookeeper;

#endif							/* ZKL_ENSEMBLE_H */
