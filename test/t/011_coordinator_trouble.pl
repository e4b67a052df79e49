# What is wrong with the coordinator is said, with one code, in time; and it cures
# itself when the trouble is over.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my ($host, $port) = $zk->hosts =~ /^(.*):(\d+)$/;
my $node = zk_server('a', $zk);

# Start again with other settings, whatever they are worth.
sub restart_with
{
	my (%conf) = @_;
	$node->append_conf('postgresql.conf', "zklock.$_ = '$conf{$_}'") foreach sort keys %conf;
	$node->restart;
	return;
}

# A lock cannot be had: that takes as long as it may, has the code for it, and says why.
sub is_unavailable
{
	my ($what, $why) = @_;
	foreach my $call ("zk_lock_acquire('x', timeout => '1500 ms')", "zk_lock_try_acquire('x')")
	{
		my ($code, $stdout, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\n\\timing on\nSELECT $call");
		# psql's own start is not part of it
		my ($took) = $stdout =~ /^Time: ([\d.]+) ms/m;
		like($stderr, qr/ERROR:  ZK003: could not reach ZooKeeper for lock "x"/, "$what: $call: code");
		like($stderr, qr/DETAIL:.*$why/, "$what: $call: reason");
		cmp_ok($took, '<', $call =~ /try/ ? 1200 : 1900, "$what: $call: in time");
	}
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'zklock worker'}),
		1, "$what: the worker is alive");
	return;
}

# nothing listens there; then it does
restart_with(hosts => '127.0.0.1:1');
is_unavailable('refused', 'refused');

# a name that nobody knows
restart_with(hosts => "no-such-host.invalid:$port");
is_unavailable('misspelt', 'could not resolve host "no-such-host.invalid"');

# one of several is enough
restart_with(hosts => "no-such-host.invalid:$port,127.0.0.1:1,$host:$port");
wait_for_lease($node);
pass('one good host among bad ones is enough');
restart_with(hosts => "127.0.0.1:1,$host:$port");
wait_for_lease($node);
pass('an even number of addresses, one alive');

# a chroot has to exist, and works once it does
restart_with(hosts => "$host:$port/no/such/chroot");
is_unavailable('chroot', 'chroot');
$zk->create('/no', '');
$zk->create('/no/such', '');
$zk->create('/no/such/chroot', '');
wait_for_lease($node);
$node->safe_psql('postgres', q{SELECT zk_lock_acquire('in the chroot')});
is(scalar $zk->ls('/no/such/chroot/zklock'), 3, 'and then holds the locks');

# another chroot is another tree: the locks in the old one are given up, and not left there
# for as long as the ZooKeeper session lives
{
	my $holder = ZkTest::Session->new($node);
	my $path = '/no/such/chroot/zklock/moved';
	$holder->query(q{SELECT zk_lock_acquire('moved')});
	is(scalar $zk->ls($path), 1, 'held in the chroot');
	$node->safe_psql('postgres', "ALTER SYSTEM SET zklock.hosts = '$host:$port'");
	$node->reload;
	ok(defined poll_until(sub { !$zk->ls($path) }, 5), 'chroot changed by a reload: no node is left behind');
	like($holder->query('SELECT 1'), qr/ZK001/, 'chroot changed: the holder is told');
	$holder->quit;
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET zklock.hosts');
	$node->reload;
}

