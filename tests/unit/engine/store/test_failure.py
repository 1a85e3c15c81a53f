"""On disk errors, no write is acknowledged, no partial write is visible, and reads continue."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from herder.engine.store import Cipher, Put, Record, Store, StoreFailed
from herder.engine.store import store as store_module
from herder.engine.store.maintenance.compaction import Compaction
from tests.unit.engine.apiserver.commit_gate import CommitGate, sqlite_error

from .conftest import Opener, fill, key, put, summarize, values


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Limit the file size of this process, so that writes fail as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("inline", [False, True])
async def test_a_failed_commit_fails_every_write_and_no_read(opener: Opener, tmp_path: Path, inline: bool) -> None:
    store = opener(inline=inline)
    await fill(store, "ab")
    watch = store.watch("pods", since=0)
    watch.take()
    with full_disk((opener.path / "store.db-wal").stat().st_size + 4096):
        refused = [store.write(put("c", "x" * 100_000))]
        if not inline:
            refused.append(store.write(put("d")))
        for outcome in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(outcome, StoreFailed)
        with pytest.raises(StoreFailed, match="cannot commit") as failure:
            await store.write(put("e", "x" * 100_000))
    assert failure.value.code == 503
    assert store.failure is not None
    assert values(store.list("pods")) == ["a:@1", "b:@2"]
    assert (store.revision, store.latest(key("c"))) == (2, None)
    assert watch.take() == []
    assert values(await store.list_at("pods", "", 1)) == ["a:@1"]
    await store.close()
    again = opener(shutil.copytree(opener.path, tmp_path / "image"))
    assert values(again.list("pods")) == ["a:@1", "b:@2"]
    assert again.revision > 2


@pytest.mark.parametrize("inline", [False, True])
async def test_failed_maintenance_is_reported_and_writes_continue(opener: Opener, inline: bool) -> None:
    cipher = Cipher([b"k" * 32])
    store = opener(inline=inline, cipher=cipher, encrypted=lambda resource: True)
    await fill(store, "ab")
    with sqlite3.connect(opener.path / "store.db") as other:
        other.execute("UPDATE revisions SET value = x'00112233' WHERE revision = 1")
    other.close()
    with pytest.raises(StoreFailed, match="store maintenance failed"):
        await store.reseal()
    [record] = await store.write(put("c"))
    assert record.revision == 3


@pytest.mark.parametrize("inline", [False, True])
async def test_writes_succeed_again_once_the_disk_has_space(opener: Opener, tmp_path: Path, inline: bool) -> None:
    store = opener(inline=inline)
    await fill(store, "ab")
    watch = store.watch("pods", since=store.revision)
    with full_disk((opener.path / "store.db-wal").stat().st_size + 4096):
        with pytest.raises(StoreFailed):
            await store.write(put("c", "x" * 100_000))
        assert store.failure is not None
    [record] = await store.write(put("c", "again"))
    assert store.failure is None
    assert [summarize(event) for event in watch.take()] == [(record.revision, f"c:again@{record.revision}", "", False)]
    again = opener(shutil.copytree(opener.path, tmp_path / "image"))
    assert values(again.list("pods")) == ["a:@1", "b:@2", f"c:again@{record.revision}"]


async def test_an_idle_store_recovers_once_the_disk_has_space(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PROBE_INITIAL_DELAY", 0.001)
    store = opener()
    gate = CommitGate(store)
    gate.error = sqlite_error("SQLITE_FULL")
    with pytest.raises(StoreFailed):
        await store.write(put("a"))
    gate.error = None
    async with asyncio.timeout(20):
        while store.failure is not None:
            await asyncio.sleep(0.001)


async def test_writes_on_top_of_a_failed_one_fail_too(opener: Opener) -> None:
    """They were checked against a state that was never committed."""
    store = opener()
    await fill(store, "a")
    gate = CommitGate(store)
    with gate.closed():
        first = await gate.in_flight(_written(store, put("a", "lost")))
        on_top = store.write(put("a", "on top", store.latest(key("a")).revision))  # type: ignore[union-attr]
        gate.error = sqlite_error("SQLITE_FULL")
        await gate.let_one_pass(expect_another=False)
        assert isinstance(await _outcome(first), StoreFailed)
        gate.error = None
        again = store.write(put("a", "again", 1))
    [record] = await again
    assert isinstance(await _outcome(on_top), StoreFailed)
    assert values(store.list("pods")) == [f"a:again@{record.revision}"]
    assert record.revision > 3, "revisions of failed writes are not given out again"


async def test_a_failed_sync_is_final(opener: Opener) -> None:
    """It is unknown what the disk kept: the process must exit and read it again."""
    store = opener()
    await fill(store, "a")
    gate = CommitGate(store)
    gate.error = sqlite_error("SQLITE_IOERR_FSYNC")
    with pytest.raises(StoreFailed):
        await store.write(put("a", "doubtful"))
    gate.error = None
    with pytest.raises(StoreFailed, match="restart"):
        store.write(put("b"))
    async with asyncio.timeout(20):
        assert (await store.wait_failed()).fatal
    assert values(store.list("pods")) == ["a:@1"]


@pytest.mark.parametrize("inline", [False, True])
async def test_commits_are_synced_after_a_failed_compaction_pass(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    store = opener(inline=inline)
    for _ in range(3):
        await fill(store, "a")
    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "_delete", _refuse)
        with pytest.raises(StoreFailed, match="store maintenance failed"):
            await store.compact(2)
    assert store._database.connection.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_compaction_continues_after_a_failed_pass(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opener()
    await fill(store, "a")
    opener.clock.now += 100
    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "_delete", _refuse)
        compaction = asyncio.ensure_future(store.compact_by_age(10, every=0.001))
        async with asyncio.timeout(20):
            while store.compacted < 1:
                await asyncio.sleep(0.001)
        for _ in range(3):
            await fill(store, "a")
            opener.clock.now += 100
            await asyncio.sleep(0.01)
        assert not compaction.done()
    async with asyncio.timeout(20):
        while store.compacted < store.revision:
            await asyncio.sleep(0.001)
    compaction.cancel()


def _refuse(*_: object) -> None:
    raise sqlite_error("SQLITE_FULL")


async def _written(store: Store, change: Put) -> list[Record]:
    return await store.write(change)


async def _outcome(future: asyncio.Future[list[Record]]) -> list[Record] | BaseException:
    [outcome] = await asyncio.gather(future, return_exceptions=True)
    return outcome
