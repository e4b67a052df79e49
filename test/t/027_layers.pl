# Layers of the guard that the faults of the other tests cannot tell from the layer behind
# them: what would fail here if only that one were missing.

use strict;
use warnings;

use Test::More;
use List::Util qw(min);
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
$node->safe_psql('postgres', 'CREATE TABLE work (what text)');

# Wait until the statement runs: a cancel that falls into its planning is PostgreSQL's own.
my $watcher = ZkTest::Session->new($node);
sub wait_for_run
{
	my ($session, $what) = @_;
	my $question = "SELECT $what FROM pg_stat_activity WHERE pid = " . $session->backend;
	poll_until(sub { $watcher->query($question) eq 't' }, 10) // die 'the statement does not run';
	return;
}

# The push. The timer looks every 500 ms from the grant on; a loss right after the
# grant is noticed earlier only if the worker says so. The best of some, since the machine
# may be busy.
{
	my @took;
	foreach my $i (1 .. 5)
	{
		my $session = ZkTest::Session->new($node);
		$session->query("BEGIN; SELECT zk_xact_lock_acquire('push $i')");
		my $granted = time;
		$session->send('SELECT pg_sleep(60)');
		wait_for_run($session, q{wait_event = 'PgSleep'});
		my ($contender) = contenders($zk, "push $i");
		$zk->delete(lock_directory("push $i") . "/$contender");
		like($session->wait(5) // '', qr/ERROR:  ZK001: /, 'node deleted: the statement is cancelled');
		push @took, time - $granted;
		$session->quit;
	}
	cmp_ok(min(@took), '<', 0.4, 'and not only by the timer');
	note 'cancelled ' . join(' ', map { sprintf '%.3f', $_ } @took) . ' s after the grant';
}

# The margin. The lease is never longer than 3 s here: with a margin of 3 s nothing
# commits, though the lease is current.
{
	my $session = ZkTest::Session->new($node);
	foreach my $margin ([ '3s', 0 ], [ '250ms', 1 ])
	{
		my $what = "margin $margin->[0]";
		$session->query("BEGIN; INSERT INTO work VALUES ('$what'); SELECT zk_xact_lock_acquire('$what')");
		$session->query("SET LOCAL zklock.commit_margin = '$margin->[0]'");
		is($session->query("SELECT zk_lock_is_held('$what')"), 't', "$what: the lease is current");
		my $answer = $session->query('COMMIT');
		$margin->[1] ? unlike($answer, qr/ERROR/, "$what: COMMIT") : like($answer, qr/ZK001/, "$what: COMMIT fails");
		is(rows($node, $what), $margin->[1], "$what: the row");
	}
	$session->quit;
}

# Doom sticks, whoever catches the error.
{
	my $library = shared_library('swallow');
	$node->safe_psql('postgres', <<"END");
CREATE FUNCTION swallow_blind(float8, text) RETURNS text LANGUAGE c AS '$library';
CREATE FUNCTION swallow_forever() RETURNS void LANGUAGE c AS '$library';
CREATE FUNCTION swallow_once() RETURNS text LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM pg_sleep(60);
EXCEPTION WHEN query_canceled THEN
	RETURN 'swallowed';
END \$\$;
END

	# caught, and nothing comes after it that would look at the lock
	my $session = ZkTest::Session->new($node);
	$session->query(q{BEGIN; SELECT zk_xact_lock_acquire('swallow once')});
	$session->send('SELECT swallow_once()');
	wait_for_run($session, q{wait_event = 'PgSleep'});
	lose($zk, 'swallow once');
	like($session->wait(5) // '', qr/ERROR:  ZK001: /, 'caught once: the statement fails all the same');
	$session->quit;

	# nothing looked at interrupts, so it is a statement's start that finds out, in a
	# block that catches all but a cancel
	$session = ZkTest::Session->new($node);
	$session->query(q{BEGIN; SELECT zk_xact_lock_acquire('swallow blindly')});
	$session->send(q{SELECT swallow_blind(1.5, 'SELECT 1')});
	# it plans and runs its statement before it goes blind
	wait_for_run($session, q{state = 'active' AND query ~ 'blind' AND clock_timestamp() - query_start > '0.2s'});
	lose($zk, 'swallow blindly');
	my $answer = $session->wait(5) // '';
	like($answer, qr/ERROR:  ZK001: /, 'noticed inside: the statement fails');
	unlike($answer, qr/caught/, 'noticed inside: WHEN OTHERS does not catch it');
	$session->quit;

	# whatever is sent is caught: only the end of the connection is not
	$session = ZkTest::Session->new($node);
	$session->query(q{BEGIN; SELECT zk_xact_lock_acquire('swallow forever')});
	$session->send('SELECT swallow_forever()');
	wait_for_run($session, q{wait_event = 'PgSleep'});
	lose($zk, 'swallow forever');
	my $took = poll_until(sub { !kill 0, $session->backend }, 10);
	ok(defined $took, 'caught for ever: the connection is ended') or $node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $session->backend . ')');
	note sprintf 'ended after %.3f s', $took // -1;
	$session->quit;
}

$watcher->quit;
$node->stop;
done_testing();
