# The order of events that coordinator.h promises, kept by the implementation for ZooKeeper
# while connections break, servers stop answering and sessions end. test/unit/test_conformance.c
# shows that the test finds what is out of order.

use strict;
use warnings;

use IPC::Run qw(start);
use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $seconds = $ENV{CONFORM_SECONDS} || 40;
my $seed = $ENV{CONFORM_SEED} || int(rand(1_000_000)) + 1;
my $zk = ZkEnsemble->new(nodes => 3, proxy => 1, tick => 500)->start;

my $program = PostgreSQL::Test::Utils::tempdir('conform') . '/conform';
my @sources = (map({ "test/conformance/$_.c" } qw(conform drive order)), glob('src/zookeeper/*.c'),
	map({ "src/common/$_.c" } qw(contender lockname nodedata resolve)));
is(system('cc', '-std=gnu11', '-g', '-O1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all',
		'-D_GNU_SOURCE', '-DTHREADED', '-Isrc', '-Itest/conformance', '-o', $program, @sources,
		'-lzookeeper_mt', '-lpthread'), 0, 'the implementation is built without PostgreSQL');

# Faults in turn, each followed by a time of rest: what is seen must not only be trouble.
my @faults = (
	[ 'connections are cut', sub { $zk->proxy(undef, 'cut') }, sub { }, 1 ],
	[ 'nothing gets through', sub { $zk->proxy(undef, 'freeze') }, sub { $zk->proxy(undef, 'pass') }, 1 ],
	[ 'nothing gets through for longer than the session timeout', sub { $zk->proxy(undef, 'freeze') },
		sub { $zk->proxy(undef, 'pass') }, 7 ]);

diag("seed $seed");
my ($out, $err) = ('', '');
my $run = start([ $program, $zk->hosts, '/zklock', $seed, $seconds ], '<', \undef, '>', \$out, '2>', \$err);
my $until = time + $seconds;
my $round = 0;
while (time < $until - 10)
{
	my ($name, $begin, $end, $lasts) = @{ $faults[ $round++ % @faults ] };
	poll_until(sub { 0 }, 2);
	note $name;
	$begin->();
	poll_until(sub { 0 }, $lasts);
	$end->();
}
$run->finish;
note $err;
is($run->full_result(0), 0, "seed $seed: all events come in order") or diag $out;
foreach my $kind (qw(began acknowledged granted taken lost answered gone))
{
	my ($n) = $out =~ /\b$kind (\d+)/;
	cmp_ok($n, '>', 0, "$kind: there were some") or diag $out;
}
done_testing();
