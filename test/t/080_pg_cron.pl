# doc/examples/pg_cron.sql as it stands: pg_cron on two servers, the clock of one 300 ms behind, the same
# job every two seconds. At no time do two run; the loser says that it skipped; each tick's work is done
# exactly once. In every other tick the work is long, so that the second server finds the lock taken; in the
# others it is short, so that the second one gets the lock for a tick that is done: what the row is for.
#
# ZKLOCK_CRON_SECONDS (default 20) is how long.

use strict;
use warnings;

use File::Basename qw(dirname);
use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

chomp(my $share = `pg_config --sharedir`);
plan skip_all => 'no pg_cron (package postgresql-NN-cron)' unless -e "$share/extension/pg_cron.control";
my ($version) = slurp_file("$share/extension/pg_cron.control") =~ /^default_version = '(\d+\.\d+)/m;
plan skip_all => "pg_cron $version has no schedule in seconds: 1.5 or later has" if $version < 1.5;
plan skip_all => 'an instrumented server has its own preloaded library' unless ZkTest::Clock->possible;
my $seconds = $ENV{ZKLOCK_CRON_SECONDS} // 20;

# The two parts of the example, with this rig's servers in place of the named ones.
my (undef, $once, $everywhere) =
  split /^-- -{60,}\n(?=-- \d\.)/m, slurp_file(dirname(__FILE__) . '/../../doc/examples/pg_cron.sql');

my $zk = ZkEnsemble->new(tick => 500)->start;
my $ledger = PostgreSQL::Test::Cluster->new('ledger');
$ledger->init;
$ledger->start;
$ledger->safe_psql('postgres', "CREATE ROLE billing LOGIN; $once");
# The witness: who began and ended when, by this server's clock, whatever becomes of the transaction
$ledger->safe_psql('postgres', <<'END');
CREATE TABLE witness (id serial, at timestamptz DEFAULT clock_timestamp(), server text, what text, tick timestamptz);
END

my $clock = ZkTest::Clock->new;
$clock->shift_by(-0.3);
my ($host, $port) = ($ledger->host, $ledger->port);
my %node;
foreach my $name (qw(a b))
{
	local %ENV = (%ENV, $name eq 'b' ? $clock->environment : ());
	$node{$name} = zk_server($name, $zk, conf => <<"END");
shared_preload_libraries = 'zklock, pg_cron'
cron.host = '$host'
END
	$everywhere =~ s/host 'ledger\.example', dbname 'accounts'/host '$host', port '$port', dbname 'postgres'/;
	# With the schedule last, and the work replaced by one that takes its time
	my ($setup, $schedule) = $everywhere =~ /^(.*)^(SELECT cron\.schedule.*)$/ms;
	$node{$name}->safe_psql('postgres', $setup);
	$node{$name}->safe_psql('postgres', <<"END");
CREATE EXTENSION dblink;
CREATE FUNCTION note(what text, tick timestamptz) RETURNS void LANGUAGE sql AS \$\$
	SELECT dblink_exec('host=$host port=$port dbname=postgres',
		format('INSERT INTO witness (server, what, tick) VALUES (%L, %L, %L)', '$name', what, tick));
\$\$;
ALTER FUNCTION bill RENAME TO bill_as_in_the_example;
CREATE FUNCTION bill(due timestamptz, token bigint) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM note('begin', due);
	IF extract(epoch FROM due)::bigint % 4 = 0 THEN
		PERFORM pg_sleep(1.2);
	END IF;
	PERFORM bill_as_in_the_example(due, token);
	PERFORM note('end', due);
END \$\$;
END
	$node{$name}{schedule} = $schedule;
}
my $behind = $node{b}->safe_psql('postgres', 'SELECT extract(epoch FROM clock_timestamp())') - time;
cmp_ok($behind, '<', -0.25, "b's clock is behind");
cmp_ok($behind, '>', -0.35, 'by 300 ms');

sub ledger { my ($sql) = @_; return $ledger->safe_psql('postgres', $sql); }
sub runs { my ($name, $condition) = @_; return $node{$name}->safe_psql('postgres', "SELECT count(*) FROM cron.job_run_details WHERE $condition"); }

$node{$_}->safe_psql('postgres', $node{$_}{schedule}) foreach qw(a b);
my $start = time;
poll_until(sub { time - $start >= $seconds }, $seconds + 1);
# No more of it: to unschedule a job cancels it, so when none runs and none is due soon
ok(defined poll_until(sub { !grep { runs($_, q{status NOT IN ('succeeded', 'failed')}) ne '0'
			|| runs($_, q{start_time > clock_timestamp() - interval '1.6 s'}) eq '0' } qw(a b) }, 20), 'a moment without a run');
$node{$_}->safe_psql('postgres', q{SELECT cron.unschedule('billing')}) foreach qw(a b);

my %outcome;
foreach my $name (qw(a b))
{
	my $log = slurp_file($node{$name}->logfile);
	while ($log =~ /LOG:  [0-9A-Z]{5}: tick (\S+ \S+): (another server is at it, skipped|it was done before|done)$/mg)
	{
		push @{ $outcome{$2}{$name} }, $1;
	}
	is(runs($name, q{status = 'failed'}), 0, "$name: no run failed")
	  or diag $node{$name}->safe_psql('postgres', q{SELECT return_message FROM cron.job_run_details WHERE status = 'failed'});
}
my %count;
foreach my $what (keys %outcome)
{
	$count{$what} += @{ $outcome{$what}{$_} // [] } foreach qw(a b);
	note sprintf '%s: a %d, b %d', $what, map { scalar @{ $outcome{$what}{$_} // [] } } qw(a b);
}
my $all = 0;
$all += $_ foreach values %count;
is($all, runs('a', 'true') + runs('b', 'true'), 'every run says how it went');

# Each tick that any server began has its row and its work, once
my %ticks = map { map { map { $_ => 1 } @$_ } values %$_ } values %outcome;
my $rows = ledger('SELECT count(*) FROM tick_done');
note "$seconds s: " . scalar(keys %ticks) . " ticks, $all runs, $rows rows";
is($rows, scalar keys %ticks, 'every tick is done');
is(ledger('SELECT count(*) FROM entry'), $rows, 'as often as there is work of it');
is(ledger('SELECT count(DISTINCT tick) FROM entry'), $rows, 'and none twice');
is($count{done}, $rows, 'the servers say so too');
cmp_ok($rows, '>=', $seconds / 2 - 3, 'there were as many as the time allows');
is(ledger(q{SELECT count(*) FROM generate_series((SELECT min(tick) FROM tick_done), (SELECT max(tick) FROM tick_done), '2 s') g WHERE g NOT IN (SELECT tick FROM tick_done)}),
	0, 'none in between is missing') or diag ledger('SELECT tick, server FROM tick_done ORDER BY 1');

# Both at work at the same time
my ($running, $together, $begun) = ('', 0, 0);
foreach (split /\n/, ledger('SELECT what, server FROM witness ORDER BY id'))
{
	my ($what, $server) = split /\|/;
	if ($what eq 'begin') { $together++ if $running; $running = $server; $begun++; }
	else { $running = ''; }
}
is($begun, $rows, 'all work was witnessed');
is($together, 0, 'at no time do two run');

cmp_ok($count{'another server is at it, skipped'} // 0, '>', 0, 'the loser logs that it skipped');
cmp_ok($count{'it was done before'} // 0, '>', 0, 'the lock alone would have done a tick twice');

$node{$_}->stop foreach qw(a b);
$ledger->stop;
done_testing();
