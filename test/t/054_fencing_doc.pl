# The examples of doc/fencing.md, as they stand there: one server holds the locks, another
# has the guarded tables. Each is run by a holder, and then as a stale writer would.

use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;
use ZkTest;

# name => text of all examples; each must be used below
my $doc = slurp_file(dirname(__FILE__) . '/../../doc/fencing.md');
my (%example, %used);
$example{$1} = $2 while $doc =~ /^```\w+ ([\w-]+)\n(.*?)^```$/msg;
my $blocks = () = $doc =~ /^```\w/mg;
is(scalar keys %example, $blocks, 'every example has a name of its own');

my $zk = ZkEnsemble->new(tick => 500)->start;
my $jobs = zk_server('jobs', $zk);
my $accounts = PostgreSQL::Test::Cluster->new('accounts');
$accounts->init(allows_streaming => 'logical');
$accounts->start;
$accounts->safe_psql('postgres', 'CREATE ROLE billing LOGIN');

# The example with this rig's servers in place of the named ones.
sub example
{
	my ($name) = @_;
	my $text = $example{$name} // die "no example $name";
	my ($host, $port) = ($accounts->host, $accounts->port);
	$used{$name} = 1;
	$text =~ s/host=ledger\.example dbname=accounts/host=$host port=$port dbname=postgres/g;
	$text =~ s/host 'ledger\.example', dbname 'accounts'/host '$host', port '$port', dbname 'postgres'/g;
	$text =~ s/host=jobs\.example dbname=jobs/'host=' . $jobs->host . ' port=' . $jobs->port . ' dbname=postgres'/ge;
	return $text;
}
sub entries { return $accounts->safe_psql('postgres', "SELECT count(*) FROM $_[0] WHERE entry = '$_[1]'"); }

$accounts->safe_psql('postgres', example('guarded-table'));
$accounts->safe_psql('postgres', example('guarded-column'));
$accounts->safe_psql('postgres', example('timeouts'));
like($accounts->safe_psql('postgres', q{SELECT setconfig FROM pg_db_role_setting}), qr/idle_in_transaction_session_timeout=60s/,
	'the timeouts are set');
isnt($accounts->psql('postgres', q{INSERT INTO ledger VALUES ('nobody')}), 0, 'without a token nobody writes');

my $holder = ZkTest::Session->new($jobs);

# In the same database.
$jobs->safe_psql('postgres', 'CREATE ROLE billing; ' . example('guarded-table'));
unlike($holder->query(example('same-database')), qr/ERROR/, 'the holder writes where the lock is');
is($holder->query('SELECT count(*) FROM ledger'), 1, 'and its row is there');
$holder->query(q{SELECT zk_lock_acquire('billing/nightly')});
is($holder->query(example('present-first')), '', 'presented first, then written');
is($holder->query(q{SELECT count(*) FROM ledger WHERE entry = 'entry 1'}), 1, 'and the row is there');
$holder->query(q{SELECT zk_lock_release('billing/nightly')});
like($holder->query(q{INSERT INTO ledger VALUES ('late')}), qr/ZK004/, 'after the release it cannot');
like($holder->query(q{SELECT zk_fence_check('billing/nightly', 1)}), qr/ZK002/, 'and an old token is stale');

# With a column that is not enough by itself.
my $before = $jobs->safe_psql('postgres', q{SELECT token FROM zk_fence WHERE resource = 'billing/nightly'});
$holder->query(example('checked-column'));
like($holder->query("INSERT INTO strict_inbox VALUES ('repeated', $before)"), qr/ZK004/, 'a token that is only repeated is none');
is($holder->query("BEGIN; SELECT zk_fence_check('billing/nightly', $before); INSERT INTO strict_inbox VALUES ('presented', $before); COMMIT"), '', 'a presented one is');

# What inherits, and is not guarded.
is($holder->query(example('unguarded')), '', 'nothing is unguarded');
$holder->query('CREATE TABLE heir () INHERITS (ledger); CREATE TABLE guarded_heir () INHERITS (ledger)');
$holder->query(q{CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded_heir FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('billing/nightly')});
is($holder->query(example('unguarded')), 'heir|ledger|guard', 'a child without a guard is found');
$holder->query('SET client_min_messages = warning; DROP TABLE heir, guarded_heir');

# dblink; then with the token of a holder whose time is over.
$holder->query('SET client_min_messages = warning; CREATE EXTENSION dblink');
my $old = $holder->query(q{SELECT zk_lock_acquire('billing/nightly')});
$holder->query(q{SELECT zk_lock_release('billing/nightly')});
unlike($holder->query(example('dblink')), qr/ERROR/, 'the holder writes through dblink');
is(entries('ledger', 'through dblink'), 1, 'and its row is there');
(my $stale = example('dblink')) =~ s/zk_fencing_token\('billing\/nightly'\)/$old/;
like($holder->query($stale), qr/ERROR:  ZK002: fencing token $old for "billing\/nightly" is stale.*newest token is \d+, presented by user "billing"/s,
	'a stale token through dblink is refused');
$holder->query(q{SELECT dblink_disconnect('ledger')}) if $holder->query('SELECT dblink_get_connections()') ne '';
is(entries('ledger', 'through dblink'), 1, 'and nothing is written');
$holder->query('SELECT zk_lock_release_all()');

# postgres_fdw.
$holder->query(example('foreign-table'));
$old = $holder->query(q{SELECT zk_lock_acquire('billing/nightly')});
$holder->query(q{SELECT zk_lock_release('billing/nightly')});
unlike($holder->query(example('postgres-fdw')), qr/ERROR/, 'the holder writes through postgres_fdw');
is(entries('inbox', 'through postgres_fdw'), 1, 'and its row is there');
($stale = example('postgres-fdw')) =~ s/zk_fencing_token\('billing\/nightly'\)/$old/;
like($holder->query($stale), qr/ERROR:  ZK002/, 'a stale token through postgres_fdw is refused');
is(entries('inbox', 'through postgres_fdw'), 1, 'and nothing is written');
$holder->query('SELECT zk_lock_release_all()');

# Python. It stops before it writes; meanwhile its lock is taken away and another writes.
my $python = (grep { system("$_ -c 'import psycopg2' 2>/dev/null") == 0 } qw(/usr/bin/python3 python3))[0];
my $program = example('two-connections');
SKIP:
{
	skip 'no Python with psycopg2 (package python3-psycopg2)', 6 unless defined $python;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	append_to_file("$dir/two.py", $program);
	is(system($python, "$dir/two.py"), 0, 'the application writes with two connections');
	is(entries('ledger', 'from Python'), 1, 'and its row is there');

	(my $paused = $program) =~ s/^try:/print("locked", flush=True)\ninput()\ntry:/m or die 'no try in the example';
	append_to_file("$dir/paused.py", $paused);
	use IPC::Open3;
	my $pid = open3(my $in, my $out, undef, $python, "$dir/paused.py");
	like(scalar <$out>, qr/^locked/, 'the application holds the lock');
	$zk->delete(lock_directory('billing/nightly') . '/' . (contenders($zk, 'billing/nightly'))[0]);
	$holder->query(example('dblink'));
	print $in "\n";
	close $in;
	my $output = do { local $/; <$out> };
	waitpid $pid, 0;
	isnt($?, 0, 'the stale application fails');
	like($output, qr/fencing token \d+ for "billing\/nightly" is stale/, 'because its token is stale');
	is(entries('ledger', 'from Python'), 1, 'and nothing is written');
}

# A subscriber.
my $publisher = PostgreSQL::Test::Cluster->new('publisher');
$publisher->init(allows_streaming => 'logical');
$publisher->start;
$publisher->safe_psql('postgres', <<'END');
CREATE TABLE inbox (entry text, fence_token bigint);
CREATE TABLE ledger (entry text);
CREATE PUBLICATION p FOR TABLE inbox;
END
$accounts->safe_psql('postgres', example('reset'));
is($accounts->safe_psql('postgres', q{SELECT token FROM zk_fence WHERE resource = 'billing/nightly'}), '0', 'the mark is reset');
$accounts->safe_psql('postgres', example('subscriber'));
(my $connection = $publisher->connstr('postgres')) =~ s/'//g;
$accounts->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p WITH (copy_data = false)");
$publisher->safe_psql('postgres', $_)
  foreach q{INSERT INTO inbox VALUES ('replicated', 5)}, q{INSERT INTO inbox VALUES ('replicated', 7)};
$publisher->wait_for_catchup('s');
is(entries('inbox', 'replicated'), 2, 'changes with good tokens are applied');
is($accounts->safe_psql('postgres', q{SELECT token FROM zk_fence WHERE resource = 'billing/nightly'}), '7', 'and raise the mark');
my $offset = -s $accounts->logfile;
$publisher->safe_psql('postgres', q{INSERT INTO inbox VALUES ('stale', 6)});
ok($accounts->wait_for_log(qr/fencing token 6 for "billing\/nightly" is stale/, $offset), 'a stale change stops the subscription');
is(entries('inbox', 'stale'), 0, 'and is not applied');
$accounts->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s');

# A guard without a column refuses all that a subscription brings.
$accounts->safe_psql('postgres', <<'END');
DROP TRIGGER guard ON inbox;
CREATE TRIGGER guard BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('billing/nightly');
ALTER TABLE inbox ENABLE ALWAYS TRIGGER guard;
END
$offset = -s $accounts->logfile;
$publisher->safe_psql('postgres', q{SELECT pg_drop_replication_slot('s') FROM pg_replication_slots WHERE NOT active})
  if defined poll_until(sub { $publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots WHERE active') eq '0' }, 20);
$accounts->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$connection' PUBLICATION p WITH (copy_data = false)");
$publisher->safe_psql('postgres', q{INSERT INTO inbox VALUES ('no column', 8)});
ok($accounts->wait_for_log(qr/no fencing token for "billing\/nightly"/, $offset), 'without a column nothing is applied');
$accounts->safe_psql('postgres', 'ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s');

is_deeply([ sort keys %used ], [ sort keys %example ], 'every example was run');
done_testing();
