# Directories in which there is what should not be: nodes of the dead, nodes of others with
# unreadable data, thousands that are no contenders, and directories that are reaped
# while they are used. Waits are bounded and name who is in the way; who is deleted by an
# operator is in nobody's way.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, java => ['-Dznode.container.checkIntervalMs=200'])->start;
my $node = zk_server('a', $zk);
my $uuid = '01234567-89ab-cdef-0123-456789abcdef';

#
# Planted contenders. A node whose ZooKeeper session is dead and which the ensemble has
# forgotten to remove (ZOOKEEPER-3471, -4837) cannot be had on order; one that is persistent looks the
# same and stays as long.
#

my @planted = (
	[ 'of a zklock server that died', "_c_$uuid-lock-", '{"server":"lost:5432","pid":77,"database":"shop","user":"joe","since":"2020-01-01 00:00:00Z"}',
		qr/server "lost:5432", process 77, database "shop", user "joe".*since 2020-01-01 00:00:00Z/ ],
	[ 'of Curator', "_c_$uuid-lock-", '10.0.0.1', qr/another client: "10\.0\.0\.1"/ ],
	[ 'of kazoo', '0123456789abcdef0123456789abcdef__lock__', 'host-of-kazoo', qr/another client: "host-of-kazoo"/ ],
	[ 'of a reader', "_c_$uuid-__READ__", 'reader', qr/another client: "reader"/ ],
	[ 'with nothing in it', "_c_$uuid-lock-", '', qr/another client, which does not say who it is/ ],
	[ 'with bytes that are no text', "_c_$uuid-lock-", "\xff\xfe\x80\x01\xc3\x28 \xed\xa0\x80", qr/another client, which does not say who it is/ ],
	[ 'with half of our JSON', "_c_$uuid-lock-", '{"server":"lost', qr/another client: /],
	[ 'with ten thousand bytes', "_c_$uuid-lock-", 'x' x 10000, qr/another client: "x/ ],
);

foreach my $i (0 .. $#planted)
{
	my ($what, $name, $data, $holder) = @{ $planted[$i] };
	my $lock = "planted/of case $i";
	my $path = $zk->create(lock_directory($lock) . "/$name", $data, 'sp');

	my ($answer, $took) = timed_query($node, "SELECT zk_lock_acquire('$lock', timeout => '700 ms')");
	like($answer, qr/ERROR:  55P03: could not obtain lock "\Q$lock\E" within 700 ms/, "planted, $what: the wait ends");
	like($answer, qr/DETAIL:  It is held by $holder/, "planted, $what: and names it");
	cmp_ok(length $answer, '<', 2000, "planted, $what: in a few words");
	cmp_ok($took, '<', 1.5, "planted, $what: in time");
	my $waiter = ZkTest::Session->new($node);
	$waiter->send("SELECT zk_lock_acquire('$lock')");
	ok(defined poll_until(sub { $zk->ls(lock_directory($lock)) == 2 }, 5), "planted, $what: a waiter");
	ok(!$waiter->answered, "planted, $what: waits");
	ok($zk->delete($path), "planted, $what: an operator deletes it");
	like($waiter->wait(3), qr/^\d+$/, "planted, $what: the waiter is in");
	$waiter->quit;
}

# An ephemeral one of a client that lives, and of which its owner dies.
{
	my $foreign = $zk->hold(lock_directory('planted/ephemeral') . "/_c_$uuid-lock-", 'alive');
	my $waiter = ZkTest::Session->new($node);
	$waiter->send(q{SELECT zk_lock_acquire('planted/ephemeral')});
	ok(defined poll_until(sub { $zk->ls(lock_directory('planted/ephemeral')) == 2 }, 5), 'ephemeral: a waiter');
	ok(!$waiter->answered, 'ephemeral: waits');
	ok($zk->close_session($foreign->{session}, $foreign->{password}), 'ephemeral: the ZooKeeper session of its owner is closed');
	like($waiter->wait(3), qr/^\d+$/, 'ephemeral: the waiter is in');
	$foreign->release;
	$waiter->quit;
}

#
# Thousands of children that are no contenders: of no consequence, except for the lists.
#

{
	my $strange = lock_directory('crowded');
	$zk->create($strange, '', 'p');
	my ($code) = $zk->zkcli([ 'fill', "$strange/not a contender-", 5000 ], timeout => 60);
	is($code, 0, 'five thousand foreign nodes');
	$zk->create("$strange/$_", "\xff\xfe", '')
	  foreach "_c_$uuid-lock-", "_c_$uuid-lock-123", 'lock-00000000x1', "\xc3\xbcml\xc3\xa4ut", "\xe2\x80\xae", 'x' x 300;
	my $session = ZkTest::Session->new($node);
	my $start = time;
	foreach my $i (1 .. 10)
	{
		like($session->query(q{SELECT zk_lock_acquire('crowded', timeout => '2 s')}), qr/^\d+$/, "crowded: acquired, $i");
		is($session->query(q{SELECT zk_lock_release('crowded')}), 't', "crowded: released, $i");
	}
	my $took = time - $start;
	cmp_ok($took, '<', 5, sprintf 'crowded: ten times in %.2f s', $took);
	# the worker reads the lists; whoever uses another lock does not wait for it longer than for one list
	my $other = ZkTest::Session->new($node);
	$session->send(q{DO $$ BEGIN FOR i IN 1..50 LOOP PERFORM zk_lock_acquire('crowded'), zk_lock_release('crowded'); END LOOP; END $$});
	my ($turns, $longest) = (0, 0);
	until ($session->answered)
	{
		my $before = time;
		my $answer = $other->query(q{SELECT zk_lock_acquire('next door') > 0, zk_lock_release('next door')});
		die $answer unless $answer eq 't|t';
		$turns++;
		$longest = time - $before if time - $before > $longest;
	}
	cmp_ok($turns, '>', 10, "crowded: $turns uses of another lock meanwhile");
	cmp_ok($longest, '<', 1, sprintf 'crowded: none of which took longer than %.3f s', $longest);
	is($session->wait, '', 'crowded: all worked');
	$_->quit foreach $session, $other;
	ok(defined poll_until(sub { !grep { /^_c_(?!$uuid)/ } $zk->ls($strange) }, 2), 'crowded: nothing of ours is left');
	is(scalar $zk->ls($strange), 5006, 'and all of theirs is');
}

#
# Parents that are reaped all the time, in between.
#

{
	my @sessions = map { ZkTest::Session->new($node) } 1 .. 4;
	my $reaped = sub { my $n = () = slurp_file($zk->_log_file(1)) =~ /Attempting to delete candidate container/g; return $n; };
	my $before = $reaped->();
	my $rounds = 0;
	my @errors;
	my $until = time + 20;
	while ($reaped->() < $before + 60 && time < $until)
	{
		$rounds++;
		# pauses around the time of a reaper's round, so that it comes in between
		$sessions[$_]->send(qq{DO \$\$ BEGIN FOR i IN 1..20 LOOP
			PERFORM zk_lock_acquire('reaped/of $_/deep/down/x'), zk_lock_release('reaped/of $_/deep/down/x');
			PERFORM zk_lock_acquire('reaped/all/x'), zk_lock_release('reaped/all/x');
			IF i % 10 = 0 THEN PERFORM pg_sleep(random() * 0.5); END IF;
			END LOOP; END \$\$}) foreach 0 .. 3;
		push @errors, grep { $_ ne '' } map { $_->wait(30) // 'no answer' } @sessions;
	}
	cmp_ok($reaped->() - $before, '>=', 60, 'reaped: many directories were');
	is("@errors", '', "reaped: $rounds rounds of 160 acquires worked");
	$_->quit foreach @sessions;
	ok(defined poll_until(sub { !$zk->lsr(lock_directory('reaped')) }, 10), 'reaped: in the end there is nothing left');
}

$node->stop;
done_testing();
