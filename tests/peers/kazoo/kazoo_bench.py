"""Acquires locks as often as kazoo can. ../README.md lists the orders."""

import json
import os
import queue
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.recipe.barrier import DoubleBarrier
from kazoo.recipe.counter import Counter
from kazoo.recipe.lock import Lock, Semaphore
from kazoo.recipe.party import Party
from kazoo.recipe.queue import LockingQueue, Queue

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
        if order == "recipe":
            recipe, path, count = words
            return self.recipe(recipe, path, int(count))
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

    def together(self, threads, work):
        begin = time.monotonic()
        working = [self.spawn(work, own) for own in range(threads)]
        for thread in working:
            thread.join()
        return time.monotonic() - begin

    def recipe(self, recipe, path, count):
        clients = self.clients

        def of(own):
            return clients[own % len(clients)]

        def shares(own):
            return range(own, count, len(clients))

        if recipe in ("take", "lease"):
            make = Queue if recipe == "take" else LockingQueue
            queues = [make(client, path) for client in clients]

            def offer(own):
                for item in shares(own):
                    queues[own].put(str(item).encode())

            self.together(len(queues), offer)
            left = list(range(count))

            def take(own):
                while left:
                    if recipe == "take":
                        if queues[own].get() is not None:
                            left.pop()
                    elif queues[own].get(0.2) is not None and queues[own].consume():
                        left.pop()

            return self.said(count, self.together(len(queues), take))
        if recipe == "meet":

            def meet(own):
                barrier = DoubleBarrier(of(own), path, count, f"own-{own}")
                barrier.enter()
                barrier.leave()

            return self.said(count, self.together(count, meet))
        if recipe == "add":

            def add(own):
                counter = Counter(of(own), path)
                for _ in shares(own):
                    counter += 1

            return self.said(count, self.together(len(clients), add))
        if recipe == "join":
            begin = time.monotonic()
            parties = [Party(of(own), path, f"member-{own}") for own in range(count)]
            for party in parties:
                party.join()
            if len(list(parties[0])) != count:
                sys.exit("a member is missing")
            seconds = time.monotonic() - begin
            for party in parties:
                party.leave()
            return self.said(count, seconds)
        if recipe == "permits":

            def acquire(own):
                with Semaphore(of(own), path, max_leases=3):
                    pass

            return self.said(count, self.together(count, acquire))
        raise ValueError(recipe)

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
