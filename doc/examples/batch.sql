-- batch.sql - a batch of several transactions that only one of several servers runs at a time.
--
--	psql -X -f batch.sql jobs
--
-- Exit code 0: done, or skipped because it is running already (which is said on standard error).
-- Exit code 3: an error; in particular ZK001, the lock was lost on the way: what was not committed before is
-- not committed. Exit code 2: the connection was lost. In these cases, run it again. The end of the connection gives the
-- lock back.
--
-- Each step must leave a state from which the batch can begin again: after a loss the steps before it
-- stay committed.

\set ON_ERROR_STOP on
\set QUIET on
\pset tuples_only on

-- \gset leaves the variable unset when the lock is taken
SELECT zk_lock_try_acquire('billing/batch') AS token \gset
\if :{?token}
\else
	\warn batch: another server is at it, skipped
	\quit
\endif

-- A statement of its own took the lock, so what follows sees all that the holder before has committed.
BEGIN;
UPDATE account SET balance = balance + due, due = 0 WHERE due <> 0;
COMMIT;

BEGIN;
INSERT INTO statement SELECT id, balance, :token FROM account;
COMMIT;

SELECT zk_lock_release('billing/batch') AS released \gset
\echo batch: done under token :token
