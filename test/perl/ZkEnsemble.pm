# ZkEnsemble - real ZooKeeper servers for the tests, and the faults they have.
#
#	my $zk = ZkEnsemble->new(nodes => 3, proxy => 1);
#	$zk->start;
#	... $zk->hosts ...
#	$zk->kill_node($zk->leader);
#	$zk->wait_for_quorum;
#
# What the extension promises is about what an ensemble does when it is late, cut
# in two or dead, and no imitation of it would do that right. So the servers are
# the ones of Debian's packages, each a JVM of its own in a temporary directory, on
# loopback ports, stopped, killed and frozen as processes.
#
# Three rules hold throughout:
#
# - Nothing remains. A small keeper process sits at the end of a pipe; when that
#   pipe closes, because stop() was called or because the test died in whatever
#   way, kill -9 included, it kills every server and proxy and removes the
#   directory. END blocks alone do not run on a signal.
# - Nothing waits without bound. Questions are asked over a socket with a timeout,
#   since a frozen server accepts connections and never answers.
# - Waiting means waiting for a condition. There is no sleep but the polls' own.
#
# Node numbers run from 1, as in server.N.
#
# Copyright (c) 2026, zklock developers

package ZkEnsemble;

use strict;
use warnings;

use Carp;
use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);
use IO::Select;
use IO::Socket::INET;
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(time);
use ZkProcess;
use ZkProxy;

# ls, get, create, hold, ... are described there.
use parent 'ZkCli';

my @live;    # everything started by this process and not stopped yet
my $blocks = 0;    # port blocks handed out by this process

# The flags make a JVM start in half a second and fit in 64 MB. forceSync=no leaves
# data in the page cache, which outlives a killed process, if not a machine.
my @java_flags = qw(
  -Xms32m -Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData
  -Dzookeeper.forceSync=no -Dzookeeper.preAllocSize=1024
  -Dorg.slf4j.simpleLogger.showDateTime=true
  -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS);
# Without slf4j-simple the servers log nothing at all.
my $class_path = $ENV{ZKLOCK_ZOOKEEPER_CLASSPATH}
  || '/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar';

=pod

=over

=item ZkEnsemble->new(%options)

	nodes		1 (default) or 3
	tick		tickTime in milliseconds (default 2000)
	sync_limit, init_limit	in ticks (default 5, 10)
	min_session	minSessionTimeout in milliseconds (default two ticks)
	extra		further lines of zoo.cfg: { name => value }
	java		further flags of the JVM: [ ... ]
	proxy		1: clients go through a proxy per node (see proxy())
	quorum_proxy	1: so do the links between servers (see isolate())
	log_dir		where server logs go (default: the temporary directory, and so
				away with it; $ENV{TESTLOGDIR} when that is set)
	name		distinguishes the logs of several ensembles (default zk)

=cut

sub new
{
	my ($class, %opt) = @_;

	my $self = bless {
		nodes => 1,
		tick => 2000,
		sync_limit => 5,
		init_limit => 10,
		extra => {},
		java => [],
		proxy => 0,
		quorum_proxy => 0,
		log_dir => $ENV{TESTLOGDIR},
		name => 'zk',
		%opt,
		owner => $$,
		state => {},    # node => running | frozen
		pid => {},
	}, $class;

	my %known = map { $_ => 1 } qw(nodes tick sync_limit init_limit min_session
	  extra java proxy quorum_proxy log_dir name);
	foreach my $option (keys %opt)
	{
		croak "unknown option $option" unless $known{$option};
	}
	croak 'an ensemble has one node or three'
	  unless $self->{nodes} == 1 || $self->{nodes} == 3;
	$self->{min_session} //= 2 * $self->{tick};

	$self->{dir} = tempdir('zklock-zk-XXXXXX', TMPDIR => 1);
	@$self{ 'keeper', 'keeper_pipe' } = start_keeper($self->{dir});
	push @live, $self;
	$self->_assign_ports;
	$self->_write_config($_) foreach $self->all;
	return $self;
}

sub all { my ($self) = @_; return 1 .. $self->{nodes}; }

=item $zk->start

