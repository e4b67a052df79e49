# The wall clock is set while a transaction holds a lock and has written: forward by a
# day, back by two. Nothing happens to the transaction. And with the clock just set, a
# lapse is noticed as soon as ever: PostgreSQL's timers run on the wall clock, the lease
# does not.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

plan skip_all => 'an instrumented server has its own preloaded library' unless ZkTest::Clock->possible;
my $clock = ZkTest::Clock->new;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $conf = "zklock.session_timeout = 4s";
my $node_b = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts(1));
my $node_a;
{
	local %ENV = (%ENV, $clock->environment);
	$node_a = zk_server('a', $zk, conf => $conf);
}
$node_a->safe_psql('postgres', 'CREATE TABLE work (what text)');
my $blocker = ZkTest::Session->new($node_a);
$blocker->query('SELECT pg_advisory_lock(1)');

# How far is a backend's clock from ours, in days? One that was there before it was set.
sub clock_offset
{
	my ($session) = @_;
	my $at = $session->query('SELECT extract(epoch FROM clock_timestamp())');
	return int(($at - time) / 86400 + ($at > time ? 0.5 : -0.5));
}

# Wait for so many heartbeats, T/16 apart.
sub wait_for_heartbeats
{
	my ($n) = @_;
	my ($member) = grep { /^a-/ } $zk->ls(ROOT . '/.zklock');
	my $version = $zk->stat(ROOT . "/.zklock/$member")->{version};
	return poll_until(sub { $zk->stat(ROOT . "/.zklock/$member")->{version} >= $version + $n }, 30);
}

# Two transactions that hold a lock and have written: one in a statement, one idle.
sub begin_holding
{
	my ($what) = @_;
	my %run = (what => $what);
	foreach my $kind (qw(active idle))
	{
		my $holder = $run{$kind} = ZkTest::Session->new($node_a);
		my $token = $holder->query(
			"BEGIN; INSERT INTO work VALUES ('$what'); SELECT zk_xact_lock_acquire('clock/$what/$kind')");
		die $token unless $token =~ /^\d+$/;
	}
	# not pg_sleep, which runs on the wall clock before PostgreSQL 16
	$run{active}->send('SELECT pg_advisory_xact_lock_shared(1)');
	poll_until(
		sub {
			$node_a->safe_psql('postgres', 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $run{active}->backend) eq 'advisory';
		}, 10) // die 'the statement does not wait';
	return \%run;
}

# Set while the transactions run: they do not notice.
{
	my $offset = -s $node_a->logfile;
	my $run = begin_holding('steps');
	foreach my $step (1, -1, 0)
	{
		$clock->set($step);
		is(clock_offset($run->{idle}), $step, "the clock is set: $step days");
		ok(defined wait_for_heartbeats(20), "$step days: heartbeats go on for longer than T");
		ok(!$run->{active}->answered, "$step days: the statement is not cancelled");
		is($run->{idle}->query(q{SELECT zk_lock_is_held('clock/steps/idle')}), 't', "$step days: the lock is held");
	}
	$blocker->query('SELECT pg_advisory_unlock(1)');
	unlike($run->{active}->wait(10), qr/ERROR/, 'the statement ends by itself');
	unlike($run->{$_}->query('COMMIT'), qr/ERROR/, "$_: COMMIT") foreach qw(active idle);
	is(rows($node_a, 'steps'), 2, 'both rows are there');
	unlike(PostgreSQL::Test::Utils::slurp_file($node_a->logfile, $offset), qr/lease lapsed|is lost/, 'no lapse, no loss');
	$run->{$_}->quit foreach qw(active idle);
	$blocker->query('SELECT pg_advisory_lock(1)');
}

# Set, and then the lease lapses.
foreach my $step (1, -1)
{
	my $what = "lapse at $step days";
	my $run = begin_holding($what);
	my %waiter = map { ($_ => ZkTest::Session->new($node_b)) } qw(active idle);
	$waiter{$_}->send("SELECT zk_lock_acquire('clock/$what/$_')") foreach qw(active idle);
	foreach my $kind (qw(active idle))
	{
		poll_until(sub { contenders($zk, "clock/$what/$kind") == 2 }, 10) // die 'no waiter';
	}
	$clock->set($step);
	is(clock_offset($run->{idle}), $step, "$what: the clock is set");
	$zk->proxy(1, 'freeze');

	my (%ended, %granted);
	ok( defined poll_until(
			sub {
				$ended{active} //= time if $run->{active}->answered;
				$ended{idle} //= time if !kill 0, $run->{idle}->backend;
				foreach my $kind (qw(active idle))
				{
					$granted{$kind} //= time if $waiter{$kind}->answered;
				}
				return keys %ended == 2 && keys %granted == 2;
			}, 20), "$what: the holders ended and the waiters were granted")
	  or diag "ended: @{[sort keys %ended]}; granted: @{[sort keys %granted]}";
	foreach my $kind (qw(active idle))
	{
		cmp_ok($ended{$kind} // 'inf', '<=', $granted{$kind} // 0, "$what: $kind: ended before the grant");
	}
	note sprintf '%s: %s: %.3f s before the grant', $what, $_, ($granted{$_} // 0) - ($ended{$_} // 0) foreach qw(active idle);
	like($run->{active}->wait(0) // '', qr/ERROR:  ZK001: /, "$what: the statement fails with ZK001");
	$zk->proxy(1, 'pass');
	$_->kill_client foreach $run->{active}, $run->{idle}, values %waiter;
	is(rows($node_a, $what), 0, "$what: no row is there");
	$clock->set(0);
	wait_for_lease($node_a);
}

$node_a->stop;
$node_b->stop;
done_testing();
