# The worker comes and goes; the ZooKeeper session and the locks stay, unless the whole
# server goes, and then they go too.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk, conf => "zklock.session_timeout = 6s\nrestart_after_crash = on");
my $other = zk_server('b', $zk, conf => 'zklock.session_timeout = 6s');

$node->safe_psql('postgres', 'CREATE TABLE work (what text)');

sub worker_pid
{
	return $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
}

sub wait_for_another_worker
{
	my ($old) = @_;
	my $took = poll_until(sub { my $pid = worker_pid(); $pid ne '' && $pid ne $old }, 20);
	ok(defined $took, 'the worker is back');
	return $took;
}

# Threads: only the worker has them, and its extra ones take no signal. An unblocked one
# would swallow the wake-ups of PostgreSQL's latches.
my $worker = worker_pid();
my @tasks = glob "/proc/$worker/task/*/status";
is(scalar @tasks, 3, 'the worker has the two threads of the client library');
foreach my $status (@tasks)
{
	next if $status =~ m{/task/$worker/};
	my ($blocked) = PostgreSQL::Test::Utils::slurp_file($status) =~ /^SigBlk:\s*([0-9a-f]+)/m;
	# all but KILL, STOP, and the two that the C library keeps for itself
	is(hex($blocked) & 0x7ffbfeff, 0x7ffbfeff, "thread $status has all signals blocked");
}
my $postmaster = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid');
$postmaster =~ s/\n.*//s;
is(scalar(() = glob "/proc/$postmaster/task/*"), 1, 'the postmaster has one thread');

# Terminated: the next one goes on with the same ZooKeeper session and the same nodes.
{
	my $session = members($zk, 'a');
	my $holder = ZkTest::Session->new($node);
	my $idle = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($other);

	my $token = $holder->query(q{BEGIN; INSERT INTO work VALUES ('terminated'); SELECT zk_xact_lock_acquire('job')});
	$idle->query(q{SELECT zk_lock_acquire('idle'), zk_lock_acquire('deleted')});
	$waiter->send(q{SELECT zk_lock_acquire('job')});
	poll_until(sub { contenders($zk, 'job') == 2 }, 10) // die;
	my @nodes = sort(contenders($zk, 'job'), contenders($zk, 'idle'));

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
	my $took = wait_for_another_worker($worker);
	cmp_ok($took, '<', 3, 'within three seconds');
	# a request made meanwhile waits for the new worker
	is($idle->query(q{SELECT zk_lock_acquire('meanwhile') IS NOT NULL}), 't', 'a lock asked for meanwhile is granted');
	is(members($zk, 'a'), $session, 'on the same ZooKeeper session');
	is_deeply([ sort(contenders($zk, 'job'), contenders($zk, 'idle')) ], \@nodes, 'with the same nodes');
	ok(!$waiter->answered, 'nobody else was granted');
	$zk->delete(lock_directory('deleted') . '/' . (contenders($zk, 'deleted'))[0]);
	ok(defined poll_until(sub { $idle->query(q{SELECT zk_lock_is_held('deleted')}) eq 'f' }, 1),
		'after_a_worker_restart_a_deleted_node_is_noticed_within_a_second');
	$idle->query(q{SELECT zk_lock_release('deleted')});
	is($holder->query(q{SELECT zk_fencing_token('job')}), $token, 'the token is the same');
	is($holder->query('COMMIT; SELECT count(*) FROM work'), 1, 'the transaction commits');
	like($waiter->wait(5), qr/^\d+$/, 'then the waiter is granted');
	is($idle->query(q{SELECT zk_lock_release('idle'), zk_lock_release('meanwhile')}), 't|t', 'idle locks are released');
	ok(defined poll_until(sub { contenders($zk, 'idle') == 0 }, 2), 'and their nodes are gone');
	$_->quit foreach $holder, $idle, $waiter;
}

# Held on while it is away: waiters and releases do not need it to be there.
{
	my $session = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($node);
	$session->query(q{SELECT zk_lock_acquire('away')});
	$worker = worker_pid();
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
	is($session->query(q{SELECT zk_lock_release('away')}), 't', 'a release without a worker');
	$waiter->send(q{SELECT zk_lock_acquire('away')});
	like($waiter->wait(10), qr/^\d+$/, 'reaches the next one');
	is(scalar contenders($zk, 'away'), 1, 'and leaves no node behind');
	wait_for_another_worker($worker);
	$_->quit foreach $session, $waiter;
}

