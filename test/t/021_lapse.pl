# A lapse is not a loss: while the lease is not current nothing commits; when the same
# ZooKeeper session comes back, idle backends have their locks again. A loss stays until
# it is acknowledged.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

# An unknown tick leaves the lease well short of the ZooKeeper session: room for a lapse
# that is over before the expiry.
my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => "zklock.session_timeout = 6s\nzklock.server_tick_time = 0");
my $log = $node->logfile;

$node->safe_psql('postgres', 'CREATE TABLE work (what text)');

# Wait for a line in the log from $offset on.
sub logged
{
	my ($pattern, $offset, $timeout) = @_;
	return defined poll_until(
		sub { PostgreSQL::Test::Utils::slurp_file($log, $offset) =~ $pattern }, $timeout // 15);
}

my $first_session = members($zk, 'a');

# One lapse, seen from all sides.
{
	my $idle = ZkTest::Session->new($node);
	my $doomed = ZkTest::Session->new($node);
	my $stopped = ZkTest::Session->new($node);
	my $reader = ZkTest::Session->new($node);
	my $token = $idle->query(q{SELECT zk_lock_acquire('idle')});
	$doomed->query(q{SET zklock.idle_loss = 'doom'; BEGIN; INSERT INTO work VALUES ('doomed'); SELECT zk_xact_lock_acquire('doomed')});
	$stopped->query(q{BEGIN; INSERT INTO work VALUES ('stopped'); SELECT zk_xact_lock_acquire('stopped')});
	$reader->query(q{SELECT zk_lock_acquire('reader'); BEGIN; SELECT count(*) FROM work});
	my $offset = -s $log;

	kill 'STOP', $stopped->backend;
	$zk->proxy(1, 'freeze');
	ok(logged(qr/lease lapsed, 4 held locks/, $offset), 'the lapse is in the log, with the number of locks');

	like($idle->query('SELECT 1'), qr/ZK001/, 'lapsed: a statement fails');
	like($idle->query(q{INSERT INTO work VALUES ('lapsed')}), qr/ZK001/, 'lapsed: so does a write');
	is($idle->query(q{SELECT zk_lock_is_held('idle')}), 'f', 'lapsed: one may ask');
	like($idle->query(q{SELECT zk_fencing_token('idle')}), qr/ZK001/, 'lapsed: there is no token');
	is($idle->query('BEGIN; SHOW zklock.idle_loss; ROLLBACK'), 'terminate', 'lapsed: transaction control and SHOW pass');
	my ($code, undef, $stderr) = $node->psql('postgres', q{SELECT zk_lock_try_acquire('new')});
	like($stderr, qr/could not reach ZooKeeper/, 'lapsed: nothing is granted');

	# to acquire again what one holds waits for the lease, and not for others
	$idle->send(q{SELECT zk_lock_acquire('idle')});
	$zk->proxy(1, 'pass');
	is($idle->wait(10), $token, 'acquired again: waits until it is certain, same token');
	ok(logged(qr/lease is current again, 4 held locks/, $offset), 'the recovery is in the log');
	is(members($zk, 'a'), $first_session, 'the ZooKeeper session is the same');

	is($idle->query(q{INSERT INTO work VALUES ('idle'); SELECT zk_fencing_token('idle')}), $token,
		'recovered: the idle backend goes on with its lock');
	like($doomed->query('COMMIT'), qr/ZK001/, 'recovered: a transaction that was open during the lapse does not commit');
	kill 'CONT', $stopped->backend;
	like($stopped->query('SELECT 1; COMMIT'), qr/ZK001|57P01/, 'recovered: not even one that was stopped all the time');
	like($reader->query('SELECT count(*) FROM work; COMMIT'), qr/ZK001/, 'recovered: nor one that only read');
	is($reader->query(q{SELECT zk_lock_is_held('reader')}), 't', 'but its lock is held on');
	is(rows($node, $_), 0, "no row: $_") foreach qw(doomed stopped lapsed);
	is(rows($node, 'idle'), 1, 'the row written after the recovery is there');
	$_->quit foreach $idle, $doomed, $stopped, $reader;
}

# Two outages, together longer than the lease, but neither alone: nothing happens.
{
	my $offset = -s $log;
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{BEGIN; INSERT INTO work VALUES ('twice'); SELECT zk_xact_lock_acquire('twice')});
	$holder->send('SELECT pg_sleep(6)');
	foreach (1, 2)
	{
		# exactly these lengths are what is tested
		$zk->proxy(1, 'freeze');
		sleep 1.9;
		$zk->proxy(1, 'pass');
		sleep 1.1;
	}
	unlike($holder->wait(10), qr/ERROR/, 'two short outages: the statement is not cancelled');
	unlike($holder->query('COMMIT'), qr/ERROR/, 'two short outages: it commits');
	is(rows($node, 'twice'), 1, 'two short outages: the row is there');
	unlike(PostgreSQL::Test::Utils::slurp_file($log, $offset), qr/lease lapsed/, 'two short outages: no lapse');
	$holder->quit;
}

