# Whoever owns a database renames schemas and puts a zk_fence of his own where the extension's
# was; whoever owns the table changes it as he likes. Nobody's code runs with more rights than
# he has, and whatever was done to the table, the answer is an ordinary error. And ZK002 tells
# nobody what pg_stat_activity hides from him.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use Test::More;
use ZkTest;

my $node = PostgreSQL::Test::Cluster->new('replaced');
$node->init;
$node->append_conf('postgresql.conf', "log_error_verbosity = verbose\nlisten_addresses = '127.0.0.1'");
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE owner LOGIN NOSUPERUSER; CREATE DATABASE app OWNER owner; CREATE ROLE other LOGIN');
my $grant = 'GRANT EXECUTE ON FUNCTION zk_fence_check(text, bigint), zk_fence_guard() TO owner, other';
$node->safe_psql('app', "CREATE EXTENSION zklock; $grant");

sub superuser { return $node->safe_psql('app', $_[0]); }
sub is_superuser { return $node->safe_psql('postgres', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'}); }

my $evil = q{CREATE FUNCTION public.evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN EXECUTE 'ALTER ROLE owner SUPERUSER'; END IF; RETURN NEW; END $$};

# A connection that has presented already, and one that has not.
my $session = ZkTest::Session->new($node, database => 'app', user => 'owner');
is($session->query(q{SELECT zk_fence_check('x', 1)}), '', 'the owner of the database presents a token');
is($session->query(q{ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public; CREATE TABLE public.zk_fence (resource text PRIMARY KEY, token bigint, advanced_at timestamptz, presented_by text, username text, client text, lower_xid xid8)}), '', 'he renames the schema and makes a table of that name');
$session->query("$evil; CREATE TRIGGER t BEFORE INSERT OR UPDATE ON public.zk_fence FOR EACH ROW EXECUTE FUNCTION public.evil()");
is($session->query(q{SELECT old.zk_fence_check('y', 2)}), '', 'the functions find their own table all the same');
is($session->query('SELECT count(*) FROM public.zk_fence'), '0', 'and not his');
is(superuser('SELECT string_agg(resource, $$ $$ ORDER BY resource) FROM old.zk_fence'), 'x y', 'where the marks are');
is($node->psql('app', q{SELECT old.zk_fence_check('z', 3)}), 0, 'a superuser presents one');
is(is_superuser(), 'f', 'the owner is no superuser by it');

# His own table in the schema of the functions, as far as he can get: after ALTER TABLE by a
# superuser who did not think of it.
superuser('ALTER TABLE old.zk_fence RENAME TO moved');
$session->query("CREATE TABLE old.zk_fence (LIKE public.zk_fence INCLUDING ALL); CREATE TRIGGER t BEFORE INSERT OR UPDATE ON old.zk_fence FOR EACH ROW EXECUTE FUNCTION public.evil()");
like($session->query(q{SELECT old.zk_fence_check('y', 3)}), qr/ERROR:  42P01: table zk_fence is missing\n.*is not the extension's/, 'a table that is not the extension\'s is not taken');
like(($node->psql('app', q{SELECT old.zk_fence_check('y', 3)}))[2], qr/table zk_fence is missing/, 'nor for a superuser');
is(is_superuser(), 'f', 'whose rights it does not get');
$session->query('DROP TABLE old.zk_fence');
like($session->query(q{SELECT old.zk_fence_check('y', 3)}), qr/ERROR:  42P01: table zk_fence is missing/, 'none at all');
superuser('ALTER TABLE old.moved RENAME TO zk_fence');
is($session->query(q{SELECT old.zk_fence_check('y', 3)}), '', 'and back');
$session->query('DROP SCHEMA public CASCADE; ALTER SCHEMA old RENAME TO public');
is($session->query(q{SELECT zk_fence_check('y', 3)}), '', 'renamed back, in the same connection');

# ---------------------------------------------------------------------
# The table belongs to somebody else, who does as he likes with it

superuser('ALTER TABLE zk_fence OWNER TO owner; CREATE TABLE ledger (x int); CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard($$y$$)');
$session->query("$evil; CREATE TRIGGER t BEFORE INSERT OR UPDATE ON zk_fence FOR EACH ROW EXECUTE FUNCTION evil(); CREATE TRIGGER t2 AFTER INSERT OR UPDATE ON zk_fence FOR EACH STATEMENT EXECUTE FUNCTION evil()");
$session->query(q{CREATE TABLE public.runs (who name);
CREATE FUNCTION evil_deed() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.runs VALUES (current_user); IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN EXECUTE 'ALTER ROLE owner SUPERUSER'; END IF; END $$;
CREATE FUNCTION evil_check(bigint) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM public.evil_deed(); RETURN true; END $$});
$session->query('CREATE VIEW nothing AS SELECT 1; CREATE RULE r AS ON INSERT TO zk_fence DO ALSO SELECT zk_fence_check($$rule$$, 1)');
$session->query('ALTER TABLE zk_fence ADD CONSTRAINT evil CHECK (evil_check(token)); CREATE INDEX evil ON zk_fence (evil_check(token)); CREATE POLICY p ON zk_fence USING (false); ALTER TABLE zk_fence ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; ALTER TABLE zk_fence ADD COLUMN more text');
is(superuser(q{SELECT zk_fence_check('y', 4); SELECT zk_fence_check('new', 4); SELECT token FROM zk_fence WHERE resource = 'y'}), "\n\n4", 'triggers, rules, policies, checks, indexes and columns of the owner: a superuser presents a token');
is(is_superuser(), 'f', 'and nothing of them runs with his rights');
is(superuser(q{SELECT count(*) FROM zk_fence}), '4', 'the marks are there');
# a check that uses what a function may not use that is run for somebody else
is(superuser('SELECT string_agg(DISTINCT who::text, $$ $$) FROM runs'), 'owner', 'but with his own');
$session->query(q{CREATE OR REPLACE FUNCTION evil_deed() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE trace (x text); END $$});
like(($node->psql('app', q{SELECT zk_fence_check('y', 5)}))[2], qr/cannot create temporary table within security-restricted operation/, 'what runs is restricted');
$session->query('DROP INDEX evil; ALTER TABLE zk_fence DROP CONSTRAINT evil; DROP TRIGGER t ON zk_fence; DROP TRIGGER t2 ON zk_fence; DROP RULE r ON zk_fence; ALTER TABLE zk_fence DROP COLUMN more');

my $other = ZkTest::Session->new($node, database => 'app', user => 'other');
sub present { my ($n) = @_; return $other->query("SELECT zk_fence_check('y', $n)"); }
is(present(5), '', 'a dropped column is no harm');
is(superuser('SELECT relname FROM pg_class WHERE relname = $$zk_fence$$'), 'zk_fence', 'the table is there');
my @changes = (
	[ 'ALTER TABLE zk_fence RENAME token TO tokens', 'ALTER TABLE zk_fence RENAME tokens TO token', qr/55000: table zk_fence is not as the extension zklock made it\n.*column "token"/ ],
	[ 'ALTER TABLE zk_fence ALTER token TYPE numeric', 'ALTER TABLE zk_fence ALTER token TYPE bigint', qr/55000: .*\n.*column "token"/ ],
	[ 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_pkey', 'ALTER TABLE zk_fence ADD PRIMARY KEY (resource)', qr/55000: .*\n.*primary key/ ],
	[ 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_pkey, ADD PRIMARY KEY (token, resource)', 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_pkey, ADD PRIMARY KEY (resource)', qr/55000: .*\n.*primary key/ ],
	[ 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_pkey, ADD PRIMARY KEY (resource) DEFERRABLE', 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_pkey, ADD PRIMARY KEY (resource)', qr/55000: .*\n.*primary key/ ],
	[ 'ALTER TABLE zk_fence ALTER resource TYPE text COLLATE "POSIX"', 'ALTER TABLE zk_fence ALTER resource TYPE text COLLATE "C"', qr/55000: .*\n.*collation "C"/ ],
	[ 'ALTER TABLE zk_fence ADD more text GENERATED ALWAYS AS (resource) STORED', 'ALTER TABLE zk_fence DROP more', qr/55000: .*\n.*generated column/ ],
	[ 'ALTER TABLE zk_fence ADD more text NOT NULL DEFAULT $$x$$; ALTER TABLE zk_fence ALTER more DROP DEFAULT; DELETE FROM zk_fence', 'ALTER TABLE zk_fence DROP more', qr/23502: null value in column "more"/ ],
	[ 'ALTER TABLE zk_fence ADD CHECK (token < 0) NOT VALID', 'ALTER TABLE zk_fence DROP CONSTRAINT zk_fence_token_check1', qr/23514: / ],
	[ 'DELETE FROM zk_fence; CREATE UNIQUE INDEX u ON zk_fence ((1)); INSERT INTO zk_fence VALUES ($$z$$, 1, now(), $$x$$)', 'DROP INDEX u; DELETE FROM zk_fence', qr/23505: / ],
	[ 'ALTER TABLE zk_fence ALTER token DROP NOT NULL, ALTER presented_by DROP NOT NULL; DELETE FROM zk_fence; INSERT INTO zk_fence (resource, advanced_at) VALUES ($$y$$, now())', 'DELETE FROM zk_fence; ALTER TABLE zk_fence ALTER token SET NOT NULL, ALTER presented_by SET NOT NULL', undef ],
	[ 'SELECT 1; ALTER TABLE zk_fence SET UNLOGGED', 'ALTER TABLE zk_fence SET LOGGED', undef ],
);
my $n = 10;
$node->safe_psql('app', 'ALTER TABLE zk_fence DISABLE ROW LEVEL SECURITY');
foreach my $change (@changes)
{
	my ($do, $undo, $error) = @$change;
	(my $what = $do) =~ s/ALTER TABLE zk_fence //g;
	my $done = $session->query("SET client_min_messages = warning; $do");
	unlike($done, qr/ERROR/, "the owner of the table: $what");
	# a row trigger, the function, and both again
	foreach my $try (1 .. 2)
	{
		my $answer = present(++$n);
		if (defined $error) { like($answer, qr/ERROR:  $error/, "$what: an ordinary error"); }
		else { is($answer, '', "$what: no harm"); }
	}
	unlike($session->query($undo), qr/ERROR/, 'undone');
	is(present(++$n), '', 'it works again');
}
superuser('ALTER TABLE zk_fence OWNER TO CURRENT_USER');

# A function of somebody's making on the library: only a superuser can make one.
like($session->query(q{CREATE FUNCTION mine(text, bigint) RETURNS void LANGUAGE c AS 'zklock', 'zkl_fence_check'}), qr/42501: permission denied for language c/, 'nobody else makes functions on the library');
superuser(q{CREATE FUNCTION mine(text, bigint) RETURNS void LANGUAGE c AS 'zklock', 'zkl_fence_check'});
like(($node->psql('app', q{SELECT mine('y', 100)}))[2], qr/function mine\(text,bigint\) does not belong to an extension/, 'and one that is not the extension\'s has no table');

# ---------------------------------------------------------------------
# What ZK002 tells

my ($host, $port) = ('127.0.0.1', $node->port);
$node->safe_psql('postgres', 'CREATE ROLE monitor LOGIN IN ROLE pg_read_all_stats');
superuser('GRANT EXECUTE ON FUNCTION zk_fence_check(text, bigint) TO monitor');
sub by_tcp
{
	my ($user, $sql) = @_;
	my (undef, undef, $error) = $node->psql('app', $sql, connstr => "host=$host port=$port dbname=app user=$user");
	return $error;
}
sub as { return ($node->psql('app', $_[1], extra_params => [ '-U', $_[0] ]))[2]; }
is(by_tcp('owner', q{SELECT zk_fence_check('told', 50)}), '', 'presented from an address');
like(as('other', q{SELECT zk_fence_check('told', 49)}), qr/newest token is 50, presented by user "owner", application "[^"]*", process \d+\.$/m, 'another user is not told the address');
is($node->safe_psql('app', q{SELECT client_addr IS NULL FROM pg_stat_activity WHERE usename = 'owner' LIMIT 1}, extra_params => [ '-U', 'other' ]), 't', 'which pg_stat_activity hides as well');
like(as('owner', q{SELECT zk_fence_check('told', 49)}), qr/process \d+, client 127\.0\.0\.1\.$/m, 'the user himself is');
like(as('monitor', q{SELECT zk_fence_check('told', 49)}), qr/process \d+, client 127\.0\.0\.1\.$/m, 'and pg_read_all_stats');
$_->quit foreach $session, $other;
$node->safe_psql('app', q{DROP OWNED BY owner});
$node->safe_psql('postgres', q{ALTER DATABASE app OWNER TO CURRENT_USER; DROP ROLE owner});
like(as('other', q{SELECT zk_fence_check('told', 49)}), qr/presented by user "owner", application "[^"]*", process \d+\.$/m, 'nor when that user is gone');

$node->stop;
done_testing();
