# Nothing grows: neither the worker nor the backends need more memory or file descriptors
# after many acquires and releases than after few, nor the worker after many lost connections
# and ZooKeeper sessions.
#
# SOAK_CYCLES (default 20,000) in all, by SOAK_BACKENDS (default 6) at the same time; half of them
# on one lock that all want, the others on one of their own, every fiftieth with a name that is new.
# test/soak runs it for longer.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

plan skip_all => 'the memory of an instrumented server is its instruments\'' if instrumented();

my $cycles = $ENV{SOAK_CYCLES} // 20_000;
my $backends = $ENV{SOAK_BACKENDS} // 6;
# Twenty samples; the first two are for warming up.
my $rounds = 20;
my $each = int($cycles / $rounds / $backends) || 1;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, hosts => $zk->direct_hosts);
my $worker = worker_of($node);
my @sessions = map { ZkTest::Session->new($node, name => "soak $_") } 1 .. $backends;
my %processes = ('worker' => $worker, map { ("backend $_" => $sessions[ $_ - 1 ]->backend) } 1 .. $backends);

# Kilobytes of its own: shared memory counts for whoever touches it.
sub memory
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s*(\d+) kB/m ? $1 : die;
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
is(worker_of($node), $worker, 'it was the same worker all the time');

$_->quit foreach @sessions;
$node->stop;

# Connections and ZooKeeper sessions that end.
$node->append_conf('postgresql.conf', q{zklock.hosts = '} . $zk->hosts . q{'});
$node->start;
wait_for_lease($node);
my $control = ZkTest::Session->new($node);
$worker = worker_of($node);

# Each time with a lock held, which is lost or not, and another one taken afterwards.
my $times = $ENV{SOAK_CYCLES} ? 200 : 40;
my %ends = (
	'connection' => sub { $zk->proxy(1, 'cut'); },
	'ZooKeeper session' => sub { $zk->close_session($zk->proxy(1, 'session') =~ /^ok (\S+) (\S+)/); },
);
foreach my $what (sort keys %ends)
{
	my (@memory, @files);
	my $offset = -s $node->logfile;
	my $count = sub {
		my $n = () = slurp_file($node->logfile, $offset) =~ /connected again|zklock: ZooKeeper session 0x\w+, timeout/g;
		return $n;
	};
	foreach my $i (1 .. $times)
	{
		my $before = $count->();
		$control->query(q{SELECT zk_lock_acquire('ends')});
		$ends{$what}->();
		poll_until(sub { $count->() > $before }, 10) // die "$what $i: not back";
		$control->query(q{SELECT zk_lock_release_all()});
		next unless $i % ($times / 10) == 0;
		poll_until(sub { $control->query(q{SELECT zk_lock_acquire('ends', timeout => '5 s') > 0, zk_lock_release('ends')}) eq 't|t' }, 10) // die;
		push @memory, memory($worker);
		push @files, descriptors($worker);
	}
	diag "$what: @memory kB" if $ENV{SOAK_CYCLES};
	cmp_ok($memory[-1] - $memory[1], '<=', 256, "the $what ended $times times: $memory[1] kB after a fifth of them, $memory[-1] kB at the end");
	is($files[-1], $files[1], "the $what: no more files are open");
}
is(worker_of($node), $worker, 'it was the same worker all the time');
$control->quit;
$node->stop;
done_testing();
