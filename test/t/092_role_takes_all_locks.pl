# One backend, or one role with many, takes all the locks that a server has, or makes
# directories in ZooKeeper as fast as it can: the others go on.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk, conf => <<'END');
zklock.max_locks = 48
zklock.reserved_locks = 4
END
$node->safe_psql('postgres', <<'END');
CREATE ROLE batch LOGIN; CREATE ROLE other LOGIN; CREATE ROLE third LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE grouped; GRANT grouped TO batch;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO batch, other, third, watcher, grouped;
CREATE FUNCTION take(prefix text, n int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP PERFORM zk_lock_acquire(prefix || '/n' || i, timeout => '5 s'); END LOOP;
	RETURN 'all';
END $$;
CREATE FUNCTION take_as_superuser(prefix text, n int) RETURNS text SECURITY DEFINER LANGUAGE sql AS 'SELECT take(prefix, n)';
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO batch;
END

sub used { return $node->safe_psql('postgres', q{SELECT locks_used FROM zk_session}); }
my $of_backend = qr/ERROR:  53400: too many zklock locks for one backend\n.*may hold and wait for 12 at a time.*\n.*zklock\.max_locks_per_backend/;
my $of_role = qr/ERROR:  53400: too many zklock locks for role "batch"\n.*All its backends together may hold and wait for 24/;

# The defaults: a quarter for a backend, half for a role.
my @batch = map { ZkTest::Session->new($node, user => 'batch') } 1 .. 4;
is($batch[0]->query(q{SELECT take('b0', 12)}), 'all', 'a backend has its quarter');
like($batch[0]->query(q{SELECT zk_lock_acquire('b0/more')}), $of_backend, 'and no more');
like($batch[0]->query(q{SELECT zk_lock_try_acquire('b0/more')}), $of_backend, 'not even if it only tries');
like($batch[0]->query(q{SELECT zk_semaphore_try_acquire('b0/semaphore', 2)}), $of_backend, 'nor a semaphore');
like($batch[0]->query(q{SELECT zk_lock_acquire('b0/n1')}), qr/^\d+$/, 'what it holds it may acquire again');
$batch[0]->query(q{SELECT zk_lock_release('b0/n1')});
foreach my $way (q{SET zklock.max_locks_per_backend = 0}, q{SET zklock.max_locks_per_role = 0}, q{ALTER ROLE batch SET zklock.max_locks_per_backend = 0}, q{SELECT set_config('zklock.max_locks_per_backend', '0', false)})
{
	like($batch[0]->query($way), qr/42501: (?:permission denied to set parameter|must be superuser)/, "it cannot lift that: $way");
}
like($batch[0]->query(q{SET ROLE grouped; SELECT zk_lock_acquire('b0/more')}), $of_backend, 'nor as another role');
$batch[0]->query('RESET ROLE');
like($batch[0]->query(q{SELECT take_as_superuser('b0/definer', 1)}), $of_backend, 'nor by a function of a superuser');
like($batch[0]->query(q{BEGIN; SAVEPOINT s; SELECT zk_xact_lock_acquire('b0/more')}), $of_backend, 'nor in a savepoint');
$batch[0]->query('ROLLBACK');
is(used(), 12, 'a refusal leaves nothing behind');

is($batch[1]->query(q{SELECT take('b1', 12)}), 'all', 'a second backend');
like($batch[2]->query(q{SELECT zk_lock_acquire('b2')}), $of_role, 'a third one has no more of the role');
is($batch[0]->query(q{SELECT zk_lock_release('b0/n1')}), 't', 'one is released');
ok(defined poll_until(sub { $batch[2]->query(q{SELECT zk_lock_acquire('b2')}) =~ /^\d+$/ }, 5), 'and another one taken');

# Many at once, at the limit: never one more than allowed.
$_->query('SELECT zk_lock_release_all()') foreach @batch;
ok(defined poll_until(sub { used() == 0 }, 10), 'all are released');
$node->safe_psql('postgres', 'ALTER ROLE batch SET zklock.max_locks_per_role = 10');
my @crowd = map { ZkTest::Session->new($node, user => 'batch') } 1 .. 8;
$_->send(q{DO $$ DECLARE refused int := 0; BEGIN FOR i IN 1 .. 300 LOOP
	BEGIN PERFORM zk_lock_acquire('crowd/p' || pg_backend_pid() || '/n' || i % 4); EXCEPTION WHEN configuration_limit_exceeded THEN refused := refused + 1; PERFORM zk_lock_release_all(); END;
END LOOP; PERFORM zk_lock_release_all(); RAISE NOTICE 'refused %', refused; END $$}) foreach @crowd;
my ($most, $looks) = (0, 0);
until (!grep { !$_->answered } @crowd)
{
	my $held = $node->safe_psql('postgres', q{SELECT count(*) FROM zk_locks WHERE username = 'batch' AND state IN ('held', 'waiting')});
	$most = $held if $held > $most;
	$looks++;
}
my $refused = 0;
foreach my $session (@crowd)
{
	my $answer = $session->wait;
	like($answer, qr/NOTICE:.*refused \d+/, 'a crowd at the limit goes on');
	$refused += $1 if $answer =~ /refused (\d+)/;
}
cmp_ok($most, '<=', 10, "never more than the cap, in $looks looks");
cmp_ok($refused, '>', 0, 'some of them were refused');
$_->quit foreach @crowd;
$node->safe_psql('postgres', 'ALTER ROLE batch RESET zklock.max_locks_per_role');

# The reserve.
$_->quit foreach @batch;
ok(defined poll_until(sub { used() == 0 }, 10), 'all are gone');
@batch = map { ZkTest::Session->new($node, user => 'batch') } 1 .. 2;
my @others = map { ZkTest::Session->new($node, user => 'other') } 1 .. 2;
is($_->query(q{SELECT take('r' || pg_backend_pid(), 12)}), 'all', 'half is taken') foreach @batch;
is($others[0]->query(q{SELECT take('o0', 12)}), 'all', 'three quarters');
is($others[1]->query(q{SELECT take('o1', 8)}), 'all', 'all but the reserve');
like($others[1]->query(q{SELECT zk_lock_acquire('o1/more')}), qr/ERROR:  53400: too many zklock locks\n.*The last 4 of 48 entries are reserved for superusers and members of pg_monitor/, 'which is not for everybody');
my $watcher = ZkTest::Session->new($node, user => 'watcher');
is($watcher->query(q{SELECT take('w', 2)}), 'all', 'a member of pg_monitor has it');
my $super = ZkTest::Session->new($node);
is($super->query(q{SELECT take('s', 2)}), 'all', 'and a superuser');
like($super->query(q{SELECT zk_lock_acquire('s/more')}), qr/ERROR:  54000: too many zklock locks\n/, 'until there is nothing left at all');
$_->quit foreach @batch, @others, $watcher, $super;
ok(defined poll_until(sub { used() == 0 }, 10), 'all are gone');

# A superuser is exempt from the caps; the setting 0 lifts one.
$super = ZkTest::Session->new($node);
is($super->query(q{SELECT take('super', 30)}), 'all', 'a superuser has no cap');
$super->quit;
ok(defined poll_until(sub { used() == 0 }, 10), 'all are gone');
$node->safe_psql('postgres', 'ALTER ROLE batch SET zklock.max_locks_per_backend = 0; ALTER ROLE batch SET zklock.max_locks_per_role = 0');
my $free = ZkTest::Session->new($node, user => 'batch');
is($free->query(q{SELECT take('free', 40)}), 'all', 'nor has one for whom a superuser has lifted it');
$free->quit;
ok(defined poll_until(sub { used() == 0 }, 10), 'all are gone');
$node->safe_psql('postgres', 'ALTER ROLE batch RESET ALL');

# ---------------------------------------------------------------------
# Directories: 10 a second, so 500 at once.

$node->safe_psql('postgres', 'ALTER SYSTEM SET zklock.new_directories_per_second = 10');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
my $flood = ZkTest::Session->new($node, user => 'batch');
ok(defined poll_until(sub { $flood->query('SHOW zklock.new_directories_per_second') eq '10' }, 10), 'the setting is there');
is($flood->query(q{DO $$ BEGIN FOR i IN 1 .. 400 LOOP PERFORM zk_lock_acquire('burst ' || i); PERFORM zk_lock_release('burst ' || i); END LOOP; END $$}), '', 'hundreds of new names at once are nothing');
my $start = time;
my $answer = $flood->query(q{DO $$ DECLARE n int := 0; BEGIN LOOP n := n + 1; PERFORM zk_lock_acquire('flood/a/b/c/d/e/f' || n); PERFORM zk_lock_release('flood/a/b/c/d/e/f' || n); IF n > 2000 THEN EXIT; END IF; END LOOP; END $$});
like($answer, qr/ERROR:  53400: too many new lock names for role "batch"\n.*made more than 500, faster than 10 a second.*\nHINT:  Use the same names again/, 'thousands are refused');
my @made = grep { /^f\d+$/ } $zk->ls(lock_directory('flood/a/b/c/d/e'));
cmp_ok(scalar @made, '<', 100 + 10 * (time - $start) + 50, 'after a few hundred');
my $another = ZkTest::Session->new($node, user => 'batch');
like($another->query(q{DO $$ BEGIN FOR i IN 1 .. 200 LOOP PERFORM zk_lock_acquire('flood/again' || i); PERFORM zk_lock_release('flood/again' || i); END LOOP; END $$}), qr/ERROR:  53400: too many new lock names/, 'for all backends of the role');
my $third = ZkTest::Session->new($node, user => 'third');
like($third->query(q{SELECT zk_lock_acquire('third ' || 1)}), qr/^\d+$/, 'others are not concerned');
ok(defined poll_until(sub { $another->query(q{SELECT zk_lock_acquire('flood/new')}) =~ /^\d+$/ }, 5), 'and after a moment nor is the role');
is($node->safe_psql('postgres', q{SELECT count(zk_lock_acquire('super ' || i)) FROM generate_series(1, 40) i}), '40', 'nor is a superuser');
# names that are there cost nothing
is($third->query(q{DO $$ BEGIN FOR i IN 1 .. 700 LOOP PERFORM zk_lock_acquire('the same'); PERFORM zk_lock_release('the same'); END LOOP; END $$}), '', 'a name that is there is no new directory');

$_->quit foreach $flood, $another, $third;
$node->stop;
done_testing();
