# A try at a semaphore says NULL when all leases are taken, and not when others ask at the same
# time: many at once, over a network with a round trip of 10 ms, of two servers, beside
# somebody who waits, and beside clients that leave and come. timeout => '0' is the same question,
# with an error for an answer.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my %node = map { ($_ => zk_server($_, $zk, conf => 'max_connections = 100')) } qw(a b);
my @crowd = map { ZkTest::Session->new($node{ $_ % 2 ? 'a' : 'b' }) } 1 .. 60;
my $rounds = 0;

# What $n of them, who ask at the same moment, are told: (grants, NULLs, errors...).
sub at_once
{
	my ($n, $call) = @_;
	my ($got, $null, @errors) = (0, 0);

	$_->send("SELECT $call") foreach @crowd[ 0 .. $n - 1 ];
	foreach my $session (@crowd[ 0 .. $n - 1 ])
	{
		my $answer = $session->wait(20) // 'no answer';
		if ($answer =~ /^\d+$/) { $got++ }
		elsif ($answer eq '') { $null++ }
		else { push @errors, $answer }
	}
	return ($got, $null, @errors);
}

sub leases { my ($semaphore) = @_; return scalar $zk->ls(lock_directory("$semaphore/leases")); }

sub all_release
{
	my ($semaphore) = @_;
	$_->send('SELECT zk_lock_release_all()') foreach @crowd;
	$_->wait(10) foreach @crowd;
	defined poll_until(sub { leases($semaphore) == 0 }, 10) or die 'leases are left';
	return;
}

# More leases than there are who ask: everybody gets one.
foreach my $delay (0, 5)
{
	$zk->proxy(1, 'delay', $delay);
	foreach my $n (2, 10, 30, 60)
	{
		my $semaphore = 'free/' . ++$rounds;
		my $start = time;
		is(join(' ', at_once($n, "zk_semaphore_try_acquire('$semaphore', 100)")), "$n 0",
			"try_is_not_null_with_leases_free: $n at once, 100 leases, round trip " . 2 * $delay . ' ms');
		note sprintf '%.0f ms', 1000 * (time - $start);
		is(leases($semaphore), $n, 'and each has his node');
		all_release($semaphore);
	}
}

# Fewer: as many as there are leases get one, neither more nor less, and the others hear that
# all are taken.
foreach my $leases (1, 7)
{
	foreach my $call ('try', 'timeout 0')
	{
		my $semaphore = 'scarce/' . ++$rounds;
		my ($got, $null, @errors) = at_once(30, $call eq 'try' ? "zk_semaphore_try_acquire('$semaphore', $leases)"
			: "zk_semaphore_acquire('$semaphore', $leases, timeout => '0')");
		is($got, $leases, "$call: 30 at once, $leases leases: so many get one");
		is($null, $call eq 'try' ? 30 - $leases : 0, 'NULL for the others if it was a try');
		is(scalar(grep { !/55P03: semaphore "\Q$semaphore\E" is taken/ } @errors), 0, 'and no other trouble') or diag $errors[0];
		is(scalar @errors, $call eq 'try' ? 0 : 30 - $leases, 'else an error that says so');
		defined poll_until(sub { leases($semaphore) == $leases }, 10) or die 'nodes are left of those who got none';
		all_release($semaphore);
	}
}
$zk->proxy(1, 'delay', 0);

# Somebody waits, and so has the turn: a try need not wait for it. What he waits for is his when it
# comes, tries or no tries.
{
	my ($holder, $waiter, $second, @others) = @crowd;
	$holder->query(q{SELECT zk_semaphore_acquire('turn', 1)});
	$waiter->send(q{SELECT zk_semaphore_acquire('turn', 1)});
	defined poll_until(sub { leases('turn') == 2 }, 10) or die 'nobody waits';
	$second->send(q{SELECT zk_semaphore_acquire('turn', 1)});
	defined poll_until(sub { $zk->ls(lock_directory('turn/locks')) == 2 }, 10) or die 'nobody queues';
	my $start = time;
	is($others[0]->query(q{SELECT zk_semaphore_try_acquire('turn', 1)}), '', 'a try beside a waiter: taken');
	cmp_ok(time - $start, '<', 0.3, 'which it says at once');
	# twice as many leases, for those who say so: the waiter's node takes one of them
	like($others[0]->query(q{SELECT zk_semaphore_try_acquire('turn', 3)}), qr/WARNING.*different numbers of leases.*\n\d+$/s, 'one that counts more of them gets one');
	$others[0]->query(q{SELECT zk_semaphore_release('turn')});
	$_->send(q{DO $$ BEGIN FOR i IN 1..100 LOOP PERFORM zk_semaphore_try_acquire('turn', 1); END LOOP; END $$}) foreach @others[ 0 .. 5 ];
	$holder->query(q{SELECT zk_semaphore_release('turn')});
	like($waiter->wait(10), qr/^\d+$/, 'a_waiter_for_a_lease_is_not_overtaken_by_tries');
	$_->wait(30) foreach @others[ 0 .. 5 ];
	$waiter->query(q{SELECT zk_semaphore_release('turn')});
	like($second->wait(10), qr/^\d+$/, 'nor the one behind him');
	all_release('turn');
}

# The mutex of a semaphore is held by somebody who does nothing with it: a program that died, until
# its ZooKeeper session ends. Leases are free.
{
	$zk->create(lock_directory('stuck'));
	$zk->create(lock_directory('stuck/locks'));
	my $dead = $zk->hold(lock_directory('stuck/locks') . '/_c_0b0e8ed6-7a1f-4b0a-9f59-3c1d3ac7a0f3-lock-');
	like($crowd[0]->query(q{SELECT zk_semaphore_try_acquire('stuck', 2)}), qr/^\d+$/, 'try_gets_a_lease_though_nobody_gets_the_turn');
	like($crowd[1]->query(q{SELECT zk_semaphore_acquire('stuck', 2, timeout => '0')}), qr/^\d+$/, 'and so does one that would rather fail than wait');
	is($crowd[2]->query(q{SELECT zk_semaphore_try_acquire('stuck', 2)}), '', 'until there are no more');
	$dead->release;
	all_release('stuck');
}

