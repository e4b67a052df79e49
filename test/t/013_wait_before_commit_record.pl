# A COMMIT can wait before it writes its record: for the global lock of NOTIFY, for a lock on
# a temporary table, for a disk. What is lost meanwhile is noticed, and nothing commits.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my ($zk, $node_a, $node_b) = zk_pair_without_standby();
$node_a->safe_psql('postgres', <<'END');
CREATE TABLE work (what text);
CREATE TABLE unrelated (x int);
CREATE TABLE told (x int PRIMARY KEY);
CREATE EXTENSION tcn;
CREATE TRIGGER tell AFTER INSERT ON told FOR EACH ROW EXECUTE FUNCTION triggered_change_notification();
END

# @cases: what, statements before the COMMIT; how it commits, unless by COMMIT
sub lose_while_waiting
{
	my ($blocker_of, @cases) = @_;
	my @runs;
	foreach my $case (@cases)
	{
		my ($what, $before, $commit) = @$case;
		my $run = { what => $what, holder => ZkTest::Session->new($node_a), waiter => ZkTest::Session->new($node_b) };
		my $holder = $run->{holder};
		$holder->query("SELECT zk_lock_acquire('$what')");
		unlike($holder->query($before), qr/ERROR/, "$what: before COMMIT") if $before;
		$blocker_of->($run) if $blocker_of;
		$holder->send($commit // 'COMMIT');
		poll_until(sub { $node_a->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = " . $holder->backend) }, 10)
		  // die "$what: does not wait";
		$run->{waiter}->send("SELECT zk_lock_acquire('$what')");
		poll_until(sub { contenders($zk, $what) == 2 }, 10) // die "$what: nobody waits";
		push @runs, $run;
	}
	$zk->proxy(1, 'freeze');
	poll_until(
		sub {
			foreach my $run (@runs)
			{
				$run->{ended} //= time if $run->{holder}->answered;
				$run->{granted} //= time if $run->{waiter}->answered;
			}
			return !grep { !$_->{granted} } @runs;
		}, 30) // fail('a waiter was not granted');
	foreach my $run (@runs)
	{
		ok($run->{ended} && $run->{ended} < $run->{granted}, "$run->{what}: ended before the grant");
		like($run->{holder}->wait(0) // '', qr/ERROR:  ZK001: lock "\Q$run->{what}\E" is lost/, "$run->{what}: ZK001");
		$run->{blocker}->quit if $run->{blocker};
		$run->{waiter}->quit;
		$run->{holder}->quit;
	}
	$zk->proxy(1, 'pass');
	wait_for_lease($node_a);
	return;
}

# Somebody who has nothing to do with zklock has notified, and waits for a standby that is
# not there: so long all other COMMITs with a NOTIFY wait.
{
	my $other = ZkTest::Session->new($node_a);
	$other->query(q{SET synchronous_commit = on; BEGIN; INSERT INTO unrelated VALUES (1); NOTIFY something});
	$other->send('COMMIT');
	poll_until(sub { $node_a->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}) }, 10) // die 'no wait for the standby';
	lose_while_waiting(undef,
		[ 'NOTIFY', q{BEGIN; INSERT INTO work VALUES ('notify'); NOTIFY done} ],
		[ 'NOTIFY alone', q{BEGIN; NOTIFY done} ],
		[ 'pg_notify, autocommit', undef, q{SELECT pg_notify('done', 'x')} ],
		[ 'notified by a trigger in C', q{BEGIN; INSERT INTO told VALUES (1)} ],
		[ 'NOTIFY in a procedure', undef, q{DO $$ BEGIN INSERT INTO work VALUES ('do'); NOTIFY done; COMMIT; END $$} ]);
	$node_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $other->backend . ')');
	$other->wait(10) // die 'the other one does not end';
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'NOTIFY: no row');
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM told'), 0, 'a trigger in C: no row');
	$other->quit;
}

lose_while_waiting(
	sub {
		my ($run) = @_;
		my $schema = $node_a->safe_psql('postgres', "SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'tmp'");
		$run->{blocker} = ZkTest::Session->new($node_a);
		$run->{blocker}->query("BEGIN; LOCK TABLE $schema.tmp IN ACCESS SHARE MODE");
	},
	[ 'ON COMMIT DELETE ROWS', q{CREATE TEMP TABLE tmp (x int) ON COMMIT DELETE ROWS; BEGIN; INSERT INTO tmp VALUES (1); INSERT INTO work VALUES ('temp')} ]);
is($node_a->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'ON COMMIT DELETE ROWS: no row');

