# Nothing grows: neither the worker nor the backends need more memory or file descriptors
# after many acquires and releases than after few.
#
# SOAK_CYCLES (default 20,000) in all, by SOAK_BACKENDS (default 6) at the same time; half of them
# on one lock that all want, the others on one of their own, every fiftieth with a name that is new.
# test/soak runs it for longer.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my ($bin) = grep { -x "$_/postgres" } split /:/, $ENV{PATH};
plan skip_all => 'the memory of an instrumented server is its instruments\'' if -e "$bin/postgres.real";

my $cycles = $ENV{SOAK_CYCLES} // 20_000;
my $backends = $ENV{SOAK_BACKENDS} // 6;
# Twenty samples; the first two are for warming up.
my $rounds = 20;
my $each = int($cycles / $rounds / $backends) || 1;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $worker = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
my @sessions = map { ZkTest::Session->new($node, name => "soak $_") } 1 .. $backends;
my %processes = ('worker' => $worker, map { ("backend $_" => $sessions[ $_ - 1 ]->backend) } 1 .. $backends);

# Kilobytes of its own: shared memory counts for whoever touches it.
sub memory
{
	my ($pid) = @_;
	return PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^RssAnon:\s*(\d+) kB/m ? $1 : die;
}

sub descriptors { my ($pid) = @_; return scalar(() = glob "/proc/$pid/fd/*"); }

foreach my $i (0 .. $#sessions)
{
	$sessions[$i]->query(<<"END");
CREATE FUNCTION pg_temp.soak(cycles int) RETURNS int LANGUAGE plpgsql AS \$\$
DECLARE
	done int := 0;
	lock text;
BEGIN
	FOR i IN 1 .. cycles LOOP
		lock := CASE WHEN i % 2 = 0 THEN 'soak/all'
			WHEN i % 50 = 1 THEN 'soak/fresh/x' || gen_random_uuid()
			ELSE 'soak/of $i' END;
		IF i % 4 < 2 THEN
			PERFORM zk_lock_acquire(lock, timeout => '60 s');
		ELSE
			CONTINUE WHEN zk_lock_try_acquire(lock) IS NULL;
		END IF;
		done := done + 1;
		IF NOT zk_lock_release(lock) THEN RAISE 'not released'; END IF;
	END LOOP;
	RETURN done;
END \$\$
END
}

my (%sample, %fds);
my ($asked, $done, $failed) = (0, 0, 0);
my $start = time;
foreach my $round (1 .. $rounds)
{
	$_->send("SELECT pg_temp.soak($each)") foreach @sessions;
	foreach my $session (@sessions)
	{
		my $answer = $session->wait(600) // 'no answer';
		$asked += $each;
		if ($answer =~ /^\d+$/) { $done += $answer; }
		else { $failed++; diag $answer; }
	}
	# The releases do not wait for ZooKeeper: a sample is of a worker that has nothing to do.
	poll_until(sub { contenders($zk, 'soak/all') == 0 }, 10) // die 'nodes are left';
	foreach my $process (keys %processes)
	{
		push @{ $sample{$process} }, memory($processes{$process});
		push @{ $fds{$process} }, descriptors($processes{$process});
	}
	diag sprintf '%7d cycles, %5d/s: worker %d kB, backends %s kB', $asked, $asked / (time - $start),
	  $sample{worker}[-1], join ' ', map { $sample{"backend $_"}[-1] } 1 .. $backends
	  if $ENV{SOAK_CYCLES};
}

is($failed, 0, "$asked cycles without an error");
cmp_ok($done, '>', $asked / 2, sprintf '%d of them held the lock, %d a second', $done, $done / (time - $start));
foreach my $process (sort keys %processes)
{
	my ($early, $late) = @{ $sample{$process} }[ 1, -1 ];
	# what a twentieth or one run of the allocator's pages may be
	my $allowed = $early / 20 > 256 ? $early / 20 : 256;
	cmp_ok($late - $early, '<=', $allowed, "$process: $early kB after a tenth of the cycles, $late kB at the end");
	is($fds{$process}[-1], $fds{$process}[1], "$process: no more files are open");
}
is($node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'}),
	$worker, 'it was the same worker all the time');

$_->quit foreach @sessions;
$node->stop;
done_testing();
