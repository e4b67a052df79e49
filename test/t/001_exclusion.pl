# Exclusion: two servers, eight backends each, two thousand increments of a number in a
# file. Each reads it, waits a moment and writes it back, under the lock; a single pair
# inside at the same time loses an increment for good. With each increment its holder
# leaves its token: tokens must rise in the order of the increments.

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
mkdir "$dir/log" or die "mkdir: $!";
my @nodes = map { zk_server("s$_", $zk) } 1 .. SERVERS;

# What must never run twice at once, in plain SQL so that no time goes into starting
# programs. Without the lock a reader may find the file just truncated.
my $critical = <<"END";
SELECT coalesce(nullif(pg_read_file('$dir/counter'), ''), '0')::int + 1 AS n \\gset
SELECT pg_sleep(0.001) \\gset
COPY (SELECT :n) TO '$dir/counter';
\\set log $dir/log/ :n
COPY (SELECT :token) TO :'log';
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
	unlink "$dir/counter", glob "$dir/log/*";
	append_to_file("$dir/counter", "0\n");
	return;
}

# Control: without the lock the same clients lose increments. If they did not, the test
# proper would prove nothing.
reset_counter();
ok(run_clients("\\set token 0\n" . $critical x 20, 4), 'clients ran without the lock');
my $unlocked = slurp_file("$dir/counter");
chomp $unlocked;
cmp_ok($unlocked, '<', SERVERS * 4 * 20, 'and lost increments: the rig can see two at once');

reset_counter();
my $guarded = "SELECT zk_lock_acquire('exclusion/counter') AS token \\gset\n"
  . $critical
  . "SELECT zk_lock_release('exclusion/counter');\n";
ok(run_clients($guarded x ROUNDS, CLIENTS), 'clients ran with the lock');

my $expected = SERVERS * CLIENTS * ROUNDS;
my $counter = slurp_file("$dir/counter");
chomp $counter;
is($counter, $expected, 'no increment was lost');

my @tokens = map { my $t = -e "$dir/log/$_" ? slurp_file("$dir/log/$_") : 0; chomp $t; $t } 1 .. $expected;
is(scalar(grep { $_ <= 0 } @tokens), 0, 'every increment left its token');
is(scalar(grep { $tokens[$_] <= $tokens[ $_ - 1 ] } 1 .. $#tokens), 0, 'tokens rise from one holder to the next');

foreach my $node (@nodes)
{
	unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, $node->name . ' had no crash');
}
ok(defined poll_until(sub { !contenders($zk, 'exclusion/counter') }, 2), 'no node is left');

done_testing();
