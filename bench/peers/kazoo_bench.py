#!/usr/bin/python3
"""kazoo_bench.py HOSTS own|one THREADS SECONDS WARM_UP: CuratorBench.java with kazoo's Lock.

One client for all threads; prints cycles per second, median and p99 of a cycle's
latency in microseconds.

Copyright (c) 2026, zklock developers
"""
import os
import sys
import threading
import time

from kazoo.client import KazooClient

hosts, which = sys.argv[1:3]
threads = int(sys.argv[3])
seconds, warm_up = map(float, sys.argv[4:6])

client = KazooClient(hosts=hosts, timeout=10)
client.start(timeout=60)
begin = time.perf_counter() + warm_up
end = begin + seconds
took = []  # list.append is atomic


def work(number):
    try:
        lock = client.Lock("/kazoo/l" + (str(number) if which == "own" else "ock"))
        start = time.perf_counter()
        while start < end:
            lock.acquire()
            lock.release()
            now = time.perf_counter()
            if begin <= now < end:
                took.append(now - start)
            start = now
    except BaseException as e:
        print(repr(e), file=sys.stderr)
        os._exit(1)


workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
for w in workers:
    w.start()
for w in workers:
    w.join()
took.sort()
print(f"{len(took) / seconds:.2f} {took[len(took) // 2] * 1e6:.1f} {took[int(len(took) * 0.99)] * 1e6:.1f}", flush=True)
os._exit(0)
