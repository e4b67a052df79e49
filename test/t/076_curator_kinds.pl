# The other locks of Curator: InterProcessSemaphoreMutex is a semaphore of one lease, and
# InterProcessMultiLock takes several mutexes.

use strict;
use warnings;

use Test::More;
use ZkPeers;
use ZkTest;

my $missing = peer_missing('Curator');
plan skip_all => $missing if defined $missing;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $curator = ZkPeers->start('Curator', $zk->hosts);
my ($c, $c2) = map { $curator->client } 1 .. 2;
my ($z, $z2) = map { ZkTest::Session->new($node) } 1 .. 2;

sub expect
{
	my ($client, $what, $test) = @_;
	my $answer = $client->answer(20) // { what => 'no answer' };
	is($answer->{what} . ($answer->{text} ? " $answer->{text}" : ''), $what, $test);
	return;
}

sub nodes { my ($path) = @_; return scalar $zk->ls(lock_directory($path)); }

# InterProcessSemaphoreMutex and zk_semaphore_acquire(name, 1): both ways, several times
foreach my $round (1 .. 5)
{
	$c->acquire('semaphoremutex', 'sm');
	expect($c, 'acquired', 'Curator holds a semaphore mutex');
	is($z->query(q{SELECT zk_semaphore_try_acquire('sm', 1)}), '', 'a try at a semaphore of one lease: taken');
	$z->send(q{SELECT zk_semaphore_acquire('sm', 1, '30 s')});
	poll_until(sub { nodes('sm/leases') == 2 }, 10) // die 'does not queue';
	ok(!$z->answered, 'zklock waits');
	$c->release;
	expect($c, 'released', 'Curator lets go');
	like($z->wait(10), qr/^\d+$/, 'zklock holds');
	$c2->acquire('semaphoremutex', 'sm');
	poll_until(sub { nodes('sm/leases') == 2 }, 10) // die 'does not queue';
	# an answer to a request that the same ZooKeeper session sent afterwards
	$c->participants('semaphore', 'sm');
	is(scalar @{ $c->answer(10)->{nodes} }, 2, 'there are two');
	ok(!$c2->take, 'Curator waits');
	is($z2->query(q{SELECT zk_semaphore_try_acquire('sm', 1)}), '', 'and another try says taken');
	is($z->query(q{SELECT zk_semaphore_release('sm')}), 't', 'zklock lets go');
	expect($c2, 'acquired', 'Curator holds');
	$c2->release;
	expect($c2, 'released', 'and lets go');
}
poll_until(sub { nodes('sm/leases') + nodes('sm/locks') == 0 }, 5);
is(nodes('sm/leases') + nodes('sm/locks'), 0, 'no node is left');

# Threads of Curator and tries and waits of zklock, all for one lease
{
	my @z = map { ZkTest::Session->new($node) } 1 .. 4;
	my @c = map { $curator->client } 1 .. 4;
	my ($grants, $most) = (0, 0);
	my %inside;
	my $asked = 0;

	$_->send(q{SELECT zk_semaphore_acquire('turns', 1, '60 s')}) foreach @z;
	$_->acquire('semaphoremutex', 'turns') foreach @c;
	my $done = poll_until(
		sub {
			my @leave = keys %inside;
			foreach my $i (grep { !$inside{"z$_"} } 0 .. $#z)
			{
				next unless $z[$i]->answered;
				my $answer = $z[$i]->wait(0);
				$z[$i]->send($asked++ % 2 ? q{SELECT zk_semaphore_try_acquire('turns', 1)} : q{SELECT zk_semaphore_acquire('turns', 1, '60 s')}), next
				  if $answer eq '' || $answer eq 't';
				die $answer unless $answer =~ /^\d+$/;
				$inside{"z$i"} = 1;
				$grants++;
			}
			foreach my $i (grep { !$inside{"c$_"} } 0 .. $#c)
			{
				my $told = $c[$i]->take or next;
				die $told->{text} if $told->{what} eq 'error';
				$c[$i]->acquire('semaphoremutex', 'turns'), next if $told->{what} eq 'released';
				$inside{"c$i"} = 1;
				$grants++;
			}
			$most = keys %inside if keys %inside > $most;
			foreach (@leave)
			{
				/^z/ ? $z[ substr $_, 1 ]->send(q{SELECT zk_semaphore_release('turns')}) : $c[ substr $_, 1 ]->release;
				delete $inside{$_};
			}
			return $grants >= 150;
		},
		60);
	ok(defined $done, 'a hundred and fifty turns') or diag "$grants";
	is($most, 1, 'a_semaphore_mutex_and_tries_of_zklock_never_hold_together');
	$_->kill_client foreach @z;
}
$curator->stop;
$curator = ZkPeers->start('Curator', $zk->hosts);
($c, $c2) = map { $curator->client } 1 .. 2;

# beside a lock it is nothing
$c->acquire('semaphoremutex', 'other');
expect($c, 'acquired', 'Curator holds a semaphore mutex');
like($z->query(q{SELECT zk_lock_try_acquire('other')}), qr/^\d+$/, 'documented: a lock of that name has nothing to do with it');
$c->release;
expect($c, 'released', 'Curator lets go');
$z->query('SELECT zk_lock_release_all()');

# InterProcessMultiLock: all of them or none
my $both = 'multi/one,' . lock_directory('multi/two');
foreach my $round (1 .. 5)
{
	like($z->query(q{SELECT zk_lock_acquire('multi/two')}), qr/^\d+$/, 'zklock holds one of two');
	$c->acquire('multi', $both);
	poll_until(sub { contenders($zk, 'multi/two') == 2 }, 10) // die 'does not queue';
	ok(!$c->take, 'Curator waits for both');
	is($z2->query(q{SELECT zk_lock_try_acquire('multi/one')}), '', 'with the first one taken');
	$z->query(q{SELECT zk_lock_release('multi/two')});
	expect($c, 'acquired', 'Curator holds both');
	is($z->query(qq{SELECT zk_lock_try_acquire('multi/$_')}), '', "to zklock, $_ is taken") foreach qw(one two);
	$z->send(q{SELECT zk_lock_acquire('multi/one')});
	poll_until(sub { contenders($zk, 'multi/one') == 2 }, 10) // die 'does not queue';
	ok(!$z->answered, 'zklock waits');
	$c->release;
	expect($c, 'released', 'Curator lets go of both');
	like($z->wait(10), qr/^\d+$/, 'zklock is next');
	$z->query('SELECT zk_lock_release_all()');
	poll_until(sub { nodes('multi/one') + nodes('multi/two') == 0 }, 5);
}
is(nodes('multi/one') + nodes('multi/two'), 0, 'no node is left');

$_->quit foreach $z, $z2;
$curator->stop;
$node->stop;
done_testing();
