# What no rollback takes back is refused before it begins: the end of a prepared transaction
# under a lock that is lost, and what makes or removes files when the lease has little left.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => "zklock.session_timeout = 6s\nmax_prepared_transactions = 10");

sql($node, 'CREATE TABLE ledger (entry text)');
my $holder = ZkTest::Session->new($node);
foreach my $gid (qw(c1 r1 c2 r2 c3))
{
	$holder->query("BEGIN; INSERT INTO ledger VALUES ('$gid'); PREPARE TRANSACTION '$gid'");
}
sub prepared { return sql($node, q{SELECT string_agg(gid, ' ' ORDER BY gid) FROM pg_prepared_xacts}); }

# Under a lock that is held
$holder->query(q{SELECT zk_lock_acquire('held')});
unlike($holder->query(q{COMMIT PREPARED 'c1'}), qr/ERROR/, 'held: COMMIT PREPARED');
unlike($holder->query(q{ROLLBACK PREPARED 'r1'}), qr/ERROR/, 'held: ROLLBACK PREPARED');
is(sql($node, 'SELECT string_agg(entry, $$ $$) FROM ledger'), 'c1', 'held: both are done');

# Refused by PostgreSQL, it leaves no mark of a commit: the lock can be taken away.
$holder->query(q{BEGIN});
like($holder->query(q{COMMIT PREPARED 'c2'}), qr/ERROR:  25001/, 'COMMIT PREPARED in a transaction block');
lose($zk, 'held');
ok(defined poll_until(sub { sql($node, q{SELECT state FROM zk_locks WHERE name = 'held'}) eq 'lost' }, 5), 'the loss is seen');
$holder->query('ROLLBACK');
like($holder->query(q{COMMIT PREPARED 'c2'}), qr/ERROR:  ZK001/, 'lost: COMMIT PREPARED');
like($holder->query(q{ROLLBACK PREPARED 'r2'}), qr/ERROR:  ZK001/, 'lost: ROLLBACK PREPARED');
is(prepared(), 'c2 c3 r2', 'lost: both are as they were');
$holder->query(q{SELECT zk_lock_release('held')});

# A lapse, too
$holder->query(q{SELECT zk_lock_acquire('lapsed')});
$zk->proxy(1, 'freeze');
poll_until(sub { sql($node, q{SELECT lease_left = '0' FROM zk_session}) eq 't' }, 20) // die 'no lapse';
like($holder->query(q{COMMIT PREPARED 'c3'}), qr/ERROR:  ZK001/, 'lapsed: COMMIT PREPARED');
is(prepared(), 'c2 c3 r2', 'lapsed: it is as it was');
$zk->proxy(1, 'pass');
wait_for_lease($node);
$holder->query(q{SELECT zk_lock_release_all()});
unlike($holder->query(q{COMMIT PREPARED 'c2'}), qr/ERROR/, 'without a lock it is nobody\'s business');
$holder->query("ROLLBACK PREPARED '$_'") foreach qw(r2 c3);

# Little of the lease is left, though more than nothing: enough to begin, not to end.
my $place = PostgreSQL::Test::Utils::tempdir('space');
my $place2 = PostgreSQL::Test::Utils::tempdir('space');
sql($node, "CREATE TABLESPACE space LOCATION '$place'");
sql($node, 'CREATE DATABASE victim');
sql($node, 'CREATE DATABASE mover');
sql($node, 'CREATE TABLE precious AS SELECT 1 AS x', 'victim');

sub databases_on_disk
{
	opendir my $dir, $node->data_dir . '/base' or die $!;
	my @found = sort grep { /^\d+$/ } readdir $dir;
	closedir $dir;
	return "@found";
}

my $looker = ZkTest::Session->new($node);
sub near_the_end
{
	my ($statement) = @_;
	wait_for_full_lease($node);
	$holder->query(q{SET zklock.commit_margin = '300ms'; SELECT zk_lock_acquire('late')});
	$zk->proxy(1, 'freeze');
	poll_until(sub { $looker->query(q{SELECT lease_left < '1.2 s' AND lease_left > '400 ms' FROM zk_session}) eq 't' }, 20) // die 'no such lease';
	like($holder->query($statement), qr/ERROR:  ZK001/, "near the end: $statement");
	cmp_ok($looker->query('SELECT extract(epoch FROM lease_left) FROM zk_session'), '>', 0, 'and it was not the end yet');
	$zk->proxy(1, 'pass');
	wait_for_lease($node);
	$holder->query(q{SELECT zk_lock_release_all()});
	return;
}

my $before = databases_on_disk();
near_the_end('DROP TABLESPACE space');
is(sql($node, 'CREATE TABLE in_space (x int) TABLESPACE space; INSERT INTO in_space VALUES (1); SELECT count(*) FROM in_space'), 1, 'the tablespace is whole');
near_the_end('CREATE DATABASE fresh');
is(databases_on_disk(), $before, 'no database is left on disk');
near_the_end('DROP DATABASE victim');
is(sql($node, 'SELECT count(*) FROM precious', 'victim'), 1, 'the database is whole');
near_the_end("CREATE TABLESPACE space2 LOCATION '$place2'");
is(() = glob("$place2/*"), 0, 'nothing was made');
near_the_end('ALTER DATABASE mover SET TABLESPACE space');
is(databases_on_disk(), $before, 'the database did not move');
near_the_end('ALTER SYSTEM SET work_mem = 12345');
unlike(slurp_file($node->data_dir . '/postgresql.auto.conf'), qr/12345/, 'the file was not written');

# With a lease as it should be they work.
$holder->query(q{SELECT zk_lock_acquire('well')});
foreach my $statement ('CREATE DATABASE fresh', 'ALTER DATABASE mover SET TABLESPACE space', 'DROP DATABASE victim', 'DROP DATABASE mover',
	'DROP TABLE in_space', 'DROP TABLESPACE space', 'ALTER SYSTEM SET work_mem = 4096')
{
	unlike($holder->query($statement), qr/ERROR/, "held: $statement");
}
$_->quit foreach $holder, $looker;
$node->stop;
done_testing();
