# Writes that leave no transaction id here: rows of foreign tables, dblink, NOTIFY. A lock is
# checked before they are committed on the other server, kept until they are, and they end a
# connection that is idle with them as others do.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node_a = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));

my $gate = shared_library('gate');
$node_b->safe_psql('postgres', <<"END");
CREATE TABLE ledger (entry text);
CREATE TABLE slow (entry text, gate int);
CREATE FUNCTION gate_wait(int, int) RETURNS boolean LANGUAGE c AS '$gate';
CREATE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM public.gate_wait(NEW.gate, 60000); RETURN NULL; END \$\$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_in_commit();
END
my ($host, $port) = ($node_b->host, $node_b->port);
$node_a->safe_psql('postgres', <<"END");
CREATE EXTENSION postgres_fdw;
CREATE EXTENSION dblink;
CREATE SERVER b FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres');
CREATE USER MAPPING FOR CURRENT_USER SERVER b;
IMPORT FOREIGN SCHEMA public LIMIT TO (ledger, slow) FROM SERVER b INTO public;
CREATE TABLE local (x int);
CREATE TABLE parted (entry text) PARTITION BY LIST (entry);
CREATE FOREIGN TABLE parted_far PARTITION OF parted DEFAULT SERVER b OPTIONS (table_name 'ledger');
END

sub far { return $node_b->safe_psql('postgres', 'SELECT count(*) FROM ledger'); }

# A connection that holds a lock, in a transaction that wrote elsewhere; the lock is deleted
# and the backend knows it.
sub lost_holder
{
	my ($lock, $statements) = @_;
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(qq{SET zklock.idle_loss = 'doom'; SELECT zk_lock_acquire('$lock')});
	unlike(write_in($holder, $statements), qr/ERROR/, "$lock: wrote");
	lose($zk, $lock, $node_a);
	return $holder;
}

# Begin a transaction with these statements.
sub write_in
{
	my ($session, $statements) = @_;
	$session->query('BEGIN');
	$session->send($statements);
	$session->feed("row\n\\.\n") if $statements =~ /FROM STDIN/;
	return $session->wait(10) // die "no answer to $statements";
}

# Known before COMMIT: the other server commits nothing, whenever postgres_fdw came into
# this connection.
my %writes = (
	'INSERT' => q{INSERT INTO ledger VALUES ('stale')},
	'with a local write' => q{INSERT INTO local VALUES (1); INSERT INTO ledger VALUES ('stale')},
	'first used in this transaction' => q{SELECT 1; INSERT INTO ledger VALUES ('stale')},
	'COPY' => q{COPY ledger FROM STDIN},
	'a CTE' => q{WITH w AS (INSERT INTO ledger VALUES ('stale') RETURNING 1) SELECT count(*) FROM w},
	'in a function' => q{DO $$ BEGIN INSERT INTO ledger VALUES ('stale'); END $$},
	'a partition' => q{INSERT INTO parted VALUES ('stale')},
	'prepared' => q{PREPARE p AS INSERT INTO ledger VALUES ('stale'); EXECUTE p},
);
foreach my $what (sort keys %writes)
{
	my $holder = lost_holder("known/$what", $writes{$what});
	like($holder->query('COMMIT'), qr/ERROR:  ZK001/, "$what: COMMIT fails");
	is(far(), 0, "$what: the other server has committed nothing");
	$holder->quit;
}

# In a statement by itself
{
	my $blocker = ZkTest::Session->new($node_b);
	$blocker->query('BEGIN; LOCK TABLE ledger');
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('autocommit')});
	$holder->send(q{INSERT INTO ledger VALUES ('stale')});
	poll_until(sub { $node_b->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE NOT granted}) }, 10) // die 'does not wait';
	lose($zk, 'autocommit', $node_a);
	like($holder->wait(10) // '', qr/ERROR:  ZK001/, 'autocommit: the statement fails');
	$blocker->quit;
	$holder->quit;
	is(far(), 0, 'autocommit: the other server has committed nothing');
}

