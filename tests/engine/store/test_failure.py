"""A disk that refuses: nothing is acknowledged, nothing half-done is seen, and reading goes on."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from herder.engine.store import Cipher, StoreFailed

from .conftest import Opener, fill, key, put, values


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process may grow beyond this size: writes fail as they do on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("inline", [False, True])
async def test_a_refused_commit_fails_every_write_and_no_reader(opener: Opener, tmp_path: Path, inline: bool) -> None:
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
    with pytest.raises(StoreFailed, match="stopped taking writes") as failure:
        store.write(put("e"))
    assert failure.value.code == 503
    assert values(store.list("pods")) == ["a:@1", "b:@2"]
    assert (store.revision, store.latest(key("c"))) == (2, None)
    assert watch.take() == []
    assert values(await store.list_at("pods", "", 1)) == ["a:@1"]
    await store.close()
    again = opener(shutil.copytree(opener.path, tmp_path / "image"))
    assert values(again.list("pods")) == ["a:@1", "b:@2"]
    assert again.revision > 2


@pytest.mark.parametrize("inline", [False, True])
async def test_housekeeping_that_fails_is_told_and_writes_go_on(opener: Opener, inline: bool) -> None:
    cipher = Cipher([b"k" * 32])
    store = opener(inline=inline, cipher=cipher, encrypted=lambda resource: True)
    await fill(store, "ab")
    with sqlite3.connect(opener.path / "store.db") as other:
        other.execute("UPDATE revisions SET value = x'00112233' WHERE revision = 1")
    other.close()
    with pytest.raises(StoreFailed, match="cannot be tidied"):
        await store.reseal()
    [record] = await store.write(put("c"))
    assert record.revision == 3
