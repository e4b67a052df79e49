# ZkProxy - a running zkproxy.pl, the network that fails on request.
#
#	my $proxy = ZkProxy->new($directory, @routes);
#	$proxy->command('client1', 'freeze');
#
# Routes and commands are described at the head of zkproxy.pl. $directory must be below one that a
# keeper watches (see ZkProcess).
#
# Copyright (c) 2026, zklock developers

package ZkProxy;

use strict;
use warnings;

use Carp;
use File::Path qw(make_path);
use IO::Select;
use IO::Socket::UNIX;
use ZkProcess;

# ZkProxy->new($directory, @routes): start the proxy and wait until it takes commands.
sub new
{
	my ($class, $directory, @routes) = @_;
	make_path($directory);
	my $self = bless { control => "$directory/control" }, $class;
	$self->{pid} = start_kept($directory, "$directory/log", $^X, TEST_DIR . '/zkproxy.pl', $self->{control}, @routes);
	poll(sub { -S $self->{control} }, 10)
	  or croak 'the proxy does not start: ' . (read_file("$directory/log") // '');
	return $self;
}

# $proxy->command(@words): give a command and return the answer. Croaks when that is no "ok".
sub command
{
	my ($self, @words) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $self->{control})
	  or croak "cannot reach the proxy: $!";
	print $socket "@words\n";
	# Not one long wait: a signal, such as a child's end, cuts it short.
	my $select = IO::Select->new($socket);
	poll(sub { $select->can_read(0.1) }, 5) or croak 'the proxy does not answer';
	my $answer = <$socket> // '';
	chomp $answer;
	croak "proxy: @words: $answer" unless $answer =~ /^ok/;
	return $answer;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

1;