# Never more than there are: tries, waits and ends of connections, all at once, for some seconds.
# Each says under the lease that it is in, in a table of server a, which says how many are.
$node{a}->safe_psql('postgres', <<'END');
CREATE TABLE inside (who int PRIMARY KEY);
CREATE TABLE most (n int, tried boolean);
CREATE PROCEDURE take_turns(who int, ends timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	tries boolean;
	lease bigint;
BEGIN
	WHILE clock_timestamp() < ends LOOP
		tries := random() < 0.7;
		IF tries THEN
			lease := zk_semaphore_try_acquire('mixed', 3);
		ELSE
			lease := zk_semaphore_acquire('mixed', 3, '20 s');
		END IF;
		IF lease IS NOT NULL THEN
			INSERT INTO inside VALUES (who);
			COMMIT;
			PERFORM pg_sleep(0.005);
			INSERT INTO most SELECT count(*), tries FROM inside;
			DELETE FROM inside WHERE inside.who = take_turns.who;
			COMMIT;
			PERFORM zk_semaphore_release('mixed');
		END IF;
		COMMIT;
	END LOOP;
END $$;
END
{
	my @own = map { ZkTest::Session->new($node{a}) } 1 .. 12;
	my $ends = $own[0]->query(q{SELECT clock_timestamp() + '5 s'});
	$own[$_]->send("CALL take_turns($_, '$ends')") foreach 0 .. $#own;
	my @foreign = map { ZkTest::Session->new($node{b}) } 1 .. 2;
	my $until = time + 2.5;
	# the second half is theirs alone
	while (time < $until)
	{
		# those of the other server take the leases away from the first, and leave as they please
		$_->query(q{SELECT zk_semaphore_try_acquire('mixed', 3)}) foreach @foreign;
		my $victim = shift @foreign;
		$victim->kill_client;
		push @foreign, ZkTest::Session->new($node{b});
	}
	$_->kill_client foreach @foreign;
	is(join("\n", grep { $_ ne '' } map { $_->wait(40) // 'no answer' } @own), '', 'no errors');
	is($node{a}->safe_psql('postgres', 'SELECT max(n) FROM most'), 3, 'never_more_leases_than_there_are_with_tries_beside_waits');
	is($node{a}->safe_psql('postgres', 'SELECT count(*) > 20 AND bool_or(tried) AND NOT bool_and(tried) FROM most'), 't', 'of both kinds there were enough');
	note $node{a}->safe_psql('postgres', q{SELECT string_agg(format('%s at a time, tried %s: %s', n, tried, count), '; ') FROM (SELECT n, tried, count(*) FROM most GROUP BY 1, 2 ORDER BY 1, 2) s});
	$_->quit foreach @own;
}

# A lock's tries have the same to say: of those who ask at the same moment one holds, and all others
# were told by somebody who is there that it is taken.
$zk->proxy(1, 'delay', 5);
foreach my $mode (qw(exclusive write))
{
	my $lock = "tried/$mode";
	foreach my $round (1 .. 3)
	{
		my ($got, $null, @errors) = at_once(30, "zk_lock_try_acquire('$lock', '$mode')");
		is("$got $null @errors", '1 29 ', "$mode: of thirty who try a free lock one gets it");
		$_->send('SELECT zk_lock_release_all()') foreach @crowd[ 0 .. 29 ];
		$_->wait(10) foreach @crowd[ 0 .. 29 ];
		defined poll_until(sub { !$zk->ls(lock_directory($lock)) }, 5) or die 'nodes are left';
	}
}
is(join(' ', at_once(30, q{zk_lock_try_acquire('tried/read', 'read')})), '30 0', 'read: all do');
$_->query('SELECT zk_lock_release_all()') foreach @crowd[ 0 .. 29 ];
# one's own node, on its way out, is nobody's
is($crowd[0]->query(<<'END'), '0', 'try_after_release_does_not_find_its_own_node');
CREATE TEMP TABLE said AS
SELECT zk_lock_try_acquire('again') AS token, zk_lock_release('again') FROM generate_series(1, 50);
SELECT count(*) FROM said WHERE token IS NULL;
END

# Nor is it when its deletion does not get through at first: it travelled with that of a node which
# somebody else has deleted, so that both fail and are sent again, behind the question of the try.
$zk->proxy(1, 'delay', 100);
foreach my $round (1 .. 3)
{
	foreach my $kind ([ 'lock', q{zk_lock_acquire('mine')}, q{zk_lock_try_acquire('mine')} ],
		[ 'lease', q{zk_semaphore_acquire('mine', 1)}, q{zk_semaphore_try_acquire('mine', 1)} ])
	{
		my ($what, $acquire, $try) = @$kind;
		my ($holder) = $crowd[1];
		$holder->query("SELECT $acquire, zk_lock_acquire('gone')");
		my ($node) = contenders($zk, 'gone');
		$zk->delete(lock_directory('gone') . "/$node");
		# before the news has come
		like($holder->query("SELECT zk_lock_release_all(), $try IS NOT NULL"), qr/^2\|t$/m,
			"try_after_a_release_that_has_to_be_repeated_is_not_null: $what");
		$holder->query('SELECT zk_lock_release_all()');
	}
}
$zk->proxy(1, 'delay', 0);

$_->quit foreach @crowd;
$_->stop foreach values %node;
done_testing();
