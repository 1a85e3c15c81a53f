"""Directory of a store: its lock, and the high-water mark of assigned revisions.

A resourceVersion must never be assigned twice, even if the database is replaced by an older copy. The directory
therefore records a *high-water mark* outside the database. While the store is open, the mark is a reservation ahead of
the revisions in use (renewed every RESERVE revisions); a clean close makes it exact. Opening compares:

* exact and equal to the database: nothing happened in between; continue with the next revision.
* a reservation that covers the database: the store was not closed cleanly; continue after the reservation.
* anything else, or a database marked as a backup: the database was replaced. Continue far beyond any revision that the
  store may have assigned since (`revision_beyond`), and treat everything before as compacted, so that watches restart.

A rollback of the whole directory including the high-water mark, as by a disk snapshot, cannot be detected.
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
MIN_JUMP = 1_000_000
MAX_REVISIONS_PER_SECOND = 50_000
"""More revisions than a store can commit in sustained operation; bounds what it assigned since its backup was made."""

DATABASE = "store.db"
RESTORED = "store.db.restored"
BEFORE_RESTORE = "before-restore"


class HighWater(NamedTuple):
    """Highest revision that counts as assigned. If not `exact`, it is a reservation."""

    revision: int
    exact: bool


class Directory:
    """An open store directory, locked until `close`."""

    def __init__(self, path: Path) -> None:
        make_directory(path)
        self.database = path / DATABASE
        self._high_water_file = path / "high-water"
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
        """Mark revisions up to this one as assigned."""
        self._write(HighWater(revision, exact=False))

    def record_exact(self, revision: int) -> None:
        """Record on a clean close that no revision beyond this one was assigned."""
        self._write(HighWater(revision, exact=True))

    def close(self) -> None:
        os.close(self._lock)

    def _read(self) -> HighWater | None:
        try:
            text = self._high_water_file.read_text()
        except FileNotFoundError:
            return None
        try:
            number, kind = text.split()
            return HighWater(int(number), {"exact": True, "reserved": False}[kind])
        except (ValueError, KeyError):
            raise StoreError(
                f"{self._high_water_file} is damaged; remove it to continue far beyond the revisions in use"
            ) from None

    def _write(self, high_water: HighWater) -> None:
        kind = "exact" if high_water.exact else "reserved"
        replace_durably(self._high_water_file, f"{high_water.revision} {kind}\n".encode())
        self.high_water = high_water


class Start(NamedTuple):
    """Revision that an opened store continues from, and whether everything before it must count as compacted."""

    revision: int
    replaced: bool


def starting_revision(directory: Directory, *, database: int, backup: bool, idle: float) -> Start:
    """Compare the high-water mark with the database's last revision. `idle` is the time since its last write."""
    high_water = directory.high_water
    if directory.new:
        return Start(0, replaced=False)
    if high_water is not None and not backup and not directory.missing:
        if high_water.exact and high_water.revision == database:
            return Start(database, replaced=False)
        if not high_water.exact and high_water.revision - 2 * RESERVE <= database <= high_water.revision:
            return Start(high_water.revision, replaced=False)
    return Start(revision_beyond(max(database, high_water.revision if high_water else 0), idle), replaced=True)


def revision_beyond(revision: int, idle: float) -> int:
    """Return a revision that no store can reach within `idle` seconds after `revision`, rounded up to the next
    million."""
    jump = max(MIN_JUMP, int(max(0.0, idle) * MAX_REVISIONS_PER_SECOND))
    return ((revision + jump) // MIN_JUMP + 1) * MIN_JUMP


def finish_restore(path: Path) -> None:
    """Move a restored database into place and keep the current one in a subdirectory. Safe to repeat after a crash."""
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
    """Lock the directory of a store that must not be open."""
    make_directory(path)
    lock = _lock(path / "lock")
    try:
        yield
    finally:
        os.close(lock)


def lock_holder(path: Path) -> int | None:
    """ID of the process that has the store open; None if it is closed."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        return int(holder) if holder.isdecimal() else None
    finally:
        os.close(descriptor)
    return None


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreLocked(f"store in {path.parent} is in use by process {holder}; stop it first") from None
    os.truncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
