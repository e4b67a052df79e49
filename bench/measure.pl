# measure.pl - what bench/run does once everything is built. Writes $ZKLOCK_WORK/page.md and
# the plots.
#
#	measure.pl SECONDS RUNS LIMITS PLOTS [SECTION...]
#
# A section measures kinds of things that take turns (take_turns), makes from the medians of the
# runs the rows of the page (goal, note, beside, cost), and leaves no server behind. The
# ensembles stay: they are the same for all, and their JVMs are warm.
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use IO::Handle;
use IO::Socket::INET;
use List::Util qw(max min sum);
use POSIX qw(strftime);
use Time::HiRes qw(time sleep);
use BenchPlot;
use BenchServer;
use ZkEnsemble;

my @sections = (
	single => [ 'one backend, acquire and release, beside everything else', \&single ],
	commit => [ 'what a lock adds to COMMIT', \&commit ],
	many => [ '64 backends, each its own lock', \&many ],
	handover => [ '16 and 64 waiters on one lock', \&handover ],
	thousand => [ '1,000 waiters on one lock, on two servers', \&thousand ],
	held => [ '8,000 locks held: heartbeats, latency, memory', \&held ],
	token => [ 'zk_fencing_token in a loop', \&token ],
	guard => [ 'the guard at a table: bench/fence', \&guard ],
	pgbench => [ 'pgbench on a server with the library, no lock used', \&unused ],
	idle => [ 'the worker when nobody asks it', \&idle ],
);

my ($seconds, $runs, $limits, $plots, @wanted) = @ARGV;
my $work = $ENV{ZKLOCK_WORK};
my $started = time;
# for the JIT of those that have one; pgbench and the C client need none
my $warm_up = max(1, $seconds * 0.6);
my (@goals, @notes, @beside, @costs);
my $missed = 0;
my $section_name;
my %ensemble;

STDERR->autoflush;
# exit() and not the default: the ENDs stop the servers.
$SIG{$_} = sub { exit 2 } foreach qw(INT TERM HUP);

