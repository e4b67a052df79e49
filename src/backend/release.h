/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Release a backend-level lock or permit.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef ZKL_RELEASE_H
#define ZKL_RELEASE_H

#include "backend/holds.h"

/* The hold of this name and mode that has backend-level acquires, or NULL. */
extern ZklHold *zkl_find_backend_hold(const char *name, ZklMode mode);

/*
 * Is it still ours to give back? What has lapsed may be another client's by now, and
 * comes back only if the session does. For the statistics that is a loss.
 */
extern bool zkl_is_ours_to_release(const ZklHold *hold);

/*
 * Give back one backend-level acquire; "hold" may be NULL. Returns whether the lock was
 * held until now; a WARNING says in what way it was not.
 */
extern bool zkl_release(const char *name, ZklHold *hold);

#endif							/* ZKL_RELEASE_H */
