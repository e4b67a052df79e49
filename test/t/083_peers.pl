# doc/examples/peer.py and Peer.java as they stand, on the lock of a zklock server: each waits for the other
# side, in both directions, the tokens rise from holder to holder, and a peer that loses its
# connection ends its command before the server gets the lock.

use strict;
use warnings;

use File::Basename qw(dirname);
use Cwd qw(abs_path);
use IPC::Open3;
use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $examples = abs_path(dirname(__FILE__) . '/../../doc/examples');
my $java = '/usr/share/java';
my %peer = (
	'peer.py' => {
		possible => system("/usr/bin/python3 -c 'import kazoo' 2>/dev/null") == 0,
		why_not => 'no kazoo (package python3-kazoo)',
		command => [ '/usr/bin/python3', "$examples/peer.py" ],
	},
	'Peer.java' => {
		possible => -e "$java/curator-recipes.jar" && system('java --list-modules 2>/dev/null | grep -q jdk.compiler') == 0,
		why_not => 'no Curator or no Java compiler (packages libcurator-recipes-java, default-jdk-headless)',
		command => [ 'java', '-Xmx128m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-cp', "$java/*", "$examples/Peer.java" ],
	},
);

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, hosts => $zk->direct_hosts);
my $backend = ZkTest::Session->new($node);
my $dir = PostgreSQL::Test::Utils::tempdir_short();

# The command under the lock says its token and ends when its input does, or is ended: then a file says when.
append_to_file("$dir/work", <<'END');
#!/bin/sh
trap 'date +%s.%N >"$1"; exit 1' TERM
echo "token $ZK_FENCING_TOKEN"
read line
exit 0
END
chmod 0755, "$dir/work";

sub start
{
	my ($name, $lock) = @_;
	my $pid = open3(my $in, my $out, undef, @{ $peer{$name}{command} }, $zk->hosts, $lock, "$dir/work", "$dir/ended-$name");
	return { pid => $pid, in => $in, out => $out };
}

# Its token, which it says when it holds the lock; what else it says is of no interest
sub token_of
{
	my ($run) = @_;
	local $SIG{ALRM} = sub { kill 'KILL', $run->{pid} };
	alarm 60;
	while (defined(my $line = readline $run->{out}))
	{
		$run->{said} .= $line;
		next unless $line =~ /^token (\d+)$/;
		alarm 0;
		return $1;
	}
	alarm 0;
	diag $run->{said} // 'it said nothing';
	return -1;
}

sub finish
{
	my ($run) = @_;
	local $SIG{ALRM} = sub { kill 'KILL', $run->{pid} };
	alarm 60;
	close $run->{in};
	waitpid $run->{pid}, 0;
	alarm 0;
	return $? >> 8;
}

foreach my $name (sort keys %peer)
{
	my $lock = "shared/$name";
  SKIP:
	{
		skip $peer{$name}{why_not}, 6 unless $peer{$name}{possible};

		# The server holds: the peer waits
		my $first = $backend->query("SELECT zk_lock_acquire('$lock')");
		my $run = start($name, $lock);
		ok(defined poll_until(sub { $zk->ls(lock_directory($lock)) == 2 }, 60), "$name waits for the server");
		is($node->safe_psql('postgres', "SELECT string_agg(holds::text, ' ' ORDER BY position) FROM zk_lock_queue('$lock')"),
			'true false', "$name is in the server's queue");
		$backend->query("SELECT zk_lock_release('$lock')");
		my $second = token_of($run);
		cmp_ok($second, '>', $first, "$name holds, and its token is higher");

		# The peer holds: the server waits
		is($backend->query("SELECT zk_lock_try_acquire('$lock') IS NULL"), 't', "the server does not get what $name holds");
		$backend->send("SELECT zk_lock_acquire('$lock')");
		poll_until(sub { $zk->ls(lock_directory($lock)) == 2 }, 10) // die 'the server does not wait';
		is(finish($run), 0, "$name ends in peace");
		my $third = $backend->wait(5) // '';
		cmp_ok($third, '>', $second, 'the server holds, and its token is higher still');
		$backend->query("SELECT zk_lock_release('$lock')");
	}
}

# The peers hold and are cut off, both at once
my @peers = grep { $peer{$_}{possible} } sort keys %peer;
my (%run, %waiter);
foreach my $name (@peers)
{
	$run{$name} = start($name, "cut/$name");
	cmp_ok(token_of($run{$name}), '>', 0, "$name holds");
	$waiter{$name} = ZkTest::Session->new($node);
	$waiter{$name}->send("SELECT zk_lock_acquire('cut/$name'); SELECT extract(epoch FROM clock_timestamp())");
	poll_until(sub { $zk->ls(lock_directory("cut/$name")) == 2 }, 10) // die 'the server does not wait';
}
$zk->proxy(1, 'freeze');
foreach my $name (@peers)
{
	my ($granted) = ($waiter{$name}->wait(30) // '') =~ /^\d+\n([\d.]+)$/;
	ok(defined $granted, "cut off: the server gets the lock of $name");
	my $waited = poll_until(sub { -s "$dir/ended-$name" }, 5);
	cmp_ok(defined $waited ? slurp_file("$dir/ended-$name") : 9e9, '<', $granted // 0, "cut off: $name has ended its command before");
	is(finish($run{$name}), 75, 'cut off: and says that the lock is lost');
}
$zk->proxy(1, 'pass');

$node->stop;
done_testing();
