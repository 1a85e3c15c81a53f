"""One run of a container: started through its shim, adopted after a runner restart, stopped, with its outcome.

A file lock shows whether the container is alive. The runner takes the lock before the shim exists, the shim and the
container's first process inherit it, and the kernel releases it when the last of them exits. After any crash, a held
lock means that the container may still run, and a free lock that it does not. A free lock without a `running` file
means that it never started.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import herder

LOST_CODE = 137
START_ERROR_CODE = 128
_KILL = signal.SIGUSR1  # the shim translates it to SIGKILL
_POLL_SECONDS = 0.02
_SOURCES = str(Path(herder.__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `reason` is set if the program itself did not fail."""

    code: int
    started: float
    finished: float
    signal: int = 0
    reason: str = ""
    message: str = ""


class Attempt:
    """One run of a container and its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.termination_message = directory / "termination-message"
        self._pid = 0
        self._start_event: asyncio.Event | None = None  # set when it runs or failed to start; None for adopted attempts

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @classmethod
    async def start(cls, directory: Path, config: Mapping[str, Any]) -> Attempt:
        """Spawn the shim; `started` waits until the program runs."""
        attempt = cls(directory)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "root").mkdir(exist_ok=True)
        text = json.dumps({**config, "directory": str(directory), "scratch": str(directory / "root")}).encode() + b"\n"
        read_end, write_end = os.pipe()
        try:
            await asyncio.to_thread(attempt._spawn, text, write_end)
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        attempt._listen(read_end)
        return attempt

    def _listen(self, read_end: int) -> None:
        loop, start_event = asyncio.get_running_loop(), asyncio.Event()

        def on_readable() -> None:
            loop.remove_reader(read_end)
            os.close(read_end)
            start_event.set()

        loop.add_reader(read_end, on_readable)
        self._start_event = start_event

    def _spawn(self, config: bytes, write_end: int) -> None:
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stdin_read, stdin_write = os.pipe()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            actions = [
                (os.POSIX_SPAWN_DUP2, stdin_read, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(self.directory / "shim-errors"), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, lock, 3),
                (os.POSIX_SPAWN_DUP2, write_end, 4),
            ]
            command = [sys.executable, "-P", "-s", "-m", "herder.engine.runner.shim"]
            environment = {"PYTHONPATH": _SOURCES, "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
            self._pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True)
            os.close(stdin_read)
            stdin_read = -1
            with contextlib.suppress(BrokenPipeError), os.fdopen(stdin_write, "wb", closefd=False) as pipe:
                pipe.write(config)
        finally:
            for descriptor in (lock, stdin_write, *([stdin_read] if stdin_read >= 0 else [])):
                os.close(descriptor)

    # --- inspect ------------------------------------------------------------------------------------------------

    def has_run(self) -> bool:
        return (self.directory / "running").exists() or (self.directory / "exit").exists()

    def is_alive(self) -> bool:
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def started_at(self) -> float | None:
        reported = self._read("running")
        return float(reported["started"]) if reported else None

    def outcome(self) -> Outcome | None:
        """Return the outcome; None while it may still run, and if it never started."""
        reported = self._read("exit")
        if reported is not None:
            return self._parse_outcome(reported)
        running = self._read("running")
        if running is None or self.is_alive():
            return None
        if (reported := self._read("exit")) is not None:  # it ended between the two checks
            return self._parse_outcome(reported)
        when = (self.directory / "running").stat().st_mtime
        message = "container shim was killed; the exit status of the container is unknown"
        return Outcome(LOST_CODE, float(running["started"]), when, 0, "ContainerStatusUnknown", message)

    def _parse_outcome(self, status: dict[str, Any]) -> Outcome:
        started, finished = float(status.get("started") or status["finished"]), float(status["finished"])
        if "error" in status:
            return Outcome(START_ERROR_CODE, started, finished, 0, "ContainerCannotRun", status["error"])
        if "start_error" in status:
            return Outcome(START_ERROR_CODE, started, finished, 0, "StartError", status["start_error"])
        return Outcome(int(status["code"]), started, finished, int(status.get("signal", 0)))

    # --- wait ---------------------------------------------------------------------------------------------------

    async def started(self) -> bool:
        """Wait until the program runs; return False if it ended or vanished before."""
        if self._start_event is not None:
            await self._start_event.wait()
        while not self.has_run():
            if not self.is_alive():
                return self.has_run()
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def ended(self) -> Outcome | None:
        """Wait for the end and return the outcome; None if it never started."""
        if await self.started():
            with contextlib.suppress(ProcessLookupError):
                await self._wait_for_shim()
            while self.is_alive():  # noqa: ASYNC110 - file locks have no event; the shim exits just before the lock is free
                await asyncio.sleep(_POLL_SECONDS)
        self._reap()
        outcome = self.outcome()
        if outcome is None and (errors := self._shim_errors()):
            return Outcome(START_ERROR_CODE, 0.0, 0.0, 0, "ContainerCannotRun", errors)
        return outcome

    async def _wait_for_shim(self) -> None:
        running = self._read("running")
        if running is None:
            return
        descriptor = os.pidfd_open(int(running["shim"]))
        try:
            if not self.is_alive():  # checked after opening: while the lock is held, the PID is the shim's
                return
            loop, exited = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, exited.set)
            try:
                await exited.wait()
            finally:
                loop.remove_reader(descriptor)
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        if self._pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)

    # --- stop ---------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(_KILL)

    def _signal(self, number: int) -> None:
        running = self._read("running")
        if running is not None and self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(running["shim"]), number)

    def _shim_errors(self) -> str:
        try:
            return (self.directory / "shim-errors").read_text(errors="replace").strip()[-1000:]
        except OSError:
            return ""

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.directory / name).read_bytes())
        except FileNotFoundError:
            return None
        return content


def attempts_in(directory: Path) -> list[Attempt]:
    """Return all recorded attempts of a container, oldest first."""
    if not directory.is_dir():
        return []
    numbers = sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
    return [Attempt(directory / str(number)) for number in numbers]
