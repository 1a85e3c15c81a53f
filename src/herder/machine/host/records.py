"""Records of the daemon: one directory per machine, whose record is written before anything else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from herder.machine.host.kinds import Place, Record
from herder.machine.host.places import MACHINES, REMOVED

_FILE = "machine.json"
_NOT_KEPT = {"directory", "save"}

log = logging.getLogger(__name__)


def machine_id(scope: str, name: str) -> str:
    """The hash is unique; the name is for users."""
    return f"{hashlib.sha256(f'{scope}/{name}'.encode()).hexdigest()[:12]}-{name[:27]}"


class Records:
    def __init__(self, state_dir: Path) -> None:
        self._machines = state_dir / MACHINES
        self._removed = state_dir / REMOVED
        self._records: dict[str, Record] = {}

    def load(self) -> None:
        self._machines.mkdir(mode=0o700, exist_ok=True)
        self._removed.mkdir(mode=0o700, exist_ok=True)
        for directory in self._machines.iterdir():
            record = _read(directory)
            if record is None:
                self._put_aside(directory)  # the daemon died before the record was written, so nothing else exists
                continue
            self._keep(record)
        for directory in self._removed.iterdir():
            delete_tree(directory)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def find(self, scope: str, name: str) -> Record | None:
        return self._records.get(machine_id(scope, name))

    def add(self, scope: str, name: str, kind: str, token: str, options: dict[str, Any]) -> Record:
        id = machine_id(scope, name)
        record = Record(id, scope, name, kind, token, self._machines / id, options=options)
        record.directory.mkdir(mode=0o700, exist_ok=True)
        self._keep(record)
        record.save()
        sync(self._machines)
        return record

    async def drop(self, record: Record) -> None:
        """Remove from disk atomically; delete the files later, and forget the record then."""
        aside = self._put_aside(record.directory)
        await asyncio.to_thread(delete_tree, aside)
        del self._records[record.id]

    def _keep(self, record: Record) -> None:
        record.save = lambda: _write(record)
        self._records[record.id] = record

    def _put_aside(self, directory: Path) -> Path:
        aside = self._removed / directory.name
        if aside.exists():  # of an earlier machine of this name, still being deleted
            aside = self._removed / f"{directory.name}.{os.urandom(4).hex()}"
        directory.rename(aside)
        sync(self._machines)
        return aside


def _write(record: Record) -> None:
    content = {key: value for key, value in vars(record).items() if key not in _NOT_KEPT}
    content["place"] = asdict(record.place) if record.place else None
    write_whole(record.directory / _FILE, json.dumps(content).encode())


def _read(directory: Path) -> Record | None:
    try:
        content = json.loads((directory / _FILE).read_bytes())
    except FileNotFoundError:
        return None
    place = content.pop("place")
    return Record(**content, directory=directory, place=Place(**place) if place else None)


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write atomically and durably."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_tree(directory: Path) -> None:
    """Also directories that the machine made inaccessible."""

    def open_up(function: Any, path: str, _error: Any) -> None:
        parent = os.path.dirname(path)
        if not os.path.islink(parent):
            os.chmod(parent, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, onerror=report)
        else:
            function(path)

    def report(_function: Any, path: str, error: Any) -> None:
        log.warning("cannot delete %s: %s", path, error[1])

    try:
        shutil.rmtree(directory, onerror=open_up)
    except OSError as error:
        log.warning("cannot delete %s: %s", directory, error)
