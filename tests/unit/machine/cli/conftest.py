from __future__ import annotations

import os
from pathlib import Path

import pytest

from herder.machine.cli.main import guarded, run
from herder.machine.drivers import NATIVE
from tests.unit.machine.cli.paper import PAPER, PLACE, Provider


class Command:
    """`herder-machine` with a store of its own, in this process."""

    def __init__(self, store: Path, output: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._output = output

    def __call__(self, *words: str, status: int = 0) -> tuple[str, str]:
        """What it says and what it complains of; the exit status is insisted on."""
        self._output.readouterr()
        found = guarded(lambda: run(["--storage-path", str(self.store), *words], os.environ))
        said = self._output.readouterr()
        assert found == status, f"exit {found}\n{said.out}{said.err}"
        return said.out, said.err


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
