# Nothing leaks: while a backend holds or waits there is exactly one node of its in the
# lock's directory, and however that ends there is none two seconds later.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

# What the design promises for every way of ending but the death of a whole server.
use constant LIMIT => 2;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $lock_number = 0;

# The directory is empty in time and stays empty: a node that comes back later is one
# that some retry has made.
sub is_clean
{
	my ($lock, $what) = @_;
	my $took = nodes_become($zk, $lock, 0, LIMIT);
	ok(defined $took, "$what: no node is left")
	  or diag join "\n", contenders($zk, $lock);
	diag sprintf '%s took %.2f s', $what, $took if defined $took && $took > LIMIT / 2;
	return;
}

#
# Holders
#

# name => [ take, end ]; the end gets the session
my @holders = (
	[ 'release', 'SELECT zk_lock_acquire(%s)', sub { $_[0]->query("SELECT zk_lock_release($_[1])") } ],
	[ 'release after two acquires', 'SELECT zk_lock_acquire(%1$s), zk_lock_acquire(%1$s)',
		sub { $_[0]->query("SELECT zk_lock_release($_[1]), zk_lock_release($_[1])") } ],
	[ 'release_all', 'SELECT zk_lock_acquire(%s)', sub { $_[0]->query('SELECT zk_lock_release_all()') } ],
	[ 'DISCARD ALL', 'SELECT zk_lock_acquire(%s)', sub { $_[0]->query('DISCARD ALL') } ],
	[ 'commit', 'BEGIN; SELECT zk_xact_lock_acquire(%s)', sub { $_[0]->query('COMMIT') } ],
	[ 'commit of a write', 'BEGIN; CREATE TEMP TABLE t(a int); SELECT zk_xact_lock_acquire(%s)',
		sub { $_[0]->query('COMMIT') } ],
	[ 'release in a transaction that wrote',
		'BEGIN; CREATE TEMP TABLE t(a int); SELECT zk_lock_acquire(%s)',
		sub { $_[0]->query("SELECT zk_lock_release($_[1]); COMMIT") } ],
	[ 'rollback', 'BEGIN; SELECT zk_xact_lock_acquire(%s)', sub { $_[0]->query('ROLLBACK') } ],
	[ 'rollback to savepoint', 'BEGIN; SAVEPOINT s; SELECT zk_xact_lock_acquire(%s)',
		sub { $_[0]->query('ROLLBACK TO s') } ],
	[ 'error', 'BEGIN; SELECT zk_xact_lock_acquire(%s)', sub { $_[0]->query('SELECT 1/0; ROLLBACK') } ],
	[ 'error in the statement that acquired', 'SELECT 1',
		sub { $_[0]->query("SELECT zk_xact_lock_acquire($_[1]), 1/(SELECT 0)") } ],
	[ 'statement_timeout of the holder', 'BEGIN; SELECT zk_xact_lock_acquire(%s)',
		sub { $_[0]->query("SET LOCAL statement_timeout = 100; SELECT pg_sleep(10); ROLLBACK") } ],
	[ 'disconnect', 'SELECT zk_lock_acquire(%s)', sub { $_[0]->quit } ],
	[ 'death of the client', 'SELECT zk_lock_acquire(%s)', sub { $_[0]->kill_client } ],
	[ 'pg_terminate_backend', 'SELECT zk_lock_acquire(%s)',
		sub { $node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $_[0]->backend . ')') } ],
);

foreach my $case (@holders)
{
	my ($what, $take, $end) = @$case;
	my $lock = 'leftovers/case-' . ++$lock_number;
	my $session = ZkTest::Session->new($node);

	$session->query(sprintf $take, "'$lock'");
	is(scalar contenders($zk, $lock), $what =~ /statement that acquired/ ? 0 : 1, "$what: one node while held");
	$end->($session, "'$lock'");
	is_clean($lock, $what);
}

#
# Waiters, behind another backend that keeps the lock.
#

