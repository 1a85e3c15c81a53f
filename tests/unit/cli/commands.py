"""The `herder` command as a user runs it, in its own process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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
