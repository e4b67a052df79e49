#!/usr/bin/python3
"""kazoo_peer.py HOSTS SESSION_TIMEOUT_MS: locks of kazoo, driven by lines.

The protocol is described at the head of test/perl/ZkPeers.pm. Kinds: mutex (a Lock with
the pattern that lets it see the names of Curator and zklock), plain (a Lock as it is),
read, write (with patterns for theirs), semaphore. "participants" shows what contenders() does: the
data of the nodes.

Copyright (c) 2026, zklock developers
"""
import os
import queue
import sys
import threading

from kazoo.client import KazooClient

hosts, timeout = sys.argv[1:3]
client = KazooClient(hosts=hosts, timeout=int(timeout) / 1000)
FOREIGN_WRITERS = ["-lock-", "__WRIT__"]


def say(*fields):
    # one write, so that threads do not mix their lines
    os.write(1, ("\t".join(fields) + "\n").encode())


def make_lock(ident, kind, path, leases="1"):
    if kind == "mutex":
        return client.Lock(path, "kazoo " + ident, extra_lock_patterns=["-lock-"])
    if kind == "plain":
        return client.Lock(path, "kazoo " + ident)
    if kind == "read":
        return client.ReadLock(path, "kazoo " + ident, extra_lock_patterns=FOREIGN_WRITERS)
    if kind == "write":
        return client.WriteLock(path, "kazoo " + ident, extra_lock_patterns=FOREIGN_WRITERS + ["__READ__"])
    if kind == "semaphore":
        return client.Semaphore(path, "kazoo " + ident, max_leases=int(leases))
    raise ValueError("no such kind: " + kind)


def serve(ident, commands):
    held = []
    while True:
        command = commands.get()
        try:
            if command[0] == "acquire":
                lock = make_lock(ident, *command[1:])
                lock.acquire()
                held.append((command[1], lock))
                say(ident, "acquired", lock.create_path.split("/")[-1] if command[1] == "semaphore" else lock.node)
            elif command[0] == "release":
                which = max(i for i, h in enumerate(held) if len(command) < 2 or h[0] == command[1])
                held.pop(which)[1].release()
                say(ident, "released")
            elif command[0] == "participants":
                say(ident, "participants", *make_lock(ident, command[1], command[2]).contenders())
            else:
                say(ident, "error", "no such command")
        except Exception as error:
            say(ident, "error", " ".join(f"{type(error).__name__} {error}".split()))


client.start(timeout=60)
say("-", "ready")
threads = {}
for line in sys.stdin:
    ident, *words = line.rstrip("\n").split("\t")
    if ident not in threads:
        threads[ident] = queue.Queue()
        threading.Thread(target=serve, args=(ident, threads[ident]), daemon=True).start()
    threads[ident].put(words)
client.stop()
os._exit(0)
