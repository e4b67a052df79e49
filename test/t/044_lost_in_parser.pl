# A lock is lost while its backend waits in the parser, for a table that somebody else has locked. It has not written, and
# it is not known yet what it wants; all the same it does not wait on for as long as that takes.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
$node->safe_psql('postgres', 'CREATE TABLE work (i int); CREATE TABLE seen (i int)');
my $blocker = ZkTest::Session->new($node);
$blocker->query('BEGIN; LOCK TABLE work');
my $other = ZkTest::Session->new($node);

sub waiters { return $node->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'work'::regclass}); }

foreach my $level (qw(backend xact))
{
	my $holder = ZkTest::Session->new($node);
	my $acquire = $level eq 'xact' ? 'zk_xact_lock_acquire' : 'zk_lock_acquire';
	like($holder->query("BEGIN; SELECT $acquire('parsed')"), qr/^\d+$/, "$level: the lock is held");
	$holder->query('LOCK TABLE seen IN EXCLUSIVE MODE');
	my $log = -s $node->logfile;
	$holder->send('INSERT INTO work VALUES (1)');
	defined poll_until(sub { waiters() eq '1' }, 10) or die 'it does not wait';
	my $start = time;
	is($other->query(q{SELECT zk_lock_break('parsed')}), 'released', "$level: the lock is taken away");
	my $answer = $holder->wait(10);
	like($answer // 'still waiting', qr/FATAL:  57P01/, "$level: the connection is ended");
	cmp_ok(time - $start, '<', 5, "$level: soon");
	like(slurp_file($node->logfile, $log), qr/lock "parsed" .*lost/, "$level: the log says why");
	is($other->query(q{BEGIN; LOCK TABLE seen NOWAIT; COMMIT; SELECT 'free'}), 'free', "$level: what it had locked is free");
	is(waiters(), 0, "$level: and nobody waits any more");
	$holder->kill_client;
}
$blocker->quit;
is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'nothing was written');
$node->stop;
done_testing();
