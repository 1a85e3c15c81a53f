"""Killed at any moment, a `create` can be gone on with and an `rm` repeated: no server is lost, none is made twice."""

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
from tests.unit.machine.state.secret_server import Mishap, Server

CREATE = ("create", "--driver", "paper", "m1")
REMOVE = ("rm", "-y", "m1")


class Program:
    """`herder-machine` as a process of its own, with its record in a Secret."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        config = kubeconfig.build(server=server.url, ca=b"")
        self._kubeconfig = directory / "kubeconfig"
        self._kubeconfig.write_text(json.dumps(config))

    def start(self, *words: str) -> subprocess.Popen[str]:
        places = ("--secret-name", "state", "--kubeconfig", str(self._kubeconfig))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.machine.cli.paper", *places, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, *words: str) -> str:
        process = self.start(*words)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0, said
        return said

    def machines(self) -> list[str]:
        return list(by_machine(self.server.stored()))


@pytest.fixture
def program(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    server = Server()
    yield Program(server, tmp_path)
    server.close()


@contextlib.contextmanager
def held_at(
    provider: Provider, step: str, process: Callable[[], subprocess.Popen[str]]
) -> Iterator[subprocess.Popen[str]]:
    """A process whose driver waits at a step."""
    gate = provider.place / step
    os.mkfifo(gate)
    os.mkfifo(provider.going_on(step))
    started = process()
    with gate.open("rb"):  # opens when the driver is there
        gate.unlink()
        yield started


def killed_at_step(program: Program, provider: Provider, step: str, *words: str) -> None:
    with held_at(provider, step, lambda: program.start(*words)) as process:
        process.kill()
        process.communicate(timeout=30)


def killed_at_write(program: Program, number: int, when: str, *words: str) -> bool:
    """At the given PUT, before or after the server takes it; False where there are not so many."""
    process: list[subprocess.Popen[str]] = []
    started = threading.Event()
    seen = 0

    def kill(server: Server, request: BaseHTTPRequestHandler) -> bool:
        nonlocal seen
        server.mishaps.append(kill)
        seen += request.command == "PUT"
        if request.command != "PUT" or seen != number:
            return False
        started.wait()
        process[0].kill()
        server.mishaps.clear()
        request.close_connection = True
        return when == "before"

    mishaps: list[Mishap | None] = [kill]
    program.server.mishaps = mishaps
    process.append(program.start(*words))
    started.set()
    process[0].communicate(timeout=30)
    program.server.mishaps = []
    return process[0].returncode == -signal.SIGKILL


STEPS = ("token-saved", "server-made")


@pytest.mark.parametrize("step", STEPS)
def test_create_goes_on_with_the_same_server(program: Program, provider: Provider, step: str) -> None:
    killed_at_step(program, provider, step, *CREATE)
    assert program.machines() == ["m1"]
    program.finish(*CREATE)
    assert len(provider.servers()) == 1
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("step", STEPS)
def test_what_was_begun_is_removed(program: Program, provider: Provider, step: str) -> None:
    killed_at_step(program, provider, step, *CREATE)
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("step", ["removing", "server-removed"])
def test_removal_goes_on(program: Program, provider: Provider, step: str) -> None:
    program.finish(*CREATE)
    killed_at_step(program, provider, step, *REMOVE)
    assert program.machines() == ["m1"]  # the record is the last to go
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_create_killed_at_a_write(program: Program, provider: Provider, number: int, when: str) -> None:
    assert killed_at_write(program, number, when, *CREATE)
    if provider.servers():
        assert program.machines() == ["m1"], "a server that nobody knows of"
    again = program.start(*CREATE)
    said, _ = again.communicate(timeout=30)
    finished = number == 4 and when == "after"
    assert (again.returncode, "already exists" in said) == (int(finished), finished)
    assert len(provider.servers()) == 1
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_removal_killed_at_a_write(program: Program, provider: Provider, number: int, when: str) -> None:
    program.finish(*CREATE)
    assert killed_at_write(program, number, when, *REMOVE)
    if provider.servers():
        assert program.machines() == ["m1"], "a server that nobody knows of"
    program.finish(*REMOVE)
    assert (provider.servers(), program.machines()) == ({}, [])


def test_these_are_all_the_writes_there_are(program: Program, provider: Provider) -> None:
    for words, writes in ((CREATE, 4), (REMOVE, 2)):
        program.server.requests.clear()
        program.finish(*words)
        assert program.server.requests.count("PUT") == writes


def test_a_process_that_was_overtaken_cannot_save(program: Program, provider: Provider) -> None:
    """One hangs, another takes over: the first must not write over what the second knows."""
    with held_at(provider, "token-saved", lambda: program.start(*CREATE)) as first:
        program.finish(*CREATE)
        known = program.server.stored()
        provider.going_on("token-saved").write_bytes(b"")
        said, _ = first.communicate(timeout=30)
    assert (first.returncode, "another process works on machine" in said) == (1, True)
    assert program.server.stored() == known
    assert len(provider.servers()) == 1


def test_a_request_to_end_ends_it_and_what_was_made_is_on_record(program: Program, provider: Provider) -> None:
    with held_at(provider, "server-made", lambda: program.start(*CREATE)) as process:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert program.machines() == ["m1"]
    program.finish(*REMOVE)
    assert provider.servers() == {}
