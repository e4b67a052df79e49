# BenchServer - PostgreSQL servers for bench/run.
#
#	my $server = BenchServer->new('a', zk => $ensemble, conf => 'zklock.max_locks = 200');
#	$server->query('SELECT 1');
#	my $result = $server->pgbench(script => 'SELECT 1;', clients => 64, seconds => 5);
#
# Unlike the servers of PostgreSQL's test library, which turn fsync off, these have the
# settings that initdb gives them, and what zklock needs. One data directory is made and
# copied for each. All sockets are in $ZKLOCK_WORK; the port tells the servers apart.
#
# Copyright (c) 2026, zklock developers

package BenchServer;

use strict;
use warnings;

use Carp;
use POSIX ();
use Time::HiRes qw(time sleep);

my $work = $ENV{ZKLOCK_WORK};
my $next_port = 5401;
my $files = 0;
my @live;

=pod

=over

=item BenchServer->new($name, %options)

	zk				the ensemble; without it zklock is not preloaded
	conf			more lines of postgresql.conf
	connections		max_connections (default 100)

Started, with the extension and a lease if there is an ensemble.

=cut

sub new
{
	my ($class, $name, %opt) = @_;
	my $self = bless { name => $name, port => $next_port++, dir => "$work/data-$name", owner => $$ }, $class;

	command('initdb', '-D', "$work/template", '-A', 'trust', '-U', 'postgres') unless -d "$work/template";
	command('cp', '-a', "$work/template", $self->{dir});
	open my $conf, '>>', "$self->{dir}/postgresql.conf" or croak "postgresql.conf: $!";
	print $conf "listen_addresses = ''\nunix_socket_directories = '$work'\nport = $self->{port}\n",
	  'max_connections = ', $opt{connections} // 100, "\n";
	printf $conf "shared_preload_libraries = 'zklock'\nzklock.hosts = '%s'\nzklock.server_tick_time = 2s\n",
	  $opt{zk}->hosts
	  if $opt{zk};
	print $conf $opt{conf} // '', "\n";
	close $conf or croak "postgresql.conf: $!";

	push @live, $self;
	command('pg_ctl', '-w', '-t', 120, '-D', $self->{dir}, '-l', "$self->{dir}/log", 'start');
	if ($opt{zk})
	{
		$self->query('CREATE EXTENSION zklock');
		$self->wait_until(q{SELECT state = 'connected' AND lease_left > '1 s' FROM zk_session});
	}
	return $self;
}

sub stop
{
	my ($self) = @_;
	return if $self->{owner} != $$ || !grep { $_ == $self } @live;
	(delete $self->{session})->close if $self->{session};
	@live = grep { $_ != $self } @live;
	command('pg_ctl', '-w', '-m', 'fast', '-D', $self->{dir}, 'stop');
	command('rm', '-rf', $self->{dir});
	return;
}

sub port { my ($self) = @_; return $self->{port}; }
sub worker { my ($self) = @_; return $self->query('SELECT worker_pid FROM zk_session'); }

=item $server->query($sql)

The answer, without header, fields separated by |; croaks on an error. All go through one
psql that stays open.

=item $server->wait_until($sql, $timeout)

Until that says t; croaks after $timeout seconds (default 60).

=item $server->session

A psql of its own, an object with the methods query, send (without waiting), answer (of
what was sent) and close.

=cut

sub session { my ($self) = @_; return BenchServer::Session->new($work, $self->{port}); }

sub query
{
	my ($self, $sql) = @_;
	$self->{session} //= $self->session;
	return $self->{session}->query($sql);
}

