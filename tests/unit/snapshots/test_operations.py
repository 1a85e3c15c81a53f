"""Save and retention, with data of any size and age."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from herder.snapshots import files, operations
from herder.snapshots.config import Config, EtcdConfig, StoreConfig
from herder.snapshots.data import Content, Data
from herder.snapshots.directory import Directory
from herder.snapshots.embedded import StoreData
from herder.snapshots.errors import SnapshotError
from herder.snapshots.etcd import HASH, EtcdData


class FakeData:
    """Counts the copies that are written."""

    def __init__(self, size: int = 1000) -> None:
        self._size = size
        self.copies = 0

    def size(self) -> int:
        return self._size

    def save(self, target: Path) -> None:
        self.copies += 1
        target.write_bytes(b"x" * self._size)

    def verify(self, file: Path) -> Content:
        return Content(1, "1")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config("kubeadm", tmp_path / "snapshots", "server-1", 0, False, {}, None, None, None)


def save(config: Config, data: FakeData | None = None, name: str = "daily") -> str:
    return operations.save(config, cast(Data, data or FakeData()), name)[0].name


def names(config: Config) -> set[str]:
    return {each.name for each in Directory(config.directory).records()}


# --- room on the disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compress", "needed"), [(False, 1000), (True, 2000)])
def test_a_snapshot_that_would_fill_the_disk_is_not_begun(
    config: Config, monkeypatch: pytest.MonkeyPatch, compress: bool, needed: int
) -> None:
    config = replace(config, compress=compress)
    data = FakeData()
    monkeypatch.setattr(operations, "room", lambda _directory: needed - 1)
    with pytest.raises(SnapshotError, match=r"the disk is full: it needs up to .* free some space"):
        save(config, data)
    assert (data.copies, names(config)) == (0, set())
    assert not list(config.directory.glob("*.part*"))
    monkeypatch.setattr(operations, "room", lambda _directory: needed)
    saved = save(config, data)
    assert (data.copies, names(config)) == (1, {saved})


def test_the_message_has_both_sizes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "room", lambda _directory: 3 << 19)
    with pytest.raises(SnapshotError, match=r"up to 20.0 MiB, and /.*/snapshots has room for 1.5 MiB;"):
        save(config, FakeData(20 << 20))


def test_a_part_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = type("Usage", (), {"total": 100 << 30, "free": 3 << 30})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _path: usage)
    assert files.room(tmp_path) == 2 << 30


def test_the_size_of_etcd_is_that_of_its_database(tmp_path: Path) -> None:
    empty = EtcdConfig("a", "", "", "", "", "", "", "", tmp_path, tmp_path, tmp_path, 1.0)
    assert EtcdData(empty).size() == 0
    (tmp_path / "member" / "snap").mkdir(parents=True)
    (tmp_path / "member" / "snap" / "db").write_bytes(b"x" * 5000)
    assert EtcdData(empty).size() == 5000 + HASH


def test_the_size_of_a_store_contains_its_log(tmp_path: Path) -> None:
    store = StoreData(StoreConfig(tmp_path, tmp_path / "encryption.key"))
    assert store.size() == 0
    (tmp_path / "store.db").write_bytes(b"x" * 5000)
    (tmp_path / "store.db-wal").write_bytes(b"x" * 300)
    assert store.size() == 5300
