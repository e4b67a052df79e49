# Many acquires and releases, in all modes, by several connections while the network breaks at
# random moments: cut, frozen, its answers lost, for shorter and for longer than T. However each of
# them ends, it ends; nobody holds beside another who must not; the worker lives; nothing is left.
#
#	test/run [--asan | --valgrind] 032_cycles_with_faults.pl
#
# CYCLES (default 300 or more, until each fault was there), CYCLES_SEED. With 10,000 and a sanitizer this is where a use after free
# in the handling of lost requests and old handles would show.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $cycles = $ENV{CYCLES} // 300;
my $seed = $ENV{CYCLES_SEED} // 1;
use constant CLIENTS => 8;
srand $seed;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => <<'END');
zklock.session_timeout = 4s
restart_after_crash = off
log_statement = none
END
my $worker = worker_of($node);

my (%count, @complaints);
my $contender = qr/(?:-lock-|__READ__|__WRIT__|-lease-)\d{10}$/;
sub complain { my ($text) = @_; push @complaints, $text; return; }
sub pick { return $_[ int rand @_ ]; }

# What clients do: take a lock in some mode, or a lease of a semaphore of two, keep it for a while,
# and ask for its token and give it back at once.
my @clients = map { { number => $_ } } 1 .. CLIENTS;

sub start_cycle
{
	my ($client) = @_;
	$client->{session} //= ZkTest::Session->new($node, name => "client $client->{number}");
	$count{started}++;
	my $timeout = pick(20, 300, 3000);
	my ($try, $call) = (rand() < 0.3);
	if (rand() < 0.1)
	{
		@$client{qw(lock mode)} = ('cycles/semaphore', 'lease');
		$call = $try ? q{zk_semaphore_try_acquire('cycles/semaphore', 2)} : "zk_semaphore_acquire('cycles/semaphore', 2, '$timeout ms')";
	}
	else
	{
		$client->{mode} = pick('exclusive', 'exclusive', 'read', 'write');
		$client->{lock} = pick('cycles/one', 'cycles/one', 'cycles/two', "cycles/of $client->{number}", "cycles/new $count{started}/x");
		$call = $try ? "zk_lock_try_acquire('$client->{lock}', '$client->{mode}')"
		  : "zk_lock_acquire('$client->{lock}', '$client->{mode}', '$timeout ms')";
	}
	$client->{session}->send((rand() < 0.2 ? 'SET statement_timeout = ' . pick(10, 100, 1000) . ';' : '') . "SELECT $call");
	$client->{step} = 'acquire';
	$client->{since} = time;
	return;
}

sub give_up
{
	my ($client) = @_;
	$client->{step} = 'give up';
	$client->{session}->send('RESET statement_timeout; SELECT zk_lock_release_all()');
	return;
}

# Those who must not hold together. Whoever was seen to hold when the other one was granted says in
# his next answer whether he did all the time.
sub look_for_overlaps
{
	my ($client) = @_;
	my @others = grep { $_ != $client && $_->{step} eq 'hold' && $_->{lock} eq $client->{lock} } @clients;
	if ($client->{mode} eq 'lease')
	{
		$_->{beside} = $client->{number} foreach @others > 1 ? @others : ();
		return;
	}
	foreach my $other (@others)
	{
		$other->{beside} = $client->{number} unless $client->{mode} eq 'read' && $other->{mode} eq 'read';
		$count{'read together'}++ if $client->{mode} eq 'read' && $other->{mode} eq 'read';
	}
	return;
}

sub let_go
{
	my ($client) = @_;
	my $lock = $client->{lock};
	$client->{step} = 'release';
	$client->{since} = time;
	$client->{session}->send('RESET statement_timeout; '
		  . ($client->{mode} eq 'lease' ? "SELECT true; SELECT zk_semaphore_release('$lock')"
			: "SELECT zk_fencing_token('$lock') = $client->{token}; SELECT zk_lock_release('$lock')"));
	return;
}

# The next step; true when a cycle is over.
sub go_on
{
	my ($client, $answer) = @_;
	my $step = $client->{step};
	if ($step eq 'acquire')
	{
		# a client may be gone at any moment
		if (rand() < 0.02)
		{
			delete($client->{session})->kill_client;
			$count{'killed'}++;
			return 1;
		}
		$count{ $answer =~ /^\d+$/ ? 'granted' : $answer eq '' ? 'taken' : $answer =~ /ERROR:  (\w{5}):/ ? $1 : $answer }++;
		if ($answer !~ /^\d+$/)
		{
			complain("acquire: $answer") unless $answer eq '' || $answer =~ /ERROR:  (?:55P03|57014|ZK001|ZK003):/;
			give_up($client);
			return 0;
		}
		look_for_overlaps($client);
		@$client{qw(step token beside until)} = ('hold', $answer, 0, time + rand pick(0, 0.02, 0.1));
		return 0;
	}
	if ($step eq 'release')
	{
		$count{ $answer =~ /^t\nt$/ ? 'released' : 'lost' }++;
		complain("release: $answer") unless $answer =~ /^t\nt$/ || $answer =~ /ERROR:  ZK001:/;
		complain("clients $client->{number} ($client->{mode}) and $client->{beside} held $client->{lock} together")
		  if $client->{beside} && $answer =~ /^t\n/ && $client->{mode} ne 'lease';
		complain("more than two leases with those of $client->{number} and $client->{beside}")
		  if $client->{beside} && $answer =~ /^t\nt$/ && $client->{mode} eq 'lease';
		return 1 if $answer =~ /^t\nt$/;
		give_up($client);
		return 0;
	}
	complain("give up: $answer") unless $answer =~ /^\d+$/m;
	return 1;
}

