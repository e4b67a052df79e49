# plots - the two plots of doc/performance.md: latency by number of backends, and handovers by
# number of waiters.
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use BenchMeasure;
use BenchPlot;
use BenchServer;

sub draw_plots
{
	my $zk = ensemble(1);
	my $server = BenchServer->new('a', zk => $zk);
	my $count = int(($runs + 1) / 2);
	my (@at, %line);

	$section_name = 'plot of latencies';
	@at = (1, 2, 4, 8, 16, 32, 64);
	foreach my $n (@at)
	{
		my $r = take_turns($count,
			zklock => sub { return zklock($server, $zk, 'own', $n, @_) },
			Curator => sub { return curator($zk, 'own', $n, @_) },
			kazoo => sub { return kazoo($zk, 'own', $n, @_) });
		push @{ $line{$_} }, $r->{$_}{median} / 1000 foreach keys %$r;
	}
	BenchPlot::draw("$work/performance-latency.svg",
		title => 'Acquire and release, each its own lock, one ZooKeeper node',
		x => 'backends (threads)', y => 'median latency, ms', at => \@at,
		lines => [ map { ($_ => $line{$_}) } qw(zklock Curator kazoo) ]);

	$section_name = 'plot of handovers';
	%line = ();
	@at = (2, 4, 8, 16, 32, 64);
	foreach my $n (@at)
	{
		my $r = take_turns($count,
			zklock => sub { return zklock($server, $zk, 'one', $n + 1, @_) },
			Curator => sub { return curator($zk, 'one', $n + 1, @_) });
		push @{ $line{$_} }, $r->{$_}{rate} foreach keys %$r;
	}
	BenchPlot::draw("$work/performance-handover.svg",
		title => 'Handovers of one lock, one ZooKeeper node',
		x => 'waiters', y => 'handovers per second', at => \@at,
		lines => [ map { ($_ => $line{$_}) } qw(zklock Curator) ]);
	$server->stop;
	return;
}

1;
