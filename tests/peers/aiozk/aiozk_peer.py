"""Acquires locks as aiozk does. ../README.md lists the orders."""

import asyncio
import sys

from aiozk import ZKClient, exc


def contents(path):
    with open(path) as file:
        return file.read()


class Peer:
    def __init__(self, client):
        self.client = client
        self.held = None

    def lock(self, path, kind):
        if kind == "mutex":
            return self.client.recipes.Lock(path)
        shared = self.client.recipes.SharedLock(path)
        return {"read": shared.reader_lock, "write": shared.writer_lock}[kind]

    async def obey(self, order, *words):
        if order == "lock":
            self.held = self.lock(*words)
            await self.held.acquire()
            return "held"
        if order == "try":
            path, kind, millis = words
            self.held = self.lock(path, kind)
            try:
                await self.held.acquire(timeout=int(millis) / 1000)
                return "held"
            except exc.TimeoutError:
                return "not"
        if order == "release":
            await self.held.release()
            return "released"
        if order == "work":
            path, kind, rounds, counter = words
            return await self.work(self.lock(path, kind), int(rounds), counter)
        raise ValueError(order)

    async def work(self, lock, rounds, counter):
        taken = 0
        for _ in range(rounds):
            await lock.acquire()
            count, last = contents(counter).split()
            taken += last != "aiozk"
            with open(counter, "w") as file:
                file.write(f"{int(count) + 1} aiozk")
            await lock.release()
        return f"done {taken}"


def answer(line):
    print("peer:", line, flush=True)


async def main():
    client = ZKClient(sys.argv[1], session_timeout=10)
    await client.start()
    peer = Peer(client)
    answer("ready")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer(await peer.obey(*line.split()))
    await client.close()


asyncio.run(main())
