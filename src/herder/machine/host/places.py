"""Paths of the host daemon."""

from __future__ import annotations

import os
from pathlib import Path

from herder.api.machines.hosts import SOCKET_NAME

KEY = "key"  # root of all credentials; readable only by the owner
API = "api"  # the directory that Jobs mount; contains only the socket
MACHINES = "machines"
REMOVED = "removed"  # directories being deleted
LOG = "daemon.log"


def data_directory() -> Path:
    if os.environ.get("HERDER_DATA_DIR"):
        return Path(os.environ["HERDER_DATA_DIR"])
    if os.geteuid() == 0:
        return Path("/var/lib/herder")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "herder"


def state_directory() -> Path:
    return data_directory() / "host"


def socket_of(state_dir: Path) -> Path:
    return state_dir / API / SOCKET_NAME
