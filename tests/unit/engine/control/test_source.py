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
from tests.support.api import PATIENCE


class Follower:
    """Names that were listed or reported, in order."""

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
async def following(store: Store) -> AsyncIterator[Follower]:
    follower = Follower(store)
    running = asyncio.ensure_future(follower.informer.run())
    await until(lambda: bool(follower.seen))
    try:
        yield follower
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
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def test_what_exists_is_listed_and_changes_are_reported(store: Store) -> None:
    await put(store, "a", "b")
    async with following(store) as here:
        await put(store, "c")
        await until(lambda: "c" in here.seen)
    assert here.seen == ["listed: a b", "c"]


async def test_an_object_that_cannot_be_read_hides_no_other(store: Store) -> None:
    async with following(store) as here:
        await put(store, "odd", "c")
        await until(lambda: "c" in here.seen)


async def test_a_watch_that_falls_behind_begins_with_a_list_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "watch", partial(store.watch, backlog=2))
    async with following(store) as here:
        await put(store, "a", "b", "c")
        await until(lambda: here.seen[-1] == "listed: a b c")
        await put(store, "d")
        await until(lambda: here.seen[-1] == "d")


async def test_it_ends_when_the_store_closes_its_watches() -> None:
    store = Store.open(None, clock=time.time)
    follower = Follower(store)
    running = asyncio.ensure_future(follower.informer.run())
    await until(lambda: bool(follower.seen))
    await store.close()
    await asyncio.wait_for(running, PATIENCE)
