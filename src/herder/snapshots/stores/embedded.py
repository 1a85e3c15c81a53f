"""The data of an embedded server: the store of its API server. It runs with the packages of that server.

A snapshot contains no encryption keys. `verify` checks that the key file of this server has those that it needs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from herder.engine.store import Cipher, StoreError, key_file, restore
from herder.engine.store.directory import BEFORE_RESTORE, DATABASE, finish_restore, locked
from herder.engine.store.maintenance.backup import backup_directory, check_backup
from herder.snapshots.config import StoreConfig
from herder.snapshots.data import Content
from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import sync

_SIDE_FILES = (f"{DATABASE}-wal", f"{DATABASE}-shm")
_SERVICE = "an embedded server is a service; stop and start the service herder-server"


class StoreData:
    def __init__(self, config: StoreConfig) -> None:
        self._config = config

    def size(self) -> int:
        """A backup contains the pages of the database and those in its log."""
        return sum(_size(self._config.store / name) for name in (DATABASE, f"{DATABASE}-wal"))

    def save(self, target: Path) -> None:
        try:
            backup_directory(self._config.store, target, now=time.time())
        except StoreError as error:
            raise SnapshotError(_cause(target, error)) from None

    def verify(self, file: Path) -> Content:
        try:
            checked = check_backup(file)
            missing = sorted(checked.key_ids - self._known_keys(checked.key_ids))
        except StoreError as error:
            raise SnapshotError(f"snapshot {file.name}: {error}; the file is corrupt or too new") from None
        if missing:
            raise SnapshotError(
                f"snapshot {file.name}: needs the encryption key {', '.join(missing)}; "
                f"restore it to {self._config.encryption_key} first"
            )
        return Content(checked.revision, str(checked.schema))

    def _known_keys(self, wanted: frozenset[str]) -> set[str]:
        if wanted:
            key_file.compose(self._config.encryption_key.parent)
        if not wanted or not self._config.encryption_key.exists():
            return set()
        cipher = Cipher.load(self._config.encryption_key)
        return {each for each in wanted if cipher.has_key(each)}

    # --- restore: the store completes an interrupted one when it is opened ------------------------------------------

    def stage(self, file: Path, identity: str, revision: int) -> dict[str, Any]:
        self.stop()
        return {"inode": _inode(self._config.store / DATABASE)}

    def stop(self) -> None:
        try:
            with locked(self._config.store):
                finish_restore(self._config.store)
        except StoreError as error:
            raise SnapshotError(str(error)) from None

    def replace(self, file: Path, identity: str, staged: dict[str, Any]) -> None:
        """Restore once: a second time would replace the kept old data with the restored data."""
        if not self._is_replaced(staged):
            try:
                restore(file, self._config.store)
            except StoreError as error:
                raise SnapshotError(f"snapshot {file.name}: {error}") from None

    def start(self) -> None:
        """The service is started by its caller, which has stopped it."""

    def undo(self, identity: str, staged: dict[str, Any]) -> None:
        """Put the former database back. The database itself moves last: until then, the step can be repeated."""
        if staged and self._is_replaced(staged):
            try:
                with locked(self._config.store):
                    self._revert(staged["inode"])
            except StoreError as error:
                raise SnapshotError(str(error)) from None

    def _revert(self, former: int | None) -> None:
        store, aside = self._config.store, self._config.store / BEFORE_RESTORE
        if _inode(store / DATABASE) is not None:
            for names in (_SIDE_FILES, (DATABASE,)):
                for name in names:
                    (store / name).unlink(missing_ok=True)
                sync(store)
        for name in (*_SIDE_FILES, DATABASE) if former is not None else ():
            if (aside / name).exists():
                (aside / name).replace(store / name)
                sync(store)

    def resume(self) -> None:
        """The service is started by its caller."""

    def probe(self) -> None:
        """The data was verified; nothing runs."""

    def clean(self, identity: str) -> None:
        """The store keeps one former database."""

    def stop_server(self) -> None:
        raise SnapshotError(_SERVICE)

    def start_server(self) -> None:
        raise SnapshotError(_SERVICE)

    def drop(self) -> None:
        raise SnapshotError("drop: an embedded cluster has a single server, which joins no other")

    def _is_replaced(self, staged: dict[str, Any]) -> bool:
        self.stop()  # completes an interrupted replacement
        former = staged.get("inode")
        if former is None:
            return (self._config.store / DATABASE).exists()
        return bool(_inode(self._config.store / BEFORE_RESTORE / DATABASE) == former)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # `save` says what is wrong with the store


def _cause(target: Path, error: StoreError) -> str:
    if "disk is full" in str(error) or "disk I/O error" in str(error):
        return f"{target.name}: the disk is full or damaged ({error}); free some space and try again"
    return f"{target.name}: {error}"
