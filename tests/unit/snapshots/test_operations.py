"""Save and retention, with data of any size and age."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from herder.snapshots import files, operations, remote
from herder.snapshots.config import Config, EtcdConfig, S3Config, StoreConfig
from herder.snapshots.data import Content, Data
from herder.snapshots.directory import Directory
from herder.snapshots.errors import NotFound, SnapshotError
from herder.snapshots.names import MAX_AHEAD
from herder.snapshots.stores.embedded import StoreData
from herder.snapshots.stores.etcd import HASH, EtcdData


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


# --- names in the future ----------------------------------------------------------------------------------------------

NOW = 1_800_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`now` is the time of the machine."""
    clock = SimpleNamespace(now=NOW)
    for module in (operations, remote):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def plant(config: Config, *seconds: int) -> set[str]:
    planted = {f"daily-server-1-{each}" for each in seconds}
    config.directory.mkdir(mode=0o700, exist_ok=True)
    for name in planted:
        (config.directory / name).write_bytes(b"x")
    return planted


@pytest.mark.parametrize("ahead", [MAX_AHEAD + 1, 86_400, 9_999_999_999 - NOW])
def test_a_name_in_the_future_does_not_stop_snapshots(config: Config, clock: SimpleNamespace, ahead: int) -> None:
    plant(config, NOW + ahead)
    assert save(config) == f"daily-server-1-{NOW}"
    assert save(config) == f"daily-server-1-{NOW + 1}"


def test_names_in_the_future_displace_no_others(config: Config, clock: SimpleNamespace) -> None:
    """A clock was ahead for a while. Each group has its own retention, so neither grows without end."""
    config = replace(config, retention=2)
    planted = plant(config, *(NOW + 86_400 * day for day in (1, 2, 3)))
    saved = []
    for day in range(4):
        clock.now = NOW + day
        saved.append(save(config))
    assert names(config) == {*saved[-2:], *sorted(planted)[-2:]}


@pytest.mark.parametrize("retention", [1, 2, 5])
def test_the_new_snapshot_is_never_deleted(config: Config, clock: SimpleNamespace, retention: int) -> None:
    """Whatever the times of the others are, also at the limit between both groups."""
    config = replace(config, retention=retention)
    plant(config, *range(NOW + MAX_AHEAD - 5, NOW + MAX_AHEAD + 6), 9_999_999_999)
    for _ in range(3):
        assert save(config) in names(config)


def test_a_small_step_of_the_clock_keeps_the_order(config: Config, clock: SimpleNamespace) -> None:
    config = replace(config, retention=1)
    save(config)
    clock.now = NOW - 60
    assert save(config) == f"daily-server-1-{NOW + 1}"
    assert names(config) == {f"daily-server-1-{NOW + 1}"}


def test_a_clock_far_behind_deletes_nothing_newer(config: Config, clock: SimpleNamespace) -> None:
    """The clock of the machine was reset: what was saved before is in the future now."""
    config = replace(config, retention=2)
    kept = plant(config, NOW - 200, NOW - 100)
    clock.now = 1_000
    saved = save(config)
    assert saved == "daily-server-1-100000000"
    assert names(config) == {*kept, saved}


def test_objects_in_the_future_hide_no_others_in_a_list(config: Config, clock: SimpleNamespace) -> None:
    own = f"daily-server-1-{NOW}"
    listed = remote.Remote(
        S3, cast(Any, Objects({own, *(f"x-server-1-{NOW + 10**6 + n}" for n in range(300))}))
    ).records()
    assert len(listed) == remote.MAX_LISTED
    assert listed[-1].name == own


S3 = S3Config("s3.example", "bucket", "", "", "", "")


class Objects:
    """A bucket whose objects have no metadata."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def keys(self, prefix: str) -> list[tuple[str, int]]:
        return [(name, 1) for name in self._names]

    def get_bytes(self, key: str, limit: int) -> bytes:
        raise NotFound(key)
