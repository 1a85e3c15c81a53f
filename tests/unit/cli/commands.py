"""The `herder` command as a user types it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.embedded import HERDER


def herder(*arguments: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "HERDER_DATA_DIR")}
    done = subprocess.run(
        [HERDER, *arguments], capture_output=True, text=True, timeout=60, check=False, env=clean | environment
    )
    if check and done.returncode:
        raise AssertionError(f"herder {arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def refused(*arguments: str | Path, **environment: str) -> str:
    """What is said to a command that cannot be; never a traceback."""
    done = herder(*arguments, check=False, **environment)
    assert done.returncode in (1, 2), f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def replica(kubeconfig: Path, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """`herder run`, ended by SIGTERM."""
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
