# A newer writer whose snapshot does not show what an older one committed is told, also where
# the snapshot hides behind a function, inside DO, or behind a trace that somebody covered.

use strict;
use warnings;

use Test::More;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
$node->safe_psql('postgres', <<'END');
CREATE TABLE ledger (r text, i int, who text);
CREATE TABLE plain (r text, i int, who text);
CREATE FUNCTION next_number(res text) RETURNS int STABLE LANGUAGE sql AS $$ SELECT coalesce(max(i), 0) + 1 FROM ledger WHERE r = res $$;
CREATE FUNCTION next_number_pl(res text) RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT coalesce(max(i), 0) + 1 FROM ledger WHERE r = res); END $$;
CREATE FUNCTION append(res text, n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO ledger VALUES (res, n, 'newer'); RETURN n; END $$;
CREATE FUNCTION present(res text, t bigint) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM zk_fence_check(res, t); RETURN 0; END $$;
END
# Tokens as the ensemble issues them
my $holder = ZkTest::Session->new($node);
my $newer_token = $holder->query(q{SELECT zk_lock_acquire('tokens')});
my $older_token = $newer_token - 1;

my ($older, $newer, $observer) = map { ZkTest::Session->new($node) } 1 .. 3;
my $n = 0;
my $resource;

sub fresh_resource
{
	$resource = 'r' . ++$n;
	$observer->query("SELECT zk_fence_check('$resource', $older_token)");
	$observer->query("SET client_min_messages = warning; DROP TRIGGER IF EXISTS guard ON ledger;
		CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('$resource')");
	return;
}

sub numbers { my ($table) = @_; return $observer->query("SELECT string_agg(i::text, ' ' ORDER BY i) FROM $table WHERE r = '$resource'"); }

sub waits
{
	my ($session) = @_;
	return defined poll_until(
		sub { $session->answered || $observer->query('SELECT cardinality(pg_blocking_pids(' . $session->backend . ')) > 0') eq 't' }, 10);
}

my %hidden = (
	'a stable function in SQL' => [ 'ledger', 'SELECT zk_fence_check(R, NEW), append(R, next_number(R))' ],
	'a stable function in PL/pgSQL' => [ 'ledger', 'SELECT zk_fence_check(R, NEW), append(R, next_number_pl(R))' ],
	'DO' => [ 'plain', q{DO $$ BEGIN INSERT INTO plain SELECT R, coalesce(max(i), 0) + 1, 'newer' FROM plain, (SELECT zk_fence_check(R, NEW) OFFSET 0) f WHERE r = R; END $$} ],
	'a function in the INSERT' => [ 'plain', q{INSERT INTO plain SELECT R, coalesce(max(i), 0) + 1 + present(R, NEW), 'newer' FROM plain WHERE r = R} ],
);
foreach my $what (sort keys %hidden)
{
	fresh_resource();
	my ($table, $statement) = @{ $hidden{$what} };
	$statement =~ s/\bR\b/'$resource'/g;
	$statement =~ s/\bNEW\b/$newer_token/g;
	$observer->query("INSERT INTO plain VALUES ('$resource', 1, 'first')") if $table eq 'plain';
	$older->query("BEGIN; SELECT zk_fence_check('$resource', $older_token); INSERT INTO $table SELECT '$resource', coalesce(max(i), 0) + 1, 'older' FROM $table WHERE r = '$resource'");
	$newer->send($statement);
	ok(waits($newer), "$what: waits for the older one");
	$older->query('COMMIT');
	like($newer->wait(10) // '', qr/ERROR:  40001/, "$what: 40001");
	is(numbers($table), $table eq 'plain' ? '1 2' : '1', "$what: no number twice");
}

# What PostgreSQL users are told to do works.
foreach my $how ("SELECT zk_fence_check(R, NEW)", 'DO $$ BEGIN PERFORM zk_fence_check(R, NEW); END $$', "SELECT zk_fence_check(R, (SELECT NEW::bigint)::bigint)")
{
	fresh_resource();
	(my $statement = $how) =~ s/\bR\b/'$resource'/;
	$statement =~ s/\bNEW\b/$newer_token/;
	$older->query("BEGIN; SELECT zk_fence_check('$resource', $older_token); INSERT INTO plain VALUES ('$resource', 1, 'older')");
	$newer->query('BEGIN');
	$newer->send($statement);
	ok(waits($newer), "$how: waits");
	$older->query('COMMIT');
	my $answer = $newer->wait(10);
	if ($how =~ /\(SELECT/) { like($answer, qr/ERROR:  40001/, "$how: with a query in it that is not known to read nothing"); }
	else { unlike($answer, qr/ERROR/, "$how: in a statement of its own"); }
	$newer->query('ROLLBACK');
}

# REPEATABLE READ: a token equal to the mark first, and then the newer one; our own trace
# must not cover that of the older writer.
fresh_resource();
$newer->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM plain');
$older->query("BEGIN; SELECT zk_fence_check('$resource', $older_token); INSERT INTO plain VALUES ('$resource', 1, 'older'); COMMIT");
unlike($newer->query("SELECT zk_fence_check('$resource', $older_token)"), qr/ERROR/, 'the same token: passes');
like($newer->query("SELECT zk_fence_check('$resource', $newer_token)"), qr/ERROR:  40001/, 'then the newer one: 40001');
$newer->query('ROLLBACK');

# Somebody who looks at zk_fence with a row lock covers it as well.
fresh_resource();
my $admin = ZkTest::Session->new($node);
$newer->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM plain');
$older->query("BEGIN; SELECT zk_fence_check('$resource', $older_token); INSERT INTO plain VALUES ('$resource', 1, 'older'); COMMIT");
$admin->query("BEGIN; SELECT FROM zk_fence WHERE resource = '$resource' FOR SHARE");
$newer->send("SELECT zk_fence_check('$resource', $newer_token)");
waits($newer);
$admin->query('COMMIT');
like($newer->wait(10) // '', qr/ERROR:  40001/, 'behind FOR SHARE: 40001');
$newer->query('ROLLBACK');

$_->quit foreach $older, $newer, $observer, $admin, $holder;
$node->stop;
done_testing();
