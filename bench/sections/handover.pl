# handover - 16 and 64 waiters on one lock
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_handover
{
	my $zk = ensemble(1);
	my $server = BenchServer->new('a', zk => $zk);
	foreach my $waiters (16, 64)
	{
		my $r = take_turns($runs,
			zklock => sub { return zklock($server, $zk, 'one', $waiters + 1, @_) },
			curator => sub { return curator($zk, 'one', $waiters + 1, @_) });
		goal("$waiters waiters on one lock: handovers beside Curator",
			per_second($r->{zklock}{rate}) . ', Curator ' . per_second($r->{curator}{rate}), ratio($r->{zklock}{rate}, $r->{curator}{rate}), '>=', 1.8);
		cost("$waiters waiters on one lock", $r->{zklock});
	}
	$server->stop;
	note('Waiters on one lock: a handover is the delete, written by the quorum, and the event that wakes the next; '
		. 'who comes back to the end of the queue adds a create, a listing of all who wait and two watches.');
	return;
}

1;
