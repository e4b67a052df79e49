# Readers, writers and semaphores over two servers: who waits for whom, what a downgrade
# keeps out, and what becomes of a lock that somebody asks for.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node_a = zk_server('a', $zk, conf => "log_min_messages = log");
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));

my @open;

sub connection
{
	my ($node) = @_;
	push @open, my $session = ZkTest::Session->new($node);
	return $session;
}

sub close_all { $_->quit foreach splice @open; return; }

sub queue_is
{
	my ($lock, $n) = @_;
	poll_until(sub { contenders($zk, $lock) == $n }, 10) // die "$lock: not $n contenders";
	return;
}

sub left_in
{
	my ($lock) = @_;
	poll_until(sub { $zk->ls(lock_directory($lock)) == 0 }, 3);
	return join ' ', $zk->ls(lock_directory($lock));
}

# Readers hold together; a writer waits for both, and keeps later readers out.
{
	my ($r1, $r2, $w, $r3, $r4) = map { connection($_) } $node_a, $node_b, $node_a, $node_a, $node_b;

	like($r1->query(q{SELECT zk_lock_acquire('rw', 'read')}), qr/^\d+$/, 'a reader');
	like($r2->query(q{SELECT zk_lock_acquire('rw', 'read', '2s')}), qr/^\d+$/, 'and one on the other server');
	is($r3->query(q{SELECT zk_lock_try_acquire('rw', 'write')}), '', 'a try to write finds it taken');
	is($r3->query(q{SELECT zk_lock_try_acquire('rw')}), '', 'an exclusive one too');
	like($r3->query(q{SELECT zk_lock_acquire('rw', 'write', '0')}), qr/55P03.*It is held by server "a"/s, 'and says by whom');
	$w->send(q{SELECT zk_lock_acquire('rw', 'write')});
	queue_is('rw', 3);
	$_->send(q{SELECT zk_lock_acquire('rw', 'read')}) foreach $r3, $r4;
	queue_is('rw', 5);
	ok(!$w->answered && !$r3->answered && !$r4->answered, 'a writer waits, and readers behind it');
	$r1->query(q{SELECT zk_lock_release('rw')});
	queue_is('rw', 4);
	ok(!$w->answered, 'one reader left: the writer waits for the other');
	$r2->query(q{SELECT zk_lock_release('rw')});
	like($w->wait(5), qr/^\d+$/, 'both left: the writer holds');
	ok(!$r3->answered && !$r4->answered, 'alone');
	is($r1->query(q{SELECT zk_lock_try_acquire('rw', 'read')}), '', 'a try to read finds it taken');
	$w->query(q{SELECT zk_lock_release('rw')});
	like($_->wait(5), qr/^\d+$/, 'the writer left: the readers hold') foreach $r3, $r4;
	close_all();
	is(left_in('rw'), '', 'no node is left');
}

# Downgrade: a writer that queued behind never overlaps what it was downgraded to.
{
	my ($w, $next, $reader) = map { connection($_) } $node_a, $node_b, $node_b;
	my $token = $w->query(q{SELECT zk_lock_acquire('down', 'write')});

	$next->send(q{SELECT zk_lock_acquire('down', 'write')});
	queue_is('down', 2);
	$reader->send(q{SELECT zk_lock_acquire('down', 'read')});
	queue_is('down', 3);
	is($w->query(q{SELECT zk_lock_acquire('down', 'read')}), $token, 'downgraded with the same token');
	my @digits = map { /-__READ__(\d{10})$/ ? $1 : () } sort { substr($a, -10) cmp substr($b, -10) } contenders($zk, 'down');
	my @written = map { /-__WRIT__(\d{10})$/ ? $1 : () } sort { substr($a, -10) cmp substr($b, -10) } contenders($zk, 'down');
	is($digits[0], $written[0], 'its node has the digits of the write node');
	is($w->query(q{SELECT zk_lock_release('down', 'write')}), 't', 'the write hold is given back');
	queue_is('down', 3);
	# whoever is woken by that asks again: give both the time to do so
	is($node_b->safe_psql('postgres', q{SELECT zk_lock_try_acquire('down', 'write') IS NULL}), 't', 'a try finds it taken');
	ok(!$next->answered && !$reader->answered, 'the queued writer does not overlap the read hold, nor overtakes it the later reader');
	is($w->query(q{SELECT zk_fencing_token('down')}), $token, 'the token is still that of the write hold');

	# a new worker finds both kinds of nodes again
	$node_a->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
	wait_for_lease($node_a);
	is($w->query(q{SELECT zk_lock_is_held('down')}), 't', 'the worker is another: the read hold is still there');
	ok(!$next->answered, 'restarted: the queued writer still waits');
	close_all();
	is(left_in('down'), '', 'no node is left');
}

