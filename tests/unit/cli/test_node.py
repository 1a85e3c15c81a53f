"""What the runner runs for the images of machines' Jobs, and that a pod can run it wherever it is installed."""

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
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="node-") as name:
        yield Path(name)


async def run(place: Path, program: Program) -> tuple[int, str]:
    user = HostUser.named()
    config = container_config(
        program.command,
        {"PATH": DEFAULT_PATH, **program.environment},
        isolation=await detect(place, user),
        user=user,
        container_ids=(1000, 1000),
        needs=list(program.needs),
    )
    attempt = await Attempt.start(place / "0", config)
    outcome = await attempt.ended()
    assert outcome is not None
    said = b"".join([chunk async for chunk in read(attempt.log, LogOptions(), ended=lambda: True)])
    return outcome.code, outcome.message + said.decode()


def with_words(program: Program, *words: str) -> Program:
    return dataclasses.replace(program, command=[*program.command, *words])


OURS = ["-m", "herder.machine.entrypoint"]
THEIRS = [*OURS, "--program", "rancher-machine"]


@pytest.mark.parametrize(
    ("settings", "image", "ending"),
    [
        ({}, "herder/machine:v0.1", OURS),
        ({}, "herder/machine", OURS),
        ({}, "rancher/machine:v0.15.0-rancher145", THEIRS),
        ({}, "rancher/machine@sha256:00", THEIRS),
        ({"machine-provision-image": "registry:5000/my/machine:1"}, "registry:5000/my/machine:2", OURS),
        ({"machine-provision-image": "registry:5000/my/machine:1"}, "herder/machine", None),
        ({"runner-commands": '{"herder/machine": ["/bin/mine", "x"]}'}, "herder/machine:v1", ["/bin/mine", "x"]),
        ({}, "busybox", None),
    ],
)
def test_images_of_machines_stand_for_our_own_program(
    settings: dict[str, str], image: str, ending: list[str] | None
) -> None:
    found = commands_from(Settings(flags={"rancher-machine-path": "/bin/true", **settings}))(image)
    assert (found and found.command[-len(ending or OURS) :]) == ending


def test_a_rancher_machine_that_is_not_there_names_the_setting() -> None:
    with pytest.raises(NotReady, match=r'program "/none" not found.*setting "rancher-machine-path"'):
        commands_from(Settings(flags={"rancher-machine-path": "/none"}))("rancher/machine:v1")


async def test_a_pod_runs_this_installation_with_all_that_belongs_to_it(place: Path) -> None:
    """Extension modules of the interpreter and of the libraries among them, though root's home may hold them."""
    program = machine_program()
    code = (
        "import asyncssh, ctypes, json, ssl, sys, herder; print(json.dumps([sys.flags.dont_write_bytecode, sys.path]))"
    )
    code_runs = dataclasses.replace(program, command=[*program.command[:-2], "-c", code])
    ended, said = await run(place, code_runs)
    assert ended == 0, said
    unwritten, path = json.loads(said)
    assert unwritten == 1
    assert "" not in path


async def test_a_pod_runs_the_machine_program(place: Path) -> None:
    ended, said = await run(place, with_words(machine_program(), "--version"))
    assert (ended, said.partition(" ")[0]) == (0, "herder-machine")


async def test_a_pod_runs_rancher_machine_wherever_it_is(place: Path) -> None:
    private = place / "private"
    private.mkdir(mode=0o700)
    copy = Path(shutil.copy(peer("rancher-machine"), private))
    ended, said = await run(place, with_words(rancher_machine_program(str(copy)), "--version"))
    assert (ended, said.partition(" ")[0]) == (0, "rancher-machine")
