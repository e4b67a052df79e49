# Many acquires and releases by several connections while the network breaks at random
# moments: cut, frozen, its answers lost, for shorter and for longer than T. However each of
# them ends, it ends; nobody holds beside another; the worker lives; nothing is left.
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
use constant CLIENTS => 5;
srand $seed;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => <<'END');
zklock.session_timeout = 4s
restart_after_crash = off
log_statement = none
END
my $worker = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
my $postmaster = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid');
$postmaster =~ s/\n.*//s;

my (%count, @complaints, %holder);
sub complain { my ($text) = @_; push @complaints, $text; return; }
sub pick { return $_[ int rand @_ ]; }

# What a client does: the lock is held for the time between two answers of his.
my @clients = map { { number => $_ } } 1 .. CLIENTS;

sub start_cycle
{
	my ($client) = @_;
	$client->{session} //= ZkTest::Session->new($node, name => "client $client->{number}");
	$client->{lock} = pick('cycles/one', 'cycles/two', "cycles/of $client->{number}", "cycles/new $count{started}/x");
	my $timeout = pick(20, 300, 3000);
	my $call = rand() < 0.3 ? "zk_lock_try_acquire('$client->{lock}')"
	  : "zk_lock_acquire('$client->{lock}', timeout => '$timeout ms')";
	$client->{session}->send((rand() < 0.2 ? 'SET statement_timeout = ' . pick(10, 100, 1000) . ';' : '') . "SELECT $call");
	$client->{step} = 'acquire';
	$client->{since} = time;
	$count{started}++;
	return;
}

sub give_up
{
	my ($client) = @_;
	$client->{step} = 'give up';
	$client->{session}->send('RESET statement_timeout; SELECT zk_lock_release_all()');
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
		$client->{step} = 'release';
		$client->{session}->send("RESET statement_timeout; SELECT zk_fencing_token('$client->{lock}') = $answer; SELECT zk_lock_release('$client->{lock}')");
		return 0;
	}
	if ($step eq 'release')
	{
		$count{ $answer =~ /^t\nt$/ ? 'released' : 'lost' }++;
		complain("release: $answer") unless $answer =~ /^t\nt$/ || $answer =~ /ERROR:  ZK001:/;
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
		if ($client->{session}->answered)
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
	# wait for any of them
	IO::Select->new(map { $_->{session}{out} } @clients)->can_read(0.02) unless $moved;
}

cmp_ok($over, '>=', $cycles, "$over cycles, seed $seed");
is(scalar @complaints, 0, 'every statement ended as it may') or diag join "\n", @complaints[ 0 .. ($#complaints < 9 ? $#complaints : 9) ];
cmp_ok($faults{$_} // 0, '>', 0, "there was some $_: " . ($faults{$_} // 0)) foreach @kinds;
cmp_ok($count{granted}, '>', $cycles / 4, 'granted, and otherwise: ' . join ', ', map { "$_ $count{$_}" } sort keys %count);

$zk->proxy(1, 'pass');
$zk->proxy(1, 'accept');
foreach my $client (@clients)
{
	defined $client->{session}->wait(30) or fail("client $client->{number}: no last answer");
	$client->{session}->quit;
}
wait_for_lease($node);
ok( defined poll_until(
		sub { !grep { /-lock-\d{10}$/ } $zk->lsr(ROOT) }, 10),
	'no node is left')
  or diag join "\n", grep { /-lock-\d{10}$/ } $zk->lsr(ROOT);
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'zklock worker'}), 1, 'there is a worker');
is($node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'}), $worker, 'the same as before');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/terminated by signal|PANIC|exit code (?!1\b)/, 'no process died');
my $ends = () = PostgreSQL::Test::Utils::slurp_file($node->logfile) =~ / ended, \d+ held locks/g;
cmp_ok($ends, '>', 0, "$ends ZooKeeper sessions were lost");
diag "$over cycles with faults (", join(', ', map { "$_ $faults{$_}" } sort keys %faults), '): ',
  join(', ', map { "$_ $count{$_}" } sort keys %count), "; $ends ZooKeeper sessions were lost"
  if $ENV{CYCLES};
$node->stop;
done_testing();
