-- Readers and writers, and semaphores, as one backend sees them; what several
-- do to each other is in test/t/040_modes.pl.

-- only these modes
SELECT zk_lock_acquire('m/a', 'lease');
SELECT zk_lock_acquire('m/a', 'READ');
SELECT zk_lock_acquire('m/a', NULL);

-- a hold in one mode is not one in another
SELECT zk_lock_acquire('m/r', 'read') > 0 AS read;
SELECT zk_lock_acquire('m/r', 'read') = zk_fencing_token('m/r') AS stacks;
SELECT zk_lock_acquire('m/r', 'write');
SELECT zk_lock_try_acquire('m/r');
SELECT zk_lock_release('m/r', 'write');
SELECT zk_lock_release('m/r', 'read'), zk_lock_release('m/r');
SELECT zk_lock_is_held('m/r');
SELECT zk_lock_acquire('m/x') > 0 AS exclusive;
SELECT zk_lock_acquire('m/x', 'read');
SELECT zk_lock_release('m/x');

-- downgrade: the read hold has the writer's token and outlives the write hold
SELECT zk_lock_acquire('m/w', 'write') AS token \gset
SELECT zk_lock_acquire('m/w', 'read') = :token AS same_token;
SELECT zk_lock_acquire('m/w', 'write') = :token AS still_writes;
SELECT zk_lock_acquire('m/w');
SELECT zk_lock_release('m/w');
SELECT zk_lock_release('m/w', 'write'), zk_lock_release('m/w', 'write');
SELECT zk_fencing_token('m/w') = :token AS same_token;
SELECT zk_lock_acquire('m/w', 'write');
SELECT zk_lock_release('m/w');
SELECT zk_lock_release('m/w');

-- in a transaction, with a savepoint
BEGIN;
SELECT zk_xact_lock_acquire('m/t', 'write') > 0 AS write;
SAVEPOINT s;
SELECT zk_xact_lock_acquire('m/t', 'read') > 0 AS read;
SELECT zk_lock_acquire('m/t', 'read') > 0 AS read;
ROLLBACK TO s;
SELECT zk_lock_release('m/t', 'write');
COMMIT;
SELECT zk_lock_release('m/t');

-- released in a transaction that writes: the write lock stays until its end, so it
-- can still be downgraded
CREATE TEMP TABLE t (i int);
SELECT zk_lock_acquire('m/e', 'write') > 0 AS write;
BEGIN;
INSERT INTO t VALUES (1);
SELECT zk_lock_release('m/e');
SELECT zk_lock_acquire('m/e', 'read') > 0 AS read;
COMMIT;
SELECT zk_lock_release('m/e');

-- read tokens fence nothing
SELECT zk_lock_acquire('m/f', 'read') > 0 AS read;
DO $$
BEGIN
	PERFORM zk_fence_check('m/f', zk_fencing_token('m/f'));
EXCEPTION WHEN invalid_parameter_value THEN
	RAISE NOTICE '%', regexp_replace(SQLERRM, '\d+', 'N');
END $$;
CREATE TABLE fenced (i int);
CREATE TRIGGER guard BEFORE INSERT ON fenced FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('m/f');
\set VERBOSITY terse
INSERT INTO fenced VALUES (1);
\set VERBOSITY default
SELECT zk_lock_release('m/f');
SELECT zk_lock_acquire('m/f', 'write') > 0 AS write;
INSERT INTO fenced VALUES (1);
SELECT zk_lock_acquire('m/f', 'read') > 0 AS read;
INSERT INTO fenced VALUES (2);
SELECT zk_lock_release('m/f', 'write');
\set VERBOSITY terse
INSERT INTO fenced VALUES (3);
\set VERBOSITY default
SELECT zk_lock_release('m/f');
DROP TABLE fenced;

-- semaphores
SELECT zk_semaphore_acquire(NULL, 1);
SELECT zk_semaphore_acquire('m/s', NULL);
SELECT zk_semaphore_acquire('m/s', 0);
SELECT zk_semaphore_acquire('m/s', 1, '-1 s');
SELECT zk_semaphore_acquire(repeat('n', 249), 1);
SELECT zk_semaphore_acquire('m//s', 1);
SELECT zk_semaphore_acquire('m/s', 2) > 0 AS lease;
SELECT zk_semaphore_try_acquire('m/s', 2) > 0 AS lease;
SELECT zk_semaphore_acquire('m/s', 2);
SELECT zk_semaphore_try_acquire('m/s', 2);
-- a lock of the same name is another thing
SELECT zk_lock_try_acquire('m/s') > 0 AS lock, zk_lock_release('m/s');
SELECT zk_lock_is_held('m/s');
SELECT zk_fencing_token('m/s/leases');
SELECT zk_semaphore_release('m/s'), zk_semaphore_release('m/s'), zk_semaphore_release('m/s');
SELECT zk_semaphore_acquire('m/s', 1) > 0 AS lease;
SELECT zk_lock_release_all();
SELECT zk_semaphore_release('m/s');
SELECT zk_semaphore_acquire('m/s', 1) > 0 AS lease;
DISCARD ALL;
SELECT zk_semaphore_release('m/s');
-- given back in a transaction that writes, and taken again
CREATE TABLE written (i int);
SELECT zk_semaphore_acquire('m/s', 1) AS token \gset
BEGIN;
INSERT INTO written VALUES (1);
SELECT zk_semaphore_release('m/s');
SELECT zk_semaphore_acquire('m/s', 1) = :token AS same;
COMMIT;
SELECT zk_semaphore_release('m/s');
DROP TABLE written;