Start the proxy, if there is one, and all nodes, and wait until they serve.

=cut

sub start
{
	my ($self) = @_;
	$self->_start_proxy if $self->{proxy} || $self->{quorum_proxy};
	$self->start_node($_, wait => 0) foreach $self->all;
	$self->wait_for_quorum;
	return $self;
}

=item $zk->stop

Kill everything and remove the directory. Also runs at END.

=cut

sub stop
{
	my ($self) = @_;
	return if $self->{owner} != $$ || !$self->{keeper};

	foreach my $node ($self->all)
	{
		$self->kill_node($node) if $self->{pid}{$node};
	}
	$self->{network}->stop if $self->{network};
	close delete $self->{keeper_pipe};
	waitpid delete $self->{keeper}, 0;
	@live = grep { $_ != $self } @live;
	return;
}

=item $zk->start_node($n, wait => 1)

Start (again) a node that was stopped or killed, with the data it had.

=item $zk->stop_node($n), $zk->kill_node($n)

SIGTERM or SIGKILL, and wait for the process to be gone.

=item $zk->replace_node($n)

Another machine in place of node $n, which was killed: the same id, other ports, no data. Starts it; the others get
to know its address when they are stopped and started.

=item $zk->empty_node($n), $zk->save_node($n), $zk->restore_node($n)

Of a node that was stopped or killed: take its data away; copy them aside; put that copy in their place.

=item $zk->freeze_node($n), $zk->thaw_node($n)

SIGSTOP and SIGCONT: sockets stay open, nothing answers.

=cut

sub start_node
{
	my ($self, $node, %opt) = @_;
	croak "node $node is running" if $self->{pid}{$node};

	my $pid = start_kept("$self->{dir}/$node", $self->_log_file($node),
		'java', @java_flags, @{ $self->{java} }, '-cp', $class_path,
		'org.apache.zookeeper.server.quorum.QuorumPeerMain', "$self->{dir}/$node/zoo.cfg");
	$self->{pid}{$node} = $pid;
	$self->{state}{$node} = 'running';
	$self->wait_for_node($node) if $opt{wait} // 1;
	return;
}

sub stop_node { my ($self, $node) = @_; return $self->_end_node($node, 'TERM'); }
sub kill_node { my ($self, $node) = @_; return $self->_end_node($node, 'KILL'); }

sub _end_node
{
	my ($self, $node, $signal) = @_;
	my $pid = $self->{pid}{$node} or croak "node $node is not running";
	kill $signal, $pid;
	kill 'CONT', $pid;
	waitpid $pid, 0;
	unlink "$self->{dir}/$node/pid";
	delete $self->{pid}{$node};
	delete $self->{state}{$node};
	return;
}

sub replace_node
{
	my ($self, $node) = @_;
	croak 'a node behind a proxy is not replaced' if $self->{proxy} || $self->{quorum_proxy};
	remove_tree("$self->{dir}/$node/data");
	my $others = { map { ($_ => $self->{port}{$_}) } grep { $_ != $node } $self->all };
	$self->_assign_ports;
	$self->{port}{$_} = $others->{$_} foreach keys %$others;
	$self->_write_config($_) foreach $self->all;
	return $self->start_node($node, wait => 0);
}

sub empty_node
{
	my ($self, $node) = @_;
	croak "node $node is running" if $self->{pid}{$node};
	remove_tree("$self->{dir}/$node/data");
	make_path("$self->{dir}/$node/data");
	write_file("$self->{dir}/$node/data/myid", "$node\n");
	return;
}

sub save_node
{
	my ($self, $node) = @_;
	croak "node $node is running" if $self->{pid}{$node};
	return _copy_tree("$self->{dir}/$node/data", "$self->{dir}/$node/saved");
}

sub restore_node
{
	my ($self, $node) = @_;
	croak "node $node is running" if $self->{pid}{$node};
	return _copy_tree("$self->{dir}/$node/saved", "$self->{dir}/$node/data");
}

sub _copy_tree
{
	my ($from, $to) = @_;
	remove_tree($to);
	system('cp', '-r', $from, $to) == 0 or croak "cannot copy $from";
	return;
}

