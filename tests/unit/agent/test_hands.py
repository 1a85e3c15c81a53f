"""Where instructions run, and what stays of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from herder.agent.core.events import AcquireInterlock, InterlockAcquired, Run
from tests.unit.agent.nodes import hands_in, instruction


class Node:
    def __init__(self, directory: Path, **settings: str) -> None:
        self.work = directory / "work"
        self.executor = hands_in(directory, **settings)

    def run(self, script: str) -> str:
        """What it says, as the only instruction of a plan."""
        assert self.executor.enter(AcquireInterlock("checksum", b"{}")) == InterlockAcquired()
        finished = self.executor.run(Run("checksum_0", instruction(script), 1))
        self.executor.leave()
        return finished.stdout.decode()

    def close(self) -> None:
        self.executor.close()

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.work.rglob("*") if path.is_file())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(Node(tmp_path)) as found:
        yield found


@pytest.fixture
def stamps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One second for each run."""
    found = [f"20261115-00000{number}" for number in range(9)]
    monkeypatch.setattr(time, "strftime", lambda *_: found.pop(0))
    return found


def test_of_earlier_runs_nothing_stays_after_the_next(node: Node, tmp_path: Path, stamps: list[str]) -> None:
    (tmp_path / "work" / "20261114-000000").mkdir(parents=True)
    (tmp_path / "work" / "20261114-000000" / "of another life").touch()
    node.run("touch first")
    node.executor.tidy()
    assert node.left == ["first"]
    assert node.run("ls; touch second") == ""
    node.executor.tidy()
    assert node.left == ["second"], "to be looked at until the next run"


def test_a_second_run_within_a_second_finds_nothing_of_the_first(node: Node, stamps: list[str]) -> None:
    stamps[:] = ["20261115-000000"] * 2
    node.run("touch first")
    assert node.run("ls") == ""


def test_everything_stays_where_that_is_wanted(tmp_path: Path, stamps: list[str]) -> None:
    with closing(Node(tmp_path, preserveWorkDirectory="true")) as node:
        for name in ("first", "second"):
            node.run(f"touch {name}")
            node.executor.tidy()
        assert node.left == ["first", "second"]


def test_nothing_is_removed_while_another_plan_is_applied(node: Node, stamps: list[str]) -> None:
    node.run("touch first")
    node.executor.enter(AcquireInterlock("checksum", b"{}"))
    node.executor.tidy()
    assert node.left == ["first"]
    node.executor.leave()
