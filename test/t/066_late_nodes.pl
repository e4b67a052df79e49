# What a request leaves behind when it is over is looked after by the next worker too: a node
# whose creation was lost and comes late, and directories that never had one, which
# ZooKeeper does not remove.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils qw(slurp_file);
use ZkTest;

use constant CREATE => 15;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1, extra => { enforceQuota => 'true' },
	java => ['-Dznode.container.checkIntervalMs=500'])->start;
my $node = zk_server('a', $zk, conf => "zklock.session_timeout = 60s\nlog_min_messages = debug1\nzklock.max_locks = 2000");
my $session = ZkTest::Session->new($node);

sub restart_worker
{
	my $old = worker_of($node);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($old)");
	poll_until(sub { my $pid = worker_of($node); $pid ne '' && $pid ne $old }, 20) // die 'no other worker';
	wait_for_lease($node);
	return;
}

# A create is lost, and looked out for. Returns its uuid.
sub lose_create
{
	my ($name) = @_;
	my $offset = -s $node->logfile;
	my $uuid;
	poll_until(
		sub {
			$zk->proxy(1, 'lose_request', CREATE);
			$session->query("SELECT zk_lock_acquire('$name')");
			$session->query("SELECT zk_lock_release('$name')");
			($uuid) = slurp_file($node->logfile, $offset) =~ /late node of request (\S+), lock "\Q$name\E"/;
			return defined $uuid;
		}, 20) // die 'no create was lost';
	$zk->proxy(1, 'pass');
	return $uuid;
}

{
	my $zookeeper_session = $node->safe_psql('postgres', 'SELECT session_id FROM zk_session');
	my $uuid = lose_create('late');
	restart_worker();
	is($node->safe_psql('postgres', 'SELECT session_id FROM zk_session'), $zookeeper_session, 'another worker, the same ZooKeeper session');
	my $late = $zk->hold(lock_directory('late') . "/_c_$uuid-lock-", 'late');
	ok(defined poll_until(sub { contenders($zk, 'late') == 0 }, 5), 'a_late_create_is_deleted_after_a_restart_of_the_worker');
	like($session->query(q{SELECT zk_lock_try_acquire('late')}), qr/^\d+$/, 'the lock is free');
	$late->release;
	$session->query(q{SELECT zk_lock_release('late')});
}

# Hundreds at once: their owners gave up while the network stood still, and then it broke.
{
	my $many = 290;
	my $offset = -s $node->logfile;
	$zk->proxy(1, 'freeze');
	$session->query(<<"END");
DO \$\$
BEGIN
	FOR i IN 1 .. $many LOOP
		BEGIN
			PERFORM zk_lock_acquire('many ' || i, timeout => '5 ms');
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
	END LOOP;
END \$\$
END
	$zk->proxy(1, 'cut');
	$zk->proxy(1, 'pass');
	my @lost;
	ok(defined poll_until(sub { @lost = slurp_file($node->logfile, $offset) =~ /late node of request (\S+), lock "many \d+"/g; @lost > 256 }, 20),
		'more than 256 creates are lost at once') or diag scalar @lost;
	my ($uuid) = slurp_file($node->logfile, $offset) =~ /late node of request (\S+), lock "many 1"/;
	my $late = $zk->hold(lock_directory('many 1') . "/_c_$uuid-lock-", 'late');
	ok(defined poll_until(sub { contenders($zk, 'many 1') == 0 }, 5), 'the first of hundreds is deleted when it comes late');
	$late->release;
	$session->query(q{SELECT zk_lock_release_all()});
}

# Directories are made and the node is not: the quota has room for the former only.
{
	wait_for_lease($node);
	# those that the foreign client made are no containers, and stay
	$zk->delete(lock_directory($_)) foreach 'late', 'many 1';
	poll_until(sub { !grep { !/zklock$|\.zklock/ } $zk->lsr(ROOT) }, 20) // die join ' ', $zk->lsr(ROOT);
	my $before = () = $zk->lsr(ROOT);
	$zk->zkcli_sh('setquota', '-N', 1 + $before + 3, ROOT);
	# requests that travel together are counted one behind the other, and not always in time
	my $answer;
	foreach my $try (1 .. 20)
	{
		$answer = $session->query("SELECT zk_lock_acquire('never $try/used/deep', timeout => '5 s')");
		last if $answer =~ /ERROR/;
		$session->query('SELECT zk_lock_release_all()');
		poll_until(sub { !grep { m{/never} } $zk->lsr(ROOT) }, 10) // die;
	}
	like($answer, qr/ERROR:  ZK003.*quota/s, 'directories are made, and the node is refused');
	ok(defined poll_until(sub { !grep { m{/never} } $zk->lsr(ROOT) }, 5), 'a_directory_that_never_had_a_node_is_removed')
	  or diag join ' ', $zk->lsr(ROOT);
	$zk->zkcli_sh('delquota', ROOT);

	# whoever has a node there keeps his directories
	my $holder = ZkTest::Session->new($node);
	like($holder->query(q{SELECT zk_lock_acquire('used/deep')}), qr/^\d+$/, 'the quota is lifted');
	is($holder->query(q{SELECT zk_lock_is_held('used/deep')}), 't', 'a lock below one is held');
	$holder->quit;
}
$session->quit;
$node->stop;
done_testing();
