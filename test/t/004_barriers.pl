# DROP DATABASE and CREATE DATABASE wait until every process of the server has taken note
# (a process signal barrier). A worker that blocks in a foreign library, or a backend that
# sleeps without looking, would hang them for everybody; other extensions' workers have
# done so. Ours must not, whatever ZooKeeper does.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

use constant { LIMIT => 1, ROUNDS => 5 };

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk, conf => "fsync = off\n");

# Seconds that each took. Whoever hangs in a barrier can be cancelled; the test then
# fails by the time it took, and the next rounds do not hang as well.
sub round_trip
{
	my ($database) = @_;
	local $ENV{PGOPTIONS} = '-c statement_timeout=10s';
	my $start = time;
	$node->psql('postgres', "CREATE DATABASE $database");
	my $created = time;
	$node->psql('postgres', "DROP DATABASE $database");
	return ($created - $start, time - $created);
}

my $holder = ZkTest::Session->new($node, name => 'holder');
my $waiter = ZkTest::Session->new($node, name => 'waiter');
$holder->query("SELECT zk_lock_acquire('barriers')");

my @states = (
	[ 'up', sub { } ],
	[ 'frozen', sub { $zk->freeze_node(1) } ],
	[ 'dead', sub { $zk->kill_node(1) } ],
);

foreach my $case (@states)
{
	my ($state, $worse) = @$case;

	# A backend of ours that waits is one that must take note, too.
	$waiter->send("SELECT zk_lock_acquire('barriers', timeout => '300 s')") if $state eq 'up';
	poll_until(sub { contenders($zk, 'barriers') == 2 }, 10) // die 'the waiter does not queue'
	  if $state eq 'up';
	$worse->();

	my ($slowest_create, $slowest_drop) = (0, 0);
	foreach my $i (1 .. ROUNDS)
	{
		my ($create, $drop) = round_trip("barrier_$i");
		$slowest_create = $create if $create > $slowest_create;
		$slowest_drop = $drop if $drop > $slowest_drop;
		last if $create > 10 * LIMIT || $drop > 10 * LIMIT;
	}
	cmp_ok($slowest_create, '<', LIMIT, "CREATE DATABASE, ZooKeeper $state");
	cmp_ok($slowest_drop, '<', LIMIT, "DROP DATABASE, ZooKeeper $state");
	ok(!$waiter->answered, "and the waiter still waits, ZooKeeper $state");
}

# Into the reconnect storm of a server that comes and goes.
$zk->start_node(1);
my ($create, $drop) = round_trip('barrier_last');
cmp_ok($create, '<', LIMIT, 'CREATE DATABASE while ZooKeeper comes back');
cmp_ok($drop, '<', LIMIT, 'DROP DATABASE while ZooKeeper comes back');

$holder->quit;
$waiter->quit;
$node->stop('fast');
done_testing();
