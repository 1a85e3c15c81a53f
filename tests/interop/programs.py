"""Runs a real program on an engine as its user would, with a kubeconfig in the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.engines import Engine
from tests.support.peers import peer


def run(
    engine: Engine,
    name: str,
    *arguments: str | Path,
    home: Path | None = None,
    check: bool = True,
    seconds: float = 90,
) -> subprocess.CompletedProcess[str]:
    """`home` is where the program may store its own files."""
    environment = os.environ | {"KUBECONFIG": str(engine.kubeconfig)}
    if home is not None:
        environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run(
        [peer(name), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=seconds,
        check=False,
    )
    if check and done.returncode:
        command_line = " ".join(str(argument) for argument in arguments)
        raise AssertionError(f"{name} {command_line}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done
