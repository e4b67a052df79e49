-- How people call the functions: in WHERE, with other types than these, in PL/pgSQL.
SET client_min_messages = warning;
CREATE TABLE tasks (name text, ready boolean, priority integer);
INSERT INTO tasks VALUES ('calls/1', false, 1), ('calls/2', true, 2), ('calls/3', true, 3);

-- where it stands in the text does not matter: what costs nothing is looked at first
EXPLAIN (COSTS OFF)
SELECT name FROM tasks WHERE zk_lock_try_acquire(name) IS NOT NULL AND ready AND lower(name) ~ '^calls';
EXPLAIN (COSTS OFF)
SELECT name FROM tasks WHERE zk_xact_lock_try_acquire(name) IS NOT NULL AND ready;
EXPLAIN (COSTS OFF)
SELECT name FROM tasks WHERE zk_semaphore_try_acquire(name, 1) IS NOT NULL AND ready;
EXPLAIN (COSTS OFF)
SELECT name FROM tasks WHERE zk_lock_acquire(name) > 0 AND ready;
SELECT name FROM tasks WHERE zk_lock_try_acquire(name) IS NOT NULL AND ready ORDER BY name;
SELECT name FROM zk_locks WHERE state = 'held' AND pid = pg_backend_pid() ORDER BY name;
SELECT zk_lock_release_all();
-- below LIMIT a condition is asked for row by row, and stops in time; in the list of what is
-- selected it is asked after ORDER BY and LIMIT
SELECT name FROM tasks WHERE zk_lock_try_acquire(name) IS NOT NULL AND ready LIMIT 1;
SELECT zk_lock_release_all();
SELECT zk_lock_try_acquire(name) IS NOT NULL AS taken FROM tasks ORDER BY priority DESC LIMIT 1;
SELECT name FROM zk_locks WHERE state = 'held' AND pid = pg_backend_pid() ORDER BY name;
SELECT zk_lock_release_all();
DROP TABLE tasks;

-- an interval is no number, and a name is text
SELECT zk_lock_acquire('calls', timeout => 5);
SELECT zk_lock_acquire('calls', timeout => '5') > 0 AS seconds;
SELECT zk_lock_acquire('calls', timeout => make_interval(secs => 5)) > 0 AS seconds;
SELECT zk_lock_acquire(42);
SELECT zk_lock_acquire(42::text) > 0 AS number, zk_lock_acquire('customer/' || 42) > 0 AS number;
SELECT zk_lock_acquire('0f8fad5b-d9cb-469f-a165-70867728950e'::uuid);
SELECT zk_lock_acquire('0f8fad5b-d9cb-469f-a165-70867728950e'::uuid::text) > 0 AS uuid;
SELECT zk_lock_release_all();

-- a token is no boolean: IF fails, when the lock is taken already
\set VERBOSITY sqlstate
DO $$ BEGIN IF zk_lock_try_acquire('calls') THEN END IF; END $$;
\set VERBOSITY default
SELECT zk_lock_is_held('calls');
SELECT zk_lock_release('calls');
DO $$ BEGIN IF zk_lock_try_acquire('calls') IS NOT NULL THEN PERFORM zk_lock_release('calls'); END IF; END $$;
SELECT zk_lock_is_held('calls');
