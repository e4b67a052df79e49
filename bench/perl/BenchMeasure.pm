# BenchMeasure - how bench/measure.pl measures: things that take turns, on ensembles that are warm, and
# the clients that zklock is measured beside.
#
# Copyright (c) 2026, zklock developers

package BenchMeasure;

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max min);
use Time::HiRes qw(time);
use BenchCost;
use BenchServer;
use ZkEnsemble;

our @EXPORT = qw($seconds $runs $limits $work $section_name
  progress take_turns ensemble stop_ensembles java curator kazoo bare cycle zklock);

# What bench/run asks for: how long one measurement takes, how many there are of each kind, and
# whether the costs that need strace are wanted, too.
our ($seconds, $runs, $limits);
our $work = $ENV{ZKLOCK_WORK};
# The section that runs, for messages about progress.
our $section_name;

my $started = time;
my %ensemble;

sub progress { printf STDERR "[%3ds] %s\n", time - $started + ($ENV{ZKLOCK_ELAPSED} // 0), $_[0]; return; }

# take_turns($runs, name => $code, ...): call each once in each run, each time in another
# order, with the number of seconds that it shall measure; each returns a hash of numbers. The
# result has for each name the medians, and below "all" the list of hashes. A round for one
# second comes before, uncounted: it makes directories and warms the servers up.
sub take_turns
{
	my ($count, @kinds) = @_;
	my (@names, %code, %all);
	while (my ($name, $code) = splice @kinds, 0, 2)
	{
		push @names, $name;
		$code{$name} = $code;
	}
	progress("$section_name: warm-up");
	$code{$_}->(1) foreach @names;
	foreach my $run (1 .. $count)
	{
		progress("$section_name: run $run of $count");
		push @{ $all{$_} }, $code{$_}->($seconds) foreach @names;
		push @names, shift @names;
	}
	my %result;
	foreach my $name (@names)
	{
		my %fields = map { %$_ } @{ $all{$name} };
		foreach my $field (grep { !ref $fields{$_} } keys %fields)
		{
			$result{$name}{$field} = median(grep { defined } map { $_->{$field} } @{ $all{$name} });
		}
		$result{$name}{all} = $all{$name};
	}
	return \%result;
}

# The ensemble with so many nodes: as in production, so with fsync, the full JIT and a heap
# that is no worry; and used for a while, or the first to be measured would pay for the JIT.
# tickTime is 2 s.
sub ensemble
{
	my ($nodes) = @_;
	return $ensemble{$nodes} if $ensemble{$nodes};
	my $zk = ZkEnsemble->new(
		nodes => $nodes,
		name => "zk$nodes-",
		java => [ '-Xmx512m', '-XX:TieredStopAtLevel=4', '-Dzookeeper.forceSync=yes', '-Dzookeeper.preAllocSize=65536' ])->start;
	progress("warming up an ensemble of $nodes");
	curator($zk, $_, 16, min(10, 2 * $seconds)) foreach qw(own one);
	return $ensemble{$nodes} = $zk;
}

sub stop_ensembles { $_->stop foreach values %ensemble; return; }

# A peer's "cycles per second, median, p99".
sub peer
{
	my (@command) = @_;
	my $pid = open(my $out, '-|') // die "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDERR, '>', "$work/tmp/peer.log";
		exec @command or POSIX::_exit(127);
	}
	my $line = do { local $/; <$out> } // '';
	close $out;
	my @f = $line =~ /^([\d.]+) ([\d.]+) ([\d.]+)$/m;
	die "@command failed:\n" . BenchServer::slurp("$work/tmp/peer.log") unless $? == 0 && @f == 3;
	return { rate => $f[0], median => $f[1], p99 => $f[2] };
}

sub java
{
	my ($class, @arguments) = @_;
	return peer('java', '-Xmx512m', '-cp', $ENV{ZKLOCK_BENCH_CLASSPATH}, $class, @arguments);
}

# For the just-in-time compilers of those that have one. pgbench and the C client need none.
sub warm_up { return max(1, $seconds * 0.6); }

sub curator { my ($zk, $which, $threads, $for) = @_; return java('CuratorBench', $zk->hosts, $which, $threads, $for, warm_up()); }

sub kazoo
{
	my ($zk, $which, $threads, $for) = @_;
	return peer('/usr/bin/python3', 'bench/peers/kazoo_bench.py', $zk->hosts, $which, $threads, $for, warm_up());
}

sub bare { my ($zk, $for) = @_; return peer("$work/peers/bare", $zk->hosts, $for, 0.2); }

sub cycle { my ($name) = @_; return "SELECT zk_lock_acquire($name);\nSELECT zk_lock_release($name);\n"; }

# zklock's cycle: two statements, prepared. Which: own or one.
sub zklock
{
	my ($server, $zk, $which, $clients, $for) = @_;
	my $script = cycle($which eq 'own' ? "'own/l' || :client_id" : "'one/lock'");
	return with_costs($server, $zk, script => $script, clients => $clients, seconds => $for);
}

1;
