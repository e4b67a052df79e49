#!/usr/bin/python3
"""peer.py HOSTS LOCK COMMAND [ARGUMENT...]: run a command while holding a lock of zklock's.

    peer.py zk1:2181,zk2:2181,zk3:2181 billing/nightly /usr/local/bin/nightly

Waits for the lock, among the backends that want it. kazoo sees the nodes of zklock and Curator only with
extra_lock_patterns=["-lock-"]; zklock sees those of kazoo in any case, Curator does not: one path for kazoo and
zklock, or for Curator and zklock, not for all three.

kazoo does not tell a holder that its lock is gone. What it does tell is that it has no connection: then the command is
ended, since ZooKeeper may give the lock away when the session timeout is over. A command that writes to a
database had better present the fencing token, $ZK_FENCING_TOKEN, there: see doc/fencing.md.

Exit code: that of the command; 75 when the lock was lost on the way.
With zklock.acl = creator, give the client auth_data=[("digest", "user:password")] and
default_acl=[kazoo.security.CREATOR_ALL_ACL].

kazoo: package python3-kazoo, 2.8 or later.
"""
import os
import subprocess
import sys

from kazoo.client import KazooClient, KazooState

hosts, name, *command = sys.argv[1:]
running = None
lost = False


def on_state(state):
    global lost
    if state != KazooState.CONNECTED and running is not None:
        lost = True
        running.terminate()


zk = KazooClient(hosts=hosts, timeout=10)
zk.add_listener(on_state)
zk.start()
# what zk_lock_queue shows as the server
lock = zk.Lock("/zklock/" + name, "peer.py on " + os.uname().nodename, extra_lock_patterns=["-lock-"])
with lock:
    token = zk.exists(lock.path + "/" + lock.node).czxid
    running = subprocess.Popen(command, env={**os.environ, "ZK_FENCING_TOKEN": str(token)})
    code = running.wait()
    running = None
    if lost:
        os._exit(75)  # the session's end gives back what is left
zk.stop()
sys.exit(code)
