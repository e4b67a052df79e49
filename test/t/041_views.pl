# Seeing and operating: what the views say of each state of a lock, who may look, why a job
# waits on the other server, and what taking its lock away does.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node_a = zk_server('a', $zk, conf => "zklock.session_timeout = 4s\ndeadlock_timeout = 300ms\nlog_lock_waits = on\nzklock.max_locks = 100");
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1), conf => "deadlock_timeout = 300ms\nlog_lock_waits = on");

sub state_of { my ($node, $lock) = @_; return sql($node, "SELECT mode, scope, state FROM zk_locks WHERE name = '$lock' ORDER BY wait_start"); }

# Every state of a lock
my $a = ZkTest::Session->new($node_a, name => 'nightly');
my $b = ZkTest::Session->new($node_b, name => 'waiter');
my $token = $a->query(q{SELECT zk_lock_acquire('bill')});
is(state_of($node_a, 'bill'), 'exclusive|backend|held', 'held');
is(sql($node_a, q{SELECT pid = } . $a->backend . qq{, token = $token, database, application, ahead, acquired_at >= wait_start, lease_left > '1 s' FROM zk_locks WHERE name = 'bill'}),
	't|t|postgres|nightly||t|t', 'by whom, with which token, and for how long it is certain');
$a->query(q{BEGIN; SELECT zk_xact_lock_acquire('bill')});
is(state_of($node_a, 'bill'), 'exclusive|backend, transaction|held', 'at both levels');
$a->query('ROLLBACK');
is(state_of($node_a, 'bill'), 'exclusive|backend|held', 'and at one again');

my $log_b = -s $node_b->logfile;
$b->send(q{SELECT zk_lock_acquire('bill')});
poll_until(sub { sql($node_b, q{SELECT ahead FROM zk_locks WHERE name = 'bill'}) eq '1' }, 5) // die 'nobody waits';
is(state_of($node_b, 'bill'), 'exclusive|backend|waiting', 'waiting');

# Why is my job waiting?
is(sql($node_b, q{SELECT name, pid = } . $b->backend . q{, blocking_server, blocking_pid, blocking_username, blocking_application, blocking_for > waiting_for, command FROM zk_lock_blockers}),
	'bill|t|a|' . $a->backend . '|' . sql($node_a, 'SELECT current_user') . '|nightly|t|SELECT pg_terminate_backend(' . $a->backend . '); -- on server a',
	'one query says why it waits, and what ends that');
is(sql($node_a, q{SELECT position, holds, mode, server, pid, application FROM zk_lock_queue('bill')}),
	'1|t|exclusive|a|' . $a->backend . "|nightly\n2|f|exclusive|b|" . $b->backend . '|waiter', 'the queue, as both servers see it');
is(sql($node_a, q{SELECT count(*) FROM zk_lock_queue('nobody/uses/this')}), 0, 'an empty one');
ok(defined poll_until(sub { slurp_file($node_b->logfile, $log_b) =~
			/still waiting for lock "bill" after \d+ ms.*It is held by server "a", process \d+.*application "nightly"/s }, 5),
	'log_lock_waits: who waits for whom');

# Taking it away
my $log_a = -s $node_a->logfile;
$a->send('SELECT pg_sleep(60)');
my $start = time;
is(sql($node_b, q{SELECT zk_lock_break('bill')}), 'released', 'taken away: the holder let go when it was asked');
like($a->wait(2), qr/ZK001: lock "bill" is lost.*taken away by user ".*" of server "b"/s, 'its statement is cancelled, and says by whom');
like($b->wait(5), qr/^\d+$/, 'and the next one holds');
cmp_ok(time - $start, '<', 3, 'at once');
like(slurp_file($node_a->logfile, $log_a), qr/lock "bill" of process \d+ is lost.*taken away by user ".*" of server "b"/s, "in the holder's log");
like(slurp_file($node_b->logfile, $log_b), qr/lock "bill" was taken from "a" process \d+ by user ".*" of server "b": it let go/, 'and in that of the server where it was done');
like(slurp_file($node_b->logfile, $log_b), qr/acquired lock "bill" after \d+ ms/, 'which also says that the wait is over');
is(sql($node_a, q{SELECT state FROM zk_locks WHERE name = 'bill'}), 'lost', 'the loss is not acknowledged');
$a->query(q{SELECT zk_lock_release('bill')});
is(sql($node_a, q{SELECT count(*) FROM zk_locks WHERE name = 'bill'}), 0, 'and now it is');
is(sql($node_b, q{SELECT zk_lock_break('bill/nobody')}), 'free', 'nobody holds it');
is($b->query(q{SELECT zk_lock_break('bill')}) =~ /55000/ ? 1 : 0, 1, "one's own is released, not broken");
$b->query(q{SELECT zk_lock_release('bill')});

