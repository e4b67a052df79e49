# many - 64 backends, each its own lock
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use List::Util qw(sum);
use Time::HiRes qw(time);
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_many
{
	foreach my $n (1, 3)
	{
		my $zk = ensemble($n);
		my $server = BenchServer->new('a', zk => $zk);
		my $r = take_turns($runs,
			zklock => sub { return zklock($server, $zk, 'own', 64, @_) },
			curator => sub { return curator($zk, 'own', 64, @_) },
			kazoo => sub { return kazoo($zk, 'own', 64, @_) });
		my $nodes = $n == 1 ? 'one node' : 'three nodes';
		goal("64 backends, each its own lock, $nodes: cycles beside Curator, 64 threads",
			per_second($r->{zklock}{rate}) . ', Curator ' . per_second($r->{curator}{rate}), ratio($r->{zklock}{rate}, $r->{curator}{rate}), '>=', 2.5);
		goal("the same beside kazoo, 64 threads, $nodes",
			per_second($r->{zklock}{rate}) . ', kazoo ' . per_second($r->{kazoo}{rate}), ratio($r->{zklock}{rate}, $r->{kazoo}{rate}), '>=', 6);
		beside("zklock, 64 backends, $nodes", $r->{zklock});
		beside("Curator, 64 threads, $nodes", $r->{curator});
		beside("kazoo, 64 threads, $nodes", $r->{kazoo});
		cost("64 backends, $nodes", $r->{zklock});
		my %cost = %{ $r->{zklock} };
		note(sprintf '64 backends, %s: the machine was %.0f %% busy. A cycle took %.0f µs of CPU time: ZooKeeper %.0f, '
			. 'the backends %.0f, pgbench %.0f, the worker %.0f; and %.2f requests, since creates and deletes of many backends travel in batches.',
			$nodes, 100 * $cost{busy}, sum(@cost{qw(cpu_zookeeper cpu_backends cpu_pgbench cpu_worker)}),
			@cost{qw(cpu_zookeeper cpu_backends cpu_pgbench cpu_worker requests)})
		  if defined $cost{busy};
		note(system_calls($server, cycle("'own/l' || :client_id"))) if $limits && $n == 1;
		$server->stop;
	}
	return;
}

1;
