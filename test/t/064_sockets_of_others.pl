# The worker inherits the sockets of libraries that were preloaded with us. When it cuts its
# own connection, theirs go on: a listener, and a connection to the ZooKeeper server itself.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Test::More;
use ZkTest;

plan skip_all => 'an instrumented server has its own preloaded library' if instrumented();

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my ($front) = $zk->hosts =~ /:(\d+)$/;
my $port = IO::Socket::INET->new(LocalAddr => '127.0.0.1:0', Listen => 1)->sockport;
my $library = shared_library('listener');
my $node;
{
	local %ENV = (%ENV, LISTENER_PORT => $port, LISTENER_PEER => $front);
	$node = zk_server('a', $zk, conf => "zklock.session_timeout = 4s\nshared_preload_libraries = '$library,zklock'");
}
sub accepts { return defined IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 2); }
# of the proxy's connections, how many have not ended
sub connections { return $zk->proxy(1, 'status') =~ /connections=(\d+)/ ? $1 : -1; }

ok(accepts(), 'the listener of another library accepts');
is(connections(), 2, 'and it has a connection of its own to the server that we use');
my $offset = -s $node->logfile;
my $peer = $node->safe_psql('postgres', 'SELECT coordinator_server FROM zk_session');
is($peer, "127.0.0.1:$front", 'the server that is shown is ours');

$zk->proxy(1, 'freeze');
ok(defined poll_until(sub { PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~ /trying the next server/ }, 10),
	'a black hole: the worker cuts its connection');
ok(accepts(), 'a_black_hole_does_not_cut_the_listener_of_another_library');
$zk->proxy(1, 'pass');
wait_for_lease($node);
ok(defined poll_until(sub { connections() == 2 }, 10), 'a_black_hole_does_not_cut_the_connection_of_another_library') or diag connections();

# A session that is ended by us, and a handle that is replaced, cut theirs no more.
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
wait_for_lease($node);
ok(accepts(), 'nor does a restart of the worker');
ok(defined poll_until(sub { connections() == 2 }, 10), 'neither of them');
$node->stop;
done_testing();
