# ZkWire - PostgreSQL's protocol by hand, for what no client library sends: an Execute
# with a row limit, messages without a Sync behind them, a function call past SQL.
#
#	my $wire = ZkWire->new($node);
#	$wire->parse('s', 'INSERT INTO t VALUES ($1)');
#	$wire->bind('', 's', 'x');
#	$wire->execute('', 0);
#	my $answer = $wire->sync;
#
# The senders only put into a buffer. sync, flush, query and call send it, wait, and return
# { error => SQLSTATE or undef, message, rows => [ first columns ], notices => [ SQLSTATE ],
# suspended => 0|1, status => I|T|E, ended => 1 when the connection is }.
#
# Copyright (c) 2026, zklock developers

package ZkWire;

use strict;
use warnings;

use Carp;
use IO::Select;
use IO::Socket::UNIX;
use Time::HiRes qw(time);

sub new
{
	my ($class, $node) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port)
	  or croak "cannot connect: $!";
	my $self = bless { socket => $socket, out => '', in => '' }, $class;
	my $user = getpwuid $<;
	my $startup = pack 'N', 3 << 16;
	$startup .= "$_\0" foreach 'user', $user, 'database', 'postgres', 'application_name', 'zkwire', '';
	syswrite $socket, pack('N', 4 + length $startup) . $startup;
	my $answer = $self->answer('Z');
	croak $answer->{message} if $answer->{error};
	return $self;
}

sub put
{
	my ($self, $type, $body) = @_;
	$self->{out} .= $type . pack('N', 4 + length $body) . $body;
	return;
}

sub parse { my ($self, $name, $sql) = @_; return $self->put('P', "$name\0$sql\0" . pack 'n', 0); }

sub bind
{
	my ($self, $portal, $statement, @values) = @_;
	return $self->put('B', "$portal\0$statement\0" . pack('nn', 0, scalar @values)
		  . join('', map { pack('N', length $_) . $_ } @values) . pack 'n', 0);
}

sub execute { my ($self, $portal, $rows) = @_; return $self->put('E', "$portal\0" . pack 'N', $rows); }

sub sync { my ($self) = @_; $self->put('S', ''); return $self->answer('Z'); }

# Until as many answers to Execute are here as were asked for, or an error.
sub flush
{
	my ($self, $executes) = @_;
	$self->put('H', '');
	return $self->answer('[CsI]', $executes // 1);
}

sub query { my ($self, $sql) = @_; $self->put('Q', "$sql\0"); return $self->answer('Z'); }

# Call the function with this oid, arguments and result as text.
sub call
{
	my ($self, $oid, @values) = @_;
	$self->put('F', pack('Nnn', $oid, 0, scalar @values)
		  . join('', map { pack('N', length $_) . $_ } @values) . pack 'n', 0);
	return $self->answer('Z');
}

# One statement by parse, bind and execute.
sub extended
{
	my ($self, $sql, @values) = @_;
	$self->parse('', $sql);
	return $self->prepared('', @values);
}

sub prepared
{
	my ($self, $statement, @values) = @_;
	$self->bind('', $statement, @values);
	$self->execute('', 0);
	return $self->sync;
}

sub answer
{
	my ($self, $last, $count) = @_;
	my %answer = (rows => [], notices => [], suspended => 0);
	my $until = time + 60;
	my $pattern = qr/^$last$/;

	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{socket}, $self->{out} if length $self->{out};
	$self->{out} = '';
	my $select = IO::Select->new($self->{socket});
	$count //= 1;
	while (1)
	{
		while (length $self->{in} >= 5)
		{
			my ($type, $length) = unpack 'aN', $self->{in};
			last if length $self->{in} < 1 + $length;
			my $body = substr $self->{in}, 5, $length - 4;
			substr($self->{in}, 0, 1 + $length) = '';

			if ($type eq 'D')
			{
				my ($columns, $size) = unpack 'nN', $body;
				push @{ $answer{rows} }, $size == 0xFFFFFFFF ? undef : substr $body, 6, $size;
			}
			elsif ($type eq 'V')
			{
				my $size = unpack 'N', $body;
				push @{ $answer{rows} }, $size == 0xFFFFFFFF ? undef : substr $body, 4, $size;
			}
			elsif ($type eq 'E' || $type eq 'N')
			{
				my %field = map { (substr($_, 0, 1) => substr $_, 1) } split /\0/, $body;
				if ($type eq 'N') { push @{ $answer{notices} }, $field{C}; }
				else { @answer{qw(error message)} = @field{qw(C M)}; }
			}
			elsif ($type eq 's') { $answer{suspended} = 1; }
			$answer{status} = $body if $type eq 'Z';
			return \%answer if $type =~ $pattern && --$count == 0;
			# without a Sync nothing follows an error
			return \%answer if $type eq 'E' && $last ne 'Z';
		}
		croak 'no answer' unless $select->can_read($until - time);
		next if sysread $self->{socket}, $self->{in}, 65536, length $self->{in};
		$answer{ended} = 1;
		return \%answer;
	}
}

sub close { my ($self) = @_; close $self->{socket}; return; }

1;
