"""Start the host daemon if it does not run; safe against concurrent starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from herder.machine.errors import Unreachable
from herder.machine.host import places, sockets

TIMEOUT_SECONDS = 30.0
ANSWER_SECONDS = 10.0
LOG_BYTES = 4 * 1024 * 1024
ANOTHER_SERVES = 3  # exit status if another daemon uses the directory

_KEPT = {"HOME", "LANG", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"}
_KEPT_FAMILIES = ("LC_", "XDG_", "HERDER_LOCAL_")


def ensure_running(state_dir: Path) -> None:
    """Start the daemon in its own session if none responds, so that it outlives this process."""
    state_dir = state_dir.absolute()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not answers(state_dir):
        status = _start(state_dir)
        if status not in (0, ANOTHER_SERVES) or time.monotonic() > deadline:
            raise Unreachable("the host daemon did not start", f"see {state_dir / places.LOG}")
        if status == ANOTHER_SERVES:
            time.sleep(0.05)  # it has the directory, and is about to respond or exit


def answers(state_dir: Path) -> bool:
    """Whether the daemon responds. A connection alone is no proof: a child of a killed daemon may hold the socket
    briefly.
    """
    try:
        with sockets.connected(places.socket_of(state_dir), ANSWER_SECONDS) as stream:
            stream.sendall(b"\n")
            return bool(stream.recv(1))
    except OSError:
        return False


def _start(state_dir: Path) -> int:
    """Return when it responds or has failed."""
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
    """Return the environment of the daemon, without the caller's credentials."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
