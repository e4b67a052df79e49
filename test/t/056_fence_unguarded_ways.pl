# Each way to write to a guarded table, and which guard sees it: the table "Which statements"
# in doc/fencing.md, cell by cell. "yes": without a token the write is refused; "no": it goes
# through, which is as documented as the rest.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use ZkTest;

my $node = PostgreSQL::Test::Cluster->new('ways');
$node->init(allows_streaming => 'logical');
$node->append_conf('postgresql.conf', "log_error_verbosity = verbose\nmax_prepared_transactions = 5");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION zklock; CREATE EXTENSION postgres_fdw; CREATE ROLE plain');
my $session = ZkTest::Session->new($node);
$session->query('SET client_min_messages = warning');

my $on_statement = "FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r')";
my $on_row = "FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('r')";

# Make the tables, run the statement, and say whether the guard saw it.
sub seen
{
	my ($setup, $guard, $statement) = @_;
	my $answer = $session->query("BEGIN; $setup; $guard; SAVEPOINT s");
	die "$setup; $guard: $answer" if $answer =~ /ERROR/;
	$answer = $session->query($statement);
	$session->query('ROLLBACK');
	return 'yes' if $answer =~ /ERROR:  ZK004: no fencing token for "r"/;
	return "other: $answer" if $answer =~ /ERROR/;
	return 'no';
}

my $t = 'CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t VALUES (1, 1)';
my $parted = 'CREATE TABLE t (a int, b int) PARTITION BY LIST (a); CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t_2 PARTITION OF t FOR VALUES IN (2); INSERT INTO t VALUES (1, 1)';
my $family = 'CREATE TABLE t (a int, b int); CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (1, 1)';
my $events = 'BEFORE INSERT OR UPDATE OR DELETE ON t';

# what, tables, statement, seen FOR EACH STATEMENT, seen FOR EACH ROW
my @ways = (
	[ 'INSERT', $t, 'INSERT INTO t VALUES (2)', 'yes', 'yes' ],
	[ 'UPDATE', $t, 'UPDATE t SET b = 2', 'yes', 'yes' ],
	[ 'DELETE', $t, 'DELETE FROM t', 'yes', 'yes' ],
	[ 'no row', $t, 'DELETE FROM t WHERE false', 'yes', 'no' ],
	[ 'MERGE, INSERT', $t, 'MERGE INTO t USING (VALUES (2)) v (x) ON a = x WHEN NOT MATCHED THEN INSERT VALUES (x)', 'yes', 'yes' ],
	[ 'MERGE, UPDATE', $t, 'MERGE INTO t USING (VALUES (1)) v (x) ON a = x WHEN MATCHED THEN UPDATE SET b = 2', 'yes', 'yes' ],
	[ 'MERGE, DELETE', $t, 'MERGE INTO t USING (VALUES (1)) v (x) ON a = x WHEN MATCHED THEN DELETE', 'yes', 'yes' ],
	[ 'COPY', $t, "COPY t (a) FROM PROGRAM 'echo 2'", 'yes', 'yes' ],
	[ 'ON CONFLICT DO UPDATE', $t, 'INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 3', 'yes', 'yes' ],
	[ 'ON CONFLICT DO NOTHING', $t, 'INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING', 'yes', 'yes' ],
	[ 'in WITH', $t, 'WITH w AS (INSERT INTO t VALUES (2) RETURNING a) SELECT count(*) FROM w', 'yes', 'yes' ],
	[ 'CREATE RULE on another table', "$t; CREATE TABLE u (a int); CREATE RULE r AS ON INSERT TO u DO INSTEAD INSERT INTO t VALUES (new.a)", 'INSERT INTO u VALUES (2)', 'yes', 'yes' ],
	[ 'SELECT FOR UPDATE', $t, 'SELECT count(*) FROM (SELECT FROM t FOR UPDATE) x', 'no', 'no' ],
	[ 'partitions, by the parent', $parted, 'INSERT INTO t VALUES (1, 2)', 'yes', 'yes' ],
	[ 'partitions, by the partition', $parted, 'INSERT INTO t_1 VALUES (1, 2)', 'no', 'yes' ],
	[ 'partitions, a row moves', $parted, 'UPDATE t SET a = 2', 'yes', 'yes' ],
	[ 'partitions, ATTACH', "$parted; CREATE TABLE t_3 (a int, b int)", 'ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES IN (3)', 'no', 'no' ],
	[ 'partitions, DETACH', $parted, 'ALTER TABLE t DETACH PARTITION t_1', 'no', 'no' ],
	[ 'partitions, DROP', $parted, 'DROP TABLE t_1', 'no', 'no' ],
	[ 'inheritance, the parent\'s own row', "$family; INSERT INTO t VALUES (2, 2)", 'UPDATE t SET b = 2', 'yes', 'yes' ],
	[ 'inheritance, a child\'s row by the parent', $family, 'UPDATE t SET b = 2', 'yes', 'no' ],
	[ 'inheritance, a child\'s row by the child', $family, 'UPDATE child SET b = 2', 'no', 'no' ],
	[ 'inheritance, INSERT into the child', $family, 'INSERT INTO child VALUES (2, 2)', 'no', 'no' ],
	[ 'foreign key, CASCADE', "CREATE TABLE p (a int PRIMARY KEY); CREATE TABLE t (a int REFERENCES p ON DELETE CASCADE); INSERT INTO p VALUES (1); INSERT INTO t VALUES (1)", 'DELETE FROM p', 'yes', 'yes' ],
	[ 'view that PostgreSQL updates by itself', "$t; CREATE VIEW v AS SELECT * FROM t", 'INSERT INTO v VALUES (2)', 'yes', 'yes' ],
	[ 'view with an INSTEAD OF trigger', "$t; CREATE VIEW v AS SELECT DISTINCT * FROM t; CREATE FUNCTION into_t() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO t VALUES (new.a); RETURN new; END \$\$; CREATE TRIGGER i INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION into_t()", 'INSERT INTO v VALUES (2)', 'yes', 'yes' ],
	[ 'session_replication_role = replica', "$t; SET LOCAL session_replication_role = replica", 'INSERT INTO t VALUES (2)', 'no', 'no' ],
	[ 'DISABLE TRIGGER', $t, 'ALTER TABLE t DISABLE TRIGGER guard; INSERT INTO t VALUES (2)', 'no', 'no' ],
	[ 'ALTER TABLE that writes the table anew', $t, 'ALTER TABLE t ALTER b TYPE bigint USING 7', 'no', 'no' ],
	[ 'DROP and rename', "$t; CREATE TABLE u (LIKE t)", 'DROP TABLE t; ALTER TABLE u RENAME TO t; INSERT INTO t VALUES (2)', 'no', 'no' ],
);

