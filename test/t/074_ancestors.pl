# Names nest: the directory of "customer/0" is a child of the directory of "customer". A client
# that locks the shorter name finds it among those who queue there. zklock and kazoo do not
# mind. Curator and Go may wait behind it until it is gone, as doc/interop.md says; but never do
# two hold.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkPeers;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my %node = map { ($_ => zk_server($_, $zk)) } qw(a b);
my %process;
foreach my $kind (qw(Curator kazoo Go))
{
	my $missing = peer_missing($kind);
	$process{$kind} = ZkPeers->start($kind, $zk->hosts) unless defined $missing;
	diag "$kind: $missing" if defined $missing;
}
my ($below, $first, $second) = map { ZkTest::Session->new($node{$_}) } qw(b a b);

sub has
{
	my ($session, $name, $mode) = @_;
	$mode //= 'exclusive';
	return $session->query("SELECT zk_lock_try_acquire('$name', '$mode') IS NOT NULL");
}

# Curator sorts what it finds; Go wants a number behind the last minus sign.
my @before = ('0', '-5', '#7', 'lock-', 'deadlock-0');
my @behind = ('42', '007', '2026-11-30', 'nightly', 'x__WRIT__', '0f8fad5b-d9cb-469f-a165-70867728950e');

# zklock: the lock below is nobody in its queue, and the other way round.
foreach my $i (0 .. $#before + @behind)
{
	my $child = (@before, @behind)[$i];
	my $name = "zklock$i";
	is(has($below, "$name/$child"), 't', "$child: the lock below");
	is(has($first, $name), 't', 'zklock_does_not_wait_for_a_lock_below');
	is(has($second, $name), 'f', 'and the lock itself is taken, once');
	is($first->query("SELECT count(*) FROM zk_lock_queue('$name')"), 1, 'one contender is shown');
	is(has($first, "$name/$child"), 'f', 'so is the one below');
	$_->query('SELECT zk_lock_release_all()') foreach $below, $first, $second;
}

# Whoever of them asks for the name while a lock below it is in use, and its directory stands
# first, waits. zklock can hold meanwhile, and is one of two who could: the other one waits, also
# when it is free.
sub waits_behind_a_child
{
	my ($kind, $child, $n, $how) = @_;
	my $name = "$kind$n";
	my $peer = $process{$kind}->client;
	my $mode = ($how //= 'mutex') eq 'mutex' ? 'exclusive' : 'write';

	is(has($below, "$name/$child"), 't', "$kind, $child: the lock below is held");
	is(has($first, $name, $mode), 't', "zklock holds the name above ($mode)");
	$peer->acquire($how, $name);
	defined poll_until(sub { keys %{ { queue_of($zk, $name) } } == 2 }, 10) or die 'does not queue';
	ok(!$peer->take, 'it waits');
	is($first->query("SELECT zk_lock_release('$name')"), 't', 'zklock lets go');
	defined poll_until(sub { keys %{ { queue_of($zk, $name) } } == 1 }, 10) or die 'zklock is still there';
	# it watches whom it waits for
	ok(defined poll_until(sub { watchers_of($zk, $name, $child) }, 10), 'documented: then it waits for the directory of the lock below');
	ok(!$peer->take, 'and does not hold');
	is(has($first, $name, $mode), 'f', 'to zklock, its node is that of somebody who waits or holds: taken');
	$first->send("SELECT zk_lock_acquire('$name', '$mode', timeout => '30 s')");
	defined poll_until(sub { keys %{ { queue_of($zk, $name) } } == 2 }, 10) or die 'zklock does not queue';
	ok(!$first->answered, 'two_never_hold_beside_a_lock_below: zklock waits for it');

	# the lock below is given back and the ensemble removes its directory
	is($below->query("SELECT zk_lock_release('$name/$child')"), 't', 'the lock below is given back');
	defined poll_until(sub { !$zk->ls(lock_directory("$name/$child")) }, 5) or die 'its node stays';
	ok(!$peer->take, 'its directory still stands: it waits');
	$zk->delete(lock_directory("$name/$child"));
	is(($peer->answer(10) // { what => 'no answer' })->{what}, 'acquired', 'its directory is gone: it holds');
	ok(!$first->answered, 'alone');
	$peer->release;
	is($peer->answer(10)->{what}, 'released', 'it lets go');
	like($first->wait(10), qr/^\d+$/, 'zklock is next');
	$_->query('SELECT zk_lock_release_all()') foreach $below, $first;
	return;
}

# Those whom the child does not get in the way of take turns with zklock as ever.
sub takes_turns_beside_a_child
{
	my ($kind, $child, $n) = @_;
	my $name = "$kind$n";
	my $peer = $process{$kind}->client;

	is(has($below, "$name/$child"), 't', "$kind, $child: the lock below is held");
	$peer->acquire('mutex', $name);
	is(($peer->answer(10) // { what => 'no answer' })->{what}, 'acquired', 'it holds the name above');
	is(has($first, $name), 'f', 'zklock does not');
	$peer->release;
	is($peer->answer(10)->{what}, 'released', 'it lets go');
	is(has($first, $name), 't', 'zklock does');
	$peer->acquire('mutex', $name);
	defined poll_until(sub { keys %{ { queue_of($zk, $name) } } == 2 }, 10) or die 'does not queue';
	ok(!$peer->take, 'and it waits');
	$first->query("SELECT zk_lock_release('$name')");
	is(($peer->answer(10) // { what => 'no answer' })->{what}, 'acquired', 'for its turn');
	$peer->release;
	$peer->answer(10);
	$below->query("SELECT zk_lock_release('$name/$child')");
	return;
}

my $n = 0;
SKIP:
{
	skip 'no Curator', 1 unless $process{Curator};
	waits_behind_a_child('Curator', $_, ++$n) foreach @before;
	waits_behind_a_child('Curator', 'x__WRIT__', ++$n, $_) foreach qw(write read);
	takes_turns_beside_a_child('Curator', $_, ++$n) foreach @behind;
}
SKIP:
{
	skip 'no kazoo', 1 unless $process{kazoo};
	takes_turns_beside_a_child('kazoo', $_, ++$n) foreach @before, @behind;
}
SKIP:
{
	skip 'no Go', 1 unless $process{Go};
	waits_behind_a_child('Go', $_, ++$n) foreach '0', 'x-0';
	takes_turns_beside_a_child('Go', $_, ++$n) foreach '4200', 'x-4200';
}

# Both ways at once, for a while: threads of Curator lock a name, backends of two servers the same
# and names below it that sort before all, so that Curator is sent to wait for one of those again
# and again. Their directories are removed as soon as they are empty, as the ensemble would within
# a minute.
SKIP:
{
	skip 'no Curator', 1 unless $process{Curator};
	my @curators = map { $process{Curator}->client } 1 .. 3;
	my @zklock = map { ZkPeers->zklock($node{ $_ % 2 ? 'a' : 'b' }) } 1 .. 3;
	my @below = map { ZkTest::Session->new($node{a}) } 0 .. 1;
	my (%holds, @twice, %grants);
	my $until = time + 5;
	my $again = 0;
	my $busy = 0;

	$_->acquire('mutex', 'busy') foreach @curators, @zklock;
	my %left = map { ($_ => $_) } @curators, @zklock;
	while (%left)
	{
		# who has it is told to let go a moment later: until then nobody else may say that he has it
		my @holders = values %holds;
		foreach my $told (wait_any(0.05, values %left))
		{
			my ($client, $answer) = @$told;
			die $client->kind . ": $answer->{text}" if $answer->{what} eq 'error';
			if ($answer->{what} eq 'acquired')
			{
				push @twice, join ' and ', $client->kind, map { $_->kind } values %holds if %holds;
				$holds{$client} = $client;
				$grants{ $client->kind }++;
			}
			elsif (time < $until)
			{
				$client->acquire('mutex', 'busy');
			}
			else
			{
				delete $left{$client};
			}
		}
		foreach my $client (@holders)
		{
			delete $holds{$client};
			$client->release;
		}
		# the locks below: given back, their directories removed, and a little later taken again
		next if time < $again;
		foreach my $i (0 .. 1)
		{
			my $held = $below[$i]->query("SELECT zk_lock_release_all()");
			$busy += $held;
			poll_until(sub { !$zk->ls(lock_directory("busy/$i")) }, 5) if $held;
			$zk->delete(lock_directory("busy/$i")) if $held;
			$below[$i]->query("SELECT zk_lock_try_acquire('busy/$i')") if !$held && time < $until;
		}
		$again = time + 0.2;
	}
	is(scalar @twice, 0, 'nobody_held_together_with_locks_below_coming_and_going');
	cmp_ok($grants{$_} // 0, '>', 3, "$_ had its turns") foreach qw(Curator zklock);
	cmp_ok($busy, '>', 10, 'and so had the locks below');
	note "grants: " . join(', ', map { "$_ $grants{$_}" } sort keys %grants) . ", below $busy";
	$_->quit foreach @below;
}

$_->quit foreach $below, $first, $second;
$_->stop foreach values %process, values %node;
done_testing();
