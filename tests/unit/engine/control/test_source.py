"""A store informer reports what exists, then every change, and lists again when its watch falls behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from herder.engine.control.source import StoreInformer
from herder.engine.store import Event, Key, Put, Store
from tests.support.api import TIMEOUT


class RecordingInformer:
    """A store informer that records the names that it lists and reports, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen: list[str] = []
        self.informer = StoreInformer(store, "things", resync=self.resync, changed=self.changed)

    def resync(self) -> None:
        self.seen.append("listed: " + " ".join(record.key.name for record in self.store.list("things")))

    def changed(self, event: Event) -> None:
        if event.record.key.name == "odd":
            raise KeyError("metadata")
        self.seen.append(event.record.key.name)


@asynccontextmanager
async def running_informer(store: Store) -> AsyncIterator[RecordingInformer]:
    recorder = RecordingInformer(store)
    running = asyncio.ensure_future(recorder.informer.run())
    await until(lambda: bool(recorder.seen))
    try:
        yield recorder
    finally:
        assert not running.done()
        running.cancel()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = Store.open(None, clock=time.time)
    yield store
    await store.close()


async def put(store: Store, *names: str) -> None:
    await store.write(*(Put(Key("things", "", name), lambda _revision: b"{}", None) for name in names))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0)


async def test_existing_objects_are_listed_and_changes_are_reported(store: Store) -> None:
    await put(store, "a", "b")
    async with running_informer(store) as recorder:
        await put(store, "c")
        await until(lambda: "c" in recorder.seen)
    assert recorder.seen == ["listed: a b", "c"]


async def test_an_unreadable_object_does_not_hide_others(store: Store) -> None:
    async with running_informer(store) as recorder:
        await put(store, "odd", "c")
        await until(lambda: "c" in recorder.seen)


async def test_a_watch_that_falls_behind_is_relisted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "watch", partial(store.watch, backlog=2))
    async with running_informer(store) as recorder:
        await put(store, "a", "b", "c")
        await until(lambda: recorder.seen[-1] == "listed: a b c")
        await put(store, "d")
        await until(lambda: recorder.seen[-1] == "d")


async def test_the_informer_stops_when_the_store_closes() -> None:
    store = Store.open(None, clock=time.time)
    recorder = RecordingInformer(store)
    running = asyncio.ensure_future(recorder.informer.run())
    await until(lambda: bool(recorder.seen))
    await store.close()
    await asyncio.wait_for(running, TIMEOUT)
