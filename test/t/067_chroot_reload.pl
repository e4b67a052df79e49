# A reload that changes the chroot ends the ZooKeeper session, and with it every lock. A
# commit that has passed its check is not overtaken by that.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils qw(slurp_file);
use ZkTest;

my $timeout = 4;
my $zk = ZkEnsemble->new(tick => 500)->start;
$zk->create($_) foreach '/one', '/two';
my $hosts = $zk->hosts;
my $conf = "zklock.session_timeout = ${timeout}s\nsynchronous_commit = local";
my $node = zk_server('a', $zk, hosts => "$hosts/one", conf => "$conf\nwal_level = replica\nmax_wal_senders = 2\nsynchronous_standby_names = 'nobody'");
my $other = zk_server('b', $zk, hosts => "$hosts/one", conf => $conf);
$node->safe_psql('postgres', 'CREATE TABLE ledger (entry text)');
my $offset;

sub chroot_to { my ($path) = @_; $node->safe_psql('postgres', "ALTER SYSTEM SET zklock.hosts = '$hosts$path'"); $node->reload; return; }
sub nodes { my ($path) = @_; return grep { m{/_c_} } $zk->lsr("/$path/zklock"); }

# A commit that waits for a standby, and so is past its check; its process stands still, so
# nothing can end the wait. Returns the session.
sub begin_commit
{
	my ($lock) = @_;
	my $holder = ZkTest::Session->new($node);
	$holder->query(qq{SELECT zk_lock_acquire('$lock')});
	$holder->query(q{SET synchronous_commit = on; BEGIN; INSERT INTO ledger VALUES ('in time')});
	$holder->send('COMMIT');
	my $backend = $holder->backend;
	poll_until(sub { $node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $backend") eq 'SyncRep' }, 10) // die;
	kill 'STOP', $backend;
	return $holder;
}

foreach my $worker ('goes on', 'is restarted')
{
	my ($from, $to) = $worker eq 'goes on' ? ('one', 'two') : ('two', 'one');
	my $lock = "reload $from";
	$other->safe_psql('postgres', "ALTER SYSTEM SET zklock.hosts = '$hosts/$from'");
	$other->restart;
	wait_for_lease($other);
	my $holder = begin_commit($lock);
	my $waiter = ZkTest::Session->new($other);
	$waiter->send("SELECT zk_lock_acquire('$lock')");
	poll_until(sub { nodes($from) == 2 }, 10) // die;
	my $idle = ZkTest::Session->new($node);
	$idle->query(q{SELECT zk_lock_acquire('idle')});
	$offset = -s $node->logfile;

	chroot_to("/$to");
	my $late = ZkTest::Session->new($node);
	ok(defined poll_until(sub { log_since($node, $offset) =~ /is not ended yet, since a transaction/ }, 3 * $timeout), "the worker $worker: the change is put off, and the log says so");
	$late->send(q{SELECT zk_lock_acquire('asked meanwhile')});
	if ($worker eq 'is restarted')
	{
		my $old = worker_of($node);
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($old)");
		poll_until(sub { my $pid = worker_of($node); $pid ne '' && $pid ne $old }, 20) // die;
		ok(defined poll_until(sub { log_since($node, $offset) =~ /worker started.*connected again/s }, 10), 'the worker is restarted, with the same ZooKeeper session');
	}
	unlike(log_since($node, $offset), qr/ended, \d+ held/, "the worker $worker: the ZooKeeper session is there");
	ok(!$waiter->answered, "the worker $worker: a_chroot_reload_does_not_overtake_a_commit");
	ok(!$late->answered, "the worker $worker: a new request waits for the change");
	like($idle->query(q{BEGIN; INSERT INTO ledger VALUES ('too late'); COMMIT}), qr/ERROR:  ZK001/, "the worker $worker: nothing more commits under a lock of before");
	is(scalar(() = log_since($node, $offset) =~ /is not ended yet/g), 1, 'one line says so') if $worker eq 'goes on';

	kill 'CONT', $holder->backend;
	$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $holder->backend . ')');
	ok(defined poll_until(sub { $holder->answered }, 10), "the worker $worker: the commit ends");
	unlike($holder->wait, qr/ERROR/, "the worker $worker: it is one");
	ok(defined poll_until(sub { $waiter->answered }, 10), "the worker $worker: and only then the next one is granted");
	like($waiter->wait, qr/^\d+$/, "the worker $worker: the lock");
	like($late->wait(20), qr/^\d+$/, "the worker $worker: what was asked meanwhile is granted");
	is(scalar nodes($to), 1, "the worker $worker: in the new tree");
	is(scalar nodes($from), 1, "the worker $worker: and nothing is left in the old one but the other server's");
	$_->quit foreach $holder, $waiter, $late, $idle;
	poll_until(sub { !nodes('one') && !nodes('two') }, 10) // diag 'nodes are left';
}
is($node->safe_psql('postgres', q{SELECT count(*) FROM ledger WHERE entry = 'in time'}), 2, 'both commits are there');
is($node->safe_psql('postgres', q{SELECT count(*) FROM ledger WHERE entry = 'too late'}), 0, 'and no other');

# Changed while no worker runs to see it: the old session's nodes go, and it is not taken
# into the new tree.
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('unseen')});
	is(scalar nodes('one'), 1, 'held in the old tree');
	my $old = worker_of($node);
	kill 'STOP', $old;
	chroot_to('/two');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($old)");
	kill 'CONT', $old;
	ok(defined poll_until(sub { !nodes('one') }, $timeout - 1), 'a_chroot_changed_while_no_worker_looked_leaves_no_node_in_the_old_tree');
	is($holder->query(q{SELECT zk_lock_is_held('unseen')}), 'f', 'the lock is lost');
	like($holder->query(q{SELECT zk_lock_release('unseen'); SELECT zk_lock_acquire('seen')}), qr/^\d+$/m, 'and there are others');
	is(scalar nodes('two'), 1, 'in the new tree');
	$holder->quit;
}
$_->stop foreach $node, $other;
done_testing();
