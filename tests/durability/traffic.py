"""Random traffic on a store, with a report of requested and acknowledged changes and of events that watches received.

The report is written before and after each step, one JSON line each, so that after a crash it contains at least what
the store had acknowledged by then. Values contain the operation that wrote them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from herder.engine.store import Cipher, Delete, Key, Put, RevisionConflict, Store
from herder.engine.store.maintenance import checkpoint, compaction
from herder.engine.store.records import Change, Encode

RESOURCES = ("pods", "secrets")
WORKERS = 8

Report = Callable[["Line"], None]


class Opened(msgspec.Struct, tag="opened"):
    """The store is open at this revision."""

    revision: int
    compacted: int


class Intent(msgspec.Struct, tag="intent"):
    """These changes are about to be requested: key, and whether it is a deletion."""

    operation: str
    changes: list[tuple[Key, bool]]


class Acknowledged(msgspec.Struct, tag="acknowledged"):
    operation: str
    revisions: list[int]


class WatchStarted(msgspec.Struct, tag="watching"):
    watch: int
    resource: str
    namespace: str
    since: int


class Seen(msgspec.Struct, tag="seen"):
    """Revision and operation of each event that a watch received."""

    watch: int
    events: list[tuple[int, str]]


class Compacting(msgspec.Struct, tag="compacting"):
    revision: int
    done: bool


class Failed(msgspec.Struct, tag="failed"):
    """The traffic generator itself failed, which fails the test."""

    error: str


Line = Opened | Intent | Acknowledged | WatchStarted | Seen | Compacting | Failed


class Value(msgspec.Struct):
    """The stored value."""

    operation: str
    revision: int
    padding: str


def open_store(directory: Path) -> Store:
    cipher = Cipher.load_or_create(directory.parent / f"{directory.name}.key")
    return Store.open(directory, clock=time.time, cipher=cipher, encrypted=lambda resource: resource == "secrets")


class Traffic:
    """Uses a store in one process, until it is killed or has executed `limit` operations."""

    def __init__(self, directory: Path, report: Report, *, seed: str, limit: int | None = None) -> None:
        self._directory = directory
        self._report = report
        self._seed = seed
        self._random = random.Random(seed)
        self._limit = limit
        self._operations = 0

    async def run(self, prepare: Callable[[Store], None] = lambda store: None) -> None:
        # Small thresholds, so that a short run includes checkpoints and many steps of compaction.
        checkpoint.CHECKPOINT_BYTES, compaction.STEP = 200_000, 20
        store = open_store(self._directory)
        prepare(store)
        self._report(Opened(store.revision, store.compacted))
        watchers = [asyncio.ensure_future(self._watch(store, n)) for n in range(3)]
        compactor = asyncio.ensure_future(self._compact(store))
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(WORKERS):
                    workers.create_task(self._work(store))
        finally:
            for task in (*watchers, compactor):
                task.cancel()
            await asyncio.gather(*watchers, compactor, return_exceptions=True)
            await store.close()

    async def _work(self, store: Store) -> None:
        pick = self._random
        while self._limit is None or self._operations < self._limit:
            self._operations += 1
            operation = f"{self._seed}-{self._operations}"
            changes = self._changes(store, operation)
            self._report(Intent(operation, [(change.key, isinstance(change, Delete)) for change in changes]))
            try:
                written = store.write(*changes)
            except RevisionConflict:
                continue
            records = await written
            self._report(Acknowledged(operation, [record.revision for record in records]))
            if pick.random() < 0.05:
                await asyncio.sleep(pick.random() * 0.01)

    def _changes(self, store: Store, operation: str) -> list[Change]:
        pick = self._random
        size = pick.choice([1, 1, 1, 1, 2, 5])
        keys = {
            Key(pick.choice(RESOURCES), pick.choice(["one", "two"]), f"n{pick.randrange(6)}"): None for _ in range(size)
        }
        return [self._change(store, key, operation) for key in keys]

    def _change(self, store: Store, key: Key, operation: str) -> Change:
        pick = self._random
        latest = store.latest(key)
        encode = encoder(operation, "x" * pick.choice([10, 100, 1_000, 20_000]))
        if pick.random() < 0.05:
            return Put(key, encode, pick.randrange(1, 1_000))  # mostly a conflict
        if latest is not None and pick.random() < 0.3:
            return Delete(key, encode, latest.revision)
        expected = None if pick.random() < 0.3 else latest.revision if latest else 0
        return Put(key, encode, expected)

    async def _watch(self, store: Store, number: int) -> None:
        pick = self._random
        since = store.revision if number else pick.randint(store.compacted, store.revision)
        resource, namespace = pick.choice(RESOURCES), pick.choice(["", "one"])
        watch = store.watch(resource, namespace, since=since)
        self._report(WatchStarted(number, resource, namespace, since))
        async for batch in watch:
            seen = [(event.revision, operation_of(event.record.value)) for event in batch]
            self._report(Seen(number, seen))

    async def _compact(self, store: Store) -> None:
        pick = self._random
        while True:
            revision = pick.randint(store.compacted, store.revision)
            await asyncio.sleep(0.005 + pick.random() * 0.3)  # by then, all changes up to this revision were reported
            self._report(Compacting(revision, done=False))
            await store.compact(revision)
            self._report(Compacting(revision, done=True))


def encoder(operation: str, padding: str) -> Encode:
    return lambda revision: msgspec.json.encode(Value(operation, revision, padding))


def operation_of(value: bytes) -> str:
    return msgspec.json.decode(value, type=Value).operation
