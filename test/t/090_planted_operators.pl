# CREATE EXTENSION by a superuser, in a schema that belongs to somebody else, who has planted
# operators, functions, types and casts there: none of it runs. And whatever default privileges
# hand out to whomever, the extension's objects are not among it.

use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('planted');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE owner LOGIN NOSUPERUSER; CREATE DATABASE app OWNER owner');

# What a superuser does in such a database without qualifying it is his own fault, and would hide
# what is the extension's: so he does it with a search_path of his own.
sub trusted { return $node->safe_psql($_[0], "SET search_path = pg_catalog, pg_temp; $_[1]"); }
sub as_owner { return $node->safe_psql('app', $_[0], extra_params => [ '-U', 'owner' ]); }
sub is_superuser { return $node->safe_psql('postgres', q{SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'}); }

# Functions that make their author a superuser when a superuser runs them, for each pair of types
# that the script compares, concatenates or casts, and for what it calls.
my @types = qw(oid regclass text name integer bigint "char" regproc regprocedure regrole timestamptz interval boolean);
my $evil = q{IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN EXECUTE 'ALTER ROLE owner SUPERUSER'; END IF;};
my $planted = 0;
my $script = 'SET client_min_messages = error;';
foreach my $left (@types)
{
	foreach my $right (@types)
	{
		foreach my $operator ('=', '<>', '||', '-', '>=')
		{
			my $result = $operator eq '||' ? 'text' : $operator eq '-' ? 'interval' : 'boolean';
			my $value = { text => q{'x'}, interval => q{'1 s'}, boolean => 'true' }->{$result};
			my $name = 'evil_' . ++$planted;
			$script .= "CREATE FUNCTION public.$name($left, $right) RETURNS $result LANGUAGE plpgsql AS \$\$ BEGIN $evil RETURN $value; END \$\$;\n"
			  . "CREATE OPERATOR public.$operator (LEFTARG = $left, RIGHTARG = $right, FUNCTION = public.$name);\n";
		}
	}
}
foreach my $function ('format(text, name, name, text)', 'format(text, name, name, text, text)', 'format(text, text)', 'quote_ident(name)', 'quote_ident(text)',
	'pg_get_userbyid(oid)', 'aclexplode(aclitem[])', 'acldefault("char", oid)', 'regexp_replace(text, text, text)',
	'pg_extension_config_dump(regclass, text)', 'pg_extension_config_dump(text, text)', 'clock_timestamp()', 'pg_get_function_identity_arguments(oid)', 'zk_locks(VARIADIC integer[])', 'zk_lock_queue(anyelement)', 'zk_session(VARIADIC integer[])', 'zk_lock_stats(VARIADIC integer[])')
{
	(my $with_names = $function) =~ s/VARIADIC integer\[\]/VARIADIC x integer[]/;
	$script .= "CREATE FUNCTION public.$with_names RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN $evil RETURN 'x'; END \$\$;\n";
	$planted++;
}
$script .= 'CREATE DOMAIN public.token AS bigint; CREATE DOMAIN public.record AS text; CREATE TYPE public.oid2 AS (x int); CREATE TYPE public.regclass AS ENUM (\'x\'); CREATE DOMAIN public.xid8 AS text;'
  . 'CREATE TABLE public.pg_depend (x int); CREATE TABLE public.pg_extension (x int); CREATE TABLE public.pg_proc (x int); CREATE COLLATION public."C" FROM "POSIX";';
# what is new may be given to everybody
$script .= 'ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;';
as_owner($script);
note "$planted planted";
is(is_superuser(), 'f', 'the owner of the database is no superuser');
trusted('app', 'CREATE EXTENSION zklock SCHEMA public');
is(is_superuser(), 'f', 'nor is he after CREATE EXTENSION in his schema');
is(trusted('app', q{SELECT count(*) > 20 FROM pg_depend d JOIN pg_extension e ON e.oid = refobjid AND deptype = 'e' WHERE extname = 'zklock' AND classid IN ('pg_class'::regclass, 'pg_proc'::regclass)}), 't', 'which has what it has elsewhere');
is(trusted('app', q{SELECT string_agg(a.atttypid::regtype::text, ' ' ORDER BY attnum) FROM pg_attribute a WHERE attrelid = 'public.zk_fence'::regclass AND attnum > 0}),
	'text bigint timestamp with time zone text text text xid8', 'with types of pg_catalog');

# A superuser uses what is there. Without a worker the views say so; what a view does is
# bound when it is made.
$node->psql('app', "SET search_path = pg_catalog, pg_temp; $_") foreach map({ "SELECT * FROM public.$_" } qw(zk_locks zk_session zk_lock_stats zk_lock_blockers)),
  q{SELECT public.zk_fence_check('r', 1)}, q{SELECT public.zk_fence_reset('r', 2)}, q{DROP EXTENSION zklock}, q{CREATE EXTENSION zklock SCHEMA public};
is(is_superuser(), 'f', 'nor when a superuser uses the extension');
like($node->safe_psql('app', q{SELECT pg_get_viewdef('zk_lock_blockers')}), qr/zk_locks\(\) w\(/, 'the view');
is(trusted('app', q{SELECT count(*) FROM pg_depend d JOIN pg_rewrite r ON d.objid = r.oid AND d.classid = 'pg_rewrite'::regclass JOIN pg_class c ON c.oid = r.ev_class AND c.relname LIKE 'zk\_%'
	JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid WHERE p.proowner = 'owner'::regrole}), '0', 'no view calls a function of the owner');

# ---------------------------------------------------------------------
# Default privileges, for whoever and on whatever

$node->safe_psql('postgres', q{CREATE ROLE app; CREATE ROLE "Weird "" name"; CREATE DATABASE defaults});
$node->safe_psql('defaults', <<'END');
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app, "Weird "" name" WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO app, "Weird "" name" WITH GRANT OPTION;
CREATE SCHEMA "zk Schema";
ALTER DEFAULT PRIVILEGES IN SCHEMA "zk Schema" GRANT ALL ON FUNCTIONS TO PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA "zk Schema" GRANT ALL ON TABLES TO app;
CREATE EXTENSION zklock SCHEMA "zk Schema";
END
my $granted = q{SELECT coalesce(string_agg(DISTINCT grantee || ' on ' || object, ', '), 'none') FROM (
	SELECT c.relname AS object, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee, c.relowner AS owner, a.grantee AS g
	FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock', aclexplode(relacl) a
	UNION SELECT p.proname, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, p.proowner, a.grantee
	FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND extname = 'zklock', aclexplode(coalesce(proacl, acldefault('f', proowner))) a) x
	WHERE g <> owner AND grantee <> 'pg_monitor'};
is($node->safe_psql('defaults', $granted), 'none', 'default privileges reach nothing of the extension');
$node->safe_psql('defaults', 'CREATE FUNCTION other() RETURNS int LANGUAGE sql RETURN 1');
is($node->safe_psql('defaults', q{SELECT has_function_privilege('app', 'other()', 'EXECUTE')}), 't', 'and all else');
is(trusted('app', $granted), 'none', 'nor where they are for PUBLIC');
is($node->safe_psql('defaults', q{SELECT count(*) FROM pg_proc WHERE proname LIKE 'zk\_%' AND has_function_privilege('pg_monitor', oid, 'EXECUTE')}), '5', 'pg_monitor has what it is given');
is($node->safe_psql('defaults', q{SELECT count(*) FROM pg_class WHERE relname LIKE 'zk\_%' AND relkind IN ('r', 'v') AND has_table_privilege('pg_monitor', oid, 'SELECT')}), '4', 'and no more');

# ---------------------------------------------------------------------
# The text of the script

my $sql = slurp_file(dirname(__FILE__) . '/../../sql/zklock.sql');
$sql =~ s/^\s*--.*$//mg;
$sql =~ s/'(?:[^']|'')*'/'...'/g;
my ($view) = $sql =~ /(CREATE VIEW zk_lock_blockers.*?;\n)/s;
my ($block) = $sql =~ /(DO LANGUAGE plpgsql \$\$.*?\$\$;)/s;
ok($view && $block, 'there are a view and a block that compute');
foreach my $part ([ 'the view', $view ], [ 'the block', $block ], [ 'the table', $sql =~ /(CREATE TABLE zk_fence.*?;\n)/s ])
{
	my ($what, $text) = @$part;
	(my $without = $text) =~ s/OPERATOR\(pg_catalog\.[^)]+\)/ /g;
	# left: SELECT *, := and WITH (fillfactor = 50)
	$without =~ s/fillfactor = 50//;
	$without =~ s/\@extschema\@/s/g;
	$without =~ s/::pg_catalog\.//g;
	$without =~ s/\$\$//g;
	unlike($without, qr/[^\w\s(),.;'"\[\]%]/, "$what: every operator is qualified");
	my @calls = $text =~ /(?<![\w.])([a-z_]+)\s?\(/g;
	my %keyword = map { $_ => 1 } qw(zk_fence in and or case when then else format as from coalesce lateral with);
	my @unqualified = grep { !$keyword{ lc $_ } && $_ ne 'OPERATOR' } @calls;
	is("@unqualified", '', "$what: so is every function");
	unlike($text, qr/::(?!pg_catalog\.)/, "$what: and every cast");
	unlike($text, qr/\b(?:FROM|JOIN)\s+(?!pg_catalog\.|\@extschema\@\.|LATERAL|%s)\w+/, "$what: and what it reads");
}
my @outside = grep { /^\s*(?:SELECT|INSERT|UPDATE|DELETE|DO|EXECUTE|CREATE VIEW)\b/ } split /;\n/, $sql =~ s/\Q$block\E//r =~ s/\Q$view\E//r;
foreach my $statement (@outside)
{
	like($statement, qr/^\s*(?:SELECT pg_catalog\.\w+\(|CREATE VIEW \w+ AS SELECT \* FROM \@extschema\@\.)/, 'qualified: ' . ($statement =~ s/\s+/ /gr));
}
unlike($sql, qr/OR REPLACE|IF NOT EXISTS|SECURITY DEFINER|SET search_path/i, 'nothing takes over what is there, nothing runs as its owner');

$node->stop;
done_testing();
