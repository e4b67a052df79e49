-- Fencing tokens at the table, one connection. What several do to each other is
-- in test/t/05*.pl.
SET client_min_messages = warning;
\set VERBOSITY terse
-- A worker runs, so tokens must have been issued: let ZooKeeper count up to what
-- is used here.
DO $$
BEGIN
	FOR i IN 1..60 LOOP
		PERFORM zk_lock_acquire('count');
		PERFORM zk_lock_release('count');
	END LOOP;
END $$;

-- An error's parts, with what differs from run to run left out.
CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'passed';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	detail := regexp_replace(detail, 'user "[^"]*"', 'user "..."');
	detail := regexp_replace(detail, 'process \d+', 'process NNN');
	detail := regexp_replace(detail, 'client [0-9.:]+, ', '');
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || message, 'detail: ' || nullif(detail, ''),
					 'hint: ' || nullif(hint, ''));
END $$;
\pset format unaligned
\pset tuples_only on

-- zk_fence_check: higher advances, equal passes, lower is refused
SELECT zk_fence_check('r', 11);
SELECT zk_fence_check('r', 11);
SELECT zk_fence_check('r', 12);
SELECT outcome($$SELECT zk_fence_check('r', 11)$$);
SELECT resource, token, advanced_at <= clock_timestamp(), presented_by LIKE 'user "%", application "pg_regress/fence",%process %'
FROM zk_fence WHERE resource = 'r';
-- resources have nothing to do with each other
SELECT zk_fence_check('r/other', 5);
SELECT resource, token FROM zk_fence WHERE resource LIKE 'r%' ORDER BY resource;
-- a rolled back mark never was
BEGIN;
SELECT zk_fence_check('r', 20);
ROLLBACK;
SELECT zk_fence_check('r', 12);

-- bad input
SELECT outcome('SELECT zk_fence_check(NULL, 12)');
SELECT outcome($$SELECT zk_fence_check('r', NULL)$$);
SELECT outcome('SELECT zk_fence_check(NULL, NULL)');
SELECT outcome($$SELECT zk_fence_check('r', 0)$$);
SELECT outcome($$SELECT zk_fence_check('r', -1)$$);
SELECT outcome($$SELECT zk_fence_check('r', '-9223372036854775808')$$);
SELECT regexp_replace(outcome($$SELECT zk_fence_check('r', 9223372036854775807)$$), 'up to \d+', 'up to NNN');
SELECT outcome($$SELECT zk_fence_check('', 12)$$);
SELECT outcome($$SELECT zk_fence_check('a//b', 12)$$);
SELECT outcome($$SELECT zk_fence_check(repeat('x', 256), 12)$$);
SELECT outcome('SELECT zk_fence_guard()');
SELECT outcome($$SELECT zk_fence_reset(NULL)$$);
SELECT outcome($$SELECT zk_fence_reset('r', NULL)$$);
SELECT outcome($$SELECT zk_fence_reset('r', -1)$$);
SELECT outcome($$SELECT zk_fence_reset('a//b')$$);
BEGIN READ ONLY;
SELECT zk_fence_check('r', 12);
ROLLBACK;
-- the number after the newest is no token either, until it is one
SELECT zk_lock_acquire('count') AS token \gset
SELECT outcome(format($$SELECT zk_fence_check('future', %s)$$, :token + 1000000)) LIKE '22023: fencing token % for "future" has never been issued%';
SELECT zk_fence_check('future', :token);
SELECT zk_lock_release('count');

-- the guard, for a statement: a token presented in this transaction
CREATE TABLE ledger (id int PRIMARY KEY, note text);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON ledger
	FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r');
SELECT outcome('INSERT INTO ledger VALUES (1)');
INSERT INTO ledger VALUES (1);
UPDATE ledger SET id = 1;
DELETE FROM ledger;
TRUNCATE ledger;
COPY ledger FROM stdin;
1	one
\.
MERGE INTO ledger USING (VALUES (1)) v (id) ON v.id = ledger.id WHEN NOT MATCHED THEN INSERT VALUES (v.id);
BEGIN;
SELECT zk_fence_check('r', 12);
INSERT INTO ledger VALUES (1), (2);
UPDATE ledger SET note = 'x';
DELETE FROM ledger WHERE id = 2;
TRUNCATE ledger;
COPY ledger FROM stdin;
1	one
\.
MERGE INTO ledger USING (VALUES (1), (2)) v (id) ON v.id = ledger.id
	WHEN MATCHED THEN UPDATE SET note = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (v.id);
