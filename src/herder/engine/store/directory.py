"""The directory of a store: who has it open, and the highest revision that was ever given out of it.

A resourceVersion must never be given out twice, not even when the database is replaced by an older copy. So the
directory remembers, outside the database, a *high water*: while the store is open it is a reservation ahead of
what is in use (renewed every RESERVE revisions); after a clean close it is exact. An open compares:

* exact and equal to the database: nothing happened in between, go on where it was;
* a reservation that covers the database: it was not closed cleanly, go on after the reservation;
* anything else, or a database that says it is a backup: it was replaced. Go on far beyond whatever the store may
  have given out since (`beyond`), and call everything before compacted, so that old watches start anew.

What cannot be noticed is a roll-back of the whole directory, high water included, as a disk snapshot does it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from herder.engine.store.errors import StoreError, StoreLocked
from herder.engine.store.files import make_directory, replace_durably, sync_directory

RESERVE = 10_000
LEAST_JUMP = 1_000_000
FASTEST_PER_SECOND = 50_000
"""More revisions than a store can commit, sustained; bounds what one has given out since its backup was made."""

DATABASE = "store.db"
RESTORED = "store.db.restored"
BEFORE_RESTORE = "before-restore"


class HighWater(NamedTuple):
    revision: int
    exact: bool


class Directory:
    """One opened directory, locked until `close`."""

    def __init__(self, path: Path) -> None:
        make_directory(path)
        self.database = path / DATABASE
        self._high_water = path / "high-water"
        self._lock = _lock(path / "lock")
        try:
            finish_restore(path)
            self.high_water = self._read()
            self.missing = not self.database.exists()
            self.new = self.missing and self.high_water is None
            if self.new:
                self.reserve(RESERVE)
        except BaseException:
            self.close()
            raise

    def reserve(self, revision: int) -> None:
        """Make sure that revisions up to this one count as given out."""
        self._write(HighWater(revision, exact=False))

    def settle(self, revision: int) -> None:
        """The store closes cleanly: nothing beyond this revision was given out."""
        self._write(HighWater(revision, exact=True))

    def close(self) -> None:
        os.close(self._lock)

    def _read(self) -> HighWater | None:
        try:
            text = self._high_water.read_text()
        except FileNotFoundError:
            return None
        try:
            number, kind = text.split()
            return HighWater(int(number), {"exact": True, "reserved": False}[kind])
        except (ValueError, KeyError):
            raise StoreError(
                f"{self._high_water} is damaged; remove it to let revisions go on far beyond the present ones"
            ) from None

    def _write(self, high_water: HighWater) -> None:
        kind = "exact" if high_water.exact else "reserved"
        replace_durably(self._high_water, f"{high_water.revision} {kind}\n".encode())
        self.high_water = high_water


class Start(NamedTuple):
    """Where an opened store goes on: its revision, and whether all before it must count as compacted."""

    revision: int
    replaced: bool


def where_to_start(directory: Directory, *, database: int, backup: bool, idle: float) -> Start:
    """Compare the high water with the database's last revision; `idle` is the time since the database's last write."""
    high_water = directory.high_water
    if directory.new:
        return Start(0, replaced=False)
    if high_water is not None and not backup and not directory.missing:
        if high_water.exact and high_water.revision == database:
            return Start(database, replaced=False)
        if not high_water.exact and high_water.revision - 2 * RESERVE <= database <= high_water.revision:
            return Start(high_water.revision, replaced=False)
    return Start(beyond(max(database, high_water.revision if high_water else 0), idle), replaced=True)


def beyond(revision: int, idle: float) -> int:
    """A revision that no store with that much time since `revision` can have reached: the next full million."""
    jump = max(LEAST_JUMP, int(max(0.0, idle) * FASTEST_PER_SECOND))
    return ((revision + jump) // LEAST_JUMP + 1) * LEAST_JUMP


def finish_restore(path: Path) -> None:
    """Put a restored database in the place of the present one, which is kept aside. Safe to repeat after a crash."""
    restored = path / RESTORED
    if not restored.exists():
        return
    aside = path / BEFORE_RESTORE
    aside.mkdir(mode=0o700, exist_ok=True)
    for suffix in ("-wal", "-shm", ""):
        present = path / (DATABASE + suffix)
        if present.exists():
            present.replace(aside / present.name)
    sync_directory(aside)
    sync_directory(path)
    restored.replace(path / DATABASE)
    sync_directory(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a directory that no store has open."""
    make_directory(path)
    lock = _lock(path / "lock")
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreLocked(f"the store in {path.parent} is in use by process {holder}") from None
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
