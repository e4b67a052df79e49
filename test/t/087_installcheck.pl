# make installcheck, as packagers call it: it runs in the server that is there, and says in one sentence what is missing
# when it cannot.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

my $dir = PostgreSQL::Test::Utils::tempdir_short();
sub installcheck
{
	my ($node, @arguments) = @_;
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
	delete @ENV{qw(MAKEFLAGS MAKELEVEL)};
	my $output = `make installcheck PG_CONFIG=pg_config REGRESS_OPTS='--load-extension=zklock --outputdir=$dir' REGRESS=names 2>&1`;
	return ($? >> 8, $output);
}

my $node = PostgreSQL::Test::Cluster->new('a');
$node->init;
my ($code, $output) = installcheck($node);
isnt($code, 0, 'no server: fails');
like($output, qr/^make installcheck: cannot connect: .*\n(?:.*\n)*It needs a running server with shared_preload_libraries = 'zklock'/m, 'no server: and says so');

$node->start;
($code, $output) = installcheck($node);
isnt($code, 0, 'not preloaded: fails');
like($output, qr/^make installcheck: zklock is not in shared_preload_libraries/m, 'not preloaded: and says so');

my $zk = ZkEnsemble->new(tick => 500)->start;
my $nowhere = PostgreSQL::Test::Cluster::get_free_port();
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'zklock'\nmax_prepared_transactions = 5\nzklock.hosts = '127.0.0.1:$nowhere'");
$node->restart;
($code, $output) = installcheck($node);
isnt($code, 0, 'no ZooKeeper: fails');
like($output, qr/^make installcheck: no answer from ZooKeeper: ./m, 'no ZooKeeper: and says so');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_namespace n, pg_extension e WHERE nspname = 'zklock_ready' OR extname = 'zklock'}), 0, 'nothing is left behind');

$node->append_conf('postgresql.conf', "zklock.hosts = '@{[ $zk->hosts ]}'");
$node->reload;
($code, $output) = installcheck($node);
is($code, 0, 'with all: passes') or diag $output;
like($output, qr/names +\.\.\. ok|ok 1 +- names/, 'with all: the regression test ran');

$node->stop;
done_testing();
