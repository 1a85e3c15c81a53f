"""Programs that tests start, and how they end."""

from __future__ import annotations

import signal
import subprocess

PATIENCE_SECONDS = 20


def ended(process: subprocess.Popen[bytes] | None) -> int:
    """By SIGTERM, as a service manager does, and by force where that is not heeded; the exit status, 0 after an orderly
    end and where nothing was started."""
    if process is None:
        return 0
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
