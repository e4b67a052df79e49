# pgbench - pgbench on a server with the library, no lock used
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_pgbench
{
	my $zk = ensemble(1);
	my $conf = "shared_buffers = 256MB";
	my %server = (with => BenchServer->new('with', zk => $zk, conf => $conf), without => BenchServer->new('without', conf => $conf));
	foreach my $server (values %server)
	{
		progress("$section_name: filling $server->{name}");
		BenchServer::command('pgbench', '-q', '-i', '-s', 10, '-h', $work, '-p', $server->port, '-U', 'postgres', 'postgres');
		$server->query('CHECKPOINT');
	}
	my %what = ('select-only' => 'select-only', 'tpcb-like' => 'TPC-B-like');
	foreach my $builtin (qw(select-only tpcb-like))
	{
		# one per cent is little: so twice the runs
		my $r = take_turns(2 * $runs,
			map {
				my $server = $server{$_};
				($_ => sub { return $server->pgbench(builtin => $builtin, clients => 4, seconds => $_[0], log => 0) });
			} qw(with without));
		goal("pgbench, $what{$builtin}, 4 clients: library preloaded, no lock used, beside not preloaded",
			per_second($r->{with}{rate}) . ', without ' . per_second($r->{without}{rate}), ratio($r->{with}{rate}, $r->{without}{rate}), '>=', 0.99);
	}
	$_->stop foreach values %server;
	note('pgbench: the library is called at the start and the end of each statement and of each transaction, and sees there '
		. 'that no lock is held; and its worker sends a heartbeat now and then.');
	return;
}

1;
