# overlap.pl - what test/overlap does once everything is built. Writes
# $ZKLOCK_WORK/page.md.
#
# In each trial three pairs of clients meet the same fault at the same time: zklock,
# Curator, kazoo. The holders talk to one node, through proxies; the waiters of the same
# kind talk to the other two, directly.
#
# When does a holder know? Two answers for each kind, all times from the one clock of
# this machine:
#
#	careful		zklock: a transaction that wrote a row and holds the lock ends with
#				ZK001 (seen by its client). Curator, kazoo: the connection state
#				listener says SUSPENDED or LOST.
#	work		zklock: the last commit of a loop that commits every 20 ms under a
#				backend-level lock. Curator, kazoo: the lock object itself,
#				isAcquiredInThisProcess() or is_acquired, asked every 20 ms.
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

# before PostgreSQL's modules take standard error away
our $progress;
BEGIN { open $progress, '>&', \*STDERR or die "stderr: $!" }

use Getopt::Long;
use List::Util qw(max min);
use Time::HiRes qw(time sleep);
use PostgreSQL::Test::Utils;
use ZkTest;

my $started = time;
my $late = 0;    # trials in which zklock was not first

# Each fault: what it is called, which node the holders talk to, whether they can reach
# another one, what happens, whether it costs the lock, and how it is undone.
my @faults = (
	'follower-cut' => {
		text => 'follower cut off from the leader and the third node; the link to the client works; no other node in reach',
		role => 'follower', alone => 1,
		cause => sub { zk()->isolate($_[0]{node}) },
		cure => sub { zk()->rejoin($_[0]{node}) },
	},
	'leader-cut' => {
		text => 'the same, and the node is the leader; the others are told nothing',
		role => 'leader', alone => 1,
		cause => sub { zk()->isolate($_[0]{node}) },
		cure => sub { zk()->rejoin($_[0]{node}) },
	},
	'leader-cut-told' => {
		text => 'the same, and the connections of the followers are reset at once',
		role => 'leader', alone => 1,
		cause => sub { zk()->isolate($_[0]{node}, hang_up => 1) },
		cure => sub { zk()->rejoin($_[0]{node}) },
	},
	'black-hole' => {
		text => 'all links of the client swallow everything',
		role => 'follower',
		cause => sub { zk()->proxy(undef, 'freeze') },
		cure => sub { zk()->proxy(undef, 'pass') },
	},
	'node-killed' => {
		text => 'the node of the client is killed, the others are in reach',
		role => 'follower', kept => 1,
		cause => sub { zk()->kill_node($_[0]{node}) },
		cure => sub { zk()->start_node($_[0]{node}) },
	},
	'leader-paused-3' => {
		text => 'the leader pauses for 3 s; the client talks to a follower',
		role => 'follower', kept => 1, pause => 3,
	},
	'leader-paused-6' => {
		text => 'the leader pauses for 6 s; the client talks to a follower',
		role => 'follower', kept => 1, pause => 6,
	},
	'client-stopped' => {
		text => 'the holder is stopped until the other has the lock, and resumed (zklock: all processes of the PostgreSQL server); counted from when it runs again',
		role => 'follower', stops_client => 1,
	},
);
my %fault = @faults;
my @order = map { $faults[ 2 * $_ ] } 0 .. $#faults / 2;

# ---------------------------------------------------------------------
# Arguments

my $command = join ' ', 'test/overlap', @ARGV;
my (@trials, @timeouts, @only);
GetOptions('trials=s' => \@trials, 'timeout=i' => \@timeouts, 'fault=s' => \@only)
  or die_now('see test/overlap --help');
@timeouts = (4) unless @timeouts;
my %trials = map { ($_ => 5) } @order;
foreach my $t (@trials)
{
	my ($which, $n) = $t =~ /^(?:([a-z0-9-]+)=)?(\d+)$/ or die_now("--trials $t?");
	die_now("no such fault: $which") if defined $which && !$fault{$which};
	$trials{$_} = $n foreach defined $which ? $which : @order;
}
foreach my $name (@only)
{
	die_now("no such fault: $name") unless $fault{$name};
}
@order = @only if @only;

