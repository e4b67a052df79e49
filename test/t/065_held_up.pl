# Held up at a bad moment: the library's thread between the handshake and what it says of it,
# and the worker as a whole. The lease is never longer than the rule allows, and comes back
# in one piece.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time clock_gettime);
use PostgreSQL::Test::Utils qw(slurp_file);
use ZkTest;

plan skip_all => 'an instrumented server has its own preloaded library' if instrumented();
use constant CLOCK_BOOTTIME => 7;

my $timeout = 8;
my $tick = 0.5;
my $zk = ZkEnsemble->new(tick => $tick * 1000, proxy => 1)->start;
my $library = shared_library('slowsend');
my $delay = PostgreSQL::Test::Utils::tempdir('slowsend') . '/delay';
my $node;
{
	local %ENV = (%ENV, LD_PRELOAD => $library, SLOWSEND => $delay);
	$node = zk_server('a', $zk, conf => "zklock.session_timeout = ${timeout}s");
}
my $look = ZkTest::Session->new($node);
sub connects { return $look->query('SELECT connects FROM zk_session'); }

# The thread is held up after the handshake was sent. The ensemble counts from there, so the
# first heartbeat's answer cannot prove more than handshake + T less the margin.
foreach my $ms (700, 1500)
{
	wait_for_full_lease($node);
	my $before = connects();
	PostgreSQL::Test::Utils::append_to_file($delay, $ms);
	$zk->proxy(1, 'cut');
	ok(defined poll_until(sub { connects() > $before }, 10), "held up for $ms ms after a handshake: connected");
	unlink $delay;
	my $sent = slurp_file("$delay.sent") / 1e6;
	my $latest = 0;
	my $until = time + 0.3;
	while (time < $until)
	{
		my $left = $look->query('SELECT extract(epoch FROM lease_left) FROM zk_session');
		my $deadline = clock_gettime(CLOCK_BOOTTIME) + ($left || 0);
		$latest = $deadline if $deadline > $latest;
	}
	# heartbeats sent since may count by themselves; the gap to the handshake counts always
	my $allowed = $sent + $timeout - $tick / 2 - 0.5 + 0.3;
	cmp_ok($latest, '<', $allowed, "held up for $ms ms after a handshake: no lease beyond what the handshake proves")
	  or diag sprintf 'deadline = handshake + %.2f s', $latest - $sent;
	cmp_ok($latest, '>', $sent, 'and there is one');
}

# The worker stands still, for longer than the lease and for less than the timeout.
{
	wait_for_full_lease($node);
	my $holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{SELECT zk_lock_acquire('stands still')});
	my $lapses = $look->query('SELECT lapses FROM zk_session');
	my $offset = -s $node->logfile;
	my $worker = worker_of($node);
	kill 'STOP', $worker;
	ok(defined poll_until(sub { $look->query(q{SELECT coalesce(lease_left, '0') <= '0' FROM zk_session}) eq 't' }, $timeout), 'the worker stands still: the lease runs out');
	kill 'CONT', $worker;
	my $took = poll_until(sub { $look->query(q{SELECT lease_left > '1 s' FROM zk_session}) eq 't' }, 2 * $timeout);
	ok(defined $took && $took < 3, 'it goes on: a lease of use at once') or diag $took // 'never';
	# long enough for the gap to have left the window of the rule
	my $short = 0;
	my $until = time + $timeout + 1;
	while (time < $until)
	{
		$short++ if $look->query(q{SELECT coalesce(lease_left, '0') < '1 s' FROM zk_session}) eq 't';
	}
	is($short, 0, 'and it stays of use');
	my $log = slurp_file($node->logfile, $offset);
	is(scalar(() = $log =~ /lease lapsed/g), 1, 'one line about the lapse');
	is(scalar(() = $log =~ /lease is current again/g), 1, 'one line about its end');
	is($look->query('SELECT lapses FROM zk_session'), $lapses + 1, 'one lapse is counted');
	is($holder->query(q{SELECT zk_fencing_token('stands still')}), $token, 'an idle lock is kept');
	$holder->quit;
}
$look->quit;
$node->stop;
done_testing();
