# A writer that is stopped, at a random instant of its transaction, while the lock goes to
# somebody else. What it writes to lies in another database than the lock's holder, so
# nothing but the fencing token is in its way there.
#
# Each trial: A holds the lock with token n and writes; its backend gets SIGSTOP at a random
# moment; its node is deleted in ZooKeeper, as an operator or an expiry would; B is granted
# the lock with m > n and writes; A goes on. Then A's rows are absent, or A had passed the
# fence first and B had to wait for it. Committed tokens never fall.
#
# A writes in three ways: it presents the token and writes to a table whose guard has no
# column; the token is in its rows; it does the first through dblink from the backend that
# holds the lock, which is the one that is stopped then, and so may notice the loss itself
# (ZK001).
#
# ZKLOCK_FENCE_TRIALS is the number of trials in each isolation level (default 100).

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

my $trials = $ENV{ZKLOCK_FENCE_TRIALS} || 100;
my $seed = $ENV{ZKLOCK_FENCE_SEED} || time;
srand $seed;
note "seed $seed";

my $zk = ZkEnsemble->new(tick => 500)->start;
my $locks = zk_server('locks', $zk);
my $ledger = PostgreSQL::Test::Cluster->new('ledger');
$ledger->init;
$ledger->append_conf('postgresql.conf', "track_commit_timestamp = on\nfsync = off\nlog_error_verbosity = verbose");
$ledger->start;
(my $target = $ledger->connstr('postgres')) =~ s/'//g;
$ledger->safe_psql('postgres', <<'END');
CREATE EXTENSION zklock;
CREATE SEQUENCE seq;
CREATE TABLE notes (trial int);

CREATE TABLE statements (seq bigint, level text, trial int, writer text, token bigint);
CREATE TRIGGER guard BEFORE INSERT ON statements FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r');
CREATE TABLE rows (LIKE statements);
CREATE TRIGGER guard BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r', 'token');
-- Numbers that are drawn behind the fence: after "guard" in the order of names.
CREATE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seq := nextval('seq'); RETURN NEW; END $$;
CREATE TRIGGER number BEFORE INSERT ON statements FOR EACH ROW EXECUTE FUNCTION draw();
CREATE TRIGGER number BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION draw();
CREATE VIEW written AS
	SELECT *, pg_xact_commit_timestamp(xmin) AS committed FROM statements UNION ALL
	SELECT *, pg_xact_commit_timestamp(xmin) FROM rows;
END
$locks->safe_psql('postgres', 'CREATE EXTENSION dblink');

# The connections, which last for all trials.
my %holder = map { $_ => ZkTest::Session->new($locks) } qw(A B);
my %writer = map { $_ => ZkTest::Session->new($ledger) } qw(A B);
my $observer = ZkTest::Session->new($ledger);

# What a writer does, as statements: some work before it comes to the fence, some after.
sub work
{
	my ($way, $level, $trial, $who, $token) = @_;
	my $table = $way eq 'rows' ? 'rows' : 'statements';
	return ("BEGIN ISOLATION LEVEL $level",
		"INSERT INTO notes VALUES ($trial)",
		"SELECT pg_sleep(0.001)",
		$way eq 'rows' ? () : "SELECT zk_fence_check('r', $token)",
		("INSERT INTO $table (level, trial, writer, token) VALUES ('$level', $trial, '$who', $token)") x 6,
		'COMMIT');
}

# Start it; returns the connection that will answer and the process to stop.
sub start
{
	my ($way, $level, $trial, $who, $token) = @_;
	my @statements = work($way, $level, $trial, $who, $token);
	if ($way ne 'dblink')
	{
		$writer{$who}->send(join ";\n", @statements);
		return ($writer{$who}, $writer{$who}->backend);
	}
	my $body = join '', map {
		(my $sql = $_) =~ s/'/''/g;
		/^SELECT/ ? "PERFORM * FROM dblink('ledger', '$sql') AS t (x text);\n" : "PERFORM dblink_exec('ledger', '$sql');\n"
	} @statements;
	$holder{$who}->send("DO \$\$ BEGIN\n${body}END \$\$");
	return ($holder{$who}, $holder{$who}->backend);
}

# How long a whole transaction takes, to stop it anywhere in it; with some to spare, since
# it varies.
my %duration;
my $number = 0;
my $remote;    # process of A's dblink connection
sub connect_dblink
{
	$holder{A}->query("SELECT dblink_connect('ledger', '$target')");
	$remote = $holder{A}->query("SELECT * FROM dblink('ledger', 'SELECT pg_backend_pid()') AS t (pid int)");
	return;
}

sub measure
{
	my ($way) = @_;
	my $token = $holder{A}->query("SELECT zk_lock_acquire('r')");
	my $start = time;
	foreach (1 .. 5)
	{
		my ($session) = start($way, 'READ COMMITTED', --$number, 'A', $token);
		my $answer = $session->wait;
		die "the work fails: $answer" if $answer =~ /ERROR/;
	}
	$holder{A}->query(q{SELECT zk_lock_release('r')});
	return (time - $start) / 5;
}
connect_dblink();
$duration{$_} = measure($_) foreach qw(presented rows dblink);
$number = 0;

# Does B wait for one of these processes? Wait for that, or for B's answer, or for 3 s:
# a process that is stopped with a latch in its hands holds up us as well as B. Nothing is
# asked of pg_stat_activity, which waits for a process that is stopped while it reports.
my $unanswered = 0;
sub waits_for
{
	my ($b, @pids) = @_;
	my $until = time + 3;
	my $pids = join ',', @pids;
	until ($b->answered || time > $until)
	{
		$observer->send("SELECT pg_blocking_pids(" . $b->backend . ") && ARRAY[$pids]::int[]");
		my $answer = $observer->wait(3);
		$unanswered = !defined $answer;
		return 0 if $unanswered;
		return 1 if $answer eq 't';
	}
	return 0;
}