# A holder that does not hear may rely on its lock until its lease is over: so long it is left
# to it, whatever the patience.
sql($node_a, 'CREATE TABLE work (i int)');
$a->query(q{BEGIN; INSERT INTO work VALUES (1); SELECT zk_xact_lock_acquire('deaf')});
$zk->proxy(1, 'freeze');
$b->send(q{SELECT zk_lock_break('deaf', '300 ms')});
# ... or gone with the ZooKeeper session, but not before the holder's own deadline: the connection of one
# that is idle with an xid is ended by then
ok(defined poll_until(sub { $b->answered }, 10), 'one that does not hear');
is(sql($node_a, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $a->backend), '0', 'has ended before its lock is taken away');
like($b->wait(1), qr/^(?:deleted|released)$/, 'and then it is');
$zk->proxy(1, 'pass');
is(sql($node_a, 'SELECT count(*) FROM work'), 0, 'without its row');
$a->kill_client;
$a = ZkTest::Session->new($node_a);

# A foreign client's node
$zk->create(lock_directory('foreign'));
$zk->create(lock_directory('foreign') . '/x-lock-0000000001', '10.1.2.3');
is(sql($node_b, q{SELECT position, holds, server, pid FROM zk_lock_queue('foreign')}), '1|t|10.1.2.3|', 'a foreign client in the queue');
is(sql($node_b, q{SELECT zk_lock_break('foreign', '100 ms')}), 'deleted', 'which does not hear of it');
is($zk->get(lock_directory('foreign') . '/x-lock-0000000001'), undef, 'has no node any more');
$zk->delete(ROOT . '/foreign');

# Readers hold together, and semaphores have a queue each
my @readers = map { my $s = ZkTest::Session->new($_); $s->query(q{SELECT zk_lock_acquire('rw', 'read'), zk_semaphore_acquire('pool', 2)}); $s } $node_a, $node_b;
is(sql($node_a, q{SELECT string_agg(holds::text || mode || server, ' ' ORDER BY position) FROM zk_lock_queue('rw')}), 'trueread' . 'a trueread' . 'b', 'readers hold together');
is(sql($node_a, q{SELECT string_agg(holds::text || mode || server, ' ' ORDER BY position) FROM zk_lock_queue('pool/leases')}), 'truelease' . 'a truelease' . 'b', 'leases of a semaphore');
is(sql($node_a, q{SELECT mode, scope, state FROM zk_locks WHERE name = 'pool/leases'}), 'lease|backend|held', 'in zk_locks as well');
$b->send(q{SELECT zk_semaphore_acquire('pool', 2)});
ok(defined poll_until(sub { sql($node_b, q{SELECT count(*), min(name) FROM zk_lock_blockers}) eq '2|pool/leases' }, 5), 'who waits for a lease waits for all holders');
$_->quit foreach @readers;
like($b->wait(5), qr/^\d+$/, 'and gets it when one ends');
$b->query(q{SELECT zk_semaphore_release('pool')});

# Statistics
sql($node_a, 'SELECT zk_stats_reset()');
is(sql($node_a, q{SELECT count(*) FROM zk_lock_stats}), 0, 'reset');
$b->query(q{SELECT zk_lock_acquire('s')});
is(sql($node_a, q{SELECT zk_lock_try_acquire('s') IS NULL}), 't', 'a try');
my (undef, undef, $error) = $node_a->psql('postgres', q{SELECT zk_lock_acquire('s', timeout => '200 ms')});
like($error, qr/could not obtain/, 'a timeout');
$node_a->psql('postgres', q{SET statement_timeout = '200 ms'; SELECT zk_lock_acquire('s')});
$a->send(q{SELECT zk_lock_acquire('s')});
poll_until(sub { contenders($zk, 's') == 2 }, 5) // die 'nobody waits';
$b->query(q{SELECT pg_sleep(0.2), zk_lock_release('s')});
$a->wait(5);
$a->query(q{SELECT zk_lock_release('s'), zk_lock_acquire('s'), zk_lock_release('s')});
ok(defined poll_until(sub { sql($node_a, q{SELECT acquired, released, lost, busy, timed_out, cancelled, failed, waited, wait_time_max >= '0.2 s', wait_time >= wait_time_max,
	(SELECT sum(x) FROM unnest(wait_histogram) x), (SELECT sum(x) FROM unnest(hold_histogram) x) FROM zk_lock_stats WHERE name = 's'})
		eq '2|2|0|1|1|1|0|1|t|t|2|2' }, 5), 'what happened is counted') or diag sql($node_a, q{SELECT * FROM zk_lock_stats WHERE name = 's'});
