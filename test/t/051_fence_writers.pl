# Sixteen writers, four resources, rising and stale tokens, 10,000 transactions, all
# isolation levels at once: for each resource the committed tokens never fall. On a server
# without shared_preload_libraries, which only compares numbers.
#
# ZKLOCK_FENCE_TRANSACTIONS is the number of transactions (default 10000).

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant WRITERS => 16;
my $rounds = ($ENV{ZKLOCK_FENCE_TRANSACTIONS} || 10000) / WRITERS;

my $node = PostgreSQL::Test::Cluster->new('writers');
$node->init;
$node->append_conf('postgresql.conf', "track_commit_timestamp = on\nfsync = off\nlog_min_messages = fatal");
$node->start;
$node->safe_psql('postgres', <<'END');
CREATE EXTENSION zklock;
CREATE SEQUENCE token START 1000;
CREATE SEQUENCE seq;
CREATE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seq := nextval('seq'); RETURN NEW; END $$;
DO $$
BEGIN
	FOR i IN 1..4 LOOP
		EXECUTE format('CREATE TABLE statements_%s (seq bigint, resource text DEFAULT %L, token bigint)', i, 'r' || i);
		EXECUTE format('CREATE TABLE rows_%s (LIKE statements_%s INCLUDING DEFAULTS)', i, i);
		EXECUTE format('CREATE TRIGGER guard BEFORE INSERT ON statements_%s FOR EACH STATEMENT
			EXECUTE FUNCTION zk_fence_guard(%L)', i, 'r' || i);
		EXECUTE format('CREATE TRIGGER guard BEFORE INSERT ON rows_%s FOR EACH ROW
			EXECUTE FUNCTION zk_fence_guard(%L, ''token'')', i, 'r' || i);
		EXECUTE format('CREATE TRIGGER number BEFORE INSERT ON statements_%s FOR EACH ROW EXECUTE FUNCTION draw()', i);
		EXECUTE format('CREATE TRIGGER number BEFORE INSERT ON rows_%s FOR EACH ROW EXECUTE FUNCTION draw()', i);
	END LOOP;
END $$;
END

# A token that may be stale by the time it is presented, and every third one is for sure.
sub script
{
	my ($writer) = @_;
	my $level = ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')[ $writer % 3 ];
	my $draw = "SELECT nextval('token') - CASE WHEN random() < 0.33 THEN 40 ELSE 0 END AS token, "
	  . "1 + floor(random() * 4)::int AS r \\gset\n\\set resource r :r\n";
	my $begin = "BEGIN ISOLATION LEVEL $level;\n";
	return $draw . ($writer % 2
		? "\\set table rows_ :r\n${begin}INSERT INTO :table (token) VALUES (:token);\nCOMMIT;\n"
		: "\\set table statements_ :r\n${begin}SELECT zk_fence_check(:'resource', :token);\nINSERT INTO :table (token) VALUES (:token);\nCOMMIT;\n");
}

my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $start = time;
my @pids;
foreach my $writer (0 .. WRITERS - 1)
{
	append_to_file("$dir/$writer.sql", script($writer) x $rounds);
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open STDOUT, '>', "$dir/$writer.out";
		open STDERR, '>&', \*STDOUT;
		exec 'psql', '-XAt', '-v', 'VERBOSITY=sqlstate', '-d', $node->connstr('postgres'), '-f', "$dir/$writer.sql"
		  or POSIX::_exit(127);
	}
	push @pids, $pid;
}
waitpid $_, 0 foreach @pids;
my $seconds = time - $start;

my %count;
foreach my $writer (0 .. WRITERS - 1)
{
	my $output = slurp_file("$dir/$writer.out");
	$count{$1}++ while $output =~ /^(COMMIT|ROLLBACK)$/mg;
	$count{$1}++ while $output =~ /ERROR:  (?!25P02)(\w{5})/g;
}
note sprintf '%d transactions in %.0f s: %s', $rounds * WRITERS, $seconds,
  join ', ', map { "$_ $count{$_}" } sort keys %count;

is($count{COMMIT} + $count{ROLLBACK}, $rounds * WRITERS, 'every transaction ended');
is(($count{ZK002} // 0) + ($count{40001} // 0), $count{ROLLBACK}, 'those that failed were stale or not serialisable');
cmp_ok($count{ZK002}, '>', $rounds * WRITERS / 10, 'many were stale');
cmp_ok($count{COMMIT}, '>', $rounds * WRITERS / 10, 'many were not');

my $written = join ' UNION ALL ',
  map { my $i = $_; map { "SELECT *, pg_xact_commit_timestamp(xmin) AS committed FROM ${_}_$i" } qw(statements rows) } 1 .. 4;
$node->safe_psql('postgres', "CREATE VIEW written AS $written");
is($node->safe_psql('postgres', 'SELECT count(*) FROM written'), $count{COMMIT}, 'what was committed is there, and nothing else');
foreach my $order ('seq', 'committed, seq')
{
	is($node->safe_psql('postgres', <<"END"), '0', "committed tokens never fall, ordered by $order");
SELECT count(*) FROM (
	SELECT token < lag(token) OVER (PARTITION BY resource ORDER BY $order) AS falls FROM written) t
WHERE falls
END
}
is($node->safe_psql('postgres', <<'END'), '0', 'the mark is the newest committed token');
SELECT count(*) FROM zk_fence f WHERE token <> (SELECT max(token) FROM written w WHERE w.resource = f.resource)
END

done_testing();
