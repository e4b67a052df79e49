# A statement that commits inside itself is a holder like any other: it ends with ZK001
# before somebody else gets the lock, in whichever of its transactions it is, and nothing of
# what it still had to do is done.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node_a = zk_server('a', $zk, conf => "zklock.session_timeout = 4s\nmax_connections = 100");
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));
my $library = shared_library('gate');
$node_a->safe_psql('postgres', <<"END");
CREATE FUNCTION gate_wait(int, int) RETURNS boolean LANGUAGE c AS '$library';
CREATE TABLE work (what text);
CREATE TABLE other (x int);
CREATE SCHEMA s;
CREATE TABLE s.first (x int PRIMARY KEY);
CREATE TABLE s.second (x int PRIMARY KEY);
CREATE TABLE parted (x int) PARTITION BY LIST (x);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE PROCEDURE simple_expression(gate int) LANGUAGE plpgsql AS \$\$
DECLARE
	object oid;
	open boolean;
BEGIN
	COMMIT;
	-- simple expressions: no statement begins
	open := public.gate_wait(gate, 60000);
	object := lo_from_bytea(4711, 'stale');
	COMMIT;
END \$\$;
CREATE PROCEDURE rolls_back(gate int) LANGUAGE plpgsql AS \$\$
DECLARE
	object oid;
	open boolean;
BEGIN
	ROLLBACK;
	open := public.gate_wait(gate, 60000);
	object := lo_from_bytea(4712, 'stale');
	COMMIT;
END \$\$;
END
$node_a->safe_psql('postgres', "CREATE TABLE t$_ (x int PRIMARY KEY); INSERT INTO t$_ SELECT generate_series(1, 100); CREATE INDEX i$_ ON t$_ (x)")
  foreach 1 .. 9;

my $gate = ZkTest::Session->new($node_a);
my $gate_pid = $gate->backend;
my $anything = 'INSERT INTO %s VALUES (0)';
my $vacuum = 'LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE';

# what, the statement, what keeps it waiting in a transaction that is not its first, on which table
my @cases = (
	[ 'one transaction, to compare', 'UPDATE t1 SET x = x + 1000', 'UPDATE %s SET x = x', 't1' ],
	[ 'CREATE INDEX CONCURRENTLY', 'CREATE INDEX CONCURRENTLY new ON t2 (x)', $anything, 't2' ],
	[ 'REINDEX CONCURRENTLY', 'REINDEX TABLE CONCURRENTLY t3', $anything, 't3' ],
	[ 'DROP INDEX CONCURRENTLY', 'DROP INDEX CONCURRENTLY i4', $anything, 't4' ],
	[ 'VACUUM of two', 'VACUUM (FREEZE) other, t5', $vacuum, 't5' ],
	[ 'ANALYZE of two', 'ANALYZE other, t6', $vacuum, 't6' ],
	[ 'VACUUM FULL of two', 'VACUUM FULL other, t7', $vacuum, 't7' ],
	[ 'REINDEX SCHEMA', 'REINDEX SCHEMA s', $anything, 's.second' ],
	[ 'DETACH CONCURRENTLY', 'ALTER TABLE parted DETACH PARTITION part CONCURRENTLY', 'SELECT count(*) FROM %s', 'parted' ],
	[ 'CALL: simple expressions after COMMIT', "CALL simple_expression($gate_pid)" ],
	[ 'CALL: simple expressions after ROLLBACK', "CALL rolls_back($gate_pid)" ],
	[ 'DO: a statement after COMMIT', "DO \$\$ BEGIN COMMIT; PERFORM public.gate_wait($gate_pid, 60000); INSERT INTO work VALUES ('do'); END \$\$" ],
);

