"""Files of a machine that a program of the host must not read while it enters the machine."""

from __future__ import annotations

import encodings
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import herder
from herder.machine.host.kinds import Place
from herder.machine.host.process import enter
from tests.unit.machine.host.hosts import Host
from tests.unit.machine.process.machine_ssh import connect, output_of, run

CODECS = os.path.dirname(encodings.__file__)
PACKAGE = Path(herder.__file__).parent
MODULE = b"import os\nopen('/var/proof', 'w').write(str(os.getpid()))\n"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package for the daemon, at a path that machines can write: they have a /tmp of their own."""
    copy = tmp_path / "sources" / "herder"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(copy.parent))
    return copy


@pytest.fixture
def place(tmp_path: Path, sources: Path) -> Iterator[Place]:
    with Host(tmp_path) as host:
        host.start()
        yield host.create("m1")


async def test_no_code_of_a_machine_runs_outside_of_its_pid_namespace(place: Place, sources: Path) -> None:
    """An error after entering would print source lines, which the machine has, with a codec that it has too."""
    source = sources / Path(enter.__file__).relative_to(PACKAGE)
    planted = await run(place, f"mkdir -p {CODECS} && cat >{CODECS}/planted.py", input=MODULE)
    if planted.exit_status:
        pytest.skip("this host's Python is in a directory that machines cannot write")
    written = await run(place, f"mkdir -p {source.parent} && cat >{source}", input=b"# coding: planted\n" + b"\n" * 200)
    assert written.exit_status == 0
    await output_of(place, "rm /dev/ptmx")
    async with connect(place) as connection:
        process = await connection.create_process(None, term_type="xterm", encoding=None)
        assert await process.stdout.read() == b""
    assert await output_of(place, "ls /var/proof 2>/dev/null || true") == ""


async def test_a_machine_without_a_terminal_still_runs_commands(place: Place) -> None:
    await output_of(place, "rm /dev/ptmx")
    assert await output_of(place, "echo here") == "here"
