# "Lost, not acknowledged" and a lapsed lease hold for everything that a client can send,
# not only for a simple query: prepared statements, portals that are fetched in parts,
# pipelines, and functions called by the protocol's fast path.

use strict;
use warnings;

use Test::More;
use ZkTest;
use ZkWire;

my $zk = ZkEnsemble->new(tick => 500, proxy => 1)->start;
my $node = zk_server('a', $zk, conf => 'zklock.session_timeout = 4s');
$node->safe_psql('postgres', 'CREATE TABLE work (what text)');
my %oid = map { ($_ => $node->safe_psql('postgres', "SELECT '$_'::regprocedure::oid")) }
  'int4pl(int,int)', 'zk_lock_is_held(text)', 'lo_creat(int)';
my $number = 0;

sub is_lost
{
	my ($answer, $what) = @_;
	is($answer->{error}, 'ZK001', $what) or diag $answer->{message} // 'no error';
	return;
}

sub is_fine
{
	my ($answer, $what) = @_;
	is($answer->{error}, undef, $what) or diag $answer->{message};
	return $answer;
}

# A connection with all that it can have prepared before it holds the lock.
sub connection
{
	my $wire = ZkWire->new($node);
	$wire->parse('insert', 'INSERT INTO work VALUES ($1)');
	$wire->parse('select', 'SELECT 1');
	$wire->parse('release', 'SELECT zk_lock_release($1)');
	$wire->parse('held', 'SELECT zk_lock_is_held($1)');
	$wire->parse('begin', 'BEGIN');
	$wire->parse('commit', 'COMMIT');
	$wire->parse('series', 'SELECT * FROM generate_series(1, 100000)');
	$wire->parse('fetch', 'FETCH 1 FROM held_cursor');
	my $answer = $wire->sync;
	die $answer->{message} if $answer->{error};
	return $wire;
}

sub acquire
{
	my ($wire, $function) = @_;
	my $lock = 'protocol ' . ++$number;
	my $answer = $wire->extended("SELECT $function(\$1)", $lock);
	die $answer->{message} if $answer->{error};
	return $lock;
}

# Lost while idle, a backend-level lock.
{
	my $wire = connection();
	is_fine($wire->query(q{BEGIN; DECLARE held_cursor CURSOR WITH HOLD FOR SELECT * FROM generate_series(1, 10); COMMIT}),
		'a cursor WITH HOLD');
	my $lock = acquire($wire, 'zk_lock_acquire');
	is($wire->call($oid{'int4pl(int,int)'}, 2, 3)->{rows}[0], 5, 'held: the fast path works');
	is_fine($wire->prepared('fetch'), 'held: so does the cursor');
	lose($zk, $lock, $node);

	is_lost($wire->prepared('select'), 'lost: a prepared statement');
	is_lost($wire->prepared('insert', 'lost'), 'lost: a prepared write');
	is_lost($wire->extended('SELECT 1'), 'lost: a statement by the extended protocol');
	is_lost($wire->query('SELECT 1'), 'lost: by the simple one');
	is_lost($wire->call($oid{'int4pl(int,int)'}, 2, 3), 'lost: a function by the fast path');
	is_lost($wire->call($oid{'lo_creat(int)'}, -1), 'lost: one that writes');
	is_lost($wire->prepared('fetch'), 'lost: rows that a cursor had before');
	$wire->bind('', 'insert', 'lost');
	$wire->execute('', 0);
	$wire->bind('', 'held', $lock);
	$wire->execute('', 0);
	is_lost($wire->sync, 'lost: a pipeline of a write and a call');

	is($wire->prepared('held', $lock)->{rows}[0], 'f', 'lost: one may ask, by a prepared statement');
	is($wire->extended('SELECT zk_lock_is_held($1)', $lock)->{rows}[0], 'f', 'lost: and by an unnamed one');
	is($wire->call($oid{'zk_lock_is_held(text)'}, $lock)->{rows}[0], 'f', 'lost: and by the fast path');
	is_fine($wire->prepared('begin'), 'lost: BEGIN passes');
	is_lost($wire->prepared('insert', 'lost'), 'lost: a write in the block does not');
	is($wire->prepared('commit')->{status}, 'I', 'lost: the block ends');
	is_fine($wire->extended('SHOW work_mem'), 'lost: SHOW passes');

	my $answer = is_fine($wire->prepared('release', $lock), 'release by a prepared statement');
	is_deeply([ $answer->{rows}[0], @{ $answer->{notices} } ], [ 'f', 'ZK001' ], 'release: false, and a WARNING');
	is_fine($wire->prepared('select'), 'acknowledged: prepared statements work again');
	is($wire->call($oid{'int4pl(int,int)'}, 2, 3)->{rows}[0], 5, 'acknowledged: so does the fast path');
	is($wire->prepared('fetch')->{rows}[0], 2, 'acknowledged: and the cursor');
	is(rows($node, 'lost'), 0, 'no row was written');
	$wire->close;
}

