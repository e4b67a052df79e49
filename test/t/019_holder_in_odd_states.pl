# Holders that are in a state of their own when the lock is lost: sending to a client that does
# not read, checking a deferred constraint, ending, calling by the fast path without activity
# reports, using a foreign server for the first time.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;
use ZkWire;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node_a = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));
my $gate = shared_library('gate');
$node_b->safe_psql('postgres', 'CREATE TABLE ledger (entry text)');
my ($host, $port) = ($node_b->host, $node_b->port);
$node_a->safe_psql('postgres', <<"END");
CREATE EXTENSION postgres_fdw;
CREATE EXTENSION dblink;
CREATE FUNCTION gate_wait(int, int) RETURNS boolean LANGUAGE c AS '$gate';
CREATE SERVER b FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres');
CREATE USER MAPPING FOR CURRENT_USER SERVER b;
IMPORT FOREIGN SCHEMA public LIMIT TO (ledger) FROM SERVER b INTO public;
CREATE TABLE work (what text);
CREATE TABLE u (x int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE parted (entry text) PARTITION BY LIST (entry);
CREATE TABLE parted_near PARTITION OF parted FOR VALUES IN ('near');
CREATE FOREIGN TABLE parted_far PARTITION OF parted DEFAULT SERVER b OPTIONS (table_name 'ledger');
CREATE PROCEDURE writes_far() LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO ledger VALUES ('far'); COMMIT; END \$\$;
END

sub far { return $node_b->safe_psql('postgres', 'SELECT count(*) FROM ledger'); }
sub is_gone { my ($session) = @_; return !kill 0, $session->backend; }

sub waits
{
	my ($session, $where) = @_;
	poll_until(sub { $node_a->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE $where AND pid = " . $session->backend) }, 15)
	  // die "does not wait: $where";
	return;
}

sub end_stopped
{
	my ($session) = @_;
	kill 'CONT', $session->{pid};
	$session->kill_client;
	return;
}

# A client that does not read: its backend serves no cancel while it sends.
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('sending'); BEGIN; INSERT INTO work VALUES ('sending'); LOCK TABLE work});
	$holder->send(q{SELECT repeat('x', 100000) FROM generate_series(1, 100000)});
	waits($holder, q{query ~ 'repeat'});
	kill 'STOP', $holder->{pid};
	waits($holder, q{wait_event = 'ClientWrite'});
	lose($zk, 'sending', $node_a);
	ok(defined poll_until(sub { is_gone($holder) }, 5), 'sending rows: the connection is ended');
	end_stopped($holder);
}
{
	my $holder = ZkTest::Session->new($node_a);
	my $next = ZkTest::Session->new($node_b);
	$holder->query(q{INSERT INTO work SELECT repeat('y', 100000) FROM generate_series(1, 300); SELECT zk_lock_acquire('returning')});
	wait_for_full_lease($node_a);
	$holder->send('UPDATE work SET what = what RETURNING repeat(what, 20)');
	waits($holder, q{query ~ 'RETURNING'});
	kill 'STOP', $holder->{pid};
	waits($holder, q{wait_event = 'ClientWrite'});
	$next->send(q{SELECT zk_lock_acquire('returning')});
	poll_until(sub { contenders($zk, 'returning') == 2 }, 5) // die 'nobody waits';
	$zk->proxy(1, 'freeze');
	my ($gone, $granted);
	poll_until(sub { $gone //= time if is_gone($holder); $granted //= time if $next->answered; $granted }, 15);
	ok($gone && $gone < $granted, 'sending RETURNING: the connection is ended before the grant');
	$zk->proxy(1, 'pass');
	end_stopped($holder);
	$next->quit;
	wait_for_lease($node_a);
	$node_a->safe_psql('postgres', 'TRUNCATE work');
}

# COMMIT waits to check a deferred constraint, in a trigger that is PostgreSQL's own.
foreach my $idle ('terminate', 'doom')
{
	foreach my $how ('COMMIT', 'autocommit')
	{
		my $lock = "deferred $idle $how";
		my ($other, $holder) = map { ZkTest::Session->new($node_a) } 1, 2;
		$other->query('BEGIN; INSERT INTO u VALUES (1)');
		$holder->query("SET zklock.idle_loss = $idle; SELECT zk_lock_acquire('$lock')");
		$holder->query('BEGIN; INSERT INTO u VALUES (1)') if $how eq 'COMMIT';
		$holder->send($how eq 'COMMIT' ? 'COMMIT' : 'INSERT INTO u VALUES (1)');
		waits($holder, q{wait_event_type = 'Lock'});
		lose($zk, $lock, $node_a);
		ok(defined poll_until(sub { $holder->answered || is_gone($holder) }, 3), "$lock: ends at once");
		like($holder->wait(2) // '', qr/ERROR:  ZK001: lock "$lock" is lost/, "$lock: with ZK001");
		$other->query('ROLLBACK');
		is($holder->query("SELECT zk_lock_release('$lock')") =~ /f$/, 1, "$lock: the connection goes on");
		$_->quit foreach $other, $holder;
	}
}

# A function by the fast path, of which nothing tells when activities are not reported
my $lo_creat = $node_a->safe_psql('postgres', q{SELECT oid FROM pg_proc WHERE proname = 'lo_creat'});
foreach my $track ('on', 'off')
{
	foreach my $way ('zk_lock_acquire', 'zk_lock_release')
	{
		my $lock = "fast path $track $way";
		my $wire = ZkWire->new($node_a);
		my $other = ZkTest::Session->new($node_b);
		$wire->query($_) foreach "SET track_activities = $track", 'SET zklock.idle_loss = doom', "SELECT zk_lock_acquire('$lock')", 'BEGIN';
		$wire->call($lo_creat, 131072);
		lose($zk, $lock, $node_a);
		$other->query("SELECT zk_lock_acquire('$lock'), zk_lock_release('$lock')");
		$wire->query("SELECT $way('$lock')");
		$wire->query('COMMIT');
		is($node_a->safe_psql('postgres', 'SELECT count(*) FROM pg_largeobject_metadata'), 0, "$lock: what it made does not commit");
		$wire->close;
		$other->quit;
	}
}

# A driver that says varchar
{
	my $wire = ZkWire->new($node_a);
	$wire->query('SET plan_cache_mode = force_generic_plan');
	foreach my $type (25, 1043)
	{
		$wire->query(q{SELECT zk_lock_acquire('driver')});
		$wire->put('P', "s$type\0SELECT zk_lock_release(\$1)\0" . pack('n', 1) . pack('N', $type));
		$wire->sync;
		lose($zk, 'driver', $node_a);
		is($wire->prepared("s$type", 'driver')->{rows}[0], 'f', "parameter of type $type: a lost lock can be given back");
	}
	$wire->close;
}

# postgres_fdw for the first time in this connection, within a procedure that commits
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('first use'); SET zklock.commit_margin = '60s'});
	like($holder->query('CALL writes_far()'), qr/ERROR:  ZK001: /, 'first use in a procedure: refused');
	is(far(), 0, 'first use in a procedure: nothing was committed over there');
	$holder->quit;
}

