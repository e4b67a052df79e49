# ZkTest - what the TAP tests share: servers with zklock, connections that can be left
# waiting, a look into a lock's directory.
#
#	use ZkTest;
#	my $zk = ZkEnsemble->new->start;
#	my $node = zk_server('a', $zk);
#	my $session = ZkTest::Session->new($node);
#	$session->send("SELECT zk_lock_acquire('x')");
#	... $session->wait(5) ...
#
# PostgreSQL's own BackgroundPsql waits for every answer. Here most tests are about a
# statement that has not answered yet, and about how long after some event it does.
#
# Copyright (c) 2026, zklock developers

package ZkTest;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use Time::HiRes qw(time sleep);

use PostgreSQL::Test::Cluster;
use ZkEnsemble;
use ZkProcess qw(process_state);

our @EXPORT = qw(zk_server wait_for_lease wait_for_full_lease worker_of postmaster_of processes_of move_to poll_until
  shared_library instrumented begin_load end_load zk_pair_without_standby
  contenders lock_directory lose nodes_become nodes_left members
  sql rows log_since timed_query waits_behind_others process_state ROOT);

use constant ROOT => '/zklock';

# A contender of ours: what Curator writes for an InterProcessMutex.
my $uuid = qr/[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}/;
my $contender = qr/^_c_$uuid-(?:lock-|__READ__|__WRIT__)\d{10}$/;

# zk_server($name, $zk, conf => $more): a started server with the extension in database
# postgres and a lease. The ZooKeeper session timeout is 10 s unless conf says otherwise.
sub zk_server
{
	my ($name, $zk, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $hosts = $opt{hosts} // $zk->hosts;
	my $conf = $opt{conf} // '';

	$node->init;
	$node->append_conf('postgresql.conf', <<"END");
shared_preload_libraries = 'zklock'
zklock.hosts = '$hosts'
zklock.server_name = '$name'
zklock.server_tick_time = $zk->{tick}ms
max_connections = 60
log_error_verbosity = verbose
$conf
END
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION zklock');
	wait_for_lease($node);
	return $node;
}

# An ensemble of one node behind a proxy, server a, which goes through the proxy, and server b, which
# does not, so that it can take over what a loses. A commit on a that sets synchronous_commit = on
# waits for a standby that never comes: this holds it up after its commit record.
sub zk_pair_without_standby
{
	my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
	my $node_a = zk_server('a', $zk, conf => <<'END');
zklock.session_timeout = 4s
wal_level = replica
max_wal_senders = 4
synchronous_standby_names = 'standby'
synchronous_commit = local
END
	my $node_b = zk_server('b', $zk, hosts => $zk->direct_hosts(1));
	return ($zk, $node_a, $node_b);
}

# Wait until the server can take locks.
sub wait_for_lease
{
	my ($node, $timeout) = @_;
	my $name = 'zktest/lease-of-' . $node->name . "-$$";
	my $error = '';
	poll_until(
		sub {
			my $code = $node->psql('postgres', "SELECT zk_lock_try_acquire('$name') IS NOT NULL",
				stderr => \$error, on_error_die => 0);
			return $code == 0;
		},
		$timeout // 30) // croak "server " . $node->name . " got no lease: $error";
	return;
}

sub worker_of
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'zklock worker'});
}

sub postmaster_of
{
	my ($node) = @_;
	my ($pid) = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return $pid;
}

# All processes of the server, the postmaster's last.
sub processes_of
{
	my ($node) = @_;
	my $postmaster = postmaster_of($node);
	my @children = split ' ', PostgreSQL::Test::Utils::slurp_file("/proc/$postmaster/task/$postmaster/children");
	return (@children, $postmaster);
}

