# measure.pl - what bench/run does once everything is built. Writes $ZKLOCK_WORK/page.md and
# the plots.
#
#	measure.pl SECONDS RUNS LIMITS PLOTS [SECTION...]
#
# A section is a file in bench/sections that defines a sub section_NAME. It measures kinds of things
# that take turns (BenchMeasure), makes from the medians of the runs the rows of the page (BenchPage:
# goal, note, beside, cost), and leaves no server behind. The ensembles stay: they are the same for
# all, and their JVMs are warm.
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use IO::Handle;
use BenchCost;
use BenchMeasure;
use BenchPage;
use BenchServer;

# In the order of the page. bench/run reads this table.
my @sections = (
	single => 'one backend, acquire and release, beside everything else',
	commit => 'what a lock adds to COMMIT',
	many => '64 backends, each its own lock',
	handover => '16 and 64 waiters on one lock',
	thousand => '1,000 waiters on one lock, on two servers',
	held => '8,000 locks held: heartbeats, latency, memory',
	token => 'zk_fencing_token in a loop',
	guard => 'the guard at a table: bench/fence',
	pgbench => 'pgbench on a server with the library, no lock used',
	idle => 'the worker when nobody asks it',
);

($seconds, $runs, $limits, my $plots, my @wanted) = @ARGV;
my @names = @sections[ map { 2 * $_ } 0 .. @sections / 2 - 1 ];
require "./bench/sections/$_.pl" foreach @names, 'plots';

STDERR->autoflush;
# exit() and not the default: the ENDs stop the servers.
$SIG{$_} = sub { exit 2 } foreach qw(INT TERM HUP);

my ($load) = split ' ', BenchServer::slurp('/proc/loadavg');
my $disk = disk_latency();
foreach my $name (@names)
{
	next if @wanted && !grep { $_ eq $name } @wanted;
	$section_name = $name;
	main->can("section_$name")->();
}
draw_plots() if $plots;
my $versions = versions();
stop_ensembles();
write_page(only => \@wanted, plots => $plots, load => $load, disk => $disk, versions => $versions);
exit(missed() ? 1 : 0);
