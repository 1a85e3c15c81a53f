"""The `process` driver, as herder-machine drives it."""

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
from tests.unit.machine.process.visits import connect

DEFAULTS = {flag.name: flag.default for flag in create_flags("process") or ()}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("HERDER_DATA_DIR", str(tmp_path / "data"))
    with Host(tmp_path) as host:
        yield host


class Saved:
    """What a record holds after each save."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.history: list[dict[str, Any]] = []

    def driver(self) -> Process:
        """As a new process finds it."""
        machine = Machine("m1", dict(self.config), dict(self.files), lambda: None, lambda _line: None)
        machine.directory = "/home/machine/.docker/machine/machines/m1"
        machine.save = lambda: self._keep(machine)
        return Process(machine)

    def _keep(self, machine: Machine) -> None:
        self.config, self.files = dict(machine.config), dict(machine.files)
        self.history.append(self.config)


async def test_a_machines_life(host: Host) -> None:
    saved = Saved()
    driver = saved.driver()
    driver.configure({**DEFAULTS, "process-zone": "b"})
    driver.check()
    driver.create()
    assert saved.history[0]["Token"]
    assert not saved.history[0].get("IPAddress"), "the token is saved before anything is made"
    assert saved.config["Zone"] == "b"
    assert saved.config["SSHUser"] == "root"
    assert saved.config["SSHKeyPath"] == "/home/machine/.docker/machine/machines/m1/id_rsa"

    again = saved.driver()
    assert again.state() == State.RUNNING
    reach = again.reach()
    assert (reach.host, reach.port) == (again.address(), 2222)
    place = Place(reach.host, reach.port, reach.user, reach.host_keys[0])
    async with connect(place, saved.files["id_rsa"].decode()) as connection:
        assert (await connection.run("hostname")).stdout == "m1\n"
    again.stop()
    assert again.state() == State.STOPPED
    again.start()
    again.restart()
    again.kill()
    again.remove()
    assert again.state() == State.NOT_FOUND
    again.remove()
    assert host.leftovers() == []


def test_a_record_that_is_kept_elsewhere_still_finds_its_machine(host: Host) -> None:
    """As when its namespace was deleted: who believes that there is none would leave it running."""
    saved = Saved()
    driver = saved.driver()
    driver.machine.scope = "barn"
    driver.configure(DEFAULTS)
    driver.create()
    later = saved.driver()
    later.machine.scope = "herder-archive"
    assert later.state() == State.RUNNING
    later.remove()
    assert host.leftovers() == []


def test_a_creation_that_was_broken_off_is_gone_on_with(host: Host) -> None:
    saved = Saved()
    first = saved.driver()
    first.configure(DEFAULTS)
    first.create()
    saved.config, saved.files = saved.history[0], dict(saved.files)  # it died before it heard the answer
    second = saved.driver()
    second.create()
    assert second.address() == first.address()
    second.remove()


def test_one_that_was_never_asked_for_is_removed_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERDER_HOST_SOCKET", str(tmp_path / "nobody-there"))
    Saved().driver().remove()


@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("process-memory", -1, "--process-memory: -1"),
        ("process-ssh-port", 0, "--process-ssh-port: 0 is not a port number"),
    ],
)
def test_bad_flags_are_named(flag: str, value: int, error: str) -> None:
    with pytest.raises(PreCreateFailed, match=error):
        Saved().driver().configure({**DEFAULTS, flag: value})
