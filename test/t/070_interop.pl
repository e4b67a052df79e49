# Locks shared with other clients of ZooKeeper: Apache Curator, kazoo and Go, each as the
# holder and as the one who waits. What cannot work is shown as well, so that
# doc/interop.md stays true.
#
# INTEROP_CELL_ROUNDS (20): rounds of each cell.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use ZkPeers;
use ZkTest;

my $rounds = $ENV{INTEROP_CELL_ROUNDS} // 20;
my $zk = ZkEnsemble->new(tick => 500)->start;
my $node_a = zk_server('a', $zk);
my $node_b = zk_server('b', $zk, conf => 'zklock.session_timeout = 4s');

my @kinds = qw(Curator kazoo Go);
my %process;
foreach my $kind (@kinds)
{
	my $missing = peer_missing($kind);
	$process{$kind} = ZkPeers->start($kind, $zk->hosts) unless defined $missing;
	diag "$kind: $missing" if defined $missing;
}

# skip_unless($count, @kinds), within a block SKIP
sub skip_unless
{
	my ($count, @needed) = @_;
	foreach my $kind (@needed)
	{
		my $missing = peer_missing($kind) // next;
		skip($missing, $count);
	}
	return;
}

sub peer { my ($kind) = @_; return $kind eq 'zklock' ? ZkPeers->zklock($node_a) : $process{$kind}->client; }

