# Many backends at once: their requests travel in batches, which ZooKeeper executes all or
# none. What makes one of a batch fail must not hurt the others, nor anybody's token.

use strict;
use warnings;

use Test::More;
use PostgreSQL::Test::Utils;
use ZkTest;

use constant CLIENTS => 40;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => 'zklock.max_locks = 200');
my $dir = PostgreSQL::Test::Utils::tempdir_short();

# pgbench: so many backends, each a script so often. Returns what it printed.
sub pgbench
{
	my ($script, $transactions) = @_;
	append_to_file(my $file = "$dir/script-" . int(rand(1e9)) . '.sql', $script);
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'pgbench', '-n', '-f', $file, '-c', CLIENTS, '-t', $transactions, $node->connstr('postgres') ],
		'>', \$out, '2>', \$err);
	return "$out$err";
}

sql($node, q{CREATE TABLE tokens (id bigserial, lock int, token bigint)});
my $own = <<'END';
SELECT zk_lock_acquire('own/l' || :client_id) AS token \gset
INSERT INTO tokens (lock, token) VALUES (:client_id, :token);
SELECT zk_lock_release('own/l' || :client_id);
END

# Each its own lock
pgbench($own, 1);    # the directories are made
my $before = sql($node, 'SELECT requests FROM zk_session');
like(pgbench($own, 50), qr/actually processed: 2000\/2000/, 'each its own lock: all of them, all the time');
my $requests = sql($node, 'SELECT requests FROM zk_session') - $before;
cmp_ok($requests, '<', 3 * 2000, 'fewer requests than three for each cycle: some travelled together');
note "$requests requests for 2000 cycles";
is(sql($node, q{SELECT count(*) FROM (SELECT token > lag(token) OVER (PARTITION BY lock ORDER BY id) AS rises FROM tokens) t WHERE NOT rises}),
	0, 'the tokens of each lock rise');
is(nodes_left($zk, 3), 0, 'no node is left');

# Directories that vanish meanwhile, as the reaper takes them: the batch fails for all, and
# all get their locks
sql($node, 'TRUNCATE tokens');
foreach my $round (1 .. 5)
{
	$zk->delete(ROOT . "/own/l$_") foreach grep { $_ % 3 == $round % 3 } 0 .. CLIENTS - 1;
	like(pgbench($own, 5), qr/actually processed: 200\/200/, "round $round: directories that are missing");
}
is(sql($node, q{SELECT count(*) FROM (SELECT token > lag(token) OVER (PARTITION BY lock ORDER BY id) AS rises FROM tokens) t WHERE NOT rises}),
	0, 'the tokens of each lock rise all the same');
is(nodes_left($zk, 3), 0, 'no node is left');

# A few locks for all: batches with several requests for one directory are not made
my $few = <<'END';
SELECT zk_lock_acquire('few/l' || :client_id % 4) AS token \gset
INSERT INTO tokens (lock, token) VALUES (:client_id % 4, :token);
SELECT zk_lock_release('few/l' || :client_id % 4);
END
sql($node, 'TRUNCATE tokens');
like(pgbench($few, 20), qr/actually processed: 800\/800/, 'a few locks for all');
is(sql($node, q{SELECT count(*) FROM (SELECT token > lag(token) OVER (PARTITION BY lock ORDER BY id) AS rises FROM tokens) t WHERE NOT rises}),
	0, 'the tokens of each lock rise');

# The connection breaks again and again: batches whose outcome is not known
sql($node, 'TRUNCATE tokens');
my $pid = fork // die "fork: $!";
if ($pid == 0)
{
	my $out = pgbench("$own\\sleep 20 ms\n", 60);
	POSIX::_exit($out =~ /actually processed: 2400\/2400/ ? 0 : 1);
}
my $cuts = 0;
until (waitpid($pid, POSIX::WNOHANG()) == $pid)
{
	$zk->proxy(1, $cuts++ % 2 ? 'cut' : 'lose_reply');
	poll_until(sub { 0 }, 0.3);
}
is($?, 0, "connections lost $cuts times: every request got its lock");
is(sql($node, q{SELECT count(*) FROM (SELECT token > lag(token) OVER (PARTITION BY lock ORDER BY id) AS rises FROM tokens) t WHERE NOT rises}),
	0, 'the tokens of each lock rise');
is(nodes_left($zk, 3), 0, 'no node is left');
is(sql($node, 'SELECT count(*) FROM zk_locks'), 0, 'nor an entry');

$node->stop;
done_testing();