my @runs;
foreach my $case (@cases)
{
	my ($what, $statement, $block, $table) = @$case;
	my $run = { what => $what };
	if ($block)
	{
		$run->{blocker} = ZkTest::Session->new($node_a);
		$run->{blocker}->query('BEGIN; ' . sprintf $block, $table);
	}
	$run->{holder} = ZkTest::Session->new($node_a);
	$run->{holder}->query("SELECT zk_lock_acquire('$what')");
	$run->{holder}->send($statement);
	poll_until(sub {
		$node_a->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_activity WHERE wait_event_type IN (\'Lock\', \'Extension\') AND pid = ' . $run->{holder}->backend) },
		10) // die "$what: does not wait";
	$run->{waiter} = ZkTest::Session->new($node_b);
	$run->{waiter}->send("SELECT zk_lock_acquire('$what')");
	poll_until(sub { contenders($zk, $what) == 2 }, 10) // die "$what: nobody waits";
	push @runs, $run;
}

$zk->proxy(1, 'freeze');
my $all = poll_until(
	sub {
		foreach my $run (@runs)
		{
			$run->{ended} //= time if $run->{holder}->answered;
			$run->{granted} //= time if $run->{waiter}->answered;
		}
		return !grep { !$_->{granted} } @runs;
	}, 30);
ok(defined $all, 'all waiters were granted');
foreach my $run (@runs)
{
	ok($run->{ended} && $run->{ended} < $run->{granted}, "$run->{what}: ended before the grant");
	$run->{blocker}->quit if $run->{blocker};
}
$gate->quit;
foreach my $run (@runs)
{
	like($run->{holder}->wait(20) // '', qr/ERROR:  ZK001: lock "\Q$run->{what}\E" is lost/, "$run->{what}: ZK001");
	$run->{holder}->quit;
	$run->{waiter}->quit;
}
is($node_a->safe_psql('postgres', q{SELECT count(*) FROM pg_largeobject_metadata}), 0, 'no large object was made');
is($node_a->safe_psql('postgres', q{SELECT count(*) FROM work}), 0, 'no row was written');
$zk->proxy(1, 'pass');
wait_for_lease($node_a);

# Where nothing is lost all of them work, and a procedure may give its lock back and take it
# again between its transactions.
foreach my $statement ('CREATE INDEX CONCURRENTLY fine ON t8 (x)', 'VACUUM other, t8', 'REINDEX TABLE CONCURRENTLY t8', 'ANALYZE other, t8')
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('fine')});
	unlike($holder->query($statement), qr/ERROR/, "held: $statement");
	is($holder->query(q{SELECT zk_lock_release('fine')}), 't', "held: $statement: it still is");
	$holder->quit;
}
{
	my $holder = ZkTest::Session->new($node_a);
	unlike($holder->query(<<'END'), qr/ERROR/, 'a lock for each transaction of a procedure');
DO $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		PERFORM zk_lock_acquire('loop');
		INSERT INTO work VALUES ('loop');
		COMMIT;
		PERFORM zk_lock_release('loop');
		COMMIT;
	END LOOP;
END $$
END
	is($node_a->safe_psql('postgres', q{SELECT count(*) FROM work WHERE what = 'loop'}), 3, 'commits each');
	$holder->quit;
}

# A lapse inside of such a statement does not go unnoticed when it is over before anybody looks.
{
	my $shut = ZkTest::Session->new($node_a);
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('recovered')});
	$holder->send('CALL simple_expression(' . $shut->backend . ')');
	poll_until(sub { $node_a->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = " . $holder->backend) }, 10)
	  // die 'does not wait';
	kill 'STOP', $holder->backend;
	my $lapses = $node_a->safe_psql('postgres', 'SELECT lapses FROM zk_session');
	$zk->kill_all;
	poll_until(sub { $node_a->safe_psql('postgres', q{SELECT lease_left = '0' FROM zk_session}) eq 't' }, 20) // die 'no lapse';
	$zk->start_all;
	wait_for_lease($node_a);
	is($node_a->safe_psql('postgres', 'SELECT lapses FROM zk_session') - $lapses, 1, 'the lease lapsed and came back');
	$shut->quit;
	kill 'CONT', $holder->backend;
	like($holder->wait(20) // '', qr/ERROR:  ZK001: /, 'stopped meanwhile: the statement fails all the same');
	is($node_a->safe_psql('postgres', q{SELECT count(*) FROM pg_largeobject_metadata}), 0, 'and made nothing');
	$holder->quit;
}

$_->stop foreach $node_a, $node_b;
done_testing();
