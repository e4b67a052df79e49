# ALTER EXTENSION zklock UPDATE, and a library that is newer than the catalog. There is only one version
# yet, so the next two are made up, in a copy of the sources: 1.1 with an empty script, 1.2 with a function that
# only its library has. They are installed over a server of its own.

use strict;
use warnings;

use Cwd qw(getcwd);
use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

plan skip_all => 'an instrumented server is a wrapper' unless ZkTest::Clock->possible;
my $tree = getcwd();
my $dir = PostgreSQL::Test::Utils::tempdir_short();
sub shell { my ($command) = @_; return system('bash', '-euo', 'pipefail', '-c', "{ $command\n} >>'$dir/log' 2>&1") >> 8; }

# A copy of PostgreSQL, and zklock as it is in it
shell("ZKL_ROOT='$tree'; . test/lib.sh; PGCONFIG=\${PGCONFIG:-\$(command -v pg_config)}; zkl_stage_postgres '$dir/pg'; echo \$STAGED >'$dir/staged'") == 0
  or die 'no copy of PostgreSQL: ' . slurp_file("$dir/log");
chomp(my $staged = slurp_file("$dir/staged"));
(my $prefix = $staged) =~ s{/bin/pg_config$}{};
chomp(my $share = `$staged --sharedir`);
is(shell("cp -a Makefile zklock.control sql src zklock.so expected '$dir' && cd '$dir' && find . -name '*.bc' -delete && make with_llvm=no PG_CONFIG='$staged' install"), 0,
	'version 1.0 is installed') or diag slurp_file("$dir/log");

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = PostgreSQL::Test::Cluster->new('a', install_path => $prefix);
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'zklock'\nzklock.hosts = '@{[ $zk->hosts ]}'\nzklock.server_tick_time = 500ms");
$node->start;
sub version { return sql($node, q{SELECT extversion FROM pg_extension WHERE extname = 'zklock'}); }
sql($node, <<'END');
CREATE EXTENSION zklock;
CREATE ROLE batch LOGIN;
GRANT EXECUTE ON FUNCTION zk_lock_acquire(text, text, interval) TO batch;
CREATE TABLE ledger (entry text);
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('bill');
END
wait_for_lease($node);
my $session = ZkTest::Session->new($node);
my $token = $session->query(q{SELECT zk_lock_acquire('bill')});
$session->query(q{INSERT INTO ledger VALUES ('under 1.0')});
is(version(), '1.0', 'created as 1.0');
is(sql($node, q{SELECT token FROM zk_fence}), $token, 'a mark is there');
$session->quit;

# An older catalog: functions and a view are missing that the library has
sql($node, <<'END');
ALTER EXTENSION zklock DROP VIEW zk_lock_blockers; DROP VIEW zk_lock_blockers;
ALTER EXTENSION zklock DROP FUNCTION zk_lock_break(text, interval); DROP FUNCTION zk_lock_break(text, interval);
ALTER EXTENSION zklock DROP FUNCTION zk_semaphore_acquire(text, integer, interval); DROP FUNCTION zk_semaphore_acquire(text, integer, interval);
END

# The new versions: both scripts, a new library
is(shell(<<"END"), 0, 'versions 1.1 and 1.2 are built and installed') or diag slurp_file("$dir/log");
cd '$dir'
sed -i "s/^default_version = .*/default_version = '1.2'/" zklock.control
: >sql/zklock--1.0--1.1.sql
cat >sql/zklock--1.1--1.2.sql <<'SQL'
CREATE FUNCTION zk_new() RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'zkl_new';
CREATE OR REPLACE FUNCTION zk_lock_break(name text, patience interval DEFAULT '5 s') RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'zkl_lock_break';
SQL
cat >>src/zklock.c <<'C'
#include "utils/builtins.h"
extern __attribute__((visibility("default"))) Datum zkl_new(PG_FUNCTION_ARGS);
PG_FUNCTION_INFO_V1(zkl_new);
Datum zkl_new(PG_FUNCTION_ARGS) { PG_RETURN_TEXT_P(cstring_to_text(ZKLOCK_VERSION)); }
C
# built with the headers of the one that was copied
make with_llvm=no PG_CONFIG="\${PGCONFIG:-pg_config}" all
make with_llvm=no PG_CONFIG='$staged' install
END
ok(-e "$share/extension/$_", "$_ is installed") foreach qw(zklock--1.0--1.1.sql zklock--1.1--1.2.sql zklock--1.2.sql);

$node->restart;
wait_for_lease($node);
is(version(), '1.0', 'the new library with the old catalog: 1.0');
$session = ZkTest::Session->new($node);
my $newer = $session->query(q{SELECT zk_lock_acquire('bill')});
cmp_ok($newer, '>', $token, 'it locks');
is($session->query(q{INSERT INTO ledger VALUES ('new library') RETURNING entry}), 'new library', 'and fences');
is(sql($node, q{SELECT name, state FROM zk_locks}), 'bill|held', 'and shows');

# The update, while a lock is held
sql($node, 'ALTER EXTENSION zklock UPDATE');
is(version(), '1.2', 'updated, by way of 1.1');
is(sql($node, 'SELECT zk_new()'), '1.2', 'what is new works');
like(($node->psql('postgres', q{SELECT zk_lock_break('nobody')}))[1], qr/^free$/, 'and what was missing');
is($session->query(q{SELECT zk_fencing_token('bill')}), $newer, 'the lock is held as before');
is($session->query(q{INSERT INTO ledger VALUES ('under 1.2') RETURNING entry}), 'under 1.2', 'the guard is the old one');
is(sql($node, q{SELECT token FROM zk_fence}), $newer, 'the mark is there');
is(sql($node, q{SELECT has_function_privilege('batch', 'zk_lock_acquire(text, text, interval)', 'EXECUTE')}), 't', 'grants were kept');
is(sql($node, q{SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND objid = 'zk_new'::regproc}), 1, 'what is new belongs to the extension');
$session->quit;

$node->stop;
done_testing();
