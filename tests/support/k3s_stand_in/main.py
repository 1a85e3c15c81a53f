"""The words that k3s takes, and who does what they say."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine

from .told import Told, told_by


def main(words: list[str], version: str) -> int:
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(message)s")
    match words:
        case ["server" | "agent" as role, *flags]:
            return _serve(role, told_by(role, flags, version))
        case ["etcd-snapshot", ("save" | "ls") as verb, *more]:
            from . import snapshots

            return snapshots.run(verb, more, told_by("server", [], version))
        case _:
            print(f"k3s stand-in: does not know {' '.join(words)}", file=sys.stderr)
            return 1


def _serve(role: str, told: Told) -> int:
    from . import first_server, further_server, worker

    log = logging.getLogger()
    log.info("this is a stand-in for k3s %s, and runs no pods", told.version)
    if role == "agent":
        work = worker.work(told)
    elif told.joins:
        work = further_server.serve(told, _ready)
    else:
        work = first_server.serve(told, _ready)
    return asyncio.run(_until_signalled(work))


async def _until_signalled(work: Coroutine[None, None, None]) -> int:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    return 0


def _ready() -> None:
    """Told to systemd, as services of type notify do."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1\n", "\0" + place[1:] if place.startswith("@") else place)
