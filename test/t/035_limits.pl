# What runs out: the worker's request numbers, its file descriptors, its memory; and the year in which
# the client library's request numbers, which begin at the time of day, become negative. The worker
# may have to begin anew; it does not take the server with it, and afterwards all is well.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

plan skip_all => 'an instrumented server has limits of its own' if instrumented();

use constant WORKER => q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'};
my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;

# One connection for all questions: while descriptors are short there may be no other.
my ($node, $control);
sub worker { return $control->query(WORKER); }

sub limit
{
	my ($pid, $limit) = @_;
	return system('prlimit', '--pid', $pid, "--$limit") == 0;
}

# Seconds of processor time that a process has used.
sub cpu
{
	my ($pid) = @_;
	my @stat = split ' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr;
	return ($stat[11] + $stat[12]) / 100;
}

#
# Request numbers of the client library: from 2038 on they pass from positive to negative. It
# begins at the time of day; so the time of day is set to 500 requests before.
#

{
	my $clock = ZkTest::Clock->new;
	$clock->set((2**31 - 500 - time) / 86400);
	local %ENV = (%ENV, $clock->environment);
	$node = zk_server('y', $zk);
	$control = ZkTest::Session->new($node);
	like($control->query('SELECT now()'), qr/^2038-01-19/, 'it is January 2038');
	my ($worker, $session) = (worker(), members($zk));
	my $holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{SELECT zk_lock_acquire('held')});
	# the numbers of the latest requests, as ZooKeeper has them
	my $newest = sub { my ($hex) = sort { $b cmp $a } (($zk->four_letter_word(1, 'cons') // '') =~ /lcxid=0x([0-9a-f]{8,16})/g); return $hex // ''; };
	like($newest->(), qr/^7ffff/, 'the request numbers are near their largest');
	is($control->query(q{DO $$ BEGIN FOR i IN 1..500 LOOP PERFORM zk_lock_acquire('2038'), zk_lock_release('2038'); END LOOP; END $$}),
		'', 'five hundred locks');
	# ZooKeeper keeps the latest that was not negative
	is($newest->(), '7fffffff', 'the request numbers have passed their largest');
	is($holder->query(q{SELECT zk_fencing_token('held')}), $token, 'the lock is still held');
	$zk->proxy(1, 'cut');
	wait_for_lease($node);
	is($holder->query(q{SELECT zk_fencing_token('held')}), $token, 'and after a cut');
	is(worker(), $worker, 'the worker is the same');
	is(members($zk), $session, 'and its ZooKeeper session');
	$_->quit foreach $holder, $control;
	$node->stop;
}

$node = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
$control = ZkTest::Session->new($node);
$control->query(WORKER);
my $other = zk_server('b', $zk, hosts => $zk->direct_hosts);

#
# The worker's own count of requests: shortly before its limit, as a debugger sets it.
#

SKIP:
{
	skip 'there is no gdb', 6 unless grep { -x "$_/gdb" } split /:/, $ENV{PATH};
	my ($worker, $session, $offset) = (worker(), members($zk), -s $node->logfile);
	my ($holder, $waiter) = (ZkTest::Session->new($node), ZkTest::Session->new($other));
	my $token = $holder->query(q{SELECT zk_lock_acquire('counted')});
	$waiter->send(q{SELECT zk_lock_acquire('counted')});
	poll_until(sub { contenders($zk, 'counted') == 2 }, 5) // die;
	my $said = qx(gdb -nx -batch -p $worker -ex "set variable zkl_worker.coordinator->requests = 1999999900" -ex "print zkl_worker.coordinator->requests" 2>&1);
	like($said, qr/^\$1 = 1999999900/m, 'the counter is a hundred requests before its limit') or diag $said;
	is($control->query(q{DO $$ BEGIN FOR i IN 1..100 LOOP PERFORM zk_lock_acquire('spent'), zk_lock_release('spent'); END LOOP; END $$}),
		'', 'a hundred locks');
	ok(defined poll_until(sub { my $pid = worker(); $pid ne '' && $pid ne $worker }, 10), 'another worker is there');
	like(log_since($node, $offset), qr/restarting the worker before the client library's request numbers run out/, 'and the log says why');
	wait_for_lease($node);
	is($holder->query(q{SELECT zk_fencing_token('counted')}), $token, 'the lock is still held');
	is(join(' ', grep { /^a-/ } split / /, members($zk)), join(' ', grep { /^a-/ } split / /, $session), 'on the same ZooKeeper session');
	ok(!$waiter->answered, 'nobody else was granted');
	$holder->quit;
	like($waiter->wait(5), qr/^\d+$/, 'until it was released');
	$waiter->quit;
}

#
# File descriptors
#

# The worker can open nothing any more, and its connection is cut.
{
	my $worker = worker();
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('descriptors')});
	ok(limit($worker, 'nofile=4:'), 'the worker may open no file');
	my $offset = -s $node->logfile;
	$zk->proxy(1, 'cut');
	ok(defined poll_until(sub { log_since($node, $offset) =~ /lease lapsed/ }, 12), 'no descriptors: the lease lapses');
	my $before = cpu($worker);
	my $start = time;
	like($control->query(q{SELECT zk_lock_acquire('x', timeout => '2 s')}), qr/ERROR:  ZK003: .*DETAIL:/s, 'no descriptors: no lock, and why: '
		  . ($control->query(q{SELECT zk_lock_try_acquire('x')}) =~ /DETAIL:  (.*)/ ? $1 : ''));
	cmp_ok((cpu($worker) - $before) / (time - $start), '<', 0.5, 'no descriptors: the worker does not spin');
	like($holder->query('SELECT 1'), qr/ZK001/, 'no descriptors: the holder cannot go on');
	is(worker(), $worker, 'no descriptors: the worker lives');
	ok(limit($worker, 'nofile=1024:'), 'it may again');
	wait_for_lease($node);
	is(worker(), $worker, 'descriptors are back: the same worker has a lease');
	$holder->quit;
	ok(defined poll_until(sub { contenders($zk, 'descriptors') == 0 }, 5), 'and nothing is left');
}

# A backend that can open nothing takes and gives locks all the same.
{
	my $session = ZkTest::Session->new($node);
	$session->query(q{SELECT zk_lock_acquire('warm up'), zk_lock_release('warm up')});
	ok(limit($session->backend, 'nofile=4:'), 'a backend may open no file');
	like($session->query(q{SELECT zk_lock_acquire('descriptors')}), qr/^\d+$/, 'it gets a lock');
	is($session->query(q{SELECT zk_lock_release('descriptors')}), 't', 'and gives it back');
	$session->quit;
}

# A worker that starts with too few, whatever it is that it cannot open then.
{
	my $postmaster = postmaster_of($node);
	my $offset = -s $node->logfile;
	my $ends = sub { my $n = () = log_since($node, $offset) =~ /background worker "zklock worker" \(PID \d+\) exited/g; return $n; };
	my %seen;
	foreach my $files (6 .. 14, 18)
	{
		my $before = $ends->();
		limit($postmaster, "nofile=$files:") or die;
		my $old = worker();
		$control->query("SELECT pg_terminate_backend($old)") if $old ne '';
		# it ends, and another one is there or has ended as well
		poll_until(sub { my $pid = worker(); $ends->() > $before + ($old ne '') || $pid ne '' && $pid ne $old }, 10) // die;
		my $is = worker();
		$seen{ $is eq '' ? 'does not start' : 'starts' }++;
		# whether it gets as far as to a ZooKeeper session, or waits for better times
		$seen{ $control->query(q{SELECT zk_lock_try_acquire('x')}) =~ /^\d+$/ ? 'gets a lock' : 'gets none' }++;
		$control->query('SELECT zk_lock_release_all()');
	}
	limit($postmaster, 'nofile=1024:') or die;
	note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
	cmp_ok($seen{'gets none'}, '>', 0, 'too few descriptors for some workers');
	cmp_ok($seen{'gets a lock'}, '>', 0, 'and enough for others');
	my $old = worker();
	$control->query("SELECT pg_terminate_backend($old)") if $old ne '';
	poll_until(sub { my $pid = worker(); $pid ne '' && $pid ne $old }, 10) // die;
	wait_for_lease($node);
	unlike(log_since($node, $offset), qr/terminated by signal|PANIC|all server processes/, 'none took the server with it');
	is($control->query('SELECT 1'), '1', 'whose connections are as they were');
}

#
# Memory: the answer to a listing is larger than what a young worker can get. It may end, or
# connect again; what it must not do is to die of it, and with it the whole server.
#

{
	my $directory = lock_directory('needy');
	$zk->create($directory, '', 'p');
	my ($code) = $zk->zkcli([ 'fill', "$directory/no contender " . 'x' x 230, 8000 ], timeout => 60);
	is($code, 0, 'a long list');
	my $old = worker();
	$control->query("SELECT pg_terminate_backend($old)");
	poll_until(sub { my $pid = worker(); $pid ne '' && $pid ne $old }, 10) // die;
	wait_for_lease($node);
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('memory')});
	my $offset = -s $node->logfile;
	my @sessions = map { ZkTest::Session->new($node) } 1 .. 4;
	ok(limit(worker(), 'data=1:'), 'the worker gets no more memory');
	$_->send(q{SELECT zk_lock_acquire('needy', timeout => '4 s')}) foreach @sessions;
	my $evidence = qr/out of memory|client library: .*failed while receiving|no answer from ZooKeeper/;
	ok(defined poll_until(sub { log_since($node, $offset) =~ $evidence }, 10), 'memory: it is missed: ' . (log_since($node, $offset) =~ /($evidence)/ ? $1 : ''));
	$_->wait(10) // fail('memory: a wait does not end') foreach @sessions;
	poll_until(sub { my $pid = worker(); $pid =~ /^\d+$/ && limit($pid, 'data=unlimited:') }, 10) // die;
	wait_for_lease($node);
	like($sessions[0]->query(q{SELECT zk_lock_acquire('needy', timeout => '5 s')}), qr/^\d+$/, 'memory: when there is some, the lock can be had');
	unlike(log_since($node, $offset), qr/terminated by signal|PANIC|all server processes/, 'memory: it did not take the server with it');
	# held or lost, it can say so
	like($holder->query('SELECT zk_lock_release_all()'), qr/^1$/m, 'memory: the connection is as it was');
	$_->kill_client foreach @sessions, $holder;
	ok(defined poll_until(sub { !grep { /^_c_/ } $zk->ls($directory) }, 5), 'memory: nothing is left');
}

$control->quit;
$node->stop;
$other->stop;
done_testing();
