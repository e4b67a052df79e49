# Past PRE_COMMIT nobody may strike: a cancel during the wait for a synchronous standby
# would make COMMIT return although nothing was replicated. And with a lock the commit
# is always flushed, whatever synchronous_commit says.

use strict;
use warnings;

use Test::More;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => <<'END');
zklock.session_timeout = 4s
wal_level = replica
max_wal_senders = 5
wal_writer_delay = 10s
END
$node->safe_psql('postgres', 'CREATE TABLE work (what text)');

sub wait_for_sync_rep
{
	my ($session, $timeout) = @_;
	return poll_until(
		sub {
			$node->safe_psql('postgres', 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session->backend) eq 'SyncRep';
		}, $timeout // 10);
}

# what happens during the wait => how it happens
my %strikes = (
	'lapse' => sub { $zk->proxy(1, 'freeze') },
	'node deleted' => sub {
		my ($lock) = @_;
		lose($zk, $lock);
	},
	# by zk_lock_break: the worker itself publishes the loss and then deletes the node
	'taken away' => sub {
		my ($lock) = @_;
		my ($contender) = contenders($zk, $lock);
		$zk->set(lock_directory($lock) . "/$contender", '{"server":"a","breaker":"somebody"}');
	},
);

foreach my $strike (sort keys %strikes)
{
	my $lock = "sync/$strike";
	my $session = ZkTest::Session->new($node);
	my $offset = -s $node->logfile;
	$session->query("BEGIN; INSERT INTO work VALUES ('$strike'); SELECT zk_xact_lock_acquire('$lock')");
	$node->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
	$node->reload;
	# The checkpointer makes the setting known to all, when it gets to it: commits that
	# need no lock show when.
	my $probe = ZkTest::Session->new($node);
	$probe->send(q{INSERT INTO work VALUES ('probe')});
	poll_until(
		sub {
			$probe->send(q{INSERT INTO work VALUES ('probe')}) if defined $probe->wait(0);
			return wait_for_sync_rep($probe, 0.2);
		}, 30) // die 'no commit waits';
	$session->send('COMMIT');
	ok(defined wait_for_sync_rep($session), "$strike: COMMIT waits for a standby") or next;

	$strikes{$strike}->($lock);
	ok( defined poll_until(
			sub { PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~ /lease lapsed|is lost/ }, 10),
		"$strike: it happened");
	# longer than any timer or push takes
	ok(!defined poll_until(sub { $session->answered }, 2), "$strike: COMMIT goes on waiting");
	is(scalar contenders($zk, $lock), 1, "$strike: the node stays until the commit is over") if $strike eq 'taken away';

	$zk->proxy(1, 'pass');
	$node->safe_psql('postgres', q{ALTER SYSTEM RESET synchronous_standby_names});
	$node->reload;
	is($session->wait(10), '', "$strike: COMMIT returns without a warning when it may");
	is($node->safe_psql('postgres', "SELECT count(*) FROM work WHERE what = '$strike'"), 1, "$strike: the row is there");
	is($session->query('SELECT 1'), 1, "$strike: the connection goes on");
	ok(defined poll_until(sub { contenders($zk, $lock) == 0 }, 3), "$strike: the lock is free then");
	$_->quit foreach $session, $probe;
	wait_for_lease($node);
}

# What commits under a lock is on disk when the lock is given away, even where
# synchronous_commit is off: the next holder acts on it.
{
	my $session = ZkTest::Session->new($node);
	my $flushed = 'SELECT pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()';
	$session->query('SET synchronous_commit = off');
	$session->query(q{INSERT INTO work SELECT 'not flushed' FROM generate_series(1, 3)});
	is($session->query($flushed), 'f', 'without a lock the commit is not flushed');
	$session->query(q{BEGIN; INSERT INTO work VALUES ('flushed'); SELECT zk_xact_lock_acquire('flush'); COMMIT});
	is($session->query($flushed), 't', 'under a lock it is');
	$session->quit;
}

$node->stop;
done_testing();
