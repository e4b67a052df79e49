# ZkPeers - clients of ZooKeeper locks that tests can treat alike: Apache Curator, kazoo, Go
# and zklock.
#
#	use ZkPeers;
#	my $curator = ZkPeers->start('Curator', $zk->hosts);
#	my $c = $curator->client;
#	my $z = ZkPeers->zklock($node);
#	$z->acquire('mutex', 'job');
#	... $z->answer(5)->{node} ...
#	$c->acquire('mutex', 'job');
#	... $c->take ... nothing yet
#
# Foreign clients are programs in test/interop, which are started as PROGRAM HOSTS
# SESSION_TIMEOUT_MS and say "-", "ready" when they are connected. Commands on their standard
# input and answers on standard output are lines of fields with tabs between them. The first
# field is an id; each has a thread, or goroutine, of its own, which does one thing after the
# other, and all ids of a process share one ZooKeeper session.
#
#	ID acquire KIND PATH [LEASES]	ID acquired NODE
#	ID release [KIND]				ID released			the last one, or the last of that kind
#	ID participants KIND PATH		ID participants NODE...	what the client shows of them
#	ID revoke NODE_PATH				ID revoked			Curator: ask for it
#									ID asked			Curator, kind revocable: was asked for
#													it; "released" follows
#									ID error TEXT		instead of any answer
#
# KIND is mutex, read, write or semaphore as far as the client has it, plain for kazoo's
# Lock without the pattern that lets it see others, and semaphoremutex or multi of Curator,
# which say "-" for NODE. They end when standard input does.
#
# Copyright (c) 2026, zklock developers

package ZkPeers;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use Fcntl qw(:flock);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use IO::Select;
use IPC::Open3;
use Time::HiRes qw(time sleep);

use PostgreSQL::Test::Utils ();
use ZkTest;

our @EXPORT = qw(peer_missing wait_any queue_of watchers_of digits_of names_that_people_use);

my $interop = abs_path(dirname(__FILE__) . '/../interop');
my $java = '/usr/share/java';
my $gopath = '/usr/share/gocode';
my $python = '/usr/bin/python3';

my %peer = (
	Curator => {
		needs => sub {
			return 'libcurator-recipes-java is not installed' unless -e "$java/curator-recipes.jar";
			return 'there is no javac (default-jdk-headless)' unless _succeeds('javac', '-version');
			return;
		},
		source => 'CuratorPeer.java',
		built => 'CuratorPeer.class',
		compile => sub { return ('javac', '-d', $_[0], '-cp',
			join(':', map { "$java/$_.jar" } qw(curator-recipes curator-framework curator-client zookeeper)),
			"$interop/CuratorPeer.java") },
		# The second timeout of a Curator client, for connecting, is T as well.
		run => sub { return ('java', qw(-Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData),
			'-cp', "$java/curator-recipes.jar:$_[0]", 'CuratorPeer') },
	},
	kazoo => {
		needs => sub {
			return 'python3-kazoo is not installed' unless _succeeds($python, '-c', 'import kazoo');
			return;
		},
		run => sub { return ($python, "$interop/kazoo_peer.py") },
	},
	Go => {
		needs => sub {
			return 'golang-github-samuel-go-zookeeper-dev is not installed'
			  unless -d "$gopath/src/github.com/samuel/go-zookeeper/zk";
			return 'there is no go (golang-go)' unless _succeeds('go', 'version');
			return;
		},
		source => 'go_peer.go',
		built => 'go_peer',
		compile => sub { return ('env', 'GO111MODULE=off', 'GOFLAGS=', "GOPATH=$gopath", "GOCACHE=$_[0]/gocache",
			'go', 'build', '-o', "$_[0]/go_peer", "$interop/go_peer.go") },
		run => sub { return ("$_[0]/go_peer") },
	},
);

sub _succeeds
{
	my (@command) = @_;
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		open STDOUT, '>', '/dev/null';
		open STDERR, '>&', \*STDOUT;
		exec @command or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	return $? == 0;
}

# Why clients of that kind cannot be started here; undef when they can.
sub peer_missing
{
	my ($kind) = @_;
	my $p = $peer{$kind} or croak "no peer $kind";
	$p->{missing} //= $p->{needs}->() // '';
	return $p->{missing} eq '' ? undef : $p->{missing};
}

