"""The command line of k3s."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine

from .config import K3sConfig, load_config


def main(arguments: list[str], version: str) -> int:
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(message)s")
    match arguments:
        case ["server" | "agent" as role, *flags]:
            return _serve(role, load_config(role, flags, version))
        case ["etcd-snapshot", ("save" | "ls") as verb, *more]:
            from . import snapshots

            return snapshots.run(verb, more, load_config("server", [], version))
        case _:
            print(f"k3s stand-in: unknown command {' '.join(arguments)}", file=sys.stderr)
            return 1


def _serve(role: str, config: K3sConfig) -> int:
    from . import first_server, joining_server, worker

    log = logging.getLogger()
    log.info("this is a stand-in for k3s %s, and runs no pods", config.version)
    if role == "agent":
        coroutine = worker.run(config)
    elif config.server_url:
        coroutine = joining_server.serve(config, _ready)
    else:
        coroutine = first_server.serve(config, _ready)
    return asyncio.run(_run_until_signaled(coroutine))


async def _run_until_signaled(coroutine: Coroutine[None, None, None]) -> int:
    task = asyncio.ensure_future(coroutine)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    return 0


def _ready() -> None:
    """Notify systemd, as services of type notify do."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1\n", "\0" + address[1:] if address.startswith("@") else address)