INSERT INTO ledger VALUES (1, 'again') ON CONFLICT (id) DO UPDATE SET note = excluded.note;
COMMIT;
SELECT * FROM ledger ORDER BY id;
-- the first thing that a new backend does
\c -
INSERT INTO ledger VALUES (1);
TRUNCATE ledger;
SET client_min_messages = warning;
-- it goes with its transaction
INSERT INTO ledger VALUES (3);
-- another resource's does not count
BEGIN;
SELECT zk_fence_check('r/other', 5);
INSERT INTO ledger VALUES (3);
ROLLBACK;
-- a newer one in the same transaction replaces it; the older is stale from then on
BEGIN;
SELECT zk_fence_check('r', 12);
SELECT zk_fence_check('r', 13);
INSERT INTO ledger VALUES (3);
SELECT zk_fence_check('r', 12);
ROLLBACK;
SELECT token FROM zk_fence WHERE resource = 'r';

-- the guard, for a statement: the lock that this backend holds
SELECT zk_lock_acquire('r') AS token \gset
INSERT INTO ledger VALUES (4);
SELECT token = :token AS advanced_by_the_lock FROM zk_fence WHERE resource = 'r';
-- which comes before a token that was presented
BEGIN;
SELECT zk_fence_check('r', :token);
INSERT INTO ledger VALUES (5);
COMMIT;
BEGIN;
INSERT INTO ledger VALUES (6);
SELECT zk_lock_release('r');
INSERT INTO ledger VALUES (7);
ROLLBACK;
SELECT outcome('INSERT INTO ledger VALUES (6)');
-- a fence that is ahead of the lock: a token from elsewhere was newer
SELECT zk_lock_acquire('r') AS token \gset
SELECT zk_lock_acquire('count') AS newer \gset
SELECT zk_lock_release('count');
SELECT zk_fence_check('r', :newer);
SELECT replace(replace(outcome('INSERT INTO ledger VALUES (6)'), :'token', 'OLD'), :'newer', 'NEW');
SELECT zk_lock_release('r');
SELECT zk_fence_reset('r', 12);
SELECT token, presented_by LIKE 'reset by user "%' FROM zk_fence WHERE resource = 'r';
SELECT id FROM ledger ORDER BY id;

-- savepoints: what presented the token is rolled back, so it is forgotten
BEGIN;
SAVEPOINT s;
SELECT zk_fence_check('r', 14);
INSERT INTO ledger VALUES (10);
ROLLBACK TO s;
INSERT INTO ledger VALUES (11);
ROLLBACK;
-- presented before the savepoint: valid again after it
BEGIN;
SELECT zk_fence_check('r', 14);
SAVEPOINT s;
SELECT zk_fence_check('r', 15);
INSERT INTO ledger VALUES (12);
ROLLBACK TO s;
INSERT INTO ledger VALUES (13);
SELECT token FROM zk_fence WHERE resource = 'r';
-- presented in a savepoint that was released: the parent's, until that goes too
SAVEPOINT outer_one;
SAVEPOINT inner_one;
SELECT zk_fence_check('r', 16);
RELEASE inner_one;
INSERT INTO ledger VALUES (14);
SELECT token FROM zk_fence WHERE resource = 'r';
ROLLBACK TO outer_one;
SELECT token FROM zk_fence WHERE resource = 'r';
SELECT zk_fence_check('r', 14);
COMMIT;
-- the lock held, and the pass rolled back: the row must be advanced again
SELECT zk_lock_acquire('r') AS token \gset
BEGIN;
SAVEPOINT s;
INSERT INTO ledger VALUES (15);
ROLLBACK TO s;
SELECT token < :token AS rolled_back FROM zk_fence WHERE resource = 'r';
INSERT INTO ledger VALUES (16);
COMMIT;
SELECT token = :token AS advanced FROM zk_fence WHERE resource = 'r';
SELECT zk_lock_release('r');
SELECT zk_fence_reset('r', 12);
-- an exception block is a savepoint, many of them leave nothing behind
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		BEGIN
			PERFORM zk_fence_check('r', 14);
			PERFORM zk_fence_check('loop/n' || i % 10, 14);
			IF i % 2 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	INSERT INTO ledger VALUES (17);