# The answer, which has to be this one.
sub expect
{
	my ($client, $what, $timeout) = @_;
	my $answer = $client->answer($timeout) // { what => 'no answer' };
	die $client->kind . ": $answer->{what}, not $what: " . ($answer->{text} // '') if $answer->{what} ne $what;
	return $answer;
}

sub acquired { my ($client, @what) = @_; $client->acquire(@what); return expect($client, 'acquired')->{node}; }
sub released { my ($client, @what) = @_; $client->release(@what); return expect($client, 'released'); }

# Wait until a client that asked has either got the lock or waits behind $node: 'acquired',
# 'waits', or an error.
sub outcome
{
	my ($client, $lock, $node) = @_;
	my $outcome = 'neither waits nor acquires';
	poll_until(
		sub {
			if (my $answer = $client->take)
			{
				$outcome = $answer->{what} . ($answer->{text} ? ": $answer->{text}" : '');
				return 1;
			}
			my %queue = queue_of($zk, $lock);
			my @others = grep { $_ ne $node } keys %queue;
			return 0 unless @others == 1 && exists $queue{$node};
			# a holder of ours is watched by its own server, too
			$outcome = 'waits' if grep { $_ eq $queue{ $others[0] } } watchers_of($zk, $lock, $node);
			return $outcome eq 'waits';
		},
		10);
	return $outcome;
}

# ---------------------------------------------------------------------
# The matrix

# What each writes, as far as it has the kind.
my $uuid = qr/[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}/;
my %curator_name = (
	mutex => qr/^_c_$uuid-lock-\d{10}$/,
	read => qr/^_c_$uuid-__READ__\d{10}$/,
	write => qr/^_c_$uuid-__WRIT__\d{10}$/,
	semaphore => qr/^_c_$uuid-lease-\d{10}$/,
);
my $kazoo_lock = qr/^[0-9a-f]{32}__lock__\d{10}$/;
my %name = (
	zklock => \%curator_name,
	Curator => \%curator_name,
	kazoo => { mutex => $kazoo_lock, plain => $kazoo_lock, write => $kazoo_lock, read => qr/^[0-9a-f]{32}__rlock__\d{10}$/ },
	Go => { mutex => qr/^_c_[0-9a-f]{32}-lock-\d{10}$/ },
);

my @matrix;    # lines of the table
my $cells = 0;

# One cell: $rounds times $holder holds and $waiter asks. Both hold together, or not.
sub cell
{
	my ($holder_is, $holder_kind, $waiter_is, $waiter_kind, %opt) = @_;
	my $lock = 'cell-' . ++$cells;
	my $what = "$holder_is holds $holder_kind, $waiter_is asks for $waiter_kind" . ($opt{leases} ? ' of two' : '');
	my %seen = (waited => 0, overlapped => 0, granted => 0, wrong_names => 0);
	my $wait = 0;
	my $directory = $holder_kind eq 'semaphore' ? "$lock/leases" : $lock;
	my @leases = $holder_kind eq 'semaphore' ? $opt{leases} // 1 : ();
	my ($holder, $waiter) = (peer($holder_is), peer($waiter_is));

	foreach my $round (1 .. $rounds)
	{
		my $node = acquired($holder, $holder_kind, $lock, @leases);
		my $waiters_node;

		$waiter->acquire($waiter_kind, $lock, @leases);
		if ($opt{together})
		{
			$waiters_node = expect($waiter, 'acquired')->{node};
			$seen{overlapped}++ if keys %{ { queue_of($zk, $directory) } } == 2;
			released($holder);
		}
		else
		{
			my $outcome = $holder_kind eq 'semaphore' ? wait_for_lease_node($waiter, $directory, $lock) : outcome($waiter, $lock, $node);
			die "$what: $outcome" unless $outcome =~ /^(?:waits|acquired)$/;
			if ($outcome eq 'acquired')
			{
				$seen{overlapped}++;
				released($_) foreach $waiter, $holder;
				next;
			}
			$seen{waited}++;
			$holder->release;
			my $start = time;
			expect($holder, 'released');
			$waiters_node = expect($waiter, 'acquired')->{node};
			$wait = time - $start if time - $start > $wait;
		}
		$seen{granted}++;
		$seen{wrong_names}++ if $node !~ $name{$holder_is}{$holder_kind} || $waiters_node !~ $name{$waiter_is}{$waiter_kind};
		released($waiter);
	}
	my $expected = $opt{together} ? "0 waited, $rounds together" : "$rounds waited, 0 together";
	is("$seen{waited} waited, $seen{overlapped} together, $seen{granted} granted, $seen{wrong_names} wrong names",
		"$expected, $rounds granted, 0 wrong names", $what);
	push @matrix, sprintf '%-8s %-10s %-8s %-10s %s', $holder_is, $holder_kind, $waiter_is, $waiter_kind,
	  $opt{together} ? "$seen{overlapped} of $rounds together"
	  : sprintf('%d of %d waited, granted within %.0f ms', $seen{waited}, $rounds, 1000 * $wait);
	return;
}

# The watch on a directory is not among those that the server lists. A client that asked
# for the list of leases after its own lease was made has decided by the time that another
# request of the same ZooKeeper session, sent when the lease was seen, is answered.
sub wait_for_lease_node
{
	my ($waiter, $directory, $lock) = @_;
	my $outcome = 'neither waits nor acquires';
	poll_until(
		sub {
			my $answer = $waiter->take;
			$outcome = $answer->{what} if $answer;
			return $answer || keys %{ { queue_of($zk, $directory) } } == 2;
		},
		10);
	return $outcome if $outcome eq 'acquired';
	my $other = peer($waiter->kind);
	$other->participants('semaphore', $lock);
	return 'not two leases' if @{ expect($other, 'participants')->{nodes} } != 2;
	my $answer = $waiter->take;
	return $answer ? $answer->{what} : 'waits';
}

my @shared = (
	[ 'read', 'read', together => 1 ],
	[ 'read', 'write' ],
	[ 'write', 'read' ],
	[ 'write', 'write' ],
);
my %cells = (
	Curator => [ [ 'mutex', 'mutex' ], @shared, [ 'semaphore', 'semaphore' ], [ 'semaphore', 'semaphore', together => 1, leases => 2 ] ],
	kazoo => [ [ 'mutex', 'mutex' ], @shared ],
	Go => [ [ 'mutex', 'mutex' ] ],
);
foreach my $kind (@kinds)
{
	foreach my $c (@{ $cells{$kind} })
	{
		SKIP:
		{
			push @matrix, sprintf '%-8s %-10s %-8s %-10s skipped', $kind, $c->[0], 'zklock', $c->[1] if peer_missing($kind);
			skip_unless(2, $kind);
			my ($held, $asked, %opt) = @$c;
			cell($kind, $held, 'zklock', $asked, %opt);
			cell('zklock', $held, $kind, $asked, %opt);
		}
	}
}
# zklock's exclusive mode conflicts with the other two, and kazoo can be told to see it.
SKIP:
{
	skip_unless(5, 'kazoo');
	cell('kazoo', 'plain', 'zklock', 'mutex');
	cell('kazoo', $_, 'zklock', 'mutex') foreach qw(read write);
	cell('zklock', 'mutex', 'kazoo', $_) foreach qw(read write);
}
SKIP:
{
	skip_unless(2, 'Curator');
	cell('Curator', $_, 'zklock', 'mutex') foreach qw(read write);
}

# ---------------------------------------------------------------------
# What cannot hold

# Both hold: what the documentation warns of.
sub both_hold
{
	my ($holder_is, $holder_kind, $waiter_is, $waiter_kind, $why) = @_;
	my $lock = 'cell-' . ++$cells;
	my ($holder, $waiter) = (peer($holder_is), peer($waiter_is));
	my $node = acquired($holder, $holder_kind, $lock, 1);

	$waiter->acquire($waiter_kind, $lock, 1);
	my $outcome = outcome($waiter, $lock, $node);
	is($outcome, 'acquired', "documented: $holder_is holds $holder_kind and $waiter_is gets $waiter_kind: $why");
	ok(exists { queue_of($zk, $lock) }->{$node}, 'while the holder has its node');
	push @matrix, sprintf '%-8s %-10s %-8s %-10s BOTH HOLD: %s', $holder_is, $holder_kind, $waiter_is, $waiter_kind, $why
	  if $outcome eq 'acquired';
	released($holder);
	expect($waiter, 'acquired') if $outcome eq 'waits';
	released($waiter);
	return;
}

SKIP:
{
	skip_unless(6, 'kazoo');
	both_hold('zklock', 'mutex', 'kazoo', 'plain', 'without the pattern it sees only its own names');
	both_hold('zklock', 'write', 'kazoo', 'mutex', 'its pattern is not that of the write locks');
	both_hold('kazoo', 'semaphore', 'zklock', 'semaphore', 'their leases lie elsewhere');
}
SKIP:
{
	skip_unless(2, 'kazoo', 'Curator');
	both_hold('kazoo', 'mutex', 'Curator', 'mutex', "Curator does not see kazoo's names");
}
SKIP:
{
	skip_unless(6, 'Curator');
	my $why = "Curator's mutex and its read and write locks do not see each other";
	both_hold('Curator', 'write', 'Curator', 'mutex', $why);
	both_hold('zklock', 'write', 'Curator', 'mutex', $why);
	both_hold('zklock', 'mutex', 'Curator', 'write', $why);
}
{
	# The recipe in C or Java that comes with ZooKeeper
	$zk->create(lock_directory('recipe'));
	my $recipe = $zk->hold(lock_directory('recipe') . '/x-0100000000000000-');
	my $z = peer('zklock');
	is($z->acquire('mutex', 'recipe')->answer(10)->{what}, 'acquired', "documented: zklock does not wait for ZooKeeper's own recipes");
	ok(exists { queue_of($zk, 'recipe') }->{ $recipe->{path} =~ s{.*/}{}r }, 'while the holder has its node');
	$recipe->release;
	released($z);
}

# Go fails on a child that it cannot parse, and leaves its own node there.
sub go_gives_up
{
	my ($lock, $what, $then) = @_;
	my $go = ZkPeers->start('Go', $zk->hosts);
	my ($g, $z) = ($go->client, peer('zklock'));

	like($g->acquire('mutex', $lock)->answer(10)->{text}, qr/parsing/, "documented: Go gives up where there is $what");
	$then->();
	my ($left) = grep { $_ =~ $name{Go}{mutex} } keys %{ { queue_of($zk, $lock) } };
	ok(defined $left, 'and leaves a node behind');
	$z->acquire('mutex', $lock);
	outcome($z, $lock, $left) eq 'waits' or die 'does not wait';
	$go->stop;
	is(expect($z, 'acquired')->{what}, 'acquired', 'until its ZooKeeper session ends');
	released($z);
	push @matrix, sprintf '%-8s %-10s %-8s %-10s ERROR: it cannot parse %s', '', '', 'Go', 'mutex', $what;
	return;
}
SKIP:
{
	skip_unless(3, 'Go', 'kazoo');
	my $k = peer('kazoo');
	acquired($k, 'mutex', 'go');
	go_gives_up('go', "kazoo's name", sub { released($k) });
}
SKIP:
{
	skip_unless(6, 'Go');
	my $z = peer('zklock');
	acquired($z, 'mutex', 'nest/below');
	acquired($z, 'read', 'go-rw');
	go_gives_up('go-rw', 'a read lock', sub { released($z, 'read') });
	go_gives_up('nest', 'a lock whose name goes on below', sub { released($z) });
}
SKIP:
{
	skip_unless(2, qw(Curator kazoo));
	my $z = peer('zklock');
	acquired($z, 'mutex', 'nest/below');
	foreach my $kind (qw(Curator kazoo))
	{
		my $client = peer($kind);
		is($client->acquire('mutex', 'nest')->answer(10)->{what}, 'acquired', "$kind does not mind a lock whose name goes on below");
		released($client);
	}
	released($z);
}

note $_ foreach 'holder   kind       other    kind       outcome', @matrix;

# ---------------------------------------------------------------------
# Everybody lists everybody

SKIP:
{
	skip_unless(8, 'Curator', 'kazoo');
	my ($z, $c, $k, $z2) = map { peer($_) } qw(zklock Curator kazoo zklock);
	my @nodes = acquired($z, 'mutex', 'listed');
	foreach my $client ($c, $k)
	{
		$client->acquire('mutex', 'listed');
		poll_until(sub { keys %{ { queue_of($zk, 'listed') } } == @nodes + 1 }, 10) // die 'not queued';
		push @nodes, grep { my $n = $_; !grep { $_ eq $n } @nodes } keys %{ { queue_of($zk, 'listed') } };
	}
	$z2->participants('mutex', 'listed');
	is_deeply(expect($z2, 'participants')->{nodes}, \@nodes, 'zk_lock_queue lists the nodes of Curator and kazoo, in order');
	is($z2->session->query(q{SELECT string_agg(position || holds::text || coalesce(server, '?'), ' ' ORDER BY position) FROM zk_lock_queue('listed')}) =~
		/^1truea 2false\S+ 3falsekazoo c\d+$/ ? 1 : 0, 1, 'with what they say of themselves');
	is($z2->session->query(q{SELECT token FROM zk_lock_queue('listed') WHERE position = 2}), $zk->stat(lock_directory('listed') . "/$nodes[1]")->{czxid},
		"with the czxid of each node");
	my $lister = peer('Curator');
	$lister->participants('mutex', 'listed');
	is_deeply([ sort @{ expect($lister, 'participants')->{nodes} } ], [ sort @nodes ], "Curator's getParticipantNodes lists those of zklock");
	is($nodes[0] =~ $curator_name{mutex} ? 1 : 0, 1, "whose name is as Curator's");
	$lister = peer('kazoo');
	$lister->participants('mutex', 'listed');
	my @contenders = @{ expect($lister, 'participants')->{nodes} };
	is(scalar @contenders, 3, "kazoo's contenders lists all three");
	my $pid = $z->session->backend;
	like($contenders[0], qr/^\{.*"a".*\b$pid\b.*\}$/, 'and reads what zklock says of itself');
	like($contenders[2], qr/^kazoo c\d+$/, 'and itself');
	released($z);
	expect($c, 'acquired');
	released($c);
	expect($k, 'acquired');
	released($k);
}

# ---------------------------------------------------------------------
# Downgrades

SKIP:
{
	skip_unless(6, 'Curator');
	my ($z, $c) = (peer('zklock'), peer('Curator'));
	my $written = acquired($z, 'write', 'down');
	$c->acquire('write', 'down');
	is(outcome($c, 'down', $written), 'waits', 'a writer of Curator waits');
	my $read = acquired($z, 'read', 'down');
	is(digits_of($read), digits_of($written), 'zklock takes the read lock as well, with the same digits');
	released($z, 'write');
	poll_until(sub { !exists { queue_of($zk, 'down') }->{$written} }, 5) // die 'the write node stays';
	is(outcome($c, 'down', $read), 'waits', 'downgraded: the writer of Curator still waits');
	released($z, 'read');
	expect($c, 'acquired');
	released($c);

	# and the other way round
	$written = acquired($c, 'write', 'down2');
	$z->acquire('write', 'down2');
	is(outcome($z, 'down2', $written), 'waits', 'a writer of zklock waits');
	$read = acquired($c, 'read', 'down2');
	released($c, 'write');
	# CURATOR-621: up to 5.4.0 the read node is at the end of the queue
	my $at_end = digits_of($read) > digits_of($written) ? 1 : 0;
	poll_until(sub { !exists { queue_of($zk, 'down2') }->{$written} }, 5) // die 'the write node stays';
	my $outcome = outcome($z, 'down2', $read);
	is($outcome, $at_end ? 'acquired' : 'waits',
		$at_end ? "documented: this Curator's downgrade (CURATOR-621) lets the next writer in"
		: "Curator's downgrade keeps the writer of zklock waiting");
	ok(exists { queue_of($zk, 'down2') }->{$read}, 'while the read node stands');
	note "Curator's downgrade: $outcome";
	released($c, 'read');
	expect($z, 'acquired') unless $at_end;
	released($z);
}

# kazoo #649: up to 2.8.0 a reader also waits for writers behind it, and that is a deadlock
SKIP:
{
	skip_unless(3, 'kazoo');
	my ($w1, $r, $w2) = (peer('zklock'), peer('kazoo'), peer('zklock'));
	my $first = acquired($w1, 'write', 'later');
	$r->acquire('read', 'later');
	is(outcome($r, 'later', $first), 'waits', 'a reader of kazoo waits for a writer');
	my ($readers) = grep { /__rlock__/ } keys %{ { queue_of($zk, 'later') } };
	$w2->acquire('write', 'later');
	poll_until(sub { watchers_of($zk, 'later', $readers) }, 10) // die 'the second writer does not wait';
	released($w1);
	my ($second) = grep { /__WRIT__/ && $_ ne $first } keys %{ { queue_of($zk, 'later') } };
	my $outcome = '';
	my $session = { queue_of($zk, 'later') }->{$readers};
	poll_until(sub {
			my $answer = $r->take;
			$outcome = $answer->{what} if $answer;
			$outcome = 'waits for the later one' if grep { $_ eq $session } watchers_of($zk, 'later', $second);
			return $outcome;
		}, 10);
	my $version = `/usr/bin/python3 -c 'import kazoo; print(kazoo.__version__)'`;
	my $old = $version =~ /^2\.[0-8]\./;
	is($outcome, $old ? 'waits for the later one' : 'acquired',
		$old ? 'documented: readers of kazoo before 2.9 (kazoo 649) wait for writers behind them' : 'with another behind it, it is next');
	note "kazoo $version";
	if ($old)
	{
		$node_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $w2->session->backend . ')');
		like(expect($w2, 'error')->{text}, qr/57014/, 'and one of them has to give up');
		expect($r, 'acquired');
	}
	else
	{
		ok(!$w2->take, 'the one behind waits');
	}
	released($r);
}

