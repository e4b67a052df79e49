# guard - the guard at a table: bench/fence
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use Time::HiRes qw(time);
use BenchMeasure;
use BenchPage;

sub section_guard
{
	my %figure = map { /^(\w+_(?:guard|column))\s+([\d.]+)\s+([\d.]+)/ ? ($1 => [ $2, $3 ]) : () } split /\n/, $ENV{ZKLOCK_BENCH_FENCE} // '';
	my ($rows) = ($ENV{ZKLOCK_BENCH_FENCE} // '') =~ /^(\d+) rows/m;
	my %what = (
		statement_guard => 'FOR EACH STATEMENT',
		row_guard => 'FOR EACH ROW',
		row_column => 'FOR EACH ROW, the token in a column');
	foreach my $kind (qw(statement_guard row_guard row_column))
	{
		my ($ms, $ratio) = @{ $figure{$kind} // [] };
		goal("guard at a table, $what{$kind}: CPU time beside a trigger that does nothing (`bench/fence`)",
			defined $ms ? number($ms) . ' ms for ' . number($rows) . ' rows' : '', $ratio, '<=', 1.1);
	}
	note('Guard: the INSERT is included on both sides. The token is presented once for all rows; '
		. 'what remains for each is a comparison, and with a column to read it.');
	return;
}

1;
