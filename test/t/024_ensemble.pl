# Three ZooKeeper nodes and their faults. What one node's death or silence costs is a
# reconnection and nothing else; what cuts the holder off costs it the lock, and it knows
# before anybody else has it.
#
# It runs alone: with T = 4 s the way out of a black hole has half a second to spare, and
# the promise is about a server that gets the processor.
#
# ENSEMBLE_TRIALS (default 1) repeats each fault. ENSEMBLE_ONLY=survivals runs only those that
# must not cost the lock, ENSEMBLE_ONLY=leader only the leader's death.

use strict;
use warnings;

use Test::More;
use List::Util qw(min);
use Time::HiRes qw(time sleep);
use ZkTest;

my $trials = $ENV{ENSEMBLE_TRIALS} // 1;
my $only = $ENV{ENSEMBLE_ONLY} // '';
# A proxy between the nodes accepts for a new leader that does not listen yet: its follower
# finds the connection closed, gives up where it would have tried again, and the election is
# over only after initLimit. So there is one only where something is to be cut.
my $zk = ZkEnsemble->new(nodes => 3, tick => 2000, proxy => 1, quorum_proxy => $only eq '')->start;

# One server of each timeout behind the proxies, and the other that waits, which talks to
# the nodes directly so that what happens to the first does not happen to it.
my %holder_of = map {
	($_ => zk_server("a$_", $zk, conf => "zklock.session_timeout = ${_}s"))
} (4, 10);
my $other = zk_server('b', $zk, conf => 'zklock.session_timeout = 4s', hosts => $zk->direct_hosts);
$_->safe_psql('postgres', 'CREATE TABLE work (what text)') foreach values %holder_of;
my $number = 0;

sub everything_works_again
{
	$zk->wait_for_quorum;
	wait_for_lease($other);
	wait_for_full_lease($_) foreach values %holder_of;
	return;
}

# A transaction that wrote holds a lock, and somebody waits for it.
sub begin_holding
{
	my ($server) = @_;
	my $lock = 'ensemble/number ' . ++$number;
	my $run = {
		lock => $lock,
		server => $server,
		holder => ZkTest::Session->new($server),
		waiter => ZkTest::Session->new($other),
	};
	my $token = $run->{holder}->query("BEGIN; INSERT INTO work VALUES ('$lock'); SELECT zk_xact_lock_acquire('$lock')");
	die $token unless $token =~ /^\d+$/;
	$run->{waiter}->send("SELECT zk_lock_acquire('$lock')");
	poll_until(sub { contenders($zk, $lock) == 2 }, 10) // die "no waiter for $lock";
	return $run;
}

sub row_is_there
{
	my ($run) = @_;
	return $run->{server}->safe_psql('postgres', "SELECT count(*) FROM work WHERE what = '$run->{lock}'");
}

# The fault must not cost the lock: while it lasts the transaction goes on, and commits.
sub survives
{
	my ($server, $seconds, $fault, $cure) = @_;
	my $run = begin_holding($server);
	$run->{holder}->send("SELECT pg_sleep($seconds)");
	$fault->();
	my $answer = $run->{holder}->wait($seconds + 10);
	my $commit = $run->{holder}->query('COMMIT');
	$cure->();
	$_->quit foreach $run->{holder}, $run->{waiter};
	return $answer !~ /ERROR/ && $commit !~ /ERROR/ && row_is_there($run) == 1;
}

# The fault costs the lock. Returns by how many seconds the holder knew it before the
# waiter was granted, undef when the holder was not cancelled.
sub lead
{
	my ($server, $fault, $cure, $limit) = @_;
	my $run = begin_holding($server);
	$run->{holder}->send('SELECT pg_sleep(120)');
	$fault->();
	my ($ended, $granted);
	poll_until(
		sub {
			$ended = time if !defined $ended && $run->{holder}->answered;
			$granted = time if !defined $granted && $run->{waiter}->answered;
			return defined $ended && defined $granted;
		}, $limit);
	my $answer = defined $ended ? $run->{holder}->wait : '';
	my $commit = $run->{holder}->query('COMMIT; SELECT 1', 10);
	$cure->();
	my $rows = row_is_there($run);
	$_->kill_client foreach $run->{holder}, $run->{waiter};
	return unless $answer =~ /ZK001/ && $rows == 0 && defined $granted;
	return $granted - $ended;
}