# ---------------------------------------------------------------------
# The stage

my $zk = ZkEnsemble->new(nodes => 3, tick => 2000, sync_limit => 5, proxy => 1, quorum_proxy => 1)->start;
my $conf = "track_commit_timestamp = on\n";
my $work = $ENV{ZKLOCK_WORK};
my $number = 0;
my ($holder, $waiter, $waiter_hosts);

sub zk { return $zk }

sub die_now
{
	my ($why) = @_;
	print $progress "error: $why\n";
	exit 2;
}

sub report
{
	my ($format, @values) = @_;
	printf $progress "[%3ds] $format\n", time - $started, @values;
	return;
}

sub start_holder_server
{
	my ($timeout) = @_;
	$holder->stop if $holder;
	$holder = zk_server("holder$timeout", $zk, conf => "$conf\nzklock.session_timeout = ${timeout}s");
	$holder->safe_psql('postgres', <<'END');
CREATE TABLE work (lock text);
CREATE PROCEDURE work_in_a_loop(lock text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM zk_lock_acquire(lock);
	LOOP
		INSERT INTO work VALUES (lock);
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
END $$;
END
	return;
}

# The waiters' server talks to these nodes and no other.
sub point_waiter_to
{
	my (@nodes) = @_;
	my $hosts = $zk->direct_hosts(@nodes);
	return if defined $waiter_hosts && $waiter_hosts eq $hosts;
	if ($waiter)
	{
		$waiter->append_conf('postgresql.conf', "zklock.hosts = '$hosts'");
		$waiter->restart;
	}
	else
	{
		$waiter = zk_server('waiter', $zk, conf => "$conf\nzklock.session_timeout = 4s", hosts => $hosts);
	}
	$waiter_hosts = $hosts;
	wait_for_lease($waiter);
	return;
}

# Wait for a condition that comes true unless something is broken.
sub need
{
	my ($what, $condition, $timeout) = @_;
	defined poll_until($condition, $timeout // 60) or die "$what: waited in vain";
	return;
}

# ---------------------------------------------------------------------
# Pairs: a holder, a waiter, and what is known of them. {granted}: when the waiter had
# the lock. {careful}, {work}: when the holder knew. look() brings them up to date.

package Pair::Zklock;

use strict;
use warnings;
use Time::HiRes qw(time);
use ZkTest;

sub new
{
	my ($class, $holder_server, $waiter_server, $number) = @_;
	my $self = bless {
		kind => 'zklock',
		server => $holder_server,
		xact => "overlap/xact $number",
		loop => "overlap/loop $number",
		granted => undef, careful => undef, work => undef,
	}, $class;
	$self->{holder} = ZkTest::Session->new($holder_server);
	$self->{looper} = ZkTest::Session->new($holder_server);
	my $token = $self->{holder}->query(
		"BEGIN; INSERT INTO work VALUES ('$self->{xact}'); SELECT zk_xact_lock_acquire('$self->{xact}')");
	die $token unless $token =~ /^\d+$/;
	$self->{holder}->send('SELECT pg_sleep(600)');
	$self->{looper}->send("CALL work_in_a_loop('$self->{loop}')");
	poll_until(sub { $self->rows('loop') > 0 }, 60) // die 'the loop does not begin';
	foreach my $what (qw(xact loop))
	{
		$self->{waiting}{$what} = ZkTest::Session->new($waiter_server);
		# the server itself says when
		$self->{waiting}{$what}->send(
			"SELECT zk_lock_acquire('$self->{$what}', timeout => '10 min'); SELECT extract(epoch FROM clock_timestamp())");
	}
	return $self;
}

sub rows
{
	my ($self, $what) = @_;
	return $self->{server}->safe_psql('postgres', "SELECT count(*) FROM work WHERE lock = '$self->{$what}'");
}

sub waits
{
	my ($self, $zk) = @_;
	return contenders($zk, $self->{xact}) == 2 && contenders($zk, $self->{loop}) == 2;
}

sub look
{
	my ($self) = @_;
	my $now = time;
	foreach my $what (qw(xact loop))
	{
		next if defined $self->{granted_each}{$what} || !$self->{waiting}{$what}->answered;
		my $answer = $self->{waiting}{$what}->wait;
		($self->{granted_each}{$what}) = $answer =~ /^\d+\n([\d.]+)$/ or die "the waiter got: $answer";
	}
	$self->{granted} = $self->{granted_each}{xact};
	if (!defined $self->{careful} && $self->{holder}->answered)
	{
		$self->{answer} = $self->{holder}->wait;
		$self->{careful} = $now;
	}
	if (!defined $self->{loop_ended} && $self->{looper}->answered)
	{
		$self->{loop_answer} = $self->{looper}->wait;
		$self->{loop_ended} = $now;
	}
	return;
}

# both locks, since both holders were hit
sub settled
{
	my ($self) = @_;
	return defined $self->{granted_each}{loop} && defined $self->{granted} && defined $self->{careful}
	  && defined $self->{loop_ended};
}

sub granted_all { my ($self) = @_; return defined $self->{granted_each}{loop} && defined $self->{granted}; }

sub processes { my ($self) = @_; return main::processes_of($self->{server}); }

sub finish
{
	my ($self) = @_;
	$self->look;
	if (!defined $self->{careful})
	{
		# nothing has happened to it
		$self->{server}->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $self->{holder}->backend . ')');
		$self->{holder}->wait(10);
	}
	$self->{holder}->query('COMMIT; SELECT 1', 10);
	$self->{wrong} = $self->rows('xact');
	$self->{looper}->kill_client;
	if (defined $self->{loop_ended})
	{
		$self->{work} = $self->{server}->safe_psql('postgres',
			"SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin))) FROM work WHERE lock = '$self->{loop}'");
	}
	else
	{
		$self->{server}->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $self->{looper}->backend . ')');
	}
	$_->kill_client foreach $self->{holder}, values %{ $self->{waiting} };
	return;
}

