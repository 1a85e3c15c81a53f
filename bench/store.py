"""Benchmark of the store alone: durable inserts by number of callers, opening, listing, paging, and compaction.

Run with `python bench/store.py [--directory D] [--seconds S]`; the directory decides which disk is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from herder.engine.store import Cipher, Key, Put, Store

PADDING = b"x" * 2_950


def value(revision: int) -> bytes:
    return b'{"resourceVersion":"%d","padding":"%s"}' % (revision, PADDING)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    parts: list[Callable[[Path, float], Awaitable[None]]] = [fsync, inserts, encrypted, opening, compaction]
    for part in parts:
        if options.only and part.__name__ != options.only:
            continue
        directory = Path(tempfile.mkdtemp(prefix="bench-store-", dir=options.directory))
        try:
            await part(directory, options.seconds)
        finally:
            shutil.rmtree(directory)


async def fsync(directory: Path, seconds: float) -> None:
    """Measure the current speed of the disk, on which all other results depend."""
    file = os.open(directory / "probe", os.O_CREAT | os.O_RDWR)
    os.pwrite(file, bytes(4096 * 256), 0)
    os.fsync(file)
    times = []
    for n in range(256):
        os.pwrite(file, b"y" * 4096, 4096 * n)
        start = time.perf_counter()
        os.fdatasync(file)
        times.append(time.perf_counter() - start)
    os.close(file)
    print(f"fdatasync of one page          {quantiles(times)}")


async def inserts(directory: Path, seconds: float) -> None:
    for callers in (1, 16, 64, 256):
        store = Store.open(directory / str(callers), clock=time.time)
        await measure(store, f"inserts, {callers:3} callers", callers, seconds)
        await store.close()


async def encrypted(directory: Path, seconds: float) -> None:
    cipher = Cipher.load_or_create(directory / "key")
    store = Store.open(directory / "store", clock=time.time, cipher=cipher, encrypted=lambda resource: True)
    await measure(store, "encrypted,  64 callers", 64, seconds)
    await store.close()


async def measure(store: Store, title: str, callers: int, seconds: float) -> None:
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        n = 0
        while (start := time.perf_counter()) < end:
            n += 1
            await store.write(Put(Key("things.example.com", f"ns-{number}", f"thing-{n}"), value, 0))
            times.append(time.perf_counter() - start)

    before = cpu()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    spent = cpu() - before
    rate = len(times) / seconds
    print(f"{title:30} {rate:7.0f}/s  {spent / len(times) * 1e6:4.0f} µs CPU each  {quantiles(times)}")


async def opening(directory: Path, seconds: float) -> None:
    """Open a store of 10,000 live objects, with and without 100,000 superseded revisions."""
    for history in (0, 100_000):
        path = directory / str(history)
        store = Store.open(path, clock=time.time)
        keys = [Key("things.example.com", f"ns-{n % 10}", f"thing-{n}") for n in range(10_000)]
        for _ in range(1 + history // len(keys)):
            for start in range(0, len(keys), 500):
                await asyncio.gather(*(store.write(Put(key, value)) for key in keys[start : start + 500]))
        middle = store.revision - history // 2
        await store.close()
        start_ = time.perf_counter()
        store = Store.open(path, clock=time.time)
        print(f"open 10k live + {history // 1000:3}k history    {(time.perf_counter() - start_) * 1e3:7.1f} ms")
        if history:
            await reading(store, middle)
        await store.close()


async def reading(store: Store, middle: int) -> None:
    start = time.perf_counter()
    for _ in range(100):
        store.list("things.example.com")
    print(f"list 10k                       {(time.perf_counter() - start) * 10:7.3f} ms")
    start = time.perf_counter()
    for _ in range(100):
        store.list("things.example.com", "ns-3")
    print(f"list 1k of one namespace       {(time.perf_counter() - start) * 10:7.3f} ms")
    for title in ("first page of 500 at a past revision", "next page"):
        start = time.perf_counter()
        await store.list_at("things.example.com", "", middle, after="ns-3/thing-13", limit=500)
        print(f"{title:37}{(time.perf_counter() - start) * 1e3:7.1f} ms")
    start, seen = time.perf_counter(), 0
    watch = store.watch("things.example.com", since=middle)
    while watch.progress() < store.revision:
        seen += len(await anext(watch))
    print(f"replay {seen} events from disk    {(time.perf_counter() - start) * 1e3:7.1f} ms")


async def compaction(directory: Path, seconds: float) -> None:
    """Measure how long writes wait while 50,000 superseded revisions are compacted."""
    store = Store.open(directory / "store", clock=time.time)
    keys = [Key("things.example.com", "default", f"thing-{n}") for n in range(500)]
    for _ in range(100):
        await asyncio.gather(*(store.write(Put(key, value)) for key in keys))

    async def sweep() -> None:
        start = time.perf_counter()
        await store.compact(store.revision)
        print(f"compaction of 50k              {time.perf_counter() - start:7.1f} s")

    await asyncio.gather(sweep(), measure(store, "inserts while compacting, 16", 16, seconds))
    await store.close()


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def quantiles(times: list[float]) -> str:
    ordered = sorted(times)
    at = {p: ordered[min(len(ordered) - 1, int(len(ordered) * p))] * 1e3 for p in (0.5, 0.99, 1.0)}
    return f"p50 {at[0.5]:6.2f}  p99 {at[0.99]:6.2f}  max {at[1.0]:7.2f} ms"


if __name__ == "__main__":
    uvloop.run(main())
