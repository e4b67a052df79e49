# The holder notices first: every way to lose a lock x everything that a backend can
# be doing. Server A holds, server B waits for each of A's locks. A's connections
# are all inside a transaction that wrote a row; when B is granted, none of them may be
# able to commit any more.
#
# Where the ensemble takes the lock away (black hole, refused connection, stopped worker),
# A must have ended before B was granted. Where somebody else does (node deleted, ZooKeeper
# session closed), the event that tells A is the one that lets B in: A has a second.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $conf = "zklock.session_timeout = 4s\nmax_connections = 100\nmax_parallel_workers_per_gather = 2";
my $node_a = zk_server('a', $zk, conf => $conf);
my $node_b = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts(1));

$node_a->safe_psql('postgres', <<'END');
CREATE TABLE work (fault text, state text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE contended (id int PRIMARY KEY, n int);
INSERT INTO contended VALUES (1, 0);
CREATE TABLE big AS SELECT generate_series(1, 100000) AS x;
ANALYZE big;
CREATE FUNCTION slowly(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN PERFORM pg_sleep(0.01); RETURN x; END $$;
CREATE PROCEDURE commit_in_a_loop(lock text, fault text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM zk_lock_acquire(lock);
	LOOP
		INSERT INTO work VALUES (fault, 'procedure');
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
END $$;
END

my $blocker = ZkTest::Session->new($node_a);
$blocker->query('BEGIN; UPDATE contended SET n = n + 1');

# state => [ what to run once the lock is held, how it ends, what to send after B's
# grant, what that answers ]. How it ends: ZK001 by itself, the end of the connection, or
# nothing, since it is idle.
my %states = (
	'active query' => [ 'SELECT pg_sleep(60)', 'error' ],
	'idle, doom' => [ undef, 'idle', 'COMMIT' ],
	'idle, terminate' => [ undef, 'gone' ],
	'cursor' => [ 'DECLARE c CURSOR FOR SELECT * FROM big; FETCH 1 FROM c', 'idle', 'FETCH 1 FROM c' ],
	'WHEN OTHERS' => [ q{DO $$ BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN OTHERS THEN NULL; END $$}, 'error' ],
	'WHEN query_canceled' => [
		q{DO $$ BEGIN BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; PERFORM pg_sleep(60); END $$},
		'error' ],
	'swallowing loop' => [
		q{DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$},
		'gone or error' ],
	'COPY FROM STDIN' => [ 'COPY work (fault) FROM STDIN', 'gone' ],
	'parallel query' => [
		'SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; '
		  . 'SELECT count(pg_sleep(0.01)) FROM big', 'error' ],
	'CREATE INDEX' => [ 'CREATE INDEX ON big (slowly(x))', 'error' ],
	'ROLLBACK TO after an error' => [ 'SAVEPOINT s; SELECT 1/0; ROLLBACK TO s; SELECT pg_sleep(60)', 'error' ],
	'row lock' => [ 'UPDATE contended SET n = n + 1', 'error' ],
	'procedure' => [ undef, 'error' ],
);

# fault => [ cause, cure, does the ensemble take the lock away? ]; the cause gets the lock
my %faults = (
	'black hole' => [ sub { $zk->proxy(1, 'freeze') }, sub { $zk->proxy(1, 'pass') }, 1 ],
	'refused' => [
		sub { $zk->proxy(1, 'refuse'); $zk->proxy(1, 'cut') },
		sub { $zk->proxy(1, 'accept') }, 1 ],
	'worker stopped' => [ sub { kill 'STOP', worker_pid() }, sub { kill 'CONT', worker_pid() }, 1 ],
	'node deleted' => [ sub { $zk->delete(lock_directory($_[0]) . '/' . (sort_contenders($_[0]))[0]) }, sub { }, 0 ],
);

my $worker;
sub worker_pid
{
	$worker //= $node_a->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
	return $worker;
}

sub sort_contenders
{
	return sort { substr($a, -10) cmp substr($b, -10) } contenders($zk, $_[0]);
}

sub is_alive { return kill 0, $_[0]; }

foreach my $fault (sort keys %faults)
{
	my ($cause, $cure, $by_ensemble) = @{ $faults{$fault} };
	my %run;

	wait_for_lease($node_a);
	worker_pid();
	foreach my $state (sort keys %states)
	{
		my ($sql) = @{ $states{$state} };
		my $lock = "matrix/$fault/$state";
		my $holder = ZkTest::Session->new($node_a, name => $state);
		my $waiter = ZkTest::Session->new($node_b, name => $state);

		if ($state eq 'procedure')
		{
			$holder->send("CALL commit_in_a_loop('$lock', '$fault')");
			poll_until(sub { contenders($zk, $lock) == 1 }, 10) // die 'no node of the procedure';
		}
		else
		{
			$holder->query(q{SET zklock.idle_loss = 'doom'}) if $states{$state}[1] eq 'idle';
			like($holder->query("BEGIN; INSERT INTO work VALUES ('$fault', '$state'); SELECT zk_xact_lock_acquire('$lock')"),
				qr/^\d+$/, "$fault, $state: the lock is held");
			$holder->send($sql) if defined $sql;
		}
		$waiter->send("SELECT zk_lock_acquire('$lock')");
		poll_until(sub { contenders($zk, $lock) == 2 }, 10) // die 'no node of the waiter';
		$run{$state} = { lock => $lock, holder => $holder, waiter => $waiter };
	}

	my $at = time;
	if ($by_ensemble) { $cause->() }
	else { $cause->($_->{lock}) foreach values %run }

	# Watch both sides until every waiter has been granted and every holder has ended
	# that does so by itself.
	my $watched = poll_until(
		sub {
			my $open = 0;
			foreach my $state (keys %run)
			{
				my $r = $run{$state};
				my $end = $states{$state}[1];
				if (!defined $r->{ended})
				{
					my $ended =
						$end eq 'idle' ? 1
					  : $end eq 'gone' ? !is_alive($r->{holder}->backend)
					  : $end eq 'gone or error' ? !is_alive($r->{holder}->backend) || $r->{holder}->answered
					  : $r->{holder}->answered;
					$r->{ended} = time if $ended;
				}
				$r->{granted} = time if !defined $r->{granted} && $r->{waiter}->answered;
				$open++ unless defined $r->{ended} && defined $r->{granted};
			}
			return !$open;
		}, 30);
	ok(defined $watched, "$fault: every holder ended and every waiter was granted")
	  or diag 'open: ' . join ', ', grep { !$run{$_}{ended} || !$run{$_}{granted} } sort keys %run;

	my $lead;
	foreach my $state (sort keys %run)
	{
		my $r = $run{$state};
		my (undef, $end, $then) = @{ $states{$state} };

		next unless $r->{ended} && $r->{granted};
		like($r->{waiter}->wait, qr/^\d+$/, "$fault, $state: the waiter was granted");
		if ($end ne 'idle')
		{
			my $ahead = $r->{granted} - $r->{ended};
			$lead = $ahead if $by_ensemble && (!defined $lead || $ahead < $lead);
			cmp_ok($ahead, '>=', $by_ensemble ? 0 : -1, "$fault, $state: ended before the grant")
			  or diag sprintf 'ended %.3f s, granted %.3f s after the fault', $r->{ended} - $at, $r->{granted} - $at;
		}
		if ($end eq 'error')
		{
			like($r->{holder}->wait // '', qr/ERROR:  ZK001: lock "\Q$r->{lock}\E" is lost/, "$fault, $state: ZK001")
		}
		elsif ($end eq 'idle')
		{
			like($r->{holder}->query($then), qr/ERROR:  ZK001: /, "$fault, $state: $then fails");
		}
		elsif ($end eq 'gone')
		{
			ok(!is_alive($r->{holder}->backend), "$fault, $state: the connection is ended");
		}
	}
	note sprintf '%s: smallest lead of a holder over the grant: %.3f s', $fault, $lead if defined $lead;

	$cure->();
	$_->{holder}->kill_client, $_->{waiter}->quit foreach values %run;
	is($node_a->safe_psql('postgres', "SELECT count(*) FROM work WHERE fault = '$fault' AND state <> 'procedure'"),
		0, "$fault: no row of an open transaction is there");
	my $last = $node_a->safe_psql('postgres', "SELECT extract(epoch FROM max(at)) FROM work WHERE fault = '$fault'");
	cmp_ok($last, '<', $run{procedure}{granted} + ($by_ensemble ? 0 : 1),
		"$fault: nor one that the procedure committed after the grant");
	is($node_a->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'swallowing loop' AND state = 'active'}),
		0, "$fault: the swallowing loop does not go on");
}

$node_a->stop;
$node_b->stop;
done_testing();
