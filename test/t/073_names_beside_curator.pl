# Two thousand names that people write, each beside Curator on the same path: zklock holds and
# Curator waits, then the other way round. No name is refused by ZooKeeper, means another path
# to one of the two, or lets both hold.
#
# A lock whose name goes on below another's is a matter of its own (074_ancestors), so names
# that are ancestors of others are left out here.
#
# NAMES (2000): how many.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkPeers;
use ZkTest;

my $missing = peer_missing('Curator');
plan skip_all => $missing if defined $missing;

my $count = $ENV{NAMES} // 2000;
my $side_by_side = 50;
my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $curator = ZkPeers->start('Curator', $zk->hosts);
my @clients = map { $curator->client } 1 .. $side_by_side;
my $zklock = ZkTest::Session->new($node);

# $count that have nothing below them
my @names = names_that_people_use($count + 200);
my %ancestor;
foreach my $name (@names)
{
	my @parts = split m{/}, $name;
	$ancestor{ join '/', @parts[ 0 .. $_ ] } = 1 foreach 0 .. $#parts - 1;
}
@names = grep { !$ancestor{$_} } @names;
splice @names, $count if @names > $count;
cmp_ok(scalar @names, '>=', 0.9 * $count, 'enough names');
note scalar(@names) . ' names, such as ' . join ' | ', @names[ 0 .. 9 ];

# ARRAY['...', ...]
sub array
{
	return 'ARRAY[' . join(', ', map { q{'} . s/'/''/gr . q{'} } @_) . ']';
}

# What ZooKeeper says, of all paths at once: how many nodes stand in each lock's directory, and
# in how many of them one is watched by a session other than this one's.
sub look
{
	my (@of) = @_;
	my %wanted = map { (lock_directory($_) => $_) } @of;
	my (%nodes, %watched, $session, $here);

	foreach my $line (split /\n/, $zk->four_letter_word(1, 'dump') // '')
	{
		$nodes{ $wanted{$1} }{$2} = 1 if $line =~ m{^\t(.*)/(_c_[^/]+)$} && exists $wanted{$1};
	}
	foreach my $line (split /\n/, $zk->four_letter_word(1, 'wchp') // '')
	{
		$watched{ $wanted{$1} }++ if $line =~ m{^(/.*)/_c_[^/]+$} && exists $wanted{$1};
	}
	return (\%nodes, \%watched);
}

# Wait until in each directory two stand, and the one in front is watched by the other.
sub all_wait
{
	my (@of) = @_;
	my ($nodes, $watched);
	defined poll_until(
		sub {
			($nodes, $watched) = look(@of);
			return !grep { keys %{ $nodes->{$_} // {} } != 2 || !$watched->{$_} } @of;
		},
		20) and return '';
	return join ' | ', grep { keys %{ $nodes->{$_} // {} } != 2 || !$watched->{$_} } @of;
}

my ($held, $waited, $together, $granted) = (0, 0, 0, 0);
my (@wrong, $start);
$start = time;
for (my $at = 0; $at < @names; $at += $side_by_side)
{
	my @some = @names[ $at .. ($at + $side_by_side > @names ? $#names : $at + $side_by_side - 1) ];
	my $all = array(@some);

	# zklock holds, Curator waits
	my $answer = $zklock->query("SELECT count(zk_lock_try_acquire(n)) FROM unnest($all) n");
	if ($answer ne scalar @some)
	{
		push @wrong, "zklock gets $answer of: @some";
		$zklock->query('SELECT zk_lock_release_all()');
		next;
	}
	$held += $answer;
	$clients[$_]->acquire('mutex', $some[$_]) foreach 0 .. $#some;
	my $not = all_wait(@some);
	push @wrong, "Curator does not wait for: $not" if $not ne '';
	foreach my $i (0 .. $#some)
	{
		my $told = $clients[$i]->take;
		$waited++ unless $told;
		next unless $told;
		$together++;
		push @wrong, "Curator: $told->{what} " . ($told->{text} // '') . " for: $some[$i]";
	}
	$zklock->query('SELECT zk_lock_release_all()');
	foreach my $i (0 .. $#some)
	{
		my $told = $clients[$i]->answer(20);
		$granted++ if $told && $told->{what} eq 'acquired';
		push @wrong, "Curator does not get: $some[$i]" if !$told || $told->{what} ne 'acquired';
	}

	# Curator holds, zklock is told so, and waits
	$answer = $zklock->query("SELECT count(*) FILTER (WHERE zk_lock_try_acquire(n) IS NULL) FROM unnest($all) n");
	push @wrong, "zklock finds only $answer taken of: @some" if $answer ne scalar @some;
	$zklock->query('SELECT zk_lock_release_all()') if $answer ne scalar @some;
	$waited += $answer;
	$zklock->send("SELECT count(zk_lock_acquire(n, timeout => '30 s')) FROM unnest($all) n");
	$clients[$_]->release foreach 0 .. $#some;
	foreach my $i (0 .. $#some)
	{
		my $told = $clients[$i]->answer(20);
		push @wrong, "Curator does not release: $some[$i]" if !$told || $told->{what} ne 'released';
	}
	$answer = $zklock->wait(40) // 'no answer';
	$granted += $answer if $answer =~ /^\d+$/;
	push @wrong, "then zklock gets $answer of: @some" if $answer ne scalar @some;
	$zklock->query('SELECT zk_lock_release_all()');
}
my $n = @names;
is($held, $n, "$n names: each can be locked");
is($waited, 2 * $n, 'who asks second waits, in both orders');
is($together, 0, 'no_name_lets_curator_and_zklock_hold_together');
is($granted, 2 * $n, 'and gets it next');
is(scalar @wrong, 0, 'nothing else went wrong') or diag join "\n", @wrong[ 0 .. ($#wrong > 9 ? 9 : $#wrong) ];
note sprintf '%.1f s', time - $start;

$zklock->quit;
$curator->stop;
$node->stop;
done_testing();
