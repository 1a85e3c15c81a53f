"""Crashes between any two renames of a restore of etcd: the old data is never lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from herder.snapshots.config import EtcdConfig
from herder.snapshots.stores.etcd import EtcdData
from herder.snapshots.stores.static_pods import StaticPods

STAGED = {"hadMember": True}


class Crash(Exception):
    pass


@pytest.fixture
def data(tmp_path: Path) -> EtcdData:
    manifests, aside = tmp_path / "manifests", tmp_path / "aside"
    manifests.mkdir()
    for name in ("etcd", "kube-apiserver"):
        (manifests / f"{name}.yaml").touch()
    config = EtcdConfig("n", "", "", "", "", "", "", "", tmp_path / "etcd", manifests, aside, 1)
    return EtcdData(config, StaticPods(manifests, aside, 1, lambda name: False))


def place(root: Path) -> None:
    """Write the old data and the staged data."""
    for name, content in (("member", "old"), ("restore-1/member", "new")):
        path = root / "etcd" / name
        path.mkdir(parents=True)
        (path / "db").write_text(content)


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Crash before or after the n-th rename."""
    rename, calls = Path.rename, itertools.count()

    def crashing(path: Path, target: Path) -> Path:
        reached = next(calls) == number
        if reached and not after:
            raise Crash
        result = rename(path, target)
        if reached:
            raise Crash
        return result

    monkeypatch.setattr(Path, "rename", crashing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_replacement_is_completed(
    data: EtcdData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    place(tmp_path)
    with monkeypatch.context() as patch:
        crash_at(patch, number, after=after)
        with pytest.raises(Crash):
            data.replace(tmp_path, "1", STAGED)
    data.replace(tmp_path, "1", STAGED)
    data.replace(tmp_path, "1", STAGED)
    assert (tmp_path / "etcd/member/db").read_text() == "new"
    assert (tmp_path / "etcd/member-old-1/db").read_text() == "old"


@pytest.mark.parametrize("replaced", [0, 1, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_an_undo_is_completed(
    data: EtcdData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int, number: int, after: bool
) -> None:
    """`replaced` is the number of renames before the restore failed."""
    place(tmp_path)
    with monkeypatch.context() as patch:
        crash_at(patch, replaced, after=False)
        if replaced < 2:
            with pytest.raises(Crash):
                data.replace(tmp_path, "1", STAGED)
        else:
            data.replace(tmp_path, "1", STAGED)
    with monkeypatch.context() as patch:
        crash_at(patch, number, after=after)
        try:
            data.undo("1", STAGED)
        except Crash:
            data.undo("1", STAGED)
    data.undo("1", STAGED)
    data.resume()
    assert [path.name for path in (tmp_path / "etcd").iterdir()] == ["member"]
    assert (tmp_path / "etcd/member/db").read_text() == "old"
    assert {path.name for path in (tmp_path / "manifests").iterdir()} == {"etcd.yaml", "kube-apiserver.yaml"}
