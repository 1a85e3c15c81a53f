"""Programs that outlive the daemon: in a session of their own, not ended with it, yet noticed when they end before."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import herder

_SOURCES = str(Path(herder.__file__).parents[1])


class Lasting:
    """One module of ours, run with one argument; what it complains of is added to `log`."""

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
        """Of one that is `heard`: the line that it says when it is ready; nothing if it ends before."""
        output: IO[bytes] | None = self._process.stdout
        assert output is not None
        with output:
            return (await asyncio.to_thread(output.readline)).decode().strip()

    def complaint(self) -> str:
        """The last that it said."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"see {self.log}"

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._process.wait()
        self.ended.set()
