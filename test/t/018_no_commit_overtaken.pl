# A commit that has passed its check is not overtaken: not by zk_lock_break, which waits and
# then gives up. And what had lapsed is not said to be released.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my ($zk, $node_a, $node_b) = zk_pair_without_standby();
$node_a->safe_psql('postgres', 'CREATE TABLE work (what text)');

sub waits_for
{
	my ($session, $event) = @_;
	poll_until(sub { $node_a->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$event' AND pid = " . $session->backend) }, 10)
	  // die "does not wait for $event";
	return;
}

# Decided, and waiting for a standby
{
	my ($holder, $next, $breaker) = (ZkTest::Session->new($node_a), ZkTest::Session->new($node_b), ZkTest::Session->new($node_b));
	$holder->query(q{SELECT zk_lock_acquire('standby'); BEGIN; INSERT INTO work VALUES ('standby'); SET LOCAL synchronous_commit = on});
	$holder->send('COMMIT');
	waits_for($holder, 'SyncRep');
	$next->send(q{SELECT zk_lock_acquire('standby')});
	poll_until(sub { contenders($zk, 'standby') == 2 }, 5) // die 'nobody waits';
	my $start = time;
	my $answer = $breaker->query(q{SELECT zk_lock_break('standby', '100 ms')});
	like($answer, qr/ERROR:  55006: lock "standby" could not be taken from "a" process \d+.*HINT:/s, 'waiting for a standby: zk_lock_break gives up');
	cmp_ok(time - $start, '>=', 4, 'waiting for a standby: not before the session timeout');
	ok(!$next->answered, 'waiting for a standby: nobody has the lock');
	ok(!$holder->answered, 'waiting for a standby: nor was the commit disturbed');
	$node_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $holder->backend . ')');
	like($holder->wait(10), qr/WARNING/, 'waiting for a standby: it ends when it is given up for the standby');
	like($next->wait(10) // '', qr/^\d+$/, 'and then the lock is taken away');
	$_->quit foreach $holder, $next, $breaker;
	is($node_a->safe_psql('postgres', q{SELECT count(*) FROM work WHERE what = 'standby'}), 1, 'the row is there');
}

# Not decided: waiting for the lock of NOTIFY
{
	my $other = ZkTest::Session->new($node_a);
	$other->query(q{SET synchronous_commit = on; BEGIN; INSERT INTO work VALUES ('other'); NOTIFY x});
	$other->send('COMMIT');
	waits_for($other, 'SyncRep');
	my ($holder, $next, $breaker) = (ZkTest::Session->new($node_a), ZkTest::Session->new($node_b), ZkTest::Session->new($node_b));
	$holder->query(q{SELECT zk_lock_acquire('notify'); BEGIN; INSERT INTO work VALUES ('notify'); NOTIFY y});
	$holder->send('COMMIT');
	poll_until(sub { $node_a->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = " . $holder->backend) }, 10) // die 'does not wait';
	$next->send(q{SELECT zk_lock_acquire('notify')});
	poll_until(sub { contenders($zk, 'notify') == 2 }, 5) // die 'nobody waits';
	is($breaker->query(q{SELECT zk_lock_break('notify')}), 'released', 'waiting to NOTIFY: the lock is taken away');
	like($next->wait(10) // '', qr/^\d+$/, 'waiting to NOTIFY: the next one has it');
	like($holder->wait(10) // '', qr/ERROR:  ZK001: /, 'waiting to NOTIFY: and the COMMIT has failed');
	$node_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $other->backend . ')');
	$other->wait(10);
	is($node_a->safe_psql('postgres', q{SELECT count(*) FROM work WHERE what = 'notify'}), 0, 'no row is there');
	$_->quit foreach $other, $holder, $next, $breaker;
}

# A worker that is stopped answers nobody; its ZooKeeper session ends, and the lock is free.
{
	my ($holder, $breaker) = (ZkTest::Session->new($node_a), ZkTest::Session->new($node_b));
	$holder->query(q{SELECT zk_lock_acquire('stopped')});
	my $worker = worker_of($node_a);
	kill 'STOP', $worker;
	like($breaker->query(q{SELECT zk_lock_break('stopped', '100 ms')}), qr/^(?:released|free)$/, 'worker stopped: the lock goes with its ZooKeeper session');
	kill 'CONT', $worker;
	$_->quit foreach $holder, $breaker;
	wait_for_lease($node_a);
}

# What had lapsed
my %release = (
	exclusive => [ q{zk_lock_acquire('gone')}, q{zk_lock_release('gone')}, 'gone' ],
	read => [ q{zk_lock_acquire('gone', 'read')}, q{zk_lock_release('gone', 'read')}, 'gone' ],
	semaphore => [ q{zk_semaphore_acquire('gone', 1)}, q{zk_semaphore_release('gone')}, 'gone/leases' ],
);
foreach my $kind (sort keys %release)
{
	my ($acquire, $release, $name) = @{ $release{$kind} };
	my ($holder, $next) = (ZkTest::Session->new($node_a), ZkTest::Session->new($node_b));
	$holder->query("SELECT $acquire");
	$node_a->safe_psql('postgres', 'SELECT zk_stats_reset()');
	$zk->proxy(1, 'freeze');
	like($next->query($kind eq 'read' ? q{SELECT zk_lock_acquire('gone', 'write')} : "SELECT $acquire"), qr/^\d+$/, "$kind: lapsed, and the next one has it");
	like($holder->query("SELECT $release"), qr/WARNING:  ZK001: .* had lapsed.*\nf$/s, "$kind: a release says so");
	$zk->proxy(1, 'pass');
	wait_for_lease($node_a);
	is($node_a->safe_psql('postgres', "SELECT lost FROM zk_lock_stats WHERE name = '$name'"), 1, "$kind: and counts as a loss");
	$_->quit foreach $holder, $next;
}
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('all1'), zk_lock_acquire('all2')});
	$zk->proxy(1, 'freeze');
	poll_until(sub { $node_a->safe_psql('postgres', q{SELECT lease_left = '0' FROM zk_session}) eq 't' }, 20) // die 'no lapse';
	like($holder->query('SELECT zk_lock_release_all()'), qr/WARNING:  ZK001: 2 of these locks had lapsed.*\n2$/s, 'all at once: so does zk_lock_release_all');
	$zk->proxy(1, 'pass');
	$holder->quit;
}

$_->stop foreach $node_a, $node_b;
done_testing();
