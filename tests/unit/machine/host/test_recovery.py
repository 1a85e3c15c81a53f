"""A daemon dies at any moment; the next one takes over by what is on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from herder.machine.driver import State
from herder.machine.host import places
from herder.machine.host.records import Records
from tests.unit.machine.host.scripted import PLACE, TOKEN, Scripted, daemon


def recorded(state_dir: Path, **changes: object) -> Path:
    """A machine as a daemon that died has left it."""
    records = Records(state_dir)
    records.load()
    record = records.add("fleet", "m1", "process", TOKEN, {})
    for name, value in changes.items():
        setattr(record, name, value)
    record.save()
    return record.directory


@pytest.mark.parametrize(
    ("left", "asked", "state"),
    [
        ({"place": PLACE}, "recover", State.RUNNING),
        ({"place": PLACE, "wanted": "stopped"}, "stop", State.STOPPED),
        ({"place": PLACE, "wanted": "removed"}, "remove", State.NOT_FOUND),
        ({"wanted": "removed"}, "remove", State.NOT_FOUND),
        ({}, None, State.ERROR),  # half made: whoever asked asks again
    ],
)
async def test_machines_are_brought_to_what_was_wanted(
    tmp_path: Path, left: dict[str, object], asked: str | None, state: State
) -> None:
    recorded(tmp_path, **left)
    kind = Scripted()
    async with daemon(tmp_path, kind) as here:
        while (seen := await asyncio.to_thread(here.machine().state)) == State.STOPPING:
            await asyncio.sleep(0.01)
        assert seen == state
    assert {name for name in kind.asked if name not in {"prepare", "close"}} == ({asked} if asked else set())


async def test_a_removal_that_is_gone_on_with_is_joined(tmp_path: Path) -> None:
    recorded(tmp_path, place=PLACE, wanted="removed")
    kind = Scripted()
    kind.go_on.clear()
    async with daemon(tmp_path, kind) as here:
        removal = asyncio.create_task(asyncio.to_thread(here.machine().remove))
        await asyncio.to_thread(here.client.machines)
        kind.go_on.set()
        await removal
        assert await asyncio.to_thread(here.client.machines) == []
    assert kind.asked["remove"] == 1


async def test_a_half_made_machine_is_finished_by_whoever_asks_again(tmp_path: Path) -> None:
    recorded(tmp_path)
    async with daemon(tmp_path, Scripted()) as here:
        assert await here.create(here.machine()) == PLACE


async def test_a_directory_without_a_record_was_never_a_machine(tmp_path: Path) -> None:
    (tmp_path / places.MACHINES / "left").mkdir(parents=True)
    async with daemon(tmp_path, Scripted()):
        assert not list((tmp_path / places.MACHINES).iterdir())


async def test_what_was_put_aside_is_deleted_though_its_directories_are_closed(tmp_path: Path) -> None:
    closed = tmp_path / places.REMOVED / "old" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    async with daemon(tmp_path, Scripted()):
        assert not list((tmp_path / places.REMOVED).iterdir())


async def test_one_machine_that_cannot_be_recovered_does_not_keep_the_daemon_from_serving(tmp_path: Path) -> None:
    recorded(tmp_path, place=PLACE, wanted="removed")
    kind = Scripted()
    kind.fails = "busy"
    async with daemon(tmp_path, kind) as here:
        assert len(await asyncio.to_thread(here.client.machines)) == 1