# ---------------------------------------------------------------------
# Measuring

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

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return @sorted % 2 ? $sorted[ $#sorted / 2 ] : ($sorted[ @sorted / 2 - 1 ] + $sorted[ @sorted / 2 ]) / 2;
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

sub curator { my ($zk, $which, $threads, $for) = @_; return java('CuratorBench', $zk->hosts, $which, $threads, $for, $warm_up); }

sub kazoo
{
	my ($zk, $which, $threads, $for) = @_;
	return peer('/usr/bin/python3', 'bench/peers/kazoo_bench.py', $zk->hosts, $which, $threads, $for, $warm_up);
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

# ---------------------------------------------------------------------
# Where the time goes

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

# System calls of the worker per cycle, by strace over a second.
sub system_calls
{
	my ($server) = @_;
	my $load = $server->pgbench_start(script => cycle("'own/l' || :client_id"), clients => 64, seconds => 4, log => 0);
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

# ---------------------------------------------------------------------
# Rows of the page

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

# ---------------------------------------------------------------------
# The sections

sub single
{
	my ($one, $three) = (ensemble(1), ensemble(3));
	my $a = BenchServer->new('a', zk => $one);
	my $b = BenchServer->new('b', zk => $three);
	my $other = BenchServer->new('other');
	my $etcd = start_etcd();
	my $two = sub {
		my ($server, @statements) = @_;
		my %opt = (script => join('', map { "$_;\n" } @statements), define => { connected => 'false' });
		return sub { return $server->pgbench(%opt, seconds => $_[0]) };
	};
	$a->query('CREATE EXTENSION dblink');
	my $remote = sprintf 'host=%s port=%d user=postgres dbname=postgres', $work, $other->port;

	my $r = take_turns($runs,
		zklock => sub { return zklock($a, $one, 'own', 1, @_) },
		curator => sub { return curator($one, 'own', 1, @_) },
		bare => sub { return bare($one, @_) },
		zklock3 => sub { return zklock($b, $three, 'own', 1, @_) },
		curator3 => sub { return curator($three, 'own', 1, @_) },
		bare3 => sub { return bare($three, @_) },
		($etcd ? (etcd => sub { return java('EtcdBench', $etcd->{port}, $_[0], $warm_up) }) : ()),
		advisory => $two->($a, 'SELECT pg_advisory_lock(1)', 'SELECT pg_advisory_unlock(1)'),
		# the connection of the first transaction serves all others
		dblink => $two->($a, "\\if not :connected\n\\set connected true\nSELECT dblink_connect('other', '$remote');\n\\endif\n"
			. q{SELECT * FROM dblink('other', 'SELECT pg_advisory_lock(1)') AS t(void text)},
			q{SELECT * FROM dblink('other', 'SELECT pg_advisory_unlock(1)') AS t(done bool)}),
		nothing => $two->($a, 'SELECT 1', 'SELECT 1'));
	stop_etcd($etcd);
	$_->stop foreach $a, $b, $other;

	foreach my $n (1, 3)
	{
		my ($suffix, $nodes) = $n == 1 ? ('', 'one node') : (3, 'three nodes');
		my ($zklock, $curator, $bare) = @$r{ map { "$_$suffix" } qw(zklock curator bare) };
		goal("one backend, acquire and release in two statements, $nodes: beside Curator",
			us($zklock->{median}) . ', Curator ' . us($curator->{median}), ratio($zklock->{median}, $curator->{median}), '<=', 0.75);
		goal("the same beside the bare C client, $nodes",
			us($zklock->{median}) . ', C client ' . us($bare->{median}), ratio($zklock->{median}, $bare->{median}), '<=', 1.0);
		beside("zklock, $nodes", $zklock);
		beside("Curator's InterProcessMutex, $nodes", $curator);
		beside("ZooKeeper's C client alone: create and list together, delete, $nodes", $bare);
		cost("one backend, $nodes", $zklock);
	}
	beside('etcd\'s lock service, one node, JSON gateway, one connection, one lease', $r->{etcd}) if $etcd;
	beside('`pg_advisory_lock` and unlock through dblink, another server on this machine', $r->{dblink});
	beside('`pg_advisory_lock` and unlock in the same database: no other server sees it', $r->{advisory});
	beside('`SELECT 1` twice: what two statements take that do nothing', $r->{nothing});
	note(sprintf 'One backend: two statements that do nothing take %s; the rest is one flight to ZooKeeper, which takes a '
		. 'write to the quorum, and the delete before it, which zklock does not wait for and ZooKeeper has to write first.', us($r->{nothing}{median}));
	return;
}

sub start_etcd
{
	my ($program) = grep { -x } map { "$_/etcd" } split /:/, $ENV{PATH};
	return unless $program;
	my ($port, $peer_port) = map { free_port() } 1, 2;
	my $dir = "$work/etcd-data";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', "$work/tmp/etcd.log";
		open STDERR, '>&', \*STDOUT;
		exec $program, '--name', 'a', '--data-dir', $dir, '--initial-cluster', "a=http://127.0.0.1:$peer_port",
		  '--initial-advertise-peer-urls', "http://127.0.0.1:$peer_port", '--listen-peer-urls', "http://127.0.0.1:$peer_port",
		  '--listen-client-urls', "http://127.0.0.1:$port", '--advertise-client-urls', "http://127.0.0.1:$port"
		  or POSIX::_exit(127);
	}
	my $until = time + 30;
	until (BenchServer::slurp("$work/tmp/etcd.log") =~ /ready to serve client requests|serving insecure client requests/)
	{
		die "etcd does not start:\n" . BenchServer::slurp("$work/tmp/etcd.log") if time > $until || waitpid($pid, POSIX::WNOHANG()) == $pid;
		sleep 0.05;
	}
	return { pid => $pid, port => $port, version => (`$program --version` =~ /Version: (\S+)/)[0] };
}

sub stop_etcd
{
	my ($etcd) = @_;
	return unless $etcd;
	kill 'KILL', $etcd->{pid};
	waitpid $etcd->{pid}, 0;
	return;
}

sub free_port
{
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'tcp', Listen => 1) or die "no free port: $!";
	return $socket->sockport;
}

# COMMIT as psql's client sees it, of transactions that differ in their first statement
# only. Two kinds are the same: what they differ by is noise. The pause is as long as
# acquiring takes, so that all come to their COMMIT as rested.
sub commit
{
	my $zk = ensemble(1);
	my $server = BenchServer->new('a', zk => $zk);
	my %first = (
		without => 'SELECT pg_sleep(0.001)',
		again => 'SELECT pg_sleep(0.001)',
		with => q{SELECT zk_xact_lock_acquire('xact/lock')});
	my @kinds = qw(without with again);
	$server->query('CREATE TABLE written (id int)');

	my %what = (read => 'a transaction that only reads', write => 'a transaction that writes');
	foreach my $sort (qw(read write))
	{
		my %difference;
		my %medians;
		foreach my $run (0 .. $runs)
		{
			progress("$section_name, $what{$sort}: " . ($run ? "run $run of $runs" : 'warm-up'));
			my $session = $server->session;
			my %took;
			my $until = time + ($run ? $seconds : 1);
			while (time < $until)
			{
				foreach my $kind (@kinds)
				{
					my $write = $sort eq 'write' ? 'INSERT INTO written VALUES (1);' : '';
					my $answer = $session->query("BEGIN;\n$first{$kind};\n$write\n\\timing on\nCOMMIT;\n\\timing off\nSELECT 1");
					my ($ms) = $answer =~ /^Time: ([\d.,]+) ms/m or die "no time in: $answer";
					push @{ $took{$kind} }, 1000 * $ms;
				}
				push @kinds, shift @kinds;
			}
			$session->close;
			next unless $run;
			my %m = map { $_ => median(@{ $took{$_} }) } keys %took;
			push @{ $medians{$_} }, $m{$_} foreach keys %m;
			push @{ $difference{with} }, $m{with} - ($m{without} + $m{again}) / 2;
			push @{ $difference{again} }, abs($m{again} - $m{without});
		}
		my $noise = max(@{ $difference{again} });
		my $added = median(@{ $difference{with} });
		goal("transaction-level lock: what it adds to COMMIT, $what{$sort}",
			sprintf('%s, without %s; two kinds without differ by up to %s',
				us(median(@{ $medians{with} })), us(median(@{ $medians{without} })), us($noise)),
			$added, '<=', sprintf('%.1f', $noise), unit => 'µs');
	}
	$server->stop;
	note('COMMIT does not wait for ZooKeeper: the release is a note in shared memory and two system calls, a signal to the '
		. 'worker and a timer that is taken back.');
	return;
}

sub many
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
		note(system_calls($server)) if $limits && $n == 1;
		$server->stop;
	}
	return;
}

