# commit - what a lock adds to COMMIT
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use List::Util qw(max);
use Time::HiRes qw(time);
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

# COMMIT as psql's client sees it, of transactions that differ in their first statement
# only. Two kinds are the same: what they differ by is noise. The pause is as long as
# acquiring takes, so that all come to their COMMIT as rested.
sub section_commit
{
	my $zk = ensemble(1);
	my $server = BenchServer->new('a', zk => $zk);
	my %first = (
		without => 'SELECT pg_sleep(0.001)',
		again => 'SELECT pg_sleep(0.001)',
		with => q{SELECT zk_xact_lock_acquire('xact/lock')});
	my @kinds = qw(without with again);
	$server->query('CREATE TABLE written (id int)');

	my %what = (read => 'a transaction that only reads', write => 'a transaction that writes');
	foreach my $sort (qw(read write))
	{
		my %difference;
		my %medians;
		foreach my $run (0 .. $runs)
		{
			progress("$section_name, $what{$sort}: " . ($run ? "run $run of $runs" : 'warm-up'));
			my $session = $server->session;
			my %took;
			my $until = time + ($run ? $seconds : 1);
			while (time < $until)
			{
				foreach my $kind (@kinds)
				{
					my $write = $sort eq 'write' ? 'INSERT INTO written VALUES (1);' : '';
					my $answer = $session->query("BEGIN;\n$first{$kind};\n$write\n\\timing on\nCOMMIT;\n\\timing off\nSELECT 1");
					my ($ms) = $answer =~ /^Time: ([\d.,]+) ms/m or die "no time in: $answer";
					push @{ $took{$kind} }, 1000 * $ms;
				}
				push @kinds, shift @kinds;
			}
			$session->close;
			next unless $run;
			my %m = map { $_ => median(@{ $took{$_} }) } keys %took;
			push @{ $medians{$_} }, $m{$_} foreach keys %m;
			push @{ $difference{with} }, $m{with} - ($m{without} + $m{again}) / 2;
			push @{ $difference{again} }, abs($m{again} - $m{without});
		}
		my $noise = max(@{ $difference{again} });
		my $added = median(@{ $difference{with} });
		goal("transaction-level lock: what it adds to COMMIT, $what{$sort}",
			sprintf('%s, without %s; two kinds without differ by up to %s',
				us(median(@{ $medians{with} })), us(median(@{ $medians{without} })), us($noise)),
			$added, '<=', sprintf('%.1f', $noise), unit => 'µs');
	}
	$server->stop;
	note('COMMIT does not wait for ZooKeeper: the release is a note in shared memory and two system calls, a signal to the '
		. 'worker and a timer that is taken back.');
	return;
}

1;
