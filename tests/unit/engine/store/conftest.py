from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from herder.engine.store import Delete, Event, Key, Put, Record, Store


class Clock:
    """A wall clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Opener:
    """Open stores in one directory, and close those that a test left open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self._opened: list[Store] = []

    def __call__(self, path: Path | None = None, **options: Any) -> Store:
        store = Store.open(path or self.path, clock=self.clock, **options)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture
async def opener(tmp_path: Path) -> AsyncIterator[Opener]:
    opener = Opener(tmp_path / "store")
    yield opener
    await opener.close()


@pytest.fixture(params=["thread", "inline", "memory"])
async def store(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Store]:
    """A store that commits on its own thread, on the caller's thread, or in memory: all behave the same."""
    if request.param == "memory":
        store = Store.open(None, clock=opener.clock)
    else:
        store = opener(inline=request.param == "inline")
    yield store
    await store.close()


def key(name: str, namespace: str = "default", resource: str = "pods") -> Key:
    return Key(resource, namespace, name)


def put(name: str | Key, text: str = "", expected: int | None = None) -> Put:
    where = key(name) if isinstance(name, str) else name
    return Put(where, lambda revision: f"{where.name}:{text}@{revision}".encode(), expected)


def delete(name: str | Key, expected: int | None = None) -> Delete:
    where = key(name) if isinstance(name, str) else name
    return Delete(where, lambda revision: f"{where.name}:gone@{revision}".encode(), expected)


def summarize(event: Event) -> tuple[int, str, str, bool]:
    """Return what tests compare of an event: revision, value, previous value, deleted."""
    previous = event.previous.value.decode() if event.previous else ""
    return event.revision, event.record.value.decode(), previous, event.deleted


def values(records: Any) -> list[str]:
    return [record.value.decode() for record in records]


async def fill(store: Store, names: str) -> list[Record]:
    """Create one object for each letter, each with its own write."""
    return [(await store.write(put(name)))[0] for name in names]


Open = Callable[..., Store]
