"""Stop and start the control plane of a kubeadm server: the kubelet runs a pod while its manifest exists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import make_private, sync

INTERVAL = 0.2

ETCD, API_SERVER = "etcd", "kube-apiserver"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
"""Clients of the API server on the same machine; what they do without it has no effect."""


class StaticPods:
    """`runs` returns whether a process of this name exists."""

    def __init__(self, manifests: Path, aside: Path, timeout: float, runs: Callable[[str], bool]) -> None:
        self._manifests = manifests
        self._aside = aside
        self._timeout = timeout
        self._runs = runs

    @property
    def exist(self) -> bool:
        """Whether this machine is a server already. A new one gets its manifests after the data was restored."""
        return any(self._path(name) is not None for name in (API_SERVER, ETCD))

    def check(self) -> None:
        for name in (API_SERVER, ETCD):
            if self.exist and self._path(name) is None:
                raise SnapshotError(f"{self._manifests / name}.yaml: does not exist; repair the server first")

    def stop(self) -> None:
        """Stop the API server first: without its etcd, it takes minutes to end."""
        make_private(self._aside)
        for name in (API_SERVER, ETCD):
            self._move(name, self._manifests, self._aside)
            self._wait(name)

    def start(self) -> None:
        for name in (ETCD, API_SERVER):
            self._move(name, self._aside, self._manifests)

    def start_etcd(self) -> None:
        self._move(ETCD, self._aside, self._manifests)

    def stop_all(self) -> None:
        """Stop the whole control plane. It stays stopped when the machine restarts."""
        if self.exist:
            make_private(self._aside)
            for name in CONTROLLERS:
                self._move(name, self._manifests, self._aside)
            self.stop()

    def start_all(self) -> None:
        self.start()
        for name in CONTROLLERS:
            self._move(name, self._aside, self._manifests)

    def forget_etcd(self) -> None:
        """Remove the manifest of a stopped etcd, which names the members of its former cluster."""
        (self._aside / f"{ETCD}.yaml").unlink(missing_ok=True)
        if self._aside.is_dir():
            sync(self._aside)

    def _path(self, name: str) -> Path | None:
        places = (place / f"{name}.yaml" for place in (self._manifests, self._aside))
        return next((path for path in places if path.is_file()), None)

    def _move(self, name: str, source: Path, target: Path) -> None:
        if (source / f"{name}.yaml").exists():
            (source / f"{name}.yaml").replace(target / f"{name}.yaml")
            sync(target)
            sync(source)

    def _wait(self, name: str) -> None:
        end = time.monotonic() + self._timeout
        while self._runs(name):
            if time.monotonic() > end:
                raise SnapshotError(
                    f"{name}: still runs {self._timeout:g} s after its manifest was removed; check the kubelet"
                )
            time.sleep(INTERVAL)


def process_lookup(data: Path, endpoint: str) -> Callable[[str], bool]:
    """Look for the processes of these pods.

    A host can run other servers, such as those of machines in containers. So etcd must use this data directory, and
    the API server this endpoint of etcd.
    """
    wanted = {ETCD: ("--data-dir", str(data)), API_SERVER: ("--etcd-servers", endpoint)}

    def runs(name: str) -> bool:
        flag, value = wanted[name]
        return any(
            os.path.basename(command[0]) == name and value in _value(command, flag).split(",")
            for command in _commands()
        )

    return runs


def _value(command: list[str], flag: str) -> str:
    for number, word in enumerate(command):
        name, separator, value = word.partition("=")
        if name == flag:
            return value if separator else "".join(command[number + 1 : number + 2])
    return ""


def _commands() -> Iterator[list[str]]:
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read(1 << 20).decode("utf-8", "replace").split("\0")
        except OSError:  # it has ended
            continue
        if words[0]:
            yield words