# The read node of a downgrade is held by a ZooKeeper session like any other.
{
	my ($w, $next) = map { connection($_) } $node_a, $node_b;

	$w->query(q{SELECT zk_lock_acquire('outage', 'write'), zk_lock_acquire('outage', 'read')});
	$w->query(q{SELECT zk_lock_release('outage', 'write')});
	$next->send(q{SELECT zk_lock_acquire('outage', 'write')});
	queue_is('outage', 2);
	$zk->proxy(1, 'cut');
	wait_for_lease($node_a);
	is($w->query(q{SELECT zk_lock_is_held('outage')}), 't', 'reconnected: the read hold is still there');
	$zk->delete(lock_directory('outage') . '/' . (grep { /__READ__/ } contenders($zk, 'outage'))[0]);
	like($next->wait(5), qr/^\d+$/, 'its node deleted: the writer is next');
	like($w->query('SELECT 1'), qr/ERROR:  ZK001: lock "outage" is lost/, 'and the holder knows');
	close_all();
}

# A write node that goes before the downgrade has its node: no grant.
{
	my ($w, $next) = map { connection($_) } $node_a, $node_b;

	$w->query(q{SELECT zk_lock_acquire('gone', 'write')});
	my ($node) = contenders($zk, 'gone');
	$next->send(q{SELECT zk_lock_acquire('gone', 'write')});
	queue_is('gone', 2);
	$zk->proxy(1, 'freeze');
	$w->send(q{SELECT zk_lock_acquire('gone', 'read', '3s')});
	$zk->delete(lock_directory('gone') . "/$node");
	like($next->wait(5), qr/^\d+$/, 'the next writer holds');
	$zk->proxy(1, 'pass');
	like($w->wait(5), qr/ERROR:  ZK001: lock "gone" is lost/, 'downgrade_of_a_write_lock_that_is_gone_fails');
	is(scalar(grep { /__READ__/ } contenders($zk, 'gone')), 0, 'and leaves no read node');
	close_all();
}

# To acquire a lost lock again acknowledges the loss, also when what is acquired is the other
# mode, which was never lost.
{
	my $both = connection($node_a);

	$both->query(q{SELECT zk_lock_acquire('half', 'write'), zk_lock_acquire('half', 'read')});
	$zk->delete(lock_directory('half') . '/' . (grep { /__WRIT__/ } contenders($zk, 'half'))[0]);
	ok(defined poll_until(sub { $both->query('SELECT 1') =~ /ZK001/ }, 1), 'one of two modes is lost');
	like($both->query(q{SELECT zk_lock_acquire('half', 'read')}), qr/^\d+$/, 'the other is acquired once more');
	is($both->query('BEGIN; SELECT 1; COMMIT'), 1, 'which acknowledges the loss');
	close_all();
}

# Somebody writes into the node of a lock. That uses the watch up; it must not make us blind.
{
	my $holder = connection($node_a);
	my $offset = -s $node_a->logfile;

	$holder->query(q{SELECT zk_lock_acquire('written')});
	my $path = lock_directory('written') . '/' . (contenders($zk, 'written'))[0];
	$zk->set($path, 'something');
	$zk->set($path, '__REVOKE__');
	ok(defined poll_until(sub { PostgreSQL::Test::Utils::slurp_file($node_a->logfile, $offset) =~
				/asks process \d+ to give up lock "written".*not given up/s }, 5), 'on_revoke = ignore: a line in the log');
	is($holder->query(q{SELECT zk_lock_is_held('written')}), 't', 'and the lock is kept');
	$zk->delete($path);
	ok(defined poll_until(sub { $holder->query(q{SELECT zk_lock_is_held('written')}) eq 'f' }, 1),
		'own_node_written_to_then_deleted_is_noticed_within_a_second');
	close_all();

	my ($next) = connection($node_b);
	$holder = connection($node_a);
	$node_a->safe_psql('postgres', q{ALTER SYSTEM SET zklock.on_revoke = 'abort'});
	$node_a->reload;
	ok(defined poll_until(sub { $node_a->safe_psql('postgres', 'SHOW zklock.on_revoke') eq 'abort' }, 5), 'on_revoke = abort');
	$holder->query(q{SELECT zk_lock_acquire('asked')});
	$next->send(q{SELECT zk_lock_acquire('asked')});
	queue_is('asked', 2);
	$holder->send('SELECT pg_sleep(30)');
	($path) = sort { substr($a, -10) cmp substr($b, -10) } contenders($zk, 'asked');
	$zk->set(lock_directory('asked') . "/$path", '__REVOKE__');
	like($holder->wait(2), qr/ZK001: lock "asked" is lost.*taken away by another ZooKeeper client, which asked for it/s,
		'on_revoke = abort: the statement is cancelled');
	like($next->wait(5), qr/^\d+$/, 'and the next one holds');
	like($holder->query(q{SELECT zk_lock_release('asked')}), qr/WARNING:  ZK001.*taken away by.*\nf$/s, 'release says so as well');
	close_all();
}

