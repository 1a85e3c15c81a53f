"""Explain why an address cannot be bound."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


def explain_bind_error(error: OSError, host: str, port: int) -> str:
    """A message for the user; that of the error itself if the reason is another one."""
    if error.errno == errno.EADDRINUSE:
        holder = _holder(port)
        by = f" by process {holder[0]} ({holder[1]})" if holder else ""
        free = f"--listen {host}:{port + 1 if port < 65535 else 0}"
        return f"--listen {host}:{port}: the port is in use{by}; stop that process, or choose another port: {free}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--listen {host}:{port}: this host does not have the address; use 127.0.0.1 or 0.0.0.0"
    if error.errno == errno.EACCES:
        return f"--listen {host}:{port}: only root can use ports below 1024; choose a higher port"
    return str(error)


def _holder(port: int) -> tuple[int, str] | None:
    """ID and name of the process that listens on a port, if this user can see it."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):
            if any(str(each.readlink()) in sockets for each in (process / "fd").iterdir()):
                return int(process.name), (process / "comm").read_text().strip()
    return None


def _listening(table: str, port: int) -> list[str]:
    """Inodes of the sockets that listen on a port."""
    try:
        lines = Path("/proc/net", table).read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