sub freeze_node
{
	my ($self, $node) = @_;
	my $pid = $self->{pid}{$node} or croak "node $node is not running";
	kill 'STOP', $pid;
	# The signal is only on its way; a thread may run for a moment yet.
	poll(sub { process_state($pid) eq 'T' }, 5) or croak "node $node does not stop";
	$self->{state}{$node} = 'frozen';
	return;
}

sub thaw_node
{
	my ($self, $node) = @_;
	my $pid = $self->{pid}{$node} or croak "node $node is not running";
	kill 'CONT', $pid;
	$self->{state}{$node} = 'running';
	return;
}

# For every node that is up: the usual forms of "the whole ensemble is ...".
sub freeze_all { my ($self) = @_; $self->freeze_node($_) foreach $self->up; return; }
sub thaw_all { my ($self) = @_; $self->thaw_node($_) foreach grep { $self->{pid}{$_} } $self->all; return; }
sub kill_all { my ($self) = @_; $self->kill_node($_) foreach grep { $self->{pid}{$_} } $self->all; return; }

sub start_all
{
	my ($self) = @_;
	$self->start_node($_, wait => 0) foreach grep { !$self->{pid}{$_} } $self->all;
	return $self->wait_for_quorum;
}

sub pid { my ($self, $node) = @_; return $self->{pid}{$node}; }

sub class_path { return $class_path; }

