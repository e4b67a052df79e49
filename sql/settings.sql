-- Settings: what is refused, and what is said about it.
SHOW zklock.session_timeout;
SHOW zklock.acquire_timeout;
SHOW zklock.commit_margin;
SHOW zklock.idle_loss;
SHOW zklock.max_locks;
SHOW zklock.max_locks_per_backend;
SHOW zklock.max_locks_per_role;
SHOW zklock.reserved_locks;
SHOW zklock.new_directories_per_second;
ALTER SYSTEM SET zklock.hosts = '';
ALTER SYSTEM SET zklock.hosts = 'localhost';
ALTER SYSTEM SET zklock.hosts = 'localhost:0';
ALTER SYSTEM SET zklock.hosts = 'localhost:2181,,other:2181';
ALTER SYSTEM SET zklock.hosts = 'localhost:2181/';
ALTER SYSTEM SET zklock.hosts = 'localhost:2181/chroot,other:2181';
ALTER SYSTEM SET zklock.root = 'zklock';
ALTER SYSTEM SET zklock.root = '/';
ALTER SYSTEM SET zklock.root = '/a/../b';
ALTER SYSTEM SET zklock.server_name = 'a/b';
ALTER SYSTEM SET zklock.server_name = '';
-- the wording is the server's, and changed in version 17
\set VERBOSITY sqlstate
ALTER SYSTEM SET zklock.session_timeout = '3s';
ALTER SYSTEM SET zklock.max_locks = 0;
SET zklock.acquire_timeout = -1;
\set VERBOSITY default
SET zklock.idle_loss = 'ignore';
SET zklock.hosts = 'localhost:2181';
SET zklock.no_such_setting = 1;
SET zklock.acquire_timeout = '5s';
SHOW zklock.acquire_timeout;
RESET zklock.acquire_timeout;
