# token - zk_fencing_token in a loop
#
# Copyright (c) 2026, zklock developers

use strict;
use warnings;

use BenchMeasure;
use BenchPage;
use BenchServer;

sub section_token
{
	my $server = BenchServer->new('a', zk => ensemble(1));
	my $session = $server->session;
	$session->query(q{SELECT zk_lock_acquire('token')});
	my $loop = sub {
		my ($statement) = @_;
		return sub {
			my $ms = $session->query(<<"END");
DO \$\$
DECLARE
	value bigint;
	number int;
	start timestamptz := clock_timestamp();
BEGIN
	FOR i IN 1 .. 1000000 LOOP
		$statement;
	END LOOP;
	PERFORM set_config('bench.ms', (extract(epoch FROM clock_timestamp() - start) * 1000)::text, false);
END \$\$;
SELECT current_setting('bench.ms')
END
			return { ms => $ms };
		};
	};
	my $r = take_turns($runs,
		empty => $loop->('NULL'),
		pid => $loop->('number := pg_backend_pid()'),
		token => $loop->(q{value := zk_fencing_token('token')}));
	$session->close;
	$server->stop;
	my ($empty, $pid, $token) = map { $r->{$_}{ms} } qw(empty pid token);
	goal('`zk_fencing_token`, a million calls in PL/pgSQL, beside `pg_backend_pid()`: net of the empty loop',
		sprintf('%.0f ms, pg_backend_pid %.0f ms, empty %.0f ms', $token, $pid, $empty), ratio($token - $empty, $pid - $empty), '<=', 1.2);
	goal('the same: the loop included', sprintf('%.0f ms, pg_backend_pid %.0f ms', $token, $pid), ratio($token, $pid), '<=', 1.2);
	note(sprintf 'zk_fencing_token: %.0f ns a call more than pg_backend_pid(), which returns a variable. '
		. 'It checks the name, looks it up and reads a clock.', $token - $pid);
	return;
}

1;
