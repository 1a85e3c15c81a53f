"""Backups of the embedded store: their configuration, and the schedule on which `herder up` makes them.

A backup is a snapshot of the embedded distribution, with the same files, metadata, retention and S3 client.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from herder import __version__
from herder.api.capi.conditions import timestamp
from herder.api.cron import next_time
from herder.api.machines.archive import CONFIG_MAP
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.app.metrics.store import BACKUP_SIZE, BACKUP_TIME, BACKUPS
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import NORMAL, WARNING, Event, Ref
from herder.engine.store import StoreError
from herder.engine.store.cipher import read_keys
from herder.snapshots.config import DEFAULT_RETENTION, Config, S3Config, StoreConfig
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError, describe
from herder.snapshots.names import is_ahead
from herder.snapshots.operations import MAC, save
from herder.snapshots.records import Record
from herder.snapshots.stores.embedded import StoreData

if TYPE_CHECKING:
    from herder.engine.client.client import Client
    from herder.engine.control.metrics import Metrics
    from herder.engine.runtime.events.recorder import EventRecorder

log = get_logger(__name__)

SERIES = "herder"
"""First part of the names of backups: herder-HOST-UNIXSECONDS.gz."""
RETRY = timedelta(minutes=5)
RECORD = "manager-backup"
"""ConfigMap with the outcome of the last backup, which Events are about."""
_MAX_SLEEP = 600.0  # the wall clock can be set meanwhile
_OTHER = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True)
class Schedule:
    """When and where `herder up` backs up its store."""

    cron: str
    directory: Path
    retention: int = DEFAULT_RETENTION
    s3: S3Config | None = None


def default_directory(data_dir: Path) -> Path:
    return data_dir / "backups"


def backup_config(
    data_dir: Path, directory: Path, *, retention: int = DEFAULT_RETENTION, s3: S3Config | None = None
) -> Config:
    """The configuration of the snapshot program for the store of a manager."""
    return Config(
        distribution="embedded",
        directory=directory.absolute(),
        node=_OTHER.sub("-", socket.gethostname()).strip("-")[:60] or "manager",
        retention=retention,
        compress=True,
        metadata={"herderVersion": __version__},
        s3=s3,
        etcd=None,
        store=StoreConfig(data_dir.absolute() / "store", data_dir.absolute() / "encryption.key"),
    )


def make_backup(config: Config, *, without_s3: bool = False) -> list[Record]:
    """Make, verify and upload one backup, and apply the retention. Blocks.

    With `without_s3`, a backup that cannot be uploaded is kept in the directory. The error is raised nevertheless.
    """
    assert config.store is not None
    try:
        return save(config, StoreData(config.store), SERIES, Authenticator(config.store.encryption_key).mac)
    except OSError as error:
        raise SnapshotError(describe(error)) from None
    except SnapshotError as error:
        if config.s3 is None or not without_s3:
            raise
        [kept] = make_backup(replace(config, s3=None))
        raise SnapshotError(f"{error}; the backup is only in {kept.location}") from None


class Authenticator:
    """Proves that this manager made a backup: by a key that is derived from its encryption key.

    Who can write to a bucket can replace a backup together with its metadata. A restore needs the encryption key
    anyway, so it can verify the backup on another host too.
    """

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def mac(self, name: str, sha256: str) -> str:
        """Return a MAC by the active key; empty if the store is not encrypted."""
        return next((_mac(key, name, sha256) for key in self._keys()), "")

    def is_genuine(self, record: Record) -> bool:
        known = str(record.metadata.get(MAC) or "").encode()
        macs = [_mac(key, record.name, record.sha256).encode() for key in self._keys()]
        return bool(record.sha256) and any(hmac.compare_digest(known, each) for each in macs)

    def _keys(self) -> Sequence[bytes]:
        try:
            return read_keys(self._key_file)
        except FileNotFoundError:
            return ()
        except StoreError as error:
            raise SnapshotError(str(error)) from None


def _mac(key: bytes, name: str, sha256: str) -> str:
    derived = hmac.digest(key, b"herder store backup", "sha256")
    return hmac.digest(derived, f"{name}\0{sha256}".encode(), "sha256").hex()


class ScheduledBackups:
    """Makes backups on a schedule. A failed one is reported and tried again; a missed one is made up for at once."""

    def __init__(
        self,
        schedule: Schedule,
        config: Config,
        client: Client,
        events: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._schedule = schedule
        self._config = config
        self._client = client
        self._events = events
        self._clock = clock
        registry = metrics.registry
        self._results = BACKUPS.counter(registry)
        self._success = BACKUP_TIME.gauge(registry)
        self._size = BACKUP_SIZE.gauge(registry)
        for result in ("success", "error"):
            self._results.labels(result)

    async def run(self) -> None:
        due, is_retry = await self._first(), False
        while due is not None:
            await self._sleep_until(due)
            is_done = await self._backup(is_retry=is_retry)
            due = next_time(self._schedule.cron, self._clock()) if is_done else self._clock() + RETRY
            is_retry = not is_done
        log.error("the backup schedule has no further time", schedule=self._schedule.cron)

    async def _first(self) -> datetime | None:
        """When the next backup is due, counted from the last one: the manager may have been down at that time."""
        records, now = await asyncio.to_thread(self._records), self._clock()
        # A backup in the future was made while the clock was wrong, and does not say when the last one was made.
        newest = max((each.created_at for each in records if not is_ahead(each.name, now.timestamp())), default=0)
        if newest:
            self._success.set(newest)
        last = datetime.fromtimestamp(newest, UTC) if newest else now
        return next_time(self._schedule.cron, min(last, now))

    def _records(self) -> Sequence[Record]:
        try:
            return Directory(self._config.directory).records()
        except OSError as error:
            log.warning("backups cannot be listed", directory=str(self._config.directory), error=str(error))
            return ()

    async def _sleep_until(self, due: datetime) -> None:
        while True:
            seconds = (due - self._clock()).total_seconds()
            if seconds <= 0:
                return
            await asyncio.sleep(min(seconds, _MAX_SLEEP))

    async def _backup(self, *, is_retry: bool) -> bool:
        """Make a backup. While S3 fails, one is kept without it for each time of the schedule, but not for each retry:
        the retention would soon leave only those."""
        try:
            records = await asyncio.to_thread(make_backup, self._config, without_s3=not is_retry)
        except SnapshotError as error:
            await self._failed(str(error))
            return False
        newest = records[0]
        self._success.set(newest.created_at)
        self._size.set(newest.size)
        where = ", ".join(each.location for each in records)
        log.info("backed up the store", name=newest.name, locations=where, sha256=newest.sha256, size=newest.size)
        message = f"backed up revision {newest.revision} to {where}"
        await self._report("BackedUp", message, lastSuccess=timestamp(self._clock()), sha256=newest.sha256)
        self._results.labels("success").inc()
        if newest.message:  # of the retention
            await self._failed(newest.message)
        return True

    async def _failed(self, message: str) -> None:
        log.error("the backup of the store failed", error=message, retry_in=str(RETRY))
        await self._report("BackupFailed", message, WARNING, lastFailure=timestamp(self._clock()))
        self._results.labels("error").inc()

    async def _report(self, reason: str, message: str, type_: str = NORMAL, **data: str) -> None:
        """Record the outcome where `kubectl` shows it. A failure to do so must not stop the backups."""
        from herder.app.install import ensure_namespace

        meta = {"name": RECORD, "namespace": SYSTEM_NAMESPACE}
        record: Object = {"reason": reason, "message": message, "schedule": self._schedule.cron, **data}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": record}
        try:
            await ensure_namespace(self._client, SYSTEM_NAMESPACE)
            written = await self._client.apply(CONFIG_MAP.resource, obj, field_manager="herder-backup", force=True)
        except (StatusError, OSError) as error:
            log.warning("the outcome of the backup cannot be recorded", error=str(error))
            return
        about = Ref(CONFIG_MAP, RECORD, SYSTEM_NAMESPACE)
        self._events.record(Event(about, written["metadata"]["uid"], reason, message, type_), "store-backup")