is(sql($node_a, q{SELECT acquired, busy, timed_out, cancelled, names_forgotten FROM zk_lock_stats_total()}), '2|1|1|1|0', 'and in total');
sql($node_a, q{DO $$ BEGIN FOR i IN 1 .. 1500 LOOP PERFORM zk_lock_acquire('name ' || i), zk_lock_release('name ' || i); END LOOP; END $$});
is(sql($node_a, q{SELECT count(*) <= 1024 AND count(*) > 900 FROM zk_lock_stats}), 't', 'the table is bounded');
is(sql($node_a, q{SELECT acquired, names_forgotten > 0 FROM zk_lock_stats_total()}), '1502|t', 'the totals are not');

# The ZooKeeper session
is(sql($node_a, q{SELECT server_name, state, session_timeout, lease_left > '1 s', heartbeats > 0, connects > 0, node_bytes < node_bytes_limit, max_locks, trouble FROM zk_session}),
	'a|connected|00:00:04|t|t|t|t|100|', 'connected');
is(sql($node_a, q{SELECT coordinator_server FROM zk_session}), $zk->hosts(1), 'to which server');
like(sql($node_a, q{SELECT session_id FROM zk_session}), qr/^0x[0-9a-f]+$/, 'with which id');
$a->query(q{SELECT zk_lock_acquire('kept')});
$zk->proxy(1, 'refuse');
$zk->proxy(1, 'cut');
ok(defined poll_until(sub { sql($node_a, q{SELECT state, lease_left FROM zk_session}) eq 'connecting|00:00:00' }, 10), 'away: connecting, no lease');
is(sql($node_a, q{SELECT state, lease_left FROM zk_locks WHERE name = 'kept'}), 'lapsed|', 'a lock is lapsed');
$start = time;
(undef, undef, $error) = $node_a->psql('postgres', q{SELECT * FROM zk_lock_queue('kept')});
like($error, qr/ZK003|did not tell about lock "kept"/, 'and the queue cannot be asked for');
cmp_ok(time - $start, '<', 4, 'which it says in time');
ok(defined poll_until(sub { sql($node_a, q{SELECT expiries FROM zk_session}) >= 0 }, 1), 'the views answer all the same');
$zk->proxy(1, 'accept');
wait_for_lease($node_a);
is(sql($node_a, q{SELECT state FROM zk_session}), 'connected', 'connected again');

# Who may look
sql($node_a, q{CREATE ROLE nobody LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor});
foreach my $view ('zk_locks', 'zk_session', 'zk_lock_stats', 'zk_lock_blockers', q{zk_lock_queue('kept')})
{
	(undef, undef, $error) = $node_a->psql('postgres', "SELECT * FROM $view", extra_params => [ '-U', 'nobody' ]);
	like($error, qr/permission denied/, "$view is not for everybody");
	is($node_a->psql('postgres', "SELECT * FROM $view", extra_params => [ '-U', 'monitor' ]), 0, "$view is for pg_monitor");
}
foreach my $call (q{zk_lock_break('kept')}, 'zk_stats_reset()')
{
	(undef, undef, $error) = $node_a->psql('postgres', "SELECT $call", extra_params => [ '-U', 'monitor' ]);
	like($error, qr/permission denied/, "$call is not for pg_monitor");
}
is(sql($node_a, q{SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE relname LIKE 'zk\_%' AND relkind IN ('v', 'r') AND attnum > 0 AND col_description(c.oid, attnum) IS NULL}),
	0, 'every column has its comment');
is(sql($node_a, q{SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock' WHERE obj_description(p.oid, 'pg_proc') IS NULL}),
	0, 'every function too');

$node_a->stop;
$node_b->stop;
done_testing();