sub handover
{
	my $zk = ensemble(1);
	my $server = BenchServer->new('a', zk => $zk);
	foreach my $waiters (16, 64)
	{
		my $r = take_turns($runs,
			zklock => sub { return zklock($server, $zk, 'one', $waiters + 1, @_) },
			curator => sub { return curator($zk, 'one', $waiters + 1, @_) });
		goal("$waiters waiters on one lock: handovers beside Curator",
			per_second($r->{zklock}{rate}) . ', Curator ' . per_second($r->{curator}{rate}), ratio($r->{zklock}{rate}, $r->{curator}{rate}), '>=', 1.8);
		cost("$waiters waiters on one lock", $r->{zklock});
	}
	$server->stop;
	note('Waiters on one lock: a handover is the delete, written by the quorum, and the event that wakes the next; '
		. 'who comes back to the end of the queue adds a create, a listing of all who wait and two watches.');
	return;
}

# A holder, and so many waiters behind it, half of them on each server. When the holder lets
# go, the lock runs through them all; nobody comes back. From the first to the last of the
# waiters counts.
sub thousand
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

sub held
{
	my $zk = ensemble(1);
	my $conf = 'zklock.max_locks = 10000';
	my ($full, $empty) = map { BenchServer->new($_, zk => $zk, conf => $conf) } qw(full empty);
	my $locks = 8000;
	# so that what the worker allocates once is not counted
	$full->pgbench(script => cycle("'h/l' || :client_id"), clients => 64, seconds => 1);
	my $worker = $full->worker;
	my $memory = sub { return (BenchServer::slurp("/proc/$worker/status") =~ /^RssAnon:\s+(\d+) kB/m)[0] };
	my $before = $memory->();

	progress("$section_name: acquiring $locks locks");
	my @holders = map { $full->session } 1 .. 16;
	my $each = $locks / @holders;
	foreach my $i (0 .. $#holders)
	{
		$holders[$i]->send(sprintf q{SELECT count(zk_lock_acquire('h/l' || i)) FROM generate_series(%d, %d) i},
			$i * $each + 1, ($i + 1) * $each);
	}
	$_->answer foreach @holders;
	die 'some are missing' unless $full->query(q{SELECT count(*) FROM zk_locks WHERE state = 'held'}) == $locks;
	sleep 2;
	my $per_lock = ($memory->() - $before) * 1024 / $locks;

	# each heartbeat of both servers, as they come
	my %beats = (full => [], empty => []);
	my %seen;
	my $listen = sub {
		my ($for) = @_;
		my $until = time + $for;
		while (time < $until)
		{
			foreach my $server ($full, $empty)
			{
				my ($at, $took) = split /\|/, $server->query('SELECT heartbeats, extract(epoch FROM heartbeat_round_trip) * 1e6 FROM zk_session');
				push @{ $beats{ $server->{name} } }, $took if ($seen{ $server->{name} } //= $at) != $at;
				$seen{ $server->{name} } = $at;
			}
			sleep 0.1;
		}
		return {};
	};
	my $r = take_turns($runs,
		full => sub { return $full->pgbench(script => cycle("'s/lock'"), seconds => $_[0]) },
		empty => sub { return $empty->pgbench(script => cycle("'s/lock'"), seconds => $_[0]) },
		listen => sub { return $listen->(2 * $_[0]) });
	goal('8,000 locks held: round trip of a heartbeat beside none held',
		sprintf('%s of %d, none held %s', us(median(@{ $beats{full} })), scalar @{ $beats{full} }, us(median(@{ $beats{empty} }))),
		ratio(median(@{ $beats{full} }), median(@{ $beats{empty} })), '<=', 1.1);
	goal('the same: acquire and release of another lock',
		us($r->{full}{median}) . ', none held ' . us($r->{empty}{median}), ratio($r->{full}{median}, $r->{empty}{median}), '<=', 1.1);
	$_->close foreach @holders;
	$_->stop foreach $full, $empty;

	my %size;
	foreach my $max_locks (16, 16384)
	{
		my $server = BenchServer->new('memory', zk => $zk, conf => "zklock.max_locks = $max_locks");
		$size{$max_locks} = $server->query(q{SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'zklock%'});
		$server->stop;
	}
	my $shared = ($size{16384} - $size{16}) / (16384 - 16);
	goal('memory per lock: shared, and in the worker of one that is held',
		sprintf('%.0f + %.0f bytes', $shared, $per_lock), ($shared + $per_lock) / 1024, '<=', 2, unit => 'KiB');
	note('8,000 locks: the two servers, one with them and one without, share one ensemble and are asked in turn. '
		. 'Shared memory is taken at the start for all of `zklock.max_locks`; the worker\'s is the growth of RssAnon.');
	return;
}

sub token
{
	my $server = BenchServer->new('a', zk => ensemble(1));
	my $session = $server->session;
	$session->query(q{SELECT zk_lock_acquire('token')});
	my $loop = sub {
		my ($statement) = @_;
		return sub {
			my $ms = $session->query(<<"END");
DO \$\$
DECLARE
	value bigint;
	number int;
	start timestamptz := clock_timestamp();
BEGIN
	FOR i IN 1 .. 1000000 LOOP
		$statement;
	END LOOP;
	PERFORM set_config('bench.ms', (extract(epoch FROM clock_timestamp() - start) * 1000)::text, false);
END \$\$;
SELECT current_setting('bench.ms')
END
			return { ms => $ms };
		};
	};
	my $r = take_turns($runs,
		empty => $loop->('NULL'),
		pid => $loop->('number := pg_backend_pid()'),
		token => $loop->(q{value := zk_fencing_token('token')}));
	$session->close;
	$server->stop;
	my ($empty, $pid, $token) = map { $r->{$_}{ms} } qw(empty pid token);
	goal('`zk_fencing_token`, a million calls in PL/pgSQL, beside `pg_backend_pid()`: net of the empty loop',
		sprintf('%.0f ms, pg_backend_pid %.0f ms, empty %.0f ms', $token, $pid, $empty), ratio($token - $empty, $pid - $empty), '<=', 1.2);
	goal('the same: the loop included', sprintf('%.0f ms, pg_backend_pid %.0f ms', $token, $pid), ratio($token, $pid), '<=', 1.2);
	note(sprintf 'zk_fencing_token: %.0f ns a call more than pg_backend_pid(), which returns a variable. '
		. 'It checks the name, looks it up and reads a clock.', $token - $pid);
	return;
}

sub guard
{
	my %figure = map { /^(\w+_(?:guard|column))\s+([\d.]+)\s+([\d.]+)/ ? ($1 => [ $2, $3 ]) : () } split /\n/, $ENV{ZKLOCK_BENCH_FENCE} // '';
	my ($rows) = ($ENV{ZKLOCK_BENCH_FENCE} // '') =~ /^(\d+) rows/m;
	my %what = (
		statement_guard => 'FOR EACH STATEMENT',
		row_guard => 'FOR EACH ROW',
		row_column => 'FOR EACH ROW, the token in a column');
	foreach my $kind (qw(statement_guard row_guard row_column))
	{
		my ($ms, $ratio) = @{ $figure{$kind} // [] };
		goal("guard at a table, $what{$kind}: CPU time beside a trigger that does nothing (`bench/fence`)",
			defined $ms ? number($ms) . ' ms for ' . number($rows) . ' rows' : '', $ratio, '<=', 1.1);
	}
	note('Guard: the INSERT is included on both sides. The token is presented once for all rows; '
		. 'what remains for each is a comparison, and with a column to read it.');
	return;
}

sub unused
{
	my $zk = ensemble(1);
	my $conf = "shared_buffers = 256MB";
	my %server = (with => BenchServer->new('with', zk => $zk, conf => $conf), without => BenchServer->new('without', conf => $conf));
	foreach my $server (values %server)
	{
		progress("$section_name: filling $server->{name}");
		BenchServer::command('pgbench', '-q', '-i', '-s', 10, '-h', $work, '-p', $server->port, '-U', 'postgres', 'postgres');
		$server->query('CHECKPOINT');
	}
	my %what = ('select-only' => 'select-only', 'tpcb-like' => 'TPC-B-like');
	foreach my $builtin (qw(select-only tpcb-like))
	{
		# one per cent is little: so twice the runs
		my $r = take_turns(2 * $runs,
			map {
				my $server = $server{$_};
				($_ => sub { return $server->pgbench(builtin => $builtin, clients => 4, seconds => $_[0], log => 0) });
			} qw(with without));
		goal("pgbench, $what{$builtin}, 4 clients: library preloaded, no lock used, beside not preloaded",
			per_second($r->{with}{rate}) . ', without ' . per_second($r->{without}{rate}), ratio($r->{with}{rate}, $r->{without}{rate}), '>=', 0.99);
	}
	$_->stop foreach values %server;
	note('pgbench: the library is called at the start and the end of each statement and of each transaction, and sees there '
		. 'that no lock is held; and its worker sends a heartbeat now and then.');
	return;
}

sub idle
{
	my $server = BenchServer->new('a', zk => ensemble(1));
	my $worker = $server->worker;
	my $now = sub {
		return {
			heartbeats => $server->query('SELECT heartbeats FROM zk_session'),
			wakes => (BenchServer::slurp("/proc/$worker/task/$worker/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m)[0],
			threads => sum(map { BenchServer::slurp($_) =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : 0 } glob "/proc/$worker/task/*/status"),
			cpu => cpu_of($worker),
			time => time,
		};
	};
	# what comes after the start is not idle
	sleep 3;
	my $for = 6 * $seconds;
	progress("$section_name: $for s");
	my $before = $now->();
	sleep $for;
	my $after = $now->();
	$server->stop;
	my %d = map { $_ => $after->{$_} - $before->{$_} } keys %$after;
	goal('idle worker, session timeout 10 s: wake-ups of its main thread per heartbeat',
		sprintf('%d wake-ups, %d heartbeats in %.0f s', $d{wakes}, $d{heartbeats}, $d{time}), ratio($d{wakes}, $d{heartbeats}), '<=', 2);
	goal('the same: CPU time of its process', sprintf('%.1f ms in %.0f s', 1000 * $d{cpu}, $d{time}), 100 * $d{cpu} / $d{time}, '<=', 0.1, unit => '%');
	note(sprintf 'Idle worker: with the two threads of the ZooKeeper client it is %.1f wake-ups per heartbeat.', $d{threads} / max(1, $d{heartbeats}));
	return;
}

sub draw
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

# ---------------------------------------------------------------------
# The page

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

my %sections = @sections;
my @load_before = split ' ', BenchServer::slurp('/proc/loadavg');
my $disk = disk_latency();
foreach my $name (@sections[ map { 2 * $_ } 0 .. @sections / 2 - 1 ])
{
	next if @wanted && !grep { $_ eq $name } @wanted;
	$section_name = $name;
	$sections{$name}[1]->();
}
draw() if $plots;
my $versions = versions();
$_->stop foreach values %ensemble;

my $cpuinfo = BenchServer::slurp('/proc/cpuinfo');
my ($model) = $cpuinfo =~ /^model name\s*:\s*(.*)$/m;
my $processors = () = $cpuinfo =~ /^processor\b/mg;
my ($memory) = BenchServer::slurp('/proc/meminfo') =~ /^MemTotal:\s+(\d+)/;
my $command = join ' ', 'bench/run', ($seconds == 5 ? () : "--seconds $seconds"), ($runs == 5 ? () : "--runs $runs"),
  (map { "--only $_" } @wanted), ($limits ? '--limits' : ()), ($plots ? '--plots doc' : ());

open my $page, '>', "$work/page.md" or die "page.md: $!";
print $page <<"END";
# What it costs

This page was made by `$command` on ${\strftime('%Y-%m-%d', gmtime)}.

Everything on one machine: ${\($model // 'unknown')}, $processors processors, ${\sprintf('%.0f', $memory / 2**20)} GB of memory; load before the start $load_before[0].
A write of 4 kB takes ${\sprintf('%.2f', $disk)} ms until it is on disk. ZooKeeper has fsync on, PostgreSQL the settings of initdb.
Medians of $runs runs of $seconds s; what is compared took turns in each.

$versions

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
print $page <<'END' if $plots;

![latency by number of backends](performance-latency.svg)

![handovers by number of waiters](performance-handover.svg)
END
close $page or die "page.md: $!";
exit($missed ? 1 : 0);