foreach my $way (@ways)
{
	my ($what, $setup, $statement, $by_statement, $by_row) = @$way;
	is(seen($setup, "CREATE TRIGGER guard $events $on_statement", $statement), $by_statement, "$what: FOR EACH STATEMENT $by_statement");
	is(seen($setup, "CREATE TRIGGER guard $events $on_row", $statement), $by_row, "$what: FOR EACH ROW $by_row");
}

# TRUNCATE has triggers of its own, for statements.
my $truncate = "CREATE TRIGGER guard BEFORE TRUNCATE ON t $on_statement";
is(seen($t, $truncate, 'TRUNCATE t'), 'yes', 'TRUNCATE');
is(seen($t, "CREATE TRIGGER guard $events $on_statement", 'TRUNCATE t'), 'no', 'TRUNCATE has to be named in the guard');
like($session->query("BEGIN; $t; CREATE TRIGGER guard BEFORE TRUNCATE ON t $on_row"), qr/TRUNCATE FOR EACH ROW triggers are not supported/, 'TRUNCATE: none FOR EACH ROW');
$session->query('ROLLBACK');
is(seen("$t; CREATE TABLE u (a int REFERENCES t)", $truncate, 'TRUNCATE t CASCADE'), 'yes', 'TRUNCATE CASCADE');
is(seen("$t; CREATE TABLE p (a int PRIMARY KEY); ALTER TABLE t ADD FOREIGN KEY (b) REFERENCES p NOT VALID", $truncate, 'TRUNCATE p CASCADE'), 'yes', 'TRUNCATE CASCADE that reaches it');
is(seen($parted, $truncate, 'TRUNCATE t'), 'yes', 'TRUNCATE of a partitioned table');
is(seen($parted, $truncate, 'TRUNCATE t_1'), 'no', 'TRUNCATE of a partition');

# On a view: what was set up at all is refused, or never fires.
is(seen("$t; CREATE VIEW v AS SELECT * FROM t", "CREATE TRIGGER guard BEFORE INSERT ON v $on_statement", 'INSERT INTO v VALUES (2)'), 'no', 'a guard on an updatable view never fires');
like($session->query("BEGIN; $t; CREATE VIEW v AS SELECT DISTINCT * FROM t; CREATE TRIGGER guard INSTEAD OF INSERT ON v $on_row; INSERT INTO v VALUES (2)"), qr/42P17: trigger "guard" cannot guard view "v"/, 'a guard INSTEAD OF is refused');
$session->query('ROLLBACK');

# On a foreign table the guard fires here, where others do not pass.
my ($port, $host) = ($node->port, $node->host);
$session->query("CREATE TABLE remote (a int); CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres'); CREATE USER MAPPING FOR CURRENT_USER SERVER s; CREATE FOREIGN TABLE f (a int) SERVER s OPTIONS (table_name 'remote'); CREATE TRIGGER guard BEFORE INSERT ON f $on_row");
like($session->query('INSERT INTO f VALUES (1)'), qr/ZK004/, 'a guard on a foreign table fires where the foreign table is');
is($session->query('INSERT INTO remote VALUES (1)'), '', 'and not where the table is');

