/* zklock: the install script. Complain if it is run by psql and not by CREATE EXTENSION. */
\echo Use "CREATE EXTENSION zklock" to load this file. \quit

--
-- Locks. Nothing here is STRICT: a NULL must be an error and not a NULL, since
-- NULL is what the try functions return when the lock is taken. What waits for
-- ZooKeeper has a COST far above that of other functions, so that a condition beside
-- it in WHERE is looked at before a lock is taken.
--

CREATE FUNCTION zk_lock_acquire(name text, mode text DEFAULT 'exclusive', timeout interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

COMMENT ON FUNCTION zk_lock_acquire(text, text, interval) IS
'take a lock for this backend until it is released, waiting for it; returns the fencing token';

CREATE FUNCTION zk_lock_try_acquire(name text, mode text DEFAULT 'exclusive')
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

COMMENT ON FUNCTION zk_lock_try_acquire(text, text) IS
'take a lock for this backend if it is free now; returns the fencing token, or NULL when it is taken';

CREATE FUNCTION zk_xact_lock_acquire(name text, mode text DEFAULT 'exclusive', timeout interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_xact_lock_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

COMMENT ON FUNCTION zk_xact_lock_acquire(text, text, interval) IS
'take a lock until the end of the transaction, waiting for it; returns the fencing token';

CREATE FUNCTION zk_xact_lock_try_acquire(name text, mode text DEFAULT 'exclusive')
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_xact_lock_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

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
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

COMMENT ON FUNCTION zk_semaphore_acquire(text, integer, interval) IS
'take one of so many leases for this backend until it is released, waiting for it; returns a number that fences nothing';

CREATE FUNCTION zk_semaphore_try_acquire(name text, leases integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zkl_semaphore_try_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

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
	resource text COLLATE pg_catalog."C" PRIMARY KEY,
	token bigint NOT NULL CHECK (token OPERATOR(pg_catalog.>=) 0),
	advanced_at timestamptz NOT NULL,
	presented_by text NOT NULL,
	username text,
	client text,
	lower_xid xid8
) WITH (fillfactor = 50);

COMMENT ON TABLE zk_fence IS 'newest fencing token of each resource; zk_fence_check and zk_fence_guard advance it';
COMMENT ON COLUMN zk_fence.resource IS 'name of the resource, which is that of its lock';
COMMENT ON COLUMN zk_fence.token IS 'newest token that was presented; a lower one is refused';
COMMENT ON COLUMN zk_fence.advanced_at IS 'when it was presented first';
COMMENT ON COLUMN zk_fence.presented_by IS 'who presented it first';
COMMENT ON COLUMN zk_fence.username IS 'as which user';
COMMENT ON COLUMN zk_fence.client IS 'from which address; shown only to those to whom pg_stat_activity shows it';
COMMENT ON COLUMN zk_fence.lower_xid IS 'last transaction that had passed with a lower token: a newer writer must see what it wrote';

-- Marks are data: what was stale before a dump is stale after its restore.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.zk_fence'::pg_catalog.regclass, '');

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
'trigger that lets only the holder of the newest fencing token write: zk_fence_guard(resource [, token_column [, ''checked'']])';

CREATE FUNCTION zk_fence_reset(resource text, token bigint DEFAULT 0)
RETURNS void
AS 'MODULE_PATHNAME', 'zkl_fence_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_fence_reset(text, bigint) IS
'set the newest token of a resource, lower if need be: for operators, after the ZooKeeper ensemble was rebuilt';

--
-- Seeing and operating.
--

CREATE FUNCTION zk_locks(
	OUT name text, OUT mode text, OUT scope text, OUT state text, OUT pid integer,
	OUT database text, OUT username text, OUT application text, OUT token bigint, OUT node text,
	OUT ahead integer, OUT wait_start timestamptz, OUT acquired_at timestamptz, OUT lease_left interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zkl_locks_view'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION zk_locks() IS 'locks and semaphore leases that this server holds or waits for; see the view of the same name';

CREATE VIEW zk_locks AS SELECT * FROM @extschema@.zk_locks();

COMMENT ON VIEW zk_locks IS 'locks and semaphore leases that this server holds or waits for';
COMMENT ON COLUMN zk_locks.name IS 'name of the lock; a semaphore''s leases are below its name in /leases, its queue in /locks';
COMMENT ON COLUMN zk_locks.mode IS 'exclusive, read, write, or lease';
COMMENT ON COLUMN zk_locks.scope IS 'backend, transaction, or both';
COMMENT ON COLUMN zk_locks.state IS 'waiting; held; lapsed: ZooKeeper has not confirmed it in time; lost; releasing: given back, its node is being deleted';
COMMENT ON COLUMN zk_locks.pid IS 'backend that holds it or waits for it, as in pg_stat_activity';
COMMENT ON COLUMN zk_locks.database IS 'its database';
COMMENT ON COLUMN zk_locks.username IS 'its user';
COMMENT ON COLUMN zk_locks.application IS 'its application_name when it asked';
COMMENT ON COLUMN zk_locks.token IS 'fencing token, while it is held; those of read locks and leases fence nothing';
COMMENT ON COLUMN zk_locks.node IS 'name of its node in ZooKeeper, if it has one';
COMMENT ON COLUMN zk_locks.ahead IS 'how many were to be waited for, when the queue was last seen';
COMMENT ON COLUMN zk_locks.wait_start IS 'when it was asked for';
COMMENT ON COLUMN zk_locks.acquired_at IS 'when it was granted';
COMMENT ON COLUMN zk_locks.lease_left IS 'how long it stays certain if nothing more is heard of ZooKeeper; the same for all locks of the server';

CREATE FUNCTION zk_session(
	OUT server_name text, OUT state text, OUT worker_pid integer, OUT coordinator text,
	OUT coordinator_server text,
	OUT session_id text, OUT session_timeout interval, OUT lease_left interval,
	OUT last_heartbeat timestamptz, OUT heartbeat_round_trip interval, OUT heartbeats bigint,
	OUT heartbeat_failures bigint, OUT connects bigint, OUT expiries bigint, OUT lapses bigint,
	OUT requests bigint, OUT requests_in_flight bigint, OUT locks_used integer, OUT max_locks integer,
	OUT node_bytes bigint, OUT node_bytes_limit bigint, OUT watch_bytes bigint,
	OUT watch_bytes_limit bigint, OUT trouble text)
RETURNS record
AS 'MODULE_PATHNAME', 'zkl_session_view'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION zk_session() IS 'this server''s session and its lease; see the view of the same name';

CREATE VIEW zk_session AS SELECT * FROM @extschema@.zk_session();

COMMENT ON VIEW zk_session IS 'this server''s session and its lease, one row';
COMMENT ON COLUMN zk_session.server_name IS 'zklock.server_name';
COMMENT ON COLUMN zk_session.state IS 'connected, connecting, or no worker';
COMMENT ON COLUMN zk_session.worker_pid IS 'process that holds the session';
COMMENT ON COLUMN zk_session.coordinator IS 'what keeps the locks: ZooKeeper';
COMMENT ON COLUMN zk_session.coordinator_server IS 'address of the server of it that the worker is connected to';
COMMENT ON COLUMN zk_session.session_id IS 'id of the session, as the coordinator knows it';
COMMENT ON COLUMN zk_session.session_timeout IS 'timeout that was negotiated; may differ from zklock.session_timeout';
COMMENT ON COLUMN zk_session.lease_left IS 'how long this server''s locks stay certain if nothing more is heard of the coordinator';
COMMENT ON COLUMN zk_session.last_heartbeat IS 'when the latest acknowledged heartbeat was sent';
COMMENT ON COLUMN zk_session.heartbeat_round_trip IS 'how long its acknowledgement took';
COMMENT ON COLUMN zk_session.heartbeats IS 'acknowledged heartbeats since the server started';
COMMENT ON COLUMN zk_session.heartbeat_failures IS 'heartbeats that were not acknowledged';
COMMENT ON COLUMN zk_session.connects IS 'connections to the coordinator';
COMMENT ON COLUMN zk_session.expiries IS 'sessions that ended, and all locks with them';
COMMENT ON COLUMN zk_session.lapses IS 'times that the lease ran out and was current again';
COMMENT ON COLUMN zk_session.requests IS 'requests of this worker process to the coordinator';
COMMENT ON COLUMN zk_session.requests_in_flight IS 'those without an answer yet';
COMMENT ON COLUMN zk_session.locks_used IS 'entries of the table that are in use';
COMMENT ON COLUMN zk_session.max_locks IS 'how many there are: zklock.max_locks';
COMMENT ON COLUMN zk_session.node_bytes IS 'size of the paths of all nodes of the session';
COMMENT ON COLUMN zk_session.node_bytes_limit IS 'beyond it a lock gets error 54000';
COMMENT ON COLUMN zk_session.watch_bytes IS 'size of the paths of all watches';
COMMENT ON COLUMN zk_session.watch_bytes_limit IS 'beyond it a lock gets error 54000';
COMMENT ON COLUMN zk_session.trouble IS 'what keeps the worker from having a lease';

CREATE FUNCTION zk_lock_stats(
	OUT name text, OUT acquired bigint, OUT released bigint, OUT lost bigint, OUT busy bigint,
	OUT timed_out bigint, OUT cancelled bigint, OUT failed bigint, OUT waited bigint,
	OUT wait_time interval, OUT wait_time_max interval, OUT hold_time interval, OUT hold_time_max interval,
	OUT wait_histogram bigint[], OUT hold_histogram bigint[], OUT last_use timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zkl_lock_stats_view'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION zk_lock_stats() IS 'what happened to locks on this server; see the view of the same name';

CREATE VIEW zk_lock_stats AS SELECT * FROM @extschema@.zk_lock_stats();

COMMENT ON VIEW zk_lock_stats IS 'what happened to each lock on this server, for about a thousand names; those unused for longest are forgotten first';
COMMENT ON COLUMN zk_lock_stats.name IS 'name of the lock';
COMMENT ON COLUMN zk_lock_stats.acquired IS 'grants';
COMMENT ON COLUMN zk_lock_stats.released IS 'holds that were given back, or ended with their connection';
COMMENT ON COLUMN zk_lock_stats.lost IS 'holds that were lost; counted in released as well when their owner let go';
COMMENT ON COLUMN zk_lock_stats.busy IS 'tries that found it taken';
COMMENT ON COLUMN zk_lock_stats.timed_out IS 'waits that ended with a timeout';
COMMENT ON COLUMN zk_lock_stats.cancelled IS 'waits that ended with a cancel or with the connection';
COMMENT ON COLUMN zk_lock_stats.failed IS 'requests that the coordinator, or a limit, refused';
COMMENT ON COLUMN zk_lock_stats.waited IS 'grants that had to wait for somebody';
COMMENT ON COLUMN zk_lock_stats.wait_time IS 'time from requests to grants, in total';
COMMENT ON COLUMN zk_lock_stats.wait_time_max IS 'the longest';
COMMENT ON COLUMN zk_lock_stats.hold_time IS 'time from grants to releases, in total';
COMMENT ON COLUMN zk_lock_stats.hold_time_max IS 'the longest';
COMMENT ON COLUMN zk_lock_stats.wait_histogram IS 'grants by the time they took: below 1 ms, 10 ms, 100 ms, 1 s, 10 s, 100 s, and above';
COMMENT ON COLUMN zk_lock_stats.hold_histogram IS 'holds by their length, likewise';
COMMENT ON COLUMN zk_lock_stats.last_use IS 'when something was last counted';

CREATE FUNCTION zk_lock_stats_total(
	OUT acquired bigint, OUT released bigint, OUT lost bigint, OUT busy bigint,
	OUT timed_out bigint, OUT cancelled bigint, OUT failed bigint,
	OUT names_forgotten bigint, OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'zkl_lock_stats_total'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION zk_lock_stats_total() IS
'the sums of zk_lock_stats, with the names that it forgot; and since when it counts';

CREATE FUNCTION zk_stats_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'zkl_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION zk_stats_reset() IS 'set the statistics of locks to zero';

CREATE FUNCTION zk_lock_queue(
	name text,
	OUT "position" integer, OUT holds boolean, OUT mode text, OUT server text, OUT pid integer,
	OUT database text, OUT username text, OUT application text, OUT asked_at timestamptz,
	OUT token bigint, OUT session text, OUT node text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zkl_lock_queue'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 10;

COMMENT ON FUNCTION zk_lock_queue(text) IS
'who holds a lock and who waits for it on all servers, as ZooKeeper says; for a semaphore append /leases or /locks to its name';

CREATE VIEW zk_lock_blockers AS
	SELECT w.name, w.mode, w.pid, w.username, w.application,
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) w.wait_start AS waiting_for,
		b.server AS blocking_server, b.pid AS blocking_pid, b.database AS blocking_database,
		b.username AS blocking_username, b.application AS blocking_application, b.mode AS blocking_mode,
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) b.asked_at AS blocking_for,
		CASE WHEN b.pid IS NULL THEN pg_catalog.format('SELECT %s.zk_lock_break(%L::text, ''5 s''::interval);', '@extschema@', w.name)
			ELSE pg_catalog.format('SELECT pg_terminate_backend(%s); -- on server %s', b.pid, b.server)
		END AS command
	-- who waits for its turn at a semaphore waits for those who have the leases
	FROM @extschema@.zk_locks() w CROSS JOIN LATERAL
		@extschema@.zk_lock_queue(pg_catalog.regexp_replace(w.name, '/locks$', '/leases')) b
	WHERE w.state OPERATOR(pg_catalog.=) 'waiting' AND b.holds;

COMMENT ON VIEW zk_lock_blockers IS 'why do my jobs wait? for each wait on this server: who holds the lock, on which server, and what ends that';
COMMENT ON COLUMN zk_lock_blockers.name IS 'lock that is waited for';
COMMENT ON COLUMN zk_lock_blockers.mode IS 'in which mode';
COMMENT ON COLUMN zk_lock_blockers.pid IS 'backend that waits';
COMMENT ON COLUMN zk_lock_blockers.username IS 'its user';
COMMENT ON COLUMN zk_lock_blockers.application IS 'its application_name';
COMMENT ON COLUMN zk_lock_blockers.waiting_for IS 'for how long';
COMMENT ON COLUMN zk_lock_blockers.blocking_server IS 'server of the holder; of another client what its node says';
COMMENT ON COLUMN zk_lock_blockers.blocking_pid IS 'process id there, unless it is another client';
COMMENT ON COLUMN zk_lock_blockers.blocking_database IS 'database of the holder';
COMMENT ON COLUMN zk_lock_blockers.blocking_username IS 'its user';
COMMENT ON COLUMN zk_lock_blockers.blocking_application IS 'its application_name';
COMMENT ON COLUMN zk_lock_blockers.blocking_mode IS 'mode in which it holds the lock';
COMMENT ON COLUMN zk_lock_blockers.blocking_for IS 'time since it asked for the lock: it has held it at most that long';
COMMENT ON COLUMN zk_lock_blockers.command IS 'what ends the holder, and where';

CREATE FUNCTION zk_lock_break(name text, patience interval DEFAULT '5 s')
RETURNS text
AS 'MODULE_PATHNAME', 'zkl_lock_break'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;

COMMENT ON FUNCTION zk_lock_break(text, interval) IS
'take a lock away from its holder: asks, waits, then deletes its node; returns free, released or deleted';

-- A lock stops other people's work, so using one is a right to be granted; so is
-- presenting a token, since the ones before it are refused from then on. Whatever the
-- default privileges of this database gave to anybody, PUBLIC included, is taken back
-- from all that the extension has: who gets every new table or function by default must
-- not be able to lower a mark or to break a lock.
--
-- Here a superuser runs in a schema that may belong to somebody else. So every operator,
-- function, type and catalog is named with its schema, in this block above all: an
-- operator that was planted in the schema would run with a superuser's rights.
DO LANGUAGE plpgsql $$
DECLARE
	command pg_catalog.text;
BEGIN
	FOR command IN
		SELECT pg_catalog.format('REVOKE ALL ON TABLE %I.%I FROM %s CASCADE', n.nspname, c.relname,
			CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
				ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text) END)
		FROM pg_catalog.pg_depend d
			JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
			JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid
			JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
			CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
		WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
			AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
			AND d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
			AND e.extname OPERATOR(pg_catalog.=) 'zklock'::pg_catalog.name
			AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
		UNION
		SELECT pg_catalog.format('REVOKE ALL ON FUNCTION %I.%I(%s) FROM %s CASCADE', n.nspname, p.proname,
			pg_catalog.pg_get_function_identity_arguments(p.oid),
			CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
				ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::pg_catalog.text) END)
		FROM pg_catalog.pg_depend d
			JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
			JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
			JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
			CROSS JOIN LATERAL pg_catalog.aclexplode(
				coalesce(p.proacl, pg_catalog.acldefault('f'::pg_catalog."char", p.proowner))) a
		WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
			AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
			AND d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
			AND e.extname OPERATOR(pg_catalog.=) 'zklock'::pg_catalog.name
			AND a.grantee OPERATOR(pg_catalog.<>) p.proowner
	LOOP
		EXECUTE command;
	END LOOP;
END $$;

-- Who may see what everybody does may see this.
GRANT SELECT ON zk_locks, zk_session, zk_lock_stats, zk_lock_blockers TO pg_monitor;
GRANT EXECUTE ON FUNCTION zk_locks(), zk_session(), zk_lock_stats(), zk_lock_stats_total(),
	zk_lock_queue(text) TO pg_monitor;
