# thousand - 1,000 waiters on one lock, on two servers
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use List::Util qw(sum);
use Time::HiRes qw(time sleep);
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

# A holder, and so many waiters behind it, half of them on each server. When the holder lets
# go, the lock runs through them all; nobody comes back. From the first to the last of the
# waiters counts.
sub section_thousand
{
	my $zk = ensemble(1);
	my @servers = map { BenchServer->new($_, zk => $zk, connections => 600, conf => "zklock.max_locks = 2000\ndeadlock_timeout = 1h") } qw(a b);
	# who is through stays connected: the end of a thousand backends is no part of it
	my $script = <<'END';
\if :through
SELECT pg_advisory_lock_shared(1);
\else
SELECT zk_lock_acquire('thousand', timeout => '10 min');
SELECT zk_lock_release('thousand');
\set through true
\endif
END
	my $requests = sub { return sum(map { $_->query('SELECT requests FROM zk_session') } @servers) };
	my $run_through = sub {
		my ($waiters) = @_;
		my @gates = map { $_->session } @servers;
		$_->query('SELECT pg_advisory_lock(1)') foreach @gates;
		my $holder = $servers[0]->session;
		$holder->query(q{SELECT zk_lock_acquire('thousand')});
		my @load = map { $_->pgbench_start(script => $script, clients => $waiters / 2, transactions => 2, define => { through => 'false' }) } @servers;
		$_->wait_until(sprintf(q{SELECT count(*) = %d FROM zk_locks WHERE state = 'waiting' AND ahead IS NOT NULL}, $waiters / 2), 300) foreach @servers;
		sleep 0.5;
		my $before = $requests->();
		$holder->query(q{SELECT zk_lock_release('thousand')});
		$_->wait_until('SELECT count(*) = 0 FROM zk_locks', 600) foreach @servers;
		my $sent = $requests->() - $before;
		$_->query('SELECT pg_advisory_unlock(1)') foreach @gates;
		# the second transactions of all end together, after these
		my @ends = sort { $a <=> $b } map { @{ $_->finish->{ends} } } @load;
		splice @ends, $waiters;
		$_->close foreach @gates, $holder;
		return { handover => 1e6 * ($ends[-1] - $ends[0]) / ($waiters - 1), requests => $sent / $waiters };
	};
	my $r = take_turns($runs,
		few => sub {
			my @all = map { $run_through->(16) } 1 .. 10;
			return { map { my $field = $_; $field => median(map { $_->{$field} } @all) } qw(handover requests) };
		},
		many => sub { return $run_through->(1000) });
	$_->stop foreach @servers;

	my ($few, $many) = @$r{qw(few many)};
	goal('1,000 waiters on one lock, 500 on each of two servers: time per handover beside 16 waiters, 8 on each',
		us($many->{handover}) . ', with 16 ' . us($few->{handover}), ratio($many->{handover}, $few->{handover}), '<=', 1.2);
	goal('the same: requests to ZooKeeper per handover, which shows who is woken',
		number($many->{requests}) . ', with 16 ' . number($few->{requests}), ratio($many->{requests}, $few->{requests}), '<=', 1.1);
	note('1,000 waiters: all are there before the first handover and nobody comes back. '
		. 'Each watches the one before it and its own node, so a release wakes one, whatever the number.');
	return;
}

1;
