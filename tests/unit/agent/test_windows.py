"""The Windows service, with a fake service manager."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from herder.agent import cli, windows
from herder.agent.windows import INTERROGATE, RUNNING, SHUTDOWN, START_PENDING, STOP, STOP_PENDING, STOPPED, Service


class ServiceManager:
    """The functions of advapi32 that a service calls."""

    def __init__(self, controls: tuple[int, ...] = (), *, connects: bool = True) -> None:
        self.controls, self.connects = controls, connects
        self.statuses: list[tuple[int, int, int]] = []
        self.results: list[int] = []

    def StartServiceCtrlDispatcherW(self, table: Any) -> int:
        if self.connects:
            assert (table[0].name, table[1].name) == (windows.NAME, None)
            table[0].main(0, None)
        return int(self.connects)

    def RegisterServiceCtrlHandlerExW(self, name: str, handler: Any, context: object) -> int:
        self.handler = handler
        return 7

    def SetServiceStatus(self, handle: int, pointer: Any) -> int:
        assert handle == 7
        status = ctypes.cast(pointer, ctypes.POINTER(windows.Status)).contents
        self.statuses.append((status.state, status.accepted, status.specific_exit_code))
        return 1

    def control(self) -> None:
        self.results = [self.handler(code, 0, None, None) for code in self.controls]


def run_service(manager: ServiceManager, code: int = 0) -> list[str]:
    stopped: list[str] = []

    def run() -> int:
        manager.control()
        return code

    Service(manager, run, lambda: stopped.append("stop")).serve()
    return stopped


@pytest.mark.parametrize("control", [STOP, SHUTDOWN])
def test_the_service_runs_until_it_is_stopped(control: int) -> None:
    manager = ServiceManager((INTERROGATE, control))
    assert run_service(manager) == ["stop"]
    assert [state for state, _, _ in manager.statuses] == [START_PENDING, RUNNING, RUNNING, STOP_PENDING, STOPPED]
    assert [accepted != 0 for _, accepted, _ in manager.statuses] == [False, True, True, False, False]
    assert manager.results == [0, 0]


def test_unknown_controls_are_rejected() -> None:
    manager = ServiceManager((99,))
    assert run_service(manager) == []
    assert manager.results == [120]


def test_a_failure_is_reported_with_its_exit_code() -> None:
    manager = ServiceManager()
    run_service(manager, code=3)
    assert manager.statuses[-1] == (STOPPED, 0, 3)


def test_a_manual_start_explains_how_to_start_the_service() -> None:
    with pytest.raises(OSError, match="sc start rancher-system-agent"):
        run_service(ServiceManager(connects=False))


def test_the_service_command_fails_on_other_systems(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["service"]) == 1
    assert "service runs only on Windows; use: herder-agent sentinel" in capsys.readouterr().err


def test_the_install_script_registers_this_service() -> None:
    """The script repeats the name of the service and its subcommand."""
    script = (Path(cli.__file__).parents[1] / "gateway" / "nodes" / "scripts" / "install.ps1").read_text()
    assert re.search(r'\$command = .*\$agent.* service"', script)
    assert f"New-Service -Name {windows.NAME} " in script
