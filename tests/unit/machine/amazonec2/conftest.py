"""One emulated cloud for all tests here; the fixture `ec2` empties it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from herder.machine.cli.main import guarded, run
from tests.support.cloud.ec2 import KEYS, Ec2
from tests.unit.machine.amazonec2 import preloaded  # noqa: F401
from tests.unit.machine.amazonec2.fault_proxy import FaultProxy


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
def proxy(ec2: Ec2) -> Iterator[FaultProxy]:
    with FaultProxy(ec2.port) as proxy:
        yield proxy


class Command:
    """Runs `herder-machine` in this process, with its own store."""

    def __init__(self, store: Path, output: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._output = output

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Run a command and assert its exit status; return stdout and stderr."""
        self._output.readouterr()
        exit_status = self.status(arguments)
        captured = self._output.readouterr()
        assert exit_status == status, captured.out + captured.err
        return captured.out + captured.err

    def status(self, arguments: Sequence[str]) -> int:
        return guarded(lambda: run(["--storage-path", str(self.store), *arguments], os.environ))

    def create(self, *flags: str, name: str = "m1", status: int = 0) -> str:
        return self("create", "--driver=amazonec2", *flags, name, status=status)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path / "store", capsys)
