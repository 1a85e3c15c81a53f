"""The service of Windows, with a service manager that is played by the test."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from herder.agent import cli, windows
from herder.agent.windows import INTERROGATE, RUNNING, SHUTDOWN, START_PENDING, STOP, STOP_PENDING, STOPPED, Service


class Manager:
    """advapi32, as far as a service sees it."""

    def __init__(self, controls: tuple[int, ...] = (), *, knows_us: bool = True) -> None:
        self.controls, self.knows_us = controls, knows_us
        self.told: list[tuple[int, int, int]] = []
        self.answers: list[int] = []

    def StartServiceCtrlDispatcherW(self, table: Any) -> int:
        if self.knows_us:
            assert (table[0].name, table[1].name) == (windows.NAME, None)
            table[0].main(0, None)
        return int(self.knows_us)

    def RegisterServiceCtrlHandlerExW(self, name: str, handler: Any, context: object) -> int:
        self.handler = handler
        return 7

    def SetServiceStatus(self, handle: int, pointer: Any) -> int:
        assert handle == 7
        status = ctypes.cast(pointer, ctypes.POINTER(windows.Status)).contents
        self.told.append((status.state, status.accepted, status.specific_exit_code))
        return 1

    def control(self) -> None:
        self.answers = [self.handler(code, 0, None, None) for code in self.controls]


def served(manager: Manager, code: int = 0) -> list[str]:
    stopped: list[str] = []

    def run() -> int:
        manager.control()
        return code

    Service(manager, run, lambda: stopped.append("stop")).serve()
    return stopped


@pytest.mark.parametrize("control", [STOP, SHUTDOWN])
def test_it_runs_until_the_manager_says_stop(control: int) -> None:
    manager = Manager((INTERROGATE, control))
    assert served(manager) == ["stop"]
    assert [state for state, _, _ in manager.told] == [START_PENDING, RUNNING, RUNNING, STOP_PENDING, STOPPED]
    assert [accepted != 0 for _, accepted, _ in manager.told] == [False, True, True, False, False]
    assert manager.answers == [0, 0]


def test_what_it_does_not_know_it_says_so() -> None:
    manager = Manager((99,))
    assert served(manager) == []
    assert manager.answers == [120]


def test_a_failure_is_told_with_its_code() -> None:
    manager = Manager()
    served(manager, code=3)
    assert manager.told[-1] == (STOPPED, 0, 3)


def test_by_hand_it_says_how_it_is_started() -> None:
    with pytest.raises(OSError, match="sc start rancher-system-agent"):
        served(Manager(knows_us=False))


def test_elsewhere_there_is_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["service"]) == 1
    assert "service runs only on Windows; use: herder-agent sentinel" in capsys.readouterr().err


def test_the_install_script_registers_what_is_here() -> None:
    """The only place where the name of the service and the word that starts it are written a second time."""
    script = (Path(cli.__file__).parents[1] / "gateway" / "nodes" / "scripts" / "install.ps1").read_text()
    assert re.search(r'\$command = .*\$agent.* service"', script)
    assert f"New-Service -Name {windows.NAME} " in script
