# held - 8,000 locks held: heartbeats, latency, memory
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use List::Util qw(sum);
use Time::HiRes qw(time sleep);
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_held
{
	my $zk = ensemble(1);
	my $conf = 'zklock.max_locks = 10000';
	my ($full, $empty) = map { BenchServer->new($_, zk => $zk, conf => $conf) } qw(full empty);
	my $locks = 8000;
	# so that what the worker allocates once is not counted
	$full->pgbench(script => cycle("'h/l' || :client_id"), clients => 64, seconds => 1);
	my $worker = $full->worker;
	my $memory = sub { return (BenchServer::slurp("/proc/$worker/status") =~ /^RssAnon:\s+(\d+) kB/m)[0] };
	my $before = $memory->();

	progress("$section_name: acquiring $locks locks");
	my @holders = map { $full->session } 1 .. 16;
	my $each = $locks / @holders;
	foreach my $i (0 .. $#holders)
	{
		$holders[$i]->send(sprintf q{SELECT count(zk_lock_acquire('h/l' || i)) FROM generate_series(%d, %d) i},
			$i * $each + 1, ($i + 1) * $each);
	}
	$_->answer foreach @holders;
	die 'some are missing' unless $full->query(q{SELECT count(*) FROM zk_locks WHERE state = 'held'}) == $locks;
	sleep 2;
	my $per_lock = ($memory->() - $before) * 1024 / $locks;

	# each heartbeat of both servers, as they come
	my %beats = (full => [], empty => []);
	my %seen;
	my $listen = sub {
		my ($for) = @_;
		my $until = time + $for;
		while (time < $until)
		{
			foreach my $server ($full, $empty)
			{
				my ($at, $took) = split /\|/, $server->query('SELECT heartbeats, extract(epoch FROM heartbeat_round_trip) * 1e6 FROM zk_session');
				push @{ $beats{ $server->{name} } }, $took if ($seen{ $server->{name} } //= $at) != $at;
				$seen{ $server->{name} } = $at;
			}
			sleep 0.1;
		}
		return {};
	};
	my $r = take_turns($runs,
		full => sub { return $full->pgbench(script => cycle("'s/lock'"), seconds => $_[0]) },
		empty => sub { return $empty->pgbench(script => cycle("'s/lock'"), seconds => $_[0]) },
		listen => sub { return $listen->(2 * $_[0]) });
	goal('8,000 locks held: round trip of a heartbeat beside none held',
		sprintf('%s of %d, none held %s', us(median(@{ $beats{full} })), scalar @{ $beats{full} }, us(median(@{ $beats{empty} }))),
		ratio(median(@{ $beats{full} }), median(@{ $beats{empty} })), '<=', 1.1);
	goal('the same: acquire and release of another lock',
		us($r->{full}{median}) . ', none held ' . us($r->{empty}{median}), ratio($r->{full}{median}, $r->{empty}{median}), '<=', 1.1);
	$_->close foreach @holders;
	$_->stop foreach $full, $empty;

	my %size;
	foreach my $max_locks (16, 16384)
	{
		my $server = BenchServer->new('memory', zk => $zk, conf => "zklock.max_locks = $max_locks");
		$size{$max_locks} = $server->query(q{SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'zklock%'});
		$server->stop;
	}
	my $shared = ($size{16384} - $size{16}) / (16384 - 16);
	goal('memory per lock: shared, and in the worker of one that is held',
		sprintf('%.0f + %.0f bytes', $shared, $per_lock), ($shared + $per_lock) / 1024, '<=', 2, unit => 'KiB');
	note('8,000 locks: the two servers, one with them and one without, share one ensemble and are asked in turn. '
		. 'Shared memory is taken at the start for all of `zklock.max_locks`; the worker\'s is the growth of RssAnon.');
	return;
}

1;
