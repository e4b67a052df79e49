# A copy of a data directory is another server: it never touches the ZooKeeper session of the
# original, whose locks stay held and which it contends with. A standby that is promoted is the
# same server. Whatever kills a whole server, its locks are free when T and a tick are over, and not
# before; pg_upgrade keeps the extension and the marks.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Find;
use Test::More;
use Time::HiRes qw(time);
use PostgreSQL::Test::Utils;
use ZkTest;

use constant T => 6;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $conf = 'zklock.session_timeout = ' . T . "s\nwal_level = replica\nmax_wal_senders = 5";

# Start what was made as a copy.
sub start_copy
{
	my ($copy, %opt) = @_;
	$copy->append_conf('postgresql.conf', 'port = ' . $copy->port . "\nzklock.server_name = '" . ($opt{name} // $copy->name) . q{'});
	$copy->start;
	wait_for_lease($copy);
	return;
}

my $original = PostgreSQL::Test::Cluster->new('original');
$original->init(allows_streaming => 1);
$original->append_conf('postgresql.conf', <<"END");
shared_preload_libraries = 'zklock'
zklock.hosts = '@{[ $zk->hosts ]}'
zklock.server_name = 'original'
zklock.server_tick_time = 500ms
log_error_verbosity = verbose
$conf
END
$original->start;
$original->safe_psql('postgres', 'CREATE EXTENSION zklock; CREATE TABLE work (what text)');
wait_for_lease($original);

my $holder = ZkTest::Session->new($original, name => 'holder');
my $token = $holder->query(q{SELECT zk_lock_acquire('copies')});
like($token, qr/^\d+$/, 'the original holds a lock');
my $session = members($zk, 'original');
my ($id, $password) = $zk->proxy(1, 'session') =~ /^ok ([0-9a-f]{16}) ([0-9a-f]{32})$/;
like($session, qr/-$id$/, 'on the ZooKeeper session that was last opened');

#
# Copies while it runs and holds: with pg_basebackup, and of the files as they are. Both with the
# name of the original: it is the ZooKeeper session that counts.
#

$original->backup('base');
my %copies;
$copies{base} = PostgreSQL::Test::Cluster->new('base');
$copies{base}->init_from_backup($original, 'base');

$original->safe_psql('postgres', 'CHECKPOINT');
$copies{files} = PostgreSQL::Test::Cluster->new('files');
mkdir $copies{files}->basedir;
# What runs now is in the copy: also postmaster.pid, and whatever a worker could have written.
system('cp', '-a', $original->data_dir, $copies{files}->data_dir) == 0 or die 'cp';
ok(-e $copies{files}->data_dir . '/postmaster.pid', 'the copy was made of a running server');
my ($files, @secrets) = (0);
find(sub {
		return unless -f $_;
		my $content = slurp_file($_);
		$files++;
		push @secrets, $File::Find::name if $content =~ /\Q$id\E/i || index($content, pack 'H*', $password) >= 0;
	}, $copies{files}->data_dir);
cmp_ok($files, '>', 500, "$files files");
is("@secrets", '', 'in none of them is the number or the password of the ZooKeeper session');
unlink $copies{files}->data_dir . '/postmaster.pid', $copies{files}->data_dir . '/postmaster.opts';

foreach my $kind (sort keys %copies)
{
	my $copy = $copies{$kind};
	start_copy($copy, name => 'original');
	is($copy->safe_psql('postgres', 'SELECT count(*) FROM work'), 0, "$kind: the copy has the data");
	my @members = split / /, members($zk, 'original');
	is(scalar @members, 2, "$kind: a ZooKeeper session of its own");
	ok(scalar(grep { $_ eq $session } @members), "$kind: beside that of the original");
	is($copy->safe_psql('postgres', q{SELECT zk_lock_try_acquire('copies') IS NULL}), 't', "$kind: the copy does not get the lock");
	my $waiter = ZkTest::Session->new($copy, name => 'waiter');
	$waiter->send(q{SELECT zk_lock_acquire('copies')});
	ok(defined poll_until(sub { contenders($zk, 'copies') == 2 }, 5), "$kind: it waits like any other");
	is($holder->query(q{SELECT zk_fencing_token('copies')}), $token, "$kind: the original holds it as before");
	is($holder->query(q{SELECT zk_lock_release('copies')}), 't', "$kind: and gives it back");
	my $next = $waiter->wait(5) // '';
	cmp_ok($next, '>', $token, "$kind: then the copy has it, with a higher token");
	$copy->stop($kind eq 'base' ? 'fast' : 'immediate');
	$waiter->kill_client;
	$token = $holder->query(q{SELECT zk_lock_acquire('copies')}, 30);
	cmp_ok($token, '>', $next, "$kind: the copy has ended: the original has it again");
	is(members($zk, 'original') =~ s/ //r, $session, "$kind: on the ZooKeeper session of before");
}

#
# Promotion
#

{
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($original, 'base', has_streaming => 1);
	start_copy($standby);
	is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'a hot standby');
	my $before = members($zk, 'standby');
	my $on_standby = ZkTest::Session->new($standby);
	my $waiter = ZkTest::Session->new($original, name => 'waiter');
	my $kept = $on_standby->query(q{SELECT zk_lock_acquire('promoted')});
	like($kept, qr/^\d+$/, 'takes a lock');
	$waiter->send(q{SELECT zk_lock_acquire('promoted')});
	poll_until(sub { contenders($zk, 'promoted') == 2 }, 5) // die;
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die;
	is($on_standby->query(q{SELECT zk_fencing_token('promoted')}), $kept, 'promoted: it is still held, with the same token');
	unlike($on_standby->query(q{BEGIN; INSERT INTO work VALUES ('promoted'); COMMIT}), qr/ERROR/, 'promoted: it can be written under');
	is(members($zk, 'standby'), $before, 'promoted: the same ZooKeeper session');
	ok(!$waiter->answered, 'promoted: nobody else was granted');
	$on_standby->quit;
	like($waiter->wait(5), qr/^\d+$/, 'the holder leaves: the next one is granted');
	$waiter->quit;
	$standby->stop;
}

#
# The end of a whole server
#

my $victim = zk_server('victim', $zk, conf => $conf);
$holder->query(q{SELECT zk_lock_release_all()});
my %deaths = (
	'immediate stop' => sub { $victim->stop('immediate'); },
	# its children notice, and end
	'postmaster killed' => sub { kill 'KILL', postmaster_of($victim); },
	'everything killed, as by a reboot' => sub { kill 'KILL', processes_of($victim); },
);
foreach my $death (sort keys %deaths)
{
	my $dying = ZkTest::Session->new($victim);
	$dying->query(q{SELECT zk_lock_acquire('death')});
	my $before = members($zk, 'victim');
	my @processes = processes_of($victim);
	$holder->send(q{SELECT zk_lock_acquire('death')});
	poll_until(sub { contenders($zk, 'death') == 2 }, 5) // die;
	my $start = time;
	$deaths{$death}->();
	my $took = poll_until(sub { $holder->answered }, T + 10);
	like($holder->wait(0) // '', qr/^\d+$/, "$death: the lock is free");
	# a tick, what the servers round up to one, and a second for a busy machine
	cmp_ok($took // 99, '<', T + 2 * 0.5 + 1, "$death: after T and a tick");
	cmp_ok($took // 0, '>', T - 1.5, "$death: and not before: nobody had closed the ZooKeeper session");
	is(members($zk, 'victim'), '', "$death: nothing is left");
	ok(defined poll_until(sub { !grep { kill 0, $_ } @processes }, 5), "$death: no process is left");
	$dying->kill_client;
	$holder->query(q{SELECT zk_lock_release('death')});
	# the module believes that it runs
	delete $victim->{_pid};
	unlink $victim->data_dir . '/postmaster.pid';
	$victim->start;
	wait_for_lease($victim);
	is($victim->safe_psql('postgres', q{SELECT zk_lock_acquire('death') IS NOT NULL}), 't', "$death: started again, it can take locks");
	isnt(members($zk, 'victim'), $before, "$death: on another ZooKeeper session");
}
$victim->stop;
$holder->quit;

#
# pg_upgrade, from one version to the same: what it does with catalogs and rows does not depend on it.
#

{
	$original->safe_psql('postgres', <<'END');
CREATE TABLE ledger (entry text);
CREATE TRIGGER guard BEFORE INSERT ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('r');
BEGIN;
SELECT zk_fence_check('r', 2);
INSERT INTO ledger VALUES ('before');
COMMIT;
CREATE ROLE batch;
GRANT EXECUTE ON FUNCTION zk_lock_try_acquire(text, text) TO batch;
END
	$original->stop;
	my $upgraded = PostgreSQL::Test::Cluster->new('upgraded');
	$upgraded->init;
	$upgraded->append_conf('postgresql.conf', slurp_file($original->data_dir . '/postgresql.conf') =~ s/^(?:port|unix_socket_directories|listen_addresses)\b.*\n//gmr);
	$upgraded->append_conf('postgresql.conf', 'port = ' . $upgraded->port . qq{\nunix_socket_directories = '} . $upgraded->host . q{'});
	my ($bin) = grep { -x "$_/pg_upgrade" } split /:/, $ENV{PATH};
	# it writes where it is
	my $old_directory = getcwd();
	chdir $PostgreSQL::Test::Utils::tmp_check or die;
	command_ok([ 'pg_upgrade', '--no-sync', '-b', $bin, '-B', $bin, '-d', $original->data_dir, '-D', $upgraded->data_dir,
			'-p', $original->port, '-P', $upgraded->port, '-s', $original->host ], 'pg_upgrade');
	chdir $old_directory;
	$upgraded->start;
	wait_for_lease($upgraded);
	is($upgraded->safe_psql('postgres', q{SELECT resource, token FROM zk_fence}), 'r|2', 'pg_upgrade: the marks are there');
	my (undef, undef, $stderr) = $upgraded->psql('postgres', "\\set VERBOSITY verbose\nBEGIN; SELECT zk_fence_check('r', 1); INSERT INTO ledger VALUES ('stale'); COMMIT");
	like($stderr, qr/ZK002/, 'pg_upgrade: a stale token is still refused');
	(undef, undef, $stderr) = $upgraded->psql('postgres', "\\set VERBOSITY verbose\nINSERT INTO ledger VALUES ('none')");
	like($stderr, qr/ZK004/, 'pg_upgrade: the guard is there');
	is($upgraded->safe_psql('postgres', q{SET ROLE batch; SELECT zk_lock_try_acquire('upgraded') > 2}), 't', 'pg_upgrade: so are the privileges');
	is($upgraded->safe_psql('postgres', q{SELECT extname FROM pg_extension WHERE extname = 'zklock'}), 'zklock', 'pg_upgrade: and the extension');
	$upgraded->stop;
}

done_testing();
