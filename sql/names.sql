-- What a lock may be called, and what an argument may be. Every refusal has its
-- own sentence; nothing here reaches ZooKeeper.
SELECT zk_lock_acquire('');
SELECT zk_lock_acquire(NULL);
SELECT zk_lock_acquire(repeat('x', 256));
SELECT zk_lock_acquire('/absolute');
SELECT zk_lock_acquire('trailing/');
SELECT zk_lock_acquire('a//b');
SELECT zk_lock_acquire('.');
SELECT zk_lock_acquire('a/../b');
SELECT zk_lock_acquire('a/.hidden');
SELECT zk_lock_acquire(E'a\nb');
SELECT zk_lock_acquire(E'a/\u0001b');
SELECT zk_lock_acquire(E'a\u0085b');
SELECT zk_lock_acquire('_c_0b0e8ed6-7a1f-4b0a-9f59-3c1d3ac7a0f3-lock-0000000012');
SELECT zk_lock_acquire('a/x__READ__0000000012');
SELECT zk_lock_acquire('a/locks');
SELECT zk_lock_acquire('a/leases/b');
SELECT zk_lock_acquire('1/2/3/4/5/6/7/8/9');
SELECT zk_lock_acquire('name', NULL);
SELECT zk_lock_acquire('name', 'shared');
SELECT zk_lock_acquire('name', 'EXCLUSIVE');
SELECT zk_lock_acquire('name', timeout => '-1 s');
SELECT zk_lock_acquire('name', timeout => '-1 day 48 hours');
SELECT zk_lock_acquire('name', timeout => '100 years');
SELECT zk_lock_try_acquire(NULL);
SELECT zk_xact_lock_acquire('');
SELECT zk_xact_lock_try_acquire('name', '');
SELECT zk_lock_release(NULL);
SELECT zk_lock_release('');
SELECT zk_lock_release('/');
SELECT zk_fencing_token(NULL);
SELECT zk_lock_is_held('a//b');

-- the codes of the four kinds
\set VERBOSITY sqlstate
SELECT zk_lock_acquire('');
SELECT zk_lock_acquire(NULL);
SELECT zk_lock_acquire('name', 'shared');
SELECT zk_lock_acquire('name', timeout => '-1 s');
SELECT zk_fencing_token('never taken');
\set VERBOSITY default

-- what is allowed
SELECT zk_lock_try_acquire('0') > 0 AS digits_first;
SELECT zk_lock_try_acquire('locks') > 0 AS locks_first;
SELECT zk_lock_try_acquire(repeat('x', 255)) > 0 AS longest;
-- beyond the BMP is UTF-16's surrogates to ZooKeeper, which refuses them
SELECT zk_lock_try_acquire('🔒');
SELECT zk_lock_try_acquire('a b/ü/日本語') > 0 AS unicode;
SELECT zk_lock_is_held('a b/ü/日本語');
-- what programs append to a name
SELECT zk_lock_try_acquire('customer/42') > 0 AS number, zk_lock_try_acquire('invoice/2026/11') > 0 AS month,
	   zk_lock_try_acquire('order/' || '0f8fad5b-d9cb-469f-a165-70867728950e'::uuid) > 0 AS uuid;
SELECT zk_lock_try_acquire('1/2/3/4/5/6/7/8') > 0 AS deepest;
-- compared whole: neither case nor white space nor a prefix is the same
SELECT zk_lock_is_held('a b/ü/日本'), zk_lock_is_held('A b/ü/日本語'),
	   zk_lock_is_held(' 0');
SELECT zk_lock_release_all();