# Lost in a transaction, with a portal of which half is fetched.
{
	my $wire = connection();
	is_fine($wire->query(q{SET zklock.idle_loss = 'doom'}), 'doom');
	is_fine($wire->prepared('begin'), 'a transaction');
	my $lock = acquire($wire, 'zk_xact_lock_acquire');
	is_fine($wire->prepared('insert', 'portal'), 'it writes');
	$wire->bind('half', 'series');
	$wire->execute('half', 10);
	my $answer = is_fine($wire->sync, 'a portal');
	is($answer->{suspended} . @{ $answer->{rows} }, '110', 'of which ten rows are fetched');
	lose($zk, $lock, $node);
	$wire->execute('half', 10);
	is_lost($wire->sync, 'lost: the next ten are not');
	$answer = $wire->prepared('commit');
	is($answer->{status}, 'I', 'COMMIT ends the transaction');
	is(rows($node, 'portal'), 0, 'and there is no row');
	$wire->close;
}

# The same with a lapse; and an implicit transaction, which has no BEGIN and whose commit is
# the Sync.
{
	my $explicit = connection();
	my $implicit = connection();
	my $fast = connection();
	is_fine($_->query(q{SET zklock.idle_loss = 'doom'}), 'doom') foreach $explicit, $implicit, $fast;
	is_fine($explicit->prepared('begin'), 'a transaction');
	acquire($explicit, 'zk_xact_lock_acquire');
	is_fine($explicit->prepared('insert', 'lapsed'), 'it writes');
	$explicit->bind('half', 'series');
	$explicit->execute('half', 10);
	is($explicit->sync->{suspended}, 1, 'a portal is half fetched');

	acquire($implicit, 'zk_lock_acquire');
	$implicit->bind('', 'insert', 'lapsed');
	$implicit->execute('', 0);
	is_fine($implicit->flush, 'an implicit transaction has written and is not ended');

	my $stalled = connection();
	acquire($stalled, 'zk_lock_acquire');
	$stalled->bind('', 'insert', 'lapsed');
	$stalled->execute('', 0);
	is_fine($stalled->flush, 'another one');

	acquire($fast, 'zk_lock_acquire');
	is_fine($fast->prepared('begin'), 'a transaction');
	is_fine($fast->call($oid{'lo_creat(int)'}, -1), 'it wrote by the fast path');

	my $offset = -s $node->logfile;
	$zk->proxy(1, 'freeze');
	poll_until(sub { PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~ /lease lapsed/ }, 20) // die 'no lapse';
	$explicit->execute('half', 10);
	is_lost($explicit->sync, 'lapsed: a portal is not fetched on');
	is_lost($implicit->sync, 'lapsed: Sync does not commit');
	is_lost($fast->call($oid{'lo_creat(int)'}, -1), 'lapsed: a function by the fast path');
	ok($stalled->answer('Z')->{ended}, 'lapsed: an implicit transaction whose Sync does not come is ended');
	$zk->proxy(1, 'pass');
	is($explicit->prepared('commit')->{status}, 'I', 'COMMIT ends the transaction');
	is($fast->prepared('commit')->{status}, 'I', 'COMMIT ends the transaction');
	is(rows($node, 'lapsed'), 0, 'no row is there');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_largeobject_metadata'), 0, 'nor a large object');
	$_->close foreach $explicit, $implicit, $fast, $stalled;
}

$node->stop;
done_testing();
