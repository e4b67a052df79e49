# A whole PostgreSQL server stops for longer than T, as a paused machine does, and another
# server gets its locks. When it goes on, the first thing that each of its transactions
# does is to fail, whoever of them goes on first.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $conf = 'zklock.session_timeout = 4s';
my $node_a = zk_server('a', $zk, conf => $conf);
my $node_b = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts(1));
$node_a->safe_psql('postgres', 'CREATE TABLE work (what text)');
my $number = 0;

# What a backend is doing: how it gets there once it holds the lock, and what its client
# sends while everything is stopped. A transaction has written a row before.
my %states = (
	'long query' => { run => 'SELECT pg_sleep(120)' },
	'idle, terminate' => { idle => 'terminate' },
	'idle, doom' => { idle => 'doom' },
	'COMMIT, terminate' => { idle => 'terminate', late => 'COMMIT' },
	'COMMIT, doom' => { idle => 'doom', late => 'COMMIT' },
	'INSERT, doom' => { idle => 'doom', late => q{INSERT INTO work VALUES ('late'); COMMIT} },
	'backend-level, INSERT' => { backend => 1, late => q{INSERT INTO work VALUES ('late')} },
);

# Holders in these states and a waiter for each, on the other server.
sub begin_holding
{
	my (@names) = @_;
	my %run;
	$number++;
	foreach my $name (@names)
	{
		my $state = $states{$name};
		my $lock = "frozen $number/$name";
		my $holder = ZkTest::Session->new($node_a);
		$holder->query("SET zklock.idle_loss = '$state->{idle}'") if $state->{idle};
		my $token = $holder->query($state->{backend} ? "SELECT zk_lock_acquire('$lock')"
			: "BEGIN; INSERT INTO work VALUES ('$lock'); SELECT zk_xact_lock_acquire('$lock')");
		die "$name: $token" unless $token =~ /^\d+$/;
		$holder->send($state->{run}) if $state->{run};
		my $waiter = ZkTest::Session->new($node_b);
		$waiter->send("SELECT zk_lock_acquire('$lock')");
		poll_until(sub { contenders($zk, $lock) == 2 }, 10) // die "$name: no waiter";
		$run{$name} = { lock => $lock, holder => $holder, waiter => $waiter };
	}
	return \%run;
}

sub end_holding
{
	my ($run) = @_;
	$_->{holder}->kill_client, $_->{waiter}->kill_client foreach values %$run;
	return;
}

sub all_granted
{
	my ($run) = @_;
	foreach my $r (values %$run)
	{
		$r->{granted} //= time if $r->{waiter}->answered;
	}
	return !grep { !defined $_->{granted} } values %$run;
}

# Stop everything, and let some of it go on before the rest.
foreach my $order ('backends first', 'worker first')
{
	wait_for_lease($node_a);
	my $run = begin_holding(sort keys %states);
	my $worker = worker_of($node_a);
	my $postmaster = postmaster_of($node_a);
	my @backends = map { $_->{holder}->backend } values %$run;
	my %known = map { $_ => 1 } $worker, @backends;
	kill 'STOP', $postmaster;
	my @others = grep { !$known{$_} && $_ != $postmaster } processes_of($node_a);
	kill 'STOP', @others, $worker, @backends;

	foreach my $name (grep { $states{$_}{late} } keys %$run)
	{
		$run->{$name}{holder}->send($states{$name}{late});
	}
	ok(defined poll_until(sub { all_granted($run) }, 20), "$order: the other server gets the locks meanwhile");

	my $at = time;
	if ($order eq 'backends first')
	{
		kill 'CONT', @backends;
	}
	else
	{
		kill 'CONT', $worker, @others, $postmaster;
		poll_until(
			sub { PostgreSQL::Test::Utils::slurp_file($node_a->logfile) =~ /\[$worker\] LOG:.*ZooKeeper session \S+ ended/ }, 10)
		  // die 'the worker does not notice';
		kill 'CONT', @backends;
	}
	my $slowest = 0;
	foreach my $name (sort keys %$run)
	{
		my $state = $states{$name};
		my $holder = $run->{$name}{holder};
		if ($state->{run} || $state->{late})
		{
			my $answer = $holder->wait(10) // 'no answer';
			my $took = time - $at;
			$slowest = $took if $took > $slowest;
			# an idle one that is to be terminated may be, before it reads what it was sent
			like($answer, ($state->{idle} // '') eq 'terminate' ? qr/ZK001: |57P01|server closed/ : qr/ZK001: /,
				"$order: $name: the first act is to fail");
		}
		elsif ($state->{idle} eq 'terminate')
		{
			ok(defined poll_until(sub { !kill 0, $holder->backend }, 5), "$order: $name: the connection is ended")
			  if $order eq 'worker first';
		}
		else
		{
			like($holder->query('COMMIT', 10), qr/ZK001: /, "$order: $name: COMMIT fails");
		}
	}
	note sprintf '%s: all had failed %.3f s after they went on', $order, $slowest;
	kill 'CONT', $worker, @others, $postmaster;
	ok( defined poll_until(sub { !kill 0, $run->{'idle, terminate'}{holder}->backend }, 5),
		"$order: idle, terminate: the connection is ended") if $order eq 'backends first';
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, "$order: no row is there");
	end_holding($run);
}

$node_a->stop;
$node_b->stop;
done_testing();
