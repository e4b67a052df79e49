# Other libraries take their time at the end of a transaction. A request that has ended, and
# the locks of a transaction that is rolled back, go before that; and what a library does that
# was preloaded before zklock is warned of.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $slow = shared_library('slow_callbacks');
my $node_a = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));
unlike(slurp_file($node_a->logfile), qr/not the first of shared_preload_libraries/, 'first: no warning');

# A library that registers its callbacks in the statement that then waits for a lock: at the
# abort nobody comes before it.
$node_a->safe_psql('postgres', "CREATE FUNCTION slow_register() RETURNS void LANGUAGE c AS '$slow'");
foreach my $end ('timeout', 'cancel')
{
	my $owner = ZkTest::Session->new($node_a);
	my $late = ZkTest::Session->new($node_a);
	my $next = ZkTest::Session->new($node_b);
	$owner->query("SELECT zk_lock_acquire('dead $end')");
	# with a lock of its own, so that zklock has got in front before the statement
	$late->query("SELECT zk_lock_acquire('own $end')");
	$late->query("LOAD '$slow'; SET slow.abort = 8000");
	$late->send("SELECT slow_register(), zk_lock_acquire('dead $end', timeout => '" . ($end eq 'timeout' ? '1500 ms' : '60 s') . q{')});
	poll_until(sub { contenders($zk, "dead $end") == 2 }, 5) // die 'does not wait';
	$node_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $late->backend . ')') if $end eq 'cancel';
	ok(defined poll_until(sub { contenders($zk, "dead $end") == 1 }, 4), "$end: the request is gone at once");
	ok(!$late->answered, "$end: while its abort goes on");
	$owner->query("SELECT zk_lock_release('dead $end')");
	like($next->query("SELECT zk_lock_acquire('dead $end', timeout => '2 s')"), qr/^\d+$/, "$end: and is granted nothing");
	$_->kill_client foreach $owner, $late, $next;
}

# A rollback gives back at once what it gives back, though the library was loaded later than
# zklock, and so is asked before it unless that gets in front again.
foreach my $how ('ROLLBACK', 'SELECT 1/0', 'ROLLBACK TO s')
{
	my $late = ZkTest::Session->new($node_a);
	my $next = ZkTest::Session->new($node_b);
	$late->query(q{SELECT zk_lock_acquire('some other')});
	$late->query("LOAD '$slow'; SET slow.abort = 8000");
	$late->query('BEGIN');
	$late->query('SAVEPOINT s') if $how =~ /TO/;
	$late->query(q{SELECT zk_xact_lock_acquire('back')});
	$late->send($how);
	like($next->query(q{SELECT zk_lock_acquire('back', timeout => '3 s')}), qr/^\d+$/, "$how: the lock is free at once");
	ok(!$late->answered, "$how: while the library is at it");
	$_->kill_client foreach $late, $next;
}
$node_a->stop;

# Preloaded before zklock: called after its last check, with all the time it wants. Where
# it can be interrupted, it is.
my $node_c = PostgreSQL::Test::Cluster->new('c');
$node_c->init;
$node_c->append_conf('postgresql.conf', <<"END");
shared_preload_libraries = '$slow, zklock'
zklock.hosts = '@{[ $zk->hosts ]}'
zklock.server_name = 'c'
zklock.server_tick_time = $zk->{tick}ms
zklock.session_timeout = 4s
log_error_verbosity = verbose
END
$node_c->start;
like(slurp_file($node_c->logfile), qr/WARNING: .*zklock is not the first of shared_preload_libraries/, 'not the first: a warning');
$node_c->safe_psql('postgres', 'CREATE EXTENSION zklock; CREATE TABLE work (what text)');
wait_for_lease($node_c);
{
	my $holder = ZkTest::Session->new($node_c);
	my $next = ZkTest::Session->new($node_b);
	$holder->query(q{SELECT zk_lock_acquire('late'); BEGIN; INSERT INTO work VALUES ('late'); SET LOCAL slow.pre_commit = 20000});
	$holder->send('COMMIT');
	$next->send(q{SELECT zk_lock_acquire('late')});
	poll_until(sub { contenders($zk, 'late') == 2 }, 5) // die 'does not wait';
	$zk->proxy(1, 'freeze');
	ok(defined poll_until(sub { $holder->answered }, 15), 'not the first: COMMIT is interrupted');
	ok(!$next->answered, 'not the first: before the next one has the lock');
	like($holder->wait(0), qr/ERROR:  (?:ZK001|57014)/, 'not the first: and fails');
	like($next->wait(15) // '', qr/^\d+$/, 'not the first: then the next one is granted');
	is($node_c->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'not the first: no row');
	$zk->proxy(1, 'pass');
	$_->kill_client foreach $holder, $next;
}
$_->stop foreach $node_b, $node_c;
done_testing();
