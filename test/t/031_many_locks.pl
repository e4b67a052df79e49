# As many locks as one ZooKeeper session may have. The reconnect, whose one packet names every
# watch, and the end of the ZooKeeper session, whose one transaction names every node, harm neither
# the worker nor the ensemble; one lock more is refused, and harms nothing either.
#
# Both packets are limited to 1 MB by ZooKeeper: with more, the client never gets through again,
# and the ensemble is dead for good.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

use constant BUDGET => 900_000;

# valgrind needs its time to see eight thousand nodes again
my $timeout = instrumented() ? 24 : 6;

my $zk = ZkEnsemble->new(nodes => 3, tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => "zklock.session_timeout = ${timeout}s\nzklock.max_locks = 20000");
my $other = zk_server('b', $zk, hosts => $zk->direct_hosts);
my $bystander = ZkTest::Session->new($other);

# 39 bytes: a node's path has 47 + 1 + 55, for which 110 are counted, so that at most 8,181 fit.
my $most = int(BUDGET / 110);
my $name = q{'many-x' || lpad(i::text, 33, '0')};
sub name { my ($i) = @_; return sprintf 'many-x%033d', $i; }

# Somebody else's work goes on: his longest wait, in seconds, while the condition has not come true.
my $turn = 0;
sub meanwhile
{
	my ($condition, $timeout) = @_;
	my ($start, $longest) = (time, 0);
	until ($condition->())
	{
		return if time - $start > $timeout;
		my $before = time;
		my $lock = 'bystander/n' . $turn++ % 5;
		my $answer = $bystander->query("SELECT zk_lock_acquire('$lock') > 0, zk_lock_release('$lock')");
		die "bystander: $answer" unless $answer eq 't|t';
		$longest = time - $before if time - $before > $longest;
	}
	return $longest;
}

my @holders = map { ZkTest::Session->new($node, name => "holder $_") } 0 .. 3;

# Do all still hold what they have?
sub all_held
{
	$holders[$_]->send(qq{SELECT count(*) FROM mine WHERE zk_fencing_token($name) = token}) foreach 0 .. $#holders;
	my $held = 0;
	foreach my $holder (@holders)
	{
		my $answer = $holder->wait(30) // '';
		return $answer unless $answer =~ /^\d+$/;
		$held += $answer;
	}
	return $held;
}

# Eight thousand locks, and then one by one until there is no room for another.
my $start = time;
foreach my $i (0 .. 3)
{
	my ($from, $to) = ($i * 2000, $i * 2000 + 1999);
	$holders[$i]->send("CREATE TEMP TABLE mine AS SELECT i, zk_lock_acquire($name) AS token FROM generate_series($from, $to) i");
}
is($holders[$_]->wait(60), '', "holder $_ has 2000 locks") foreach 0 .. 3;
diag sprintf '8000 locks took %.1f s', time - $start;
is(all_held(), 8000, '8000 locks are held');

my $extra = ZkTest::Session->new($node, name => 'extra');
my ($count, $refusal) = (8000);
while ($count <= 2 * $most)
{
	my $answer = $extra->query("SELECT zk_lock_acquire('" . name($count) . "')");
	if ($answer !~ /^\d+$/)
	{
		$refusal = $answer;
		last;
	}
	$count++;
}
cmp_ok($count, '<=', $most, "$count locks: no more than the budget allows");
cmp_ok($count, '>=', $most - 2, 'and no fewer');
like($refusal, qr/ERROR:  54000: too many locks for one ZooKeeper session.*HINT:/s, 'one more: 54000 and a hint');
is(nodes_left($zk), $count, 'no node is left of that one');
is(all_held(), 8000, 'and the others are held as before');

# One is given back: one fits again.
is($extra->query("SELECT zk_lock_release('" . name(8000) . "')"), 't', 'one is given back');
ok(defined poll_until(sub { $extra->query(q{SELECT zk_lock_acquire('many-} . 'y' x 34 . q{')}) =~ /^\d+$/ }, 5), 'another one fits in its place');

# A waiter needs two watches; it counts as well, and it is not harmed by those who do not fit beside it.
{
	my $acquire = "SELECT zk_lock_acquire('" . name(8000) . "')";
	like($bystander->query($acquire), qr/^\d+$/, 'a lock of another server');
	$extra->query(q{SELECT zk_lock_release('many-} . 'y' x 34 . q{')});
	my $waiter = ZkTest::Session->new($node, name => 'waiter');
	my $path = lock_directory(name(8000));
	$waiter->send($acquire);
	ok( defined poll_until(
			sub {
				# the release is still on its way
				$waiter->send($acquire) if $waiter->answered && $waiter->wait =~ /54000/;
				return $zk->ls($path) == 2;
			}, 10),
		'a waiter takes the place');
	like($extra->query(q{SELECT zk_lock_acquire('many-} . 'y' x 34 . q{')}), qr/ERROR:  54000:/, 'nothing fits beside it');
	ok(!$waiter->answered, 'it waits on');
	$bystander->query("SELECT zk_lock_release('" . name(8000) . "')");
	like($waiter->wait(5), qr/^\d+$/, 'and is granted');
	$waiter->quit;
	ok(defined poll_until(sub { $zk->ls($path) == 0 }, 5), 'and gone');
}