# Lost and not acknowledged.
my $lock_number = 0;
sub acquire_and_lose
{
	my ($session) = @_;
	my $lock = 'lost ' . ++$lock_number;
	my $offset = -s $log;
	$session->query("SELECT zk_lock_acquire('$lock')");
	lose($zk, $lock);
	ok(logged(qr/lock "$lock" of process \d+ is lost.*Its node was deleted/s, $offset, 2), "$lock: the loss is in the log");
	return $lock;
}

{
	my $session = ZkTest::Session->new($node);
	my $lock = acquire_and_lose($session);
	like($session->query($_), qr/ZK001: lock "$lock" is lost.*Its node in ZooKeeper was deleted/s, "not acknowledged: fails: $_")
	  foreach 'SELECT 1', 'INSERT INTO work VALUES (1)', 'CREATE TABLE never (a int)', 'VALUES (1)',
	  "SELECT zk_lock_is_held('$lock') FROM generate_series(1, 2)", "SELECT zk_lock_is_held('$lock'), pg_backend_pid()",
	  "SELECT zk_lock_is_held(current_user::text)", 'EXPLAIN ANALYZE SELECT 1', 'DO $$ BEGIN END $$', 'PREPARE p AS SELECT 1',
	  '\lo_unlink 1', 'VACUUM work', 'COPY work TO STDOUT';
	unlike($session->query($_), qr/ERROR/, "not acknowledged: passes: $_")
	  foreach 'BEGIN; COMMIT', 'BEGIN; SAVEPOINT s; ROLLBACK TO s; RELEASE s; ROLLBACK', 'SET work_mem = 4096',
	  'RESET work_mem', 'SHOW work_mem', 'DEALLOCATE ALL', 'CLOSE ALL', "SELECT zk_lock_is_held('$lock')";
	like($session->query("SELECT zk_lock_release('$lock')"), qr/WARNING:  ZK001: .*had been lost.*\nf$/s, 'release: WARNING, false');
	is($session->query('SELECT 1'), 1, 'released: acknowledged');

	$lock = acquire_and_lose($session);
	like($session->query("SELECT zk_lock_acquire('$lock') > 0"), qr/ZK001/, 'an expression over it is not a direct call');
	like($session->query("SELECT zk_lock_acquire('$lock')"), qr/^\d+$/, 'acquired again: acknowledged');
	is($session->query('SELECT 1'), 1, 'and goes on');
	# to try to is not enough
	$lock = acquire_and_lose($session);
	my $other = ZkTest::Session->new($node);
	$other->query("SELECT zk_lock_acquire('$lock')");
	is($session->query("SELECT zk_lock_try_acquire('$lock')"), '', 'tried again, and taken');
	like($session->query('SELECT 1'), qr/ZK001/, 'a try that failed acknowledges nothing');
	like($session->query("SELECT zk_lock_acquire('$lock', timeout => '200 ms')"), qr/55P03/, 'waited for, in vain');
	like($session->query('SELECT 1'), qr/ZK001/, 'an acquire that failed acknowledges nothing');
	$other->quit;
	like($session->query("SELECT zk_xact_lock_acquire('$lock')"), qr/ZK001/, 'nor does one for the transaction');
	like($session->query("SELECT zk_lock_acquire('$lock', timeout => '5 s')"), qr/^\d+$/, 'acquired again in the end');
	is($session->query('SELECT 1'), 1, 'that acknowledges it');
	$session->query("SELECT zk_lock_release('$lock')");

	acquire_and_lose($session);
	is($session->query('SELECT zk_lock_release_all()'), 2, 'release_all: counts both');
	is($session->query('SELECT 1'), 1, 'release_all: acknowledged');
	acquire_and_lose($session);
	is($session->query('DISCARD ALL; SELECT 1'), 1, 'DISCARD ALL: acknowledged');

	# what was released or acquired again does not save the transaction that relied on it
	$session->query(q{SET zklock.idle_loss = 'doom'; BEGIN; INSERT INTO work VALUES ('relied')});
	$lock = acquire_and_lose($session);
	$session->query("SELECT zk_lock_release('$lock')");
	like($session->query('COMMIT; SELECT 1'), qr/ZK001|rolled back|^1$/s, 'released in the doomed transaction');
	is(rows($node, 'relied'), 0, 'which does not commit');
	$session->quit;
}

