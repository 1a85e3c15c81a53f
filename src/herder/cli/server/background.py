"""Run `herder up` in the background, or as a systemd service."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from herder.app.host.notification import READY, SOCKET

START_SECONDS = 60.0
LOG_TAIL_BYTES = 3000
LOG = "up.log"


def start_in_background(directory: Path, arguments: Sequence[str]) -> int:
    """Start `herder up` in its own session and wait until it is ready; returns its process ID."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = directory / LOG
    with tempfile.TemporaryDirectory(prefix="herder-") as place, _receiver(Path(place) / "ready") as receiver:
        environment = os.environ | {SOCKET: str(Path(place) / "ready"), "PYTHONUNBUFFERED": "1"}
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            begin = output.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "herder.cli", "up", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        if not _is_ready(process, receiver):
            process.terminate()
            tail = log.read_bytes()[begin:][-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise click.ClickException(_last_error(tail) or f"the server did not start; see {log}")
    return process.pid


def _receiver(path: Path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))
    receiver.settimeout(0.2)
    return receiver


def _is_ready(process: subprocess.Popen[bytes], receiver: socket.socket) -> bool:
    for _ in range(int(START_SECONDS / 0.2)):
        try:
            if receiver.recv(len(READY)) == READY:
                return True
        except TimeoutError:
            if process.poll() is not None:
                return False
    return False


def _last_error(log: str) -> str:
    """The message of a click exception, which is the last line."""
    last = log.splitlines()[-1] if log else ""
    return last.removeprefix("Error: ") if last.startswith("Error: ") else ""


def systemd_unit(arguments: Sequence[str]) -> str:
    """A service that runs `herder up`: of the system for root, else of the user."""
    command = shlex.join([str(_program()), "up", *arguments])
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return f"""[Unit]
Description=Herder manager
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart={command.replace("%", "%%")}
Restart=on-failure
# Machines of the drivers process and local outlive the manager.
KillMode=process
UMask=0077

[Install]
WantedBy={target}
"""


def _program() -> Path:
    """Absolute path of this command; systemd does not search PATH of the user."""
    own = Path(sys.argv[0])
    return own.absolute() if own.name == "herder" and own.exists() else Path(sys.executable).with_name("herder")
