"""Programs that the runner runs for the images of machine Jobs, and that pods can run them from any directory."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.api.settings import Settings
from herder.app.runner import commands_from, machine_program, rancher_machine_program
from herder.engine.runner.isolation import HostUser, container_config, detect
from herder.engine.runner.logs import LogOptions, read
from herder.engine.runner.pod.attempt import Attempt
from herder.engine.runner.pod.environment import DEFAULT_PATH, Program
from herder.engine.runner.pod.sources import NotReady
from tests.support.peers import peer


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="node-") as name:
        yield Path(name)


async def run(directory: Path, program: Program) -> tuple[int, str]:
    user = HostUser.named()
    config = container_config(
        program.command,
        {"PATH": DEFAULT_PATH, **program.environment},
        isolation=await detect(directory, user),
        user=user,
        container_ids=(1000, 1000),
        needs=list(program.needs),
    )
    attempt = await Attempt.start(directory / "0", config)
    outcome = await attempt.ended()
    assert outcome is not None
    output = b"".join([chunk async for chunk in read(attempt.log, LogOptions(), ended=lambda: True)])
    return outcome.code, outcome.message + output.decode()


def with_arguments(program: Program, *arguments: str) -> Program:
    return dataclasses.replace(program, command=[*program.command, *arguments])


HERDER_MACHINE = ["-m", "herder.machine.entrypoint"]
RANCHER_MACHINE = [*HERDER_MACHINE, "--program", "rancher-machine"]


@pytest.mark.parametrize(
    ("settings", "image", "ending"),
    [
        ({}, "herder/machine:v0.1", HERDER_MACHINE),
        ({}, "herder/machine", HERDER_MACHINE),
        ({}, "rancher/machine:v0.15.0-rancher145", RANCHER_MACHINE),
        ({}, "rancher/machine@sha256:00", RANCHER_MACHINE),
        ({"machine-provision-image": "registry:5000/my/machine:1"}, "registry:5000/my/machine:2", HERDER_MACHINE),
        ({"machine-provision-image": "registry:5000/my/machine:1"}, "herder/machine", None),
        ({"runner-commands": '{"herder/machine": ["/bin/mine", "x"]}'}, "herder/machine:v1", ["/bin/mine", "x"]),
        ({}, "busybox", None),
    ],
)
def test_programs_of_machine_images(settings: dict[str, str], image: str, ending: list[str] | None) -> None:
    found = commands_from(Settings(flags={"rancher-machine-path": "/bin/true", **settings}))(image)
    assert (found and found.command[-len(ending or HERDER_MACHINE) :]) == ending


def test_a_missing_rancher_machine_is_reported_with_the_setting() -> None:
    with pytest.raises(NotReady, match=r'program "/none" not found.*setting "rancher-machine-path"'):
        commands_from(Settings(flags={"rancher-machine-path": "/none"}))("rancher/machine:v1")


async def test_a_pod_runs_this_installation_with_its_libraries(directory: Path) -> None:
    """Including extension modules of the interpreter and libraries, which may be in root's home directory."""
    program = machine_program()
    code = (
        "import asyncssh, ctypes, json, ssl, sys, herder; print(json.dumps([sys.flags.dont_write_bytecode, sys.path]))"
    )
    code_program = dataclasses.replace(program, command=[*program.command[:-2], "-c", code])
    exit_code, output = await run(directory, code_program)
    assert exit_code == 0, output
    unwritten, path = json.loads(output)
    assert unwritten == 1
    assert "" not in path


async def test_a_pod_runs_the_machine_program(directory: Path) -> None:
    exit_code, output = await run(directory, with_arguments(machine_program(), "--version"))
    assert (exit_code, output.partition(" ")[0]) == (0, "herder-machine")


async def test_a_pod_runs_rancher_machine_from_a_private_directory(directory: Path) -> None:
    private = directory / "private"
    private.mkdir(mode=0o700)
    copy = Path(shutil.copy(peer("rancher-machine"), private))
    exit_code, output = await run(directory, with_arguments(rancher_machine_program(str(copy)), "--version"))
    assert (exit_code, output.partition(" ")[0]) == (0, "rancher-machine")