sub grant_for { my ($self, $column) = @_; return $column eq 'work' ? $self->{granted_each}{loop} : $self->{granted}; }

package Pair::Foreign;

use strict;
use warnings;
use IPC::Open3;
use IO::Select;
use Time::HiRes qw(time);

my %program = (
	Curator => [ 'java', '-Xmx64m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-XX:-UsePerfData',
		'-cp', "/usr/share/java/curator-recipes.jar:$ENV{ZKLOCK_WORK}", 'CuratorHolder' ],
	kazoo => [ '/usr/bin/python3', 'test/interop/kazoo_holder.py' ],
);

sub start
{
	my ($kind, $hosts, $timeout, $path) = @_;
	open my $log, '>>', "$ENV{ZKLOCK_WORK}/$kind.log" or die "log: $!";
	my $pid = open3(my $in, my $out, '>&' . fileno($log), @{ $program{$kind} }, $hosts, $timeout * 1000, $path);
	return { pid => $pid, in => $in, out => $out, buffer => '', select => IO::Select->new($out) };
}

sub lines
{
	my ($process) = @_;
	while ($process->{select}->can_read(0))
	{
		last unless sysread $process->{out}, $process->{buffer}, 65536, length $process->{buffer};
	}
	my @lines;
	push @lines, $1 while $process->{buffer} =~ s/^(.*)\n//;
	return @lines;
}

sub new
{
	my ($class, $kind, $hosts, $timeout, $path) = @_;
	return bless {
		kind => $kind,
		path => $path,
		timeout => $timeout,
		holder => start($kind, $hosts, $timeout, $path),
		granted => undef, careful => undef, work => undef,
	}, $class;
}