# Semaphores: never more than there are leases, and each that is given back is taken.
{
	my @holders = map { connection($_) } $node_a, $node_b, $node_a;
	my $waiter = connection($node_b);
	my $try = connection($node_a);

	like($_->query(q{SELECT zk_semaphore_acquire('pool', 3)}), qr/^\d+$/, 'a lease') foreach @holders;
	is($try->query(q{SELECT zk_semaphore_try_acquire('pool', 3)}), '', 'a fourth is not there');
	my $start = time;
	like($try->query(q{SELECT zk_semaphore_acquire('pool', 3, '500 ms')}),
		qr/55P03: could not obtain semaphore "pool".*3 of 3 leases are taken/s, 'waiting for it ends with the timeout');
	cmp_ok(time - $start, '<', 2, 'in time');
	$waiter->send(q{SELECT zk_semaphore_acquire('pool', 3)});
	poll_until(sub { $zk->ls(lock_directory('pool/leases')) == 4 }, 5) // die 'no waiter';
	is($try->query(q{SELECT zk_semaphore_try_acquire('pool', 3)}), '', 'nor with somebody waiting for one');
	ok(!$waiter->answered, 'a waiter waits');
	$holders[1]->kill_client;
	like($waiter->wait(5), qr/^\d+$/, 'and gets the lease of a client that died');
	like($try->query(q{SELECT zk_semaphore_acquire('pool', 4)}),
		qr/WARNING:.*semaphore "pool" is used with different numbers of leases.*This call says 4, server "[ab]", process \d+ said 3/s,
		'callers that do not agree are told');
	$holders[0]->query(q{SELECT zk_semaphore_release('pool')});
	$zk->delete(lock_directory('pool/leases') . "/$_") foreach $zk->ls(lock_directory('pool/leases'));
	ok(defined poll_until(sub { $waiter->query('SELECT 1') =~ /ZK001: semaphore "pool" is lost/ }, 2), 'a lease whose node is deleted is lost');
	is($waiter->query(q{SELECT zk_semaphore_release('pool')}) =~ /\nf$/ ? 'f' : '', 'f', 'and acknowledged by its release');
	is($waiter->query('SELECT 1'), '1', 'then the connection works again');
	close_all();
	is(left_in('pool/leases') . left_in('pool/locks'), '', 'no node is left');

	# a waiter whose mutex is taken from it begins again, or it and the next one would wait for each other
	my ($first, $second);
	($holders[0], $first, $second) = map { connection($_) } $node_a, $node_b, $node_a;
	$holders[0]->query(q{SELECT zk_semaphore_acquire('turns', 1)});
	$first->send(q{SELECT zk_semaphore_acquire('turns', 1)});
	poll_until(sub { $zk->ls(lock_directory('turns/leases')) == 2 }, 5) // die 'no waiter';
	$second->send(q{SELECT zk_semaphore_acquire('turns', 1)});
	poll_until(sub { $zk->ls(lock_directory('turns/locks')) == 2 }, 5) // die 'no second waiter';
	$zk->delete(lock_directory('turns/locks') . '/' . (sort { substr($a, -10) cmp substr($b, -10) } $zk->ls(lock_directory('turns/locks')))[0]);
	poll_until(sub { $zk->ls(lock_directory('turns/locks')) == 2 }, 5) // die 'it does not begin again';
	$holders[0]->query(q{SELECT zk_semaphore_release('turns')});
	ok(defined poll_until(sub { $first->answered || $second->answered }, 5), 'semaphore_waiters_without_their_mutex_do_not_wait_for_each_other');
	close_all();

	# many, with a control that would see a fourth
	$node_a->safe_psql('postgres', 'CREATE TABLE inside (pid int PRIMARY KEY); CREATE TABLE most (n int)');
	my @pids;
	foreach my $client (1 .. 12)
	{
		my $pid = fork // die "fork: $!";
		next if $pid && push @pids, $pid;
		open STDOUT, '>', '/dev/null';
		# the lease is taken on either server, the work is counted on one
		my $semaphore = ($client % 2 ? $node_a : $node_b)->connstr('postgres');
		my $work = $node_a->connstr('postgres');
		my $rounds = join '', map { <<"END" } 1 .. 8;
\\c "$semaphore"
SELECT zk_semaphore_acquire('many', 3);
\\! psql -XAtq -d "$work" -c "INSERT INTO inside VALUES ($client); INSERT INTO most SELECT count(*) FROM inside"
\\! psql -XAtq -d "$work" -c "DELETE FROM inside WHERE pid = $client"
END
		open my $psql, '|-', 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $semaphore or POSIX::_exit(1);
		print {$psql} $rounds;
		close $psql;
		POSIX::_exit($? >> 8);
	}
	my $failed = grep { waitpid $_, 0; $? != 0 } @pids;
	is($failed, 0, 'twelve clients of both servers take turns');
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM most'), 96, 'each of them each time');
	is($node_a->safe_psql('postgres', 'SELECT max(n) FROM most'), 3, 'three at a time, and never more');
}

$node_a->stop;
$node_b->stop;
done_testing();
