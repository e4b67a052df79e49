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

-- A lock stops other people's work, so using one is a right to be granted.
REVOKE ALL ON FUNCTION
	zk_lock_acquire(text, text, interval),
	zk_lock_try_acquire(text, text),
	zk_xact_lock_acquire(text, text, interval),
	zk_xact_lock_try_acquire(text, text),
	zk_lock_release(text, text),
	zk_lock_release_all(),
	zk_fencing_token(text),
	zk_lock_is_held(text)
FROM PUBLIC;