sub await_acquired
{
	my ($self) = @_;
	main::need("$self->{kind} acquires", sub { $self->look; $self->{acquired} });
	return;
}

sub start_waiter
{
	my ($self, $hosts) = @_;
	$self->{waiter} = start($self->{kind}, $hosts, 4, $self->{path});
	return;
}

sub waits { my ($self, $zk) = @_; return $zk->ls($self->{path}) == 2; }

sub look
{
	my ($self) = @_;
	foreach my $line (lines($self->{holder}))
	{
		my ($what, $ms, $value) = split ' ', $line;
		my $at = $ms / 1000;
		$self->{acquired} = $at if $what eq 'acquired';
		$self->{last} = $at;
		next unless $self->{acquired};
		$self->{careful} //= $at if $what eq 'state' && $value =~ /SUSPENDED|LOST/;
		$self->{work} //= $at if $what eq 'believes' && $value eq 'false';
	}
	if ($self->{waiter})
	{
		foreach my $line (lines($self->{waiter}))
		{
			my ($what, $ms) = split ' ', $line;
			$self->{granted} //= $ms / 1000 if $what eq 'acquired';
		}
	}
	return;
}

sub settled { my ($self) = @_; return defined $self->{granted} && defined $self->{careful}; }
sub granted_all { my ($self) = @_; return defined $self->{granted}; }
sub processes { my ($self) = @_; return $self->{holder}{pid}; }
sub grant_for { my ($self) = @_; return $self->{granted}; }

sub finish
{
	my ($self) = @_;
	$self->look;
	foreach my $process (grep { defined } @$self{qw(holder waiter)})
	{
		kill 'KILL', $process->{pid};
		waitpid $process->{pid}, 0;
	}
	return;
}

package main;

# ---------------------------------------------------------------------
# One trial

