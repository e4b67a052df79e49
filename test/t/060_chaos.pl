# Chaos: two PostgreSQL servers, three ZooKeeper nodes, a random workload, random faults,
# and a checker over what happened.
#
#	test/chaos [MINUTES] [SEED]
#
# Every transaction writes a row with the token of the lock that it holds; PostgreSQL keeps
# the time of each commit. Afterwards, from both databases and from what the clients were
# answered: no commit under a token after a higher token of the same lock was granted
# in a mode that excludes it; tokens rise in the order of the grants; every statement ended;
# no node is left. One of the locks is taken in all modes, and downgraded; the others
# exclusively.
#
# The seed decides what is tried and when, not how the machine schedules it: a seed that
# found something is likely, not sure, to find it again. CHAOS_MINUTES, CHAOS_SEED.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

my $minutes = $ENV{CHAOS_MINUTES} // 3;
my $seed = $ENV{CHAOS_SEED} // 1;
my @locks = map { "chaos/lock $_" } 'a' .. 'd';
my $shared = $locks[-1];
use constant CLIENTS => 7;    # of each server

srand $seed;
note "seed $seed, $minutes minutes";

# With an odd seed the faults of links are those of the first server only: the second one takes
# over what the first one loses. And a node that is cut off from the others answers its clients
# for longer than a lease.
my $one_sided = $seed % 2;
my $zk = ZkEnsemble->new(nodes => 3, tick => 500, proxy => 1, quorum_proxy => 1, $one_sided ? (sync_limit => 14) : ())->start;
my @servers = map {
	zk_server($_, $zk, $one_sided && $_ eq 'b' ? (hosts => $zk->direct_hosts) : (), conf => <<'END')
zklock.session_timeout = 4s
track_commit_timestamp = on
restart_after_crash = on
log_min_messages = warning
log_statement = none
END
} 'a', 'b';
$_->safe_psql('postgres', 'CREATE TABLE work (lock text, token bigint, client text, mode text)') foreach @servers;

my (@grants, %count, @violations);
my $violations = 0;

sub violation
{
	my ($text) = @_;
	$violations++;
	push @violations, $text if @violations < 20;
	return;
}

sub chance { my ($percent) = @_; return rand(100) < $percent; }
sub pick { return $_[ int rand @_ ]; }

# ---------------------------------------------------------------------
# The workload: each client is a little program of statements, one at a time

sub new_client
{
	my ($server, $number) = @_;
	return { server => $server, name => $server->name . $number, todo => [], session => undef, free_at => 0 };
}

# Connect without waiting for a server that is just restarting.
sub connect_client
{
	my ($client) = @_;
	my $session = eval { ZkTest::Session->new($client->{server}, name => $client->{name}) };
	$client->{free_at} = time + 0.3 unless $session;
	$client->{session} = $session;
	return;
}

