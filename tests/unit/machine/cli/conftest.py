from __future__ import annotations

import os
from pathlib import Path

import pytest

from herder.machine.cli.main import guarded, run
from herder.machine.drivers import NATIVE
from tests.unit.machine.cli.paper import PAPER, PLACE, Provider


class Command:
    """Runs `herder-machine` in this process, with its own store."""

    def __init__(self, store: Path, output: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._output = output

    def __call__(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """Run a command and assert its exit status; return stdout and stderr."""
        self._output.readouterr()
        exit_status = guarded(lambda: run(["--storage-path", str(self.store), *arguments], os.environ))
        captured = self._output.readouterr()
        assert exit_status == status, f"exit {exit_status}\n{captured.out}{captured.err}"
        return captured.out, captured.err


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "store", capsys)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    place = tmp_path / "provider"
    place.mkdir()
    monkeypatch.setenv(PLACE, str(place))
    monkeypatch.setitem(NATIVE, "paper", PAPER)
    return Provider(place)
