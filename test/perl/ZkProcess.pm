# ZkProcess - processes that a test starts and that never outlive it, and the small things that
# all files about them need.
#
# Copyright (c) 2026, zklock developers

package ZkProcess;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use File::Path qw(remove_tree);
use POSIX qw(setsid);
use Time::HiRes qw(time sleep);

our @EXPORT = qw(TEST_DIR start_keeper start_kept process_state poll read_file write_file);

# The folder test of the checkout.
use constant TEST_DIR => abs_path(dirname(__FILE__) . '/..');

# start_kept($directory, $log, @command): start a program whose process id is in $directory/pid,
# where the keeper finds it whatever happens to this process. Its output goes to the end of $log.
# Returns the process id.
sub start_kept
{
	my ($directory, $log, @command) = @_;
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		eval {
			setsid();
			write_file("$directory/pid", "$$\n");
			open STDIN, '<', '/dev/null' or die;
			open STDOUT, '>>', $log or die "$log: $!";
			open STDERR, '>&', \*STDOUT or die;
			exec @command;
		};
		warn "cannot start $command[0]: " . ($@ || $!) . "\n";
		POSIX::_exit(127);
	}
	return $pid;
}

# start_keeper($directory): start the keeper of a directory. It waits until the pipe that is
# returned with its process id is closed, by whatever end of this process. Then it kills what
# start_kept() started below $directory and removes the directory.
#
# The keeper is a new program rather than a fork, so that it holds nothing of the test open: a fork
# would keep the pipes of psql and prove alive.
sub start_keeper
{
	my ($directory) = @_;
	pipe my $read, my $write or croak "pipe: $!";
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		eval {
			setsid();
			open STDIN, '<&', $read or die;
			open STDOUT, '>', '/dev/null' or die;
			open STDERR, '>', '/dev/null' or die;
			exec $^X, '-I', TEST_DIR . '/perl', '-MZkProcess', '-e', 'ZkProcess::keep(@ARGV)', $directory;
		};
		POSIX::_exit(127);
	}
	close $read;
	return ($pid, $write);
}

# What the keeper does.
sub keep
{
	my ($directory) = @_;
	$SIG{$_} = 'IGNORE' foreach qw(INT TERM HUP QUIT PIPE);
	my $byte;
	1 while sysread STDIN, $byte, 1;

	foreach my $file (glob "$directory/*/pid")
	{
		my $pid = read_file($file) // next;
		chomp $pid;
		next unless $pid =~ /^\d+$/;
		kill 'KILL', $pid;
		# The process is not a child of the keeper, so look until it is gone.
		poll(sub { process_state($pid) =~ /^Z?$/ }, 10);
	}
	remove_tree($directory);
	return;
}

# process_state($pid): T stopped, Z ended and not waited for, '' gone.
sub process_state
{
	my ($pid) = @_;
	my $stat = read_file("/proc/$pid/stat") // return '';
	return $stat =~ /^.*\) (\w)/s ? $1 : '';
}

# poll($condition, $timeout): wait until the condition is true; false when it is not within
# $timeout seconds.
sub poll
{
	my ($condition, $timeout) = @_;
	my $until = time + $timeout;
	until ($condition->())
	{
		return 0 if time > $until;
		sleep 0.02;
	}
	return 1;
}

# read_file($file): the content, or undef when there is no such file.
sub read_file
{
	my ($file) = @_;
	open my $fh, '<', $file or return;
	local $/;
	return scalar <$fh>;
}

# write_file($file, $content)
sub write_file
{
	my ($file, $content) = @_;
	open my $fh, '>', $file or croak "$file: $!";
	print $fh $content;
	close $fh or croak "$file: $!";
	return;
}

1;
