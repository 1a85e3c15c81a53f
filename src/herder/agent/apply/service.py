"""State of the Kubernetes service of this machine, for the report of a failed probe."""

import subprocess
import threading
import time
from typing import Dict, List, Optional, Tuple

UNITS = ("k3s", "k3s-agent", "rke2-server", "rke2-agent", "kubelet")
"""Services that the plans of the distributions install; a machine has one of them."""
JOURNAL_LINES = 5
MAX_JOURNAL = 700  # characters; the manager shows about a thousand of an error
REFRESH_SECONDS = 10.0
_TIMEOUT = 5.0
_PROPERTIES = "--property=LoadState,ActiveState,SubState,NRestarts"


class ServiceState:
    """Looks up the service at most every few seconds: several probes fail together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known = ("", "")  # unit and state
        self._read_at: Optional[float] = None

    def read(self) -> Tuple[str, str]:
        """Return unit and state of a service that restarts or has failed; empty if there is none, or no systemd."""
        with self._lock:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at >= REFRESH_SECONDS:
                self._known, self._read_at = _failing_service(), now
            return self._known


def _failing_service() -> Tuple[str, str]:
    for unit in UNITS:
        shown = _properties(unit)
        if shown.get("LoadState") == "loaded" and _is_failing(shown):
            return f"{unit}.service", _state(unit, shown)
    return "", ""


def _is_failing(shown: Dict[str, str]) -> bool:
    """A service that starts for the first time may take its time."""
    if shown.get("ActiveState") == "active":
        return False
    return shown.get("ActiveState") == "failed" or shown.get("NRestarts", "0") not in ("", "0")


def _state(unit: str, shown: Dict[str, str]) -> str:
    restarts = shown.get("NRestarts") or "0"
    journal = _output(["journalctl", "--unit", unit, f"--lines={JOURNAL_LINES}", "--no-pager", "--output=cat"])
    lines = _end(" | ".join(line.strip() for line in journal.splitlines() if line.strip()))
    state = f"{shown.get('ActiveState')} ({shown.get('SubState')}), {restarts} restarts"
    return f"{state}; last log lines: {lines}" if lines else state


def _end(text: str) -> str:
    """Return the last words: the manager redacts join tokens, and would not recognize a part of one."""
    return text if len(text) <= MAX_JOURNAL else text[-MAX_JOURNAL:].partition(" ")[2]


def _properties(unit: str) -> Dict[str, str]:
    lines = _output(["systemctl", "show", f"{unit}.service", _PROPERTIES]).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _output(command: List[str]) -> str:
    """Return the output of a program; empty if it does not exist, fails or does not answer."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
