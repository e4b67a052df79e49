# Marks are data: a token that was stale before pg_dump, drop and restore is stale after.
# And what surprises about it: a data-only restore fires the guards, and a publication
# FOR ALL TABLES carries zk_fence.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('restore');
$node->init(allows_streaming => 'logical');
$node->start;
my $dir = PostgreSQL::Test::Utils::tempdir_short();

# Exit code and error messages of psql.
sub try_sql
{
	my ($database, $sql) = @_;
	my ($code, undef, $error) = $node->psql($database, $sql, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $error;
}

foreach my $schema (qw(public fences))
{
	my $database = "from_$schema";
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, <<"END");
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION zklock SCHEMA $schema;
CREATE TABLE ledger (entry text);
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION $schema.zk_fence_guard('r');
CREATE TABLE inbox (entry text, fence_token bigint);
INSERT INTO inbox VALUES ('older', 5);
CREATE TRIGGER guard BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION $schema.zk_fence_guard('in', 'fence_token');
BEGIN;
SELECT $schema.zk_fence_check('r', 100);
INSERT INTO ledger VALUES ('first');
COMMIT;
INSERT INTO inbox VALUES ('newer', 7);
END
	my $stale = "BEGIN; SELECT $schema.zk_fence_check('r', 99); INSERT INTO ledger VALUES ('stale'); COMMIT";
	my $good = "BEGIN; SELECT $schema.zk_fence_check('r', 100); INSERT INTO ledger VALUES ('good'); COMMIT";
	my $marks = "SELECT * FROM $schema.zk_fence ORDER BY resource";
	like(try_sql($database, $stale), qr/ZK002/, "$schema: the token is stale before");
	my $before = $node->safe_psql($database, $marks);

	foreach my $format (qw(plain custom))
	{
		$node->command_ok([ 'pg_dump', '-F', $format, '-f', "$dir/$database.$format", '-d', $node->connstr($database) ],
			"$schema, $format: dumped");
		$node->safe_psql('postgres', "DROP DATABASE IF EXISTS restored");
		$node->safe_psql('postgres', 'CREATE DATABASE restored');
		if ($format eq 'plain')
		{
			$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', "$dir/$database.plain" ],
				"$schema, $format: restored");
		}
		else
		{
			$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), "$dir/$database.custom" ],
				"$schema, $format: restored");
		}
		is($node->safe_psql('restored', $marks), $before, "$schema, $format: the marks are the same");
		like(try_sql('restored', $stale), qr/ZK002: fencing token 99 for "r" is stale.*newest token is 100, presented by user/s,
			"$schema, $format: the token is stale after");
		is(try_sql('restored', $good), '', "$schema, $format: the newest one passes");
		like(try_sql('restored', q{INSERT INTO inbox VALUES ('stale', 6)}), qr/ZK002/, "$schema, $format: in a column too");
		is($node->safe_psql('restored', 'SELECT count(*) FROM ledger'), '2', "$schema, $format: nothing stale was written");
	}

	# The rows alone, into tables that are guarded already.
	my @data_only = ('pg_restore', '--data-only', '-t', 'ledger', '-t', 'inbox', '-d', $node->connstr('restored'));
	$node->command_checks_all([ @data_only, "$dir/$database.custom" ], 1, [],
		[qr/no fencing token for "r"/, qr/fencing token 5 for "in" is stale/], "$schema: a data-only restore fires the guards");
	$node->command_ok([ @data_only, '--disable-triggers', "$dir/$database.custom" ], "$schema: unless they are disabled");
	is($node->safe_psql('restored', 'SELECT (SELECT count(*) FROM ledger), (SELECT count(*) FROM inbox)'), '3|4',
		"$schema: and then the rows are there");
}

$node->safe_psql('from_public', 'CREATE PUBLICATION everything FOR ALL TABLES');
is($node->safe_psql('from_public', q{SELECT count(*) FROM pg_publication_tables WHERE tablename = 'zk_fence'}), '1',
	'a publication FOR ALL TABLES carries zk_fence');

# An application that gets every new table by default does not get this one.
$node->safe_psql('postgres', q{CREATE DATABASE defaults; CREATE ROLE "an app"});
$node->safe_psql('defaults', q{ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "an app"; CREATE EXTENSION zklock; CREATE TABLE other ()});
is($node->safe_psql('defaults', <<'END'), 'f|t', 'default privileges do not reach zk_fence');
SELECT has_table_privilege('an app', 'zk_fence', 'SELECT, INSERT, UPDATE, DELETE'), has_table_privilege('an app', 'other', 'INSERT')
END

done_testing();
