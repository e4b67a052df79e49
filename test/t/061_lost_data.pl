# An ensemble that lost its data, or has older ones: emptied, restored from a backup that
# has the ZooKeeper session in it, restarted node by node. One node and three, under load,
# and nobody touches PostgreSQL: locks are served again within twice the timeout.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $timeout = 4;

# Serving: a lock is granted to somebody new. Returns the seconds until then.
sub served
{
	my ($node) = @_;
	return poll_until(sub { $node->psql('postgres', q{SELECT zk_lock_try_acquire('served')}, on_error_die => 0) == 0 }, 3 * $timeout);
}

sub in_time
{
	my ($node, $what) = @_;
	my $took = served($node);
	ok(defined $took && $took < 2 * $timeout, "$what: served again within twice the timeout") or diag $took // 'never';
	return;
}

sub restart { my ($zk) = @_; $zk->start_node($_, wait => 0) foreach $zk->all; $zk->wait_for_quorum; return; }

foreach my $nodes (1, 3)
{
	my $zk = ZkEnsemble->new(nodes => $nodes, tick => 500, name => "zk$nodes")->start;
	my $node = zk_server("n$nodes", $zk, conf => "zklock.session_timeout = ${timeout}s");
	my @load = begin_load($node);
	my $worker = worker_of($node);
	my $what = "$nodes node(s)";

	# what the backup has and the ensemble has not: a lock that was given back since
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('given back'), zk_lock_acquire('kept')});
	$zk->kill_all;
	$zk->save_node($_) foreach $zk->all;
	restart($zk);
	wait_for_lease($node);
	is($node->safe_psql('postgres', q{SELECT count(*) FROM zk_locks WHERE state = 'held'}) >= 2, 1, "$what, restarted: idle locks are kept");
	is($holder->query(q{SELECT zk_lock_release('given back'), zk_lock_acquire('after') IS NOT NULL}), 't|t', "$what: a lock is given back, and one taken");
	ok(defined poll_until(sub { contenders($zk, 'given back') == 0 }, 5), "$what: and gone");

	my $offset = -s $node->logfile;
	$zk->kill_all;
	$zk->restore_node($_) foreach $zk->all;
	restart($zk);
	in_time($node, "$what, restored from a backup");
	like($holder->query(q{SELECT zk_lock_acquire('kept')}), qr/ERROR:  ZK001/, "$what, restored: the locks of before are lost");
	ok(defined poll_until(sub { contenders($zk, 'given back') == 0 }, 2 * $timeout), "$what, restored: a node of the backup that is nobody's is gone");
	is(scalar(() = log_since($node, $offset) =~ / ended, \d+ held locks are lost/g), 1, "$what, restored: one line says so");
	$holder->quit;

	$holder = ZkTest::Session->new($node);
	like($holder->query(q{SELECT zk_lock_acquire('x')}), qr/^\d+$/, "$what, restored: held anew");
	$offset = -s $node->logfile;
	$zk->kill_all;
	$zk->empty_node($_) foreach $zk->all;
	restart($zk);
	in_time($node, "$what, emptied");
	is($holder->query(q{SELECT zk_lock_is_held('x')}), 'f', "$what, emptied: the lock of before is lost");
	cmp_ok(scalar(() = log_since($node, $offset) =~ /beginning with a fresh handle/g), '<=', 1, "$what, emptied: no storm of handles");
	$holder->quit;

	if ($nodes == 3)
	{
		my $leader = $zk->leader;
		$holder = ZkTest::Session->new($node);
		$holder->query(q{SELECT zk_lock_acquire('rolling')});
		foreach my $n ((grep { $_ != $leader } $zk->all), $leader)
		{
			$zk->stop_node($n);
			$zk->start_node($n);
			$zk->wait_for_quorum;
			in_time($node, "$what, node $n restarted");
		}
		is($holder->query(q{SELECT zk_lock_is_held('rolling')}), 't', "$what, restarted node by node: the lock is kept");
		$holder->quit;
	}
	else
	{
		# longer than the timeout: what the ensemble keeps is kept
		my $expiries = $node->safe_psql('postgres', 'SELECT expiries FROM zk_session');
		$holder = ZkTest::Session->new($node);
		$holder->query(q{SELECT zk_lock_acquire('outage')});
		$offset = -s $node->logfile;
		$zk->kill_all;
		ok(defined poll_until(sub { log_since($node, $offset) =~ /beginning with a fresh handle/ }, 3 * $timeout), 'an outage longer than the timeout: a fresh handle');
		restart($zk);
		in_time($node, 'after it');
		is($holder->query(q{SELECT zk_lock_is_held('outage')}), 't', 'after it: an idle lock is kept');
		is($node->safe_psql('postgres', 'SELECT expiries FROM zk_session'), $expiries, 'and the ZooKeeper session');
		$holder->quit;
	}
	is(worker_of($node), $worker, "$what: all the time with the same worker");
	end_load(@load);
	$node->stop;
	$zk->stop;
}

done_testing();
