# Addresses: names that stand for new ones while we are connected, lists in which the client
# library would not find the only server that is alive, and IPv6.

use strict;
use warnings;

use IO::Socket::INET;
use IO::Socket::IP;
use Test::More;
use Time::HiRes qw(time sleep);
use PostgreSQL::Test::Utils qw(slurp_file append_to_file);
use ZkTest;

plan skip_all => 'an instrumented server has its own preloaded library' if instrumented();

# What names stand for, by a file that the test writes (see names.c).
my $library = shared_library('names');
my $names = PostgreSQL::Test::Utils::tempdir('names') . '/names';
sub write_names
{
	my (@lines) = @_;
	open my $fh, '>', "$names.new" or die;
	print $fh map { "$_\n" } @lines;
	close $fh or die;
	rename "$names.new", $names or die;
	return;
}

# A listener that passes on to $port: a server's other address. Ends with its pipe.
package Forward
{
	use IO::Select;

	sub new
	{
		my ($class, $address, $port, $to) = @_;
		my $listener = IO::Socket::IP->new(LocalHost => $address, LocalPort => $port, Listen => 20, ReuseAddr => 1, Type => IO::Socket::IP::SOCK_STREAM())
		  // die "cannot listen on $address:$port: $@";
		my $pid = fork // die "fork: $!";
		return bless { pid => $pid }, $class if $pid;
		my (%other, $select);
		$select = IO::Select->new($listener);
		while (getppid() != 1)
		{
			foreach my $socket ($select->can_read(1))
			{
				if ($socket == $listener)
				{
					my $client = $listener->accept or next;
					my $server = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$to") or next;
					@other{ $client, $server } = ($server, $client);
					$select->add($client, $server);
					next;
				}
				# the other end may have closed both in this very round
				next unless $other{$socket};
				my $n = sysread $socket, my $bytes, 65536;
				if ($n) { syswrite $other{$socket}, $bytes; next; }
				my $other = delete $other{$socket};
				delete $other{$other};
				$select->remove($socket, $other);
				close $_ foreach $socket, $other;
			}
		}
		POSIX::_exit(0);
	}

	sub close
	{
		my ($self) = @_;
		my $pid = delete $self->{pid} or return;
		kill 'KILL', $pid;
		waitpid $pid, 0;
		return;
	}

	sub DESTROY { local ($?, $!); $_[0]->close; return; }
}

sub free_port
{
	return IO::Socket::INET->new(LocalAddr => '127.0.0.1:0', Listen => 1)->sockport;
}

my $zk = ZkEnsemble->new(nodes => 3, tick => 500)->start;
my %client = map { ($_ => ($zk->hosts($_) =~ /:(\d+)$/)[0]) } $zk->all;
my $port = free_port();

# Three nodes get new addresses under their old names, one after the other, each when the
# one before it is back, under load: an address is known and serves at any time.
{
	my %address = map { ($_ => "127.0.7.$_") } $zk->all;
	my $publish = sub { write_names(map { "zk$_.test $address{$_}" } $zk->all) };
	$publish->();
	my %forward = map { ($_ => Forward->new($address{$_}, $port, $client{$_})) } $zk->all;
	my $node;
	{
		local %ENV = (%ENV, LD_PRELOAD => $library, ZKTEST_NAMES => $names);
		$node = zk_server('a', $zk, hosts => join(',', map { "zk$_.test:$port" } $zk->all), conf => 'zklock.session_timeout = 10s');
	}
	my $worker = worker_of($node);
	my $holder = ZkTest::Session->new($node);
	my $token = $holder->query(q{SELECT zk_lock_acquire('moving')});
	my @load = begin_load($node);
	foreach my $n ($zk->all)
	{
		my $moved = time;
		$forward{$n}->close;
		delete $forward{$n};
		$address{$n} = "127.0.8.$n";
		# the pod is gone, and comes back elsewhere
		sleep 1;
		$forward{$n} = Forward->new($address{$n}, $port, $client{$n});
		$publish->();
		# eight seconds between two moves
		poll_until(sub { time - $moved >= 8 }, 10);
	}
	ok(defined poll_until(sub { $node->safe_psql('postgres', q{SELECT coordinator_server LIKE '127.0.8.%' AND lease_left > '1 s' FROM zk_session}) eq 't' }, 10),
		'three nodes moved under their names: connected to a new address');
	is($node->safe_psql('postgres', 'SELECT expiries, lapses FROM zk_session'), '0|0', 'with the same ZooKeeper session, and the lease never lapsed');
	is($holder->query(q{SELECT zk_fencing_token('moving')}), $token, 'and the lock is held');
	is(worker_of($node), $worker, 'by the same worker');
	like(slurp_file($node->logfile), qr/the addresses of zklock.hosts changed/, 'and the log says why');
	$holder->kill_client;

	# All at once, too.
	$_->close foreach values %forward;
	%address = map { ($_ => "127.0.9.$_") } $zk->all;
	%forward = map { ($_ => Forward->new($address{$_}, $port, $client{$_})) } $zk->all;
	$publish->();
	my $took = poll_until(sub { $node->psql('postgres', q{SELECT zk_lock_try_acquire('there')}, on_error_die => 0) == 0 }, 20);
	ok(defined $took && $took < 20, 'all moved at once: served again within twice the timeout') or diag $took // 'never';
	end_load(@load);
	$node->stop;
	$_->close foreach values %forward;
}

