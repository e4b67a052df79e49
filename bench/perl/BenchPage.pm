# BenchPage - the page that bench/measure.pl writes: its rows, its numbers, and the page itself.
#
# Copyright (c) 2026, zklock developers

package BenchPage;

use strict;
use warnings;

use Exporter 'import';
use POSIX qw(strftime);
use BenchMeasure;
use BenchServer;

our @EXPORT = qw(goal note beside cost ratio number us per_second versions write_page missed);

my (@goals, @notes, @beside, @costs);
my $missed = 0;

# How many goals were not met.
sub missed { return $missed; }

# goal($what, $figures, $ratio, '<=' or '>=', $limit): a row of the table of goals. What is
# undefined was not measured.
sub goal
{
	my ($what, $figures, $ratio, $relation, $limit, %opt) = @_;
	my $met = 'not measured';
	if (defined $ratio)
	{
		my $is_met = $relation eq '<=' ? $ratio <= $limit : $ratio >= $limit;
		$met = $is_met ? 'met' : '**not met**';
		$missed++ unless $is_met;
	}
	my $relation_sign = $relation eq '<=' ? '≤' : '≥';
	my $unit = $opt{unit} // '×';
	push @goals, sprintf '| %s | %s | %s | %s %s | %s |', $what, $figures,
	  defined $ratio ? number($ratio, 1) . " $unit" : '', $relation_sign, "$limit $unit", $met;
	progress("$what: $figures: $goals[-1]") if $ENV{ZKLOCK_BENCH_VERBOSE};
	return;
}

sub note { my ($text) = @_; push @notes, "- $text"; return; }

# beside($what, $result): a row of the table of cycles
sub beside
{
	my ($what, $r) = @_;
	push @beside, sprintf '| %s | %s | %s | %s |', $what, us($r->{median}), us($r->{p99}), per_second($r->{rate});
	return;
}

# cost($what, $result): a row of the table of CPU times, if with_costs was there
sub cost
{
	my ($what, $r) = @_;
	return unless defined $r->{busy};
	push @costs, sprintf '| %s | %s | %.2f | %s | %s | %s | %s | %.0f %% |', $what, per_second($r->{rate}), $r->{requests},
	  (map { sprintf '%.0f', $r->{"cpu_$_"} } qw(worker backends zookeeper pgbench)), 100 * $r->{busy};
	return;
}

sub ratio { my ($a, $b) = @_; return $b ? $a / $b : undef; }

# With three digits at least, and thousands apart
sub number
{
	my ($x) = @_;
	my $digits = abs($x) >= 100 ? 0 : abs($x) >= 10 ? 1 : abs($x) >= 0.1 ? 2 : 3;
	my $text = sprintf '%.*f', $digits, $x;
	1 while $text =~ s/^(-?\d+)(\d{3})(?!\d)/$1,$2/;
	return $text;
}

sub us { my ($x) = @_; return $x >= 10_000 ? number($x / 1000) . ' ms' : number($x) . ' µs'; }

sub per_second { my ($x) = @_; return number($x) . '/s'; }

sub package_version { my ($package) = @_; return `dpkg-query -W -f '\${Version}' $package 2>/dev/null` || 'unknown'; }

sub versions
{
	my ($zklock) = BenchServer::slurp('zklock.control') =~ /^default_version = '(.*)'/m;
	my ($java) = `java -version 2>&1` =~ /"(.*?)"/;
	my ($python) = `/usr/bin/python3 --version` =~ /(\S+)$/;
	my ($postgres) = `postgres --version` =~ /\) (.*)/;
	my ($etcd) = `etcd --version 2>/dev/null` =~ /Version: (\S+)/;
	my ($system) = BenchServer::slurp('/etc/os-release') =~ /^PRETTY_NAME="(.*)"/m;
	return sprintf 'zklock %s on PostgreSQL %s with libzookeeper_mt %s; Apache Curator %s with Java %s; '
	  . 'kazoo %s with Python %s; etcd %s; ZooKeeper %s; %s, Linux %s.',
	  $zklock, $postgres, package_version('libzookeeper-mt2'), package_version('libcurator-recipes-java'), $java // 'unknown',
	  package_version('python3-kazoo'), $python // 'unknown', $etcd // 'not there', package_version('zookeeper'), $system // 'unknown', (POSIX::uname())[2];
}

# write_page(%options): write $ZKLOCK_WORK/page.md.
#
#	only		the sections that were asked for, or none for all
#	plots		were plots asked for?
#	load		the load average before the start
#	disk		what disk_latency() said
#	versions	what versions() said
sub write_page
{
	my (%opt) = @_;
	my $cpuinfo = BenchServer::slurp('/proc/cpuinfo');
	my ($model) = $cpuinfo =~ /^model name\s*:\s*(.*)$/m;
	my $processors = () = $cpuinfo =~ /^processor\b/mg;
	my ($memory) = BenchServer::slurp('/proc/meminfo') =~ /^MemTotal:\s+(\d+)/;
	my $command = join ' ', 'bench/run', ($seconds == 5 ? () : "--seconds $seconds"), ($runs == 5 ? () : "--runs $runs"),
	  (map { "--only $_" } @{ $opt{only} }), ($limits ? '--limits' : ()), ($opt{plots} ? '--plots doc' : ());

	open my $page, '>', "$work/page.md" or die "page.md: $!";
	print $page <<"END";
# What it costs

This page was made by `$command` on ${\strftime('%Y-%m-%d', gmtime)}.

Everything on one machine: ${\($model // 'unknown')}, $processors processors, ${\sprintf('%.0f', $memory / 2**20)} GB of memory; load before the start $opt{load}.
A write of 4 kB takes ${\sprintf('%.2f', $opt{disk})} ms until it is on disk. ZooKeeper has fsync on, PostgreSQL the settings of initdb.
Medians of $runs runs of $seconds s; what is compared took turns in each.

$opt{versions}

| what | measured | ratio | goal | |
|---|---|---|---|---|
END
	print $page map { "$_\n" } @goals;
	print $page <<'END', map { "$_\n" } @beside if @beside;

## One cycle beside others

Acquire and release by one client, unless the row says otherwise. What each of these gives differs: only ZooKeeper and etcd
survive the loss of a server, and only zklock refuses the commit of a holder that has lost its lock.

| | median | p99 | cycles |
|---|---|---|---|
END
	if (@notes || @costs)
	{
		print $page "\n## What limits it\n\n", map { "$_\n" } @notes;
	}
	print $page <<'END', map { "$_\n" } @costs if @costs;

zklock's requests to ZooKeeper per cycle, those that travel in one batch counted as one; the CPU time of a cycle in
microseconds; how much of the machine was busy, with whatever:

| | cycles | requests | worker | backends | ZooKeeper | pgbench | busy |
|---|---|---|---|---|---|---|---|
END
	print $page <<'END' if $opt{plots};

![latency by number of backends](performance-latency.svg)

![handovers by number of waiters](performance-handover.svg)
END
	close $page or die "page.md: $!";
	return;
}

1;
