# What a connection needs to begin with is refused every time: the packet that sets all
# watches again is larger than the server takes. Handshakes pass, and keep the ZooKeeper
# session alive; nothing else does. And: a watch that went off and was not told.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $timeout = 4;

{
	my $zk = ZkEnsemble->new(tick => 500, proxy => 1, java => ['-Djute.maxbuffer=4096'])->start;
	my $node = zk_server('a', $zk, conf => "zklock.session_timeout = ${timeout}s");
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT count(zk_lock_acquire('a lock with a long name, number ' || i)) FROM generate_series(1, 100) i});
	ok(defined poll_until(sub { $zk->four_letter_word(1, 'wchs') =~ /Total watches:(\d+)/ && $1 >= 100 }, 10), 'a hundred watches');
	my $session = $node->safe_psql('postgres', 'SELECT session_id FROM zk_session');
	my $offset = -s $node->logfile;
	my $start = time;
	$zk->proxy(1, 'cut');
	ok(defined poll_until(sub { $node->safe_psql('postgres', q{SELECT trouble FROM zk_session}) =~ /closes the connection; its log says why/ }, $timeout),
		'watches too large for a packet: the trouble says who knows why');
	ok(defined poll_until(sub { log_since($node, $offset) =~ /lease lapsed/ }, 2 * $timeout), 'watches too large: the lease lapses');
	ok(defined poll_until(sub { $node->safe_psql('postgres', q{SELECT lease_left > '1 s' FROM zk_session}) eq 't' }, 3 * $timeout), 'watches too large: a lease again');
	cmp_ok(time - $start, '<', 2 * $timeout, 'within twice the timeout');
	is($node->safe_psql('postgres', 'SELECT session_id FROM zk_session'), $session, 'with the same ZooKeeper session');
	is($holder->query(q{SELECT count(*) FROM generate_series(1, 100) i WHERE zk_lock_is_held('a lock with a long name, number ' || i)}), 100, 'and all locks');
	is(scalar(() = log_since($node, $offset) =~ /beginning with a fresh handle/g), 1, 'one line says how');

	# A holder whose node is gone and who is not told finds out all the same.
	my $watches = ZkTest::Session->new($node);
	$watches->query(q{SELECT zk_lock_acquire('untold')});
	# the watch is there when the node has been looked at
	my $path = lock_directory('untold') . '/' . (contenders($zk, 'untold'))[0];
	ok(defined poll_until(sub { $zk->four_letter_word(1, 'wchp') =~ /\Q$path\E\n/ }, 5), 'a holder is watched');
	$zk->proxy(1, 'drop_events');
	ok($zk->delete($path), 'its node is deleted, and it is not told');
	my $took = poll_until(sub { $watches->query(q{SELECT zk_lock_is_held('untold')}) eq 'f' }, 25);
	ok(defined $took, 'a_holder_whose_deletion_event_was_lost_notices');
	cmp_ok($took // 99, '<', 18, 'within sixteen seconds');
	$zk->proxy(1, 'pass');
	$_->quit foreach $holder, $watches;
	$node->stop;
}

# No write is acknowledged whatever the handle: replies to all but the handshake are lost.
{
	my $zk = ZkEnsemble->new(tick => 500, proxy => 1, name => 'mute')->start;
	my $node = zk_server('b', $zk, conf => "zklock.session_timeout = ${timeout}s");
	my $other = zk_server('c', $zk, hosts => $zk->direct_hosts, conf => "zklock.session_timeout = ${timeout}s");
	my $holder = ZkTest::Session->new($node);
	my $waiter = ZkTest::Session->new($other);
	$holder->query(q{SELECT zk_lock_acquire('mute')});
	$waiter->send(q{SELECT zk_lock_acquire('mute')});
	poll_until(sub { contenders($zk, 'mute') == 2 }, 10) // die;
	my $offset = -s $node->logfile;
	$zk->proxy(1, 'only_handshakes');
	my $took = poll_until(sub { $waiter->answered }, 6 * $timeout);
	ok(defined $took && $took < 4 * $timeout, 'handshakes alone do not keep a lock for ever') or diag $took // 'never';
	like($waiter->wait, qr/^\d+$/, 'the next one is granted');
	like(log_since($node, $offset), qr/has not acknowledged a write for twice the session timeout/, 'and the log says why');
	like($holder->query(q{SELECT zk_lock_is_held('mute')}), qr/^f$|ZK001/, 'the holder knows');
	$zk->proxy(1, 'pass');
	wait_for_lease($node);
	pass('served again');
	$_->kill_client foreach $holder, $waiter;
	$_->stop foreach $node, $other;
}
done_testing();