# ---------------------------------------------------------------------
# Asking for a lock

SKIP:
{
	skip_unless(12, 'Curator');
	my ($z, $c, $asker) = (peer('zklock'), peer('Curator'), peer('Curator'));
	my $log = -s $node_a->logfile;
	my $node = acquired($z, 'mutex', 'asked');

	$c->acquire('mutex', 'asked');
	is(outcome($c, 'asked', $node), 'waits', 'Curator waits');
	$asker->revoke('asked', $node);
	expect($asker, 'revoked');
	ok(defined poll_until(sub { slurp_file($node_a->logfile, $log) =~ /give up lock "asked".*not given up/s }, 5),
		"Curator's Revoker asks: on_revoke = ignore: a line in the log");
	is($z->session->query(q{SELECT zk_lock_is_held('asked')}), 't', 'and the lock is kept');
	is(outcome($c, 'asked', $node), 'waits', 'while Curator waits');

	$node_a->safe_psql('postgres', q{ALTER SYSTEM SET zklock.on_revoke = 'abort'});
	$node_a->reload;
	poll_until(sub { $node_a->safe_psql('postgres', 'SHOW zklock.on_revoke') eq 'abort' }, 5) // die 'no reload';
	$asker->revoke('asked', $node);
	expect($asker, 'revoked');
	is(expect($c, 'acquired')->{what}, 'acquired', 'on_revoke = abort: Curator gets it');
	like($z->session->query('SELECT 1'), qr/ZK001: lock "asked" is lost/, 'and the holder is told');
	$z->session->quit;
	released($c);

	# the other way round; a revocable node has no data
	$z = peer('zklock');
	$log = -s $node_a->logfile;
	acquired($c, 'revocable', 'broken');
	like($z->session->query(q{SELECT zk_lock_acquire('broken', timeout => '0')}),
		qr/It is held by another client, which does not say who it is, fencing token \d+/, 'a holder without data has no empty name');
	is($z->session->query(q{SELECT zk_lock_break('broken')}), 'released', 'zk_lock_break: a revocable holder of Curator lets go');
	is(expect($c, 'asked')->{what}, 'asked', 'since it was asked');
	like(slurp_file($node_a->logfile, $log), qr/lock "broken" was taken from a client that does not say who it is by user/, 'nor has it one in the log');
	expect($c, 'released');
	$node = acquired($c, 'mutex', 'broken');
	is($z->session->query(q{SELECT zk_lock_break('broken', '300 ms')}), 'deleted', 'of any other the node is deleted');
	is(join(' ', keys %{ { queue_of($zk, 'broken') } }), '', 'and gone');
	$c->release;
	$c->answer;
}

