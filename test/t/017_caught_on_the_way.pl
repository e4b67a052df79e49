# The loss of a lock is not caught by accident, wherever the code runs that it meets, and what
# the client gets is ZK001 and nothing else: in a deferred trigger, in functions of the fast
# path and of the planner, through PL/Perl.

use strict;
use warnings;

use Test::More;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');

my $gate = shared_library('gate');
$node->safe_psql('postgres', <<"END");
CREATE FUNCTION gate_wait(int, int) RETURNS boolean LANGUAGE c AS '$gate';
CREATE TABLE work (what text);
CREATE TABLE seen (what text);
CREATE TABLE swallowed (gate int);
CREATE FUNCTION swallow(gate int) RETURNS text LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM public.gate_wait(gate, 60000);
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN 'caught ' || SQLSTATE;
END \$\$;
CREATE FUNCTION swallow_for_ever(gate int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	LOOP
		BEGIN
			PERFORM public.gate_wait(gate, 60000);
			RETURN 'done';
		EXCEPTION WHEN OTHERS OR query_canceled THEN NULL;
		END;
	END LOOP;
END \$\$;
CREATE FUNCTION swallow_once() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM swallow(NEW.gate); RETURN NULL; END \$\$;
CREATE FUNCTION swallow_always() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM swallow_for_ever(NEW.gate); RETURN NULL; END \$\$;
CREATE FUNCTION swallow_itself() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	LOOP
		BEGIN
			PERFORM public.gate_wait(NEW.gate, 60000);
			RETURN NULL;
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO seen VALUES (SQLSTATE);
		END;
	END LOOP;
END \$\$;
END
foreach my $trigger ('swallow_once', 'swallow_always', 'swallow_itself')
{
	$node->safe_psql('postgres', "CREATE TABLE t_$trigger (gate int); CREATE CONSTRAINT TRIGGER d AFTER INSERT ON t_$trigger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION $trigger()");
}
my $shut = ZkTest::Session->new($node);
my $gate_pid = $shut->backend;

sub busy { my ($session) = @_; return $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid = " . $session->backend); }

# Deferred triggers: COMMIT, with the setting under which nothing but a loop ends a connection
foreach my $idle ('doom', 'terminate')
{
	foreach my $trigger ('swallow_once', 'swallow_itself', 'swallow_always')
	{
		my $what = "$trigger, $idle";
		my $holder = ZkTest::Session->new($node);
		$holder->query("SET zklock.idle_loss = $idle; SELECT zk_lock_acquire('$what')");
		$holder->query("BEGIN; INSERT INTO work VALUES ('$what'); INSERT INTO t_$trigger VALUES ($gate_pid)");
		$holder->send('COMMIT');
		poll_until(sub { busy($holder) }, 10) // die "$what: does not wait";
		lose($zk, $what);
		my $took = poll_until(sub { $holder->answered || !kill 0, $holder->backend }, 10);
		ok(defined $took, "$what: COMMIT ends");
		# who swallows for ever is ended with his connection, unless a cancel finds him between
		# two rounds
		my $gone = $trigger eq 'swallow_always' && !kill 0, $holder->backend;
		ok($gone || ($holder->wait(5) // '') =~ /ERROR:  ZK001: lock "\Q$what\E" is lost/, "$what: with ZK001");
		$holder->kill_client;
	}
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM seen'), 0, 'WHEN OTHERS has seen nothing');
is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'nothing was committed');

# In autocommit the trigger runs at the end of the statement that fires it.
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('autocommit')});
	$holder->send("INSERT INTO t_swallow_itself VALUES ($gate_pid)");
	poll_until(sub { busy($holder) }, 10) // die 'does not wait';
	lose($zk, 'autocommit');
	like($holder->wait(10) // '', qr/ERROR:  ZK001: /, 'autocommit, deferred trigger: ZK001');
	$holder->kill_client;
}

# The planner evaluates an immutable function.
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('planner')});
	$holder->query(q{ALTER FUNCTION swallow(int) IMMUTABLE});
	$holder->query(q{BEGIN; INSERT INTO work VALUES ('planner')});
	$holder->send("SELECT 1 WHERE swallow($gate_pid) = 'done'");
	poll_until(sub { busy($holder) }, 10) // die 'does not wait';
	lose($zk, 'planner');
	like($holder->wait(10) // '', qr/ERROR:  ZK001: /, 'in the planner: ZK001');
	$holder->kill_client;
}

