"""The run-once script, as a shell runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from herder.api.rke.node.plan import Instruction
from herder.controllers.planner.distributions.rancher.scripts import run_once, run_once_script
from tests.unit.controllers.planner.distributions.inputs import cluster, worker


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Returns a function that runs a wrapped command and returns its exit code and how often the command ran."""
    inputs = cluster(dataDirectories={"provisioning": str(tmp_path)})
    script = run_once_script(inputs, worker())
    Path(script.path).parent.mkdir(parents=True)
    Path(script.path).write_bytes(script.decoded)
    log = tmp_path / "marks"

    def run_wrapped(value: str, attempt: str, code: int = 0) -> tuple[int, int]:
        command = f"echo ran >> {log}; exit {code}"
        wrapped = run_once(inputs, "key", value, Instruction(command="/bin/sh", args=("-c", command)))
        environment = {"PATH": "/usr/bin:/bin", "CATTLE_AGENT_ATTEMPT_NUMBER": attempt}
        done = subprocess.run([wrapped.command, *wrapped.args], env=environment, capture_output=True, check=False)
        return done.returncode, len(log.read_text().splitlines())

    return run_wrapped


def test_a_command_runs_once_per_value_and_attempt(run) -> None:  # type: ignore[no-untyped-def]
    assert run("1", "1") == (0, 1)
    assert run("1", "1") == (0, 1)
    assert run("1", "2") == (0, 2)
    assert run("2", "1") == (0, 3)


def test_a_failed_command_is_not_repeated_in_the_same_attempt(run) -> None:  # type: ignore[no-untyped-def]
    """To retry within one attempt, callers therefore change the value."""
    assert run("1", "1", code=3) == (3, 1)
    assert run("1", "1", code=3) == (0, 1)
    assert run("1-again", "1", code=3) == (3, 2)
