"""A daemon can be killed at any moment; the next one recovers from the records on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from herder.machine.driver import State
from herder.machine.host import places
from herder.machine.host.records import Records
from tests.unit.machine.host.scripted_kind import PLACE, TOKEN, ScriptedKind, daemon


def write_record(state_dir: Path, **changes: object) -> Path:
    """Write a machine's record as a killed daemon leaves it."""
    records = Records(state_dir)
    records.load()
    record = records.add("fleet", "m1", "process", TOKEN, {})
    for name, value in changes.items():
        setattr(record, name, value)
    record.save()
    return record.directory


@pytest.mark.parametrize(
    ("record_fields", "call", "state"),
    [
        ({"place": PLACE}, "recover", State.RUNNING),
        ({"place": PLACE, "wanted": "stopped"}, "stop", State.STOPPED),
        ({"place": PLACE, "wanted": "removed"}, "remove", State.NOT_FOUND),
        ({"wanted": "removed"}, "remove", State.NOT_FOUND),
        ({}, None, State.ERROR),  # partially created: the client retries
    ],
)
async def test_machines_are_reconciled_to_their_desired_state(
    tmp_path: Path, record_fields: dict[str, object], call: str | None, state: State
) -> None:
    write_record(tmp_path, **record_fields)
    kind = ScriptedKind()
    async with daemon(tmp_path, kind) as host:
        while (seen := await asyncio.to_thread(host.machine().state)) == State.STOPPING:
            await asyncio.sleep(0.01)
        assert seen == state
    assert {name for name in kind.calls if name not in {"prepare", "close"}} == ({call} if call else set())


async def test_a_request_joins_a_resumed_removal(tmp_path: Path) -> None:
    write_record(tmp_path, place=PLACE, wanted="removed")
    kind = ScriptedKind()
    kind.resume.clear()
    async with daemon(tmp_path, kind) as host:
        removal = asyncio.create_task(asyncio.to_thread(host.machine().remove))
        await asyncio.to_thread(host.client.machines)
        kind.resume.set()
        await removal
        assert await asyncio.to_thread(host.client.machines) == []
    assert kind.calls["remove"] == 1


async def test_a_repeated_create_finishes_a_partial_machine(tmp_path: Path) -> None:
    write_record(tmp_path)
    async with daemon(tmp_path, ScriptedKind()) as host:
        assert await host.create(host.machine()) == PLACE


async def test_a_directory_without_a_record_is_not_a_machine(tmp_path: Path) -> None:
    (tmp_path / places.MACHINES / "left").mkdir(parents=True)
    async with daemon(tmp_path, ScriptedKind()):
        assert not list((tmp_path / places.MACHINES).iterdir())


async def test_removed_machines_are_deleted_despite_unreadable_directories(tmp_path: Path) -> None:
    closed = tmp_path / places.REMOVED / "old" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    async with daemon(tmp_path, ScriptedKind()):
        assert not list((tmp_path / places.REMOVED).iterdir())


async def test_a_machine_that_cannot_be_recovered_does_not_block_the_daemon(tmp_path: Path) -> None:
    write_record(tmp_path, place=PLACE, wanted="removed")
    kind = ScriptedKind()
    kind.error = "busy"
    async with daemon(tmp_path, kind) as host:
        assert len(await asyncio.to_thread(host.client.machines)) == 1
