# Everybody on one path at once: threads of Curator and of kazoo, and backends of two
# zklock servers, take turns. From the moment at which one says that it has the lock until
# it is told to release it nobody else may say so, and the digits of the nodes rise with the
# grants.
#
# Curator does not see kazoo's nodes: where both are, it can overtake kazoo, whatever zklock does. That is
# counted and printed; every other pair is held to the rule, and without kazoo, or without
# Curator, all of them are.
#
# INTEROP_ROUNDS (150): grants in each of the mixes.

use strict;
use warnings;

use List::Util qw(max);
use Test::More;
use Time::HiRes qw(time);
use ZkPeers;
use ZkTest;

my $rounds = $ENV{INTEROP_ROUNDS} // 150;
my $zk = ZkEnsemble->new(tick => 500)->start;
my @servers = (zk_server('a', $zk), zk_server('b', $zk));
my %process;
foreach my $kind (qw(Curator kazoo))
{
	my $missing = peer_missing($kind);
	$process{$kind} = ZkPeers->start($kind, $zk->hosts) unless defined $missing;
	diag "$kind: $missing" if defined $missing;
}
my @zklock = map { ZkPeers->zklock($servers[ $_ % 2 ]) } 0 .. 7;
my %clients = (map { my $kind = $_; ($kind => [ map { $process{$kind}->client } 1 .. 4 ]) } keys %process);

# Kinds that keep each other out.
sub promised
{
	return join(' ', sort @_) ne 'Curator kazoo';
}

# Let them take turns. Returns what was seen.
sub turns
{
	my ($lock, @clients) = @_;
	my (%holds, %last, %granted_by, @wrong, @errors);
	my %expected;    # of each that was told something: the answer
	my @idle = @clients;
	my ($asked, $granted, $together, $overtaken) = (0, 0, 0, 0);
	my $start = time;

	while (1)
	{
		# Ask again in another order, so that the queue is not always the same.
		while ($asked < $rounds && @idle > rand 4)
		{
			my ($client) = splice @idle, rand @idle, 1;
			$client->acquire('mutex', $lock);
			$expected{$client} = 'acquired';
			$asked++;
		}
		last unless %expected || %holds;

		# Whoever holds keeps it for a moment, in which others could show up that must not.
		my @answers = wait_any(%holds ? 0.002 : 30, @clients);
		foreach (@answers)
		{
			my ($client, $answer) = @$_;
			my $expected = delete $expected{$client} // 'nothing';
			if ($answer->{what} ne $expected)
			{
				push @errors, $client->kind . ", not $expected but $answer->{what}: " . ($answer->{text} // '');
				delete $holds{$client};
			}
			elsif ($expected eq 'released')
			{
				push @idle, $client;
			}
			else
			{
				my $digits = digits_of($answer->{node});
				my $kind = $client->kind;
				$granted++;
				$granted_by{$kind}++;
				foreach my $other (values %holds)
				{
					if (!promised($kind, $other->{kind})) { $together++; next; }
					push @wrong, "$kind $answer->{node} while $other->{kind} $other->{node} holds";
				}
				foreach my $other (grep { $last{$_} >= $digits } keys %last)
				{
					if (!promised($kind, $other)) { $overtaken++; next; }
					push @wrong, "$kind $answer->{node} after $other $last{$other}";
				}
				$last{$kind} = max($digits, $last{$kind} // 0);
				$holds{$client} = { client => $client, kind => $kind, node => $answer->{node}, until => time + 0.001 + rand 0.008 };
			}
		}
		unless (@answers || %holds)
		{
			push @errors, 'nobody gets it';
			last;
		}
		# Let go what was held while the others were listened to.
		foreach my $hold (grep { time >= $_->{until} } values %holds)
		{
			delete $holds{ $hold->{client} };
			$expected{ $hold->{client} } = 'released';
			$hold->{client}->release;
		}
		last if @errors > 20;
	}
	return {
		granted => $granted, wrong => \@wrong, errors => \@errors, together => $together, overtaken => $overtaken,
		by => join(', ', map { "$_ $granted_by{$_}" } sort keys %granted_by), seconds => time - $start,
	};
}

foreach my $mix ([ 'Curator', 'kazoo' ], ['Curator'], ['kazoo'])
{
	my $name = join ', ', 'zklock', @$mix;
	SKIP:
	{
		foreach my $kind (@$mix)
		{
			my $missing = peer_missing($kind) // next;
			skip("$name: $missing", 4);
		}
		my $seen = turns("mixed " . join('-', @$mix), @zklock, map { @{ $clients{$_} } } @$mix);
		is(join("\n", @{ $seen->{errors} }), '', "$name: no errors");
		is($seen->{granted}, $rounds, "$name: as many grants as were asked for");
		is(join("\n", @{ $seen->{wrong} }), '', "$name: no two hold, and digits rise" . (@$mix == 2 ? ', but for Curator and kazoo' : ''));
		is((grep { $seen->{by} !~ /\b$_ \d/ } 'zklock', @$mix) + 0, 0, "$name: each kind had its turns");
		note sprintf '%s: %d grants in %.1f s (%s)', $name, $seen->{granted}, $seen->{seconds}, $seen->{by};
		note "Curator and kazoo together: $seen->{together} times; one before the other's lower digits: $seen->{overtaken} times"
		  if @$mix == 2;
	}
}

# The rule sees what it is for: Curator over kazoo without zklock.
SKIP:
{
	my ($missing) = grep { defined } map { peer_missing($_) } qw(Curator kazoo);
	skip("Curator and kazoo: $missing", 1) if defined $missing;
	$rounds = 60;
	my $seen = turns('mixed control', map { @$_ } @clients{qw(Curator kazoo)});
	cmp_ok($seen->{together}, '>', 0, 'Curator and kazoo without zklock hold together: the test would see it');
}

$_->{session}->quit foreach @zklock;
$_->stop foreach values %process;
$_->stop foreach @servers;
done_testing();
