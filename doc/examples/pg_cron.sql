-- pg_cron.sql - a job that pg_cron starts on every server, and whose work is done once per tick.
--
-- A lock excludes, it does not remember. The lock alone is not enough here: of two servers whose clocks differ
-- by 300 ms, or of which one was slow, the second may come when the first is through, get the lock, and do
-- the same tick again. So the tick is a row, and its primary key remembers it. The row is written under the
-- fencing token, so that a holder that froze and is no holder any more cannot write it either.
--
-- pg_cron 1.5 or later for '2 seconds'; with '0 2 * * *' any version will do.

-- ---------------------------------------------------------------------
-- 1. Once, where the work is written to: here database "accounts" on ledger.example, role billing.
--    It may be one of the servers that run the job. It needs the extension, but neither its library
--    preloaded nor ZooKeeper.

CREATE EXTENSION IF NOT EXISTS zklock;
CREATE TABLE tick_done (tick timestamptz PRIMARY KEY, server text, fence_token bigint);
CREATE TABLE entry (tick timestamptz, what text, fence_token bigint);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON tick_done
	FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('billing/tick', 'fence_token');
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON entry
	FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('billing/tick', 'fence_token');
GRANT SELECT, INSERT, UPDATE ON tick_done, entry TO billing;

-- ---------------------------------------------------------------------
-- 2. On every server that runs the job: shared_preload_libraries = 'zklock, pg_cron', in the database
--    that cron.database_name names.

CREATE EXTENSION IF NOT EXISTS zklock;
CREATE EXTENSION IF NOT EXISTS pg_cron;
CREATE EXTENSION IF NOT EXISTS postgres_fdw;
CREATE SERVER ledger FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'ledger.example', dbname 'accounts');
CREATE USER MAPPING FOR CURRENT_USER SERVER ledger OPTIONS (user 'billing');
IMPORT FOREIGN SCHEMA public LIMIT TO (tick_done, entry) FROM SERVER ledger INTO public;

-- The work. What it writes belongs to the same transaction as the row in tick_done.
CREATE FUNCTION bill(due timestamptz, token bigint) RETURNS void LANGUAGE sql AS $$
	INSERT INTO entry VALUES (due, 'billed', token);
$$;

CREATE FUNCTION bill_tick() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	-- for a nightly job: date_trunc('day', now())
	due timestamptz := date_bin('2 seconds', now(), '2000-01-01');
	token bigint := zk_xact_lock_try_acquire('billing/tick');
BEGIN
	IF token IS NULL THEN
		RAISE LOG 'tick %: another server is at it, skipped', due;
		RETURN 'skipped';
	END IF;
	INSERT INTO tick_done VALUES (due, current_setting('zklock.server_name'), token) ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		RAISE LOG 'tick %: it was done before', due;
		RETURN 'done before';
	END IF;
	PERFORM bill(due, token);
	RAISE LOG 'tick %: done', due;
	RETURN 'done';
END $$;

SELECT cron.schedule('billing', '2 seconds', 'SELECT bill_tick()');