# The next piece of work, as statements; "TOKEN" and "MODE" stand for what was granted.
sub program
{
	my ($client) = @_;
	my $lock = pick(@locks);
	my $timeout = pick('50 ms', '300 ms', '2 s', '5 s');
	my $insert = "INSERT INTO work VALUES ('$lock', TOKEN, '$client->{name}', 'MODE')";
	my $mode = $lock eq $shared ? pick('exclusive', 'read', 'read', 'read', 'write') : 'exclusive';
	my $linger = sprintf 'SELECT pg_sleep(%.3f)', rand(pick(0.02, 0.3, 1.5, 8));
	# evaluated after the grant, from left to right
	my $acquire = sub {
		my ($function, $as) = @_;
		$as //= $mode;
		my $arguments = "'$lock', '$as'" . ($function =~ /try/ ? '' : ", timeout => '$timeout'");
		return "SELECT 'granted', '$lock', '$as', $function($arguments), extract(epoch FROM clock_timestamp())";
	};
	my @settings = (
		'SET statement_timeout = ' . (chance(15) ? pick(5, 50, 400) : 0),
		"SET zklock.idle_loss = '" . pick('terminate', 'doom') . q{'});
	my $end = chance(85) ? 'COMMIT' : 'ROLLBACK';

	return (@settings, $acquire->('zk_lock_acquire', 'write'), $insert, $acquire->('zk_lock_acquire', 'read'),
		"SELECT zk_lock_release('$lock', 'write')", $insert, $linger, $insert, "SELECT zk_lock_release('$lock')")
	  if $lock eq $shared && chance(30);

	my @body =
	    chance(40) ? ($acquire->('zk_xact_lock_acquire'), $insert, $linger, $insert)
	  : chance(30) ? ('SAVEPOINT s', $acquire->('zk_xact_lock_acquire'), $insert, $linger,
		chance(50) ? ('ROLLBACK TO s', $acquire->('zk_xact_lock_acquire'), $insert) : 'RELEASE s')
	  : chance(40) ? ($acquire->('zk_xact_lock_try_acquire'), $insert, $linger)
	  : ($acquire->('zk_lock_acquire'), $insert, $linger, "SELECT zk_lock_release('$lock')");
	return (@settings, 'BEGIN', @body, $end) if chance(70);
	return (
		@settings,
		$acquire->(pick('zk_lock_acquire', 'zk_lock_try_acquire')),
		$insert, $linger, $insert,
		"SELECT zk_lock_release('$lock')");
}

# A client that has nothing to do takes a lock and says nothing for long.
sub hold_vigil
{
	my ($client) = @_;
	my $lock = pick(@locks);
	return if !$client->{session} || defined $client->{sql} || @{ $client->{todo} };
	$client->{todo} = [
		'SET statement_timeout = 0', 'BEGIN',
		"SELECT 'granted', '$lock', 'exclusive', zk_xact_lock_try_acquire('$lock'), extract(epoch FROM clock_timestamp())",
		"INSERT INTO work VALUES ('$lock', TOKEN, '$client->{name}', 'MODE')", 'SELECT pg_sleep(8)',
		"INSERT INTO work VALUES ('$lock', TOKEN, '$client->{name}', 'MODE')", 'COMMIT' ];
	return;
}

# Give up the rest of the program, and everything it holds.
sub abandon
{
	my ($client) = @_;
	$client->{todo} = [ 'ROLLBACK', 'SET statement_timeout = 0', 'SELECT zk_lock_release_all()' ];
	$client->{token} = undef;
	return;
}

sub hear
{
	my ($client, $answer) = @_;
	my $sql = $client->{sql};

	$count{statements}++;
	if ($client->{session}{ended})
	{
		$count{'connections lost'}++;
		$client->{session}->kill_client;
		$client->{session} = undef;
		$client->{todo} = [];
		$client->{free_at} = time + 0.2;
		return;
	}
	if ($answer =~ /ERROR:  (\w{5}): (.*)/)
	{
		$count{"error $1"}++;
		violation("$client->{name}: $sql: $1 $2") if $1 eq 'XX000' || $1 eq '42601';
		abandon($client) unless $sql eq 'ROLLBACK' || $sql =~ /release_all/;
	}
	elsif ($answer =~ /^granted\|(.*)\|(\w+)\|(\d*)\|([\d.]+)$/m)
	{
		my ($lock, $mode, $token, $at) = ($1, $2, $3, $4);
		return abandon($client) if $token eq '';
		$count{downgrades}++ if $mode eq 'read' && $token == ($client->{token} // 0);
		($client->{token}, $client->{mode}) = ($token, $mode);
		push @grants, [ $lock, $token, $at, $client->{name}, $mode ];
	}
	return;
}

sub drive
{
	my ($client, $may_start) = @_;

	return if time < $client->{free_at};
	if (!$client->{session})
	{
		connect_client($client) if $may_start;
		return;
	}
	if (defined $client->{sql})
	{
		my $answer = $client->{session}->wait(0);
		if (!defined $answer)
		{
			violation("$client->{name}: no answer for 40 s: $client->{sql}"), $client->{sent} += 1e6
			  if time - $client->{sent} > 40;
			return;
		}
		hear($client, $answer);
		$client->{sql} = undef;
		return unless $client->{session};
	}
	if (!@{ $client->{todo} })
	{
		return unless $may_start;
		$client->{todo} = [ program($client) ];
	}
	my $sql = shift @{ $client->{todo} };
	my $token = $client->{token} // 0;
	my $mode = $client->{mode} // '';
	$sql =~ s/TOKEN/$token/;
	$sql =~ s/MODE/$mode/;
	$client->{sql} = $sql;
	$client->{sent} = time;
	$client->{session}->send($sql);
	return;
}

# ---------------------------------------------------------------------
# The faults: each returns how to undo it, if that is needed, and after how many seconds,
# if that matters

sub worker_pid
{
	my ($server) = @_;
	my ($pid) = grep { $_ } map {
		PostgreSQL::Test::Utils::slurp_file("$_/cmdline") =~ /zklock worker/ ? m{(\d+)$} : ()
	} grep { -r "$_/cmdline" } children_of($server);
	return $pid;
}

sub children_of
{
	my ($server) = @_;
	open my $fh, '<', $server->data_dir . '/postmaster.pid' or return;
	my $postmaster = <$fh>;
	chomp $postmaster;
	my @children;
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $in, '<', $stat or next;
		my $line = <$in> // next;
		push @children, $stat =~ s{/stat$}{}r if $line =~ /^\d+ \(.*\) \S (\d+)/ && $1 == $postmaster;
	}
	return @children;
}

sub some_backend
{
	my ($server) = @_;
	my @clients = grep { $_->{session} && $_->{server} == $server } our_clients();
	return @clients ? pick(@clients)->{session}->backend : undef;
}

my @clients;
sub our_clients { return @clients; }

my @cures;    # [ when, how ]
my $quiet_until = 0;    # the first server's clients begin nothing until then

sub signal { my ($signal, $pid) = @_; kill $signal, $pid if $pid; return; }

my %faults = (
	'node killed' => sub {
		my $n = pick($zk->all);
		return if grep { !$zk->pid($_) } $zk->all;
		$zk->kill_node($n);
		return sub { $zk->start_node($n, wait => 0) };
	},
	'node frozen' => sub {
		my $n = pick(grep { $zk->pid($_) } $zk->all);
		$zk->freeze_node($n);
		# it may have been killed meanwhile
		return sub { $zk->thaw_node($n) if $zk->pid($n) };
	},
	'node isolated' => sub {
		my $n = pick($zk->all);
		$zk->isolate($n);
		return sub { $zk->rejoin($n) };
	},
	'client link frozen' => sub {
		my $n = chance(60) ? undef : pick($zk->all);
		$zk->proxy($n, 'freeze');
		return sub { $zk->proxy($n, 'pass') };
	},
	# all of them, for longer than a lease: what everything here is about
	'long silence' => sub {
		$zk->proxy(undef, 'freeze');
		return (sub { $zk->proxy(undef, 'pass') }, 3 + rand 6);
	},
	# The follower that answers and knows nothing, and no other in reach. What it cannot
	# answer, a write, would give it away; so there is a vigil: the first server's clients
	# end what they were at, take locks, and hold them in silence until it is over.
	'node isolated with its clients' => sub {
		my ($n) = $zk->followers;
		return unless $n;
		my @others = grep { $_ != $n } $zk->all;
		$zk->proxy($_, 'refuse'), $zk->proxy($_, 'cut') foreach @others;
		$quiet_until = time + 17;
		push @cures, [ time + 6, sub { hold_vigil($_) foreach grep { $_->{server} == $servers[0] } @clients } ];
		push @cures, [ time + 7, sub { $zk->isolate($n) } ];
		return (sub { $zk->rejoin($n); $zk->proxy($_, 'accept') foreach @others }, 16, 17);
	},
	'client link cut' => sub { $zk->proxy(pick($zk->all), 'cut'); return },
	'client link refused' => sub {
		my $n = chance(60) ? undef : pick($zk->all);
		$zk->proxy($n, 'refuse');
		$zk->proxy($n, 'cut');
		return sub { $zk->proxy($n, 'accept') };
	},
	'reply lost' => sub { $zk->proxy($_, 'lose_reply') foreach $zk->all; return sub { $zk->proxy(undef, 'pass') } },
	'request lost' => sub { $zk->proxy($_, 'lose_request') foreach $zk->all; return sub { $zk->proxy(undef, 'pass') } },
	'answers dropped' => sub {
		my $n = pick($zk->all);
		$zk->proxy($n, 'drop_replies');
		return sub { $zk->proxy($n, 'pass') };
	},
	'worker stopped' => sub {
		my $pid = worker_pid(pick(@servers)) or return;
		signal('STOP', $pid);
		return sub { signal('CONT', $pid) };
	},
	'worker terminated' => sub { signal('TERM', worker_pid(pick(@servers))); return },
	'backend cancelled' => sub { signal('INT', some_backend(pick(@servers))); return },
	'backend terminated' => sub { signal('TERM', some_backend(pick(@servers))); return },
	'backend stopped' => sub {
		my $pid = some_backend(pick(@servers)) or return;
		signal('STOP', $pid);
		return sub { signal('CONT', $pid) };
	},
	'client killed' => sub {
		my $client = pick(grep { $_->{session} } @clients) or return;
		$client->{session}->kill_client;
		$client->{session} = $client->{sql} = undef;
		$client->{todo} = [];
		return;
	},
	'server crashed' => sub { signal('KILL', chance(50) ? some_backend($servers[0]) : worker_pid($servers[0])); return },
);
# Often what is frequent in life, seldom what takes everything with it.
my @menu = map { my $f = $_; ($f) x ($f eq 'server crashed' ? 1 : $f =~ /node/ ? 3 : 4) } sort keys %faults;

# ---------------------------------------------------------------------

foreach my $server (@servers)
{
	push @clients, map { new_client($server, $_) } 1 .. CLIENTS;
}

my $end = time + 60 * $minutes;
my $next_fault = time + 2;

while (time < $end)
{
	drive($_, $_->{server} != $servers[0] || time > $quiet_until) foreach @clients;
	foreach my $cure (splice @cures)
	{
		if (time >= $cure->[0]) { $cure->[1]->() }
		else { push @cures, $cure }
	}
	if (time >= $next_fault)
	{
		my $fault = pick(@menu);
		$count{"fault: $fault"}++;
		my ($cure, $seconds, $calm) = $faults{$fault}->();
		push @cures, [ time + ($seconds // rand(pick(0.5, 3, 9))), $cure ] if $cure;
		# calm between the storms, or nothing would ever be granted
		$next_fault = time + ($calm // (chance(10) ? 6 : rand(1.5)));
	}
	sleep 0.003;
}

# Peace. Everything that was asked for ends, and then nothing is left.
$_->[1]->() foreach @cures;
$zk->proxy(undef, 'pass');
$zk->proxy(undef, 'accept');
my $settled = poll_until(
	sub {
		drive($_, 0) foreach @clients;
		return !grep { $_->{session} && (defined $_->{sql} || @{ $_->{todo} }) } @clients;
	}, 60);
ok(defined $settled, 'every statement ended')
  or diag join "\n", map { "$_->{name}: $_->{sql}" } grep { defined $_->{sql} } @clients;
foreach my $client (grep { $_->{session} } @clients) { $client->{session}->quit }

$zk->wait_for_quorum;
foreach my $server (@servers)
{
	$server->poll_query_until('postgres', 'SELECT true');
	wait_for_lease($server);
}
my $clean = poll_until(sub { !grep { contenders($zk, $_) } @locks }, 2);
ok(defined $clean, 'no node is left') or diag join "\n", map { my $l = $_; map { "$l/$_" } contenders($zk, $l) } @locks;

# What happened, in order.
my @commits;
foreach my $server (@servers)
{
	push @commits, map { [ split /\|/ ] } split /\n/, $server->safe_psql('postgres',
		'SELECT lock, token, extract(epoch FROM pg_xact_commit_timestamp(xmin)), client, mode FROM work');
}
my %grants_of;
push @{ $grants_of{ $_->[0] } }, $_ foreach @grants;

foreach my $lock (sort keys %grants_of)
{
	my @by_time = sort { $a->[2] <=> $b->[2] } @{ $grants_of{$lock} };
	my (%highest, $before);    # so far, of all and of those that are not shared
	foreach my $after (@by_time)
	{
		my ($token, $client, $mode) = @{$after}[ 1, 3, 4 ];
		# the same token again is the same backend that takes what it holds
		$before = $highest{ $mode eq 'read' ? 'alone' : 'all' };
		violation(sprintf '%s: token %d granted at %.6f to %s for %s, after %d at %.6f to %s for %s', $lock,
			@{$after}[ 1 .. 4 ], @{$before}[ 1 .. 4 ])
		  if $before && ($token < $before->[1] || ($token == $before->[1] && $client ne $before->[3]));
		foreach my $of ('all', $mode eq 'read' ? () : 'alone')
		{
			$highest{$of} = $after if !$highest{$of} || $token > $highest{$of}[1];
		}
	}
	foreach my $commit (grep { $_->[0] eq $lock } @commits)
	{
		my ($next) = grep { $_->[1] > $commit->[1] && ($_->[4] ne 'read' || $commit->[4] ne 'read') } @by_time;
		violation(sprintf '%s: %s committed token %d at %.6f, but %s was granted token %d at %.6f', $lock,
			$commit->[3], $commit->[1], $commit->[2], $next->[3], $next->[1], $next->[2])
		  if $next && $commit->[2] > $next->[2];
		violation("$lock: a row without a grant: token $commit->[1]")
		  if $commit->[1] != 0 && !grep { $_->[1] == $commit->[1] } @by_time;
	}
}
is($violations, 0, 'never two holders, no stale commit, tokens rise in the order of the grants');
diag join "\n", "seed $seed", @violations if $violations;

cmp_ok(scalar @grants, '>', 20 * $minutes, scalar(@grants) . ' grants, ' . scalar(@commits) . ' rows committed');
# Whoever is told so hears ZK001, if he is not idle and his connection ended.
my $lapses = () = map { PostgreSQL::Test::Utils::slurp_file($_->logfile) =~ /lease lapsed, [1-9]\d* held/g } @servers;
cmp_ok($lapses, '>', 0, "$lapses times a lease lapsed while locks were held")
  if $minutes >= 5;    # a shorter run may have been lucky
note join ', ', map { "$_: $count{$_}" } sort keys %count;

$_->stop foreach @servers;
done_testing();
