"""Whether a machine runs, and how to stop it, by the recorded PID 1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
from pathlib import Path

from herder.machine.host.process.launch import boot_id, started

FILE = "running"


def open_pidfd(directory: Path) -> int:
    """Open a pidfd of the machine's PID 1, safe against PID reuse; raises `ProcessLookupError`."""
    try:
        running = json.loads((directory / FILE).read_bytes())
    except FileNotFoundError:
        raise ProcessLookupError from None
    if running["boot"] != boot_id():
        raise ProcessLookupError
    pidfd = os.pidfd_open(running["pid"])
    if started(running["pid"]) != running["started"] or _ended(pidfd):
        os.close(pidfd)
        raise ProcessLookupError
    return pidfd


def runs(directory: Path) -> bool:
    try:
        os.close(open_pidfd(directory))
    except ProcessLookupError:
        return False
    return True


async def end(directory: Path, grace: float) -> None:
    """Return when the last process of the machine has ended: the kernel kills them before PID 1."""
    try:
        pidfd = open_pidfd(directory)
    except ProcessLookupError:
        return
    try:
        if grace and await _signal_and_wait(pidfd, signal.SIGTERM, grace):
            return
        await _signal_and_wait(pidfd, signal.SIGKILL, None)
    finally:
        os.close(pidfd)


async def _signal_and_wait(pidfd: int, number: signal.Signals, timeout: float | None) -> bool:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        await asyncio.wait_for(ended.wait(), timeout)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    return True


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
