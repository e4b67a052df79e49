# A server that answers a reconnect with another ZooKeeper session than the one that was asked
# for, as ClickHouse Keeper did (#116690): that is expiry, although everything looks connected. The
# holder is told at once; the nodes of the old one go when its time is over; nobody holds beside anybody.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

use constant T => 4;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => 'zklock.session_timeout = ' . T . 's');
my $other = zk_server('b', $zk, hosts => $zk->direct_hosts);
$node->safe_psql('postgres', 'CREATE TABLE work (what text)');

my $before = members($zk, 'a');
my $idle = ZkTest::Session->new($node);
my $writer = ZkTest::Session->new($node);
my $waiter = ZkTest::Session->new($other);
my $token = $idle->query(q{SELECT zk_lock_acquire('idle')});
$writer->query(q{BEGIN; INSERT INTO work VALUES ('replaced'); SELECT zk_xact_lock_acquire('writer')});
$writer->send('SELECT pg_sleep(60)');
$waiter->send(q{SELECT zk_lock_acquire('idle')});
poll_until(sub { contenders($zk, 'idle') == 2 }, 5) // die;

$zk->proxy(1, 'forget_session');
my $start = time;
$zk->proxy(1, 'cut');
ok(defined poll_until(sub { $zk->proxy(1, 'status') =~ /fired=1/ }, 5), 'the server has answered with another ZooKeeper session');
my $told = $writer->wait(10) // '';
like($told, qr/ERROR:  ZK001:/, 'the writer is told');
ok(!$waiter->answered, 'before anybody else is granted');
like($idle->query('SELECT 1'), qr/ERROR:  ZK001:/, 'so is the idle holder');
like($writer->query('COMMIT; SELECT count(*) FROM work'), qr/^0$/m, 'nothing is committed');
like($waiter->wait(T + 2) // '', qr/^\d+$/, 'the waiter is granted when the old one is over');
cmp_ok(time - $start, '<', T + 2 * 0.5 + 1, 'after T and a tick');

wait_for_lease($node);
ok(defined poll_until(sub { members($zk, 'a') =~ /^(\S+)$/ && $1 ne $before }, T + 3), 'one other ZooKeeper session is left');
is(scalar contenders($zk, 'idle'), 1, 'and the node of the one who holds');
$idle->query('SELECT zk_lock_release_all()');
$waiter->quit;
my $again = $idle->query(q{SELECT zk_lock_acquire('idle', timeout => '5 s')});
cmp_ok($again, '>', $token, 'it can be had again, with a higher token');
$_->quit foreach $idle, $writer;
$node->stop;
$other->stop;
done_testing();