# Lost while the other server commits: nothing takes that back, and it is said.
{
	my $shut = ZkTest::Session->new($node_b);
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(q{SELECT zk_lock_acquire('meanwhile'); BEGIN; INSERT INTO local VALUES (2)});
	$holder->query(q{INSERT INTO slow VALUES ('stale', } . $shut->backend . ')');
	$holder->send('COMMIT');
	poll_until(sub { $node_b->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postgres_fdw' AND query LIKE 'COMMIT%' AND state = 'active'}) }, 10)
	  // die 'no commit over there';
	lose($zk, 'meanwhile', $node_a);
	$shut->quit;
	like($holder->wait(10) // '', qr/ERROR:  ZK001: .*DETAIL: .*Foreign servers may have committed their part/s, 'meanwhile: COMMIT fails and says what may be');
	is($node_b->safe_psql('postgres', 'SELECT count(*) FROM slow'), 1, 'meanwhile: so it is');
	is($node_a->safe_psql('postgres', 'SELECT count(*) FROM local WHERE x = 2'), 0, 'meanwhile: nothing here');
	$holder->quit;
}

# A release takes effect at the end of a transaction that wrote, wherever it did.
my $listener = ZkTest::Session->new($node_a);
$listener->query('LISTEN jobs');
my %kept = (
	'foreign table' => q{INSERT INTO ledger VALUES ('kept')},
	'foreign partition' => q{INSERT INTO parted VALUES ('kept')},
	'COPY' => q{COPY ledger FROM STDIN},
	'TRUNCATE' => 'TRUNCATE ledger',
	'NOTIFY' => q{NOTIFY jobs, 'kept'},
	'pg_notify' => q{SELECT pg_notify('jobs', 'kept')},
	'dblink' => qq{SELECT dblink_connect('far', 'host=$host port=$port dbname=postgres'), dblink_exec('far', 'BEGIN')},
);
foreach my $what (sort keys %kept)
{
	my $holder = ZkTest::Session->new($node_a);
	my $waiter = ZkTest::Session->new($node_b);
	$holder->query(qq{SELECT zk_lock_acquire('kept/$what')});
	unlike(write_in($holder, $kept{$what}), qr/ERROR/, "$what: wrote");
	$waiter->send("SELECT zk_lock_acquire('kept/$what')");
	poll_until(sub { contenders($zk, "kept/$what") == 2 }, 10) // die 'nobody waits';
	is($holder->query("SELECT zk_lock_release('kept/$what')"), 't', "$what: released");
	is($holder->query(q{SELECT pg_sleep(0.3)}), '', "$what: a moment later");
	ok(!$waiter->answered, "$what: the lock is not given on before the end");
	unlike($holder->query('COMMIT'), qr/ERROR/, "$what: COMMIT");
	like($waiter->wait(5) // '', qr/^\d+$/, "$what: now it is");
	$_->quit foreach $holder, $waiter;
}

# To read is not to write.
foreach my $what ('SELECT count(*) FROM ledger', 'SELECT count(*) FROM parted')
{
	my $holder = ZkTest::Session->new($node_a);
	my $waiter = ZkTest::Session->new($node_b);
	$holder->query(q{SELECT zk_lock_acquire('read')});
	$holder->query("BEGIN; $what");
	$holder->query(q{SELECT zk_lock_release('read')});
	like($waiter->query(q{SELECT zk_lock_acquire('read', timeout => '5 s')}), qr/^\d+$/, "$what: a release takes effect at once");
	$_->quit foreach $holder, $waiter;
}

# Idle with what it wrote elsewhere: the connection is ended, or its rows would stand locked there.
foreach my $what ('foreign table', 'NOTIFY', 'dblink')
{
	my $holder = ZkTest::Session->new($node_a);
	$holder->query(qq{SELECT zk_lock_acquire('idle/$what'); BEGIN; $kept{$what}});
	lose($zk, "idle/$what", $node_a);
	ok(defined poll_until(sub { !kill 0, $holder->backend }, 5), "idle after $what: the connection is ended");
	$holder->kill_client;
}

$_->stop foreach $node_a, $node_b;
done_testing();