# The holder's node dies, or falls silent, and the next one is there.
sub survivals
{
	my ($timeout) = @_;
	my $server = $holder_of{$timeout};
	my $what = "T = $timeout s";

	my ($killed, $silent) = (0, 0);
	foreach (1 .. $trials)
	{
		everything_works_again();
		my ($follower) = $zk->followers;
		move_to($zk, $server, $follower);
		$killed++ unless survives($server, $timeout, sub { $zk->kill_node($follower) },
			sub { $zk->start_node($follower) });

		everything_works_again();
		my $node = $zk->node_of(worker_of($server));
		$silent++ unless survives($server, $timeout, sub { $zk->proxy($node, 'freeze') },
			sub { $zk->proxy($node, 'pass') });
	}
	is($killed, 0, "$what: holder's node killed: no abort in $trials trials");
	is($silent, 0, "$what: holder's node black-holed: no abort in $trials trials");
	return;
}

# The holder's node is cut off from the other two and goes on talking to the holder.
# Where the holder can reach another node it goes there: its heartbeat is a write, which
# the cut off node cannot acknowledge.
sub cuts
{
	my ($timeout) = @_;
	my $server = $holder_of{$timeout};
	my $what = "T = $timeout s";

	foreach my $role ('follower', 'leader')
	{
		my $escaped = 0;
		my @leads;
		foreach (1 .. $trials)
		{
			everything_works_again();
			my $node = $role eq 'leader' ? $zk->leader : ($zk->followers)[0];
			move_to($zk, $server, $node);
			if ($role eq 'follower')
			{
				$escaped++ if survives($server, $timeout, sub { $zk->isolate($node) }, sub { $zk->rejoin($node) });
				everything_works_again();
				$node = ($zk->followers)[0];
				move_to($zk, $server, $node);
			}

			# Where it cannot, the lock is lost, and it is the first to know.
			my @others = grep { $_ != $node } $zk->all;
			push @leads, lead(
				$server,
				sub { $zk->proxy($_, 'refuse') foreach @others; $zk->isolate($node) },
				sub { $zk->rejoin($node); $zk->proxy($_, 'accept') foreach @others },
				90);
		}
		is($escaped, $trials, "$what: follower cut off: the holder goes to another node, no abort in $trials trials")
		  if $role eq 'follower';
		is(scalar(grep { defined } @leads), $trials, "$what: $role cut off: the holder is cancelled each time");
		cmp_ok(min(map { $_ // -99 } @leads), '>=', 0, "$what: $role cut off: before the other is granted");
		note sprintf '%s: %s cut off: leads %s', $what, $role, join ' ', map { sprintf '%.2f', $_ // -99 } @leads;
	}
	return;
}

# The leader dies; the others elect one within the lease, or they do not.
sub leader_deaths
{
	my ($timeout) = @_;
	my $server = $holder_of{$timeout};
	my $what = "T = $timeout s";

	my ($kept, $lapsed) = (0, 0);
	foreach (1 .. $trials)
	{
		everything_works_again();
		my $leader = $zk->leader;
		my $follower = ($zk->followers)[0];
		move_to($zk, $server, $follower);
		my $offset = -s $server->logfile;
		if (survives($server, $timeout, sub { $zk->kill_node($leader) }, sub { $zk->start_node($leader) }))
		{
			$kept++;
			next;
		}
		my @lines = grep { /lease|ended|is lost/ && !/LOCATION|STATEMENT/ }
		  split /\n/, PostgreSQL::Test::Utils::slurp_file($server->logfile, $offset);
		note "$what: leader killed: $_" foreach @lines;
		$lapsed++ if "@lines" =~ /lease lapsed/ && row_is_there({ server => $server, lock => "ensemble/number $number" }) == 0;
	}
	note "$what: leader killed: $kept kept the lock, $lapsed aborted";
	is($kept + $lapsed, $trials, "$what: leader killed: who lost the lock had no new leader in time, and left no row");
	return;
}

foreach my $timeout (4, 10)
{
	survivals($timeout) unless $only eq 'leader';
	cuts($timeout) unless $only;
	leader_deaths($timeout) unless $only eq 'survivals';
}

$_->stop foreach values %holder_of, $other;
done_testing();
