"""The `process` driver, as herder-machine calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herder.machine.driver import Machine, State
from herder.machine.drivers import create_flags
from herder.machine.drivers.process import Process
from herder.machine.errors import PreCreateFailed
from herder.machine.host.kinds import Place
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import connect

DEFAULTS = {flag.name: flag.default for flag in create_flags("process") or ()}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("HERDER_DATA_DIR", str(tmp_path / "data"))
    with Host(tmp_path) as host:
        yield host


class SavedRecord:
    """The content of a machine's record after each save."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.history: list[dict[str, Any]] = []

    def driver(self) -> Process:
        """Return a driver that loads the record as a new process does."""
        machine = Machine("m1", dict(self.config), dict(self.files), lambda: None, lambda _line: None)
        machine.directory = "/home/machine/.docker/machine/machines/m1"
        machine.save = lambda: self._store(machine)
        return Process(machine)

    def _store(self, machine: Machine) -> None:
        self.config, self.files = dict(machine.config), dict(machine.files)
        self.history.append(self.config)


async def test_the_lifecycle_of_a_machine(host: Host) -> None:
    saved = SavedRecord()
    driver = saved.driver()
    driver.configure({**DEFAULTS, "process-zone": "b"})
    driver.check()
    driver.create()
    assert saved.history[0]["Token"]
    assert not saved.history[0].get("IPAddress"), "the token is saved before anything is created"
    assert saved.config["Zone"] == "b"
    assert saved.config["SSHUser"] == "root"
    assert saved.config["SSHKeyPath"] == "/home/machine/.docker/machine/machines/m1/id_rsa"

    reloaded = saved.driver()
    assert reloaded.state() == State.RUNNING
    reach = reloaded.reach()
    assert (reach.host, reach.port) == (reloaded.address(), 2222)
    place = Place(reach.host, reach.port, reach.user, reach.host_keys[0])
    async with connect(place, saved.files["id_rsa"].decode()) as connection:
        assert (await connection.run("hostname")).stdout == "m1\n"
    reloaded.stop()
    assert reloaded.state() == State.STOPPED
    reloaded.start()
    reloaded.restart()
    reloaded.kill()
    reloaded.remove()
    assert reloaded.state() == State.NOT_FOUND
    reloaded.remove()
    assert host.leftovers() == []


def test_a_moved_record_still_finds_its_machine(host: Host) -> None:
    """The record moves when its namespace is deleted. A driver that finds no machine would leave it running."""
    saved = SavedRecord()
    driver = saved.driver()
    driver.machine.scope = "barn"
    driver.configure(DEFAULTS)
    driver.create()
    later = saved.driver()
    later.machine.scope = "herder-archive"
    assert later.state() == State.RUNNING
    later.remove()
    assert host.leftovers() == []


def test_an_interrupted_creation_is_continued(host: Host) -> None:
    saved = SavedRecord()
    first = saved.driver()
    first.configure(DEFAULTS)
    first.create()
    saved.config, saved.files = saved.history[0], dict(saved.files)  # the process died before the response arrived
    second = saved.driver()
    second.create()
    assert second.address() == first.address()
    second.remove()


def test_removing_a_machine_that_was_never_requested_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERDER_HOST_SOCKET", str(tmp_path / "nobody-there"))
    SavedRecord().driver().remove()


@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("process-memory", -1, "--process-memory: -1"),
        ("process-ssh-port", 0, "--process-ssh-port: 0 is not a port number"),
    ],
)
def test_invalid_flags_are_named(flag: str, value: int, error: str) -> None:
    with pytest.raises(PreCreateFailed, match=error):
        SavedRecord().driver().configure({**DEFAULTS, flag: value})
