# Ensembles that are not as they should be: session limits that differ from node to node, a node
# that is read-only because the others are dead, a quota, addresses of which most are dead, name
# servers that do not answer. No grant that should not be, an error that says what is wrong, and
# all is well when the trouble is over.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

#
# A node that grants less, and then one that may only read
#

{
	my $zk = ZkEnsemble->new(nodes => 3, tick => 500, proxy => 1, java => ['-Dreadonlymode.enabled=true']);
	append_to_file("$zk->{dir}/$_/zoo.cfg", "maxSessionTimeout=4000\n") foreach 2, 3;
	$zk->start;
	$zk->proxy($_, 'refuse') foreach 2, 3;
	my $node = zk_server('a', $zk, conf => 'zklock.session_timeout = 8s');
	my $other = zk_server('b', $zk, hosts => $zk->direct_hosts(1), conf => 'zklock.session_timeout = 8s');
	$node->safe_psql('postgres', 'CREATE TABLE work (what text)');
	like(log_since($node, 0), qr/timeout 8000 ms/, 'the first node grants 8 s');

	my $offset = -s $node->logfile;
	my $holder = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($other);
	$holder->query(q{SELECT zk_lock_acquire('shorter')});
	$zk->proxy($_, 'accept') foreach 2, 3;
	$zk->proxy(1, 'refuse');
	$zk->proxy(1, 'cut');
	ok(defined poll_until(sub { log_since($node, $offset) =~ /connected again/ }, 10), 'moved to a node that grants 4 s');
	is($holder->query(q{BEGIN; INSERT INTO work VALUES ('shorter'); SELECT zk_lock_is_held('shorter')}), 't', 'still held');
	$waiter->send(q{SELECT zk_lock_acquire('shorter')});
	poll_until(sub { contenders($zk, 'shorter') == 2 }, 5) // die;
	# The leader learns of it with the next touches.
	my ($member) = map { ROOT . "/.zklock/$_" } grep { /^a-/ } $zk->ls(ROOT . '/.zklock');
	my $version = $zk->stat($member)->{version};
	poll_until(sub { $zk->stat($member)->{version} >= $version + 5 }, 10) // die;

	$zk->proxy(undef, 'freeze');
	my $start = time;
	my $ended = poll_until(sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $holder->backend) == 0 }, 12);
	ok(!$waiter->answered, 'the holder was ended before the lock was given away');
	cmp_ok($ended // 99, '<', 4, 'the lease had followed: ended within four seconds and not within eight');
	my $granted = poll_until(sub { $waiter->answered }, 10);
	like($waiter->wait(0), qr/^\d+$/, 'then the next one is granted');
	cmp_ok(time - $start, '<', 7, 'when the shorter timeout was over: it was the one that counts');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'nothing was committed');
	$zk->proxy($_, 'pass') foreach $zk->all;
	$zk->proxy(1, 'accept');
	wait_for_lease($node);
	$_->quit foreach $holder, $waiter;

	# Two of three are dead; the third answers whoever wants only to read.
	$holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('read only')});
	my $alive = 1;
	$zk->kill_node($_) foreach 2, 3;
	ok(defined poll_until(sub { ($zk->four_letter_word($alive, 'srvr', 1) // '') =~ /^Mode: read-only/m }, 20), 'read-only');
	ok(defined poll_until(sub { $holder->query(q{SELECT zk_lock_is_held('read only')}) eq 'f' }, 12), 'read-only: the holder is not sure any more');
	$holder->quit;
	foreach my $what ('running', 'started')
	{
		$node->restart if $what eq 'started';
		foreach my $call (q{zk_lock_acquire('read only', timeout => '1500 ms')}, q{zk_lock_try_acquire('other')})
		{
			my ($answer, $took) = timed_query($node, "SELECT $call");
			like($answer, qr/ERROR:  ZK003: could not reach ZooKeeper for lock/, "read-only, $what: $call");
			like($answer, qr/DETAIL:  .+/, 'with a reason: ' . ($answer =~ /DETAIL:  (.*)/ ? $1 : ''));
			cmp_ok($took, '<', 2.5, 'in time');
		}
	}
	$zk->start_all;
	wait_for_lease($node);
	like((timed_query($node, q{SELECT zk_lock_acquire('read only')}))[0], qr/^\d+$/, 'the others are back: granted');
	is(scalar $zk->ls(ROOT . '/read only'), 0, 'and nobody else is there');
	$_->stop foreach $node, $other;
	$zk->stop;
}

#
# A quota; few of many addresses; silent name servers
#

my $instrumented = instrumented();
my $library = shared_library('blackhole');
my $hole = "$PostgreSQL::Test::Utils::tmp_check/blackhole";
unlink $hole;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1, extra => { enforceQuota => 'true' })->start;
my ($port) = $zk->hosts =~ /:(\d+)$/;
my $node;
{
	# an instrumented server has its own preloaded library
	local %ENV = $instrumented ? %ENV : (%ENV, LD_PRELOAD => $library, BLACKHOLE => $hole);
	$node = zk_server('c', $zk, conf => "zklock.session_timeout = 6s");

	# Two more nodes are allowed: a lock's directory, and who holds it.
	my $holder = ZkTest::Session->new($node);
	my $allowed = 1 + 2 + $zk->lsr(ROOT);
	$zk->zkcli_sh('setquota', '-N', $allowed, ROOT);
	like($holder->query(q{SELECT zk_lock_acquire('fits')}), qr/^\d+$/, 'quota: one lock fits');
	my ($answer, $took) = timed_query($node, q{SELECT zk_lock_acquire('does not', timeout => '5 s')});
	like($answer, qr/ERROR:  ZK003: ZooKeeper refused lock "does not".*DETAIL:  .*quota/s, 'quota: the next one does not, and it says why');
	cmp_ok($took, '<', 2, 'quota: at once');
	($answer) = timed_query($node, q{SELECT zk_lock_acquire('fits', timeout => '1 s')});
	like($answer, qr/ERROR:  ZK003: ZooKeeper refused lock "fits".*DETAIL:  .*quota/s, 'quota: there is no room to queue either');
	is($holder->query(q{SELECT zk_lock_is_held('fits')}), 't', 'quota: the one is still held');
	is($holder->query(q{SELECT zk_lock_release('fits')}), 't', 'quota: and released');
	ok(defined poll_until(sub { $holder->query(q{SELECT zk_lock_acquire('fits')}) =~ /^\d+$/ }, 5), 'quota: and taken again');
	$holder->quit;
	$node->stop;
	$zk->zkcli_sh('setquota', '-N', 1, ROOT);
	$node->start;
	ok( defined poll_until(sub { (timed_query($node, q{SELECT zk_lock_acquire('x', timeout => '1 s')}))[0] =~ /ERROR:  ZK003: .*DETAIL:  .*quota/s }, 10),
		'quota: there is no room for the member node: it says why');
	$zk->zkcli_sh('delquota', ROOT);
	wait_for_lease($node);
	pass('the quota is lifted: locks are there again');

	# Four addresses, one of them alive; the client library alone would not find it again.
	$node->append_conf('postgresql.conf', "zklock.hosts = '127.0.0.1:1,127.0.0.1:2,127.0.0.1:$port,127.0.0.1:3'");
	$node->restart;
	wait_for_lease($node);
	$holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{SELECT zk_lock_acquire('four')});
	foreach my $cut (1 .. 4)
	{
		my $offset = -s $node->logfile;
		$zk->proxy(1, 'cut');
		$took = poll_until(sub { log_since($node, $offset) =~ /connected again/ }, 8);
		ok(defined $took, "four addresses, one alive, cut $cut: connected again");
		is($holder->query(q{SELECT zk_fencing_token('four')}), $token, 'and still held');
	}
	$holder->quit;
}

SKIP:
{
	skip 'an instrumented server has its own preloaded library', 1 if $instrumented;
	append_to_file($hole, '');
	$node->append_conf('postgresql.conf', "zklock.hosts = 'zk.test:$port'");
	{
		local %ENV = (%ENV, LD_PRELOAD => $library, BLACKHOLE => $hole);
		my $start = time;
		$node->restart;
		cmp_ok(time - $start, '<', 5, 'silent name servers: the server starts');
	}
	foreach my $call (q{zk_lock_acquire('x', timeout => '1500 ms')}, q{zk_lock_try_acquire('x')})
	{
		my ($answer, $took) = timed_query($node, "SELECT $call");
		like($answer, qr/ERROR:  ZK003: .*DETAIL:  .*resolve/s, "silent name servers: $call: an error that says what it is");
		cmp_ok($took, '<', 2.5, 'in time');
	}
	my $start = time;
	$node->safe_psql('postgres', 'CREATE DATABASE besides');
	$node->safe_psql('postgres', 'DROP DATABASE besides');
	cmp_ok(time - $start, '<', 5, 'silent name servers: CREATE and DROP DATABASE do not wait for the worker');
	my $old = worker_of($node);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($old)");
	ok(defined poll_until(sub { my $pid = worker_of($node); $pid ne '' && $pid ne $old }, 10), 'silent name servers: the worker can be restarted');
	$start = time;
	{
		local %ENV = (%ENV, LD_PRELOAD => $library, BLACKHOLE => $hole);
		$node->stop('fast');
		cmp_ok(time - $start, '<', 4, 'silent name servers: a fast stop does not wait for them');
		$node->start;
	}
	unlink $hole;
	wait_for_lease($node);
	pass('they answer: locks are there');

	# Once connected nobody asks them.
	my $holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{SELECT zk_lock_acquire('named')});
	my $offset = -s $node->logfile;
	append_to_file($hole, '');
	$zk->proxy(1, 'cut');
	ok(defined poll_until(sub { log_since($node, $offset) =~ /connected again/ }, 8), 'silent while connected: connected again after a cut');
	is($holder->query(q{SELECT zk_fencing_token('named')}), $token, 'and still held');
	$holder->quit;
	unlink $hole;
}

$node->stop;
done_testing();
