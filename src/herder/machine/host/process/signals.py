"""Reset signal dispositions for programs: they would inherit ignored signals, such as from nohup."""

from __future__ import annotations

import contextlib
import signal


def as_they_are() -> None:
    """Call before exec."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP cannot be changed
            signal.signal(number, signal.SIG_DFL)
