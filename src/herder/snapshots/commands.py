"""Run programs with a deadline and bounded output, and without the environment of this process."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from herder.snapshots.errors import SnapshotError

LIMIT = 1 << 20
_PIECE = 1 << 16
_FULL = ("no space left on device", "disk quota exceeded", "file too large")


class Output(NamedTuple):
    stdout: bytes
    code: int
    problem: str  # the last error that the program printed


def run(command: Sequence[str], timeout: float) -> Output:
    """Run a program until it ends. If it does not end in time, it is killed."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/"},
        )
    except OSError as error:
        raise SnapshotError(f"{command[0]}: cannot run it: {error.strerror}") from None
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        stdout, stderr = _read(process.stdout, process.stderr, time.monotonic() + timeout)
        process.wait(max(1.0, timeout))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise SnapshotError(f"{os.path.basename(command[0])} {command[-1]}: has not ended in {timeout:g} s") from None
    finally:
        _end(process)
    return Output(stdout, process.returncode, _problem(stderr))


def succeed(what: str, command: Sequence[str], timeout: float) -> bytes:
    """Run a program and return its output; `what` names its object in the error."""
    output = run(command, timeout)
    if output.code == 0:
        return output.stdout
    if any(each in output.problem.lower() for each in _FULL):
        raise SnapshotError(f"{what}: the disk is full ({output.problem}); free some space and try again")
    raise SnapshotError(
        f"{what}: {os.path.basename(command[0])} failed: {output.problem or f'exit code {output.code}'}"
    )


def _read(stdout: IO[bytes], stderr: IO[bytes], end: float) -> tuple[bytes, bytes]:
    """Return the beginning of the output and the end of the errors, both within the limit."""
    kept = {stdout: bytearray(), stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for each in (stdout, stderr):
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select(max(0.0, end - time.monotonic())):
                pipe = stdout if ready.fileobj is stdout else stderr
                piece = os.read(pipe.fileno(), _PIECE)
                if not piece:
                    selector.unregister(pipe)
                elif pipe is stdout:
                    kept[pipe] += piece[: LIMIT - len(kept[pipe])]
                else:
                    kept[pipe] = (kept[pipe] + piece)[-LIMIT:]
            if time.monotonic() >= end:
                raise TimeoutError
    return bytes(kept[stdout]), bytes(kept[stderr])


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _problem(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error: ")]
    chosen = (errors or lines or [""])[-1]
    return chosen.removeprefix("Error: ")[-400:]
