#!/usr/bin/perl
#
# zkproxy.pl - the network that fails on request.
#
#	zkproxy.pl CONTROL_SOCKET ROUTE...
#	ROUTE is NAME=LISTEN_HOST:PORT=TARGET_HOST:PORT[=raw|=OLD_PORT/NEW_PORT]
#
# Stands between a ZooKeeper client and a server, or between two servers, and
# does what a real network does at the worst moment. Killing a process or closing
# a socket tells the other side at once; most of what the extension must survive
# is a peer that is told nothing. Firewalls and network namespaces can do that
# too, but only for root, and the tests run as user postgres.
#
# One process, one select() loop, any number of routes. Commands come over a
# Unix socket, one a line, and are answered by "ok ..." or "error ..." once they are in
# force:
#
#	NAME pass				forward; undoes freeze, drop_replies, lose_*
#	NAME freeze				no byte moves in either direction; sockets stay open,
#							and new connections are left in the kernel's backlog
#	NAME refuse | accept	refuse new connections (the rest stay) | take them again
#	NAME cut				reset all connections
#	NAME hang_up			freeze, and reset the side that dialed; the other side
#							is told nothing
#	NAME drop_replies		forward what the client sends, throw the answers away
#	NAME drop_events		throw away what a server sends of itself: watches that went off
#	NAME only_handshakes	throw away all that a server answers but handshakes
#	NAME lose_reply [OP]	let the next request (of type OP) reach the server,
#							wait until the server has answered it, throw that answer
#							away and reset: done, and the client cannot know
#	NAME lose_request [OP]	reset before the next request (of type OP) is
#							forwarded: not done, and the client cannot know
#	NAME delay MS			what comes from now on takes so long to get through, in each
#							direction, however much of it there is; 0 ends it
#	NAME forget_session		the next client that comes back with a ZooKeeper session is
#							presented to the server as a new one, and answered so
#	NAME session			"ok ID PASSWORD", both in hex, of the ZooKeeper session whose
#							handshake was the last one to pass
#	NAME status				"ok MODE connections=N fired=N"; fired counts the
#							lose_* and forget_session that have struck
#
# lose_* strike once, and then the route passes again. OP is the number of the
# operation in ZooKeeper's protocol: 1 create, 2 delete, 3 exists, 4 getData,
# 5 setData, 8 getChildren, 12 getChildren2, 15 create2, 19 createContainer. Without it any
# request counts except pings (11) and what a reconnect sends on its own.
#
# A route marked raw carries the protocol between servers, which has no frames to
# look into: lose_* do nothing there.
#
# OLD_PORT/NEW_PORT (raw as well): a ZooKeeper server of smaller id that dials a larger one only
# announces its election address; the larger one hangs up and dials back to that.
# The proxy replaces the port in the announcement, or the link would go round it.
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use Errno qw(EAGAIN EINTR EWOULDBLOCK EINPROGRESS);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use constant {
	BUFFER_MAX => 1 << 20,    # stop reading from one side when the other lags
	XID_EVENT => -1,
	OP_PING => 11,
	OP_AUTH => 100,
	OP_SET_WATCHES => 101,
	OP_SET_WATCHES2 => 105,
};

my ($control_path, @specs) = @ARGV;
die "usage: zkproxy.pl CONTROL_SOCKET NAME=LISTEN=TARGET[=raw|=OLD/NEW]...\n"
  unless @specs;
$SIG{PIPE} = 'IGNORE';

my (%routes, %connections);    # name => route; id => connection
my $next_id = 0;

