"""The `herder` command as a user runs it, in its own process."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.embedded import HERDER


def herder(*arguments: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "HERDER_DATA_DIR")}
    result = subprocess.run(
        [HERDER, *arguments], capture_output=True, text=True, timeout=60, check=False, env=clean | environment
    )
    if check and result.returncode:
        raise AssertionError(f"herder {arguments}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def expect_failure(*arguments: str | Path, **environment: str) -> str:
    """The error output of a command that fails, without a traceback."""
    result = herder(*arguments, check=False, **environment)
    assert result.returncode in (1, 2), f"exit {result.returncode}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr
    return result.stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            clean = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "HERDER_DATA_DIR")}
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored if the tests run in the background of a script
            os.execve(HERDER, [str(HERDER), *map(str, arguments)], clean | environment)
        self.output = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.output:
            readable, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"no {text!r} in: {self.output}"
            self.output += os.read(self._descriptor, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def exit_status(self) -> int:
        with suppress(OSError):  # EIO at the end
            while chunk := os.read(self._descriptor, 4096):
                self.output += chunk.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(status)


@contextmanager
def replica(kubeconfig: Path, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `herder run` process, ended by SIGTERM."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [HERDER, "run", "--kubeconfig", kubeconfig, "--capi-core=external", "--no-machines", *flags],
            stdout=out,
            stderr=out,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