# One trial; returns what came of it, or undef when A was done before it was stopped.
sub trial
{
	my ($level, $way) = @_;
	my $n = $holder{A}->query("SELECT zk_lock_acquire('r')");
	die "A got no lock: $n" unless $n =~ /^\d+$/;
	# dblink's connection is lost with the trial in which A learns of its loss
	connect_dblink() unless defined $remote;
	# A holder writes more than once: every other A comes with a token that is the mark
	# already, and then changes no row of zk_fence that B could wait for.
	$observer->query("SELECT zk_fence_check('r', $n)") if $number % 2;
	my ($a, $pid) = start($way, $level, ++$number, 'A', $n);

	sleep rand 1.5 * $duration{$way};
	kill 'STOP', $pid;
	poll_until(sub { process_state($pid) eq 'T' }, 10) // die 'A does not stop';
	if ($a->answered)
	{
		kill 'CONT', $pid;
		$a->wait;
		$holder{A}->query(q{SELECT zk_lock_release_all()});
		return;
	}

	# The lock goes to B.
	my ($node) = contenders($zk, 'r');
	$zk->delete(lock_directory('r') . "/$node");
	my $m = $holder{B}->query("SELECT zk_lock_acquire('r')");
	die "B got no lock: $m" unless $m =~ /^\d+$/ && $m > $n;
	my $wrong = '';
	my ($waited, $retries, $b_answer) = (0, 0);

	# B writes; one that cannot be serialised is repeated, as one does.
	my ($b) = start($way eq 'rows' ? 'rows' : 'presented', $level, $number, 'B', $m);
	$waited = waits_for($b, $pid, $way eq 'dblink' ? $remote : ());
	kill 'CONT', $pid;
	my $a_answer = $a->wait(20) // die 'A does not end';
	if ($way eq 'dblink' && $a_answer =~ /ERROR/)
	{
		# acknowledge, then drop the connection and with it what it left open
		$holder{A}->query(q{SELECT zk_lock_release_all()});
		$holder{A}->query(q{SELECT dblink_disconnect('ledger')});
		undef $remote;
	}
	while (1)
	{
		$b_answer = $b->wait(20) // die 'B does not end';
		last unless $b_answer =~ /\b40001\b/ && $retries++ < 5;
		start($way eq 'rows' ? 'rows' : 'presented', $level, $number, 'B', $m);
	}

	$observer->wait if $unanswered;
	$unanswered = 0;
	my $rows = $observer->query(
		"SELECT count(*) FILTER (WHERE writer = 'A') || ' ' || count(*) FILTER (WHERE writer = 'B') || ' ' ||
			coalesce(max(seq) FILTER (WHERE writer = 'A') < min(seq) FILTER (WHERE writer = 'B'), true)
		FROM written WHERE trial = $number AND level = '$level'");
	my ($a_rows, $b_rows, $ordered) = split / /, $rows;
	my ($code) = $a_answer =~ /ERROR:  (\w{5}):/;
	$code //= '';
	$wrong .= "B's rows: $b_rows, $b_answer; " if $b_rows != 6;
	$wrong .= "A's rows: $a_rows, $a_answer; " unless $a_rows == 0 || $a_rows == 6;
	$wrong .= "order; " if $ordered ne 'true';
	$wrong .= "A has no rows, and said: $a_answer; " if $a_rows == 0 && $code !~ /^ZK00[12]$/;
	my $outcome = $a_rows == 0 ? "A was refused with $code" : $waited ? 'A was first and B waited' : 'A was over before B came';
	$outcome .= ', which waited' if $a_rows == 0 && $waited;

	$holder{$_}->query(q{SELECT zk_lock_release_all()}) foreach qw(A B);
	diag "$level, $way, trial $number: $wrong" if $wrong ne '';
	return ($wrong ne '' ? 'wrong' : $outcome, $retries);
}

foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my (%count, %by_way, $retried);
	my ($done, $early) = (0, 0);
	my $start = time;
	while ($done < $trials && $early < 20 * $trials)
	{
		my $way = (qw(presented rows dblink))[ $done % 3 ];
		my ($outcome, $retries) = trial($level, $way);
		if (!defined $outcome) { $early++; next; }
		$done++;
		$count{$outcome}++;
		$retried++ if $retries;
	}
	note sprintf '%s: %d trials in %.0f s (%d more in which A was done before it was stopped): %s; B repeated %d',
	  $level, $done, time - $start, $early, join(', ', map { "$_: $count{$_}" } sort keys %count), $retried // 0;
	is($done, $trials, "$level: $trials writers were stopped in their transaction");
	is($count{wrong} // 0, 0, "$level: every writer was refused, or had been first");
	cmp_ok($count{'A was refused with ZK002'} // 0, '>', 0, "$level: some were refused as stale");
	cmp_ok($count{'A was first and B waited'} // 0, '>', 0, "$level: some had been first, and the newer one waited");
}

# The tokens that were committed, in the order in which they were.
foreach my $order ('seq', 'committed, seq')
{
	is($ledger->safe_psql('postgres', <<"END"), '0', "committed tokens never fall, ordered by $order");
SELECT count(*) FROM (SELECT token < lag(token) OVER (ORDER BY $order) AS falls FROM written) t WHERE falls
END
}
is($ledger->safe_psql('postgres', q{SELECT count(*) FROM written w, zk_fence f WHERE w.token > f.token}), '0',
	'none is above the mark');

done_testing();
