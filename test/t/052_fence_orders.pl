# Two connections at the fence, step by step: who waits for whom, what each isolation level
# makes of a mark that is newer than its snapshot, and what a server asks of ZooKeeper
# before it believes a number.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

# ---------------------------------------------------------------------
# A server without shared_preload_libraries: numbers only

my $node = PostgreSQL::Test::Cluster->new('plain');
$node->init;
$node->append_conf('postgresql.conf', "deadlock_timeout = 100ms\nlog_error_verbosity = verbose");
$node->start;
$node->safe_psql('postgres', <<'END');
CREATE EXTENSION zklock;
CREATE TABLE ledger (id serial, token bigint);
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token');
CREATE TABLE notes (x int);
END
like(($node->psql('postgres', "SELECT zk_lock_acquire('r')"))[2], qr/must be loaded via shared_preload_libraries/,
	'this server has no locks');

my ($one, $two) = map { ZkTest::Session->new($node) } 1 .. 2;
my $observer = ZkTest::Session->new($node);
my $resource = 0;

sub mark { return $observer->query("SELECT token FROM zk_fence WHERE resource = '$_[0]'"); }

is($one->query("SELECT zk_fence_check('big', 9223372036854775807)"), '', 'the largest number passes where no worker runs');

foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $begin = "BEGIN ISOLATION LEVEL $level; SELECT count(*) > 0 FROM pg_class";
	my $strict = $level ne 'READ COMMITTED';
	my $r;

	# The first two who ever came: there is no row to lock yet.
	$r = 'r' . ++$resource;
	$_->query($begin) foreach $one, $two;
	is($one->query("SELECT zk_fence_check('$r', 10)"), '', "$level: the first for a resource passes");
	$two->send("SELECT zk_fence_check('$r', 9)");
	ok(waits_behind_others($observer, $two), "$level: the second waits for the first");
	$one->query('COMMIT');
	like($two->wait, qr/ERROR:  ZK002: fencing token 9 for "$r" is stale/, "$level: and is refused, being older");
	$two->query('ROLLBACK');

	$r = 'r' . ++$resource;
	$_->query($begin) foreach $one, $two;
	$one->query("SELECT zk_fence_check('$r', 10)");
	$two->send("SELECT zk_fence_check('$r', 11)");
	ok(waits_behind_others($observer, $two), "$level: the newer waits as well");
	$one->query('ROLLBACK');
	is($two->wait, '', "$level: and passes when the first was rolled back");
	$two->query('COMMIT');
	is(mark($r), 11, "$level: its token is the mark");

	# The frozen writer has passed: the next one waits, whatever it does.
	$_->query($begin) foreach $one, $two;
	$one->query("SELECT zk_fence_check('$r', 11)");
	$two->send("SELECT zk_fence_check('$r', 12)");
	ok(waits_behind_others($observer, $two), "$level: whoever has passed without raising the mark holds up the next");
	$one->query('COMMIT');
	my $late = $two->wait;
	if ($strict)
	{
		like($late, qr/ERROR:  40001: could not serialize access to "$r" under fencing token 12/,
			"$level: whose snapshot does not show what it waited for");
		$two->query('ROLLBACK');
		$late = $two->query("$begin; SELECT zk_fence_check('$r', 12); COMMIT");
		$late =~ s/^t\n//;
	}
	is($late, '', "$level: which then passes");
	$two->query('COMMIT') unless $strict;

	# A mark that is newer than the snapshot decides.
	$one->query($begin);
	$two->query("SELECT zk_fence_check('$r', 20)");
	like($one->query("SELECT zk_fence_check('$r', 15)"), qr/ERROR:  ZK002: .*\n.*The newest token is 20, presented by user/,
		"$level: a mark newer than the snapshot makes stale");
	$one->query('ROLLBACK');
	$one->query($begin);
	$two->query("SELECT zk_fence_check('$r', 25)");
	is($one->query("SELECT zk_fence_check('$r', 25)"), '', "$level: equal to a mark newer than the snapshot passes");
	$one->query('ROLLBACK');
	$one->query($begin);
	$two->query("SELECT zk_fence_check('$r', 30)");
	my $answer = $one->query("SELECT zk_fence_check('$r', 35)");
	if ($strict) { like($answer, qr/ERROR:  40001:/, "$level: to raise it is a serialization failure"); }
	else { is($answer, '', "$level: to raise it is fine"); }
	$one->query('ROLLBACK');
	is($one->query("$begin; SELECT zk_fence_check('$r', 35); COMMIT"), "t\n", "$level: in a new transaction it passes");

	# The same with the token in the row, and a savepoint around what waits.
	$_->query($begin) foreach $one, $two;
	$one->query("INSERT INTO ledger (token) VALUES (100 * $resource)");
	$two->send("SAVEPOINT s; INSERT INTO ledger (token) VALUES (100 * $resource - 1)");
	ok(waits_behind_others($observer, $two), "$level: a row with a token waits");
	$one->query('COMMIT');
	like($two->wait, qr/ERROR:  ZK002/, "$level: and is refused");
	$two->query('ROLLBACK TO s; INSERT INTO notes VALUES (1)');
	$two->query('COMMIT');

	# The presentation that is rolled back lets go of the resource.
	$one->query("$begin; SAVEPOINT s; SELECT zk_fence_check('$r', 36); ROLLBACK TO s");
	is($two->query("SELECT zk_fence_check('$r', 36)"), '', "$level: nobody waits for a presentation that was rolled back");
	$one->query('ROLLBACK');

	# Opposite orders.
	my ($x, $y) = ("x$resource", "y$resource");
	$_->query($begin) foreach $one, $two;
	$one->query("SELECT zk_fence_check('$x', 1)");
	$two->query("SELECT zk_fence_check('$y', 1)");
	$one->send("SELECT zk_fence_check('$y', 1)");
	waits_behind_others($observer, $one);
	$two->send("SELECT zk_fence_check('$x', 1)");
	# the error lets go of the loser's locks, so both answer
	my @answers = sort map { $_->wait(20) // 'no answer' } $one, $two;
	is($answers[0], '', "$level: of two that came in opposite orders one goes on");
	like($answers[1], qr/ERROR:  40P01: deadlock detected/, "$level: and PostgreSQL's deadlock detector ends the other");
	$_->query('ROLLBACK') foreach $one, $two;
}

