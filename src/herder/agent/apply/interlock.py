"""Interlock between the agent and whoever restarts it: two files, each of which makes the other side wait.

The files name their owner (PID, process start, boot ID); a file of a dead process is ignored.
"""

import json
import os
from typing import Any, Dict, Optional

from herder.agent.apply import atomic_file
from herder.agent.core import outputs

_RESTART_PENDING = "restart-pending"
_ACTIVE = "applyinator-active"
_MAX_WAIT = 300.0


class Interlock:
    def __init__(self, directory: str) -> None:
        """Without a directory there is no interlock."""
        self._directory = directory
        self._myself = _myself() if directory else b""
        if directory:
            os.makedirs(directory, 0o700, exist_ok=True)

    def clean(self) -> None:
        """Remove what a killed agent left behind; called at startup."""
        if self._directory:
            content = atomic_file.read(self._path(_ACTIVE))
            if content is not None and not _alive(content):
                atomic_file.remove(self._path(_ACTIVE))

    def enter(self, wall: float) -> str:
        """Acquire the interlock; return "" or the reason to wait."""
        if not self._directory:
            return ""
        pending = self._path(_RESTART_PENDING)
        content = atomic_file.read(pending)
        if content is not None and _owner(content) is None:
            since = outputs.parse_unix_date(content.decode("utf-8", "replace"))
            if since is None:
                since = wall
                atomic_file.write(pending, outputs.unix_date(wall).encode())
            left = since + _MAX_WAIT - wall
            if left > 0:
                return f"a restart of this daemon is pending ({pending}): waiting, {left:.0f} s at most"
        elif content is not None and _alive(content):
            return f"a restart of this daemon is pending ({pending}): waiting for process {_owner(content)}"
        if content is not None:
            atomic_file.remove(pending)
        atomic_file.write_plainly(self._path(_ACTIVE), self._myself)
        return ""

    def leave(self) -> None:
        if self._directory:
            atomic_file.remove(self._path(_ACTIVE))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _myself() -> bytes:
    pid = os.getpid()
    return json.dumps({"pid": pid, "start": _start_of(pid), "boot": _boot()}).encode()


def _parsed(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _owner(content: bytes) -> Optional[int]:
    pid = _parsed(content).get("pid")
    return pid if isinstance(pid, int) else None


def _alive(content: bytes) -> bool:
    """Whether the process that wrote the file still runs; false if it names none."""
    owner = _parsed(content)
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("boot", _boot()) != _boot():
        return False
    start = _start_of(pid)
    return start != "" and owner.get("start", start) == start


def _boot() -> str:
    return (atomic_file.read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def _start_of(pid: int) -> str:
    """Return the start time of a process in clock ticks; "" if it does not exist."""
    try:
        stat = atomic_file.read(f"/proc/{pid}/stat") or b""
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()
    return fields[19].decode() if len(fields) > 19 else ""
