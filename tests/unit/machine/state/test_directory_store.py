"""Records on disk, in the layout of docker-machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from herder.machine.state.store import DirectoryStore, RecordConflict

FILES = {"config.json": b"{}", "id_rsa": b"key"}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_saved_record_is_loaded_by_the_next_process(store: DirectoryStore, tmp_path: Path) -> None:
    store.save("m1", FILES)
    assert DirectoryStore(tmp_path).load("m1") == FILES
    assert DirectoryStore(tmp_path).names() == ["m1"]


def test_files_are_private_to_their_owner(store: DirectoryStore, tmp_path: Path) -> None:
    store.save("m1", FILES)
    directory = tmp_path / "machines" / "m1"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_a_record_written_by_another_process_is_not_overwritten(store: DirectoryStore, tmp_path: Path) -> None:
    store.save("m1", FILES)
    other = DirectoryStore(tmp_path)
    other.load("m1")
    other.save("m1", {**FILES, "config.json": b'{"theirs": 1}'})
    with pytest.raises(RecordConflict, match="another process works on machine"):
        store.save("m1", {**FILES, "config.json": b'{"ours": 1}'})
    assert DirectoryStore(tmp_path).load("m1") == {**FILES, "config.json": b'{"theirs": 1}'}


def test_only_one_of_two_concurrent_creations_succeeds(store: DirectoryStore, tmp_path: Path) -> None:
    store.load("m1")
    DirectoryStore(tmp_path).save("m1", FILES)
    with pytest.raises(RecordConflict):
        store.save("m1", {"config.json": b"other"})


def test_temporary_files_of_a_killed_writer_are_ignored(store: DirectoryStore, tmp_path: Path) -> None:
    store.save("m1", FILES)
    (tmp_path / "machines/m1/.config.json.herder-tmp").write_bytes(b"half")
    again = DirectoryStore(tmp_path)
    assert again.load("m1") == FILES
    again.save("m1", {**FILES, "config.json": b"new"})


def test_removed_files_are_deleted_and_disks_are_kept(store: DirectoryStore, tmp_path: Path) -> None:
    store.save("m1", FILES)
    (tmp_path / "machines/m1/disk.vmdk").write_bytes(b"disk")
    store.save("m1", {"config.json": b"{}"})
    assert sorted(path.name for path in (tmp_path / "machines/m1").iterdir()) == ["config.json", "disk.vmdk"]


def test_a_removed_machine_is_unknown(store: DirectoryStore) -> None:
    store.save("m1", FILES)
    store.remove("m1")
    assert (store.names(), store.load("m1")) == ([], None)
