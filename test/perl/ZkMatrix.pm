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
# In each state a connection of "server" holds a lock and has written a row, and one of
# "other" waits for the lock. The fault happens to all of them at once. What is expected:
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
);
my @names = sort keys %states;

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
	$s->{gate}->query('BEGIN; UPDATE contended SET n = n + 1');
	foreach my $state (@names)
	{
		my $lock = "matrix/$what/$state";
		my $holder = ZkTest::Session->new($server, name => $state);
		$holder->query('SET matrix.gate = ' . $s->{gate}->backend);
		if ($state eq 'procedure')
		{
			$holder->send("CALL commit_in_a_loop('$lock', '$fault')");
		}
		else
		{
			$holder->query(q{SET zklock.idle_loss = 'doom'}) if $states{$state}{end} eq 'idle';
			my $token = $holder->query("BEGIN; INSERT INTO work VALUES ('$fault', '$state'); SELECT zk_xact_lock_acquire('$lock')");
			croak "$what, $state: $token" unless $token =~ /^\d+$/;
			$holder->send($states{$state}{run}) if $states{$state}{run};
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
		AND wait_event IN ('Extension', 'transactionid')
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

	$s->{gate}->quit;
	foreach my $state (@names)
	{
		my ($holder, $waiter) = @{ $run->{$state} }{qw(holder waiter)};
		my $then = $states{$state}{then} // '';
		$holder->feed($states{$state}{feed}) if $states{$state}{feed};
		if ($states{$state}{end} =~ /error/ || $states{$state}{feed})
		{
			unlike($holder->wait(20) // 'ERROR:  no answer', qr/ERROR:  (?!22012)|server closed/, "$what, $state: ends by itself");
		}
		unlike($holder->query($then), qr/ERROR|server closed/, "$what, $state: $then") if $then =~ /FETCH/;
		ok(!$waiter->answered, "$what, $state: the lock is held to the end");
		if ($state eq 'procedure')
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
	my $copied = $server->safe_psql('postgres', q{SELECT count(*) FROM work WHERE fault = 'copied'});
	if ($s->{expect} eq 'survive')
	{
		is($rows, join(';', grep { $_ ne 'procedure' } @names), "$what: all rows are there");
		is($copied, 1, "$what: and what was copied");
	}
	else
	{
		is($rows, '', "$what: no row of an open transaction is there");
		is($copied, 0, "$what: nor what was copied");
		my $last = $server->safe_psql('postgres', q{SELECT extract(epoch FROM max(at)) FROM work WHERE state = 'procedure'});
		cmp_ok($last, '<', ($run->{procedure}{granted} // 0) + ($s->{expect} eq 'event' ? 1 : 0),
			"$what: nor one that the procedure committed after the grant");
		is($server->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'swallowing loop' AND state = 'active'}),
			0, "$what: the swallowing loop does not go on");
	}
	$s->{gate}->kill_client;
	$server->safe_psql('postgres', 'TRUNCATE work');
	delete @$s{qw(run gate resumed)};
	return;
}

sub print_matrix
{
	my $width = max(map { length $_->[0] } @table);
	note sprintf "%-${width}s  %s", @$_ foreach @table;
	return;
}

1;
