# Exclusion: two servers, eight backends each, two thousand increments of a number in a
# file. Each reads it, waits a moment and writes it back, under the lock; a single pair
# inside at a time loses an increment for good. Inside, the token goes to a log: tokens
# must rise in the order of the increments.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use ZkTest;

use constant {
	SERVERS => 2,
	CLIENTS => 8,    # per server
	ROUNDS => 125,    # per client
};

my $zk = ZkEnsemble->new(nodes => 3, tick => 500)->start;
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my @nodes = map { zk_server("s$_", $zk) } 1 .. SERVERS;

# What must never run twice at once. The server runs it, as part of COPY, with the token on
# its standard input. It forks as little as it can: two thousand times is a lot.
append_to_file("$dir/critical.sh", <<'END');
cd "$1"
read token
read n <counter
sleep 0.002
echo $((n + 1)) >counter
echo $((n + 1)) $token >>log
END

# Run the same script in so many clients at a time; false when any of them failed.
sub run_clients
{
	my ($sql, $clients) = @_;
	append_to_file(my $file = "$dir/script-$clients.sql", $sql);
	my @pids;
	foreach my $node (@nodes)
	{
		foreach my $client (1 .. $clients)
		{
			my $pid = fork // die "fork: $!";
			if ($pid == 0)
			{
				open STDOUT, '>', '/dev/null';
				exec 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $file
				  or POSIX::_exit(127);
			}
			push @pids, $pid;
		}
	}
	my $failures = 0;
	foreach my $pid (@pids)
	{
		waitpid $pid, 0;
		$failures++ if $? != 0;
	}
	return $failures == 0;
}

sub reset_counter
{
	unlink "$dir/counter", "$dir/log";
	append_to_file("$dir/counter", "0\n");
	return;
}

# Control: without the lock the same clients lose increments. If they did not, the test
# proper would prove nothing.
reset_counter();
ok(run_clients("COPY (SELECT 0) TO PROGRAM 'sh $dir/critical.sh $dir';\n" x 20, 4), 'clients ran without the lock');
my $unlocked = slurp_file("$dir/counter");
chomp $unlocked;
cmp_ok($unlocked, '<', SERVERS * 4 * 20, 'and lost increments: the rig can see two at once');

reset_counter();
ok(run_clients(<<"END" x ROUNDS, CLIENTS), 'clients ran with the lock');
SELECT zk_lock_acquire('exclusion/counter');
COPY (SELECT zk_fencing_token('exclusion/counter')) TO PROGRAM 'sh $dir/critical.sh $dir';
SELECT zk_lock_release('exclusion/counter');
END

my $expected = SERVERS * CLIENTS * ROUNDS;
my $counter = slurp_file("$dir/counter");
chomp $counter;
is($counter, $expected, 'no increment was lost');

my @log = map { [split] } split /\n/, slurp_file("$dir/log");
is(scalar @log, $expected, 'every increment is in the log');
my ($out_of_order, $not_rising) = (0, 0);
foreach my $i (1 .. $#log)
{
	$out_of_order++ if $log[$i][0] != $log[ $i - 1 ][0] + 1;
	$not_rising++ if $log[$i][1] <= $log[ $i - 1 ][1];
}
is($out_of_order, 0, 'increments are logged in their order');
is($not_rising, 0, 'tokens rise from one holder to the next');

# Both servers took part throughout; else it was no test between servers.
my $log_of = sub { slurp_file($_[0]->logfile) };
foreach my $node (@nodes)
{
	unlike($log_of->($node), qr/PANIC|was terminated by signal/, $node->name . ' had no crash');
}
ok(defined poll_until(sub { !contenders($zk, 'exclusion/counter') }, 2), 'no node is left');

done_testing();
