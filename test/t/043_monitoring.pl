# doc/monitoring.md, the metrics for postgres_exporter and the Grafana dashboard: every query
# in them is run, as a member of pg_monitor, on a server where there is something to see.

use strict;
use warnings;

use File::Basename qw(dirname);
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use ZkTest;

my $doc = dirname(__FILE__) . '/../../doc';
my $zk = ZkEnsemble->new(tick => 500)->start;
my $node_a = zk_server('a', $zk);
my $node_b = zk_server('b', $zk);
$node_b->safe_psql('postgres', 'CREATE ROLE monitor LOGIN IN ROLE pg_monitor');

# A holds, B waits; B has locks of its own, old and idle
my $holder = ZkTest::Session->new($node_a, name => 'nightly');
my $waiter = ZkTest::Session->new($node_b, name => 'late');
my $idle = ZkTest::Session->new($node_b, name => 'forgotten');
$holder->query(q{SELECT zk_lock_acquire('billing/nightly')});
$idle->query(q{SELECT zk_lock_acquire('forgotten')});
$waiter->send(q{SELECT zk_lock_acquire('billing/nightly')});
poll_until(sub { contenders($zk, 'billing/nightly') == 2 }, 10) // die 'nobody waits';

# What the query answers, with the ages that the doc asks for made short
sub run
{
	my ($sql) = @_;
	$sql =~ s/interval '(?:1 hour|10 minutes)'/interval '0'/g;
	my ($code, $out, $err) = $node_b->psql('postgres', $sql, extra_params => [ '-U', 'monitor' ]);
	return $code == 0 ? $out : "failed: $err";
}

my $text = slurp_file("$doc/monitoring.md");
my %block;
$block{$1} = $2 while $text =~ /^```sql ([\w-]+)\n(.*?)^```$/msg;
is(scalar keys %block, 8, 'the blocks of doc/monitoring.md');
my %expected = (
	health => qr/^b\|connected\|127\.0\.0\.1:\d+\|00:00:0[1-9]/,
	blockers => qr/^\d+\|billing\/nightly\|[0-9:.]+\|a\|\d+\|\w+\|nightly\|[0-9:.]+\|SELECT pg_terminate_backend\(\d+\); -- on server a$/,
	queue => qr/^1\|t\|exclusive\|a\|.*\n2\|f\|exclusive\|b\|/,
	'long-holders' => qr/^forgotten\|\d+\|\w+\|forgotten\|backend\|[0-9:.]+$/,
	'idle-holders' => qr/^forgotten\|\d+\|idle\|/,
	rates => qr/^0\|0\|1\|\d+\|\d+\|[0-9.]+$/,
	budgets => qr/^\d+\|1024\|0\.\d\|0\.\d$/,
	contention => qr/^(?:.*\n)*forgotten\|1\|0\|/,
);
like(run($block{$_}), $expected{$_} // qr/^$/, "doc/monitoring.md: $_") foreach sort keys %block;
my ($watch) = $text =~ /^(SELECT .*) \\watch 1$/m;
like(run($watch), qr/^billing\/nightly\|waiting\|.*\nforgotten\|held\|/s, 'doc/monitoring.md: the line for psql');

# YAML of a simple kind: a query is what is indented below "query: |"
my $exporter = slurp_file("$doc/examples/postgres_exporter.yml");
my @queries = $exporter =~ /^(\w+):\n  query: \|\n((?:    .*\n)+)  metrics:\n((?:    - .*\n)+)/mg;
is(scalar @queries, 4 * 3, 'postgres_exporter: four queries');
while (my ($name, $query, $metrics) = splice @queries, 0, 3)
{
	my @columns = $metrics =~ /^    - (\w+): \{usage: (?:LABEL|GAUGE|COUNTER), /mg;
	my $answer = run("SELECT string_agg(key, ' ') FROM (SELECT * FROM ($query) q LIMIT 1) q, json_each(row_to_json(q))");
	is($answer, "@columns", "postgres_exporter: $name has the columns that it names");
}

my $dashboard = decode_json(slurp_file("$doc/examples/grafana-dashboard.json"));
foreach my $panel (@{ $dashboard->{panels} })
{
	my $sql = $panel->{targets}[0]{rawSql};
	unlike(run($sql), qr/^(?:failed.*)?$/s, "Grafana: $panel->{title}");
}

$_->quit foreach $holder, $waiter, $idle;
$node_a->stop;
$node_b->stop;
done_testing();
