"""A store directory has one owner at a time, and never assigns a revision twice, whatever happens to the database."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from herder.engine.store import Compacted, Store, StoreError, StoreLocked
from herder.engine.store.directory import MIN_JUMP, RESERVE, revision_beyond

from .conftest import Opener, fill, put, values


def crashed(store: Path, image: Path) -> Path:
    """Return a copy of the directory as a killed process would leave it."""
    shutil.copytree(store, image)
    return image


async def test_a_second_open_reports_the_owner_of_the_store(opener: Opener) -> None:
    opener()
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()}"):
        opener()


async def test_a_second_process_cannot_open_the_store(opener: Opener) -> None:
    opener()
    script = (
        "import pathlib, sys; from herder.engine.store import Store; Store.open(pathlib.Path(sys.argv[1]), clock=float)"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(opener.path)], capture_output=True, text=True, check=False
    )
    assert "StoreLocked" in other.stderr


async def test_a_closed_store_can_be_opened_again(opener: Opener) -> None:
    await opener().close()
    opener()


async def test_only_the_owner_can_read_the_files(opener: Opener) -> None:
    await fill(opener(), "a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in opener.path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"store.db", "store.db-wal", "high-water", "lock"} <= set(modes)
    assert stat.S_IMODE(opener.path.stat().st_mode) == 0o700


async def test_after_a_crash_revisions_continue_after_the_reserved_ones(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    image = crashed(opener.path, tmp_path / "image")
    again = opener(image)
    assert again.revision == RESERVE
    assert again.compacted == 0
    watch = again.watch("pods", since=1)
    assert [event.revision for event in await anext(watch)] == [2]
    [record] = await again.write(put("c"))
    assert record.revision == RESERVE + 1
    await again.close()
    assert opener(image).revision == RESERVE + 1


async def test_the_reservation_is_renewed_before_it_is_used_up(opener: Opener, tmp_path: Path) -> None:
    store = opener(inline=True)
    for _ in range(RESERVE // 100 + 1):
        await store.write(*(put(f"p{n}") for n in range(100)))
    assert store.revision == RESERVE + 100
    again = opener(crashed(opener.path, tmp_path / "image"))
    assert store.revision < again.revision <= store.revision + 2 * RESERVE
    assert again.compacted == 0


async def test_repeated_crashes_are_not_mistaken_for_a_replaced_database(opener: Opener, tmp_path: Path) -> None:
    await fill(opener(), "a")
    image = opener.path
    for n in range(5):
        image = crashed(image, tmp_path / f"image-{n}")
        store = opener(image)
        assert store.revision == (n + 1) * RESERVE
    assert store.compacted == 0


async def test_a_manually_restored_database_never_reuses_a_revision(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.close()
    copy = tmp_path / "copy.db"
    shutil.copy(opener.path / "store.db", copy)
    store = opener()
    await fill(store, "cde")
    await store.close()
    shutil.copy(copy, opener.path / "store.db")
    again = opener()
    assert values(again.list("pods")) == ["a:@1", "b:@2"]
    assert again.revision > MIN_JUMP
    with pytest.raises(Compacted):
        again.watch("pods", since=5)
    assert again.watch("pods", since=again.revision).take() == []
    revision = again.revision
    await again.close()
    assert opener().revision == revision


@pytest.mark.parametrize("lost", ["high-water", "store.db"])
async def test_manually_removed_files_make_revisions_jump(opener: Opener, lost: str) -> None:
    store = opener()
    await fill(store, "ab")
    await store.close()
    (opener.path / lost).unlink()
    again = opener()
    assert again.revision > MIN_JUMP
    assert again.compacted == again.revision


async def test_a_corrupt_high_water_mark_is_reported(opener: Opener) -> None:
    await opener().close()
    (opener.path / "high-water").write_text("soon exact")
    with pytest.raises(StoreError, match="high-water is damaged; remove it"):
        opener()


def test_the_revision_jump_exceeds_any_possible_write_rate() -> None:
    assert revision_beyond(7, idle=0) == 2 * MIN_JUMP
    assert revision_beyond(7, idle=-5) == 2 * MIN_JUMP
    day = 86_400
    assert revision_beyond(7, idle=day) > day * 20_000


async def test_an_interrupted_first_start_is_not_mistaken_for_data_loss(tmp_path: Path, opener: Opener) -> None:
    await opener().close()
    for name in ("store.db-wal", "store.db-shm"):
        (opener.path / name).unlink(missing_ok=True)
    (opener.path / "store.db").write_bytes(b"")
    (opener.path / "high-water").write_text(f"{RESERVE} reserved\n")
    store: Store = opener()
    assert (store.revision, store.compacted) == (RESERVE, 0)
