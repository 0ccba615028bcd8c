"""Acquires locks as kazoo does. ../README.md lists the orders."""

import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.recipe.lock import Lock, ReadLock, WriteLock


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class CuratorReadLock(Lock):
    _NODE_NAME = "-__READ__"
    _EXCLUDE_NAMES = ["-__WRIT__"]


class CuratorWriteLock(Lock):
    _NODE_NAME = "-__WRIT__"
    _EXCLUDE_NAMES = ["-__WRIT__", "-__READ__"]


# kazoo's defaults, with patterns for other clients' names, and using other clients' names.
KINDS = {
    "mutex": (Lock, []),
    "read": (ReadLock, []),
    "write": (WriteLock, []),
    "mutex-patterns": (Lock, ["-lock-"]),
    "read-patterns": (ReadLock, ["__WRIT__"]),
    "write-patterns": (WriteLock, ["__WRIT__", "__READ__"]),
    "mutex-subclass": (CuratorLock, []),
    "read-subclass": (CuratorReadLock, []),
    "write-subclass": (CuratorWriteLock, []),
}


def contents(path):
    with open(path) as file:
        return file.read()


class Peer:
    def __init__(self, client):
        self.client = client
        self.held = None

    def lock(self, path, kind):
        recipe, patterns = KINDS[kind]
        return recipe(self.client, path, "kazoo", extra_lock_patterns=patterns)

    def obey(self, order, *words):
        if order == "lock":
            self.held = self.lock(*words)
            self.held.acquire()
            return "held"
        if order == "try":
            path, kind, millis = words
            self.held = self.lock(path, kind)
            try:
                return "held" if self.held.acquire(timeout=int(millis) / 1000) else "not"
            except LockTimeout:
                return "not"
        if order == "release":
            self.held.release()
            return "released"
        if order == "work":
            path, kind, rounds, counter = words
            return self.work(path, kind, int(rounds), counter)
        raise ValueError(order)

    def work(self, path, kind, rounds, counter):
        mixed = kind.startswith("mixed")
        write = self.lock(path, kind.replace("mixed", "write"))
        read = self.lock(path, kind.replace("mixed", "read")) if mixed else None
        taken = 0
        for number in range(rounds):
            lock = read if mixed and number % 5 else write
            with lock:
                before = contents(counter)
                if lock is read:
                    time.sleep(0)
                    if contents(counter) != before:
                        return "torn"
                else:
                    count, last = before.split()
                    taken += last != "kazoo"
                    with open(counter, "w") as file:
                        file.write(f"{int(count) + 1} kazoo")
        return f"done {taken}"


def answer(line):
    print("peer:", line, flush=True)


def main():
    client = KazooClient(hosts=sys.argv[1], timeout=10)
    client.start(timeout=15)
    peer = Peer(client)
    answer("ready")
    for order in sys.stdin:
        answer(peer.obey(*order.split()))
    client.stop()
    client.close()


main()