# What the network does: mostly nothing, then something for a while.
my @kinds = qw(cut freeze drop_replies lose_reply lose_request refuse);
my @long = qw(freeze drop_replies refuse);
my ($fault, $fault_until, %faults) = ('', time + 0.5);
my @deck;
my $decks = 0;
sub next_fault
{
	if ($fault ne '')
	{
		$zk->proxy(1, 'pass');
		$zk->proxy(1, 'accept') if $fault eq 'refuse';
		$fault = '';
		$fault_until = time + rand 0.6;
		return;
	}
	# as cards are dealt, so that each comes as often as it should
	if (!@deck)
	{
		@deck = (@kinds, $decks % 3 == 0 ? "long $long[ $decks / 3 % @long ]" : ());
		$decks++;
		my %order = map { ($_ => rand) } @deck;
		@deck = sort { $order{$a} <=> $order{$b} } @deck;
	}
	my $card = shift @deck;
	$faults{$card}++;
	$fault = $card =~ s/^long //r;
	$zk->proxy(1, $fault);
	$zk->proxy(1, 'cut') if $fault eq 'refuse';
	# a long one takes the ZooKeeper session with it
	$fault_until = time + ($card =~ /^long/ ? 5 + rand 2 : rand 0.5);
	return;
}

my ($over, $until) = (0, time + ($ENV{ZKLOCK_TEST_SECONDS} // 600) - 60);
start_cycle($_) foreach @clients;
while (($over < $cycles || $decks < 1 || @deck || $fault ne '') && time < $until)
{
	next_fault() if time > $fault_until;
	my $moved = 0;
	foreach my $client (@clients)
	{
		if ($client->{step} eq 'hold')
		{
			let_go($client) if time >= $client->{until};
		}
		elsif ($client->{session}->answered)
		{
			$moved = 1;
			$client->{since} = time;
			if (go_on($client, $client->{session}->wait(0) // ''))
			{
				$over++;
				start_cycle($client);
			}
		}
		elsif (time - $client->{since} > 30)
		{
			complain("$client->{step} of $client->{lock}: no answer for 30 s");
			$until = 0;
		}
	}
	# wait for any of them, or for the end of a hold
	IO::Select->new(map { $_->{session}{out} } @clients)->can_read(0.005) unless $moved;
}

cmp_ok($over, '>=', $cycles, "$over cycles, seed $seed");
is(scalar @complaints, 0, 'every statement ended as it may, and no two held what only one may') or diag join "\n", @complaints[ 0 .. ($#complaints < 9 ? $#complaints : 9) ];
cmp_ok($faults{$_} // 0, '>', 0, "there was some $_: " . ($faults{$_} // 0)) foreach @kinds;
cmp_ok($count{granted}, '>', $cycles / 4, 'granted, and otherwise: ' . join ', ', map { "$_ $count{$_}" } sort keys %count);

$zk->proxy(1, 'pass');
$zk->proxy(1, 'accept');
foreach my $client (@clients)
{
	let_go($client) if $client->{step} eq 'hold';
	defined $client->{session}->wait(30) or fail("client $client->{number}: no last answer");
	$client->{session}->quit;
}
wait_for_lease($node);
ok( defined poll_until(
		sub { !grep { /$contender/ } $zk->lsr(ROOT) }, 10),
	'no node is left')
  or diag join "\n", grep { /$contender/ } $zk->lsr(ROOT);
is(worker_of($node), $worker, 'the worker is the same as before');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/terminated by signal|PANIC|exit code (?!1\b)/, 'no process died');
my $ends = () = PostgreSQL::Test::Utils::slurp_file($node->logfile) =~ / ended, \d+ held locks/g;
cmp_ok($ends, '>', 0, "$ends ZooKeeper sessions were lost");
diag "$over cycles with faults (", join(', ', map { "$_ $faults{$_}" } sort keys %faults), '): ',
  join(', ', map { "$_ $count{$_}" } sort keys %count), "; $ends ZooKeeper sessions were lost"
  if $ENV{CYCLES};
$node->stop;
done_testing();
