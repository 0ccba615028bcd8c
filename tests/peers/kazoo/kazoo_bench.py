"""Acquires locks as often as kazoo can. ../README.md lists the orders."""

import json
import os
import queue
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

SESSION = 30
WAITS = 2000


def listen(orders):
    for order in sys.stdin:
        orders.put(order.split())
    # Ends at the end of the input, even while an order is carried out.
    os._exit(0)


class Bench:
    def __init__(self):
        self.clients = []
        self.failed = False

    def obey(self, order, *words):
        if order == "connect":
            hosts, count = words
            return self.connect(hosts, int(count))
        if order == "close":
            return self.close()
        if order == "loop":
            path, locks, threads, millis = words
            return self.loop(path, int(locks), int(threads), int(millis) / 1000)
        if order == "queue":
            path, waiters, repeats = words
            return self.queue(path, int(waiters), int(repeats))
        raise ValueError(order)

    def connect(self, hosts, count):
        self.close()
        for _ in range(count):
            client = KazooClient(hosts=hosts, timeout=SESSION)
            client.start(timeout=15)
            self.clients.append(client)
        return {}

    def close(self):
        for client in self.clients:
            client.stop()
            client.close()
        self.clients = []
        return {}

    def spawn(self, work, *arguments):
        def run():
            try:
                work(*arguments)
            except BaseException:
                self.failed = True
                raise

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def loop(self, path, locks, threads, seconds):
        operations = [0] * threads
        waits = [[] for _ in range(threads)]
        start = threading.Event()

        def work(own):
            # A lock object for each thread.
            lock = Lock(self.clients[0], f"{path}/{own % locks}", "kazoo")
            start.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                asked = time.time_ns()
                lock.acquire()
                if len(waits[own]) < WAITS // threads:
                    waits[own].append([asked, time.time_ns()])
                lock.release()
                operations[own] += 1

        working = [self.spawn(work, own) for own in range(threads)]
        begin = time.monotonic()
        start.set()
        for thread in working:
            thread.join()
        result = self.said(sum(operations), time.monotonic() - begin)
        result["waits"] = [wait for all_of_one in waits for wait in all_of_one]
        return result

    def queue(self, path, waiters, repeats):
        seconds = 0

        def work(client):
            lock = Lock(client, path, "kazoo")
            lock.acquire()
            lock.release()

        for _ in range(repeats):
            gate = Lock(self.clients[0], path, "gate")
            gate.acquire()
            working = [
                self.spawn(work, self.clients[own % len(self.clients)]) for own in range(waiters)
            ]
            while len(self.clients[0].get_children(path)) <= waiters:
                time.sleep(0.05)
            # The last waiters may not have set their watches yet.
            time.sleep(0.3)
            begin = time.monotonic()
            gate.release()
            for thread in working:
                thread.join()
            seconds += time.monotonic() - begin
        return self.said(waiters * repeats, seconds)

    def said(self, operations, seconds):
        if self.failed:
            sys.exit("a thread failed")
        return {"operations": operations, "seconds": seconds}


def answer(line):
    print("peer:", line, flush=True)


def main():
    orders = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    bench = Bench()
    answer("ready")
    while True:
        answer(json.dumps(bench.obey(*orders.get())))


try:
    main()
except BaseException as failure:
    print(failure, file=sys.stderr, flush=True)
    os._exit(1)