# A list is made odd over what the library uses: an address that it cannot use, one that
# comes twice, in the name and in the list, must not make it even again. Each of the
# addresses is once the only one that is alive.
my @lists = (
	[ 'twice by two names', [ 'one.test 127.0.7.1', 'two.test 127.0.7.2', 'both.test 127.0.7.1 127.0.7.2' ], 'one.test,two.test,both.test', '127.0.7.1', '127.0.7.2' ],
	[ 'both families', [ 'one.test 127.0.7.1 ::1', 'two.test 127.0.7.2' ], 'one.test,two.test', '127.0.7.1', '127.0.7.2', '::1' ],
	[ 'both families, two each', [ 'one.test 127.0.7.1 ::1', 'two.test 127.0.7.2 ::1', ], 'one.test,two.test,127.0.7.3', '127.0.7.1', '127.0.7.3', '::1' ],
	[ 'IPv6 alone', [], '[::1]', '::1' ],
	[ 'a name that has IPv6 alone', ['six.test ::1'], 'six.test', '::1' ]);
my $number = 0;
my $node;
foreach my $list (@lists)
{
	my ($what, $lines, $hosts, @addresses) = @$list;
	write_names(@$lines);
	$hosts = join ',', map { "$_:$port" } split /,/, $hosts;
	my $forward = Forward->new($addresses[0], $port, $client{1});
	if (!$node)
	{
		local %ENV = (%ENV, LD_PRELOAD => $library, ZKTEST_NAMES => $names);
		$node = zk_server('b', $zk, hosts => $hosts, conf => 'zklock.session_timeout = 10s');
	}
	else
	{
		$node->append_conf('postgresql.conf', "zklock.hosts = '$hosts'");
		$node->reload;
		ok(defined poll_until(sub { $node->psql('postgres', q{SELECT zk_lock_try_acquire('listed')}, on_error_die => 0) == 0 }, 15), "$what: connected");
	}
	my $session = $node->safe_psql('postgres', 'SELECT session_id FROM zk_session');
	foreach my $round (1 .. (@addresses > 1 ? 3 : 1))
	{
		foreach my $address (@addresses)
		{
			my $connects = $node->safe_psql('postgres', 'SELECT connects FROM zk_session');
			$forward->close;
			$forward = Forward->new($address, $port, $client{1});
			my $took = poll_until(sub { $node->safe_psql('postgres', "SELECT connects > $connects FROM zk_session") eq 't' }, 10);
			ok(defined $took && $took < 4, "$what, round $round, only $address alive: connected within seconds") or diag $took // 'never';
		}
	}
	is($node->safe_psql('postgres', 'SELECT session_id FROM zk_session'), $session, "$what: with the same ZooKeeper session");
	$forward->close;
}
$node->stop;
done_testing();
