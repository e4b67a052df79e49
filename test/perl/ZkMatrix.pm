# ZkMatrix - a fault x everything that a backend can be doing.
#
#	prepare_matrix($server);
#	run_fault(
#		fault => 'black hole',
#		zk => $zk,
#		servers => [ { server => $server, other => $other, label => 'T = 4 s', expect => 'loss' } ],
#		cause => sub { ... },
#		cure => sub { ... });
#	print_matrix();
#
# In each state a connection of "server" holds a lock and has written a row, unless its state
# is of those that have no transaction around them, and one of "other" waits for the lock. The fault happens to all of them at once. What is expected:
#
#	loss	The ensemble takes the lock away. Whoever is active ends with ZK001 before the
#			other is granted, and so does the connection that is idle and to be terminated.
#	lapse	The ZooKeeper session comes back with "restore", which happens after
#			"restore_after" seconds. The same have ended before that; the others are granted
#			when the holders' clients are gone. Without a "restore" it comes back by itself.
#	event	What tells the holder is what lets the other in: it has a second.
#	crash	PostgreSQL ends all connections, before the other is granted.
#	frozen	All of the server is stopped until the other is granted. Then the clients
#			of those that are idle ask for more, "resume" lets all go on, and the first act
#			is to fail.
#	survive	Nothing happens: all go on for "lasts" seconds, and commit.
#	either	After "lasts" seconds it was a lapse or they survive, all of them.
#
# But for survivors no row of an open transaction may be there afterwards, and the
# procedure may have committed none after the grant. Of survivors all must be.
#
# What keeps a backend busy ends when the gate opens: that is the end of a connection, which
# holds the row lock besides.
#
# MATRIX_ONLY: a pattern; only faults whose name matches happen.
#
# Copyright (c) 2026, zklock developers

package ZkMatrix;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use List::Util qw(max min);
use Test::More;
use Time::HiRes qw(time);

use ZkTest;

our @EXPORT = qw(prepare_matrix run_fault print_matrix);

my $gate = q{public.gate_wait(current_setting('matrix.gate')::int, 120000)};

# state => what to run once the lock is held, and how that ends at a loss: with an error; with
# the end of the connection ("gone"); not at all, since it is idle, but "then" fails.
# alone: there is no transaction around it; the lock is the backend's. commits: it is itself
# the end of the transaction. before: also in the transaction. waits: in what, unless it is the
# gate or a row. database: that it is in, unless it is postgres.
my %states = (
	'active query' => { run => "SELECT $gate", end => 'error' },
	'idle, doom' => { end => 'idle', then => 'COMMIT' },
	'idle, terminate' => { end => 'gone' },
	'cursor' => {
		run => 'DECLARE c CURSOR FOR SELECT * FROM big; FETCH 1 FROM c',
		end => 'idle', then => 'FETCH 1 FROM c' },
	'WHEN OTHERS' => {
		run => "DO \$\$ BEGIN PERFORM $gate; EXCEPTION WHEN OTHERS THEN NULL; END \$\$",
		end => 'error' },
	'WHEN query_canceled' => {
		run => "DO \$\$ BEGIN BEGIN PERFORM $gate; EXCEPTION WHEN query_canceled THEN NULL; END; PERFORM $gate; END \$\$",
		end => 'error' },
	'swallowing loop' => {
		run => "DO \$\$ BEGIN LOOP BEGIN PERFORM $gate; EXIT; EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END \$\$",
		end => 'gone or error' },
	'COPY FROM STDIN' => { run => 'COPY work (fault) FROM STDIN', feed => "copied\n\\.\n", end => 'gone' },
	'parallel query' => {
		run => 'SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; '
		  . 'SELECT count(in_parallel(x)) FROM big',
		end => 'error' },
	'CREATE INDEX' => { run => 'CREATE INDEX ON big (in_index(x))', end => 'error' },
	'ROLLBACK TO after an error' => { run => "SAVEPOINT s; SELECT 1/0; ROLLBACK TO s; SELECT $gate", end => 'error' },
	'row lock' => { run => 'UPDATE contended SET n = n + 1', end => 'error' },
	'procedure' => { end => 'error' },

	# statements that commit inside themselves, in a database of their own, since they wait for
	# everybody's snapshots there
	'CREATE INDEX CONCURRENTLY' => {
		alone => 1, database => 'maintenance', waits => 'virtualxid',
		run => 'CREATE INDEX CONCURRENTLY in_steps ON first (x)', end => 'error' },
	'VACUUM of two tables' => {
		alone => 1, database => 'maintenance', waits => 'relation', run => 'VACUUM other, second', end => 'error' },
	'simple expression after COMMIT' => {
		alone => 1, run => q{CALL simple_expression(current_setting('matrix.gate')::int)}, end => 'error' },

	# the way from COMMIT to the commit record
	'COMMIT waiting to NOTIFY' => {
		commits => 1, waits => 'object', before => 'NOTIFY matrix', run => 'COMMIT', end => 'error' },
	'deferred trigger' => {
		commits => 1, before => q{INSERT INTO deferred VALUES (current_setting('matrix.gate')::int)},
		run => 'COMMIT', end => 'error' },

	# other commits
	'foreign table, doom' => { before => q{INSERT INTO far VALUES ('written')}, end => 'idle', then => 'COMMIT' },
	'COMMIT PREPARED' => { alone => 1, end => 'idle', then => q{COMMIT PREPARED 'matrix'} },
);
my @names = sort keys %states;

