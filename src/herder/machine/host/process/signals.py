"""Signals as programs expect them: what the starter of the daemon ignored, as nohup does, they would ignore too."""

from __future__ import annotations

import contextlib
import signal


def as_they_are() -> None:
    """Before a program takes our place."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):  # those that cannot be changed
            signal.signal(number, signal.SIG_DFL)
