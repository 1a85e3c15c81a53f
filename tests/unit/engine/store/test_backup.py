"""A restore returns the objects of the backup and never assigns a revision twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from herder.engine.store import (
    Cipher,
    Compacted,
    Encode,
    Record,
    RevisionConflict,
    Store,
    StoreError,
    StoreLocked,
    restore,
)
from herder.engine.store.directory import BEFORE_RESTORE, MAX_REVISIONS_PER_SECOND, MIN_JUMP, RESTORED

from .conftest import Opener, delete, fill, key, put, values


async def test_a_backup_is_consistent_while_writes_continue(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await asyncio.gather(*(store.write(put(f"p{n}")) for n in range(2_000)))
    copying = asyncio.ensure_future(store.backup(tmp_path / "backup"))
    written = 2_000
    while not copying.done():
        await store.write(put("a"), put("b"))
        written += 2
    revision = await copying
    assert 2_000 <= revision <= written
    restore(tmp_path / "backup", tmp_path / "restored")
    again = opener(tmp_path / "restored")
    both = [again.get(key("a")), again.get(key("b"))]
    assert sorted(record.revision for record in both if record) == (
        [revision - 1, revision] if revision > 2_000 else []
    )
    assert again.count("pods") == 2_000 + sum(record is not None for record in both)


async def test_a_backup_is_one_private_file_and_overwrites_nothing(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "a")
    target = tmp_path / "out" / "backup"
    target.parent.mkdir()
    assert await store.backup(target) == 1
    assert os.listdir(target.parent) == ["backup"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="already exists"):
        await store.backup(target)


async def test_an_in_memory_store_can_be_backed_up(opener: Opener, tmp_path: Path) -> None:
    store = Store.open(None, clock=opener.clock)
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    restore(tmp_path / "backup", opener.path)
    assert values(opener().list("pods")) == ["a:@1", "b:@2"]


async def test_an_in_place_restore_skips_all_revisions_assigned_since(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    await fill(store, "cd")
    await store.write(put("a", "newer"))
    given_out = store.revision
    await store.close()
    restore(tmp_path / "backup", opener.path)
    again = opener()
    assert values(again.list("pods")) == ["a:@1", "b:@2"]
    assert again.revision > given_out
    [record] = await again.write(put("e"))
    assert record.revision == again.revision > given_out


async def test_a_restored_store_expires_old_watches_and_lists(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    await fill(store, "cd")
    await store.close()
    restore(tmp_path / "backup", opener.path)
    again = opener()
    for revision in (1, 2, 3, 4):
        with pytest.raises(Compacted):
            again.watch("pods", since=revision)
        with pytest.raises(Compacted):
            await again.list_at("pods", "", revision)
    watch = again.watch("pods", since=again.revision)
    await again.write(put("a"))
    assert len(watch.take()) == 1


async def test_a_write_based_on_a_revision_before_the_restore_conflicts(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    [before] = await store.write(put("a"))
    await store.backup(tmp_path / "backup")
    [after] = await store.write(put("a", "newer"))
    await store.close()
    restore(tmp_path / "backup", opener.path)
    again = opener()
    with pytest.raises(RevisionConflict):
        again.write(put("a", expected=after.revision))
    await again.write(put("a", expected=before.revision))


async def test_a_restore_elsewhere_skips_revisions_of_the_running_original(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    opener.clock.now += 3_600
    restore(tmp_path / "backup", tmp_path / "elsewhere")
    assert opener(tmp_path / "elsewhere").revision > 2 + 3_600 * MAX_REVISIONS_PER_SECOND


async def test_restoring_the_same_backup_twice_skips_further_each_time(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    await store.close()
    revisions = [store.revision]
    for _ in range(3):
        restore(tmp_path / "backup", opener.path)
        store = opener()
        await store.write(put("c", expected=0))
        revisions.append(store.revision)
        await store.close()
    assert revisions == sorted(set(revisions))
    assert all(later - earlier > MIN_JUMP // 2 for earlier, later in itertools.pairwise(revisions))


async def test_a_manually_copied_backup_is_treated_as_a_restore(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    await store.close()
    shutil.copy(tmp_path / "backup", opener.path / "store.db")
    again = opener()
    assert again.revision == again.compacted > MIN_JUMP


async def test_restored_objects_are_rewritten_once_with_new_revisions(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    await store.write(put("a"))
    last = store.revision
    await store.close()
    restore(tmp_path / "backup", opener.path)
    again = opener()

    def same_value(record: Record) -> Encode:
        return lambda revision: record.value

    assert await again.renew(same_value) == 2
    assert all(record.revision > last for record in again.all())
    assert await again.renew(same_value) == 0
    await again.close()
    assert await opener().renew(same_value) == 0


async def test_backup_and_restore_of_a_restored_store(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "one")
    restore(tmp_path / "one", tmp_path / "second")
    second = opener(tmp_path / "second")
    assert await second.backup(tmp_path / "two") == second.revision
    restore(tmp_path / "two", tmp_path / "third")
    assert opener(tmp_path / "third").revision > second.revision


async def test_the_replaced_store_is_kept_aside(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "a")
    await store.backup(tmp_path / "backup")
    await fill(store, "bc")
    await store.close()
    restore(tmp_path / "backup", opener.path)
    await opener().close()
    aside = opener(opener.path / BEFORE_RESTORE)
    assert values(aside.list("pods")) == ["a:@1", "b:@2", "c:@3"]


async def test_an_interrupted_restore_is_finished_or_has_no_effect(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "a")
    await store.backup(tmp_path / "backup")
    await fill(store, "b")
    crash = tmp_path / "crash"
    shutil.copytree(opener.path, crash)  # including the write-ahead log
    restore(tmp_path / "backup", tmp_path / "other")
    prepared = (tmp_path / "other" / "store.db").read_bytes()
    for moved in range(4):
        image = tmp_path / f"image-{moved}"
        shutil.copytree(crash, image)
        (image / RESTORED).write_bytes(prepared)
        aside = image / BEFORE_RESTORE
        aside.mkdir()
        for suffix in ("-wal", "-shm", "")[:moved]:
            (image / f"store.db{suffix}").rename(aside / f"store.db{suffix}")
        again = opener(image)
        assert values(again.list("pods")) == ["a:@1"]
        assert again.revision > MIN_JUMP
        assert not (image / RESTORED).exists()


async def test_an_open_store_cannot_be_restored_over(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await store.backup(tmp_path / "backup")
    with pytest.raises(StoreLocked):
        restore(tmp_path / "backup", opener.path)


async def test_an_invalid_backup_is_rejected_and_changes_nothing(opener: Opener, tmp_path: Path) -> None:
    store = opener()
    await fill(store, "a")
    await store.backup(tmp_path / "whole")
    await store.close()
    with sqlite3.connect(tmp_path / "foreign") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    (tmp_path / "text").write_text("not a database at all, " * 100)
    (tmp_path / "empty").write_bytes(b"")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    for name in ("absent", "foreign", "text", "empty", "cut"):
        with pytest.raises(StoreError):
            restore(tmp_path / name, opener.path)
    assert sorted(os.listdir(opener.path)) == ["high-water", "lock", "store.db"]
    again = opener()
    assert (again.revision, values(again.list("pods"))) == (1, ["a:@1"])


async def test_encrypted_values_stay_encrypted_in_a_backup(opener: Opener, tmp_path: Path) -> None:
    cipher = Cipher.load_or_create(tmp_path / "key")
    secret = key("s", resource="secrets")
    store = opener(cipher=cipher, encrypted=lambda resource: resource == "secrets")
    await store.write(put(secret, "hunter2"))
    await store.write(delete(secret))
    await store.write(put(secret, "hunter3"))
    await store.backup(tmp_path / "backup")
    assert b"hunter" not in (tmp_path / "backup").read_bytes()
    restore(tmp_path / "backup", tmp_path / "restored")
    again = opener(tmp_path / "restored", cipher=cipher)
    assert values(again.list("secrets")) == ["s:hunter3@3"]


async def test_a_restarted_store_was_not_restored(opener: Opener) -> None:
    store = opener()
    await fill(store, "ab")
    assert store.restored is None
    await store.close()
    assert opener().restored is None, "a restart is no restore"


@pytest.mark.parametrize("copied", [False, True], ids=["restored", "copied"])
async def test_each_restore_has_its_own_revision(opener: Opener, tmp_path: Path, copied: bool) -> None:
    """A backup that was copied over the database by hand is recognized too."""
    store = opener()
    await fill(store, "ab")
    await store.backup(tmp_path / "backup")
    backup_at = opener.clock.now
    await store.close()
    known = []
    for _ in range(2):
        opener.clock.now += 60
        if copied:
            shutil.copy(tmp_path / "backup", opener.path / "store.db")
        else:
            restore(tmp_path / "backup", opener.path)
        store = opener()
        assert store.restored is not None
        assert store.restored.backup_at == backup_at
        known.append(store.restored.revision)
        await store.close()
        store = opener()
        assert store.restored is not None
        assert store.restored.revision == known[-1], "a restart is no further restore"
        await store.close()
    assert known[0] < known[1]