foreach my $spec (@specs)
{
	my ($name, $listen, $target, $kind) = split /=/, $spec;
	my $route = {
		name => $name,
		listen => $listen,
		target => $target,
		raw => defined $kind,
		rewrite => ($kind // '') =~ m{^(\d+)/(\d+)$} ? [ $1, $2 ] : undef,
		mode => 'pass',
		op => undef,
		delay => 0,
		forget => 0,
		fired => 0,
	};
	open_listener($route) or die "cannot listen on $listen: $!\n";
	$routes{$name} = $route;
}

my $control = IO::Socket::UNIX->new(Local => $control_path, Listen => 5)
  or die "cannot listen on $control_path: $!\n";

serve() while (1);

# ---------------------------------------------------------------------
# The loop

sub serve
{
	my ($read, $write) = (IO::Select->new($control), IO::Select->new);
	my %owner;    # fileno => [connection, side]
	my $next = let_through();

	foreach my $route (values %routes)
	{
		$read->add($route->{listener})
		  if $route->{listener} && $route->{mode} ne 'freeze';
	}
	foreach my $conn (values %connections)
	{
		next if $conn->{route}{mode} eq 'freeze';
		foreach my $side (0, 1)
		{
			my $socket = $conn->{socket}[$side];
			next unless $socket;
			$owner{ fileno $socket } = [ $conn, $side ];
			$read->add($socket)
			  if !$conn->{eof}[$side]
			  && length $conn->{out}[ 1 - $side ] < BUFFER_MAX
			  && !$conn->{connecting};
			$write->add($socket)
			  if length $conn->{out}[$side] || ($side == 1 && $conn->{connecting});
		}
	}

	my ($readable, $writable) = IO::Select->select($read, $write, undef, $next);
	my %listeners = map { ($_->{listener} ? (fileno $_->{listener}, $_) : ()) } values %routes;

	foreach my $socket (@{ $writable || [] })
	{
		my ($conn, $side) = @{ $owner{ fileno $socket } || next };
		flush_out($conn, $side) if exists $connections{ $conn->{id} };
	}
	my @commands;
	foreach my $socket (@{ $readable || [] })
	{
		# Closed by something earlier in this round.
		my $fd = fileno $socket // next;
		if ($socket == $control)
		{
			push @commands, scalar $control->accept;
		}
		elsif ($listeners{$fd})
		{
			accept_client($listeners{$fd});
		}
		else
		{
			my ($conn, $side) = @{ $owner{$fd} || next };
			take_in($conn, $side) if exists $connections{ $conn->{id} };
		}
	}
	# Last, so that the sets above are not pulled from under the loop.
	obey($_) foreach grep { $_ } @commands;
	return;
}

sub open_listener
{
	my ($route) = @_;
	$route->{listener} = IO::Socket::INET->new(
		LocalAddr => $route->{listen},
		Proto => 'tcp',
		Listen => 128,
		ReuseAddr => 1,
		Blocking => 0);
	return defined $route->{listener};
}

# ---------------------------------------------------------------------
# Connections. Side 0 is the client, side 1 the server.

sub accept_client
{
	my ($route) = @_;
	my $client = $route->{listener}->accept or return;
	$client->blocking(0);

	my $server = IO::Socket::INET->new(
		PeerAddr => $route->{target},
		Proto => 'tcp',
		Blocking => 0);
	my $id = ++$next_id;
	my $conn = {
		id => $id,
		route => $route,
		socket => [ $client, $server ],
		out => [ '', '' ],
		late => [ [], [] ],    # [when, bytes], ...: not out yet
		eof => [ 0, 0 ],
		shut => [ 0, 0 ],
		connecting => 1,
		first => 1,    # nothing of the client has been seen yet
		frame => [ '', '' ],    # an incomplete frame, while frames are watched
		lost_xid => undef,
		greeted => [ 0, 0 ],    # the handshake of that side is through
		unframed => 0,
	};
	$connections{$id} = $conn;
	return reset_connection($conn) unless $server;
	setsockopt($_, IPPROTO_TCP, TCP_NODELAY, 1) foreach ($client, $server);
	return;
}

# Reset, not close: the peer is to learn of it now and to get nothing more.
sub reset_connection
{
	my ($conn) = @_;
	foreach my $socket (grep { defined } @{ $conn->{socket} })
	{
		setsockopt($socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
		close $socket;
	}
	delete $connections{ $conn->{id} };
	return;
}

# Reset for the one who dialed; the other keeps his half for as long as the route is
# frozen.
sub hang_up
{
	my ($conn) = @_;
	my $socket = $conn->{socket}[0] or return;
	setsockopt($socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
	close $socket;
	$conn->{socket}[0] = undef;
	return;
}

sub take_in
{
	my ($conn, $side) = @_;
	my $n = sysread $conn->{socket}[$side], my $bytes, 65536;

	if (!defined $n)
	{
		return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
		return reset_connection($conn);
	}
	if ($n == 0)
	{
		$conn->{eof}[$side] = 1;
		return pass_eof($conn);
	}

	my $forward = $side == 0 ? client_bytes($conn, $bytes) : server_bytes($conn, $bytes);
	return unless exists $connections{ $conn->{id} };
	if ($conn->{route}{delay} || @{ $conn->{late}[ 1 - $side ] })
	{
		push @{ $conn->{late}[ 1 - $side ] }, [ time + $conn->{route}{delay}, $forward ];
		return;
	}
	$conn->{out}[ 1 - $side ] .= $forward;
	flush_out($conn, 1 - $side) if length $conn->{out}[ 1 - $side ] && !$conn->{connecting};
	return;
}

# What was delayed for long enough goes on. Returns the seconds until there is more to do, or
# undef.
sub let_through
{
	my $now = time;
	my $next;

	# one that breaks is taken out of the list
	my @all = values %connections;
	foreach my $conn (@all)
	{
		next if $conn->{route}{mode} eq 'freeze' || $conn->{connecting};
		foreach my $side (0, 1)
		{
			my $late = $conn->{late}[$side];
			my $due = 0;

			while (@$late && $late->[0][0] <= $now)
			{
				$conn->{out}[$side] .= (shift @$late)->[1];
				$due = 1;
			}
			flush_out($conn, $side) if $due;
			last unless exists $connections{ $conn->{id} };
			$next = $late->[0][0] - $now if @$late && (!defined $next || $late->[0][0] - $now < $next);
		}
	}
	return $next;
}

sub flush_out
{
	my ($conn, $side) = @_;
	my $socket = $conn->{socket}[$side];

	if ($side == 1 && $conn->{connecting})
	{
		return reset_connection($conn) unless defined $socket->connected;
		$conn->{connecting} = 0;
	}
	if (length $conn->{out}[$side])
	{
		my $n = syswrite $socket, $conn->{out}[$side];
		if (!defined $n)
		{
			return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
			return reset_connection($conn);
		}
		substr($conn->{out}[$side], 0, $n, '');
	}
	pass_eof($conn);
	return;
}

# What one side has ended is ended at the other, once all before it is delivered.
sub pass_eof
{
	my ($conn) = @_;
	foreach my $side (0, 1)
	{
		my $other = 1 - $side;
		next if !$conn->{eof}[$side] || $conn->{shut}[$other]
		  || length $conn->{out}[$other] || @{ $conn->{late}[$other] };
		next if $other == 1 && $conn->{connecting};
		shutdown $conn->{socket}[$other], 1;
		$conn->{shut}[$other] = 1;
	}
	if ($conn->{shut}[0] && $conn->{shut}[1])
	{
		close $_ foreach @{ $conn->{socket} };
		delete $connections{ $conn->{id} };
	}
	return;
}

# ---------------------------------------------------------------------
# What happens to bytes on their way. ZooKeeper's frames are a length (4 bytes,
# big endian) and a body; a request's body begins with xid and type, a reply's
# with xid. The first frame of each direction is the handshake and has neither.

sub client_bytes
{
	my ($conn, $bytes) = @_;
	my $route = $conn->{route};

	if ($conn->{first} && $route->{rewrite})
	{
		my ($old, $new) = @{ $route->{rewrite} };
		$bytes =~ s/:$old/:$new/;    # five digits each: no length changes
	}
	$conn->{first} = 0;
	return $bytes if $route->{raw};

	my $forward = '';
	foreach my $frame (split_frames($conn, 0, $bytes))
	{
		if (   $route->{mode} =~ /^lose_/
			&& !defined $conn->{lost_xid}
			&& counts($conn, $frame, $route->{op}))
		{
			my $mode = $route->{mode};
			$route->{mode} = 'pass';
			if ($mode eq 'lose_request')
			{
				$route->{fired}++;
				reset_connection($conn);
				return '';
			}
			$conn->{lost_xid} = unpack 'l>', substr($frame, 4, 4);
		}
		# its handshake: version, zxid, timeout, ZooKeeper session, password
		if ($route->{forget} && !$conn->{greeted}[0] && !$conn->{unframed}
			&& length $frame >= 48 && substr($frame, 20, 8) ne "\0" x 8)
		{
			substr($frame, 20, 8) = "\0" x 8;
			substr($frame, 32, 16) = "\0" x 16;
			$route->{forget} = 0;
			$route->{fired}++;
		}
		$conn->{greeted}[0] = 1;
		$forward .= $frame;
	}
	return $forward;
}

sub server_bytes
{
	my ($conn, $bytes) = @_;
	my $route = $conn->{route};

	return $route->{mode} eq 'drop_replies' ? '' : $bytes if $route->{raw};
	my $forward = '';
	foreach my $frame (split_frames($conn, 1, $bytes))
	{
		if (   $conn->{greeted}[1]
			&& defined $conn->{lost_xid}
			&& unpack('l>', substr($frame, 4, 4)) == $conn->{lost_xid})
		{
			# The replies before it were the client's; it had better get them.
			syswrite $conn->{socket}[0], $conn->{out}[0] . $forward;
			$route->{fired}++;
			reset_connection($conn);
			return '';
		}
		# the answer to a handshake: version, timeout, ZooKeeper session, password
		$route->{session} = sprintf '%016x %s', unpack 'x12 q> x4 H32', $frame
		  if !$conn->{greeted}[1] && !$conn->{unframed} && length $frame >= 40;
		next
		  if $conn->{greeted}[1]
		  && ($route->{mode} eq 'only_handshakes'
			|| ($route->{mode} eq 'drop_events' && unpack('l>', substr($frame, 4, 4)) == XID_EVENT));
		$conn->{greeted}[1] = 1;
		$forward .= $frame unless $route->{mode} eq 'drop_replies';
	}
	return $forward;
}

# Complete frames in order; what is left waits for more. A four-letter word has
# no frames: as a length it is absurd, and the connection passes unwatched.
sub split_frames
{
	my ($conn, $side, $bytes) = @_;
	my @frames;

	return ($bytes) if $conn->{unframed};
	$conn->{frame}[$side] .= $bytes;
	while (length $conn->{frame}[$side] >= 4)
	{
		my $length = unpack 'N', $conn->{frame}[$side];
		if ($length > 1 << 26)
		{
			$conn->{unframed} = 1;
			push @frames, $conn->{frame}[$side];
			$conn->{frame}[$side] = '';
			last;
		}
		last if length $conn->{frame}[$side] < 4 + $length;
		push @frames, substr($conn->{frame}[$side], 0, 4 + $length, '');
	}
	return @frames;
}

# Is this a request that the armed fault waits for?
sub counts
{
	my ($conn, $frame, $op) = @_;

	return 0 if !$conn->{greeted}[0] || $conn->{unframed} || length $frame < 12;
	my $type = unpack 'l>', substr($frame, 8, 4);
	return $type == $op if defined $op;
	return $type != OP_PING
	  && $type != OP_AUTH
	  && $type != OP_SET_WATCHES
	  && $type != OP_SET_WATCHES2;
}

# ---------------------------------------------------------------------
# Commands

sub obey
{
	my ($socket) = @_;

	# One line from a local test that has it ready: blocking is fine, but never
	# for long.
	local $SIG{ALRM} = sub { die "timeout\n" };
	my $line = eval { alarm 1; my $l = <$socket>; alarm 0; $l };
	alarm 0;
	print $socket command($line // ''), "\n";
	close $socket;
	return;
}

sub command
{
	my ($line) = @_;
	my ($name, $verb, $op) = $line =~ /\S+/g;
	my $route = $routes{ $name // '' } or return 'error no such route';
	my @mine = grep { $_->{route} == $route } values %connections;

	$verb //= '';
	if ($verb eq 'status')
	{
		return sprintf 'ok %s connections=%d fired=%d', $route->{mode}, scalar @mine,
		  $route->{fired};
	}
	elsif ($verb eq 'session')
	{
		return defined $route->{session} ? "ok $route->{session}" : 'error no handshake yet';
	}
	elsif ($verb eq 'delay')
	{
		return 'error how many ms?' unless ($op // '') =~ /^\d+$/;
		$route->{delay} = $op / 1000;
	}
	elsif ($verb eq 'forget_session')
	{
		$route->{forget} = 1;
	}
	elsif ($verb eq 'cut')
	{
		reset_connection($_) foreach @mine;
	}
	elsif ($verb eq 'hang_up')
	{
		$route->{mode} = 'freeze';
		hang_up($_) foreach @mine;
	}
	elsif ($verb eq 'refuse')
	{
		close $route->{listener} if $route->{listener};
		$route->{listener} = undef;
	}
	elsif ($verb eq 'accept')
	{
		open_listener($route) or return "error $!" unless $route->{listener};
	}
	elsif ($verb =~ /^(?:pass|freeze|drop_replies|drop_events|only_handshakes|lose_reply|lose_request)$/)
	{
		# half of a connection has nothing to say any more
		reset_connection($_) foreach grep { !$_->{socket}[0] } @mine;
		$route->{mode} = $verb;
		$route->{op} = $op;
	}
	else
	{
		return 'error no such command';
	}
	return 'ok';
}
