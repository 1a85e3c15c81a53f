"""Processes that outlive the daemon: in their own session, but monitored while the daemon runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import herder

_SOURCES = str(Path(herder.__file__).parents[1])


class BackgroundProcess:
    """A module of ours, run with one argument; stderr is appended to `log`."""

    def __init__(self, module: str, argument: Path, log: Path, *, heard: bool = False) -> None:
        self.log = log
        self.ended = asyncio.Event()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", module, str(argument)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if heard else subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env={"PYTHONPATH": _SOURCES, "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
        self._descriptor = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._end)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def first_word(self) -> str:
        """With `heard`: return the line printed when it is ready; "" if it ends before."""
        output: IO[bytes] | None = self._process.stdout
        assert output is not None
        with output:
            return (await asyncio.to_thread(output.readline)).decode().strip()

    def complaint(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"see {self.log}"

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._process.wait()
        self.ended.set()