# Compile test/$name.c into a library for the server; returns where it is.
sub shared_library
{
	my ($name) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir($name) . "/$name.so";
	my $pg_config = $ENV{PGCONFIG} || 'pg_config';
	chomp(my $include = `$pg_config --includedir-server`);
	system('cc', '-O1', '-shared', '-fPIC', "-I$include", '-o', $library, "test/$name.c") == 0
	  or croak "cannot compile test/$name.c";
	return $library;
}

# Is the server under a sanitizer or valgrind? Then it has preloaded libraries, sizes and a
# pace of its own.
sub instrumented
{
	my ($bin) = grep { -x "$_/postgres" } split /:/, $ENV{PATH};
	return -e "$bin/postgres.real";
}

# Make the servers' workers talk to ZooKeeper node $zk_node, by refusing the others for a
# moment.
sub move_to
{
	my ($zk, $nodes, $zk_node) = @_;
	my @nodes = ref $nodes eq 'ARRAY' ? @$nodes : $nodes;
	my $there = sub { return !grep { ($zk->node_of(worker_of($_)) // 0) != $zk_node } @nodes };
	return if $there->();
	my @others = grep { $_ != $zk_node } $zk->all;
	$zk->proxy($_, 'refuse') foreach @others;
	$zk->proxy($_, 'cut') foreach @others;
	my $moved = poll_until($there, 20);
	$zk->proxy($_, 'accept') foreach @others;
	croak "the worker does not move to node $zk_node" unless defined $moved;
	wait_for_lease($_) foreach @nodes;
	return;
}

# Wait until the lease is as long as the rule in lease.h can make it when answers come within
# 0.2 s: a slow heartbeat of a moment ago must not count into what is measured. After twice the
# timeout it is forgotten; a machine that never gets there is measured as it is.
sub wait_for_full_lease
{
	my ($node) = @_;
	wait_for_lease($node);
	poll_until(
		sub {
			$node->safe_psql('postgres', <<'END') eq 't';
SELECT lease_left > session_timeout * 15 / 16 - current_setting('zklock.server_tick_time')::interval / 2 - interval '0.7 s'
FROM zk_session
END
		}, 25);
	return;
}

# Locks are asked for and given back all the time, whatever comes of it.
sub begin_load
{
	my ($node) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir('load') . '/load.sql';
	open my $fh, '>', $file or die "$file: $!";
	print $fh "SELECT zk_lock_acquire('load', timeout => '1 s');\nSELECT zk_lock_release('load');\n" x 100_000;
	close $fh or die;
	return map {
		my $pid = fork // die "fork: $!";
		if ($pid == 0)
		{
			open STDOUT, '>', '/dev/null';
			open STDERR, '>', '/dev/null';
			exec 'psql', '-Xqt', '-d', $node->connstr('postgres'), '-f', $file or POSIX::_exit(127);
		}
		$pid;
	} 1, 2;
}

sub end_load { kill 'KILL', @_; waitpid $_, 0 foreach @_; return; }

# Seconds until the condition came true, or undef when it did not within $timeout.
sub poll_until
{
	my ($condition, $timeout) = @_;
	my $start = time;
	until ($condition->())
	{
		return if time - $start > $timeout;
		sleep 0.01;
	}
	return time - $start;
}

sub lock_directory { my ($lock) = @_; return ROOT . "/$lock"; }

# Names of all nodes in a lock's directory; dies if one is not a contender of ours,
# since nothing else may ever lie there.
sub contenders
{
	my ($zk, $lock) = @_;
	my @nodes = $zk->ls(lock_directory($lock));
	my @foreign = grep { $_ !~ $contender } @nodes;
	croak "in the directory of $lock: @foreign" if @foreign;
	return @nodes;
}

# lose($zk, $lock): delete the node of the lock's holder, so that the holder loses it. With $node, the
# holder's server, wait until that server has noticed: the lock is lost there, or gone with the
# connection that held it.
sub lose
{
	my ($zk, $lock, $node) = @_;
	my ($holder) = sort { substr($a, -10) cmp substr($b, -10) } contenders($zk, $lock);
	$zk->delete(lock_directory($lock) . "/$holder");
	return unless $node;
	poll_until(sub { sql($node, "SELECT count(*) FROM zk_locks WHERE name = '$lock' AND state = 'held'") eq '0' }, 5)
	  // croak "the loss of $lock is not noticed";
	return;
}

# nodes_become($zk, $lock, $n, $timeout): wait until the lock has exactly $n contenders. Returns the
# seconds that it took, or undef after $timeout seconds.
sub nodes_become
{
	my ($zk, $lock, $n, $timeout) = @_;
	return poll_until(sub { contenders($zk, $lock) == $n }, $timeout);
}

# nodes_left($zk, $timeout): how many nodes of exclusive locks there are, of all names. Waits up to
# $timeout seconds, or not at all, for there to be none.
sub nodes_left
{
	my ($zk, $timeout) = @_;
	my $n;
	poll_until(
		sub {
			# Many thousand nodes take longer to list than zkcli waits by default.
			my ($code, $list) = $zk->zkcli([ 'lsr', ROOT ], timeout => 60);
			croak "lsr: exit code $code" if $code != 0;
			$n = () = $list =~ /lock-\d{10}$/mg;
			return $n == 0;
		},
		$timeout // 0);
	return $n;
}

# members($zk, $server): the member nodes of a server, or of all servers, in one string. A member node
# is named after the server and its ZooKeeper session, so the string changes when the ZooKeeper
# session does. It is '' when there is none.
sub members
{
	my ($zk, $server) = @_;
	my $of = defined $server ? qr/^\Q$server\E-/ : qr/^\w+-/;
	return join ' ', grep { $_ =~ $of } $zk->ls(ROOT . '/.zklock');
}

# sql($node, $query, $database): the answer, as safe_psql gives it.
sub sql
{
	my ($node, $query, $database) = @_;
	return $node->safe_psql($database // 'postgres', $query);
}

# rows($node, $what): how many rows of table work there are with that what, which most tests
# write to see what was committed.
sub rows
{
	my ($node, $what) = @_;
	return sql($node, "SELECT count(*) FROM work WHERE what = '$what'");
}

# log_since($node, $offset): what the server has logged behind that position, which is taken before
# with -s $node->logfile.
sub log_since
{
	my ($node, $offset) = @_;
	return PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset);
}

# timed_query($node, $query): the answer, with error messages and their codes, and the seconds that
# psql measured.
sub timed_query
{
	my ($node, $query) = @_;
	my (undef, $stdout, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\n\\timing on\n$query");
	my ($took) = $stdout =~ /^Time: ([\d.]+) ms/m;
	$stdout =~ s/^Time: .*\n?//m;
	return ("$stdout$stderr", ($took // 1e9) / 1000);
}

# waits_behind_others($observer, $session): does the statement of $session wait for another backend of
# its server? $observer is a connection to the same server.
sub waits_behind_others
{
	my ($observer, $session) = @_;
	return defined poll_until(
		sub {
			$session->answered
			  || $observer->query('SELECT cardinality(pg_blocking_pids(' . $session->backend . ')) > 0') eq 't';
		}, 10)
	  && !$session->answered;
}

# A wall clock that the test sets, for a server that is started with this environment
# (see fakeclock.c).
package ZkTest::Clock;

use strict;
use warnings;

use Carp;
use IO::File;

sub possible { return !ZkTest::instrumented(); }

sub new
{
	my ($class) = @_;
	# a directory of its own: a test beside this one has a clock too
	my $file = PostgreSQL::Test::Utils::tempdir('fakeclock') . '/offset';
	my $self = bless {
		library => ZkTest::shared_library('fakeclock'),
		file => $file,
		# written in place: it is mapped
		fh => IO::File->new($file, '>:raw') // croak("$file: $!"),
	}, $class;
	$self->set(0);
	return $self;
}

sub environment { my ($self) = @_; return (LD_PRELOAD => $self->{library}, FAKECLOCK => $self->{file}); }

sub set
{
	my ($self, $days) = @_;
	return $self->shift_by($days * 86400);
}

sub shift_by
{
	my ($self, $seconds) = @_;
	sysseek $self->{fh}, 0, 0;
	syswrite $self->{fh}, pack 'q', $seconds * 1_000_000;
	return;
}

# A connection. psql in the background, with its output in a pipe that is read when
# there is something.
package ZkTest::Session;

use strict;
use warnings;

use Carp;
use IO::Select;
use IPC::Open3;
use POSIX qw(WNOHANG);
use Time::HiRes qw(time);

# ZkTest::Session->new($node, %options)
#
#	database	default postgres
#	user		default the superuser
#	name		application_name (default zktest)
sub new
{
	my ($class, $node, %opt) = @_;
	local $ENV{PGAPPNAME} = $opt{name} // 'zktest';
	local $ENV{PGUSER} = $opt{user} if $opt{user};
	my $pid = open3(my $in, my $out, undef, 'psql', '-XAtqw', '-v', 'VERBOSITY=verbose',
		'-d', $node->connstr($opt{database} // 'postgres'), '-f', '-');
	my $self = bless {
		pid => $pid,
		in => $in,
		out => $out,
		select => IO::Select->new($out),
		buffer => '',
		turn => 0,
		ended => 0,
	}, $class;
	$self->{backend} = $self->query('SELECT pg_backend_pid()');
	croak "cannot connect: $self->{backend}" unless $self->{backend} =~ /^\d+$/;
	return $self;
}

sub backend { my ($self) = @_; return $self->{backend}; }

# Start a statement, or several, and come back at once.
sub send
{
	my ($self, $sql) = @_;
	my $mark = $self->{mark} = sprintf '-- end of %d --', ++$self->{turn};
	local $SIG{PIPE} = 'IGNORE';
	my $in = $self->{in};
	print $in "$sql\n;\\echo '$mark'\n";
	$in->flush;
	return;
}

# More input for a statement that reads it.
sub feed
{
	my ($self, $text) = @_;
	local $SIG{PIPE} = 'IGNORE';
	my $in = $self->{in};
	print $in $text;
	$in->flush;
	return;
}

# Wait for the answer: values and error messages as psql prints them, or undef when
# there is none within $timeout seconds. A connection that ended has answered.
sub wait
{
	my ($self, $timeout) = @_;
	my $until = time + ($timeout // 60);
	while (1)
	{
		if ($self->{buffer} =~ s/^(.*?)\Q$self->{mark}\E\n//s)
		{
			my $answer = $1;
			chomp $answer;
			return $answer;
		}
		if ($self->{ended})
		{
			my $answer = $self->{buffer};
			$self->{buffer} = '';
			chomp $answer;
			return $answer;
		}
		my $left = $until - time;
		return if $left <= 0 && !$self->{select}->can_read(0);
		next unless $self->{select}->can_read($left > 0 ? $left : 0);
		my $n = sysread $self->{out}, $self->{buffer}, 65536, length $self->{buffer};
		$self->{ended} = 1 unless $n;
	}
}

sub query
{
	my ($self, $sql, $timeout) = @_;
	$self->send($sql);
	return $self->wait($timeout) // croak "no answer to: $sql";
}

# Has the statement answered? Does not wait.
sub answered
{
	my ($self) = @_;
	my $answer = $self->wait(0);
	return 0 unless defined $answer;
	$self->{buffer} = "$answer\n$self->{mark}\n$self->{buffer}" unless $self->{ended};
	return 1;
}

# The client leaves in an orderly way.
sub quit
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	close $self->{in};
	waitpid $pid, 0;
	$self->{ended} = 1;
	return;
}

# The client's process dies.
sub kill_client
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	$self->{ended} = 1;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!);
	$self->kill_client;
	return;
}

1;
