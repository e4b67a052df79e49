# single - one backend, acquire and release, beside everything else
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(time sleep);
use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_single
{
	my ($one, $three) = (ensemble(1), ensemble(3));
	my $a = BenchServer->new('a', zk => $one);
	my $b = BenchServer->new('b', zk => $three);
	my $other = BenchServer->new('other');
	my $etcd = start_etcd();
	my $two = sub {
		my ($server, @statements) = @_;
		my %opt = (script => join('', map { "$_;\n" } @statements), define => { connected => 'false' });
		return sub { return $server->pgbench(%opt, seconds => $_[0]) };
	};
	$a->query('CREATE EXTENSION dblink');
	my $remote = sprintf 'host=%s port=%d user=postgres dbname=postgres', $work, $other->port;

	my $r = take_turns($runs,
		zklock => sub { return zklock($a, $one, 'own', 1, @_) },
		curator => sub { return curator($one, 'own', 1, @_) },
		bare => sub { return bare($one, @_) },
		zklock3 => sub { return zklock($b, $three, 'own', 1, @_) },
		curator3 => sub { return curator($three, 'own', 1, @_) },
		bare3 => sub { return bare($three, @_) },
		($etcd ? (etcd => sub { return java('EtcdBench', $etcd->{port}, $_[0], BenchMeasure::warm_up()) }) : ()),
		advisory => $two->($a, 'SELECT pg_advisory_lock(1)', 'SELECT pg_advisory_unlock(1)'),
		# the connection of the first transaction serves all others
		dblink => $two->($a, "\\if not :connected\n\\set connected true\nSELECT dblink_connect('other', '$remote');\n\\endif\n"
			. q{SELECT * FROM dblink('other', 'SELECT pg_advisory_lock(1)') AS t(void text)},
			q{SELECT * FROM dblink('other', 'SELECT pg_advisory_unlock(1)') AS t(done bool)}),
		nothing => $two->($a, 'SELECT 1', 'SELECT 1'));
	stop_etcd($etcd);
	$_->stop foreach $a, $b, $other;

	foreach my $n (1, 3)
	{
		my ($suffix, $nodes) = $n == 1 ? ('', 'one node') : (3, 'three nodes');
		my ($zklock, $curator, $bare) = @$r{ map { "$_$suffix" } qw(zklock curator bare) };
		goal("one backend, acquire and release in two statements, $nodes: beside Curator",
			us($zklock->{median}) . ', Curator ' . us($curator->{median}), ratio($zklock->{median}, $curator->{median}), '<=', 0.75);
		goal("the same beside the bare C client, $nodes",
			us($zklock->{median}) . ', C client ' . us($bare->{median}), ratio($zklock->{median}, $bare->{median}), '<=', 1.0);
		beside("zklock, $nodes", $zklock);
		beside("Curator's InterProcessMutex, $nodes", $curator);
		beside("ZooKeeper's C client alone: create and list together, delete, $nodes", $bare);
		cost("one backend, $nodes", $zklock);
	}
	beside('etcd\'s lock service, one node, JSON gateway, one connection, one lease', $r->{etcd}) if $etcd;
	beside('`pg_advisory_lock` and unlock through dblink, another server on this machine', $r->{dblink});
	beside('`pg_advisory_lock` and unlock in the same database: no other server sees it', $r->{advisory});
	beside('`SELECT 1` twice: what two statements take that do nothing', $r->{nothing});
	note(sprintf 'One backend: two statements that do nothing take %s; the rest is one flight to ZooKeeper, which takes a '
		. 'write to the quorum, and the delete before it, which zklock does not wait for and ZooKeeper has to write first.', us($r->{nothing}{median}));
	return;
}

sub start_etcd
{
	my ($program) = grep { -x } map { "$_/etcd" } split /:/, $ENV{PATH};
	return unless $program;
	my ($port, $peer_port) = map { free_port() } 1, 2;
	my $dir = "$work/etcd-data";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', "$work/tmp/etcd.log";
		open STDERR, '>&', \*STDOUT;
		exec $program, '--name', 'a', '--data-dir', $dir, '--initial-cluster', "a=http://127.0.0.1:$peer_port",
		  '--initial-advertise-peer-urls', "http://127.0.0.1:$peer_port", '--listen-peer-urls', "http://127.0.0.1:$peer_port",
		  '--listen-client-urls', "http://127.0.0.1:$port", '--advertise-client-urls', "http://127.0.0.1:$port"
		  or POSIX::_exit(127);
	}
	my $until = time + 30;
	until (BenchServer::slurp("$work/tmp/etcd.log") =~ /ready to serve client requests|serving insecure client requests/)
	{
		die "etcd does not start:\n" . BenchServer::slurp("$work/tmp/etcd.log") if time > $until || waitpid($pid, POSIX::WNOHANG()) == $pid;
		sleep 0.05;
	}
	return { pid => $pid, port => $port, version => (`$program --version` =~ /Version: (\S+)/)[0] };
}

sub stop_etcd
{
	my ($etcd) = @_;
	return unless $etcd;
	kill 'KILL', $etcd->{pid};
	waitpid $etcd->{pid}, 0;
	return;
}

sub free_port
{
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'tcp', Listen => 1) or die "no free port: $!";
	return $socket->sockport;
}

1;