# a lock whose directory cannot have children is refused, and ZooKeeper is not hammered
restart_with(hosts => "$host:$port");
wait_for_lease($node);
{
	my $foreign = $zk->hold('/zklock/childless-', 'x');
	my ($name) = $foreign->{path} =~ m{([^/]+)$};
	my ($code, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT zk_lock_acquire('$name', timeout => '5 s')");
	like($stderr, qr/ZK003: ZooKeeper refused lock.*children/s, 'an ephemeral node in the place of the directory: refused, and why');
	$foreign->release;
}

# a root of several components is made
restart_with(hosts => "$host:$port", root => '/made/for/this');
wait_for_lease($node);
pass('the root is made');

# credentials
my $file = $node->data_dir . '/credentials';
restart_with(root => '/zklock', credentials_file => $file);
is_unavailable('no credentials file', 'zklock.credentials_file could not be opened');
PostgreSQL::Test::Utils::append_to_file($file, "zklock:secret\n");
chmod 0644, $file;
$node->restart;
is_unavailable('credentials file open to all', 'accessible by others');
chmod 0600, $file;
restart_with(acl => 'creator', root => '/closed');
wait_for_lease($node);
pass('with credentials and acl = creator');
$node->safe_psql('postgres', q{SELECT zk_lock_acquire('x')});
# another server without them may not touch it
my $stranger = zk_server('b', $zk, conf => "zklock.root = '/zklock'");
$stranger->append_conf('postgresql.conf', "zklock.root = '/closed'");
$stranger->restart;
{
	my ($code, undef, $stderr) = $stranger->psql('postgres', "\\set VERBOSITY verbose\nSELECT zk_lock_acquire('x', timeout => '1500 ms')");
	like($stderr, qr/ERROR:  ZK003: .*DETAIL:.*not authenticated/s, 'without credentials: refused, and said so');
}
$stranger->stop;
restart_with(acl => 'open', root => '/zklock', credentials_file => '');

# a name server that does not answer stops nobody: the worker goes on absorbing barriers.
# (A resolver in a black hole is not to be had here; a frozen ensemble is.)
wait_for_lease($node);
$zk->freeze_all;
my $start = time;
$node->safe_psql('postgres', 'CREATE DATABASE besides');
$node->safe_psql('postgres', 'DROP DATABASE besides');
cmp_ok(time - $start, '<', 2, 'frozen: CREATE and DROP DATABASE do not wait for the worker');
# not "taken", of a lock that nobody holds, as long as the lease lasts
{
	my (undef, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT zk_lock_acquire('free', timeout => '300 ms')");
	like($stderr, qr/ERROR:  ZK003: /, 'frozen a moment ago, short timeout: ZK003, not 55P03');
}
poll_until(sub { ($node->psql('postgres', q{SELECT zk_lock_try_acquire('x')}))[0] != 0 }, 20);
is_unavailable('frozen', '(does not acknowledge|no answer|not answered|refused|timed out|Socket)');
$zk->thaw_all;
wait_for_lease($node);
pass('thawed: locks are there again');

# more locks than there is room for
restart_with(max_locks => 16);
wait_for_lease($node);
{
	my $session = ZkTest::Session->new($node);
	my $error;
	for my $i (1 .. 17)
	{
		my $answer = $session->query("SELECT zk_lock_acquire('many/lock $i')");
		$error = "$i: $answer" if !defined $error && $answer !~ /^\d+$/;
	}
	like($error, qr/^17: .*ERROR:  54000: too many zklock locks.*HINT:.*zklock\.max_locks/s, 'the seventeenth of sixteen');
	is($session->query('SELECT zk_lock_release_all()'), 16, 'and the sixteen are still held');
	ok(defined poll_until(sub { $session->query(q{SELECT zk_lock_try_acquire('many/again')}) =~ /^\d+$/ }, 5),
		'room again when they are released');
	$session->quit;
}

# not preloaded
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
{
	my ($code, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT zk_lock_acquire('x')");
	like($stderr, qr/ERROR:  55000: zklock must be loaded via shared_preload_libraries.*HINT:.*shared_preload_libraries = 'zklock'/s,
		'not preloaded: 55000 and the line to add');
}

# other encodings: names are UTF-8 everywhere
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'zklock'\nzklock.max_locks = 100");
$node->restart;
wait_for_lease($node);
$node->safe_psql('postgres', q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
$node->safe_psql('postgres', q{CREATE DATABASE nothing ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0});
$node->safe_psql($_, 'CREATE EXTENSION zklock') foreach qw(latin nothing);
{
	my $utf8 = ZkTest::Session->new($node);
	like($utf8->query(qq{SET client_encoding = 'UTF8'; SELECT zk_lock_acquire(U&'gr\\00fcn')}), qr/^\d+$/, 'held from a UTF-8 database');
	my (undef, undef, $stderr) = $node->psql('latin', qq{\\set VERBOSITY verbose\nSET client_encoding = 'UTF8';\nSELECT zk_lock_acquire('gr' || chr(252) || 'n', timeout => '300 ms')});
	like($stderr, qr/55P03: could not obtain lock "gr\xc3\xbcn"/, 'it is the same lock from a LATIN1 database');
	(undef, undef, $stderr) = $node->psql('nothing', qq{\\set VERBOSITY verbose\nSELECT zk_lock_acquire(E'gr\\xc3\\xbcn', timeout => '300 ms')});
	like($stderr, qr/55P03: could not obtain lock/, 'and from SQL_ASCII, in UTF-8 bytes');
	(undef, undef, $stderr) = $node->psql('nothing', qq{\\set VERBOSITY verbose\nSELECT zk_lock_acquire(E'gr\\xfcn')});
	like($stderr, qr/22023: invalid lock name.*not valid UTF-8/s, 'other bytes are refused there');
	$utf8->quit;
}

$node->stop;
done_testing();