# lock_timeout and cancel end the wait.
$one->query("BEGIN; SELECT zk_fence_check('wait', 1)");
like($two->query(q{SET lock_timeout = '50ms'; SELECT zk_fence_check('wait', 2)}), qr/55P03/, 'lock_timeout ends the wait');
$two->query('RESET lock_timeout');
$two->send("SELECT zk_fence_check('wait', 2)");
ok(waits_behind_others($observer, $two), 'it waits');
$observer->query('SELECT pg_cancel_backend(' . $two->backend . ')');
like($two->wait(5), qr/57014/, 'a cancel ends the wait');
is($observer->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 23115"), 1,
	'the lock is an advisory one of class 23115');
$one->query('COMMIT');

# Somebody who writes zk_fence himself, as a logical replication worker does: the row's
# lock is in his way.
$one->query("BEGIN; SELECT zk_fence_check('wait', 1)");
$two->send("UPDATE zk_fence SET token = 5 WHERE resource = 'wait'");
ok(waits_behind_others($observer, $two), 'a direct write of the mark waits for whoever has passed');
$one->query('COMMIT');
$two->wait;

# The extension in another schema, twice in one connection's life.
foreach my $schema (qw(first second))
{
	is($one->query(<<"END"), "1|7", "in schema $schema");
SET client_min_messages = warning;
DROP EXTENSION zklock CASCADE; CREATE SCHEMA $schema; CREATE EXTENSION zklock SCHEMA $schema;
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION $schema.zk_fence_guard('r', 'token');
INSERT INTO ledger (token) VALUES (7);
SELECT count(*), max(token) FROM $schema.zk_fence
END
}
$_->quit foreach $one, $two, $observer;
$node->stop;

# ---------------------------------------------------------------------
# A server with a worker: it vouches for numbers

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $server = zk_server('worker', $zk, conf => 'zklock.session_timeout = 4s');
($one, $two) = map { ZkTest::Session->new($server) } 1 .. 2;
my $token = $one->query("SELECT zk_lock_acquire('r')");

# More than anything issued, by one and by all.
foreach my $future ($token + 1000, 9223372036854775807)
{
	like($two->query("SELECT zk_fence_check('r', $future)"),
		qr/ERROR:  22023: fencing token $future for "r" has never been issued/, "$future is refused");
}
is($two->query("SELECT zk_fence_check('r', $token)"), '', 'a token that was issued passes');

# The newest token is newer than the last heartbeat: the server asks, and believes it.
foreach my $i (1 .. 20)
{
	my $foreign = $zk->hold(lock_directory("fresh$i") . '/x-lock-', '');
	my $czxid = $foreign->{czxid};
	my $answer = $two->query("SELECT zk_fence_check('fresh', $czxid)");
	if ($answer ne '' || $i == 20)
	{
		is($answer, '', 'a token issued a moment ago, elsewhere, passes');
		last;
	}
}

# No answer: neither yes nor no.
$zk->proxy(1, 'freeze');
my $start = time;
like($two->query("SELECT zk_fence_check('r', $token + 1000)"), qr/ERROR:  ZK003: could not verify fencing token/,
	'without an answer from ZooKeeper it is not believed');
cmp_ok(time - $start, '<', 4, 'which is said in time');
is($two->query("SELECT zk_fence_check('r', $token)"), '', 'what is known to be issued passes all the same');
$two->send("SELECT zk_fence_check('r', $token + 1000)");
$server->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = ' . $two->backend . q{ AND wait_event_type = 'Extension'});
$server->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $two->backend . ')');
like($two->wait(5), qr/57014/, 'a cancel ends that wait');
$zk->proxy(1, 'pass');
wait_for_lease($server);

# The worker is stopped: the same.
my $worker = $server->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
kill 'STOP', $worker;
like($two->query("SELECT zk_fence_check('r', $token + 1000)"), qr/ERROR:  ZK003/, 'with a stopped worker it is not believed');
kill 'CONT', $worker;
wait_for_lease($server);
poll_until(sub { $two->query("SELECT zk_fence_check('r', $token + 1000000)") =~ /22023/ }, 10);
like($two->query("SELECT zk_fence_check('r', $token + 1000000)"), qr/ERROR:  22023/, 'and refused again when it goes on');

# A lock that is lost fences nothing.
$server->safe_psql('postgres', <<'END');
CREATE TABLE ledger (x int);
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('lost');
END
$one->query('SELECT zk_lock_release_all()');
like($one->query("SELECT zk_lock_acquire('lost')"), qr/^\d+$/, 'the lock is held');
is($one->query('INSERT INTO ledger VALUES (1)'), '', 'its holder may write');
like($two->query('INSERT INTO ledger VALUES (2)'), qr/ERROR:  ZK004/, 'another may not');
$zk->delete(lock_directory('lost') . '/' . (contenders($zk, 'lost'))[0]);
ok(defined poll_until(sub { $one->query('INSERT INTO ledger VALUES (3)') =~ /ERROR:  ZK001/ }, 5), 'after the loss it is ZK001');

done_testing();
