# ZkCli - what lies in ZooKeeper, seen and changed by a client of the tests' own (zkcli.c).
#
# A base class of ZkEnsemble, which has the methods up(), the nodes that can be expected to answer,
# direct_hosts(@nodes), their addresses, and class_path(), where Java finds ZooKeeper. Every call is
# a process and a ZooKeeper session of its own, so nothing here depends on what the test did to other
# connections.
#
# Copyright (c) 2026, zklock developers

package ZkCli;

use strict;
use warnings;

use Carp;
use File::Path qw(make_path);
use POSIX ();
use ZkProcess;

=pod

=over

=item $zk->zkcli(\@command, node => $n, timeout => $seconds)

Run zkcli.c's program with that command against all nodes that can answer, or only
node $n. Returns (exit code, standard output). The methods below croak on any
failure that they do not name.

=item $zk->ls($path), $zk->lsr($path)

Names of the children, or paths of all nodes below; empty when $path is not there.

=item $zk->get($path), $zk->stat($path)

Data; a reference to a hash of czxid, ephemeralOwner (hex), ctime, ... Undef when
$path is not there.

=item $zk->create($path, $data, $flags), $zk->set($path, $data), $zk->delete($path)

create returns the path, delete whether there was something to delete.

=item $zk->hold($path, $data)

Create an ephemeral sequential node, as a foreign client would, and keep it. Returns
an object with the fields path, czxid, session, password and the method release.

=item $zk->close_session($id, $password)

Attach to a ZooKeeper session and close it, which removes what it holds. True when
there was such a session.

=cut

sub zkcli
{
	my ($self, $command, %opt) = @_;
	my @nodes = $opt{node} // $self->up;
	my @call = (
		program(), '-t', $opt{timeout} // 10,
		$self->direct_hosts(@nodes), @$command);

	my $pid = open my $out, '-|' // croak "fork: $!";
	if (!$pid)
	{
		open STDERR, '>', '/dev/null' unless $ENV{ZKLOCK_TEST_VERBOSE};
		exec @call or POSIX::_exit(127);
	}
	my $output = do { local $/; <$out> } // '';
	close $out;
	return ($? >> 8, $output);
}

sub _ask
{
	my ($self, $fine, @command) = @_;
	my ($code, $output) = $self->zkcli(\@command);
	return ($code, $output) if $code == 0 || grep { $_ == $code } @$fine;
	croak "zkcli @command: exit code $code";
}

sub ls { my ($self, $path) = @_; return split /\n/, ($self->_ask([1], 'ls', $path))[1]; }
sub lsr { my ($self, $path) = @_; return split /\n/, ($self->_ask([1], 'lsr', $path))[1]; }

sub get
{
	my ($self, $path) = @_;
	my ($code, $output) = $self->_ask([1], 'get', $path);
	return $code == 0 ? $output : undef;
}

sub stat
{
	my ($self, $path) = @_;
	my ($code, $output) = $self->_ask([1], 'stat', $path);
	return $code == 0 ? { map { split /=/ } split /\n/, $output } : undef;
}

sub create
{
	my ($self, $path, $data, $flags) = @_;
	my (undef, $output) = $self->_ask([], 'create', $path, $data // '', $flags // '');
	chomp $output;
	return $output;
}

sub set { my ($self, $path, $data) = @_; $self->_ask([], 'set', $path, $data); return; }

sub delete
{
	my ($self, $path) = @_;
	return ($self->_ask([1], 'delete', $path))[0] == 0;
}

sub hold
{
	my ($self, $path, $data) = @_;
	return ZkCli::Hold->new(program(), $self->direct_hosts($self->up), $path, $data // '');
}

sub close_session
{
	my ($self, $id, $password) = @_;
	return ($self->_ask([6], 'close-session', $id, $password))[0] == 0;
}

=item $zk->zkcli_sh(@command)

The output of ZooKeeper's own shell: slow, and the last word when zkcli.c itself is in
doubt.

=cut

sub zkcli_sh
{
	my ($self, @command) = @_;
	my $pid = open my $out, '-|' // croak "fork: $!";
	if (!$pid)
	{
		open STDIN, '<', '/dev/null';
		open STDERR, '>', '/dev/null';
		$ENV{CLASSPATH} = $self->class_path;
		exec '/usr/share/zookeeper/bin/zkCli.sh', '-server', $self->direct_hosts($self->up), @command
		  or POSIX::_exit(127);
	}
	my $output = do { local $/; <$out> } // '';
	close $out;
	return $output;
}

=item ZkCli::program()

Path of zkcli, compiled if it is missing or older than its source.

=back

=cut

sub program
{
	my $source = TEST_DIR . '/zkcli.c';
	my $build = $ENV{ZKLOCK_TEST_BUILD} || TEST_DIR . '/build';
	my $program = "$build/zkcli";

	return $program if -x $program && -M $program <= -M $source;
	make_path($build);
	# Tests run side by side: whoever is last puts a complete program there.
	my $mine = "$program.$$";
	system('cc', '-std=gnu11', '-O1', '-g', '-Wall', '-DTHREADED', '-o', $mine, $source,
		'-lzookeeper_mt') == 0
	  or croak "cannot compile $source";
	rename $mine, $program or croak "rename: $!";
	return $program;
}

# A foreign client with a node in its hands.
package ZkCli::Hold;

use strict;
use warnings;
use Carp;
use IPC::Open2;

sub new
{
	my ($class, $program, $hosts, $path, $data) = @_;
	my $pid = open2(my $out, my $in, $program, $hosts, 'hold', $path, $data);
	my $line = <$out> // '';
	my $self = bless { pid => $pid, in => $in, out => $out }, $class;
	@$self{qw(path czxid session password)} = split ' ', $line;
	croak "zkcli hold $path failed" unless defined $self->{password};
	return $self;
}

# Let go; true when the node had been held to the end.
sub release
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	close $self->{in};
	waitpid $pid, 0;
	return $? == 0;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!);
	$self->release;
	return;
}

1;