# Deleted under a stacked hold: the whole stack is gone with the first release.
{
	my $session = ZkTest::Session->new($node);
	$session->query("SELECT zk_lock_acquire('stack')") foreach 1 .. 3;
	my ($contender) = contenders($zk, 'stack');
	$zk->delete(lock_directory('stack') . "/$contender");
	poll_until(sub { $session->query(q{SELECT zk_lock_is_held('stack')}) eq 'f' }, 2);
	like($session->query(q{SELECT zk_lock_release('stack')}), qr/had been lost/, 'stack: the first release says so');
	like($session->query(q{SELECT zk_lock_release('stack')}), qr/you don't own/, 'stack: there is nothing behind it');
	$session->quit;
}

# A loss does not cancel what passes: a ROLLBACK that fails is the last thing anybody
# needs. The comment makes its parsing last longer than the loss takes to arrive.
foreach my $statement ('ROLLBACK', q{SELECT zk_lock_release('backend')})
{
	my $session = ZkTest::Session->new($node);
	my $comment = '/*' . 'x' x 30_000_000 . '*/';
	$session->query(q{SELECT zk_lock_acquire('backend')}) if $statement =~ /release/;
	$session->query(q{BEGIN; SELECT zk_xact_lock_acquire('transaction')});
	my $lock = $statement =~ /release/ ? 'backend' : 'transaction';
	my ($contender) = contenders($zk, $lock);
	my $offset = -s $log;
	$session->send("$comment$statement");
	$zk->delete(lock_directory($lock) . "/$contender");
	ok(logged(qr/lock "$lock" of process \d+ is lost/, $offset, 5), "$statement: lost while it is parsed");
	unlike($session->wait(30), qr/ERROR/, "$statement is not cancelled");
	$session->query('ROLLBACK; SELECT zk_lock_release_all()');
	is($session->query('SELECT 1'), 1, "after $statement it goes on");
	$session->quit;
}

# "Seen 0 ms ago" would be told by whoever looks late.
{
	my $session = ZkTest::Session->new($node);
	acquire_and_lose($session);
	sleep 1.2;
	like($session->query('SELECT 1'), qr/was deleted, as was seen 1[2-9]\d\d ms ago/, 'the detail says when it was lost, and not when somebody looked');
	$session->query('SELECT zk_lock_release_all()');
	$session->quit;
}

# A parallel worker could not keep a lock.
like(
	($node->psql('postgres', <<'END'))[2],
\set VERBOSITY verbose
CREATE FUNCTION in_parallel() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN zk_lock_acquire(''parallel''); END';
SET parallel_leader_participation = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
CREATE TABLE several AS SELECT generate_series(1, 10000) AS x;
ANALYZE several;
SELECT count(in_parallel()) FROM several;
END
	qr/55000: zklock locks cannot be used in parallel workers/, 'refused in a parallel worker');

# Ended while idle in a transaction: the log says why, which the client's message cannot.
{
	my $offset = -s $log;
	my $session = ZkTest::Session->new($node);
	$session->query(q{BEGIN; INSERT INTO work VALUES ('idle'); SELECT zk_xact_lock_acquire('terminated')});
	my ($contender) = contenders($zk, 'terminated');
	$zk->delete(lock_directory('terminated') . "/$contender");
	ok(logged(qr/connection terminated because lock "terminated" is lost/, $offset, 3), 'terminated while idle: the log says why');
	like($session->query('SELECT 1'), qr/57P01|server closed/, 'terminated while idle: the connection is gone');

	# without an xid nothing is in the way: only doomed
	$session = ZkTest::Session->new($node);
	$session->query(q{BEGIN; SELECT zk_xact_lock_acquire('doomed only')});
	($contender) = contenders($zk, 'doomed only');
	$zk->delete(lock_directory('doomed only') . "/$contender");
	ok(defined poll_until(sub { $session->query('SELECT 1') =~ /ZK001/ }, 1),
		'idle without a write: the connection stays, the statement fails');
	is($session->query('ROLLBACK; SELECT 1'), 1, 'and after ROLLBACK it goes on');
	$session->quit;
}

$node->stop;
done_testing();
