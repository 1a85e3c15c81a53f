"""Scheduled backups of a real store, with a real S3 server that has a certificate of a private CA."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from herder.api.machines.archive import CONFIG_MAP
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.app.embedded import CONTROLLERS
from herder.app.host.process import wall_clock
from herder.app.store.backups import RECORD, Schedule, ScheduledBackups, backup_config, make_backup
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.control.metrics import Metrics
from herder.engine.runtime.events.recorder import EVENTS, EventRecorder
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import digest_of
from herder.snapshots.operations import list_all
from tests.support.cloud.s3 import S3Server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


class Backups:
    """A schedule on a clock that the test sets, on a running API server."""

    def __init__(self, client: Client, directory: Path, cron: str, **options: Any) -> None:
        self.client = client
        self.offset = timedelta()
        self.config = backup_config(directory / "data", directory / "backups", **options)
        self.metrics = Metrics()
        self.events = EventRecorder(client, clock=wall_clock, jitter=lambda: 0.5)
        schedule = Schedule(cron, self.config.directory)
        self.scheduled = ScheduledBackups(schedule, self.config, client, self.events, self.metrics, self.now)

    def now(self) -> datetime:
        return wall_clock() + self.offset

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def names(self) -> list[str]:
        return [each.name for each in Directory(self.config.directory).records()]

    async def until(self, holds: Any) -> None:
        """Run the schedule until it holds."""
        async with asyncio.timeout(60):
            tasks = [asyncio.ensure_future(self.scheduled.run()), asyncio.ensure_future(self.events.run())]
            try:
                while not holds():
                    await asyncio.sleep(0.02)
                await self.events.flush()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def record(self) -> Any:
        return (await self.client.get(CONFIG_MAP.resource, RECORD, namespace=SYSTEM_NAMESPACE))["data"]

    async def event_reasons(self) -> set[str]:
        listed = await self.client.list_all(EVENTS, namespace=SYSTEM_NAMESPACE)
        return {f"{each['type']} {each['reason']}" for each in listed.items if each["involvedObject"]["name"] == RECORD}


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[Client]:
    created = await assemble(directory / "data", clock=wall_clock, entropy=os.urandom)
    try:
        yield Client(InProcess(created, CONTROLLERS))
    finally:
        await created.stop()


async def test_backups_are_made_on_schedule_verified_and_the_oldest_deleted(tmp_path: Path) -> None:
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@every 1s", retention=2)
        success: dict[str, str] = {"result": "success"}
        await backups.until(lambda: backups.metric("herder_store_backups_total", **success) >= 3)
        records = Directory(backups.config.directory).records()
        assert len(records) == 2
        for record in records:
            assert record.status == "successful"
            assert record.sha256 == digest_of(backups.config.directory / record.name).sha256
        latest = records[-1].created_at
        assert backups.metric("herder_store_backup_last_success_timestamp_seconds") == latest
        assert backups.metric("herder_store_backup_size_bytes") == records[-1].size
        assert (await backups.record())["reason"] == "BackedUp"
        assert await backups.event_reasons() == {"Normal BackedUp"}


async def test_a_missed_backup_is_made_at_once(tmp_path: Path) -> None:
    """The manager was down at the scheduled time."""
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@yearly")
        make_backup(backups.config)
        backups.offset = timedelta(days=366)
        await backups.until(lambda: len(backups.names()) == 2)


async def test_a_backup_in_the_future_delays_no_other(tmp_path: Path) -> None:
    """It was made while the clock was wrong, and does not count as the last one."""
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@yearly")
        config = backups.config
        made = make_backup(config)[0].name
        (config.directory / f"herder-{config.node}-9999999999.gz").write_bytes(b"x")
        backups.offset = timedelta(days=366)
        await backups.until(lambda: len(backups.names()) == 3)
        assert made in backups.names()
        assert backups.metric("herder_store_backup_last_success_timestamp_seconds") < 9999999999


async def test_backups_are_uploaded_and_listed(tmp_path: Path, s3: S3Server) -> None:
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@every 1s", retention=1, s3=s3.config(folder="managers", retention=2))
        success: dict[str, str] = {"result": "success"}
        await backups.until(lambda: backups.metric("herder_store_backups_total", **success) >= 3)
        listed = list_all(backups.config)
        remote = [each for each in listed if each.location.startswith("s3://")]
        assert (len(listed) - len(remote), len(remote)) == (1, 2)
        assert all(each.sha256 and each.status == "successful" for each in listed)


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"secretKey": "wrong"}, "signature"),
        ({"bucket": "missing"}, "bucket"),
        ({"endpointCA": ""}, "certificate"),
    ],
    ids=["key", "bucket", "CA"],
)
async def test_a_failed_upload_is_reported_and_the_backup_kept_once(
    tmp_path: Path, s3: S3Server, wrong: dict[str, Any], cause: str
) -> None:
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@every 1s", s3=s3.config(**wrong))
        failed: dict[str, str] = {"result": "error"}
        await backups.until(lambda: backups.metric("herder_store_backups_total", **failed) >= 1)
        assert len(backups.names()) == 1
        record = await backups.record()
        assert record["reason"] == "BackupFailed"
        assert cause in record["message"].lower()
        assert "the backup is only in file://" in record["message"]
        assert s3.config().secret_key not in str(record)
        assert await backups.event_reasons() == {"Warning BackupFailed"}
        with pytest.raises(SnapshotError):
            make_backup(backups.config)
        assert len(backups.names()) == 1, "a retry keeps no further backup"


async def test_a_failed_backup_is_retried(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herder.app.store.backups.RETRY", timedelta(seconds=0.1))
    failed, success = {"result": "error"}, {"result": "success"}
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@every 1s", s3=s3.config(bucket="later"))

        def is_uploaded() -> bool:
            if backups.metric("herder_store_backups_total", **failed) >= 3 and not (s3.objects / "later").exists():
                assert len(backups.names()) == 1, "retries keep no further backup"
                (s3.objects / "later").mkdir()
            return backups.metric("herder_store_backups_total", **success) >= 1

        await backups.until(is_uploaded)
        assert [each for each in list_all(backups.config) if each.location.startswith("s3://later/")]


async def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "backups").write_text("a file")
    async with server(tmp_path) as client:
        backups = Backups(client, tmp_path, "@every 1s")
        failed: dict[str, str] = {"result": "error"}
        await backups.until(lambda: backups.metric("herder_store_backups_total", **failed) >= 1)
        assert str(tmp_path / "backups") in (await backups.record())["message"]