# The connection is cut. Until the lease of before would be long over, everything must be there.
my ($worker, $session) = (worker_of($node), members($zk, 'a'));
my $offset = -s $node->logfile;
sub connects { return scalar(() = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~ /connected again/g); }
foreach my $cut (1, 2)
{
	my $before = connects();
	# the one node: cut one after the other, they would meet the worker again
	$zk->proxy($zk->node_of($worker), 'cut');
	ok(defined meanwhile(sub { connects() > $before }, 10), "cut $cut: connected again");
}
my $connects = connects();
$start = time;
my $longest = meanwhile(sub { time - $start > $timeout + 1 }, 60);
cmp_ok($longest, '<', 2, sprintf 'others used the ensemble all the time, and waited for %.2f s at most', $longest);
is(all_held(), 8000, 'after T and more: all are held, with the same tokens');
is(worker_of($node), $worker, 'by the same worker');
is(members($zk, 'a'), $session, 'and the same ZooKeeper session');
is(connects(), $connects, 'the connection lasts');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset), qr/lease lapsed/, 'the lease never lapsed');

# The watches are there again: whose node is deleted learns of it.
my $victim = lock_directory(name(7999));
$zk->delete("$victim/$_") foreach $zk->ls($victim);
ok(defined poll_until(sub { $holders[3]->query("SELECT zk_lock_is_held('" . name(7999) . "')") eq 'f' }, 2), 'a node that was deleted is missed');
like($holders[3]->query("SELECT zk_lock_release('" . name(7999) . "')"), qr/WARNING/, 'its lock is lost');
$holders[3]->query('DELETE FROM mine WHERE i = 7999');
is(all_held(), 7999, 'and no other');

# Nobody answers for longer than T: everything is lost, in one transaction of the ensemble.
my @modes = sort map { $zk->mode($_) // 'dead' } $zk->all;
is("@modes", 'follower follower leader', 'three nodes are at work');
$zk->proxy(undef, 'freeze');
$longest = meanwhile(sub { members($zk, 'a') eq '' }, $timeout + 15);
ok(defined $longest, 'expired');
is(nodes_left($zk), 0, 'expired: all nodes are gone');
cmp_ok($longest // 99, '<', 2, 'others used the ensemble all the time');
@modes = sort map { $zk->mode($_) // 'dead' } $zk->all;
is("@modes", 'follower follower leader', 'three nodes are at work');
like($_->query('SELECT 1'), qr/ERROR:  ZK001:/, 'expired: the holder is told') foreach @holders;
$zk->proxy(undef, 'pass');
wait_for_lease($node);
is(worker_of($node), $worker, 'the worker is the same');
isnt(members($zk, 'a'), $session, 'the ZooKeeper session is another one');
like($_->query('SELECT zk_lock_release_all()'), qr/^(?:WARNING.*\n|DETAIL.*\n|LOCATION.*\n)*\d+$/, 'the holder lets go') foreach @holders, $extra;

# The transaction is in the log of every node: they must be able to read it again.
$zk->kill_all;
$zk->start_all;
@modes = sort map { $zk->mode($_) // 'dead' } $zk->all;
is("@modes", 'follower follower leader', 'killed and started, three nodes are at work again');
wait_for_lease($node);
wait_for_lease($other);
is(nodes_left($zk), 0, 'no node came back');

# There is room again.
foreach my $i (0 .. 3)
{
	my ($from, $to) = ($i * 2000, $i * 2000 + 499);
	$holders[$i]->send("TRUNCATE mine; INSERT INTO mine SELECT i, zk_lock_acquire($name) FROM generate_series($from, $to) i");
}
is($holders[$_]->wait(60), '', "holder $_ has 500 locks again") foreach 0 .. 3;
is(all_held(), 2000, 'and holds them');
$_->quit foreach @holders;
$longest = meanwhile(sub { nodes_left($zk) == 0 }, 10);
ok(defined $longest, 'the holders leave: no node is left');
$_->quit foreach $extra, $bystander;
$node->stop;
$other->stop;
done_testing();
