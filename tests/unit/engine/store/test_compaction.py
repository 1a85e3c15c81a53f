"""Compaction removes old revisions and keeps live objects."""

from __future__ import annotations

import asyncio
import contextlib

from herder.engine.store import Store
from herder.engine.store.database import Database

from .conftest import Opener, delete, fill, key, put, values


def kept(database: Database) -> list[int]:
    return [row[0] for row in database.connection.execute("SELECT revision FROM revisions ORDER BY revision")]


async def test_superseded_and_deleted_revisions_are_removed_and_live_ones_kept(store: Store) -> None:
    await fill(store, "abc")  # 1 2 3
    await store.write(put("a"))  # 4
    await store.write(delete("b"))  # 5
    await store.write(put("b"))  # 6
    await store.write(put("c"))  # 7
    await store.compact(5)
    assert kept(store._database) == [3, 4, 6, 7]
    assert (store.compacted, store.revision) == (5, 7)
    assert values(await store.list_at("pods", "", 5)) == ["a:@4", "c:@3"]
    await store.compact(7)
    assert kept(store._database) == [4, 6, 7]
    assert values(store.list("pods")) == ["a:@4", "b:@6", "c:@7"]


async def test_the_compacted_revision_survives_a_restart_and_revisions_never_decrease(opener: Opener) -> None:
    store = opener()
    await fill(store, "ab")
    await store.write(delete("a"))
    await store.write(delete("b"))
    await store.compact(4)
    assert kept(store._database) == []
    await store.close()
    again = opener()
    assert (again.compacted, again.revision) == (4, 4)
    [record] = await again.write(put("a"))
    assert record.revision == 5


async def test_compaction_never_passes_the_current_revision_nor_goes_back(store: Store) -> None:
    await fill(store, "ab")
    await store.compact(99)
    assert store.compacted == 2
    await store.compact(1)
    assert store.compacted == 2


async def test_writes_continue_while_a_long_history_is_compacted(opener: Opener) -> None:
    store = opener()
    for _ in range(10):
        await asyncio.gather(*(store.write(put(f"p{n}")) for n in range(500)))
    sweep = asyncio.ensure_future(store.compact(store.revision))
    acknowledged = 0
    while not sweep.done():
        await store.write(put("busy"))
        acknowledged += 1
    await sweep
    assert acknowledged > 3
    assert len(kept(store._database)) == 500 + acknowledged


async def test_an_interrupted_compaction_is_resumed(opener: Opener) -> None:
    store = opener()
    await asyncio.gather(*(store.write(put("a")) for _ in range(2_000)))
    sweep = asyncio.ensure_future(store.compact(1_500))
    await asyncio.sleep(0)
    await store.close()
    with contextlib.suppress(asyncio.CancelledError):
        await sweep
    again = opener()
    await again.compact(1_501)
    assert kept(again._database) == list(range(1_501, 2_001))


async def test_history_is_kept_for_the_configured_time(opener: Opener) -> None:
    store = opener()
    await fill(store, "ab")
    opener.clock.now += 100
    await store.write(put("a"))
    opener.clock.now += 100
    await store.write(put("b"))
    keeper = asyncio.ensure_future(store.compact_by_age(150, every=0.001))
    while store.compacted != 2:
        await asyncio.sleep(0.001)
    opener.clock.now += 60
    while store.compacted != 3:
        await asyncio.sleep(0.001)
    keeper.cancel()
    assert await store.get_at(key("b"), 3) is not None


async def test_history_is_limited_in_size(opener: Opener) -> None:
    """A user who may update one object, such as a node its plan Secret, cannot fill the disk with its history."""
    store = opener()
    await store.write(put("other"))
    await asyncio.gather(*(store.write(put("a", "x" * 10_000)) for _ in range(100)))
    keeper = asyncio.ensure_future(store.compact_by_age(3600, every=0.001, most_bytes=205_000))
    async with asyncio.timeout(30):
        while not store.compacted:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    keeper.cancel()
    assert store.compacted == store.revision - 20, "what fits is kept"
    assert kept(store._database) == [1, *range(store.compacted, store.revision + 1)]
