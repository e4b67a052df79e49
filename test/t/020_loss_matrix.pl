# The holder notices first: every way to lose a lock x everything that a backend can
# be doing, with one ZooKeeper node. Server A holds, server B waits for each of A's locks.
# A's connections are all inside a transaction that wrote a row; when B is granted, none of
# them may be able to commit any more (see ZkMatrix).

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkMatrix;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $conf = "zklock.session_timeout = 4s\nmax_connections = 100\nmax_prepared_transactions = 2\nmax_parallel_workers_per_gather = 2\nrestart_after_crash = on";
my $node_a = zk_server('a', $zk, conf => $conf);
my $node_b = zk_server('b', $zk, conf => $conf, hosts => $zk->direct_hosts(1));
prepare_matrix($node_a);

sub fault
{
	my ($fault, $expect, %f) = @_;
	my $servers = [ { server => $node_a, other => $node_b, expect => $expect } ];
	return run_fault(fault => $fault, zk => $zk, servers => $servers, %f);
}

fault('black hole', 'loss',
	cause => sub { $zk->proxy(1, 'freeze') },
	cure => sub { $zk->proxy(1, 'pass') });

fault('connection refused', 'loss',
	cause => sub { $zk->proxy(1, 'refuse'); $zk->proxy(1, 'cut') },
	cure => sub { $zk->proxy(1, 'accept') });

# The data is on disk, and the ZooKeeper session in it.
fault('all ZooKeeper nodes killed', 'lapse',
	cause => sub { $zk->kill_all },
	restore => sub { $zk->start_all },
	restore_after => 5);

{
	my $worker;
	fault('worker stopped', 'loss',
		cause => sub { $worker = worker_of($node_a); kill 'STOP', $worker },
		cure => sub { kill 'CONT', $worker });
}

# Terminated it comes back within the lease; here the one that comes back is stopped.
{
	my $next;
	fault('worker terminated and none comes back', 'loss',
		cause => sub {
			my $worker = worker_of($node_a);
			my $is_next = sub { $_[0] != $worker && slurp_file("/proc/$_[0]/cmdline") =~ /zklock worker/ };
			kill 'TERM', $worker;
			poll_until(sub { ($next) = grep { eval { $is_next->($_) } } processes_of($node_a); $next }, 10)
			  // die 'no worker comes back';
			kill 'STOP', $next;
		},
		cure => sub { kill 'CONT', $next });
}

# PostgreSQL ends all backends when a process with access to shared memory crashes.
fault('worker killed', 'crash', cause => sub { kill 'KILL', worker_of($node_a) });

{
	my @stopped;
	fault('server frozen', 'frozen',
		cause => sub {
			# the postmaster first, so that nothing is started meanwhile
			kill 'STOP', postmaster_of($node_a);
			@stopped = processes_of($node_a);
			kill 'STOP', @stopped;
		},
		resume => sub {
			my ($s) = @_;
			kill 'CONT', (map { $_->{holder}->backend } values %{ $s->{run} }), @stopped;
		});
}

fault('node deleted', 'event',
	cause => sub {
		my ($s) = @_;
		lose($zk, $_->{lock}) foreach values %{ $s->{run} };
	});

fault('ZooKeeper session closed by another client', 'event',
	cause => sub {
		my (undef, $id, $password) = split ' ', $zk->proxy(1, 'session');
		ok($zk->close_session($id, $password), 'there was such a ZooKeeper session');
	});

print_matrix();
$node_a->stop;
$node_b->stop;
done_testing();
