#!/usr/bin/perl
#
# tap.pl - run TAP tests side by side and count.
#
#	tap.pl JOBS SECONDS COUNTS_FILE FILE...
#
# FILE is a Perl script (*.pl) or a program.
#
# prove does the same, but keeps to itself how many assertions passed, failed and
# were skipped, and waits for ever for a test that hangs. Each file gets SECONDS;
# a test in which something hangs is exactly what must not stop the rest.
# COUNTS_FILE gets one line, "passed failed skipped".
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;
use TAP::Harness;

my ($jobs, $seconds, $counts_file, @files) = @ARGV;
my @include = map { ('-I', $_) } split /:/, $ENV{PERL5LIB} // '';

my ($passed, $failed, $skipped) = (0, 0, 0);
my @remarks;

# Run some of the files; a harness runs once.
sub run_files
{
	my ($side_by_side, @some) = @_;
	return unless @some;
	my $harness = TAP::Harness->new({
		jobs => $side_by_side,
		timer => 1,
		exec => sub {
			my (undef, $file) = @_;
			my @command = (
				'timeout', '--kill-after=10', $seconds,
				$file =~ /\.pl$/ ? ($^X, @include) : (), $file);
			# "Bail out!" asks to stop all other tests as well. PostgreSQL's modules say it
			# whenever a server does not start, which is no reason to know nothing of the rest.
			return [ 'bash', '-o', 'pipefail', '-c', '"$@" | sed -u "s/^Bail out!/# bailed out:/"',
				'tap', @command ];
		},
	});
	$harness->callback(after_test => \&count_test);
	$harness->runtests(@some);
	return;
}

# Tests that demand of a server what it can do only when it gets the processor say
# "runs alone" in their head, and have the machine to themselves.
sub runs_alone
{
	my ($file) = @_;
	open my $fh, '<', $file or return 0;
	while (my $line = <$fh>)
	{
		last unless $line =~ /^#/;
		return 1 if $line =~ /\bruns alone\b/i;
	}
	return 0;
}

sub count_test
{
	my ($job, $parser) = @_;
	my ($file) = @$job;
	my @skips = $parser->skipped;

	if (defined $parser->skip_all)
	{
		$skipped++;
		push @remarks, "skipped: $file: " . $parser->skip_all;
		return;
	}
	$skipped += @skips;
	$passed += $parser->passed - @skips;
	$failed += $parser->failed;
	# Ended early, without a plan, or by a signal: that is a failure too, which
	# no assertion stands for.
	if (!$parser->failed && ($parser->parse_errors || $parser->exit))
	{
		$failed++;
		push @remarks, sprintf 'failed: %s: %s', $file,
		  $parser->exit == 124 << 8 || $parser->wait == 124 << 8
		  ? "not done in $seconds s"
		  : join '; ', $parser->parse_errors, 'exit code ' . $parser->exit;
	}
	push @remarks, log_tail($file) if $parser->failed || $parser->exit;
	return;
}

# PostgreSQL's test modules send what a test says on standard error, a die above all,
# to a log and nowhere else.
sub log_tail
{
	my ($file) = @_;
	my ($name) = $file =~ m{([^/]+)\.pl$} or return;
	open my $fh, '<', ($ENV{TESTLOGDIR} // '.') . "/regress_log_$name" or return;
	my @lines = <$fh>;
	splice @lines, 0, @lines - 30 if @lines > 30;
	return join '', map { "$name: $_" } @lines;
}

run_files(1, grep { runs_alone($_) } @files);
run_files($jobs, grep { !runs_alone($_) } @files);
print "$_\n" foreach @remarks;
open my $fh, '>', $counts_file or die "$counts_file: $!\n";
print $fh "$passed $failed $skipped\n";
close $fh or die "$counts_file: $!\n";
exit($failed ? 1 : 0);
