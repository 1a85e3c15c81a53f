"""Restore a snapshot in steps that survive a crash at any moment.

The journal records the phase before the next one begins. All that can fail for want of space, or because the file is
corrupt, happens in the first phase, while the servers still run. The same command resumes an interrupted restore. A
restore that fails puts the old data back.

A restore of an operation of the manager has the ID of its run. It leaves the server stopped, and keeps the journal: the
manager may not learn that it has completed, and start the other servers with the old data. So it is undone, unless the
operation commits it. The same run restores once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from herder.snapshots.config import Config
from herder.snapshots.data import Data
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import decompress, digest_of, make_private, remove, room, write_durably
from herder.snapshots.names import COMPRESSED, is_compressed
from herder.snapshots.records import LIMIT, Record
from herder.snapshots.remote import Remote

STAGING, STAGED, REPLACED, RESTORED, UNDOING = "staging", "staged", "replaced", "restored", "undoing"
MAX_UNPACKED = 64 << 30  # if the metadata does not say it

Reached = Callable[[str], None]
"""Called at each named step; tests end the process there."""
Source = Callable[[], AbstractContextManager[Optional[Remote]]]
"""Opens the bucket that a snapshot is downloaded from, or returns None for a local one."""


@dataclass(frozen=True)
class Journal:
    """A restore that is not finished, or neither committed nor undone."""

    name: str
    identity: str  # Unix seconds of its start; part of the names of the files beside the data
    phase: str = STAGING
    file: str = ""
    staged: dict[str, Any] = field(default_factory=dict)
    run: str = ""  # ID of the operation's run; empty if the user restores


class Workplace:
    """Files of a restore or a check, in a directory beside the snapshots."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / ".restore"
        self._journal = self.path / "journal.json"

    def journal(self) -> Journal | None:
        try:
            with self._journal.open("rb") as file:
                return Journal(**json.loads(file.read(LIMIT)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise SnapshotError(f"{self._journal}: is damaged; remove it if the servers of this node work") from None

    def record(self, journal: Journal) -> Journal:
        make_private(self.path)
        write_durably(self._journal, json.dumps(journal.__dict__).encode())
        return journal

    def remove(self) -> None:
        self._journal.unlink(missing_ok=True)
        remove(self.path)

    def clear(self) -> None:
        """Remove all but the journal of a restore that can still be undone."""
        journal = self.journal()
        if journal is None or journal.phase != RESTORED:
            self.remove()
            return
        for each in self.path.iterdir():
            if each != self._journal:
                remove(each)

    def refuse_unfinished(self) -> None:
        journal = self.journal()
        if journal is not None and journal.phase not in (STAGING, RESTORED):
            raise SnapshotError(f"snapshot {journal.name}: its restore is unfinished; run the restore again first")


def fetch(
    config: Config, place: Workplace, name: str, remote: Remote | None, expected: str = ""
) -> tuple[Path, Record]:
    """Return a local file with the data of a snapshot, and its record. Size and hash are verified.

    `expected` is the hash that the caller knows. The metadata in S3 proves nothing: who replaces an object can replace
    its metadata too.
    """
    directory = Directory(config.directory)
    make_private(place.path)
    if remote is None:
        record, file = directory.get(name), config.directory / name
        digest = digest_of(file)
    else:
        file = place.path / name
        digest = remote.download(name, file)
        record = remote.record(name, digest.size)
    if record.sha256 and digest.size != record.size:
        raise SnapshotError(
            f"snapshot {name}: {record.location} has {digest.size} bytes instead of {record.size}; it is truncated"
        )
    if record.sha256 and digest.sha256 != record.sha256:
        raise SnapshotError(f"snapshot {name}: {record.location} does not match its SHA-256; the file is corrupt")
    if expected and digest.sha256 != expected:
        raise SnapshotError(
            f"snapshot {name}: {record.location} is not the file that was saved: its SHA-256 is {digest.sha256} "
            f"instead of {expected}; use another snapshot, and check who can write there"
        )
    if not is_compressed(name):
        return file, record
    unpacked = place.path / name[: -len(COMPRESSED)]
    remove(unpacked)
    decompress(file, unpacked, min(record.unpacked_size or MAX_UNPACKED, room(place.path)))
    return unpacked, record


class Restore:
    def __init__(self, config: Config, data: Data, reached: Reached = lambda step: None) -> None:
        self._config = config
        self._data = data
        self._place = Workplace(config.directory)
        self._reached = reached

    def run(self, name: str, source: Source, sha256: str = "", *, run: str = "", accepted: str = "") -> None:
        """Begin a restore, or resume the one that was interrupted. The caller holds the lock of the directory.

        `sha256`: see `fetch`. `run`: ID of the operation's run. `accepted`: see `settle`.
        """
        journal = self._place.journal()
        if journal is not None and journal.phase == RESTORED and run and journal.run == run:
            return
        if journal is not None and (journal.phase in (UNDOING, RESTORED) or journal.run != run):
            self.settle(accepted)
            journal = None
        if journal is not None and journal.phase != STAGING:
            if journal.name != name:
                self._place.refuse_unfinished()
        else:
            journal = self._place.record(Journal(name, str(int(time.time())), run=run))
        try:
            self._advance(journal, source, sha256)
        except Exception as error:
            self._undo_after(error, self._place.journal() or journal)
            raise

    def settle(self, accepted: str = "") -> None:
        """Put the old data back if a restore was interrupted, or was not committed. The server stays stopped.

        `accepted`: ID of a run that is committed instead, because the cluster has its data.
        """
        journal = self._place.journal()
        if journal is not None and journal.phase == RESTORED and journal.run == accepted:
            self._finish(journal)
        elif journal is not None:
            self._undo(journal)

    def commit(self, run: str) -> None:
        """Start with the restored data. From now on, nothing undoes the restore."""
        journal = self._place.journal()
        if journal is None:
            return
        if journal.phase != RESTORED or journal.run != run:
            raise SnapshotError(f"snapshot {journal.name}: no restore of this operation has completed here")
        self._data.start()
        self._reached("committing")
        self._finish(journal)

    def _advance(self, journal: Journal, source: Source, sha256: str) -> None:
        self._reached("begun")
        if journal.phase == STAGING:
            journal = self._stage(journal, source, sha256)
        if journal.phase == STAGED:
            self._data.stop()
            self._reached("stopped")
            self._data.replace(Path(journal.file), journal.identity, journal.staged)
            self._reached("replacing")
            journal = self._place.record(replace(journal, phase=REPLACED))
        self._reached("replaced")
        if not journal.run:
            self._data.start()
            self._reached("started")
            self._finish(journal)
            return
        self._data.probe()
        self._place.record(replace(journal, phase=RESTORED))
        self._place.clear()
        self._reached("restored")

    def _finish(self, journal: Journal) -> None:
        self._data.clean(journal.identity)
        self._place.remove()

    def _stage(self, journal: Journal, source: Source, sha256: str) -> Journal:
        with source() as remote:  # not opened by a resumed restore, which must not depend on S3
            file, _ = fetch(self._config, self._place, journal.name, remote, sha256)
        self._reached("fetched")
        content = self._data.verify(file)
        staged = self._data.stage(file, journal.identity, content.revision)
        self._reached("staging")
        journal = self._place.record(replace(journal, phase=STAGED, file=str(file), staged=staged))
        self._reached("staged")
        return journal

    def _undo_after(self, error: Exception, journal: Journal) -> None:
        try:
            self._undo(journal, resumes=not journal.run)
        except (SnapshotError, OSError) as problem:
            raise SnapshotError(
                f"{error}; the old state is not complete yet ({problem}); run the restore again"
            ) from error

    def _undo(self, journal: Journal, *, resumes: bool = False) -> None:
        journal = self._place.record(replace(journal, phase=UNDOING))
        self._reached("undoing")
        self._data.undo(journal.identity, journal.staged)
        if resumes:
            self._data.resume()
        self._reached("undone")
        self._place.remove()