# Nodes of which an answer can be expected.
sub up
{
	my ($self) = @_;
	return grep { ($self->{state}{$_} // '') eq 'running' } $self->all;
}

=item $zk->hosts(@nodes)

What belongs into zklock.hosts: all nodes, or the given ones, as clients shall see
them (behind the proxy when there is one).

=item $zk->direct_hosts(@nodes)

The same, past the proxy.

=cut

sub hosts
{
	my ($self, @nodes) = @_;
	my $port = $self->{proxy} ? 'front' : 'client';
	return join ',', map { "127.0.0.1:$self->{port}{$_}{$port}" } (@nodes ? @nodes : $self->all);
}

sub direct_hosts
{
	my ($self, @nodes) = @_;
	return join ',', map { "127.0.0.1:$self->{port}{$_}{client}" } (@nodes ? @nodes : $self->all);
}

=item $zk->four_letter_word($n, $word, $timeout)

The answer of node $n to srvr, mntr, cons, ... or undef.

=item $zk->mode($n)

standalone, leader, follower, or undef when the node does not serve.

=item $zk->leader, $zk->followers

=cut

sub four_letter_word
{
	my ($self, $node, $word, $timeout) = @_;
	my $until = time + ($timeout // 2);

	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $self->{port}{$node}{client},
		Proto => 'tcp',
		Timeout => $timeout // 2) or return;
	local $SIG{PIPE} = 'IGNORE';
	syswrite $socket, $word or return;
	my $answer = '';
	my $select = IO::Select->new($socket);
	while ((my $left = $until - time) > 0)
	{
		next unless $select->can_read($left);
		my $n = sysread $socket, $answer, 65536, length $answer;
		return unless defined $n;
		return $answer if $n == 0;
	}
	return;
}

sub mode
{
	my ($self, $node) = @_;
	my $answer = $self->four_letter_word($node, 'srvr', 1) // return;
	return $answer =~ /^Mode: (\w+)/m ? $1 : undef;
}

sub leader
{
	my ($self) = @_;
	my ($leader) = grep { ($self->mode($_) // '') =~ /^(?:leader|standalone)$/ } $self->up;
	return $leader;
}

sub followers
{
	my ($self) = @_;
	return grep { ($self->mode($_) // '') eq 'follower' } $self->up;
}

=item $zk->wait_for_node($n, $timeout), $zk->wait_for_quorum($timeout)

Wait until node $n serves; until all nodes that are neither killed nor frozen do,
with one leader. Croaks with the end of the log when that takes longer than
$timeout seconds (default 60).

=cut

sub wait_for_node
{
	my ($self, $node, $timeout) = @_;
	$self->_wait_for(sub { $self->mode($node) }, $timeout, "node $node does not serve");
	return;
}

sub wait_for_quorum
{
	my ($self, $timeout) = @_;
	my @up = $self->up;
	$self->_wait_for(
		sub {
			my @modes = map { $self->mode($_) // '' } @up;
			return $self->{nodes} == 1
			  ? $modes[0] eq 'standalone'
			  : (grep { $_ eq 'leader' } @modes) == 1
			  && (grep { $_ eq 'follower' } @modes) == @modes - 1;
		},
		$timeout,
		'no quorum');
	return;
}

sub _wait_for
{
	my ($self, $condition, $timeout, $complaint) = @_;
	my $ok = poll(
		sub {
			foreach my $node (grep { $self->{pid}{$_} } $self->all)
			{
				next if waitpid($self->{pid}{$node}, WNOHANG) == 0;
				delete $self->{pid}{$node};
				delete $self->{state}{$node};
				croak "ZooKeeper node $node has ended:\n" . $self->log_tail($node);
			}
			return $condition->();
		},
		$timeout // 60);
	croak "$complaint:\n" . join '', map { $self->log_tail($_) } $self->all unless $ok;
	return;
}

=item $zk->log_tail($n)

The last lines of a node's log.

=cut

sub log_tail
{
	my ($self, $node) = @_;
	open my $fh, '<', $self->_log_file($node) or return '';
	my @lines = <$fh>;
	splice @lines, 0, @lines - 15 if @lines > 15;
	return join '', map { "zk$node: $_" } @lines;
}

=item $zk->proxy($n, @command)

The proxy before node $n (option proxy): 'freeze', 'pass', 'refuse', 'accept',
'cut', 'hang_up', 'drop_replies', 'drop_events', 'only_handshakes', 'delay', 'lose_reply', 'lose_request', 'forget_session',
'session', 'status', as
described at the head of zkproxy.pl. Without $n defined: all nodes. Returns the answer of the last.

=item $zk->isolate($n), $zk->isolate($n, hang_up => 1), $zk->rejoin($n)

With the option quorum_proxy: cut node $n off from the other two, in both
directions, so that nobody is told. Its clients stay connected to it. With hang_up the
other two are told, if it was them who dialed: the followers of a leader.

=cut

sub proxy
{
	my ($self, $node, @command) = @_;
	croak 'there is no proxy' unless $self->{proxy};
	my $answer;
	$answer = $self->{network}->command("client$_", @command)
	  foreach defined $node ? ($node) : $self->all;
	return $answer;
}

sub isolate
{
	my ($self, $node, %opt) = @_;
	return $self->_quorum_links($node, 'freeze', $opt{hang_up} ? 'hang_up' : 'freeze');
}

sub rejoin { my ($self, $node) = @_; return $self->_quorum_links($node, 'pass', 'pass'); }

sub _quorum_links
{
	my ($self, $node, $verb_out, $verb_in) = @_;
	croak 'the quorum links have no proxy' unless $self->{quorum_proxy};
	foreach my $other (grep { $_ != $node } $self->all)
	{
		foreach my $kind (qw(quorum election))
		{
			$self->{network}->command("$kind$node$other", $verb_out);
			$self->{network}->command("$kind$other$node", $verb_in);
		}
	}
	return;
}

=item $zk->node_of($pid)

The node that this process talks to through the proxies, or undef.

=back

=cut

sub node_of
{
	my ($self, $pid) = @_;
	my %node = map { ($self->{port}{$_}{front} => $_) } $self->all;
	# /proc/net/tcp names the sockets, /proc/pid/fd those of the process
	my %inode = map { (readlink($_) // '') =~ /^socket:\[(\d+)\]/ ? ($1 => 1) : () } glob "/proc/$pid/fd/*";
	# a JVM's sockets are of the other family
	foreach my $table ("/proc/$pid/net/tcp", "/proc/$pid/net/tcp6")
	{
		open my $fh, '<', $table or next;
		while (my $line = <$fh>)
		{
			my @f = split ' ', $line;
			next unless $f[9] && $inode{ $f[9] } && $f[3] eq '01';
			my $node = $node{ hex((split /:/, $f[2])[1]) };
			return $node if defined $node;
		}
	}
	return;
}

# ---------------------------------------------------------------------
# Inside

# Ports below the kernel's ephemeral range (32768 and up) and below those that
# PostgreSQL's test library picks (49152 and up), in blocks that processes side by side
# do not share unless their ids are a thousand apart; the probe sees the rest. All
# have five digits, which zkproxy.pl relies on.
sub _assign_ports
{
	my ($self) = @_;
	my $size = 25;

	foreach my $try (0 .. 99)
	{
		my $first = 20000 + $size * (($$ * 7 + $blocks++ + $try) % 500);
		my @ports = ($first .. $first + $size - 1);
		next if grep { !_port_is_free($_) } @ports;

		foreach my $node ($self->all)
		{
			$self->{port}{$node} = { map { $_ => shift @ports } qw(client front quorum election) };
		}
		foreach my $node ($self->all)
		{
			foreach my $other (grep { $_ != $node } $self->all)
			{
				$self->{link}{"$node$other"} = { map { $_ => shift @ports } qw(quorum election) };
			}
		}
		return;
	}
	croak 'no free ports';
}

sub _port_is_free
{
	my ($port) = @_;
	return IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'tcp', Listen => 1);
}

sub _write_config
{
	my ($self, $node) = @_;
	my $dir = "$self->{dir}/$node";
	my %cfg = (
		tickTime => $self->{tick},
		initLimit => $self->{init_limit},
		syncLimit => $self->{sync_limit},
		dataDir => "$dir/data",
		clientPort => $self->{port}{$node}{client},
		clientPortAddress => '127.0.0.1',
		minSessionTimeout => $self->{min_session},
		maxSessionTimeout => 60000,
		maxClientCnxns => 0,
		'admin.enableServer' => 'false',
		'4lw.commands.whitelist' => '*',
		%{ $self->{extra} });

	if ($self->{nodes} > 1)
	{
		$cfg{standaloneEnabled} = 'false';
		foreach my $other ($self->all)
		{
			# A node binds what it calls itself, and dials what it calls the others.
			my $ports = $self->{quorum_proxy}
			  && $other != $node ? $self->{link}{"$node$other"} : $self->{port}{$other};
			$cfg{"server.$other"} = "127.0.0.1:$ports->{quorum}:$ports->{election}";
		}
	}
	make_path("$dir/data");
	write_file("$dir/data/myid", "$node\n");
	write_file("$dir/zoo.cfg", join '', map { "$_=$cfg{$_}\n" } sort keys %cfg);
	return;
}

sub _start_proxy
{
	my ($self) = @_;
	my @routes;

	if ($self->{proxy})
	{
		push @routes, map { "client$_=127.0.0.1:$self->{port}{$_}{front}=127.0.0.1:$self->{port}{$_}{client}" }
		  $self->all;
	}
	if ($self->{quorum_proxy})
	{
		foreach my $link (sort keys %{ $self->{link} })
		{
			my ($from, $to) = split //, $link;
			push @routes,
			  "quorum$link=127.0.0.1:$self->{link}{$link}{quorum}=127.0.0.1:$self->{port}{$to}{quorum}=raw";
			push @routes,
			  "election$link=127.0.0.1:$self->{link}{$link}{election}=127.0.0.1:$self->{port}{$to}{election}="
			  . "$self->{port}{$from}{election}/$self->{link}{qq($to$from)}{election}";
		}
	}

	$self->{network} = ZkProxy->new("$self->{dir}/proxy", @routes);
	return;
}

sub _log_file
{
	my ($self, $node) = @_;
	return "$self->{dir}/$node/log" unless $self->{log_dir};
	(my $script = $0) =~ s{.*/}{};
	make_path($self->{log_dir});
	return "$self->{log_dir}/$script-$self->{name}$node.log";
}

END
{
	# stop() waits for processes; the test's exit status is not theirs.
	local $?;
	# a list of our own: stop() changes @live
	my @mine = grep { $_->{owner} == $$ } @live;
	$_->stop foreach @mine;
}

1;
