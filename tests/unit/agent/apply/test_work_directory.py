"""Work directories of instructions, and when they are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from herder.agent.core.events import AcquireInterlock, InterlockAcquired, Run
from tests.unit.agent.nodes import instruction, new_executor


class Node:
    def __init__(self, directory: Path, **settings: str) -> None:
        self.work = directory / "work"
        self.executor = new_executor(directory, **settings)

    def run(self, script: str) -> str:
        """Run a script as the only instruction of a plan; return its output."""
        assert self.executor.enter(AcquireInterlock("checksum", b"{}")) == InterlockAcquired()
        finished = self.executor.run(Run("checksum_0", instruction(script), 1))
        self.executor.leave()
        return finished.stdout.decode()

    def close(self) -> None:
        self.executor.close()

    @property
    def remaining_files(self) -> list[str]:
        return sorted(path.name for path in self.work.rglob("*") if path.is_file())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(Node(tmp_path)) as found:
        yield found


@pytest.fixture
def timestamps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give each run its own second."""
    found = [f"20261115-00000{number}" for number in range(9)]
    monkeypatch.setattr(time, "strftime", lambda *_: found.pop(0))
    return found


def test_a_run_deletes_work_directories_of_earlier_runs(node: Node, tmp_path: Path, timestamps: list[str]) -> None:
    (tmp_path / "work" / "20261114-000000").mkdir(parents=True)
    (tmp_path / "work" / "20261114-000000" / "from a previous process").touch()
    node.run("touch first")
    node.executor.tidy()
    assert node.remaining_files == ["first"]
    assert node.run("ls; touch second") == ""
    node.executor.tidy()
    assert node.remaining_files == ["second"], "kept for inspection until the next run"


def test_a_second_run_within_a_second_starts_in_an_empty_directory(node: Node, timestamps: list[str]) -> None:
    timestamps[:] = ["20261115-000000"] * 2
    node.run("touch first")
    assert node.run("ls") == ""


def test_preserve_work_directory_keeps_everything(tmp_path: Path, timestamps: list[str]) -> None:
    with closing(Node(tmp_path, preserveWorkDirectory="true")) as node:
        for name in ("first", "second"):
            node.run(f"touch {name}")
            node.executor.tidy()
        assert node.remaining_files == ["first", "second"]


def test_nothing_is_deleted_while_another_plan_is_applied(node: Node, timestamps: list[str]) -> None:
    node.run("touch first")
    node.executor.enter(AcquireInterlock("checksum", b"{}"))
    node.executor.tidy()
    assert node.remaining_files == ["first"]
    node.executor.leave()
