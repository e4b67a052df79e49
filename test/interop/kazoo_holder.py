#!/usr/bin/python3
"""kazoo_holder.py HOSTS SESSION_TIMEOUT_MS PATH: CuratorHolder.java with kazoo's Lock.

The same lines; "believes" is Lock.is_acquired.

Copyright (c) 2026, zklock developers
"""
import os
import sys
import threading
import time

from kazoo.client import KazooClient

hosts, timeout, path = sys.argv[1:4]


def say(what, value=""):
    # one write, so that threads do not mix their lines
    os.write(1, f"{what} {int(time.time() * 1000)} {value}\n".encode())


def end_with_stdin():
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


threading.Thread(target=end_with_stdin, daemon=True).start()
client = KazooClient(hosts=hosts, timeout=int(timeout) / 1000)
client.add_listener(lambda state: say("state", state))
client.start(timeout=60)
lock = client.Lock(path)
lock.acquire()
say("acquired")
while True:
    say("believes", "true" if lock.is_acquired else "false")
    time.sleep(0.02)