my @waiters = (
	[ 'pg_cancel_backend', '',
		sub { $node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_[0]->backend . ')') },
		qr/57014/ ],
	[ 'pg_terminate_backend of a waiter', '',
		sub { $node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $_[0]->backend . ')') },
		qr/57P01/ ],
	[ 'statement_timeout of a waiter', 'SET statement_timeout = 500;', sub { }, qr/57014/ ],
	[ 'lock_timeout', 'SET lock_timeout = 500;', sub { }, qr/55P03/ ],
	[ 'acquire_timeout', 'SET zklock.acquire_timeout = 500;', sub { }, qr/55P03/ ],
	[ 'death of a waiting client', "SET client_connection_check_interval = 100;", sub { $_[0]->kill_client }, undef ],
);

my $holder = ZkTest::Session->new($node, name => 'holder');
foreach my $case (@waiters)
{
	my ($what, $set, $end, $error) = @$case;
	my $lock = 'leftovers/case-' . ++$lock_number;
	$holder->query("SELECT zk_lock_acquire('$lock')");

	my $waiter = ZkTest::Session->new($node, name => 'waiter');
	$waiter->query($set) if $set;
	$waiter->send("SELECT zk_lock_acquire('$lock')");
	ok(defined nodes_become($zk, $lock, 2, 5), "$what: one node for the waiter");
	$end->($waiter);
	like($waiter->wait(5), $error, "$what: the wait ended as it should") if $error;
	ok(defined nodes_become($zk, $lock, 1, LIMIT), "$what: only the holder's node is left")
	  or diag join "\n", contenders($zk, $lock);

	$holder->query("SELECT zk_lock_release('$lock')");
	is_clean($lock, $what);
}

#
# A hundred timeouts in a row; at no time more than one node for the waiter.
#

my $lock = 'leftovers/timeouts';
$holder->query("SELECT zk_lock_acquire('$lock')");
my $waiter = ZkTest::Session->new($node, name => 'waiter');
my ($timeouts, $most) = (0, 0);
foreach my $i (1 .. 100)
{
	$waiter->send("SELECT zk_lock_acquire('$lock', timeout => '20 ms')");
	my $answer;
	until (defined($answer = $waiter->wait(0.005)))
	{
		my $n = contenders($zk, $lock);
		$most = $n if $n > $most;
	}
	# On a busy machine 20 ms may be over before ZooKeeper has said who is ahead.
	$timeouts++ if $answer =~ /ERROR:  (?:55P03|ZK003):/;
}
is($timeouts, 100, 'a waiter times out a hundred times');
# One request's node may be on its way out while the next one's is made.
cmp_ok($most, '<=', 3, 'requests leave no trail of nodes');
ok(defined nodes_become($zk, $lock, 1, LIMIT), 'only the holder is left')
  or diag join "\n", contenders($zk, $lock);

# A waiter whose connection closes with the rest of a transaction behind it, and the
# holder's, all at once.
$waiter->send("SELECT zk_lock_acquire('$lock')");
ok(defined nodes_become($zk, $lock, 2, 5), 'waiting again');
$holder->quit;
like($waiter->wait(5), qr/^\d+$/, 'the waiter gets the lock when the holder goes');
# All this was seen through our own small program: ZooKeeper's shell has the last word.
{
	my $second = ZkTest::Session->new($node, name => 'second');
	$second->send("SELECT zk_lock_acquire('$lock')");
	ok(defined nodes_become($zk, $lock, 2, 5), 'a holder and a waiter');
	my $node_name = qr/_c_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-\d{10}/;
	like($zk->zkcli_sh('ls', lock_directory($lock)), qr/^\[$node_name, $node_name\]$/m, 'zkCli.sh ls: two nodes and nothing else');
	$second->kill_client;
	$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $second->backend . ')');
	$waiter->quit;
	ok(defined nodes_become($zk, $lock, 0, LIMIT), 'both gone');
	like($zk->zkcli_sh('ls', lock_directory($lock)), qr/^\[\]$/m, 'zkCli.sh ls: nothing');
}
is_clean($lock, 'everybody gone');

#
# The server goes: in an orderly way all nodes go with it, its own one too.
#

my $last = ZkTest::Session->new($node);
$last->query("SELECT zk_lock_acquire('leftovers/shutdown')");
is(scalar $zk->ls(ROOT . '/.zklock'), 1, 'the server has its member node');
$node->stop('fast');
is_clean('leftovers/shutdown', 'fast shutdown');
ok(defined poll_until(sub { !$zk->ls(ROOT . '/.zklock') }, LIMIT), 'and its member node is gone');

done_testing();
