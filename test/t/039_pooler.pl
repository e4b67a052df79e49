# Behind PgBouncer, as the README advises: transaction-level locks in transaction mode, and
# backend-level locks in session mode, where DISCARD ALL gives back what a client left behind.
# What it warns of is shown as well. Skipped where there is no pgbouncer; test/run does not install it,
# since the package starts a service.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ZkTest;

my ($program) = grep { -x } map { "$_/pgbouncer" } (split /:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'there is no pgbouncer' unless $program;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = getpwuid $<;

# One connection to the server for all clients of a pool.
append_to_file("$dir/users", qq{"$user" ""\n});
append_to_file("$dir/pgbouncer.ini", <<"END");
[databases]
transactions = host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres pool_mode=transaction pool_size=1
sessions = host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres pool_mode=session pool_size=1
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
logfile = $dir/log
server_reset_query = DISCARD ALL
END
my $pid = fork // die;
if ($pid == 0)
{
	open STDOUT, '>', "$dir/out";
	open STDERR, '>&', \*STDOUT;
	exec $program, "$dir/pgbouncer.ini" or POSIX::_exit(127);
}
END { local $?; if ($pid) { kill 'KILL', $pid; waitpid $pid, 0; } }
ok(defined poll_until(sub { -S "$dir/.s.PGSQL.$port" }, 10), 'pgbouncer runs') or die slurp_file("$dir/out");

# ZkTest::Session asks a server for how to connect to a database.
{
	package Pool;
	sub new { my ($class, $database) = @_; return bless \$database, $class; }
	sub connstr { my ($self) = @_; return "host=$dir port=$port dbname=$$self"; }
}
sub client { my ($pool) = @_; return ZkTest::Session->new(Pool->new($pool)); }

# Transaction mode: two clients share a backend, one transaction after the other.
{
	my ($one, $two) = (client('transactions'), client('transactions'));
	is($one->query('SELECT pg_backend_pid()'), $two->query('SELECT pg_backend_pid()'), 'transaction mode: both clients have the same backend');
	my $token = $one->query(q{BEGIN; SELECT zk_xact_lock_acquire('pooled')});
	like($token, qr/^\d+$/, 'transaction mode: a lock for a transaction');
	# the other one's turn comes when it is over
	$two->send(q{BEGIN; SELECT zk_lock_is_held('pooled'); SELECT zk_xact_lock_acquire('pooled')});
	ok(!defined $two->wait(0.3), 'transaction mode: the other client waits for the backend');
	$one->query('COMMIT');
	my $answer = $two->wait(5) // '';
	like($answer, qr/^f\n\d+$/, 'transaction mode: the next client does not find it held, and gets it itself');
	cmp_ok((split /\n/, $answer)[1], '>', $token, 'transaction mode: with a higher token');
	# a client that dies takes its transaction with it
	$two->kill_client;
	ok(nodes_become($zk, 'pooled', 0, 3), 'transaction mode: a client that dies leaves nothing');

	# what the README warns of: a backend-level lock stays with the backend
	$one->query(q{SELECT zk_lock_acquire('stays')});
	my $three = client('transactions');
	is($three->query(q{SELECT zk_lock_is_held('stays')}), 't', 'transaction mode: a backend-level lock is the next client\'s');
	is($three->query('SELECT zk_lock_release_all()'), 1, 'and goes when that gives it back');
	$_->quit foreach $one, $three;
	ok(nodes_become($zk, 'stays', 0, 3), 'transaction mode: nothing is left');
}

# Session mode: the backend changes clients when one leaves, through DISCARD ALL.
{
	my $one = client('sessions');
	my $backend = $one->query('SELECT pg_backend_pid()');
	like($one->query(q{SELECT zk_lock_acquire('of a client')}), qr/^\d+$/, 'session mode: a backend-level lock');
	$one->quit;
	my $two = client('sessions');
	is($two->query('SELECT pg_backend_pid()'), $backend, 'session mode: the next client has the same backend');
	is($two->query(q{SELECT zk_lock_is_held('of a client')}), 'f', 'session mode: and does not hold the lock');
	ok(nodes_become($zk, 'of a client', 0, 3), 'session mode: which is free');
	$two->kill_client;

	# a lost lock makes every statement of its backend fail: not those of the next client
	$one = client('sessions');
	$one->query(q{SELECT zk_lock_acquire('lost')});
	my $path = lock_directory('lost');
	$zk->delete("$path/$_") foreach $zk->ls($path);
	ok(defined poll_until(sub { $one->query('SELECT 1') =~ /ZK001/ }, 3), 'session mode: a lock is lost');
	$one->kill_client;
	$two = client('sessions');
	is($two->query('SELECT 1'), 1, 'session mode: the next client can work');
	$two->quit;
}

kill 'INT', $pid;
waitpid $pid, 0;
$pid = 0;
$node->stop;
done_testing();
