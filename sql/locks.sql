-- Taking and giving back, alone. Tokens differ from run to run, so they are
-- compared and not shown.
SET client_min_messages = warning;

-- backend-level: stacks, survives rollback, same token
SELECT zk_lock_acquire('a') AS token \gset
SELECT zk_lock_acquire('a') = :token AS same_token;
SELECT zk_fencing_token('a') = :token AS same_token;
BEGIN;
SELECT zk_lock_try_acquire('a') = :token AS same_token;
ROLLBACK;
SELECT zk_lock_is_held('a');
SELECT zk_lock_release('a'), zk_lock_release('a'), zk_lock_is_held('a');
SELECT zk_lock_release('a'), zk_lock_is_held('a');
SELECT zk_lock_release('a');
SELECT zk_fencing_token('a');
SELECT zk_lock_acquire('a') > :token AS higher_token;
SELECT zk_lock_release('a', 'exclusive');
SELECT zk_lock_release('a', 'exclusive');

-- transaction-level: goes at commit and at abort, is not released by hand
BEGIN;
SELECT zk_xact_lock_acquire('t') > 0 AS granted;
SELECT zk_xact_lock_try_acquire('t') = zk_fencing_token('t') AS again;
SELECT zk_lock_release('t');
SELECT zk_lock_is_held('t');
COMMIT;
SELECT zk_lock_is_held('t');
BEGIN;
SELECT zk_xact_lock_acquire('t') > 0 AS granted;
ROLLBACK;
SELECT zk_lock_is_held('t');
-- outside a block it is the statement's
SELECT zk_xact_lock_acquire('t') > 0 AS granted;
SELECT zk_lock_is_held('t');
-- in an aborted block it is gone at the end of the block
BEGIN;
SELECT zk_xact_lock_acquire('t') > 0 AS granted;
SELECT 1/0;
ROLLBACK;
SELECT zk_lock_is_held('t');

-- savepoints, as pg_advisory_xact_lock has them
BEGIN;
SAVEPOINT s1;
SELECT zk_xact_lock_acquire('s') > 0 AS granted;
SELECT zk_lock_acquire('b') > 0 AS granted;
ROLLBACK TO s1;
SELECT zk_lock_is_held('s') AS transaction_level, zk_lock_is_held('b') AS backend_level;
SELECT zk_xact_lock_acquire('s') > 0 AS granted;
RELEASE s1;
SELECT zk_lock_is_held('s') AS kept_by_the_parent;
SAVEPOINT s2;
SELECT zk_xact_lock_acquire('s') > 0 AS again;
ROLLBACK TO s2;
SELECT zk_lock_is_held('s') AS held_before_the_savepoint;
COMMIT;
SELECT zk_lock_is_held('s'), zk_lock_is_held('b');
SELECT zk_lock_release('b');
-- an exception block is a savepoint
DO $$
BEGIN
	BEGIN
		PERFORM zk_xact_lock_acquire('s');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE WARNING 'held after the block: %', zk_lock_is_held('s');
	END;
END $$;

-- both levels of one lock
BEGIN;
SELECT zk_xact_lock_acquire('both') AS token \gset
SELECT zk_lock_acquire('both') = :token AS same_token;
COMMIT;
SELECT zk_fencing_token('both') = :token AS still_held;
SELECT zk_lock_release('both');

-- a release in a transaction that wrote takes effect at its end
CREATE TABLE wrote (x int);
SELECT zk_lock_acquire('w') AS token \gset
BEGIN;
INSERT INTO wrote VALUES (1);
SELECT zk_lock_release('w');
SELECT zk_lock_is_held('w');
SELECT zk_lock_acquire('w') = :token AS taken_back;
SELECT zk_lock_release('w');
SELECT zk_lock_release('w');
COMMIT;
SELECT zk_lock_acquire('w') > :token AS new_token;
-- without a write it takes effect at once
SELECT zk_fencing_token('w') AS token \gset
BEGIN;
SELECT zk_lock_release('w');
SELECT zk_lock_acquire('w') > :token AS new_token;
COMMIT;
SELECT zk_lock_release_all();

-- all at once
SELECT zk_lock_acquire('r1') > 0, zk_lock_acquire('r1') > 0, zk_lock_acquire('r2') > 0;
SELECT zk_lock_release_all();
SELECT zk_lock_release_all();
SELECT zk_lock_acquire('r1') > 0 AS granted;
DISCARD ALL;
SELECT zk_lock_is_held('r1');
SET client_min_messages = warning;

-- PREPARE
BEGIN;
SELECT zk_xact_lock_acquire('p') > 0 AS granted;
PREPARE TRANSACTION 'p';
SELECT zk_lock_is_held('p');
SELECT zk_lock_acquire('p') > 0 AS granted;
BEGIN;
INSERT INTO wrote VALUES (2);
PREPARE TRANSACTION 'p';
SELECT zk_lock_release('p');

-- a snapshot that is older than the lock
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT zk_xact_lock_acquire('i1') > 0 AS granted;
SELECT zk_xact_lock_acquire('i2') > 0 AS only_one_warning;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT zk_xact_lock_acquire('i1') > 0 AS granted;
COMMIT;
SET default_transaction_isolation = 'repeatable read';
SELECT zk_lock_acquire('i1') > 0 AS alone_it_is_harmless;
RESET default_transaction_isolation;
SELECT zk_lock_release_all();

-- a writer's work is done under the lock, a loop takes it again and again
DO $$
DECLARE
	last bigint := 0;
	token bigint;
BEGIN
	FOR i IN 1..20 LOOP
		token := zk_lock_acquire('loop/no ' || i % 3);
		IF token <= last THEN
			RAISE WARNING 'token % after %', token, last;
		END IF;
		last := token;
		PERFORM zk_lock_release('loop/no ' || i % 3);
	END LOOP;
END $$;

-- a procedure that commits
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM zk_lock_acquire('procedure');
	FOR i IN 10..12 LOOP
		INSERT INTO wrote VALUES (i);
		COMMIT;
	END LOOP;
	PERFORM zk_lock_release('procedure');
END $$;
CALL work();
SELECT x, zk_lock_is_held('procedure') FROM wrote ORDER BY x;

-- rights: nothing is granted to everybody
CREATE ROLE zklock_nobody;
SET ROLE zklock_nobody;
SELECT zk_lock_acquire('a');
SELECT zk_lock_try_acquire('a');
SELECT zk_lock_release_all();
SELECT zk_fencing_token('a');
RESET ROLE;
DROP ROLE zklock_nobody;
DROP PROCEDURE work();
DROP TABLE wrote;

-- given back at backend level in a transaction that has written: whatever is rolled back to a
-- savepoint, the lock stays until the end
CREATE TABLE written (i int);
SELECT zk_lock_acquire('kept a') > 0 AS a, zk_lock_acquire('kept b') > 0 AS b, zk_lock_acquire('kept c') > 0 AS c;
BEGIN;
INSERT INTO written VALUES (1);
SAVEPOINT s;
SELECT zk_xact_lock_acquire('kept a') > 0 AS a, zk_lock_release('kept a');
SELECT zk_lock_release('kept b'), zk_xact_lock_acquire('kept b') > 0 AS b;
SELECT zk_xact_lock_acquire('kept c') > 0 AS c, zk_lock_release_all();
ROLLBACK TO s;
SELECT name, state FROM zk_locks WHERE name LIKE 'kept%' ORDER BY name;
COMMIT;
SELECT name FROM zk_locks WHERE name LIKE 'kept%' AND state <> 'releasing';
DROP TABLE written;
