# doc/security.md, line by line: what PUBLIC, a role with EXECUTE, a member of pg_monitor, the
# owner of a database and a client of ZooKeeper can do, and that it is no more than is written
# there. What has a test of its own is in the files that the document names.

use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;
use ZkTest;

my $source = dirname(__FILE__) . '/../..';
my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
$node->safe_psql('postgres', <<'END');
CREATE ROLE nobody LOGIN; CREATE ROLE worker LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE owner LOGIN;
CREATE DATABASE app OWNER owner;
END

my $grants = slurp_file("$source/README.md");
($grants) = $grants =~ /^```sql grants\n(.*?)^```$/ms or die 'no grants in README.md';
foreach my $database ('postgres', 'app')
{
	$node->safe_psql($database, 'CREATE EXTENSION zklock') if $database eq 'app';
	$node->safe_psql($database, $grants =~ s/TO batch/TO worker/r);
	$node->safe_psql($database, 'GRANT EXECUTE ON FUNCTION zk_fence_check(text, bigint), zk_fence_guard() TO writer');
	# trying is all that is stopped: what a role may make, it may make
	$node->safe_psql($database, 'GRANT CREATE, USAGE ON SCHEMA public TO worker, writer, nobody');
}

sub as
{
	my ($user, $sql, $database) = @_;
	my ($code, $out, $error) = $node->psql($database // 'postgres', $sql, extra_params => [ '-U', $user, '-v', 'VERBOSITY=verbose' ]);
	return $code == 0 ? $out : $error;
}
sub superusers { return $node->safe_psql('postgres', q{SELECT string_agg(rolname, ' ') FROM pg_roles WHERE rolsuper}); }
my $superusers = superusers();
my $denied = qr/42501/;

# ---------------------------------------------------------------------
# The paths by which something runs as somebody else

my %calls;
foreach my $file (glob "$source/src/*.c $source/src/*/*.c")
{
	my $text = slurp_file($file);
	$text =~ s{/\*.*?\*/}{}gs;
	$calls{$1}{$2}++ while $text =~ /\b(SPI_\w+|SetUserIdAndSecContext|OidFunctionCall\w+|DirectFunctionCall\w*|RangeVarGet\w+|makeRangeVar\w*|SetConfigOption|set_config_option|parse_analyze\w*|raw_parser|pg_plan_query)\s*\(()/g;
}
is(join(' ', grep { /^SPI_/ } sort keys %calls), '', 'no statement is parsed, no plan is kept');
my @switches = map { /SetUserIdAndSecContext\(([^;]*)\)/g } map { slurp_file($_) } glob "$source/src/*.c $source/src/*/*.c";
is(scalar @switches, 2, 'one place becomes somebody else: there, and back');
unlike(slurp_file("$source/sql/zklock.sql"), qr/SECURITY\s+DEFINER/i, 'no function is SECURITY DEFINER');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock' WHERE prosecdef OR prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')}), '0', 'in the catalog neither');

# ---------------------------------------------------------------------
# PUBLIC

