# A newer writer whose snapshot is older than the end of an older writer, whether it waited for
# him or not: both would write max + 1. It gets 40001, in every isolation level, and passes
# when it comes again; who presents the token in a statement of its own gets no error in READ
# COMMITTED; and those who present the same token are no concern of each other.

use strict;
use warnings;

use Test::More;
use ZkTest;

my $node = PostgreSQL::Test::Cluster->new('snapshots');
$node->init;
$node->append_conf('postgresql.conf', "max_prepared_transactions = 5\nlog_error_verbosity = verbose");
$node->start;
$node->safe_psql('postgres', <<'END');
CREATE EXTENSION zklock;
CREATE TABLE ledger (r text, i int, who text);
CREATE TABLE inbox (r text, i int, token bigint);
CREATE TABLE notes (x int);
END

my ($older, $newer, $sibling, $observer) = map { ZkTest::Session->new($node) } 1 .. 4;
my $number = 0;
my $r;

# A resource of its own, with guards, and 10 for its mark.
sub fresh
{
	$r = 'r' . ++$number;
	$observer->query(<<"END");
SET client_min_messages = warning;
SELECT zk_fence_check('$r', 10);
DROP TRIGGER IF EXISTS guard ON ledger;
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('$r');
DROP TRIGGER IF EXISTS guard ON inbox;
CREATE TRIGGER guard BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION zk_fence_guard('$r', 'token');
END
	return;
}

sub insert { return "INSERT INTO ledger SELECT '$r', coalesce(max(i), 0) + 1, '$_[0]' FROM ledger WHERE r = '$r'"; }
sub insert_inbox { return "INSERT INTO inbox SELECT '$r', coalesce(max(i), 0) + 1, $_[0] FROM inbox WHERE r = '$r'"; }
sub written { return $observer->query("SELECT string_agg(i::text, ' ' ORDER BY i) FROM $_[0] WHERE r = '$r'"); }

my $too_old = qr/ERROR:  40001: could not serialize access to "r\d+" under fencing token 11\n(?:.*\n)?.*lower token/;

foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $strict = $level ne 'READ COMMITTED';
	my $begin = "BEGIN ISOLATION LEVEL $level; SELECT FROM notes";
	my $hint = $strict ? qr/HINT:  Repeat the transaction\./ : qr/HINT:  Repeat the transaction, and let it present the token in a statement of its own/;

	# The older one has passed, with a token that was the mark before: no row has changed.
	# The token comes with the row, so the write itself is what waits.
	fresh();
	$older->query("$begin; " . insert_inbox(10));
	$newer->query($begin);
	$newer->send(insert_inbox(11));
	ok(waits_behind_others($observer, $newer), "$level: the newer write waits");
	$older->query('COMMIT');
	my $answer = $newer->wait;
	like($answer, $too_old, "$level: and does not go on with the snapshot that it had");
	like($answer, $hint, "$level: which says what to do");
	$newer->query('ROLLBACK');
	is($newer->query("$begin; " . insert_inbox(11) . '; COMMIT'), '', "$level: it passes when it comes again");
	is(written('inbox'), '1 2', "$level: and has seen what it waited for");

	# In a savepoint it does not get away with a second attempt.
	fresh();
	$older->query("$begin; " . insert_inbox(10));
	$newer->query("$begin; SAVEPOINT s");
	$newer->send(insert_inbox(11));
	waits_behind_others($observer, $newer);
	$older->query('COMMIT');
	like($newer->wait, $too_old, "$level: the first attempt in a savepoint");
	$newer->query('ROLLBACK TO s');
	$answer = $newer->query(insert_inbox(11));
	if ($strict) { like($answer, $too_old, "$level: nor the second one"); }
	else { is($answer, '', "$level: the second statement has another snapshot"); }
	$newer->query($strict ? 'ROLLBACK' : 'COMMIT');
	is(written('inbox'), $strict ? '1' : '1 2', "$level: no number is there twice");

	# zk_fence_check in a statement of its own, before the write.
	fresh();
	$older->query("$begin; SELECT zk_fence_check('$r', 10); " . insert('older'));
	$newer->query($begin);
	$newer->send("SELECT zk_fence_check('$r', 11)");
	ok(waits_behind_others($observer, $newer), "$level: to present a newer token waits");
	$older->query('COMMIT');
	$answer = $newer->wait;
	if ($strict)
	{
		like($answer, $too_old, "$level: and is too late for the transaction's snapshot");
		$newer->query('ROLLBACK');
	}
	else
	{
		is($answer, '', "$level: in a statement of its own it passes");
		is($newer->query(insert('newer')), '', "$level: and so does the write");
		$newer->query('COMMIT');
		is(written('ledger'), '1 2', "$level: which has seen what was waited for");
	}

	# Nobody waits: the older one came and went after the snapshot was taken.
	fresh();
	if ($strict)
	{
		$newer->query($begin);
		$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older') . '; COMMIT');
		like($newer->query("SELECT zk_fence_check('$r', 11)"), $too_old, "$level: nor when there was nothing to wait for");
		$newer->query('ROLLBACK');
		# what ended before the snapshot is no concern
		is($newer->query("BEGIN ISOLATION LEVEL $level; SELECT zk_fence_check('$r', 11); " . insert('newer') . '; COMMIT'), '', "$level: a snapshot taken after it is good");
		is(written('ledger'), '1 2', "$level: and shows it");
	}

	# An equal token, of another connection of the same holder: no error, also where it waits.
	fresh();
	$observer->query("SELECT zk_fence_check('$r', 11)");
	$sibling->query("$begin; SELECT zk_fence_check('$r', 11); " . insert('sibling'));
	$newer->query($begin);
	$newer->send("SELECT zk_fence_check('$r', 11)");
	ok(waits_behind_others($observer, $newer), "$level: a sibling waits");
	$sibling->query('COMMIT');
	is($newer->wait, '', "$level: and passes");
	$newer->query('ROLLBACK');

	# But a sibling that raised the mark does not hide who came before it.
	fresh();
	$newer->query($begin);
	$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older') . '; COMMIT');
	$sibling->query("BEGIN; SELECT zk_fence_check('$r', 11); COMMIT");
	$sibling->query("BEGIN; SELECT zk_fence_check('$r', 11); COMMIT");
	$answer = $newer->query("SELECT zk_fence_check('$r', 11)");
	if ($strict) { like($answer, $too_old, "$level: behind a sibling the older one is still seen"); }
	else { is($answer, '', "$level: behind a sibling"); }
	$newer->query('ROLLBACK');
	is($newer->query("$begin; SELECT zk_fence_check('$r', 11); COMMIT"), '', "$level: and not for ever");

	# One that was rolled back covers up the trace of the one before it, and stands for it.
	fresh();
	$newer->query($begin);
	$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older') . '; COMMIT');
	$sibling->query("BEGIN; SELECT zk_fence_check('$r', 10); ROLLBACK");
	$answer = $newer->query("SELECT zk_fence_check('$r', 11)");
	if ($strict) { like($answer, $too_old, "$level: a rollback in between hides nobody"); }
	else { is($answer, '', "$level: a rollback in between"); }
	$newer->query('ROLLBACK');
	# raised, and rolled back
	fresh();
	$newer->query($begin);
	$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older') . '; COMMIT');
	$sibling->query("BEGIN; SAVEPOINT s; SELECT zk_fence_check('$r', 10); SAVEPOINT t; SELECT zk_fence_check('$r', 11); ROLLBACK");
	$answer = $newer->query("SELECT zk_fence_check('$r', 11)");
	if ($strict) { like($answer, $too_old, "$level: nor does one that had raised the mark in a savepoint"); }
	else { is($answer, '', "$level: one that had raised the mark in a savepoint"); }
	$newer->query('ROLLBACK');

	# One's own savepoints are no others.
	fresh();
	is($newer->query("$begin; SAVEPOINT s; SELECT zk_fence_check('$r', 11); ROLLBACK TO s; SELECT zk_fence_check('$r', 11); "
			. "SAVEPOINT t; SELECT zk_fence_check('$r', 12); SELECT zk_fence_check('$r', 13); ROLLBACK TO t; SELECT zk_fence_check('$r', 12); COMMIT") =~ /ERROR/, '', "$level: one's own savepoints are no others")
	  or diag $newer->query('ROLLBACK');

	# A prepared transaction, which ends in another connection; a subtransaction that passed.
	fresh();
	$older->query("BEGIN; SAVEPOINT s; " . insert_inbox(10) . "; RELEASE s; PREPARE TRANSACTION 'older'");
	$newer->query($begin);
	$newer->send(insert_inbox(11));
	ok(waits_behind_others($observer, $newer), "$level: a prepared transaction is waited for");
	$observer->query("COMMIT PREPARED 'older'");
	like($newer->wait, $too_old, "$level: and not overlooked");
	$newer->query('ROLLBACK');

	# A reset: all that was before counts as older.
	fresh();
	$newer->query($begin);
	$observer->query("SELECT zk_fence_reset('$r', 11)");
	$answer = $newer->query("SELECT zk_fence_check('$r', 11)");
	if ($strict) { like($answer, $too_old, "$level: a reset after the snapshot"); }
	else { is($answer, '', "$level: a reset"); }
	$newer->query('ROLLBACK');

	# VACUUM FREEZE and a table that was written anew forget nobody who matters.
	fresh();
	$newer->query($begin);
	$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older') . '; COMMIT');
	$observer->query('VACUUM FREEZE zk_fence');
	$answer = $newer->query("SELECT zk_fence_check('$r', 11)");
	if ($strict) { like($answer, $too_old, "$level: VACUUM FREEZE forgets nobody who matters"); }
	else { is($answer, '', "$level: VACUUM FREEZE"); }
	$newer->query('ROLLBACK');
}

