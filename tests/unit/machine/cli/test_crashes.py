"""Kills at any moment: `create` can be continued and `rm` repeated; no server is lost or created twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from herder.engine.client import kubeconfig
from herder.machine.state.saved_machine import by_machine
from tests.unit.machine.cli.paper import Provider
from tests.unit.machine.state.secret_server import Fault, Server

CREATE = ("create", "--driver", "paper", "m1")
REMOVE = ("rm", "-y", "m1")


class Program:
    """Runs `herder-machine` as a process that stores its record in a Secret."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        config = kubeconfig.build(server=server.url, ca=b"")
        self._kubeconfig = directory / "kubeconfig"
        self._kubeconfig.write_text(json.dumps(config))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        places = ("--secret-name", "state", "--kubeconfig", str(self._kubeconfig))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.machine.cli.paper", *places, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, *arguments: str) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output
        return output

    def machines(self) -> list[str]:
        return list(by_machine(self.server.stored()))


@pytest.fixture
def program(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    server = Server()
    yield Program(server, tmp_path)
    server.close()


@contextlib.contextmanager
def paused_at(
    provider: Provider, step: str, process: Callable[[], subprocess.Popen[str]]
) -> Iterator[subprocess.Popen[str]]:
    """Run a process whose driver waits at a step."""
    gate = provider.place / step
    os.mkfifo(gate)
    os.mkfifo(provider.resume_pipe(step))
    started = process()
    with gate.open("rb"):  # opens when the driver reaches the step
        gate.unlink()
        yield started


def kill_at_step(program: Program, provider: Provider, step: str, *arguments: str) -> None:
    with paused_at(provider, step, lambda: program.start(*arguments)) as process:
        process.kill()
        process.communicate(timeout=30)


def kill_at_write(program: Program, number: int, when: str, *arguments: str) -> bool:
    """Kill the process at this PUT, before or after the server handles it; return False if there are fewer PUTs."""
    process: list[subprocess.Popen[str]] = []
    started = threading.Event()
    seen = 0

    def kill(server: Server, request: BaseHTTPRequestHandler) -> bool:
        nonlocal seen
        server.faults.append(kill)
        seen += request.command == "PUT"
        if request.command != "PUT" or seen != number:
            return False
        started.wait()
        process[0].kill()
        server.faults.clear()
        request.close_connection = True
        return when == "before"

    faults: list[Fault | None] = [kill]
    program.server.faults = faults
    process.append(program.start(*arguments))
    started.set()
    process[0].communicate(timeout=30)
    program.server.faults = []
    return process[0].returncode == -signal.SIGKILL


STEPS = ("token-saved", "server-made")


@pytest.mark.parametrize("step", STEPS)
def test_create_continues_with_the_same_server(program: Program, provider: Provider, step: str) -> None:
    kill_at_step(program, provider, step, *CREATE)
    assert program.machines() == ["m1"]
    program.finish(*CREATE)
    assert len(provider.servers()) == 1
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("step", STEPS)
def test_a_partial_machine_is_removed(program: Program, provider: Provider, step: str) -> None:
    kill_at_step(program, provider, step, *CREATE)
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("step", ["removing", "server-removed"])
def test_removal_continues(program: Program, provider: Provider, step: str) -> None:
    program.finish(*CREATE)
    kill_at_step(program, provider, step, *REMOVE)
    assert program.machines() == ["m1"]  # the record is deleted last
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_create_continues_after_a_kill_at_any_write(
    program: Program, provider: Provider, number: int, when: str
) -> None:
    assert kill_at_write(program, number, when, *CREATE)
    if provider.servers():
        assert program.machines() == ["m1"], "an unrecorded server"
    retried = program.start(*CREATE)
    output, _ = retried.communicate(timeout=30)
    finished = number == 4 and when == "after"
    assert (retried.returncode, "already exists" in output) == (int(finished), finished)
    assert len(provider.servers()) == 1
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_removal_continues_after_a_kill_at_any_write(
    program: Program, provider: Provider, number: int, when: str
) -> None:
    program.finish(*CREATE)
    assert kill_at_write(program, number, when, *REMOVE)
    if provider.servers():
        assert program.machines() == ["m1"], "an unrecorded server"
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


def test_the_number_of_writes_is_complete(program: Program, provider: Provider) -> None:
    for arguments, writes in ((CREATE, 4), (REMOVE, 2)):
        program.server.requests.clear()
        program.finish(*arguments)
        assert program.server.requests.count("PUT") == writes


def test_a_superseded_process_cannot_save(program: Program, provider: Provider) -> None:
    """If a process hangs and another takes over, the first must not overwrite the record of the second."""
    with paused_at(provider, "token-saved", lambda: program.start(*CREATE)) as first:
        program.finish(*CREATE)
        known = program.server.stored()
        provider.resume_pipe("token-saved").write_bytes(b"")
        output, _ = first.communicate(timeout=30)
    assert (first.returncode, "another process works on machine" in output) == (1, True)
    assert program.server.stored() == known
    assert len(provider.servers()) == 1


def test_sigterm_ends_create_and_the_server_is_recorded(program: Program, provider: Provider) -> None:
    with paused_at(provider, "server-made", lambda: program.start(*CREATE)) as process:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert program.machines() == ["m1"]
    program.finish(*REMOVE)
    assert provider.servers() == {}
