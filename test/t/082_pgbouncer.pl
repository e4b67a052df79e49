# doc/examples/pgbouncer.ini as it stands, but for addresses and passwords, and what it says: locks for a
# transaction behave; without server_reset_query_always a backend-level lock is inherited by the next client, which
# acquires it at once; with it, nobody inherits it and nobody keeps it. Skipped where there is
# no pgbouncer; test/run does not install it, since the package starts a service.

use strict;
use warnings;

use File::Basename qw(dirname);
use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

my ($program) = grep { -x } map { "$_/pgbouncer" } (split /:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'no pgbouncer (package pgbouncer)' unless $program;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
my $other = ZkTest::Session->new(zk_server('b', $zk));
my $example = slurp_file(dirname(__FILE__) . '/../../doc/examples/pgbouncer.ini');
my ($host, $pg_port, $user) = ($node->host, $node->port, scalar getpwuid $<);
my @pids;

# ZkTest::Session asks a server for how to connect to a database
{
	package Pool;
	sub new { my ($class, %self) = @_; return bless \%self, $class; }
	sub connstr { my ($self) = @_; return "host=$self->{dir} port=$self->{port} dbname=$self->{database}"; }
}

# Start it with the example, one server connection for all clients of a database, and with what the test
# replaces in it. Returns a function that makes a client of a database.
sub pooler
{
	my (%replace) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $ini = $example;
	$ini =~ s/host=db\.example port=5432 dbname=jobs/host=$host port=$pg_port dbname=postgres user=$user/g;
	my %value = (listen_addr => '', listen_port => $port, auth_type => 'any', auth_file => '', default_pool_size => 1, %replace);
	foreach my $name (keys %value)
	{
		$ini =~ s/^\Q$name\E = .*/$name = $value{$name}/m or die "no $name in the example";
	}
	append_to_file("$dir/pgbouncer.ini", "$ini\nunix_socket_dir = $dir\nlogfile = $dir/log\n");
	my $pid = fork // die;
	if ($pid == 0)
	{
		open STDOUT, '>', "$dir/out";
		open STDERR, '>&', \*STDOUT;
		exec $program, "$dir/pgbouncer.ini" or POSIX::_exit(127);
	}
	push @pids, $pid;
	defined poll_until(sub { -S "$dir/.s.PGSQL.$port" }, 10) or die 'pgbouncer does not start: ' . slurp_file("$dir/out");
	return sub { return ZkTest::Session->new(Pool->new(dir => $dir, port => $port, database => $_[0])); };
}
END { local $?; kill 'KILL', $_ foreach @pids; }

my $client = pooler();
my ($one, $two) = map { $client->('jobs') } 1, 2;
is($one->backend, $two->backend, 'two clients have the same server connection');

# For a transaction
my $token = $one->query(q{BEGIN; SELECT zk_xact_lock_acquire('bill')});
like($token, qr/^\d+$/, 'a lock for a transaction');
is($other->query(q{SELECT zk_lock_try_acquire('bill') IS NULL}), 't', 'which another server sees');
$one->query('COMMIT');
is($two->query(q{SELECT zk_lock_is_held('bill')}), 'f', 'the next client does not hold it');
cmp_ok($other->query(q{SELECT zk_lock_acquire('bill', timeout => '5 s')}), '>', $token, 'and another server gets it');
$other->query(q{SELECT zk_lock_release('bill')});

# A lock for the backend, with the file as it is: gone with the transaction
like($one->query(q{SELECT zk_lock_acquire('batch')}), qr/^\d+$/, 'reset always: a backend-level lock');
is($one->query(q{SELECT zk_lock_is_held('batch')}), 'f', 'reset always: is not held in the next transaction');
like($one->query(q{SELECT zk_fencing_token('batch')}), qr/ERROR:  55000/, 'reset always: and gives no token');
like($other->query(q{SELECT zk_lock_acquire('batch', timeout => '5 s')}), qr/^\d+$/, 'reset always: another server gets it');
$other->query(q{SELECT zk_lock_release('batch')});

# In session mode it is kept, and given back when the client leaves
my $session = $client->('jobs_batch');
like($session->query(q{SELECT zk_lock_acquire('batch')}), qr/^\d+$/, 'session mode: a backend-level lock');
is($session->query(q{SELECT zk_lock_is_held('batch')}), 't', 'session mode: is kept');
is($other->query(q{SELECT zk_lock_try_acquire('batch') IS NULL}), 't', 'session mode: against another server');
$session->quit;
like($other->query(q{SELECT zk_lock_acquire('batch', timeout => '5 s')}), qr/^\d+$/, 'session mode: until the client leaves');
$other->query(q{SELECT zk_lock_release('batch')});

# What the file warns of: without the reset after each transaction
$client = pooler(server_reset_query_always => 0);
($one, $two) = map { $client->('jobs') } 1, 2;
$token = $one->query(q{SELECT zk_lock_acquire('batch')});
is($two->query(q{SELECT zk_lock_acquire('batch')}), $token, 'no reset: the next client gets the same lock at once');
$_->quit foreach $one, $two;
is($client->('jobs')->query(q{SELECT zk_lock_is_held('batch')}), 't', 'no reset: when both have left, the third has it');
is($other->query(q{SELECT zk_lock_try_acquire('batch') IS NULL}), 't', 'no reset: and other servers wait for nobody');

done_testing();
