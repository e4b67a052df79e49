# idle - the worker when nobody asks it
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use List::Util qw(max sum);
use Time::HiRes qw(time sleep);
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_idle
{
	my $server = BenchServer->new('a', zk => ensemble(1));
	my $worker = $server->worker;
	my $now = sub {
		return {
			heartbeats => $server->query('SELECT heartbeats FROM zk_session'),
			wakes => (BenchServer::slurp("/proc/$worker/task/$worker/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m)[0],
			threads => sum(map { BenchServer::slurp($_) =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : 0 } glob "/proc/$worker/task/*/status"),
			cpu => cpu_of($worker),
			time => time,
		};
	};
	# what comes after the start is not idle
	sleep 3;
	my $for = 6 * $seconds;
	progress("$section_name: $for s");
	my $before = $now->();
	sleep $for;
	my $after = $now->();
	$server->stop;
	my %d = map { $_ => $after->{$_} - $before->{$_} } keys %$after;
	goal('idle worker, session timeout 10 s: wake-ups of its main thread per heartbeat',
		sprintf('%d wake-ups, %d heartbeats in %.0f s', $d{wakes}, $d{heartbeats}, $d{time}), ratio($d{wakes}, $d{heartbeats}), '<=', 2);
	goal('the same: CPU time of its process', sprintf('%.1f ms in %.0f s', 1000 * $d{cpu}, $d{time}), 100 * $d{cpu} / $d{time}, '<=', 0.1, unit => '%');
	note(sprintf 'Idle worker: with the two threads of the ZooKeeper client it is %.1f wake-ups per heartbeat.', $d{threads} / max(1, $d{heartbeats}));
	return;
}

1;
