# What must not cost the lock x everything that a backend can be doing: all go on for longer
# than the lease could have lasted, and commit (see ZkMatrix).
#
# It runs alone: the way out of a black hole takes part of the lease, and the promise is
# about a server that gets the processor.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkMatrix;
use ZkTest;

my $zk = ZkEnsemble->new(nodes => 3, tick => 2000, proxy => 1)->start;
my ($follower) = $zk->followers;
my $clock = ZkTest::Clock->possible ? ZkTest::Clock->new : undef;

my $conf = "max_connections = 100\nmax_prepared_transactions = 2\nmax_parallel_workers_per_gather = 2";
my %server;
{
	local %ENV = (%ENV, $clock ? $clock->environment : ());
	%server = map {
		($_ => zk_server("a$_", $zk, conf => "zklock.session_timeout = ${_}s\n$conf"))
	} (4, 10);
}
my $other = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts(grep { $_ != $follower } $zk->all));
prepare_matrix($_) foreach values %server;

# $expect: of the server with which timeout what is expected
sub fault
{
	my ($fault, $expect, %f) = @_;
	my @timeouts = sort { $a <=> $b } keys %$expect;
	my %offset = map { ($_ => -s $server{$_}->logfile) } @timeouts;
	my @servers = map {
		{ server => $server{$_}, other => $other, label => "T = $_ s", expect => $expect->{$_}, lasts => $_ + 1 }
	} @timeouts;
	run_fault(fault => $fault, zk => $zk, servers => \@servers, %f);
	foreach my $timeout (grep { $expect->{$_} eq 'survive' } @timeouts)
	{
		unlike(slurp_file($server{$timeout}->logfile, $offset{$timeout}), qr/lease lapsed|is lost/,
			"$fault, T = $timeout s: no lapse, no loss");
	}
	return;
}

{
	my $worker = worker_of($server{4});
	fault('worker terminated', { 4 => 'survive' },
		cause => sub { kill 'TERM', $worker },
		cure => sub { isnt(worker_of($server{4}), $worker, 'worker terminated: there is another one') });
}

SKIP:
{
	skip 'an instrumented server has its own preloaded library', 1 unless $clock;
	foreach my $days (1, -1)
	{
		fault(sprintf('wall clock set by %+d day', $days), { 4 => 'survive' },
			cause => sub { $clock->set($days) },
			cure => sub { $clock->set(0) });
	}
}

move_to($zk, $server{4}, $follower);
fault('node killed, the next in reach', { 4 => 'survive' },
	cause => sub { $zk->kill_node($follower) },
	cure => sub { $zk->start_node($follower) });

$zk->wait_for_quorum;
move_to($zk, $server{10}, $follower);
fault('node black-holed, the next in reach', { 10 => 'survive' },
	cause => sub { $zk->proxy($follower, 'freeze') },
	cure => sub { $zk->proxy($follower, 'pass') });

# The others elect a new leader in half a second; with a lease of 2 s that is not for sure.
$zk->wait_for_quorum;
my $leader = $zk->leader;
($follower) = $zk->followers;
move_to($zk, [ values %server ], $follower);
fault('leader killed', { 4 => 'either', 10 => 'survive' },
	cause => sub { $zk->kill_node($leader) },
	cure => sub { $zk->start_node($leader) });

print_matrix();
$_->stop foreach values %server, $other;
done_testing();