# Replica triggers fire when they are asked to.
foreach my $enable ('ALWAYS', 'REPLICA')
{
	is(seen("$t", "CREATE TRIGGER guard $events $on_row; ALTER TABLE t ENABLE $enable TRIGGER guard; SET LOCAL session_replication_role = replica", 'INSERT INTO t VALUES (2)'),
		'yes', "ENABLE $enable: fires for replicas");
}

# Deferred: the token is checked at COMMIT.
$session->query("BEGIN; CREATE TABLE d (a int); CREATE CONSTRAINT TRIGGER guard AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED $on_row; INSERT INTO d VALUES (1)");
like($session->query('COMMIT'), qr/ZK004/, 'a deferred guard refuses the commit');

# ---------------------------------------------------------------------
# The stored token, presented by somebody who has none

$session->query(<<'END');
CREATE TABLE inbox (id int PRIMARY KEY, body text, fence_token bigint);
INSERT INTO inbox VALUES (1, 'by the holder', 20);
SELECT zk_fence_check('in', 20);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('in', 'fence_token');
END
my %whole_row = (
	'an UPDATE of the whole row' => "UPDATE inbox SET id = id, body = 'mapper', fence_token = fence_token WHERE id = 1",
	'a row that is copied' => "INSERT INTO inbox SELECT id + 100, body, fence_token FROM inbox WHERE id = 1",
	'ON CONFLICT with the stored token' => "INSERT INTO inbox SELECT * FROM inbox WHERE id = 1 ON CONFLICT (id) DO UPDATE SET body = 'mapper', fence_token = inbox.fence_token",
	'MERGE with the stored token' => "MERGE INTO inbox i USING inbox j ON i.id = j.id AND j.id = 1 WHEN MATCHED THEN UPDATE SET body = 'mapper', fence_token = j.fence_token",
);
is($session->query("BEGIN; $whole_row{$_}; ROLLBACK"), '', "unprotected: $_") foreach sort keys %whole_row;
$session->query(q{DROP TRIGGER guard ON inbox; CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('in', 'fence_token', 'checked')});
foreach my $what (sort keys %whole_row)
{
	like($session->query("BEGIN; $whole_row{$what}"), qr/ERROR:  ZK004: no fencing token for "in"\n.*Column "fence_token" of table "inbox" has one, but this backend does not hold the lock, and no token was presented/s, "checked: $what");
	$session->query('ROLLBACK');
	is($session->query("BEGIN; SELECT zk_fence_check('in', 20); $whole_row{$what}; ROLLBACK"), '', "checked: $what, by who presents it");
}
like($session->query("BEGIN; SELECT zk_fence_check('in', 21); $whole_row{'an UPDATE of the whole row'}"), qr/ERROR:  ZK004: .*\n.*has 20, but this transaction presents 21/, 'checked: it must be the same token');
$session->query('ROLLBACK');
like($session->query("INSERT INTO inbox VALUES (2, 'x', 19)"), qr/ERROR:  ZK004/, 'checked: a stale one is not even looked at');
like($session->query("BEGIN; SELECT zk_fence_check('in', 19)"), qr/ERROR:  ZK002/, 'checked: nor presented');
$session->query('ROLLBACK');

# A subscription reports every column as set.
my $publisher = PostgreSQL::Test::Cluster->new('publisher');
$publisher->init(allows_streaming => 'logical');
$publisher->start;
$publisher->safe_psql('postgres', q{CREATE TABLE inbox (id int PRIMARY KEY, body text, fence_token bigint); INSERT INTO inbox VALUES (1, 'by the holder', 20); CREATE PUBLICATION p FOR TABLE inbox});
(my $connection = $publisher->connstr('postgres')) =~ s/'//g;
sub subscribe
{
	my ($arguments) = @_;
	$session->query("DROP TRIGGER guard ON inbox; CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard($arguments); ALTER TABLE inbox ENABLE ALWAYS TRIGGER guard");
	$session->query("CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p WITH (copy_data = false)");
	return;
}
subscribe(q{'in', 'fence_token'});
$publisher->safe_psql('postgres', q{UPDATE inbox SET body = 'by a stale writer' WHERE id = 1});
$publisher->wait_for_catchup('s');
is($session->query('SELECT body FROM inbox WHERE id = 1'), 'by a stale writer', 'unprotected: a replicated UPDATE with the stored token');
$session->query('ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s');
$publisher->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
$publisher->safe_psql('postgres', q{SELECT pg_drop_replication_slot('s')});
my $offset = -s $node->logfile;
subscribe(q{'in', 'fence_token', 'checked'});
$publisher->safe_psql('postgres', q{UPDATE inbox SET body = 'by another one' WHERE id = 1});
ok($node->wait_for_log(qr/ZK004: no fencing token for "in"/, $offset), 'checked: a subscription presents nothing');
is($session->query('SELECT body FROM inbox WHERE id = 1'), 'by a stale writer', 'and so writes nothing');
$session->query('ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s');

$session->quit;
$node->stop;
$publisher->stop;
done_testing();
