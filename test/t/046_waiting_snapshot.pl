# A statement that waits for a lock has a snapshot, like any other statement: CREATE INDEX
# CONCURRENTLY of the holder would wait for it, and VACUUM keeps what it could see. A procedure
# that tries, and commits between its tries, has none while it waits.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my ($holder, $waiter) = map { ZkTest::Session->new($node) } 1 .. 2;

# The procedure as doc/reference.md has it.
my ($procedure) = slurp_file('doc/reference.md') =~ /^```sql procedure\n(.*?)^```$/ms;
ok(defined $procedure, 'the procedure is in the documentation') or die;
$holder->query('CREATE TABLE work (i int); INSERT INTO work SELECT generate_series(1, 1000)');
is($holder->query($procedure), '', 'as it stands it is accepted');

sub snapshot_of
{
	my ($session) = @_;
	my $pid = $session->backend;
	return $node->safe_psql('postgres', "SELECT coalesce(backend_xmin::text, '') || '/' || coalesce(backend_xid::text, '') FROM pg_stat_activity WHERE pid = $pid");
}

sub dead_rows_left
{
	$node->safe_psql('postgres', 'DELETE FROM work; INSERT INTO work SELECT generate_series(1, 1000)');
	my (undef, $out, $err) = $node->psql('postgres', 'VACUUM VERBOSE work');
	return $err =~ /(\d+) are dead but not yet removable|(\d+) dead row versions cannot be removed/ ? $1 // $2 : "unknown: $err";
}

# A wait holds the snapshot: that is documented.
$holder->query(q{SELECT zk_lock_acquire('job')});
$waiter->send(q{SELECT zk_lock_acquire('job', timeout => '20 s')});
poll_until(sub { contenders($zk, 'job') == 2 }, 10) // die 'does not wait';
isnt(snapshot_of($waiter), '/', 'documented: who waits in zk_lock_acquire has a snapshot');
cmp_ok(dead_rows_left(), '>=', 1000, 'documented: and VACUUM keeps the rows that it could see');
$holder->query(q{SELECT zk_lock_release('job')});
like($waiter->wait(10), qr/^\d+$/, 'it gets the lock');
$waiter->query('SELECT zk_lock_release_all()');

# The way out.
$holder->query(q{SELECT zk_lock_acquire('job')});
$waiter->send(q{CALL wait_for_lock('job', '30 s')});
poll_until(sub { $node->safe_psql('postgres', q{SELECT busy FROM zk_lock_stats WHERE name = 'job'}) >= 2 }, 10) // die 'does not try';
my $start = time;
is($holder->query('CREATE INDEX CONCURRENTLY ON work (i)', 20), '', 'the holder builds an index meanwhile');
cmp_ok(time - $start, '<', 10, 'create_index_concurrently_does_not_wait_for_a_procedure_that_tries');
ok(!$waiter->answered, 'which still waits');
ok(defined poll_until(sub { dead_rows_left() eq '0' }, 10), 'and VACUUM removes all that is dead');
is($holder->query(q{SELECT zk_lock_release('job')}), 't', 'the holder lets go');
ok(defined $waiter->wait(10), 'the procedure ends');
is($waiter->query(q{SELECT zk_lock_is_held('job')}), 't', 'with the lock');

# Its time is up.
is($holder->query(q{CALL wait_for_lock('job', '1 s')}) =~ /55P03/ ? 1 : 0, 1, 'or fails when its time is up');

$_->quit foreach $holder, $waiter;
$node->stop;
done_testing();
