"""How programs that tests start are stopped."""

from __future__ import annotations

import signal
import subprocess

TIMEOUT_SECONDS = 20


def terminate(process: subprocess.Popen[bytes] | None) -> int:
    """Stop a process with SIGTERM, as a service manager does, and kill it after a timeout.

    Returns the exit status, 0 after a clean shutdown or if no process was started.
    """
    if process is None:
        return 0
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