my @functions = split /\n/, $node->safe_psql('postgres', q{SELECT format('%s(%s)', proname, (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ' ORDER BY o) FROM unnest(proargtypes) WITH ORDINALITY u(t, o))) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock' ORDER BY 1});
cmp_ok(scalar @functions, '>=', 21, 'the functions');
like(as('nobody', "SELECT $_"), $denied, "PUBLIC: $_") foreach grep { !/zk_fence_guard/ } @functions;
like(as('nobody', "SELECT * FROM $_"), $denied, "PUBLIC: $_") foreach qw(zk_locks zk_session zk_lock_stats zk_lock_blockers zk_fence);
like(as('nobody', 'CREATE TABLE mine (x int); CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard($$r$$)'), $denied, 'PUBLIC: makes no guard');
like(as('nobody', 'SHOW zklock.credentials_file'), $denied, 'PUBLIC: does not see where the credentials are');
like(as('nobody', 'SHOW zklock.hosts'), qr/127\.0\.0\.1/, 'PUBLIC: sees the addresses');
foreach my $setting (qw(commit_margin=0 max_locks_per_backend=0 max_locks_per_role=0))
{
	my ($name, $value) = split /=/, $setting;
	like(as('nobody', "SET zklock.$name = $value"), $denied, "PUBLIC: SET zklock.$name");
	like(as('nobody', "ALTER ROLE nobody SET zklock.$name = $value"), $denied, "PUBLIC: ALTER ROLE ... SET zklock.$name");
	like(as('owner', "ALTER DATABASE app SET zklock.$name = $value", 'app'), $denied, "owner of the database: ALTER DATABASE ... SET zklock.$name");
}
like(as('nobody', "SET zklock.$_ = 0"), qr/55P02|cannot be changed/, "PUBLIC: SET zklock.$_") foreach qw(max_locks reserved_locks new_directories_per_second);

# ---------------------------------------------------------------------
# A role with the README's grants

like(as('worker', $_), $denied, "worker: $_") foreach q{SELECT zk_fence_check('r', 1)}, q{SELECT zk_fence_reset('r')}, q{SELECT zk_lock_break('x')}, q{SELECT zk_stats_reset()}, q{SELECT * FROM zk_lock_queue('x')}, q{SELECT * FROM zk_locks}, q{UPDATE zk_fence SET token = 0};
my $holder = ZkTest::Session->new($node);
$holder->query(q{SELECT zk_lock_acquire('held')});
like(as('worker', q{SELECT zk_lock_release('held')}), qr/^f$/m, 'worker: releases nobody\'s lock');
is($holder->query(q{SELECT zk_lock_is_held('held')}), 't', 'which is held');
like(as('worker', q{SELECT zk_lock_acquire('of/somebody/else')}), qr/^\d+$/m, 'worker: takes any lock that is free');
like(as('worker', q{SELECT zk_fencing_token('held')}), qr/55000/, 'worker: learns no token of another');
like(as('worker', q{SELECT zk_lock_acquire('held', timeout => '0.5 s')}), qr/55P03.*is held by server "a", process \d+, database "postgres", user "[^"]+", application "zktest"/s, 'worker: is told who holds it');
unlike(as('worker', q{SELECT zk_lock_acquire('held', timeout => '0.5 s')}), qr/client|127\.0\.0\.1/, 'worker: and not from where');
foreach my $name ('.zklock/a', '../x', '/x', 'x/../../y', 'x/', '.', 'x//y', "x\ny", 'x/leases', 'x/_c_00000000-0000-0000-0000-000000000000-lock-0000000001')
{
	like(as('worker', "SELECT zk_lock_try_acquire(\$n\$$name\$n\$)"), qr/22023: invalid lock name/, 'worker: gets out of its own directories by no name: ' . $name =~ s/\n/ /r);
}
like(as('worker', q{SELECT zk_lock_try_acquire(repeat('x', 100000000))}), qr/22023/, 'worker: a name of 100 MB');
like(as('worker', q{SELECT zk_semaphore_acquire('x', -1)}), qr/22023/, 'worker: a negative number of leases');
like(as('worker', q{SELECT zk_semaphore_try_acquire('x', 2147483647) > 0}), qr/^t$/m, 'worker: the largest');
like(as('worker', q{CREATE FUNCTION f(text, bigint) RETURNS void LANGUAGE c AS 'zklock', 'zkl_fence_reset'}), $denied, 'worker: makes no function on the library');

# ---------------------------------------------------------------------
# A role that may present tokens, or make guards

my $token = $holder->query(q{SELECT zk_fencing_token('held')});
like(as('writer', q{SELECT zk_fence_check('held', 9223372036854775807)}), qr/22023: fencing token .* has never been issued/, 'writer: closes no resource for ever');
is(as('writer', "SELECT zk_fence_check('held', $token)"), '', 'writer: presents what was issued');
is(as('writer', "SELECT zk_fence_check('invented', $token)"), '', 'writer: invents a resource');
is($node->safe_psql('postgres', q{SELECT count(*) FROM zk_fence WHERE resource = 'invented'}), '1', 'which is a row');
$node->safe_psql('postgres', 'ALTER ROLE writer CONNECTION LIMIT 0');
like(as('writer', 'SELECT 1'), qr/too many connections for role "writer"/, 'writer: CONNECTION LIMIT bounds what it asks');
$node->safe_psql('postgres', 'ALTER ROLE writer CONNECTION LIMIT -1');
like(as('writer', $_), $denied, "writer: $_") foreach q{SELECT zk_fence_reset('held')}, q{DELETE FROM zk_fence}, q{ALTER TABLE zk_fence DISABLE TRIGGER ALL}, q{CREATE TRIGGER t BEFORE UPDATE ON zk_fence FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()}, q{TRUNCATE zk_fence}, q{BEGIN; LOCK TABLE zk_fence}, q{SELECT * FROM zk_fence};
# a guard presents what is in its own table's rows: the same right as zk_fence_check
is(as('writer', "CREATE TABLE inbox (token bigint); CREATE TRIGGER g BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('held', 'token'); INSERT INTO inbox VALUES ($token)"), '', 'writer: EXECUTE on zk_fence_guard is the right to present');
like(as('writer', 'INSERT INTO inbox VALUES (9223372036854775807)'), qr/22023/, 'writer: within the same limits');
like(as('nobody', 'SET session_replication_role = replica'), $denied, 'PUBLIC: does not switch guards off');
# who may write to a guarded table needs no right on any function
$node->safe_psql('postgres', q{CREATE TABLE ledger (x int); CREATE TRIGGER g BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('held'); GRANT INSERT ON ledger TO nobody});
like(as('nobody', 'INSERT INTO ledger VALUES (1)'), qr/ZK004/, 'and gets no further');

# Objects of the attacker in the way of every name that we look up.
my $session = do { local $ENV{PGUSER} = 'writer'; ZkTest::Session->new($node) };
$session->query(q{CREATE TEMP TABLE zk_fence (resource text PRIMARY KEY, token bigint); CREATE FUNCTION public.texteq2(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.texteq2); SET search_path = public, pg_catalog});
is($session->query("SELECT zk_fence_check('held', $token)"), '', 'writer: with a search_path of his own');
is($session->query('SELECT count(*) FROM pg_temp.zk_fence'), '0', 'his table is not used');
like($session->query(q{SELECT zk_fence_check('held', 1)}), qr/ZK002/, 'nor his operator');
$session->quit;
is(superusers(), $superusers, 'nobody has become superuser');

# ---------------------------------------------------------------------
# pg_monitor

like(as('watcher', $_), $denied, "pg_monitor: $_") foreach q{SELECT zk_lock_break('held')}, q{SELECT zk_stats_reset()}, q{SELECT zk_lock_acquire('x')}, q{SELECT * FROM zk_fence}, q{SELECT zk_fence_check('held', 1)};
like(as('watcher', q{SELECT * FROM zk_lock_queue('../zookeeper')}), qr/22023/, 'pg_monitor: looks into no other directory');

# ---------------------------------------------------------------------
# The owner of the database

is(as('owner', 'CREATE SCHEMA owners', 'app'), '', 'owner: has a schema of his own');
like(as('owner', 'DROP FUNCTION zk_fence_check(text, bigint)', 'app'), qr/2BP01/, 'owner: drops no single function');
like(as('owner', $_, 'app'), $denied, "owner: $_") foreach 'DROP EXTENSION zklock', 'ALTER EXTENSION zklock DROP TABLE zk_fence', 'ALTER EXTENSION zklock UPDATE', 'GRANT EXECUTE ON FUNCTION zk_lock_break(text, interval) TO owner', 'ALTER FUNCTION zk_lock_break(text, interval) SET SCHEMA owners', 'ALTER TABLE zk_fence RENAME TO x', 'CREATE OR REPLACE VIEW zk_locks AS SELECT 1', 'CREATE OR REPLACE FUNCTION zk_locks() RETURNS int LANGUAGE sql AS $$SELECT 1$$', 'CREATE RULE r AS ON UPDATE TO zk_fence DO INSTEAD NOTHING', 'COMMENT ON EXTENSION zklock IS $$x$$', 'CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION zk_fence_guard()';
# in a schema of his, he can drop it with the schema; in one of a superuser's he cannot
is(as('owner', 'DROP SCHEMA public CASCADE; CREATE SCHEMA public; SELECT count(*) FROM pg_extension WHERE extname = $$zklock$$', 'app'), '0', 'owner: drops his schema, and what is in it');
$node->safe_psql('app', 'CREATE SCHEMA zk; CREATE EXTENSION zklock SCHEMA zk');
like(as('owner', $_, 'app'), $denied, "owner: $_") foreach 'DROP SCHEMA zk CASCADE', 'ALTER SCHEMA zk RENAME TO x', 'CREATE TABLE zk.zk_fence2 (x int)';

# ---------------------------------------------------------------------
# A client of ZooKeeper

# what it says of itself is text for people, and no more
my $uuid = '00000000-0000-4000-8000-000000000000';
my $evil = '{"server":"x\\nALTER ROLE nobody SUPERUSER; --","pid":1,"user":"u\\u0000v","database":"\\u202eevil"}';
my $foreign = $zk->hold(lock_directory('foreign') . "/_c_$uuid-lock-", $evil);
my $waiter = ZkTest::Session->new($node);
$waiter->send(q{SELECT zk_lock_acquire('foreign', timeout => '20 s')});
ok(defined poll_until(sub { $node->safe_psql('postgres', q{SELECT count(*) FROM zk_lock_blockers WHERE name = 'foreign'}) eq '1' }, 10), 'a foreign client holds the lock');
my $command = $node->safe_psql('postgres', q{SELECT command FROM zk_lock_blockers WHERE name = 'foreign'});
like($command, qr/^SELECT pg_terminate_backend\(1\); -- on server x\?ALTER ROLE/, 'what it says stays behind the comment');
unlike($command, qr/[\x00-\x1f\x7f]/, 'on one line');
# it can take a lock away, which is noticed
$foreign->release;
like($waiter->wait(20), qr/^\d+$/, 'when it leaves, the next one holds');
$zk->delete(lock_directory('foreign') . '/' . (contenders($zk, 'foreign'))[0]);
ok(defined poll_until(sub { $waiter->query('SELECT 1') =~ /ZK001/ }, 10), 'a deleted node is a loss, and noticed');

$_->quit foreach $waiter, $holder;
$node->stop;
done_testing();
