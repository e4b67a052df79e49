# doc/examples/batch.sql as it stands: done, skipped when another server is at it, and stopped in the middle
# when the lock is lost, each with the exit code that it promises; then again, as if nothing had been.

use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Open3;
use Test::More;
use ZkTest;

my $file = dirname(__FILE__) . '/../../doc/examples/batch.sql';
my $zk = ZkEnsemble->new(tick => 500)->start;
my $jobs = zk_server('jobs', $zk);
my $other = zk_server('other', $zk);
$jobs->safe_psql('postgres', <<'END');
CREATE TABLE account (id int PRIMARY KEY, balance int, due int);
CREATE TABLE statement (id int, balance int, token bigint);
INSERT INTO account VALUES (1, 10, 5), (2, 20, 0);
END
sub state { return $jobs->safe_psql('postgres', q{SELECT (SELECT string_agg(balance::text, ',' ORDER BY id) FROM account), (SELECT count(*) FROM statement)}); }

# Start it; the exit code and what it said come from finish.
sub start
{
	my $pid = open3(my $in, my $out, undef, 'psql', '-X', '-d', $jobs->connstr('postgres'), '-f', $file);
	return { pid => $pid, out => $out, in => $in };
}

sub finish
{
	my ($run) = @_;
	# not for ever, if the statement is not cancelled
	local $SIG{ALRM} = sub { kill 'KILL', $run->{pid} };
	alarm 30;
	my $output = do { local $/; readline $run->{out} } // '';
	waitpid $run->{pid}, 0;
	alarm 0;
	return ($? >> 8, $output);
}

my ($code, $output) = finish(start());
is($code, 0, 'done: exit code 0');
like($output, qr/\Abatch: done under token \d+\n\z/, 'done: and nothing else is said');
is(state(), '15,20|2', 'done: the work is done');
is(scalar contenders($zk, 'billing/batch'), 0, 'done: the lock is free');

# Another server is at it
my $holder = ZkTest::Session->new($other);
my $token = $holder->query(q{SELECT zk_lock_acquire('billing/batch')});
($code, $output) = finish(start());
is($code, 0, 'skipped: exit code 0');
like($output, qr/\A\S*batch: another server is at it, skipped\n\z/, 'skipped: and it says why');
is(state(), '15,20|2', 'skipped: nothing is done');
$holder->query(q{SELECT zk_lock_release('billing/batch')});

# The lock is lost in the second step, which a trigger holds up
$jobs->safe_psql('postgres', <<'END');
UPDATE account SET due = 1;
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
CREATE TRIGGER hold_up BEFORE INSERT ON statement FOR EACH ROW EXECUTE FUNCTION hold_up();
END
my $blocker = ZkTest::Session->new($jobs);
$blocker->query('SELECT pg_advisory_lock(1)');
my $run = start();
ok(defined poll_until(sub { $jobs->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'}) eq '1' }, 20),
	'lost: the first step is done, the second waits');
is($other->safe_psql('postgres', q{SELECT zk_lock_break('billing/batch')}), 'released', 'lost: the lock is taken away');
($code, $output) = finish($run);
$blocker->quit;
is($code, 3, 'lost: exit code 3');
like($output, qr/ERROR:  lock "billing\/batch" is lost/, 'lost: and the reason');
unlike($output, qr/done/, 'lost: it did not go on');
is(state(), '16,21|2', 'lost: the first step is committed, the second is not');
is(scalar contenders($zk, 'billing/batch'), 0, 'lost: the lock is free');

($code, $output) = finish(start());
is($code, 0, 'again: exit code 0');
is(state(), '16,21|4', 'again: the second step is done, the first not once more');

$_->stop foreach $jobs, $other;
done_testing();
