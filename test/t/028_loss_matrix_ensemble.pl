# The holder notices first, with three ZooKeeper nodes: what an ensemble does that is cut
# in two, to a holder whose node goes on talking to it, x everything that a backend can be
# doing (see ZkMatrix), with two timeouts at once.
#
# It runs alone: a leader's pause that a lease of 10 s outlasts is one that it outlasts when
# the servers get the processor.

use strict;
use warnings;

use Test::More;
use ZkMatrix;
use ZkTest;

# Between proxies elections go wrong (see 024): that is over after initLimit, and voters
# that missed each other try again after a second and not after up to a minute: the sooner
# there is a new leader, the sooner the locks go.
my $zk = ZkEnsemble->new(nodes => 3, tick => 2000, init_limit => 3, proxy => 1, quorum_proxy => 1,
	java => ['-Dzookeeper.fastleader.maxNotificationInterval=1000'])->start;
my $leader = $zk->leader;
my ($follower, $third) = $zk->followers;

my $conf = "max_connections = 100\nmax_prepared_transactions = 2\nmax_parallel_workers_per_gather = 2";
my %server = map {
	($_ => zk_server("a$_", $zk, conf => "zklock.session_timeout = ${_}s\n$conf"))
} (4, 10);
# the waiters' node is in the majority whatever happens
my $other = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts($third));
prepare_matrix($_) foreach values %server;

# $expect: of the server with which timeout what is expected
sub fault
{
	my ($fault, $node, $expect, %f) = @_;
	my @servers = map {
		{ server => $server{$_}, other => $other, label => "T = $_ s", expect => $expect->{$_}, lasts => $_ + 1 }
	} sort { $a <=> $b } keys %$expect;
	$zk->wait_for_quorum;
	move_to($zk, [ values %server ], $node);
	return run_fault(fault => $fault, zk => $zk, servers => \@servers, %f);
}

# The holders can reach no other node.
sub alone
{
	my ($node, @how) = @_;
	my @others = grep { $_ != $node } $zk->all;
	return (
		cause => sub { $zk->proxy($_, 'refuse') foreach @others; $zk->isolate($node, @how) },
		cure => sub { $zk->rejoin($node); $zk->proxy($_, 'accept') foreach @others });
}

# The leader pauses for longer than a lease of 4 s lasts, and not for as long as one of 10 s.
# The longer one first: a slow answer is remembered, and makes the lease shorter for a while.
foreach my $pause (6, 3)
{
	fault("leader paused $pause s", $follower, { 4 => 'lapse', 10 => 'survive' },
		cause => sub { $zk->freeze_node($leader) },
		restore => sub { $zk->thaw_node($leader) },
		restore_after => $pause);
}

fault('follower cut off from leader and third node', $follower, { 4 => 'loss', 10 => 'loss' }, alone($follower));

fault('leader cut off, its followers told', $leader, { 4 => 'loss', 10 => 'loss' }, alone($leader, hang_up => 1));

print_matrix();
$_->stop foreach values %server, $other;
done_testing();
