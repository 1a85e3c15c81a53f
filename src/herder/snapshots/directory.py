"""Local snapshots: files with mode 0600 in a directory with mode 0700, and their metadata in `.metadata`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from herder.snapshots.errors import NotFound, SnapshotError
from herder.snapshots.files import make_private, remove, sync, write_durably
from herder.snapshots.names import PARTIAL, is_snapshot
from herder.snapshots.records import LIMIT, Record, found


class Directory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata = path / ".metadata"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory, and hold its lock: operations that change it run one at a time."""
        make_private(self.path)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SnapshotError(
                    f"{self.path}: another snapshot operation runs; try again when it is done"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def records(self) -> list[Record]:
        if not self.path.is_dir():
            return []
        names = sorted(each.name for each in self.path.iterdir() if is_snapshot(each.name) and each.is_file())
        return [self._found(name) for name in names]

    def get(self, name: str) -> Record:
        if not (self.path / name).is_file():
            raise NotFound(f"snapshot {name}: does not exist in {self.path}")
        return self._found(name)

    def partial(self, name: str) -> Path:
        """Return the path that a new snapshot is written to."""
        return self.path / (name + PARTIAL)

    def commit(self, record: Record) -> Record:
        """Give a complete snapshot its name. The metadata is written first: no snapshot is ever without it."""
        make_private(self._metadata)
        write_durably(self._metadata / record.name, record.encoded())
        self.partial(record.name).rename(self.path / record.name)
        sync(self.path)
        return record.at(self._location(record.name))

    def discard(self, name: str) -> None:
        """Remove all files of a snapshot that failed."""
        for path in (*self.path.glob(f"{name}*{PARTIAL}*"), self.path / name, self._metadata / name):
            with suppress(OSError):
                remove(path)

    def delete(self, name: str) -> bool:
        exists = (self.path / name).exists()
        (self.path / name).unlink(missing_ok=True)
        sync(self.path)
        (self._metadata / name).unlink(missing_ok=True)
        return exists

    def clean(self) -> None:
        """Remove the remains of operations that were killed."""
        for path in self.path.glob(f"*{PARTIAL}*"):
            remove(path)
        if self._metadata.is_dir():
            for path in self._metadata.iterdir():
                if not (self.path / path.name).exists():
                    path.unlink()

    def _found(self, name: str) -> Record:
        return found(name, (self.path / name).stat().st_size, self._location(name), self._kept(name))

    def _kept(self, name: str) -> bytes | None:
        try:
            with (self._metadata / name).open("rb") as file:
                return file.read(LIMIT)
        except FileNotFoundError:
            return None

    def _location(self, name: str) -> str:
        return (self.path / name).as_uri()