# ---------------------------------------------------------------------
# Holders that die

my @here = grep { !peer_missing($_) } @kinds;
my %died;
foreach my $kind (@here)
{
	my $d = $died{$kind} = { process => ZkPeers->start($kind, $zk->hosts, timeout => 3000) };
	my $client = $d->{process}->client;
	my $node = acquired($client, 'mutex', "dies/$kind");
	$d->{next} = peer('zklock');
	$d->{next}->acquire('mutex', "dies/$kind");
	outcome($d->{next}, "dies/$kind", $node) eq 'waits' or die "does not wait for $kind";
	# and a holder on the server that will die, with this client waiting
	my $holder = ZkPeers->zklock($node_b);
	$node = acquired($holder, 'mutex', "dies/zklock-$kind");
	$d->{holder} = $holder;
	$d->{waiter} = peer($kind)->acquire('mutex', "dies/zklock-$kind");
	outcome($d->{waiter}, "dies/zklock-$kind", $node) eq 'waits' or die "$kind does not wait";
}
my $start = time;
$died{$_}{process}->kill foreach @here;
$node_b->stop('immediate');
my %after;
poll_until(
	sub {
		foreach my $kind (@here)
		{
			foreach my $who (qw(next waiter))
			{
				next if $after{"$kind $who"};
				my $answer = $died{$kind}{$who}->take or next;
				die "$kind $who: $answer->{text}" if $answer->{what} ne 'acquired';
				$after{"$kind $who"} = time - $start;
			}
		}
		return keys %after == 2 * @here;
	},
	20);
foreach my $kind (@kinds)
{
	SKIP:
	{
		skip_unless(4, $kind);
		foreach my $cell ([ next => 3, "kill -9 of the holder, $kind: zklock is next" ], [ waiter => 4, "immediate stop of zklock's server: $kind is next" ])
		{
			my ($who, $timeout, $what) = @$cell;
			my $after = $after{"$kind $who"} // 99;
			# the last sign of life may be some time ago
			cmp_ok($after, '>', $timeout / 4, "$what, not before the ZooKeeper session is over");
			cmp_ok($after, '<', $timeout + 3, 'and soon after');
			note sprintf '%s: %.1f s after, with a ZooKeeper session of %d s', $what, $after, $timeout;
		}
	}
}

$_->stop foreach values %process;
$node_a->stop;
done_testing();
