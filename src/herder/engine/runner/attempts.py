"""One run of one container: started through its shim, found again after a restart, stopped, and how it ended.

The lock is the truth about life: the runner takes it before the shim exists, the shim and the container's first
process inherit it, and the kernel frees it when the last of them has gone. So after any crash "locked" means that it
may still run, "free" that it does not, and a free one without a `running` file never ran at all.
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
_KILL = signal.SIGUSR1  # what the shim takes for SIGKILL
_LOOK_AGAIN = 0.02
_SOURCES = str(Path(herder.__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `reason` is set where the program itself is not to blame."""

    code: int
    started: float
    finished: float
    signal: int = 0
    reason: str = ""
    message: str = ""


class Attempt:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.termination_message = directory / "termination-message"
        self._pid = 0
        self._news: asyncio.Event | None = None  # that it runs, or never will; unknown of one that was found again

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @classmethod
    async def start(cls, directory: Path, config: Mapping[str, Any]) -> Attempt:
        """Hand over what to run; `started` tells when it does."""
        attempt = cls(directory)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "root").mkdir(exist_ok=True)
        text = json.dumps({**config, "directory": str(directory), "scratch": str(directory / "root")}).encode() + b"\n"
        hearing, telling = os.pipe()
        try:
            await asyncio.to_thread(attempt._spawn, text, telling)
        except BaseException:
            os.close(hearing)
            raise
        finally:
            os.close(telling)
        attempt._listen(hearing)
        return attempt

    def _listen(self, hearing: int) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def heard() -> None:
            loop.remove_reader(hearing)
            os.close(hearing)
            news.set()

        loop.add_reader(hearing, heard)
        self._news = news

    def _spawn(self, config: bytes, telling: int) -> None:
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        reading, writing = os.pipe()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            actions = [
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(self.directory / "shim-errors"), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, lock, 3),
                (os.POSIX_SPAWN_DUP2, telling, 4),
            ]
            command = [sys.executable, "-P", "-s", "-m", "herder.engine.runner.shim"]
            environment = {"PYTHONPATH": _SOURCES, "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
            self._pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True)
            os.close(reading)
            reading = -1
            with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb", closefd=False) as pipe:
                pipe.write(config)
        finally:
            for descriptor in (lock, writing, *([reading] if reading >= 0 else [])):
                os.close(descriptor)

    # --- looking ------------------------------------------------------------------------------------------------

    def ran(self) -> bool:
        return (self.directory / "running").exists() or (self.directory / "exit").exists()

    def alive(self) -> bool:
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
        """None while it may still run, and for one that never ran."""
        reported = self._read("exit")
        if reported is not None:
            return self._told_outcome(reported)
        running = self._read("running")
        if running is None or self.alive():
            return None
        if (reported := self._read("exit")) is not None:  # it ended between the two looks
            return self._told_outcome(reported)
        when = (self.directory / "running").stat().st_mtime
        message = "the process that watched over the container was killed; how the container ended is not known"
        return Outcome(LOST_CODE, float(running["started"]), when, 0, "ContainerStatusUnknown", message)

    def _told_outcome(self, status: dict[str, Any]) -> Outcome:
        started, finished = float(status.get("started") or status["finished"]), float(status["finished"])
        if "error" in status:
            return Outcome(START_ERROR_CODE, started, finished, 0, "ContainerCannotRun", status["error"])
        if "start_error" in status:
            return Outcome(START_ERROR_CODE, started, finished, 0, "StartError", status["start_error"])
        return Outcome(int(status["code"]), started, finished, int(status.get("signal", 0)))

    # --- waiting ------------------------------------------------------------------------------------------------

    async def started(self) -> bool:
        """Whether the program was let go; False where it ended or vanished before."""
        if self._news is not None:
            await self._news.wait()
        while not self.ran():
            if not self.alive():
                return self.ran()
            await asyncio.sleep(_LOOK_AGAIN)
        return True

    async def ended(self) -> Outcome | None:
        """How it ended; None where it never ran."""
        if await self.started():
            with contextlib.suppress(ProcessLookupError):
                await self._shim_gone()
            while self.alive():  # noqa: ASYNC110 - a lock has no event; the shim is the last but for this moment
                await asyncio.sleep(_LOOK_AGAIN)
        self._reap()
        outcome = self.outcome()
        if outcome is None and (errors := self._shim_errors()):
            return Outcome(START_ERROR_CODE, 0.0, 0.0, 0, "ContainerCannotRun", errors)
        return outcome

    async def _shim_gone(self) -> None:
        running = self._read("running")
        if running is None:
            return
        descriptor = os.pidfd_open(int(running["shim"]))
        try:
            if not self.alive():  # checked after opening: while the lock is held, the number is the shim's
                return
            loop, gone = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(descriptor)
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        if self._pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)

    # --- stopping -----------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(_KILL)

    def _signal(self, number: int) -> None:
        running = self._read("running")
        if running is not None and self.alive():
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
    """Every attempt of a container that left a trace, the oldest first."""
    if not directory.is_dir():
        return []
    numbers = sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
    return [Attempt(directory / str(number)) for number in numbers]