# Compile what has to be, once for all tests that run side by side.
sub _build
{
	my ($kind) = @_;
	my $p = $peer{$kind};
	my $build = ($ENV{ZKLOCK_TEST_BUILD} // "$interop/build");

	make_path($build);
	return $build unless $p->{compile};
	open my $lock, '>', "$build/.lock" or croak "$build/.lock: $!";
	flock $lock, LOCK_EX or croak "flock: $!";
	unless (-e "$build/$p->{built}" && -M "$build/$p->{built}" <= -M "$interop/$p->{source}")
	{
		system($p->{compile}->($build)) == 0 or croak "cannot compile $p->{source}";
	}
	return $build;
}

# ZkPeers->start($kind, $hosts, timeout => ms): a process with one ZooKeeper session.
sub start
{
	my ($class, $kind, $hosts, %opt) = @_;
	my $build = _build($kind);
	my $log_file = ($ENV{TESTLOGDIR} // $build) . "/peer_$kind.log";
	open my $log, '>>', $log_file or croak "$log_file: $!";
	my $pid = open3(my $in, my $out, '>&' . fileno($log), $peer{$kind}{run}->($build), $hosts, $opt{timeout} // 4000);
	my $self = bless {
		kind => $kind,
		pid => $pid,
		in => $in,
		out => $out,
		select => IO::Select->new($out),
		buffer => '',
		ids => 0,
		answers => {},
	}, $class;
	$self->_wait_for('-', 60) // croak "$kind does not connect, see $log_file";
	return $self;
}

# A new id.
sub client
{
	my ($self) = @_;
	return bless { process => $self, id => 'c' . ++$self->{ids}, kind => $self->{kind} }, 'ZkPeers::Client';
}

# A connection to a server with zklock, as a client like the others.
sub zklock
{
	my ($class, $node) = @_;
	return bless { session => ZkTest::Session->new($node, name => 'interop'), kind => 'zklock' }, 'ZkPeers::Zklock';
}

# Read what is there.
sub _read
{
	my ($self, $timeout) = @_;
	while (!$self->{ended} && $self->{select}->can_read($timeout))
	{
		sysread($self->{out}, $self->{buffer}, 65536, length $self->{buffer}) or $self->{ended} = 1;
		$timeout = 0;
	}
	while ($self->{buffer} =~ s/^(.*)\n//)
	{
		my ($id, @answer) = split /\t/, $1, -1;
		push @{ $self->{answers}{$id} }, [@answer];
	}
	return;
}

sub _take
{
	my ($self, $id) = @_;
	$self->_read(0);
	my $answer = shift @{ $self->{answers}{$id} //= [] };
	$answer //= [ 'error', 'the process has ended' ] if $self->{ended};
	return $answer;
}

sub _wait_for
{
	my ($self, $id, $timeout) = @_;
	my $until = time + $timeout;
	while (1)
	{
		my $answer = $self->_take($id);
		return $answer if $answer;
		my $left = $until - time;
		return if $left <= 0;
		$self->_read($left);
	}
}

sub _send
{
	my ($self, @fields) = @_;
	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{in}, join("\t", @fields) . "\n";
	return;
}

# kill -9: the ZooKeeper session goes on until it expires.
sub kill
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	CORE::kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

# An orderly end, which closes the ZooKeeper session.
sub stop
{
	my ($self) = @_;
	my $pid = $self->{pid} or return;
	close $self->{in};
	poll_until(sub { $self->_read(0); $self->{ended} }, 10) // carp "$self->{kind} does not end";
	$self->kill;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!);
	$self->kill;
	return;
}

# wait_any($timeout, @clients): what has been answered, as [client, answer], ...; waits
# for the first.
sub wait_any
{
	my ($timeout, @clients) = @_;
	my $until = time + $timeout;
	while (1)
	{
		my @answers = map { my $answer = $_->take; $answer ? ([ $_, $answer ]) : () } @clients;
		return @answers if @answers;
		my $left = $until - time;
		return if $left <= 0;
		my %handle = map { ($_->handle => $_->handle) } @clients;
		IO::Select->new(values %handle)->can_read($left);
	}
}

# names_that_people_use($n): so many different lock names, as bytes of UTF-8, from the grammar of
# test/unit/test_names.c.
sub names_that_people_use
{
	my ($n) = @_;
	my $unit = abs_path("$interop/../unit");
	my $source = abs_path("$interop/../../src");
	my $program = PostgreSQL::Test::Utils::tempdir('names') . '/names';
	system('cc', '-std=gnu11', '-O1', "-I$source", '-o', $program, "$unit/test_names.c", "$source/common/contender.c", "$source/common/lockname.c") == 0
	  or croak 'cannot compile test_names.c';
	open my $out, '-|', $program, '--print', $n or croak "$program: $!";
	chomp(my @names = <$out>);
	close $out or croak "$program: exit code $?";
	return @names;
}

# ---------------------------------------------------------------------
# What the ZooKeeper server says, without a client that could be wrong

# The ephemeral nodes directly in a lock's directory: name => session.
sub queue_of
{
	my ($zk, $lock) = @_;
	my $directory = lock_directory($lock);
	my (%owner, $session);
	my $dump = $zk->four_letter_word(1, 'dump') // croak 'no answer from ZooKeeper';
	foreach my $line (split /\n/, $dump)
	{
		$session = $1 if $line =~ /^(0x[0-9a-f]+):/;
		$owner{$1} = $session if $line =~ m{^\t\Q$directory\E/([^/]+)$};
	}
	return %owner;
}

# Sessions that watch a node of a lock. A client that waits for one watches it, and does so
# once it has decided to wait.
sub watchers_of
{
	my ($zk, $lock, $node) = @_;
	my $path = lock_directory($lock) . "/$node";
	my (@sessions, $here);
	my $watches = $zk->four_letter_word(1, 'wchp') // croak 'no answer from ZooKeeper';
	foreach my $line (split /\n/, $watches)
	{
		$here = $line eq $path if $line =~ m{^/};
		push @sessions, $1 if $here && $line =~ /^\t(0x[0-9a-f]+)/;
	}
	return @sessions;
}

sub digits_of { my ($node) = @_; return $node =~ /(\d{10})$/ ? $1 : croak "a node without digits: $node"; }

# ---------------------------------------------------------------------
# Clients. Commands do not wait. take() returns the next answer, or undef when there is
# none yet; answer() waits for it. An answer is a reference to a hash: what, and node (acquired),
# nodes (participants), text (error).

package ZkPeers::Client;

use strict;
use warnings;
use ZkTest;

sub handle { my ($self) = @_; return $self->{process}{out}; }
sub kind { my ($self) = @_; return $self->{kind}; }

sub acquire
{
	my ($self, $kind, $lock, $leases) = @_;
	$self->{process}->_send($self->{id}, 'acquire', $kind, lock_directory($lock), $leases // ());
	return $self;
}

sub release
{
	my ($self, $kind) = @_;
	$self->{process}->_send($self->{id}, 'release', $kind // ());
	return $self;
}

sub participants
{
	my ($self, $kind, $lock) = @_;
	$self->{process}->_send($self->{id}, 'participants', $kind, lock_directory($lock));
	return $self;
}

sub revoke
{
	my ($self, $lock, $node) = @_;
	$self->{process}->_send($self->{id}, 'revoke', lock_directory($lock) . "/$node");
	return $self;
}

sub take { my ($self) = @_; return _answer($self->{process}->_take($self->{id})); }
sub answer { my ($self, $timeout) = @_; return _answer($self->{process}->_wait_for($self->{id}, $timeout // 10)); }

sub _answer
{
	my ($answer) = @_;
	return unless $answer;
	my ($what, @rest) = @$answer;
	return { what => $what, node => $rest[0] } if $what eq 'acquired';
	return { what => $what, nodes => \@rest } if $what eq 'participants';
	return { what => $what, text => "@rest" };
}

package ZkPeers::Zklock;

use strict;
use warnings;

my %mode = (mutex => 'exclusive', read => 'read', write => 'write');

sub handle { my ($self) = @_; return $self->{session}{out}; }
sub kind { return 'zklock'; }
sub session { my ($self) = @_; return $self->{session}; }

sub acquire
{
	my ($self, $kind, $lock, $leases) = @_;
	my ($call, $name, $mode) = $kind eq 'semaphore'
	  ? ("zk_semaphore_acquire('$lock', $leases, '60 s')", "$lock/leases", 'lease')
	  : ("zk_lock_acquire('$lock', '$mode{$kind}', '60 s')", $lock, $mode{$kind});
	$self->{expected} = 'acquired';
	push @{ $self->{held} }, [ $kind, $lock ];
	$self->{session}->send("SELECT $call; SELECT node FROM zk_locks WHERE pid = pg_backend_pid() AND name = '$name' AND mode = '$mode'");
	return $self;
}

sub release
{
	my ($self, $kind) = @_;
	my ($i) = grep { !defined $kind || $self->{held}[$_][0] eq $kind } reverse 0 .. $#{ $self->{held} };
	my ($held_kind, $lock) = @{ splice @{ $self->{held} }, $i, 1 };
	$self->{expected} = 'released';
	$self->{session}->send($held_kind eq 'semaphore'
		? "SELECT zk_semaphore_release('$lock')"
		: "SELECT zk_lock_release('$lock', '$mode{$held_kind}')");
	return $self;
}

sub participants
{
	my ($self, $kind, $lock) = @_;
	my $name = $kind eq 'semaphore' ? "$lock/leases" : $lock;
	$self->{expected} = 'participants';
	$self->{session}->send("SELECT node FROM zk_lock_queue('$name') ORDER BY position");
	return $self;
}

sub take { my ($self) = @_; return $self->answer(0); }

sub answer
{
	my ($self, $timeout) = @_;
	return unless $self->{expected};
	my $text = $self->{session}->wait($timeout // 10) // return;
	my $expected = delete $self->{expected};
	if ($text !~ /ERROR|FATAL/)
	{
		return { what => 'acquired', node => $1 } if $expected eq 'acquired' && $text =~ m{^\d+\n(?:.*/)?([^/\n]+)$};
		return { what => 'released' } if $expected eq 'released' && $text eq 't';
		return { what => 'participants', nodes => [ map { s{.*/}{}r } split /\n/, $text ] } if $expected eq 'participants';
	}
	return { what => 'error', text => $text };
}

1;