# What looks at foreign partitions fails: the levels stay in balance.
{
	my ($holder, $locker, $shut) = map { ZkTest::Session->new($node_a) } 1 .. 3;
	my $gate_pid = $shut->backend;
	$holder->query(q{SET lock_timeout = '700ms'; SELECT zk_lock_acquire('balance'); INSERT INTO parted VALUES ('far')});
	$holder->send("INSERT INTO parted SELECT CASE WHEN i = 1 THEN 'far' ELSE (SELECT CASE WHEN public.gate_wait($gate_pid, 30000) IS NOT NULL THEN 'near' END) END FROM generate_series(1, 2) i");
	waits($holder, q{wait_event_type = 'Extension'});
	$node_a->safe_psql('postgres', q{ALTER SERVER b OPTIONS (ADD fetch_size '50')});
	$locker->query('BEGIN; LOCK TABLE pg_foreign_server IN ACCESS EXCLUSIVE MODE');
	$shut->quit;
	$holder->wait(15) // die 'no answer';
	$locker->query('ROLLBACK');
	$holder->query(q{BEGIN; INSERT INTO work VALUES ('balance')});
	lose($zk, 'balance', $node_a);
	ok(defined poll_until(sub { is_gone($holder) }, 4), 'after an error in between: an idle writer is still ended');
	$_->kill_client foreach $holder, $locker;
}

# Table locks that somebody is left with
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('table'); BEGIN; LOCK TABLE work IN EXCLUSIVE MODE});
	lose($zk, 'table', $node_a);
	ok(defined poll_until(sub { is_gone($holder) }, 4), 'LOCK TABLE, idle: the connection is ended');
	$holder->kill_client;
}

# Leaving with temporary tables
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('leaving'); CREATE TEMP TABLE left_behind (x int)});
	lose($zk, 'leaving', $node_a);
	$holder->quit;
	ok(defined poll_until(sub { $node_a->safe_psql('postgres', q{SELECT count(*) FROM pg_class WHERE relname = 'left_behind'}) eq '0' }, 5),
		'leaving: no temporary table is left');
}

# dblink in an expression that was prepared before there was a lock
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(qq{SELECT dblink_connect('c', 'host=$host port=$port dbname=postgres'), dblink_exec('c', 'BEGIN')});
	$holder->query(<<'END');
BEGIN;
DO $$
DECLARE
	done text;
BEGIN
	FOR i IN 1 .. 2 LOOP
		IF i = 2 THEN PERFORM zk_lock_acquire('cached'); END IF;
		done := dblink_exec('c', 'INSERT INTO ledger VALUES (''cached'')');
	END LOOP;
	PERFORM zk_lock_release('cached');
END $$;
END
	$holder->query('SELECT pg_sleep(0.3)');
	is(scalar contenders($zk, 'cached'), 1, 'dblink before the lock: a release waits for the end');
	$holder->query('COMMIT');
	$holder->query(q{SELECT dblink_exec('c', 'ROLLBACK')});
	$holder->quit;
}

$_->stop foreach $node_a, $node_b;
done_testing();
