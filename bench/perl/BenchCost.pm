# BenchCost - where the time of a cycle goes: CPU time of each process, the disk, system calls.
#
# Copyright (c) 2026, zklock developers

package BenchCost;

use strict;
use warnings;

use Exporter 'import';
use IO::Handle;
use List::Util qw(max min sum);
use Time::HiRes qw(time sleep);
use BenchServer;

our @EXPORT = qw(median cpu_of with_costs disk_latency system_calls);

my $work = $ENV{ZKLOCK_WORK};

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return @sorted % 2 ? $sorted[ $#sorted / 2 ] : ($sorted[ @sorted / 2 - 1 ] + $sorted[ @sorted / 2 ]) / 2;
}

# CPU time of a process in seconds: the scheduler's nanoseconds of its threads, for /proc/PID/stat
# counts in steps of 10 ms, within which most backends stay.
sub cpu_of
{
	my ($pid) = @_;
	return sum(0, map { (split ' ', BenchServer::slurp($_) || 0)[0] / 1e9 } glob "/proc/$pid/task/*/schedstat");
}

# busy and total time of all processors
sub machine
{
	my (undef, @f) = split ' ', (split /\n/, BenchServer::slurp('/proc/stat'))[0];
	my $idle = $f[3] + $f[4];
	return (sum(@f[ 0 .. 7 ]) - $idle, sum(@f[ 0 .. 7 ]));
}

# with_costs($server, $zk, %options): pgbench with these options, and in the result the CPU time per
# transaction in microseconds of the worker, of the backends, of ZooKeeper and of pgbench,
# the worker's requests, and how much of the machine was busy, by whomever. All from the middle of the run: the
# start and the end of so many backends cost more than their transactions.
sub with_costs
{
	my ($server, $zk, %opt) = @_;
	my $worker = $server->worker;
	my $backends = q{SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity WHERE application_name = 'pgbench'};
	my $pgbench = $server->pgbench_start(%opt);
	my @pids;
	for (my $until = time + 30; time < $until; sleep 0.02)
	{
		@pids = split ' ', $server->query($backends);
		last if @pids == $opt{clients};
	}
	my $now = sub {
		my ($busy, $total) = machine();
		return {
			worker => cpu_of($worker),
			backends => sum(map { cpu_of($_) } @pids),
			zookeeper => sum(map { cpu_of($zk->pid($_)) } $zk->all),
			pgbench => cpu_of($pgbench->{pid}),
			requests => $server->query('SELECT requests FROM zk_session'),
			busy => $busy,
			total => $total,
			time => time,
		};
	};
	sleep 0.2 * $opt{seconds};
	my $before = $now->();
	sleep 0.6 * $opt{seconds};
	my $after = $now->();
	my $result = $pgbench->finish;
	# where the machine is so late that the run was over, there is nothing to say
	return $result if $after->{time} > $result->{ends}[-1];
	my $n = grep { $_ >= $before->{time} && $_ < $after->{time} } @{ $result->{ends} };
	$result->{"cpu_$_"} = 1e6 * ($after->{$_} - $before->{$_}) / max(1, $n) foreach qw(worker backends zookeeper pgbench);
	$result->{requests} = ($after->{requests} - $before->{requests}) / max(1, $n);
	$result->{busy} = ($after->{busy} - $before->{busy}) / max(1, $after->{total} - $before->{total});
	return $result;
}

# Milliseconds that a write of 4 kB to a file of ours takes until it is on disk: below it nothing
# durable can be.
sub disk_latency
{
	open my $file, '>', "$work/tmp/disk" or die "disk: $!";
	my @took;
	foreach (1 .. 200)
	{
		my $start = time;
		syswrite $file, 'x' x 4096;
		$file->sync;
		push @took, 1000 * (time - $start);
	}
	close $file;
	unlink "$work/tmp/disk";
	return median(@took);
}

# system_calls($server, $script): a sentence about the system calls of the worker per cycle of this
# script, which strace counts over a second.
sub system_calls
{
	my ($server, $script) = @_;
	my $load = $server->pgbench_start(script => $script, clients => 64, seconds => 4, log => 0);
	sleep 1.5;
	my $acquired = $server->query('SELECT acquired FROM zk_lock_stats_total()');
	my $worker = $server->worker;
	# -w would count the time; the counts are what we want
	system("timeout -s INT 1 strace -c -f -p $worker -o $work/tmp/strace >/dev/null 2>&1");
	my $cycles = $server->query('SELECT acquired FROM zk_lock_stats_total()') - $acquired;
	$load->finish;
	my %calls = map { /^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$/ ? ($2 => $1) : () }
	  split /\n/, BenchServer::slurp("$work/tmp/strace");
	delete $calls{total};
	return 'strace has not counted anything' unless %calls && $cycles;
	my @names = (sort { $calls{$b} <=> $calls{$a} || $a cmp $b } keys %calls)[ 0 .. min(5, keys(%calls) - 1) ];
	return sprintf 'The worker made %.1f system calls per cycle in a second with 64 backends under strace, '
	  . 'which slows it down (%d cycles in that second): %s.',
	  sum(values %calls) / $cycles, $cycles, join ', ', map { sprintf '%s %.1f', $_, $calls{$_} / $cycles } @names;
}

1;
