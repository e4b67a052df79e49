# A table's owner has code of his run by whoever maintains the table: a function of an index,
# in ANALYZE, REINDEX and the like. It must not work on the maintainer's locks. Nor must what
# the operator is told to run find a function of somebody else's.

use strict;
use warnings;

use Test::More;
use ZkTest;

my $zk = ZkEnsemble->new(tick => 500)->start;
my $node = zk_server('a', $zk);

sub as
{
	my ($role, $query) = @_;
	my (undef, $out, $err) = $node->psql('postgres', $query, extra_params => [ '-U', $role ]);
	return "$out$err";
}

sql($node, <<'END');
CREATE ROLE evil LOGIN;
GRANT CREATE ON DATABASE postgres TO evil;
GRANT EXECUTE ON FUNCTION zk_lock_acquire(text, text, interval), zk_lock_try_acquire(text, text), zk_lock_release(text, text),
	zk_lock_release_all(), zk_fencing_token(text), zk_semaphore_try_acquire(text, integer), zk_fence_check(text, bigint) TO evil;
CREATE TABLE guarded (i int);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION zk_fence_guard('resource');
END
as('evil', 'CREATE SCHEMA evil');
my $maintainer = ZkTest::Session->new($node);
$maintainer->query(q{SELECT zk_lock_acquire('nightly')});
my $token = $maintainer->query(q{SELECT zk_fencing_token('nightly')});

my %call = (
	'zk_lock_release_all()' => 'release all',
	q{zk_lock_release('nightly')} => 'release',
	q{zk_fencing_token('nightly')} => 'learn the token',
	q{zk_lock_acquire('taken by an index')} => 'acquire',
	q{zk_semaphore_try_acquire('taken by an index', 3)} => 'take a lease',
	"zk_fence_check('resource', $token)" => 'present a token',
);
my $n = 0;
foreach my $call (sort keys %call)
{
	my $what = $call{$call};
	my $table = 'evil.t' . ++$n;
	# it works on nothing but in the hands of the maintainer, whose statement must fail
	my $made = as('evil', <<"END");
CREATE FUNCTION $table(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$ BEGIN IF session_user <> 'evil' THEN PERFORM $call; END IF; RETURN \$1; END \$\$;
CREATE TABLE $table AS SELECT generate_series(1, 10) AS i;
CREATE INDEX ON $table ($table(i));
END
	is($made, '', "$what: there is such an index");
	foreach my $statement ("ANALYZE $table", "REINDEX TABLE $table", "VACUUM FULL $table")
	{
		like($maintainer->query($statement), qr/ERROR:  42501: .*security-restricted operation/, "$what: $statement fails");
	}
}
is($maintainer->query(q{SELECT zk_lock_is_held('nightly')}), 't', 'the lock is still held');
is(sql($node, q{SELECT string_agg(name, ' ') FROM zk_locks}), 'nightly', 'and no other');
like($maintainer->query('INSERT INTO guarded VALUES (1)'), qr/ERROR:  ZK004/, 'no token was presented for the maintainer');

# Nor may he write, in the maintainer's hands, to what the maintainer's lock or token guards, or
# read that token from an error of his own guard. (The function of the index hides another one,
# since an immutable one may not write.)
sql($node, 'GRANT EXECUTE ON FUNCTION zk_fence_guard() TO evil');
foreach my $guard ("zk_fence_guard('nightly')", "zk_fence_guard('nightly', 'token', 'checked')")
{
	my $table = 'evil.g' . ++$n;
	my $level = $guard =~ /checked/ ? 'ROW' : 'STATEMENT';
	my $made = as('evil', <<"END");
CREATE TABLE ${table}_guarded (token bigint);
CREATE TRIGGER guard BEFORE INSERT ON ${table}_guarded FOR EACH $level EXECUTE FUNCTION $guard;
CREATE FUNCTION ${table}_write() RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO ${table}_guarded VALUES (1); END \$\$;
CREATE FUNCTION $table(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$ BEGIN IF session_user <> 'evil' THEN PERFORM ${table}_write(); END IF; RETURN \$1; END \$\$;
CREATE TABLE $table AS SELECT generate_series(1, 10) AS i;
CREATE INDEX ON $table ($table(i));
END
	is($made, '', "$guard: there is such an index");
	my $answer = $maintainer->query("ANALYZE $table");
	like($answer, qr/ERROR:  42501: .*security-restricted operation/, "$guard: ANALYZE fails");
	unlike($answer, qr/\b$token\b/, "$guard: and does not say the token");
	is(sql($node, "SELECT count(*) FROM ${table}_guarded"), 0, "$guard: nothing was written");
}

# The command to copy
as('evil', q{CREATE FUNCTION evil.zk_lock_break(text) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$});
$zk->create(lock_directory('foreign'));
$zk->create(lock_directory('foreign') . '/x-lock-0000000000', 'somebody');
my $waiter = ZkTest::Session->new($node);
$waiter->send(q{SELECT zk_lock_acquire('foreign')});
poll_until(sub { sql($node, q{SELECT count(*) FROM zk_lock_blockers WHERE name = 'foreign'}) }, 5) // die 'nobody waits';
my $command = sql($node, q{SELECT command FROM zk_lock_blockers WHERE name = 'foreign'});
is($command, q{SELECT public.zk_lock_break('foreign'::text, '5 s'::interval);}, 'the command names the schema and the types');
is(sql($node, "SET search_path = evil, public; $command"), 'deleted', 'and so finds the right function');
like($waiter->wait(5) // '', qr/^\d+$/, 'the waiter has the lock');
$_->quit foreach $waiter, $maintainer;
$node->stop;
done_testing();
