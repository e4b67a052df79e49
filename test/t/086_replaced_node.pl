# Digest credentials with zklock.acl = creator on three nodes, and the replacement of one of them as
# doc/operations.md says: a new machine with the id of the old one, the others restarted with its address, the leader
# last, then a reload of zklock.hosts. Locks and ZooKeeper sessions stay all the time.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

# A leader that is restarted costs an election: the timeout is long enough not to meet it
my $zk = ZkEnsemble->new(nodes => 3, tick => 500)->start;
my $dir = PostgreSQL::Test::Utils::tempdir_short();
append_to_file("$dir/right", "zklock:secret\n");
append_to_file("$dir/wrong", "zklock:guess\n");
chmod 0600, "$dir/right", "$dir/wrong";
sub conf { my ($file) = @_; return "zklock.acl = creator\nzklock.credentials_file = '$dir/$file'\nzklock.session_timeout = 15s"; }

my $node_a = zk_server('a', $zk, conf => conf('right'));
my $node_b = zk_server('b', $zk, conf => conf('right'));
my %node = (a => $node_a, b => $node_b);
my $holder = ZkTest::Session->new($node_a);
my $waiter = ZkTest::Session->new($node_b);

#
# Credentials
#

my $token = $holder->query(q{SELECT zk_lock_acquire('bill')});
like($token, qr/^\d+$/, 'a lock with acl = creator');
is($waiter->query(q{SELECT zk_lock_try_acquire('bill') IS NULL}), 't', 'which a server with the same credentials sees');
my $path = lock_directory('bill') . '/' . $node_b->safe_psql('postgres', q{SELECT node FROM zk_lock_queue('bill')});
foreach my $command ([ 'ls', lock_directory('bill') ], [ 'get', $path ], [ 'set', $path, 'x' ], [ 'delete', $path ], [ 'create', lock_directory('bill') . '/intruder', '' ])
{
	foreach my $n ($zk->all)
	{
		# 7: refused
		is(($zk->zkcli($command, node => $n))[0], 7, "without them node $n does not $command->[0]");
	}
}
is($holder->query(q{SELECT zk_fencing_token('bill')}), $token, 'nothing has happened to the lock');
like(slurp_file($node_a->logfile), qr/zklock: ZooKeeper session/, 'the log tells of the ZooKeeper session');
unlike(slurp_file($_->logfile), qr/secret/, 'but never of the password') foreach $node_a, $node_b;

# Other credentials: refused, and no harm done
my $stranger = PostgreSQL::Test::Cluster->new('stranger');
$stranger->init;
$stranger->append_conf('postgresql.conf', "shared_preload_libraries = 'zklock'\nzklock.hosts = '@{[ $zk->hosts ]}'\n" . conf('wrong'));
$stranger->start;
$stranger->safe_psql('postgres', 'CREATE EXTENSION zklock');
my $error = '';
ok(defined poll_until(sub { (undef, undef, $error) = $stranger->psql('postgres', q{SELECT zk_lock_acquire('bill', timeout => '1 s')}); $error =~ /does not permit/ }, 15),
	'other credentials: no lock') or diag $error;
is($node_b->safe_psql('postgres', q{SELECT count(*) FROM zk_lock_queue('bill')}), 1, 'and no place in the queue');
$stranger->stop;

#
# A node is replaced
#

my %session = map { $_ => $node{$_}->safe_psql('postgres', 'SELECT session_id FROM zk_session') } keys %node;
my ($replaced) = $zk->followers;
my $gone = $zk->hosts($replaced);
$zk->kill_node($replaced);
$zk->replace_node($replaced);
# the others, the leader last, each when the one before it is back
my $leader = $zk->leader;
foreach my $n ((grep { $_ != $replaced && $_ != $leader } $zk->all), $leader)
{
	$zk->stop_node($n);
	$zk->start_node($n);
	$zk->wait_for_quorum;
}
isnt($zk->hosts($replaced), $gone, 'the new node has another address');
is($zk->mode($replaced) =~ /^(?:follower|leader)$/ ? 1 : 0, 1, 'and is one of the three');

foreach my $name (sort keys %node)
{
	my $log = -s $node{$name}->logfile;
	$node{$name}->append_conf('postgresql.conf', "zklock.hosts = '" . $zk->hosts($replaced) . q{'});
	$node{$name}->reload;
	# only the new one is named here, so that it is known to be used
	ok(defined poll_until(sub { $node{$name}->safe_psql('postgres', 'SELECT coordinator_server, lease_left > $$0$$ FROM zk_session') eq $zk->hosts($replaced) . '|t' }, 20),
		"$name: after the reload it talks to the new node");
	is($node{$name}->safe_psql('postgres', 'SELECT session_id, expiries FROM zk_session'), "$session{$name}|0", "$name: with the ZooKeeper session that it had");
	$node{$name}->append_conf('postgresql.conf', "zklock.hosts = '" . $zk->hosts . q{'});
	$node{$name}->reload;
}
is($holder->query(q{SELECT zk_fencing_token('bill')}), $token, 'the lock was held all the time');
$waiter->send(q{SELECT zk_lock_acquire('bill')});
ok(defined poll_until(sub { $node_a->safe_psql('postgres', q{SELECT count(*) FROM zk_lock_queue('bill')}) eq '2' }, 20), 'another server waits for it');
$holder->query(q{SELECT zk_lock_release('bill')});
cmp_ok($waiter->wait(20) // 0, '>', $token, 'and gets it, with a higher token');

$_->stop foreach $node_a, $node_b;
done_testing();