END $$;
SELECT count(*), min(token), max(token) FROM zk_fence WHERE resource LIKE 'loop/%';
SELECT id FROM ledger WHERE id >= 10 ORDER BY id;

-- a reset is no presentation, and takes away the pass of this transaction
BEGIN;
SELECT zk_fence_check('r', 14);
SELECT zk_fence_reset('r', 20);
INSERT INTO ledger VALUES (18);
ROLLBACK;
SELECT zk_fence_reset('r');
SELECT zk_fence_check('r', 1);
SELECT zk_fence_check('r', 12);
SELECT zk_fence_reset('never/seen', 30);
SELECT outcome($$SELECT zk_fence_check('never/seen', 29)$$) LIKE 'ZK002%';

-- the guard, for a row: with a column
CREATE TABLE inbox (id int PRIMARY KEY, body text, fence_token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON inbox
	FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('in', 'fence_token');
INSERT INTO inbox VALUES (1, 'a', 21), (2, 'b', 21);
INSERT INTO inbox VALUES (3, 'c', 20);
INSERT INTO inbox VALUES (3, 'c', 22), (4, 'd', 21);
SELECT outcome($$INSERT INTO inbox VALUES (3, 'c', 20)$$);
SELECT outcome($$INSERT INTO inbox VALUES (3, 'c')$$);
SELECT outcome($$INSERT INTO inbox VALUES (3, 'c', 0)$$);
SELECT outcome($$UPDATE inbox SET body = 'x' WHERE id = 1$$);
UPDATE inbox SET body = 'x', fence_token = 21 WHERE id = 1;
UPDATE inbox SET body = 'y', fence_token = 20 WHERE id = 1;
UPDATE inbox SET fence_token = fence_token + 1 WHERE id = 2;
INSERT INTO inbox VALUES (1, 'z', 22) ON CONFLICT (id) DO UPDATE SET body = excluded.body;
INSERT INTO inbox VALUES (1, 'z', 22) ON CONFLICT (id) DO UPDATE SET body = excluded.body, fence_token = excluded.fence_token;
COPY inbox FROM stdin;
5	e	23
6	f	22
\.
COPY inbox FROM stdin;
5	e	23
6	f	23
\.
MERGE INTO inbox USING (VALUES (1), (7)) v (id) ON v.id = inbox.id
	WHEN MATCHED THEN UPDATE SET body = 'merged', fence_token = 24
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'merged', 24);
MERGE INTO inbox USING (VALUES (1)) v (id) ON v.id = inbox.id
	WHEN MATCHED THEN UPDATE SET body = 'merged again';
-- what one of the actions sets counts as set by the other: there the stored token decides
MERGE INTO inbox USING (VALUES (1), (2)) v (id) ON v.id = inbox.id
	WHEN MATCHED AND v.id = 1 THEN UPDATE SET fence_token = 24
	WHEN MATCHED THEN UPDATE SET body = 'merged';
SELECT * FROM inbox ORDER BY id;
-- the row's token is no presentation for other tables
BEGIN;
INSERT INTO inbox VALUES (8, 'g', 24);
CREATE TABLE other (x int);
CREATE TRIGGER guard BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('in');
INSERT INTO other VALUES (1);
ROLLBACK;

-- the guard, for a row: without a column, each operation
CREATE TABLE line (x int);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON line
	FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r');