# Whose transactions leave a row in "work".
my @writers = grep { !$states{$_}{alone} && $_ ne 'procedure' } @names;

my @table;    # what print_matrix prints

sub prepare_matrix
{
	my ($server) = @_;
	my $library = shared_library('gate');
	$server->safe_psql('postgres', <<"END");
CREATE FUNCTION gate_wait(int, int) RETURNS boolean LANGUAGE c PARALLEL SAFE AS '$library';
CREATE TABLE work (fault text, state text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE contended (id int PRIMARY KEY, n int);
INSERT INTO contended VALUES (1, 0);
CREATE TABLE big AS SELECT generate_series(1, 100000) AS x;
ANALYZE big;
CREATE FUNCTION in_parallel(x int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS
\$\$ BEGIN IF x % 25000 = 1 THEN PERFORM $gate; END IF; RETURN x; END \$\$;
CREATE FUNCTION in_index(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
\$\$ BEGIN IF x = 50000 THEN PERFORM $gate; END IF; RETURN x; END \$\$;
CREATE PROCEDURE commit_in_a_loop(lock text, fault text) LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM zk_lock_acquire(lock);
	LOOP
		INSERT INTO work VALUES (fault, 'procedure');
		COMMIT;
		EXIT WHEN public.gate_wait(current_setting('matrix.gate')::int, 20);
	END LOOP;
END \$\$;
CREATE FUNCTION gate_notify() RETURNS void LANGUAGE c AS '$library';
CREATE PROCEDURE simple_expression(gate int) LANGUAGE plpgsql AS \$\$
DECLARE
	open boolean;
	object oid;
BEGIN
	COMMIT;
	open := public.gate_wait(gate, 120000);
	object := lo_create(0);
END \$\$;
CREATE TABLE deferred (gate int);
CREATE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS
\$\$ BEGIN PERFORM public.gate_wait(NEW.gate, 120000); RETURN NULL; EXCEPTION WHEN OTHERS THEN RETURN NULL; END \$\$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION wait_in_commit();
CREATE EXTENSION postgres_fdw;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw
	OPTIONS (host '@{[ $server->host ]}', port '@{[ $server->port ]}', dbname 'elsewhere');
CREATE USER MAPPING FOR CURRENT_USER SERVER elsewhere;
CREATE FOREIGN TABLE far (what text) SERVER elsewhere;
END
	$server->safe_psql('postgres', "CREATE DATABASE $_") foreach 'maintenance', 'elsewhere';
	$server->safe_psql('elsewhere', 'CREATE TABLE far (what text)');
	$server->safe_psql('maintenance', <<'END');
CREATE EXTENSION zklock;
CREATE TABLE first AS SELECT 1 AS x;
CREATE TABLE second (x int);
CREATE TABLE other (x int);
END
	return;
}

sub is_alive { return kill 0, $_[0]; }

sub name_of
{
	my ($fault, $s) = @_;
	return join ', ', $fault, $s->{label} // ();
}

sub all_of
{
	my ($s, $what) = @_;
	return !grep { !defined $_->{$what} } values %{ $s->{run} };
}

# All states on one server, with their waiters.
sub begin_states
{
	my ($zk, $fault, $s) = @_;
	my $server = $s->{server};
	my $what = name_of($fault, $s);

	wait_for_full_lease($server);
	wait_for_lease($s->{other});
	$s->{gate} = ZkTest::Session->new($server);
	$s->{gate}->query('BEGIN; UPDATE contended SET n = n + 1; SELECT gate_notify()');
	$s->{far_gate} = ZkTest::Session->new($server, database => 'maintenance');
	$s->{far_gate}->query('BEGIN; INSERT INTO first VALUES (0); LOCK TABLE second IN SHARE UPDATE EXCLUSIVE MODE');
	$server->safe_psql('postgres', q{BEGIN; INSERT INTO work VALUES ('prepared', 'COMMIT PREPARED'); PREPARE TRANSACTION 'matrix'});
	foreach my $state (@names)
	{
		my $lock = "matrix/$what/$state";
		my %about = %{ $states{$state} };
		my $holder = ZkTest::Session->new($server, name => $state, database => $about{database});
		$holder->query('SET matrix.gate = ' . $s->{gate}->backend);
		if ($state eq 'procedure')
		{
			$holder->send("CALL commit_in_a_loop('$lock', '$fault')");
		}
		else
		{
			$holder->query(q{SET zklock.idle_loss = 'doom'}) if $about{end} eq 'idle';
			my $token = $holder->query($about{alone} ? "SELECT zk_lock_acquire('$lock')"
				: "BEGIN; INSERT INTO work VALUES ('$fault', '$state'); SELECT zk_xact_lock_acquire('$lock')");
			croak "$what, $state: $token" unless $token =~ /^\d+$/;
			my $before = $holder->query($about{before} // '');
			croak "$what, $state: $before" if $before =~ /ERROR/;
			$holder->send($about{run}) if $about{run};
		}
		$s->{run}{$state} = { lock => $lock, holder => $holder };
	}
	poll_until(sub { contenders($zk, $s->{run}{procedure}{lock}) == 1 }, 10) // croak "$what: no node of the procedure";
	foreach my $state (@names)
	{
		my $waiter = $s->{run}{$state}{waiter} = ZkTest::Session->new($s->{other}, name => $state);
		$waiter->send("SELECT zk_lock_acquire('$s->{run}{$state}{lock}')");
	}
	foreach my $r (values %{ $s->{run} })
	{
		poll_until(sub { contenders($zk, $r->{lock}) == 2 }, 10) // croak "$r->{lock}: no node of the waiter";
	}

	# Whoever is to be busy is, the parallel query with somebody's help.
	my $pids = join ',', map { $_->{holder}->backend } values %{ $s->{run} };
	my @busy = grep { $states{$_}{end} =~ /error/ && $_ !~ /^(?:procedure|parallel query)$/ } @names;
	my $found = '';
	poll_until(
		sub {
			$found = $server->safe_psql('postgres', <<"END");
SELECT string_agg(name, ',' ORDER BY name COLLATE "C") FROM (
	SELECT application_name AS name FROM pg_stat_activity
	WHERE pid IN ($pids) AND application_name NOT IN ('procedure', 'parallel query')
		AND wait_event IN ('Extension', 'transactionid', 'virtualxid', 'relation', 'object')
	UNION SELECT 'a parallel worker' FROM pg_stat_activity WHERE backend_type = 'parallel worker') AS busy
END
			return $found eq join ',', sort 'a parallel worker', @busy;
		}, 10) // croak "$what: busy are only $found";
	return;
}

# Look at both sides of each lock.
sub look
{
	my ($s) = @_;
	foreach my $state (@names)
	{
		my $r = $s->{run}{$state};
		my $gone = !is_alive($r->{holder}->backend);
		my $end = $states{$state}{end};
		$end = 'gone' if $s->{expect} eq 'crash' || ($s->{expect} eq 'survive' && $end eq 'idle');
		my $ended =
			$end eq 'idle' ? 1
		  : $end eq 'gone' ? $gone
		  : $end eq 'gone or error' ? $gone || $r->{holder}->answered
		  : $r->{holder}->answered;
		$r->{ended} //= time if $ended;
		$r->{granted} //= time if $r->{waiter}->answered;
	}
	return;
}

# What the client of a holder that lost its lock gets to see, before it goes.
sub finish_holder
{
	my ($what, $s, $state) = @_;
	my $r = $s->{run}{$state};
	my $end = $s->{expect} eq 'crash' ? 'gone' : $states{$state}{end};

	return if $r->{finished}++;
	if ($end eq 'error')
	{
		like($r->{holder}->wait(10) // '', qr/ERROR:  ZK001: lock "\Q$r->{lock}\E" is lost/, "$what, $state: ZK001");
	}
	elsif ($end eq 'idle' && $states{$state}{alone} && $s->{expect} eq 'lapse')
	{
		# nothing was at risk, and the lock came back with the ZooKeeper session
	}
	elsif ($end eq 'idle')
	{
		my $then = $states{$state}{then};
		$r->{holder}->send($then) unless $s->{resumed};
		like($r->{holder}->wait(10) // '', qr/ERROR:  ZK001: /, "$what, $state: $then fails");
	}
	elsif ($end eq 'gone')
	{
		ok(!is_alive($r->{holder}->backend), "$what, $state: the connection is ended");
	}
	$r->{holder}->kill_client;
	return;
}

# Has all come as expected? Takes the next step where one is due.
sub is_through
{
	my ($f, $s, $at) = @_;
	my $expect = $s->{expect};

	look($s);
	my $ended = all_of($s, 'ended');
	my $granted = all_of($s, 'granted');

	# What must not happen can only be looked for for a while.
	return time - $at >= $s->{lasts} if $expect eq 'survive';
	if ($expect eq 'either')
	{
		return 0 if time - $at < $s->{lasts};
		my @noticed = grep { $s->{run}{$_}{ended} && $states{$_}{end} ne 'idle' } @names;
		$s->{expect} = @noticed ? 'lapse' : 'survive';
		delete $s->{run}{$_}{ended} foreach grep { $states{$_}{end} eq 'idle' } @names;
		return 0;
	}
	if ($expect eq 'frozen' && $granted && !$s->{resumed})
	{
		foreach my $state (grep { $states{$_}{end} eq 'idle' } @names)
		{
			$s->{run}{$state}{holder}->send($states{$state}{then});
		}
		$s->{resumed} = time;
		$f->{resume}->($s);
		return 0;
	}
	if ($expect eq 'lapse' && $ended && (!$f->{restore} || $f->{restored}))
	{
		finish_holder(name_of($f->{fault}, $s), $s, $_) foreach @names;
	}
	return $ended && $granted;
}

sub run_fault
{
	my (%f) = @_;
	my @servers = @{ $f{servers} };
	return if defined $ENV{MATRIX_ONLY} && $f{fault} !~ /$ENV{MATRIX_ONLY}/;

	begin_states($f{zk}, $f{fault}, $_) foreach @servers;
	my $at = time;
	$f{cause}->(@servers);
	poll_until(
		sub {
			my $open = grep { !is_through(\%f, $_, $at) } @servers;
			return !$open unless $f{restore} && !$f{restored};
			return 0 if time - $at < $f{restore_after};
			$f{restored} = time;
			$f{restore}->();
			return 0;
		}, 90);
	foreach my $s (@servers)
	{
		if ($s->{expect} eq 'survive') { judge_survival(name_of($f{fault}, $s), $s); }
		else { judge_loss(name_of($f{fault}, $s), $s, $at, $f{restored}); }
	}
	$f{cure}->(@servers) if $f{cure};
	clean_up($f{fault}, $_) foreach @servers;
	return;
}

sub judge_loss
{
	my ($what, $s, $at, $restored) = @_;
	my $run = $s->{run};
	my $open = join ', ', grep { !$run->{$_}{ended} || !$run->{$_}{granted} } @names;
	is($open, '', "$what: every holder ended and every waiter was granted");

	# In time is before the grant, where a holder can know that it comes.
	my ($in_time, $grace, $moment) =
		$s->{expect} eq 'event' ? ('within a second of the grant', 1)
	  : $s->{expect} eq 'frozen' ? ('within two seconds of going on', 2, $s->{resumed})
	  : $restored && $s->{expect} eq 'lapse' ? ('before ZooKeeper was back', 0, $restored)
	  : ('before the grant', 0);
	my @ahead;
	foreach my $state (@names)
	{
		my $r = $run->{$state};
		next unless $r->{ended} && $r->{granted};
		like($r->{waiter}->wait(0) // '', qr/^\d+$/, "$what, $state: the waiter was granted");
		if ($states{$state}{end} ne 'idle')
		{
			my $ahead = ($moment // $r->{granted}) - $r->{ended};
			push @ahead, $ahead;
			cmp_ok($ahead, '>=', -$grace, "$what, $state: ended $in_time")
			  or diag sprintf 'ended %.3f s, granted %.3f s after the fault', $r->{ended} - $at, $r->{granted} - $at;
		}
		finish_holder($what, $s, $state);
	}
	push @table, [ $what,
		!@ahead ? 'nothing ended'
		: $s->{expect} eq 'frozen' ? sprintf 'all had failed %.3f s after they went on', -min(@ahead)
		: $s->{expect} eq 'event' ? sprintf 'largest overlap %.3f s', 0 - min(@ahead)
		: $moment ? sprintf 'all had ended %.3f s before ZooKeeper was back', min(@ahead)
		: sprintf 'smallest lead %.3f s', min(@ahead) ];
	return;
}

sub judge_survival
{
	my ($what, $s) = @_;
	my $run = $s->{run};
	is(join(', ', grep { $run->{$_}{ended} } @names), '', "$what: nobody is disturbed");
	is(join(', ', grep { $run->{$_}{granted} } @names), '', "$what: no lock goes to anybody else");

	$_->quit foreach $s->{gate}, $s->{far_gate};
	foreach my $state (@names)
	{
		my ($holder, $waiter) = @{ $run->{$state} }{qw(holder waiter)};
		my $then = $states{$state}{then} // '';
		$holder->feed($states{$state}{feed}) if $states{$state}{feed};
		if ($states{$state}{end} =~ /error/ || $states{$state}{feed})
		{
			unlike($holder->wait(20) // 'ERROR:  no answer', qr/ERROR:  (?!22012)|server closed/, "$what, $state: ends by itself");
		}
		unlike($holder->query($then), qr/ERROR|server closed/, "$what, $state: $then") if $then =~ /FETCH|PREPARED/;
		ok($states{$state}{commits} || !$waiter->answered, "$what, $state: the lock is held to the end");
		if ($states{$state}{commits})
		{
			# it was the end
		}
		elsif ($state eq 'procedure' || $states{$state}{alone})
		{
			is($holder->query('SELECT zk_lock_release_all()'), 1, "$what, $state: releases");
		}
		else
		{
			unlike($holder->query('COMMIT'), qr/ERROR|server closed/, "$what, $state: COMMIT");
		}
		like($waiter->wait(20) // '', qr/^\d+$/, "$what, $state: then the waiter is granted");
	}
	push @table, [ $what, sprintf 'went on for %d s and committed', $s->{lasts} ];
	return;
}

sub clean_up
{
	my ($fault, $s) = @_;
	my $what = name_of($fault, $s);
	my $server = $s->{server};
	my $run = $s->{run};

	poll_until(sub { $server->psql('postgres', 'SELECT 1') == 0 }, 30) // croak "$what: the server does not come back";
	$_->{holder}->kill_client, $_->{waiter}->quit foreach values %$run;
	my $rows = $server->safe_psql('postgres',
		q{SELECT string_agg(DISTINCT state COLLATE "C", ';') FROM work WHERE state <> 'procedure'});
	my $elsewhere = $server->safe_psql('postgres', q{SELECT (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM deferred)})
	  . '|' . $server->safe_psql('maintenance', q{SELECT count(*) FROM pg_index WHERE indrelid = 'first'::regclass AND indisvalid})
	  . '|' . $server->safe_psql('elsewhere', 'SELECT count(*) FROM far');
	my $copied = $server->safe_psql('postgres', q{SELECT count(*) FROM work WHERE fault = 'copied'});
	if ($s->{expect} eq 'survive')
	{
		is($rows, join(';', sort @writers, 'COMMIT PREPARED'), "$what: all rows are there");
		is($elsewhere, '1|1|1|1', "$what: and what was done elsewhere");
		is($copied, 1, "$what: and what was copied");
	}
	else
	{
		is($rows, '', "$what: no row of an open transaction is there");
		is($elsewhere, '0|0|0|0', "$what: nor was anything done elsewhere");
		is($copied, 0, "$what: nor what was copied");
		my $last = $server->safe_psql('postgres', q{SELECT extract(epoch FROM max(at)) FROM work WHERE state = 'procedure'});
		cmp_ok($last, '<', ($run->{procedure}{granted} // 0) + ($s->{expect} eq 'event' ? 1 : 0),
			"$what: nor one that the procedure committed after the grant");
		is($server->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'swallowing loop' AND state = 'active'}),
			0, "$what: the swallowing loop does not go on");
	}
	$_->kill_client foreach $s->{gate}, $s->{far_gate};
	$server->safe_psql('postgres', q{ROLLBACK PREPARED 'matrix'}) unless $s->{expect} eq 'survive';
	$server->safe_psql('postgres', 'TRUNCATE work, deferred; SELECT lo_unlink(oid) FROM pg_largeobject_metadata');
	$server->safe_psql('maintenance', 'DROP INDEX IF EXISTS in_steps');
	$server->safe_psql('elsewhere', 'TRUNCATE far');
	delete @$s{qw(run gate far_gate resumed)};
	return;
}

sub print_matrix
{
	my $width = max(map { length $_->[0] } @table);
	note sprintf "%-${width}s  %s", @$_ foreach @table;
	return;
}

1;