# A function that catches all, within a statement
{
	my $holder = ZkTest::Session->new($node);
	$holder->query(q{SELECT zk_lock_acquire('plain')});
	$holder->send("SELECT swallow($gate_pid)");
	poll_until(sub { busy($holder) }, 10) // die 'does not wait';
	lose($zk, 'plain');
	like($holder->wait(10) // '', qr/ERROR:  ZK001: /, 'WHEN OTHERS in a function: ZK001');
	$holder->kill_client;
}

SKIP:
{
	skip 'PL/Perl is not installed', 8
	  unless $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'plperl'});
	$node->safe_psql('postgres', <<"END");
CREATE EXTENSION plperl;
CREATE FUNCTION by_perl(gate int) RETURNS void LANGUAGE plperl AS \$\$ spi_exec_query("INSERT INTO work VALUES ('perl')"); spi_exec_query("SELECT public.gate_wait(\$_[0], 60000)"); \$\$;
CREATE FUNCTION perl_catches(gate int) RETURNS text LANGUAGE plperl AS \$\$ eval { spi_exec_query("SELECT public.gate_wait(\$_[0], 60000)"); 1 } or return "caught \$@"; return 'done'; \$\$;
CREATE FUNCTION perl_dies(gate int) RETURNS text LANGUAGE plperl AS \$\$ eval { spi_exec_query("SELECT public.gate_wait(\$_[0], 60000)"); 1 } or die "something else\\n"; return 'done'; \$\$;
CREATE FUNCTION sql_around_perl(gate int) RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN PERFORM by_perl(gate); RETURN 'done'; EXCEPTION WHEN OTHERS THEN INSERT INTO seen VALUES (SQLSTATE); RETURN 'caught'; END \$\$;
CREATE PROCEDURE perl_commits() LANGUAGE plperl AS \$\$
	spi_exec_query("SELECT zk_xact_lock_acquire('committed by perl')");
	spi_exec_query("INSERT INTO work VALUES ('perl commits')");
	spi_exec_query("SELECT pg_advisory_lock(1)");
	eval { spi_commit(); 1 } or elog(WARNING, 'commit failed');
	spi_exec_query("SELECT pg_advisory_lock(2)");
\$\$;
END
	foreach my $function ('by_perl', 'perl_catches', 'perl_dies', 'sql_around_perl')
	{
		my $holder = ZkTest::Session->new($node);
		$holder->query("SELECT zk_lock_acquire('$function')");
		$holder->send("SELECT $function($gate_pid)");
		poll_until(sub { busy($holder) }, 10) // die "$function: does not wait";
		lose($zk, $function);
		like($holder->wait(10) // '', qr/ERROR:  ZK001: lock "$function" is lost/, "$function: ZK001");
		$holder->kill_client;
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'PL/Perl: nothing was committed');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM seen'), 0, 'PL/Perl: nothing that was caught either');

	# A COMMIT that fails for the lock, and is caught. What the user cancels after it is his.
	my ($first, $second, $holder) = map { ZkTest::Session->new($node) } 1 .. 3;
	$first->query('SELECT pg_advisory_lock(1)');
	$second->query('SELECT pg_advisory_lock(2)');
	$holder->send('CALL perl_commits()');
	my $waiting = sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $_[0] AND NOT granted") };
	poll_until(sub { $waiting->(1) }, 10) // die 'does not wait';
	kill 'STOP', $holder->backend;
	lose($zk, 'committed by perl');
	poll_until(sub { $node->safe_psql('postgres', q{SELECT state FROM zk_locks WHERE name = 'committed by perl'}) eq 'lost' }, 5) // die 'not lost';
	$first->query('SELECT pg_advisory_unlock(1)');
	kill 'CONT', $holder->backend;
	if (defined poll_until(sub { $waiting->(2) || $holder->answered }, 10) && !$holder->answered)
	{
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $holder->backend . ')');
		like($holder->wait(10) // '', qr/ERROR:  (?!ZK001).*canceling statement due to user request/, 'a caught COMMIT: the cancel is the user\'s own');
	}
	else
	{
		like($holder->wait(10) // '', qr/ERROR:  ZK001/, 'the loss came before the COMMIT');
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, 'a caught COMMIT: nothing was committed');
	$_->kill_client foreach $first, $second, $holder;
}
$shut->quit;
$node->stop;
done_testing();