INSERT INTO line SELECT generate_series(1, 3);
BEGIN;
SELECT zk_fence_check('r', 12);
INSERT INTO line SELECT generate_series(1, 3);
UPDATE line SET x = x + 1;
DELETE FROM line WHERE x = 2;
COMMIT;
SELECT x FROM line ORDER BY x;
DELETE FROM line;
-- no row, no check: that is what FOR EACH STATEMENT is for
DELETE FROM line WHERE false;
-- AFTER does as well, also when it is deferred
CREATE TABLE later (x int);
CREATE CONSTRAINT TRIGGER guard AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r');
BEGIN;
INSERT INTO later VALUES (1);
COMMIT;
BEGIN;
INSERT INTO later VALUES (1);
SELECT zk_fence_check('r', 12);
COMMIT;
SELECT x FROM later;

-- triggers that cannot work
CREATE FUNCTION guard_outcome(definition text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE 'CREATE TABLE bad (id int, token bigint, word text, small int)';
	EXECUTE 'CREATE VIEW bad_view AS SELECT DISTINCT id FROM bad';
	EXECUTE 'INSERT INTO bad VALUES (1, 12)';
	EXECUTE 'CREATE TRIGGER guard ' || definition;
	result := outcome(statement);
	EXECUTE 'DROP TABLE bad CASCADE';
	RETURN result;
END $$;
SELECT guard_outcome('BEFORE INSERT ON bad FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard()', 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token', 'x')$$, 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('')$$, 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'tokem')$$, 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'word')$$, 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'small')$$, 'INSERT INTO bad VALUES (1)');
SELECT guard_outcome($$BEFORE INSERT ON bad FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r', 'token')$$, 'INSERT INTO bad VALUES (1, 12)');
SELECT guard_outcome($$BEFORE TRUNCATE ON bad FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r', 'token')$$, 'TRUNCATE bad');
SELECT guard_outcome($$BEFORE DELETE ON bad FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token')$$, 'DELETE FROM bad');
SELECT guard_outcome($$INSTEAD OF INSERT ON bad_view FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r')$$, 'INSERT INTO bad_view VALUES (1)');
CREATE TABLE computed (id int, token bigint GENERATED ALWAYS AS (12) STORED);
CREATE TRIGGER guard BEFORE INSERT ON computed FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token');
SELECT outcome('INSERT INTO computed VALUES (1)');
DROP TABLE computed;
-- a domain over bigint is a bigint
CREATE DOMAIN token AS bigint CHECK (VALUE > 0);
CREATE TABLE with_domain (token token);
CREATE TRIGGER guard BEFORE INSERT ON with_domain FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token');
INSERT INTO with_domain VALUES (12);
INSERT INTO with_domain VALUES (11);
DROP TABLE with_domain;
DROP DOMAIN token;

-- partitions: row triggers are theirs too, with columns in another place
CREATE TABLE parted (k int, dropped int, fence_token bigint) PARTITION BY LIST (k);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('p', 'fence_token');
CREATE TABLE parted_1 (fence_token bigint, dropped int, k int);
ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
INSERT INTO parted VALUES (1, 0, 31), (2, 0, 32);
INSERT INTO parted VALUES (1, 0, 31);
INSERT INTO parted_1 VALUES (31, 0, 1);
INSERT INTO parted_1 VALUES (32, 0, 1);
UPDATE parted SET k = 2 WHERE k = 1;
UPDATE parted SET k = 2, fence_token = 33 WHERE k = 1;
SELECT tableoid::regclass, k, fence_token FROM parted ORDER BY fence_token;
DROP TABLE parted;

-- foreign keys: what a cascade writes is guarded as anything else
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE column_child (id int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE, token bigint);
INSERT INTO parent VALUES (1), (2), (3);
INSERT INTO child VALUES (1), (2);
INSERT INTO column_child VALUES (3, 12);
CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON child FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r');
CREATE TRIGGER guard BEFORE UPDATE ON column_child FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token');
DELETE FROM parent WHERE id = 1;
UPDATE parent SET id = 4 WHERE id = 2;
BEGIN;
SELECT zk_fence_check('r', 12);
DELETE FROM parent WHERE id = 1;
UPDATE parent SET id = 4 WHERE id = 2;
COMMIT;
SELECT * FROM child;
-- a cascade sets no token column, so such a child refuses it
UPDATE parent SET id = 5 WHERE id = 3;
DELETE FROM parent WHERE id = 3;
DROP TABLE parent, child, column_child;

-- session_replication_role: as with every trigger
SET session_replication_role = replica;
INSERT INTO ledger VALUES (20);
ALTER TABLE ledger ENABLE ALWAYS TRIGGER guard;
INSERT INTO ledger VALUES (21);
RESET session_replication_role;
INSERT INTO ledger VALUES (21);
SELECT id FROM ledger WHERE id >= 20;

-- two phases: the mark is the prepared transaction's until it ends
BEGIN;
SELECT zk_fence_check('two', 21);
PREPARE TRANSACTION 'fence';
SET lock_timeout = '20ms';
SELECT outcome($$SELECT zk_fence_check('two', 22)$$);
RESET lock_timeout;
COMMIT PREPARED 'fence';
SELECT outcome($$SELECT zk_fence_check('two', 20)$$) LIKE 'ZK002%';

-- rights: the writer has none on zk_fence and may call none of the functions
CREATE ROLE zklock_writer;
CREATE SCHEMA decoy;
GRANT ALL ON SCHEMA decoy TO zklock_writer;
GRANT ALL ON inbox, ledger TO zklock_writer;
SET ROLE zklock_writer;
INSERT INTO inbox VALUES (30, 'writer', 25);
INSERT INTO inbox VALUES (31, 'writer', 24);
SELECT * FROM zk_fence;
UPDATE zk_fence SET token = 0;
DELETE FROM zk_fence;
SELECT zk_fence_check('r', 12);
SELECT zk_fence_reset('in');
CREATE TABLE decoy.mine (x int);
CREATE TRIGGER guard BEFORE INSERT ON decoy.mine FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r');
-- nor can it send them elsewhere
CREATE TABLE decoy.zk_fence (resource text, token bigint, advanced_at timestamptz, presented_by text);
CREATE FUNCTION decoy.eq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR decoy.= (LEFTARG = text, RIGHTARG = text, FUNCTION = decoy.eq);
CREATE FUNCTION decoy.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
SET search_path = decoy, public, pg_catalog;
INSERT INTO inbox VALUES (31, 'writer', 24);
INSERT INTO inbox VALUES (32, 'writer', 26);
CREATE TEMP TABLE zk_fence (LIKE decoy.zk_fence);
SET search_path = pg_temp, decoy, public;
INSERT INTO inbox VALUES (33, 'writer', 25);
SET row_security = off;
INSERT INTO inbox VALUES (33, 'writer', 27);
RESET row_security;
RESET search_path;
SELECT count(*) FROM decoy.zk_fence;
RESET ROLE;
DROP TABLE pg_temp.zk_fence;
DROP SCHEMA decoy CASCADE;
-- row security on zk_fence does not hide the mark
ALTER TABLE zk_fence ENABLE ROW LEVEL SECURITY;
ALTER TABLE zk_fence FORCE ROW LEVEL SECURITY;
SET ROLE zklock_writer;
INSERT INTO inbox VALUES (34, 'writer', 26);
INSERT INTO inbox VALUES (34, 'writer', 27);
RESET ROLE;
ALTER TABLE zk_fence NO FORCE ROW LEVEL SECURITY;
ALTER TABLE zk_fence DISABLE ROW LEVEL SECURITY;
-- with the right to present
GRANT EXECUTE ON FUNCTION zk_fence_check(text, bigint) TO zklock_writer;
SET ROLE zklock_writer;
BEGIN;
SELECT zk_fence_check('r', 12);
INSERT INTO ledger VALUES (35);
SELECT current_user = 'zklock_writer' AS user_is_unchanged;
COMMIT;
RESET ROLE;
SELECT resource, token FROM zk_fence WHERE resource IN ('in', 'r') ORDER BY resource;
REVOKE ALL ON FUNCTION zk_fence_check(text, bigint) FROM zklock_writer;
DROP OWNED BY zklock_writer;
DROP ROLE zklock_writer;

DROP TABLE ledger, inbox, line, later;
DROP FUNCTION guard_outcome(text, text);
DROP FUNCTION outcome(text);
