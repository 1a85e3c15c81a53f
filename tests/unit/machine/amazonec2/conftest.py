"""One emulated cloud for all tests here, empty at the beginning of each that asks for `ec2`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from herder.machine.cli.main import guarded, run
from tests.support.ec2 import KEYS, Ec2
from tests.unit.machine.amazonec2 import preloaded  # noqa: F401
from tests.unit.machine.amazonec2.interrupting import Wire


@pytest.fixture(scope="session")
def cloud() -> Iterator[Ec2]:
    with Ec2() as cloud:
        yield cloud


@pytest.fixture
def ec2(cloud: Ec2, monkeypatch: pytest.MonkeyPatch) -> Ec2:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    cloud.reset()
    return cloud


@pytest.fixture
def wire(ec2: Ec2) -> Iterator[Wire]:
    with Wire(ec2.port) as wire:
        yield wire


class Command:
    """`herder-machine` with a store of its own, in this process."""

    def __init__(self, store: Path, output: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._output = output

    def __call__(self, *words: str, status: int = 0) -> str:
        """What it says, on both streams; the exit status is insisted on."""
        self._output.readouterr()
        found = self.status(words)
        said = self._output.readouterr()
        assert found == status, said.out + said.err
        return said.out + said.err

    def status(self, words: Sequence[str]) -> int:
        return guarded(lambda: run(["--storage-path", str(self.store), *words], os.environ))

    def create(self, *flags: str, name: str = "m1", status: int = 0) -> str:
        return self("create", "--driver=amazonec2", *flags, name, status=status)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "store", capsys)