# READ COMMITTED: zk_fence_check within a statement that reads or writes tables is no
# statement of its own. In DO each has its snapshot, which a library that was not preloaded
# does not see (058_fence_hidden_writers has one that was).
my %way = (
	"INSERT INTO notes SELECT 1 FROM zk_fence_check('RES', 11)" => 1,
	"SELECT zk_fence_check('RES', 11), (SELECT max(i) FROM ledger)" => 1,
	"WITH w AS (INSERT INTO notes VALUES (1) RETURNING x) SELECT zk_fence_check('RES', 11) FROM w" => 1,
	"CREATE TABLE made_NUMBER AS SELECT zk_fence_check('RES', 11)::text" => 1,
	"SELECT FROM zk_fence_check('RES', 11)" => 0,
	"DO \$\$ BEGIN PERFORM zk_fence_check('RES', 11); INSERT INTO ledger SELECT 'RES', max(i) + 1 FROM ledger WHERE r = 'RES'; END \$\$" => 1,
	"PREPARE p_NUMBER AS SELECT zk_fence_check('RES', 11); EXECUTE p_NUMBER" => 0,
);
foreach my $statement (sort keys %way)
{
	fresh();
	(my $sql = $statement) =~ s/RES/$r/g;
	$sql =~ s/NUMBER/$number/g;
	$older->query("BEGIN; SELECT zk_fence_check('$r', 10); " . insert('older'));
	$newer->send($sql);
	ok(waits_behind_others($observer, $newer), "waits: $statement");
	$older->query('COMMIT');
	my $answer = $newer->wait;
	if ($way{$statement}) { like($answer, $too_old, "READ COMMITTED, not alone: $statement"); }
	else { unlike($answer, qr/ERROR/, "READ COMMITTED, alone: $statement"); }
}

# lower_xid of another server, or of the future, is no reason to refuse.
fresh();
foreach my $xid ('18446744073709551615', '3', '4294967296000')
{
	$observer->query("UPDATE zk_fence SET lower_xid = '$xid', token = 10 WHERE resource = '$r'");
	is($newer->query("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT zk_fence_check('$r', 10); COMMIT"), '', "lower_xid $xid");
}

# Many transactions of one holder leave no dead row each.
fresh();
$observer->query("SELECT zk_fence_check('$r', 11)");
my $ctid = $observer->query("SELECT ctid FROM zk_fence WHERE resource = '$r'");
$newer->query("SELECT zk_fence_check('$r', 11)") foreach 1 .. 20;
is($observer->query("SELECT ctid FROM zk_fence WHERE resource = '$r'"), $ctid, 'to present a token again writes no new row');

$_->quit foreach $older, $newer, $sibling, $observer;
$node->stop;
done_testing();