# Returns { kind => { moved, gave_up, careful => overlap, work => overlap, ... } }.
sub trial
{
	my ($name, $timeout) = @_;
	my $f = $fault{$name};
	my $n = ++$number;

	# An election after a cut can take ZooKeeper a minute; between two trials there is a
	# quicker way.
	unless (eval { $zk->wait_for_quorum(15); 1 })
	{
		$zk->kill_all;
		$zk->start_all;
	}
	my $node = $f->{role} eq 'leader' ? $zk->leader : ($zk->followers)[0];
	my @others = grep { $_ != $node } $zk->all;
	my $leader = $zk->leader;
	point_waiter_to(@others);

	# the holders to their node
	$zk->proxy($_, 'refuse') foreach @others;
	$zk->proxy($_, 'cut') foreach @others;
	my $worker = worker_of($holder);
	need('the worker moves', sub { ($zk->node_of($worker) // 0) == $node });
	wait_for_lease($holder);
	wait_for_lease($waiter);
	my @pairs = map { Pair::Foreign->new($_, $zk->hosts, $timeout, "/overlap/$_/$n") } qw(Curator kazoo);
	push @pairs, Pair::Zklock->new($holder, $waiter, $n);
	foreach my $pair (@pairs[ 0, 1 ])
	{
		$pair->await_acquired;
		$pair->start_waiter($zk->direct_hosts(@others));
	}
	foreach my $pair (@pairs)
	{
		need("$pair->{kind} waits", sub { $pair->waits($zk) });
		need("$pair->{kind} is at its node", sub { ($zk->node_of($pair->{holder}{pid}) // 0) == $node })
		  if $pair->{kind} ne 'zklock';
	}
	unless ($f->{alone})
	{
		$zk->proxy($_, 'accept') foreach @others;
	}
	$_->look foreach @pairs;
	die "$_->{kind} has given up before the fault" foreach grep { defined $_->{careful} } @pairs;

	my $at = time;
	my $resumed = 0;
	my $trial = { node => $node, leader => $leader };
	if ($f->{stops_client})
	{
		my @processes = map { $_->processes } @pairs;
		kill 'STOP', reverse @processes;
		need('the locks move', sub { $_->look foreach @pairs; !grep { !$_->granted_all } @pairs });
		$resumed = time;
		kill 'CONT', @processes;
		poll_until(sub { $_->look foreach @pairs; !grep { !$_->settled } @pairs }, 20);
	}
	elsif ($f->{pause})
	{
		$zk->freeze_node($leader);
		poll_until(sub { $_->look foreach @pairs; time >= $at + $f->{pause} }, $f->{pause} + 1);
		$zk->thaw_node($leader);
	}
	else
	{
		$f->{cause}->($trial);
	}
	# What costs the lock is watched until all is settled, the rest for as long as it
	# could still cost it: T and a tick, and what a new leader needs.
	my $limit = $f->{kept} ? $timeout + 4 + ($f->{pause} ? 2 : 4) : 60 + $timeout;
	poll_until(sub { $_->look foreach @pairs; !grep { !$_->settled } @pairs }, $limit) unless $f->{stops_client};

	my $end = time;
	$f->{cure}->($trial) if $f->{cure};
	$zk->proxy($_, 'accept') foreach @others;
	my %result;
	foreach my $pair (@pairs)
	{
		$pair->finish;
		my %r = (moved => defined $pair->grant_for('careful'), gave_up => defined $pair->{careful});
		foreach my $column (qw(careful work))
		{
			my $grant = $pair->grant_for($column) // next;
			# a stopped process does nothing
			my $since = max($grant, $resumed);
			$r{$column} = defined $pair->{$column} ? $pair->{$column} - ($pair->{$column} < $grant ? $grant : $since) : undef;
		}
		$r{known} = $pair->{careful} - $at if defined $pair->{careful};
		$r{moved_after} = $pair->{granted} - $at if defined $pair->{granted};
		if ($pair->{kind} eq 'zklock')
		{
			$r{wrong} = $r{moved} ? $pair->{wrong} : 0;
			$late++ if $r{wrong} || ($r{work} // -1) > 0 || (!$resumed && ($r{careful} // -1) > 0);
		}
		$result{ $pair->{kind} } = \%r;
	}
	return \%result;
}

# ---------------------------------------------------------------------
# The page

sub signed { my ($x) = @_; return sprintf '%s%.2f', $x < 0 ? "\x{2212}" : '+', abs $x; }

sub spread
{
	my (@values) = @_;
	my @known = sort { $a <=> $b } grep { defined } @values;
	return 'never' if @values && !@known;
	return '' unless @known;
	my $text = @known == 1 ? signed($known[0])
	  : sprintf '%s to %s, median %s', signed($known[0]), signed($known[-1]), signed($known[ $#known / 2 ]);
	my $never = @values - @known;
	return $never ? "$text; $never never" : $text;
}

sub version_of
{
	my ($package) = @_;
	my $version = `dpkg-query -W -f '\${Version}' $package 2>/dev/null`;
	return $version || 'unknown';
}

sub versions
{
	my ($zklock) = PostgreSQL::Test::Utils::slurp_file('zklock.control') =~ /^default_version = '(.*)'/m;
	my ($java) = `java -version 2>&1` =~ /"(.*?)"/;
	my ($python) = `/usr/bin/python3 --version` =~ /(\S+)$/;
	my $postgres = $holder->safe_psql('postgres', 'SHOW server_version');
	my ($system) = PostgreSQL::Test::Utils::slurp_file('/etc/os-release') =~ /^PRETTY_NAME="(.*)"/m;
	return sprintf 'zklock %s on PostgreSQL %s with libzookeeper_mt %s; Apache Curator %s with Java %s; kazoo %s with Python %s; ZooKeeper %s; %s.',
	  $zklock, $postgres, version_of('libzookeeper-mt2'), version_of('libcurator-recipes-java'), $java // 'unknown',
	  version_of('python3-kazoo'), $python, version_of('zookeeper'), $system // 'Linux';
}

my @blocks;
foreach my $timeout (@timeouts)
{
	start_holder_server($timeout);
	my @rows;
	my ($smallest, $trials_of_cut);
	foreach my $name (grep { $trials{$_} } @order)
	{
		my %results;
		foreach my $i (1 .. $trials{$name})
		{
			my $result = trial($name, $timeout);
			push @{ $results{$_} }, $result->{$_} foreach keys %$result;
			report(
				'T = %d s, %s %d/%d: %s', $timeout, $name, $i, $trials{$name},
				join '; ', map {
					my $r = $result->{$_};
					"$_ " . ($r->{moved} ? sprintf 'moved after %.2f, overlap %s, %s', $r->{moved_after},
						map { !exists $r->{$_} ? 'kept' : defined $r->{$_} ? signed($r->{$_}) : 'never' } qw(careful work)
					  : $r->{gave_up} ? 'gave up, kept' : 'kept')
				} sort keys %$result);
		}
		my $first = 1;
		foreach my $kind (qw(zklock Curator kazoo))
		{
			my @r = @{ $results{$kind} };
			my @moved = grep { $_->{moved} } @r;
			push @rows, join ' | ', '| ' . ($first ? $fault{$name}{text} : ''), $kind,
			  scalar(@moved) . ' of ' . @r,
			  scalar(grep { $_->{gave_up} } @r) . ' of ' . @r,
			  spread(map { $_->{careful} } grep { exists $_->{careful} } @r),
			  spread(map { $_->{work} } grep { exists $_->{work} } @r) . ' |';
			$first = 0;
			if ($kind eq 'zklock' && $name eq 'follower-cut')
			{
				$trials_of_cut = @r;
				$smallest = min(map { -max($_->{careful} // 99, $_->{work} // 99) } @moved);
			}
		}
	}
	push @blocks, join "\n", "## T = $timeout s", '',
	  '| fault | holder | the lock moved | the holder gave up | overlap, careful (s) | overlap, work (s) |',
	  '|---|---|---|---|---|---|', @rows, '',
	  (defined $smallest
		? sprintf("Follower cut off, %d trial(s): the smallest lead of zklock's holder over the next one was %.2f s.\n",
			$trials_of_cut, $smallest)
		: ());
}

open my $page, '>:encoding(UTF-8)', "$work/page.md" or die "page.md: $!";
print $page <<"END", join "\n", @blocks;
# Who knows first?

This page was made by `$command`.

Three ZooKeeper nodes (tickTime 2 s, syncLimit 5) on one machine. In each trial one holder of each kind
talks to the same node and meets the same fault; a second client of the same kind waits for the lock at the
other nodes. The overlap is how long the old holder still believed and could work after the new one had the
lock, in seconds; negative when it knew before that.

- *Careful*: for zklock, a transaction that holds the lock and has written a row is cancelled with ZK001. For Curator
  and kazoo, the connection state listener says SUSPENDED or LOST: what a careful user goes by.
- *Work*: for zklock, the last commit of a loop that commits every 20 ms under a backend-level lock. For Curator
  and kazoo, what the lock object says, `isAcquiredInThisProcess()` and `is_acquired`, asked every 20 ms;
  *never* means that it still said so at the end.
- *The holder gave up*: the transaction was cancelled, or the listener said SUSPENDED. Where the lock did not move,
  or only zklock's did, that was for nothing: a transaction of zklock's that is cancelled lets go of its lock.
- A process that was stopped counts from when it runs again. zklock's transaction is then cancelled within
  milliseconds, and nothing can be committed in these: the commit reads the clock.

${\versions()}

END
printf $page "\nIn %s did zklock's holder commit after the next one had the lock, or, running, know later.\n",
  $late ? "$late trials" : 'no trial';
close $page or die "page.md: $!";
$_->stop foreach grep { defined } $holder, $waiter;
$zk->stop;
exit($late ? 1 : 0);