# What is done early is done once, and right.
{
	my $holder = ZkTest::Session->new($node_a);
	my $listener = ZkTest::Session->new($node_a);
	$listener->query('LISTEN news');
	$holder->query(q{SELECT zk_lock_acquire('well')});
	$holder->query(q{CREATE TEMP TABLE gone (x int) ON COMMIT DELETE ROWS; BEGIN; INSERT INTO gone VALUES (1);
		CREATE TEMP TABLE dropped (x int) ON COMMIT DROP; INSERT INTO dropped VALUES (1); INSERT INTO work VALUES ('well'); NOTIFY news, 'once'});
	unlike($holder->query('COMMIT'), qr/ERROR|WARNING/, 'all together: COMMIT');
	is($holder->query(q{SELECT (SELECT count(*) FROM gone), to_regclass('dropped') IS NULL}), '0|t', 'the temporary tables are as they should be');
	is(() = $listener->query('SELECT 1') =~ /notification "news" with payload "once"/g, 1, 'the notification came once');
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM work'), 1, 'the row is there');
	$_->quit foreach $holder, $listener;
}

# Notifications are put into their queue behind the check: the more there are, the more of the
# lease has to be left.
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SET zklock.idle_loss = doom; SET zklock.commit_margin = '2400ms'; SELECT zk_lock_acquire('many')});
	foreach my $many (0, 1)
	{
		wait_for_full_lease($node_a);
		my $n = $many ? 250_000 : 1;
		$holder->query("BEGIN; INSERT INTO work VALUES ('many $n'); SELECT count(pg_notify('c', i || repeat('x', 250))) FROM generate_series(1, $n) i");
		my $answer = $holder->query('COMMIT');
		$many ? like($answer, qr/ERROR:  ZK001: .*too little to commit/s, 'many notifications: refused with a lease that is too short for them')
		  : unlike($answer, qr/ERROR/, 'one notification: the same lease will do');
	}
	is($node_a->safe_psql('postgres', q{SELECT string_agg(what, ' ') FROM work WHERE what ~ 'many'}), 'many 1', 'many notifications: no row');
	$holder->quit;
}
$node_a->stop;

# wal_level = minimal: what a transaction loaded into its own table is written to disk in
# COMMIT, as long as that takes.
SKIP:
{
	skip 'an instrumented server has its own preloaded library', 3 if instrumented();
	my $flag = PostgreSQL::Test::Utils::tempdir('slowsync') . '/slow';
	my $node_c;
	{
		local %ENV = (%ENV, LD_PRELOAD => shared_library('slowsync'), SLOWSYNC => $flag, SLOWSYNC_MS => 6000);
		$node_c = zk_server('c', $zk, conf => <<'END');
zklock.session_timeout = 4s
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
fsync = on
autovacuum = off
END
	}
	my $holder = ZkTest::Session->new($node_c);
	my $waiter = ZkTest::Session->new($node_b);
	$holder->query(q{SELECT zk_lock_acquire('load'); BEGIN; CREATE TABLE load AS SELECT generate_series(1, 1000) AS x});
	wait_for_full_lease($node_c);
	append_to_file($flag, '');
	$holder->send('COMMIT');
	$waiter->send(q{SELECT zk_lock_acquire('load')});
	poll_until(sub { contenders($zk, 'load') == 2 }, 10) // die 'nobody waits';
	$zk->proxy(1, 'freeze');
	like($waiter->wait(30) // '', qr/^\d+$/, 'wal_level = minimal: the waiter is granted while the disk is busy');
	unlink $flag;
	like($holder->wait(30) // '', qr/ERROR:  ZK001: /, 'wal_level = minimal: and the COMMIT fails');
	$zk->proxy(1, 'pass');
	is($node_c->safe_psql('postgres', q{SELECT to_regclass('load') IS NULL}), 't', 'wal_level = minimal: no table is there');
	wait_for_lease($node_c);
	$holder->query(q{SELECT zk_lock_release('load')});
	$waiter->quit;

	# what was synced early is there after a crash
	$holder->query(q{SELECT zk_lock_acquire('load'); BEGIN; CREATE TABLE load AS SELECT generate_series(1, 1000) AS x; INSERT INTO load VALUES (0)});
	unlike($holder->query('COMMIT'), qr/ERROR/, 'wal_level = minimal: COMMIT under the lock');
	$node_c->stop('immediate');
	$node_c->start;
	is($node_c->safe_psql('postgres', 'SELECT count(*) FROM load'), 1001, 'wal_level = minimal: all rows are there after a crash');
	$node_c->stop;
}

$node_b->stop;
done_testing();