sub wait_until
{
	my ($self, $sql, $timeout) = @_;
	my $until = time + ($timeout // 60);
	until ($self->query($sql) eq 't')
	{
		croak "$self->{name}: waited in vain for: $sql" if time > $until;
		sleep 0.05;
	}
	return;
}

=item $server->pgbench(%options)

	script			text of the script; or
	builtin			name of a built-in one
	clients			default 1
	seconds			how long; or
	transactions	how many of each client
	define			variables: { name => value }
	log				0: no latencies, which cost a line in a file for each transaction

Returns { rate, and from the log median, p99 (microseconds), ends (when each transaction
was over, sorted) }. Prepared statements.

=item $server->pgbench_start(%options), $pgbench->finish

The same in two steps.

=back

=cut

sub pgbench { my ($self, %opt) = @_; return $self->pgbench_start(%opt)->finish; }

sub pgbench_start
{
	my ($self, %opt) = @_;
	my $base = "$work/tmp/pgbench-" . $files++;
	my $clients = $opt{clients} // 1;
	my @call = ('pgbench', '-n', '-M', 'prepared', '-h', $work, '-p', $self->{port}, '-U', 'postgres', '-c', $clients, '-j');
	push @call, $clients > 100 ? 8 : $clients > 1 ? 2 : 1;
	push @call, $opt{seconds} ? ('-T', $opt{seconds} < 1 ? 1 : int($opt{seconds} + 0.5)) : ('-t', $opt{transactions});
	push @call, map { ('-D', "$_=$opt{define}{$_}") } sort keys %{ $opt{define} // {} };
	push @call, '-l', '--log-prefix', $base unless defined $opt{log} && !$opt{log};
	if (defined $opt{builtin})
	{
		push @call, '-b', $opt{builtin};
	}
	else
	{
		open my $script, '>', "$base.sql" or croak "$base.sql: $!";
		print $script $opt{script};
		close $script or croak "$base.sql: $!";
		push @call, '-f', "$base.sql";
	}

	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', "$base.out";
		open STDERR, '>&', \*STDOUT;
		exec @call, 'postgres' or POSIX::_exit(127);
	}
	return bless { pid => $pid, base => $base }, 'BenchServer::Pgbench';
}

# Run a command whose output is of interest only when it fails.
sub command
{
	my (@command) = @_;
	my $log = "$work/tmp/command.log";
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>', $log;
		open STDERR, '>&', \*STDOUT;
		exec @command or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	return if $? == 0;
	croak "@command failed:\n" . slurp($log);
}

sub slurp
{
	my ($file) = @_;
	open my $fh, '<', $file or return '';
	local $/;
	return <$fh> // '';
}

END
{
	local $?;
	foreach my $server (grep { $_->{owner} == $$ } @live)
	{
		system('pg_ctl', '-w', '-m', 'immediate', '-D', $server->{dir}, '-s', 'stop');
	}
}

package BenchServer::Session;

use strict;
use warnings;

use Carp;
use IO::Handle;
use IPC::Open2;

sub new
{
	my ($class, $host, $port) = @_;
	my $self = bless {}, $class;
	$self->{pid} = open2($self->{out}, $self->{in},
		'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-h', $host, '-p', $port, '-U', 'postgres', 'postgres');
	return $self;
}

sub send
{
	my ($self, $sql) = @_;
	print { $self->{in} } "$sql;\n\\echo end-of-answer\n";
	$self->{in}->flush;
	return;
}

sub answer
{
	my ($self) = @_;
	my $out = $self->{out};
	my @lines;
	while (defined(my $line = <$out>))
	{
		chomp $line;
		return join "\n", @lines if $line eq 'end-of-answer';
		push @lines, $line;
	}
	croak 'psql has ended';
}

sub query { my ($self, $sql) = @_; $self->send($sql); return $self->answer; }

sub close
{
	my ($self) = @_;
	CORE::close $self->{in};
	CORE::close $self->{out};
	local $?;
	waitpid $self->{pid}, 0;
	return;
}

package BenchServer::Pgbench;

use strict;
use warnings;

use Carp;

sub finish
{
	my ($self) = @_;
	waitpid $self->{pid}, 0;
	my $said = BenchServer::slurp("$self->{base}.out");
	croak "pgbench failed:\n$said" unless $? == 0 && $said !~ /^number of failed transactions: [1-9]/m;

	my %result = $said =~ /^tps = ([\d.]+)/m ? (rate => $1) : ();
	my (@took, @ends);
	foreach my $file (glob "$self->{base}.[0-9]*")
	{
		open my $fh, '<', $file or croak "$file: $!";
		while (my $line = <$fh>)
		{
			my @f = split ' ', $line;
			push @took, $f[2];
			push @ends, $f[4] + $f[5] / 1e6;
		}
		close $fh;
		unlink $file;
	}
	unlink "$self->{base}.sql", "$self->{base}.out";
	if (@took)
	{
		@took = sort { $a <=> $b } @took;
		@result{qw(median p99)} = ($took[ @took / 2 ], $took[ @took * 0.99 ]);
		$result{ends} = [ sort { $a <=> $b } @ends ];
	}
	return \%result;
}

1;
