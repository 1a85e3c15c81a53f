"""File operations below a directory descriptor are safe while a thread changes the tree as a pod could."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from herder.engine.client.client import Client
from herder.engine.runner.isolation import HostUser
from herder.engine.runner.pod.sources import NotReady
from herder.engine.runner.pod.volumes import Volumes
from herder.engine.runner.shim import beneath, kernel
from herder.engine.runner.shim.beneath import closing, make_directories, open_beneath, remove_tree, write_file
from tests.unit.engine.runner.symlink_race import swap_with_symlink

ROUNDS = 3000
REFUSED = r"symbolic links|Not a directory|leaves its directory|No such file"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    (place / "b").mkdir(parents=True)
    (place / "b").chmod(0o700)
    (place / "secret").write_text("of the host")
    (place / "secret").chmod(0o600)
    return place


def untouched(outside: Path) -> bool:
    return (
        sorted(os.listdir(outside)) == ["b", "secret"]
        and os.listdir(outside / "b") == []
        and stat.S_IMODE((outside / "b").stat().st_mode) == 0o700
        and (outside / "b").stat().st_uid == os.geteuid()
        and (outside / "secret").read_text() == "of the host"
        and stat.S_IMODE((outside / "secret").stat().st_mode) == 0o600
    )


@pytest.mark.parametrize("sub_path", ["a/b", "a/new/deeper"])
def test_a_sub_path_is_not_created_outside_its_volume(tmp_path: Path, outside: Path, sub_path: str) -> None:
    pod = {"metadata": {}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}, "status": {}}
    user = HostUser.named() if os.geteuid() == 0 else None
    volumes = Volumes(cast("Client", None), pod, tmp_path / "volumes", user=user, node="", address="")
    (tmp_path / "volumes" / "v" / "a").mkdir(parents=True)
    with swap_with_symlink(tmp_path / "volumes" / "v" / "a", outside):
        for _ in range(ROUNDS):
            with suppress(NotReady):
                volumes.mounts({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": sub_path}]})
    assert untouched(outside)


def test_a_file_is_not_written_outside_its_volume(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "v" / "a").mkdir(parents=True)
    with closing(os.open(tmp_path / "v", os.O_RDONLY)) as root, swap_with_symlink(tmp_path / "v" / "a", outside):
        for _ in range(ROUNDS):
            with suppress(OSError):
                write_file(root, "a/secret", b"of the pod", mode=0o777, owner=(65534, 65534))
    assert untouched(outside)


def test_nothing_is_removed_outside_the_directory(tmp_path: Path, outside: Path) -> None:
    for _ in range(20):
        (tmp_path / "pod" / "a" / "b").mkdir(parents=True)
        (tmp_path / "pod" / "a" / "secret").touch()
        racing = swap_with_symlink(tmp_path / "pod" / "a", outside)
        with closing(os.open(tmp_path, os.O_RDONLY)) as root, racing, suppress(OSError):
            remove_tree(root, "pod")
        assert untouched(outside)
        with closing(os.open(tmp_path, os.O_RDONLY)) as root:
            remove_tree(root, "pod")


def test_a_deep_tree_with_closed_directories_is_removed(tmp_path: Path, outside: Path) -> None:
    top = tmp_path / "pod"
    top.mkdir()
    (top / "link").symlink_to(outside)
    current = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.symlink(outside, "link", dir_fd=inner)
        os.close(current)
        current = inner
    os.fchmod(current, 0)
    os.close(current)
    with closing(os.open(tmp_path, os.O_RDONLY)) as root:
        remove_tree(root, "pod")
    assert not top.exists()
    assert untouched(outside)


def old_kernel(_directory: int, path: str, _flags: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), path)


@pytest.mark.parametrize("call", [kernel.open_beneath, old_kernel])
def test_no_link_is_followed_with_or_without_openat2(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[int, str, int], int]
) -> None:
    monkeypatch.setattr(beneath.kernel, "open_beneath", call)
    (tmp_path / "v" / "a" / "b").mkdir(parents=True)
    (tmp_path / "v" / "link").symlink_to(outside)
    (tmp_path / "v" / "a" / "inside").symlink_to("b")
    with closing(os.open(tmp_path / "v", os.O_RDONLY)) as root:
        with closing(open_beneath(root, "/a//./b/")) as found:
            assert os.path.samestat(os.fstat(found), (tmp_path / "v" / "a" / "b").stat())
        for path in ("link", "link/secret", "a/inside", "../outside", "a/../../outside", "absent", "a\0b"):
            with pytest.raises(OSError, match=REFUSED):
                open_beneath(root, path)
        for path in ("link/new", "../new", "a/inside/new"):
            with pytest.raises(OSError, match=REFUSED):
                make_directories(root, path)
    assert untouched(outside)