# Killed: PostgreSQL restarts all of itself. The locks are nobody's and must be free at
# once, not after the ZooKeeper session's timeout.
foreach my $victim ('worker', 'backend')
{
	my $session = members($zk, 'a');
	my $holder = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($other);
	$holder->query(q{SELECT zk_lock_acquire('crash')});
	$waiter->send(q{SELECT zk_lock_acquire('crash')});
	poll_until(sub { contenders($zk, 'crash') == 2 }, 10) // die;

	kill 'KILL', $victim eq 'worker' ? worker_pid() : $holder->backend;
	my $took = poll_until(sub { $waiter->answered }, 10);
	ok(defined $took && $took < 2, "$victim killed: its locks are free within two seconds")
	  or diag $took // 'never';
	like($waiter->wait, qr/^\d+$/, "$victim killed: the waiter is granted");
	$node->poll_query_until('postgres', 'SELECT true') or die 'not back';
	wait_for_lease($node);
	isnt(members($zk, 'a'), $session, "$victim killed: another ZooKeeper session");
	is(scalar(() = grep { /^a-/ } $zk->ls(ROOT . '/.zklock')), 1, "$victim killed: one member node");
	$_->kill_client foreach $holder, $waiter;
	poll_until(sub { contenders($zk, 'crash') == 0 }, 5) // die;
}

# A clean stop closes the ZooKeeper session: nodes are gone when pg_ctl is back.
foreach my $mode ('fast', 'smart')
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('stop')});
	is(scalar contenders($zk, 'stop'), 1, "$mode stop: held before");
	$holder->quit if $mode eq 'smart';
	my $start = time;
	$node->stop($mode);
	cmp_ok(time - $start, '<', 3, "$mode stop: takes no longer than it should");
	is(scalar contenders($zk, 'stop'), 0, "$mode stop: no node is left");
	is(members($zk, 'a'), '', "$mode stop: the ZooKeeper session is closed");
	$node->start;
	wait_for_lease($node);
}

# An immediate stop leaves them to the timeout: T, a tick, and what the clock rounds up.
{
	my $holder = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($other);
	$holder->query(q{SELECT zk_lock_acquire('immediate')});
	$waiter->send(q{SELECT zk_lock_acquire('immediate')});
	poll_until(sub { contenders($zk, 'immediate') == 2 }, 10) // die;
	$node->stop('immediate');
	my $took = poll_until(sub { $waiter->answered }, 15);
	ok(defined $took && $took < 6 + 2 * 0.5 + 0.5, 'immediate stop: free after T and a tick')
	  or diag $took // 'never';
	$_->kill_client foreach $holder, $waiter;
	$node->start;
	wait_for_lease($node);
}

# Without ZooKeeper a stop is quick too.
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('frozen')});
	$zk->freeze_all;
	my $start = time;
	$node->stop('fast');
	cmp_ok(time - $start, '<', 4, 'a fast stop with ZooKeeper frozen does not wait for it');
	$zk->thaw_all;
	$holder->kill_client;
	$node->start;
	wait_for_lease($node);
}

# Other servers: a reload of hosts changes the connection and not the ZooKeeper session.
{
	my $session = members($zk, 'a');
	my $holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{BEGIN; INSERT INTO work VALUES ('reload'); SELECT zk_xact_lock_acquire('reload')});
	$worker = worker_pid();
	my $hosts = $zk->hosts;
	$node->safe_psql('postgres', "ALTER SYSTEM SET zklock.hosts = '$hosts,$hosts'");
	$node->reload;
	wait_for_another_worker($worker);
	is($holder->query(q{SELECT zk_fencing_token('reload')}), $token, 'hosts reloaded: still held');
	unlike($holder->query('COMMIT'), qr/ERROR/, 'hosts reloaded: commits');
	is(members($zk, 'a'), $session, 'hosts reloaded: the same ZooKeeper session');
	$holder->quit;
}

$node->stop;
$other->stop;
done_testing();
