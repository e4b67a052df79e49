# The README's blocks as a new user copies them: the settings exist, zk_session says that it works, and the GRANTs are
# enough for a role that does the work, and no more than that. And every file that a page names is there.

use strict;
use warnings;

use File::Basename qw(dirname);
use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

my $root = dirname(__FILE__) . '/../..';
my $readme = slurp_file("$root/README.md");
my %block;
$block{$1} = $2 while $readme =~ /^```\w+ ([\w-]+)\n(.*?)^```$/msg;
is_deeply([ sort keys %block ], [qw(extension grants install settings zookeeper)], 'the blocks of the README');

my $zk = ZkEnsemble->new(tick => 2000)->start;
my $node = PostgreSQL::Test::Cluster->new('a');
$node->init;
(my $settings = $block{settings}) =~ s/zk1:2181,zk2:2181,zk3:2181/$zk->hosts/e;
$node->append_conf('postgresql.conf', $settings);
$node->start;
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
foreach my $name ($settings =~ /^(\S+) = /mg)
{
	is($sql->("SELECT sourceline IS NOT NULL FROM pg_settings WHERE name = '$name'"), 't', "$name is a setting");
}
$sql->($block{extension} =~ s/^SELECT.*//msr);
my ($look) = $block{extension} =~ /^(SELECT .*)/m;
ok(defined poll_until(sub { $sql->($look) =~ /^connected\|127\.0\.0\.1:\d+\|00:00:0[1-9]/ }, 20), 'the look at zk_session says that it works') or diag $sql->($look);

$sql->('CREATE ROLE batch LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor');
my @calls = (
	q{zk_lock_acquire('a')}, q{zk_lock_acquire('a', timeout => '1 s')}, q{zk_lock_try_acquire('a')}, q{zk_lock_is_held('a')}, q{zk_fencing_token('a')},
	q{zk_lock_release('a')}, 'zk_lock_release_all()', q{zk_xact_lock_acquire('b', 'read')}, q{zk_xact_lock_try_acquire('b', 'read')},
	q{zk_semaphore_acquire('c', 2)}, q{zk_semaphore_try_acquire('c', 2)}, q{zk_semaphore_release('c')});
my $as = sub { my ($role, $statement) = @_; return ($node->psql('postgres', $statement, extra_params => [ '-U', $role ]))[2]; };
like($as->('batch', "SELECT $calls[0]"), qr/permission denied/, 'before the GRANTs: nothing');
$sql->($block{grants});
is($as->('batch', join ';', 'BEGIN', (map { "SELECT $_" } @calls), 'COMMIT'), '', 'with them: everything that the work needs');
# whatever else there is, is not granted
my @granted = split /\n/, $sql->(q{SELECT p.proname FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock' WHERE has_function_privilege('batch', p.oid, 'EXECUTE') ORDER BY 1});
my %called = map { /^(\w+)/ ? ($1 => 1) : () } @calls;
is_deeply(\@granted, [ sort keys %called ], 'and nothing else');
is($as->('monitor', "SELECT 1 FROM $_"), '', "pg_monitor sees $_") foreach qw(zk_locks zk_session zk_lock_stats zk_lock_blockers), q{zk_lock_queue('a')};
like($as->($_, q{SELECT zk_lock_break('a')}), qr/permission denied/, "$_ takes no lock away") foreach qw(batch monitor);

# What doc/operations.md does to the marks when the ensemble was rebuilt
$sql->($_) foreach q{SELECT zk_fence_reset('x', 5)}, q{SELECT zk_fence_reset('y', 6)};
my ($reset) = slurp_file("$root/doc/operations.md") =~ /`(SELECT zk_fence_reset\(resource\) FROM zk_fence;)`/ or die 'no statement that resets the marks';
$sql->($reset);
is($sql->('SELECT resource, token FROM zk_fence ORDER BY 1'), "x|0\ny|0", 'all marks are reset by the statement of doc/operations.md');
$node->stop;

# Links
foreach my $page ('README.md', map { "doc/$_" } grep { /\.md$/ } PostgreSQL::Test::Utils::slurp_dir("$root/doc"))
{
	my $text = slurp_file("$root/$page");
	my $dir = dirname("$root/$page");
	my @missing = grep { !/^https?:/ && !-e "$dir/$_" } $text =~ /\]\(([^)#\s]+)(?:#[^)]*)?\)/g;
	is("@missing", '', "$page: what it links to is there");
}
done_testing();
