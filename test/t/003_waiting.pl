# A wait for a lock ends like any wait of PostgreSQL's: a cancel, a terminate, either
# timeout and a fast shutdown each end it in less than a second, whether ZooKeeper is
# there, frozen, or dead, and whether it became so before the wait or during it.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

use constant LIMIT => 1;    # seconds from the cause to the error

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);

# name => [ worse, better ]
my %trouble = (
	'up' => [ sub { }, sub { } ],
	'frozen' => [ sub { $zk->freeze_node(1) }, sub { $zk->thaw_node(1) } ],
	'dead' => [ sub { $zk->kill_node(1) }, sub { $zk->start_node(1) } ],
);

# [ name, set, cause, error, error when there was no ZooKeeper from the start ]: the
# time counts from the cause, or, for a timeout, from when it was due. A lock_timeout
# that ran out before there was a lock to wait for says that ZooKeeper is not there.
use constant TIMEOUT => 3;
my @ends = (
	[ 'pg_cancel_backend', '', 'SELECT pg_cancel_backend(%d)', qr/ERROR:  57014/ ],
	[ 'pg_terminate_backend', '', 'SELECT pg_terminate_backend(%d)', qr/FATAL:  57P01/ ],
	[ 'lock_timeout', 'SET lock_timeout = ' . TIMEOUT * 1000, undef, qr/ERROR:  55P03/, qr/ERROR:  ZK003/ ],
	[ 'statement_timeout', 'SET statement_timeout = ' . TIMEOUT * 1000, undef, qr/ERROR:  57014/ ],
);

# The lock is held by a foreign client, so that nothing of ours stands in the way of
# killing or freezing what we like. After each trouble its session may be gone.
my $foreign;
sub hold_again
{
	$zk->wait_for_quorum;
	wait_for_lease($node);
	$foreign->release if $foreign;
	poll_until(sub { !contenders($zk, 'waiting') }, 30) // die 'nodes are left: ' . join ' ', contenders($zk, 'waiting');
	$foreign = $zk->hold(lock_directory('waiting') . '/_c_00000000-0000-0000-0000-000000000000-lock-', 'foreign');
	return;
}

# One waiter for each end, and one trouble, before they begin or while they wait.
sub check_ends
{
	my ($state, $when) = @_;
	my ($worse, $better) = @{ $trouble{$state} };
	my $name = "ZooKeeper $state" . ($state eq 'up' ? '' : " $when the wait");

	hold_again();
	my @waiters = map { ZkTest::Session->new($node, name => "waiter for $_->[0]") } @ends;
	foreach my $i (0 .. $#ends)
	{
		$waiters[$i]->query($ends[$i][1]) if $ends[$i][1];
	}
	$worse->() if $when eq 'before';
	my @due;
	foreach my $waiter (@waiters)
	{
		push @due, time + TIMEOUT;
		$waiter->send("SELECT zk_lock_acquire('waiting', timeout => '60 s')");
	}
	if ($when eq 'before')
	{
		# There are no nodes to look for; that they wait is seen from their activity.
		my $backends = join ',', map { $_->backend } @waiters;
		$node->poll_query_until('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE pid IN ($backends) AND state = 'active' AND query ~ 'acquire'",
			scalar @waiters) or die 'the waiters do not wait';
	}
	else
	{
		poll_until(sub { contenders($zk, 'waiting') == 1 + @waiters }, 10) // die 'the waiters do not queue';
		$worse->();
	}

	foreach my $i (0 .. $#ends)
	{
		my ($what, undef, $cause, $error, $error_before) = @{ $ends[$i] };
		$error = $error_before if $when eq 'before' && $error_before;
		if ($cause)
		{
			$due[$i] = time;
			$node->safe_psql('postgres', sprintf $cause, $waiters[$i]->backend);
		}
		my $answer = $waiters[$i]->wait(20);
		my $late = time - $due[$i];
		like($answer // 'nothing', $error, "$what, $name: the error");
		cmp_ok($late, '<', LIMIT, "$what, $name: in time");
		cmp_ok($late, '>', -0.1, "$what, $name: not before it was due");
	}
	$better->();
	return;
}

check_ends('up', 'during');
foreach my $state (qw(frozen dead))
{
	check_ends($state, $_) foreach qw(before during);
}

# Nothing of it leaves a server that cannot lock any more.
hold_again();
$foreign->release;
undef $foreign;
is($node->safe_psql('postgres', "SELECT zk_lock_acquire('waiting', timeout => '5 s') > 0"),
	't', 'afterwards the lock can be taken');

#
# Fast shutdown. Every backend waits, and the server is told to stop.
#

foreach my $state (qw(up frozen dead))
{
	my ($worse, $better) = @{ $trouble{$state} };
	my $holder = ZkTest::Session->new($node, name => 'holder');
	$holder->query("SELECT zk_lock_acquire('shutdown')");
	my @waiters = map { ZkTest::Session->new($node, name => "waiter$_") } 1 .. 3;
	$_->send("SELECT zk_lock_acquire('shutdown', timeout => '60 s')") foreach @waiters;
	poll_until(sub { contenders($zk, 'shutdown') == 4 }, 10) // die 'the waiters do not queue';
	$worse->();

	my $start = time;
	kill 'INT', $node->{_pid};
	foreach my $waiter (@waiters)
	{
		like($waiter->wait(20) // 'nothing', qr/FATAL:  57P01/, "fast shutdown, ZooKeeper $state: the error");
	}
	cmp_ok(time - $start, '<', LIMIT, "fast shutdown, ZooKeeper $state: in time");
	# The worker gives itself a second to close its ZooKeeper session.
	my $gone = poll_until(sub { !-e $node->data_dir . '/postmaster.pid' }, 20);
	cmp_ok($gone // 20, '<', 3, "fast shutdown, ZooKeeper $state: the server is down soon");
	$node->stop('immediate') unless defined $gone;
	$node->_update_pid(0);

	$better->();
	if ($state ne 'dead')
	{
		$zk->wait_for_quorum;
		$node->start;
		wait_for_lease($node);
	}
}

done_testing();
