"""Makes sure that the host daemon runs, whoever else is just trying the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from herder.machine.errors import Unreachable
from herder.machine.host import places, sockets

PATIENCE_SECONDS = 30.0
ANSWER_SECONDS = 10.0
LOG_BYTES = 4 * 1024 * 1024
ANOTHER_SERVES = 3  # the program's exit status when it finds the directory taken

_KEPT = {"HOME", "LANG", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
_KEPT_FAMILIES = ("LC_", "XDG_", "HERDER_LOCAL_")


def ensure_running(state_dir: Path) -> None:
    """Started in a session of its own where nothing answers: it outlives whoever started it."""
    state_dir = state_dir.absolute()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not answers(state_dir):
        status = _start(state_dir)
        if status not in (0, ANOTHER_SERVES) or time.monotonic() > deadline:
            raise Unreachable("the host daemon did not start", f"see {state_dir / places.LOG}")
        if status == ANOTHER_SERVES:
            time.sleep(0.05)  # it has the directory, and is about to answer or to end


def answers(state_dir: Path) -> bool:
    """Says something, whatever it is: a connection alone is no proof, for a program that a daemon was just about to run
    when it was killed has the socket open for a moment more."""
    try:
        with sockets.connected(places.socket_of(state_dir), ANSWER_SECONDS) as stream:
            stream.sendall(b"\n")
            return bool(stream.recv(1))
    except OSError:
        return False


def _start(state_dir: Path) -> int:
    """Returns when it answers, or has given up."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = _log(state_dir / places.LOG)
    try:
        return subprocess.run(
            [sys.executable, "-m", "herder.machine.host", "--state-dir", str(state_dir), "--detach"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
        ).returncode
    finally:
        os.close(log)


def _log(path: Path) -> int:
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _environment() -> dict[str, str]:
    """What a program of this host needs; the starter's credentials are none of its business."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
