# A hundred readers and ten writers over two servers: no reader beside a writer, no two
# writers, and nobody starves.
#
# Each works in a procedure on its server and writes down, by the clock that both servers
# share, when it asked and when it got the lock. Until when it surely held it is the time of
# the commit of that row. Overlaps are looked for afterwards.
#
# RW_SECONDS (6): for how long.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $seconds = $ENV{RW_SECONDS} // 6;
my ($readers, $writers) = (100, 10);
my $zk = ZkEnsemble->new(tick => 500)->start;
my %server = map { ($_ => zk_server($_, $zk, conf => "max_connections = 100\ntrack_commit_timestamp = on")) } qw(a b);

foreach my $server (values %server)
{
	$server->safe_psql('postgres', <<'END');
CREATE TABLE held (who int, mode text, asked timestamptz, since timestamptz);
CREATE PROCEDURE take_turns(who int, mode text, ends timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	asked timestamptz;
	since timestamptz;
BEGIN
	WHILE clock_timestamp() < ends LOOP
		asked := clock_timestamp();
		PERFORM zk_lock_acquire('rw', mode, '60 s');
		since := clock_timestamp();
		PERFORM pg_sleep(0.001);
		INSERT INTO held VALUES (who, mode, asked, since);
		COMMIT;
		PERFORM zk_lock_release('rw', mode);
	END LOOP;
END $$;
END
}

my @sessions = map { ZkTest::Session->new($server{ $_ % 2 ? 'a' : 'b' }) } 1 .. $readers + $writers;
my $ends = sql($server{a}, "SELECT clock_timestamp() + interval '$seconds s'");
foreach my $who (1 .. @sessions)
{
	my $mode = $who <= $writers ? 'write' : 'read';
	$sessions[ $who - 1 ]->send("CALL take_turns($who, '$mode', '$ends')");
}
my $deadline = time + $seconds + 70;
my @answers = map { my $left = $deadline - time; $_->wait($left > 0 ? $left : 0) // 'no answer' } @sessions;
is(join("\n", grep { $_ ne '' } @answers), '', 'no errors');
poll_until(sub { !$zk->ls(lock_directory('rw')) }, 5);
is(join(' ', $zk->ls(lock_directory('rw'))), '', 'no node is left');
$_->quit foreach @sessions;

# Bring the records together.
my $holds = 'SELECT who, mode, asked, since, pg_xact_commit_timestamp(xmin) AS until FROM held';
my $rows = $server{b}->safe_psql('postgres', "COPY ($holds) TO STDOUT");
$server{a}->safe_psql('postgres', "CREATE TABLE holds AS $holds;\nCOPY holds FROM STDIN;\n$rows\n\\.\n");

# In the order of the grants: does anybody that a writer excludes still hold when it begins, or
# a writer when anybody begins?
my $overlaps = <<'END';
SELECT count(*) FROM (
	SELECT mode, since,
		max(until) OVER before AS anybody,
		max(until) FILTER (WHERE mode = 'write') OVER before AS writer
	FROM holds WINDOW before AS (ORDER BY since ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) t WHERE since < CASE mode WHEN 'write' THEN anybody ELSE writer END
END
my $n = sql($server{a}, 'SELECT count(*) FROM holds');
is(sql($server{a}, $overlaps), 0, "no reader beside a writer, no two writers, in $n holds");
is(sql($server{a}, q{SELECT count(DISTINCT who) FILTER (WHERE mode = 'read') || ' ' || count(DISTINCT who) FILTER (WHERE mode = 'write') FROM holds}),
	"$readers $writers", 'everybody had a turn');
cmp_ok(sql($server{a}, q{SELECT count(*) FROM (SELECT since, max(until) OVER (ORDER BY since ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
	FROM holds WHERE mode = 'read') t WHERE since < before}), '>', 0, 'readers hold together');
foreach my $mode (qw(read write))
{
	my ($holds, $longest, $typical, $least) = split /\|/, sql($server{a}, <<"END");
SELECT sum(n), max(longest), percentile_disc(0.5) WITHIN GROUP (ORDER BY typical), min(n)
FROM (SELECT count(*) AS n, extract(epoch FROM max(since - asked)) AS longest,
	extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY since - asked)) AS typical FROM holds WHERE mode = '$mode' GROUP BY who) t
END
	# In turn: 110 requests ahead at most, ten of which hold alone.
	cmp_ok($longest, '<', 15, "$mode: nobody starves");
	note sprintf '%s: %d holds, at least %d each, longest wait %.3f s, usually %.3f s', $mode, $holds, $least, $longest, $typical;
}

# The question finds what it is for.
sql($server{a}, q{INSERT INTO holds SELECT 0, 'write', since, since + (until - since) / 2, until FROM holds WHERE mode = 'read' LIMIT 1});
cmp_ok(sql($server{a}, $overlaps), '>', 0, 'a writer beside a reader would have been found');

$_->stop foreach values %server;
done_testing();
