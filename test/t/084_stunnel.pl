# doc/examples/stunnel.conf as it stands, but for addresses and directories, with the certificates that the commands of
# doc/operations.md make: zklock talks to ZooKeeper through TLS, and nobody without a
# certificate does. A stunnel that is killed is a lapse, and when it is back in time, the locks were kept; when it
# is not, they are lost and can be taken again.

use strict;
use warnings;

use File::Basename qw(dirname);
use IO::Socket::INET;
use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my ($program) = grep { -x } map { ("$_/stunnel4", "$_/stunnel") } (split /:/, $ENV{PATH}), '/usr/bin';
plan skip_all => 'no stunnel (package stunnel4)' unless $program;
plan skip_all => 'no openssl (package openssl)' unless grep { -x "$_/openssl" } split /:/, $ENV{PATH};

my $doc = dirname(__FILE__) . '/../../doc';
my ($certificates) = slurp_file("$doc/operations.md") =~ /^```sh certificates\n(.*?)^```$/ms or die 'no certificates';
my (undef, $client_conf, $server_conf) = split /^; -{60,}\n(?=; \d\.)/m, slurp_file("$doc/examples/stunnel.conf");

my $zk = ZkEnsemble->new(tick => 500)->start;
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(zk1 zk2 zk3 tls);
my %pid;
END { local $?; kill 'KILL', values %pid if %pid; }

# The commands of the page, for two machines
is(system('bash', '-euc', "cd $dir\n$certificates"), 0, 'the certificates of doc/operations.md');
ok(-s "$dir/$_", "$_ is there") foreach qw(zklock-ca.crt zk1.example.crt pg1.example.key);

sub start_stunnel
{
	my ($name, $conf, $machine) = @_;
	$conf =~ s{/etc/stunnel/zklock-ca}{$dir/zklock-ca}g;
	$conf =~ s{/etc/stunnel/zklock\.}{$dir/$machine.}g;
	$conf =~ s/^(accept = 127\.0\.0\.1):218(\d)/$1:$port{"zk$2"}/mg;
	# one node is enough: the others of the example are not there
	$conf =~ s/^connect = zk\d\.example:2281/connect = 127.0.0.1:$port{tls}/mg;
	$conf =~ s/^accept = 2281/accept = 127.0.0.1:$port{tls}/m;
	$conf =~ s/^connect = 127\.0\.0\.1:2181/'connect = ' . $zk->direct_hosts/me;
	my $file = "$dir/$name.conf";
	unlink $file;
	append_to_file($file, $conf);
	my $pid = fork // die;
	if ($pid == 0)
	{
		open STDOUT, '>>', "$dir/$name.log";
		open STDERR, '>&', \*STDOUT;
		exec $program, $file or POSIX::_exit(127);
	}
	$pid{$name} = $pid;
	my $port = $name eq 'server' ? $port{tls} : $port{zk1};
	defined poll_until(sub { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 1) }, 10)
	  or die "stunnel does not start: " . slurp_file("$dir/$name.log");
	return;
}

sub stop_stunnel
{
	my ($name) = @_;
	my $pid = delete $pid{$name};
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

# What ZooKeeper's program gets from the node through this port
sub ask
{
	my ($port) = @_;
	my $program = ZkCli::program();
	return system("$program -t 2 127.0.0.1:$port ls / >/dev/null 2>&1") >> 8;
}

start_stunnel('server', $server_conf, 'zk1.example');
start_stunnel('client', $client_conf, 'pg1.example');
is(ask($port{zk1}), 0, 'ZooKeeper answers through both');
isnt(ask($port{tls}), 0, 'and not without TLS');
# The node that calls itself zk1 is not taken for zk2
isnt(ask($port{zk2}), 0, "nor under another node's name");
like(slurp_file("$dir/client.log"), qr/certificate verify failed/, 'as its certificate says');
is(system("bash", '-c', "openssl s_client -connect 127.0.0.1:$port{tls} -CAfile $dir/zklock-ca.crt -quiet </dev/null >$dir/s_client 2>&1; grep -qi 'certificate required\\|handshake failure' $dir/s_client") >> 8,
	0, 'nor without a certificate') or diag slurp_file("$dir/s_client");

# server_tick_time unknown: the lease ends early enough before the ZooKeeper session that there is time to
# bring stunnel back
my $node = zk_server('a', $zk, hosts => "127.0.0.1:$port{zk1}", conf => "zklock.session_timeout = 10s\nzklock.server_tick_time = 0");
my $holder = ZkTest::Session->new($node);
my $token = $holder->query(q{SELECT zk_lock_acquire('tls')});
like($token, qr/^\d+$/, 'a lock through TLS');
is(scalar contenders($zk, 'tls'), 1, 'which is in ZooKeeper');

# Killed, and back in time
my $log = -s $node->logfile;
my $session = $node->safe_psql('postgres', 'SELECT session_id FROM zk_session');
stop_stunnel('client');
ok(defined poll_until(sub { slurp_file($node->logfile, $log) =~ /zklock: lease lapsed, 1 held lock/ }, 15), 'stunnel is killed: the lease lapses');
is($holder->query(q{SELECT zk_lock_is_held('tls')}), 'f', 'the lock is not certain');
start_stunnel('client', $client_conf, 'pg1.example');
ok(defined poll_until(sub { slurp_file($node->logfile, $log) =~ /zklock: lease is current again/ }, 15), 'stunnel is back: the lease is current again');
is($node->safe_psql('postgres', 'SELECT session_id FROM zk_session'), $session, 'with the same ZooKeeper session');
is($holder->query(q{SELECT zk_fencing_token('tls')}), $token, 'and the same lock');

# Killed on the other side, for longer than the ZooKeeper session lasts
stop_stunnel('server');
ok(defined poll_until(sub { !contenders($zk, 'tls') }, 20), 'the other stunnel is killed: the ensemble ends the session');
start_stunnel('server', $server_conf, 'zk1.example');
wait_for_lease($node);
like($holder->query('SELECT 1'), qr/ERROR:  ZK001/, 'the lock is lost');
cmp_ok($holder->query(q{SELECT zk_lock_acquire('tls')}), '>', $token, 'and can be taken again');

$node->stop;
done_testing();
