"""State stores, which load and save the files of a machine's directory durably."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from herder.machine.errors import MachineError
from herder.machine.state.archive import SKIPPED_SUFFIXES

UNFINISHED = ".herder-tmp"
IMAGE_PATH = "/home/machine/.docker/machine"
"""The store path in rancher-machine's image; it finds records only under these paths."""


class RecordConflict(MachineError):
    """The record has changed since it was read; nothing is written, so that nothing is lost."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'another process works on machine "{name}": its state has changed since it was read',
            "wait for that process, then try again",
        )


class Store(Protocol):
    def directory(self, name: str) -> str:
        """Return the machine's absolute directory, real or virtual; records contain it."""

    def names(self) -> list[str]: ...

    def load(self, name: str) -> dict[str, bytes] | None:
        """Return the files by relative path; None if there is no such machine."""

    def save(self, name: str, files: Mapping[str, bytes]) -> None:
        """Save all files durably. Raises `Overtaken` instead of overwriting changes."""

    def remove(self, name: str) -> None: ...


class DirectoryStore:
    """docker-machine's layout: `<path>/machines/NAME/`, private to its owner."""

    def __init__(self, path: Path) -> None:
        self._machines = path.absolute() / "machines"
        self._seen: dict[str, dict[str, bytes]] = {}

    def directory(self, name: str) -> str:
        return str(self._machines / name)

    def names(self) -> list[str]:
        if not self._machines.is_dir():
            return []
        return sorted(entry.name for entry in self._machines.iterdir() if entry.is_dir() and entry.name[0] != ".")

    def load(self, name: str) -> dict[str, bytes] | None:
        found = _read(self._machines / name)
        self._seen[name] = found or {}
        return found

    def save(self, name: str, files: Mapping[str, bytes]) -> None:
        directory = self._machines / name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(directory):
            before = _read(directory) or {}
            if before != self._seen.get(name, {}):
                raise RecordConflict(name)
            # config.json last: a new key is on disk before the record refers to it.
            for path in sorted(files, key=lambda path: (path == "config.json", path)):
                if files[path] != before.get(path):
                    _write(directory / path, files[path])
            for path in before.keys() - files.keys():
                (directory / path).unlink(missing_ok=True)
        self._seen[name] = dict(files)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._machines / name, ignore_errors=False)
        self._seen.pop(name, None)


def _read(directory: Path) -> dict[str, bytes] | None:
    if not directory.is_dir():
        return None
    paths = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(SKIPPED_SUFFIXES))
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths if not path.name.endswith(UNFINISHED)}


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    """Write atomically and privately."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{UNFINISHED}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
