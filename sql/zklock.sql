/* zklock: the install script. Complain if it is run by psql and not by CREATE EXTENSION. */
\echo Use "CREATE EXTENSION zklock" to load this file. \quit

--
-- Locks. Nothing here is STRICT: a NULL must be an error and not a NULL, since
-- NULL is what the try functions return when the lock is taken.
--

CREATE FUNCTION zk_lock_acquire(name text, mode text DEFAULT 'exclusive', timeout interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_lock_acquire(text, text, interval) IS
'take a lock for this backend until it is released, waiting for it; returns the fencing token';

CREATE FUNCTION zk_lock_try_acquire(name text, mode text DEFAULT 'exclusive')
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_lock_try_acquire(text, text) IS
'take a lock for this backend if it is free now; returns the fencing token, or NULL when it is taken';

CREATE FUNCTION zk_xact_lock_acquire(name text, mode text DEFAULT 'exclusive', timeout interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_xact_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_xact_lock_acquire(text, text, interval) IS
'take a lock until the end of the transaction, waiting for it; returns the fencing token';

CREATE FUNCTION zk_xact_lock_try_acquire(name text, mode text DEFAULT 'exclusive')
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_xact_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_xact_lock_try_acquire(text, text) IS
'take a lock until the end of the transaction if it is free now; returns the fencing token, or NULL when it is taken';

CREATE FUNCTION zk_lock_release(name text, mode text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zkl_lock_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_lock_release(text, text) IS
'give back one backend-level hold; false when there is none, or when it had been lost';

CREATE FUNCTION zk_lock_release_all()
RETURNS integer
AS 'MODULE_PATHNAME', 'zkl_lock_release_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_lock_release_all() IS
'give back every backend-level hold; returns how many there were';

CREATE FUNCTION zk_fencing_token(name text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_fencing_token'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zk_fencing_token(text) IS
'fencing token of a lock that this backend holds now; an error when it is not held or not certain';

CREATE FUNCTION zk_lock_is_held(name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zkl_lock_is_held'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zk_lock_is_held(text) IS
'is the lock held by this backend, and is that certain now?';

--
-- Semaphores: so many at a time. No NULL here either.
--

CREATE FUNCTION zk_semaphore_acquire(name text, leases integer, timeout interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_semaphore_acquire(text, integer, interval) IS
'take one of so many leases for this backend until it is released, waiting for it; returns a number that fences nothing';

CREATE FUNCTION zk_semaphore_try_acquire(name text, leases integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_semaphore_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_semaphore_try_acquire(text, integer) IS
'take one of so many leases for this backend if one is free now; returns a number that fences nothing, or NULL when all are taken';

CREATE FUNCTION zk_semaphore_release(name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zkl_semaphore_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_semaphore_release(text) IS
'give back one lease of this backend; false when there is none, or when it had been lost';

--
-- Fencing at the table.
--

-- The newest token of each resource. By bytes, like lock names: a mark must not
-- be lost to a new version of a collation. Advanced again and again, so there is
-- room on the page for the next version of a row.
CREATE TABLE zk_fence
(
	resource text COLLATE "C" PRIMARY KEY,
	token bigint NOT NULL CHECK (token >= 0),
	advanced_at timestamptz NOT NULL,
	presented_by text NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE zk_fence IS 'newest fencing token of each resource; zk_fence_check and zk_fence_guard advance it';
COMMENT ON COLUMN zk_fence.resource IS 'name of the resource, which is that of its lock';
COMMENT ON COLUMN zk_fence.token IS 'newest token that was presented; a lower one is refused';
COMMENT ON COLUMN zk_fence.advanced_at IS 'when it was presented first';
COMMENT ON COLUMN zk_fence.presented_by IS 'who presented it first';

-- Marks are data: what was stale before a dump is stale after its restore.
SELECT pg_catalog.pg_extension_config_dump('zk_fence', '');

CREATE FUNCTION zk_fence_check(resource text, token bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'zkl_fence_check'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_fence_check(text, bigint) IS
'present a fencing token for this transaction; an error when a newer one has been presented';

CREATE FUNCTION zk_fence_guard()
RETURNS trigger
AS 'MODULE_PATHNAME', 'zkl_fence_guard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_fence_guard() IS
'trigger that lets only the holder of the newest fencing token write: zk_fence_guard(resource [, token_column])';

CREATE FUNCTION zk_fence_reset(resource text, token bigint DEFAULT 0)
RETURNS void
AS 'MODULE_PATHNAME', 'zkl_fence_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_fence_reset(text, bigint) IS
'set the newest token of a resource, lower if need be: for operators, after the ZooKeeper ensemble was rebuilt';

-- A lock stops other people's work, so using one is a right to be granted; so is
-- presenting a token, since the ones before it are refused from then on.
REVOKE ALL ON TABLE zk_fence FROM PUBLIC;

-- Default privileges that give an application every new table must not give it the
-- marks, or it could lower them.
DO $$
DECLARE
	grantee text;
BEGIN
	FOR grantee IN
		SELECT DISTINCT acl.grantee::pg_catalog.regrole
		FROM pg_catalog.pg_class, pg_catalog.aclexplode(relacl) acl
		WHERE pg_class.oid = '@extschema@.zk_fence'::pg_catalog.regclass AND acl.grantee NOT IN (0, relowner)
	LOOP
		EXECUTE 'REVOKE ALL ON TABLE @extschema@.zk_fence FROM ' || grantee;
	END LOOP;
END $$;

REVOKE ALL ON FUNCTION
	zk_lock_acquire(text, text, interval),
	zk_lock_try_acquire(text, text),
	zk_xact_lock_acquire(text, text, interval),
	zk_xact_lock_try_acquire(text, text),
	zk_lock_release(text, text),
	zk_lock_release_all(),
	zk_fencing_token(text),
	zk_lock_is_held(text),
	zk_semaphore_acquire(text, integer, interval),
	zk_semaphore_try_acquire(text, integer),
	zk_semaphore_release(text),
	zk_fence_check(text, bigint),
	zk_fence_guard(),
	zk_fence_reset(text, bigint)
FROM PUBLIC;
