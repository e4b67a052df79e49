# Backends that are stopped at any moment of a question to ZooKeeper, or that ask all the time,
# keep neither zk_lock_queue() nor zk_lock_break() from the others; and what they do when they
# go on spoils nobody's answer.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);
$node->safe_psql('postgres', 'CREATE ROLE watcher LOGIN IN ROLE pg_monitor');
my $operator = ZkTest::Session->new($node);
my $viewer = ZkTest::Session->new($node);
my $holder = ZkTest::Session->new($node);
my $number = 0;

sub stop
{
	my (@sessions) = @_;
	kill 'STOP', map { $_->backend } @sessions;
	foreach my $session (@sessions) { poll_until(sub { process_state($session->backend) eq 'T' }, 10) // die 'does not stop'; }
	return;
}

# Does everything work, in time?
sub works
{
	my ($what) = @_;
	my $lock = 'x' . ++$number;
	like($holder->query("SELECT zk_lock_acquire('$lock')"), qr/^\d+$/, "$what: a lock is taken");
	my $start = time;
	is($operator->query("SELECT zk_lock_break('$lock')"), 'released', "$what: zk_lock_break");
	cmp_ok(time - $start, '<', 3, "$what: in time");
	$holder->query('SELECT zk_lock_release_all()');
	$holder->query("SELECT zk_lock_acquire('$lock')");
	is($viewer->query("SELECT name, pid FROM (SELECT '$lock' AS name) n, zk_lock_queue(name)"), "$lock|" . $holder->backend, "$what: zk_lock_queue");
	$holder->query('SELECT zk_lock_release_all()');
	return;
}
works('before');

# Answered while they are stopped: more of them than there are desks.
my @askers = map { ZkTest::Session->new($node, user => 'watcher') } 1 .. 12;
ASKED:
{
	my $lock = 'asked';
	my $first = ZkTest::Session->new($node);
	$first->query("SELECT zk_lock_acquire('$lock')");
	# all ask at once, again and again, and are stopped wherever they are
	foreach my $round (1 .. 4)
	{
		$_->send("DO \$\$ BEGIN FOR i IN 1 .. 100000 LOOP BEGIN PERFORM count(*) FROM zk_lock_queue('$lock'); EXCEPTION WHEN query_canceled THEN RAISE; WHEN OTHERS THEN NULL; END; END LOOP; END \$\$") foreach @askers;
		sleep 0.2 + rand 0.2;
		works("round $round, busy") if $round == 1;
		stop(@askers);
		works("round $round, stopped");
		kill 'CONT', map { $_->backend } @askers;
		$operator->query('SELECT pg_cancel_backend(' . $_->backend . ')') foreach @askers;
		like($_->wait(20) // 'no answer', qr/57014/, "round $round: it goes on, and is cancelled") foreach @askers;
		works("round $round, after");
	}

	# Each answer is of the lock that was asked for, whoever was stopped in between.
	my %of;
	foreach my $i (0 .. $#askers)
	{
		my $own = ZkTest::Session->new($node);
		$own->query("SELECT zk_lock_acquire('own$i')");
		$of{$i} = $own;
		$askers[$i]->send("DO \$\$ DECLARE p int; BEGIN FOR i IN 1 .. 150 LOOP SELECT pid INTO p FROM zk_lock_queue('own$i'); IF p IS DISTINCT FROM " . $own->backend . " THEN RAISE EXCEPTION 'answer of another one: %', p; END IF; END LOOP; END \$\$");
	}
	my $until = time + 4;
	while (time < $until)
	{
		my $victim = $askers[ int rand @askers ];
		kill 'STOP', $victim->backend;
		sleep 0.7;    # longer than an answer is kept for
		kill 'CONT', $victim->backend;
	}
	my @wrong = grep { !/^$/ && !/did not tell about/ } map { $_->wait(40) // 'no answer' } @askers;
	is("@wrong", '', 'nobody gets the answer of another one');
	$_->quit foreach $first, values %of;
}
$_->quit foreach @askers, $operator, $viewer, $holder;
$node->stop;
done_testing();
