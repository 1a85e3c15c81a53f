"""Run `herder up` in the background, or as a systemd service."""

from __future__ import annotations

import os
import re
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
STATE_DIRECTORIES = Path("/var/lib")
SYSTEM_DATA_DIRECTORY = STATE_DIRECTORIES / "herder"
FIRST_UNPRIVILEGED_PORT = 1024


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


def systemd_unit(arguments: Sequence[str], directory: Path, *, user: str = "", port: int = 0) -> str:
    """A service that runs `herder up`: of the system for root or with `user`, else of the calling user."""
    of_system = bool(user) or os.geteuid() == 0
    command = shlex.join([str(_program()), "up", *arguments])
    account = f"User={user}\n" if user else ""
    hardening = "\n" + _hardening(port) if user else ""
    return f"""[Unit]
Description=Herder manager
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
{account}ExecStart={command.replace("%", "%%")}
Restart=on-failure
RestartSec=5
TimeoutStartSec=5min
# Machines of the drivers process and local outlive the manager. They count as tasks of this service, and a machine
# that runs out of memory does not stop it.
KillMode=process
OOMPolicy=continue
TasksMax=infinity
{_state_directory(directory) if of_system else ""}UMask=0077
{hardening}
[Install]
WantedBy={"multi-user.target" if of_system else "default.target"}
"""


def _state_directory(directory: Path) -> str:
    """systemd creates directories below /var/lib for the user of the service; an administrator creates others."""
    below = directory.relative_to(STATE_DIRECTORIES) if directory.is_relative_to(STATE_DIRECTORIES) else None
    if below is None or ".." in below.parts or re.fullmatch(r"\w[\w./@-]*", str(below)) is None:
        return ""
    return f"StateDirectory={below}\nStateDirectoryMode=0700\n"


def _hardening(port: int) -> str:
    """Options that process machines and the runner can do with; other options break them, see docs/install.md."""
    capability = "CAP_NET_BIND_SERVICE" if 0 < port < FIRST_UNPRIVILEGED_PORT else ""
    ambient = f"AmbientCapabilities={capability}\n" if capability else ""
    return f"""# Machines and Jobs inherit these limits. They need namespaces with a /proc of their own, so
# RestrictNamespaces, ProtectKernelTunables, ProtectKernelLogs and ProcSubset must stay off.
CapabilityBoundingSet={capability}
{ambient}NoNewPrivileges=yes
ProtectSystem=full
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelModules=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
"""


def _program() -> Path:
    """Absolute path of this command; systemd does not search PATH of the user."""
    own = Path(sys.argv[0])
    return own.absolute() if own.name == "herder" and own.exists() else Path(sys.executable).with_name("herder")
