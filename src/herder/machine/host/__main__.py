"""Entry point of the host daemon: `python -m herder.machine.host --state-dir DIR`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from herder.machine.host.autostart import ANOTHER_SERVES
from herder.machine.host.daemon import AlreadyRunning, Daemon
from herder.machine.host.places import state_directory


def main() -> int:
    options = _parser().parse_args()
    state_dir = options.state_dir.absolute()
    os.umask(0o022)
    serving = _detached() if options.detach else lambda: None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_run(state_dir, serving))
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return ANOTHER_SERVES
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m herder.machine.host",
        description="Run the host daemon, which creates machines on this host. `herder up` starts it as needed.",
        epilog="example:\n  python -m herder.machine.host --state-dir /var/lib/herder/host --detach",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        default=state_directory(),
        help="directory with the state of the machines (default: %(default)s)",
    )
    parser.add_argument("--detach", action="store_true", help="run in the background; return when the daemon is ready")
    return parser


async def _run(state_dir: Path, serving: Callable[[], None]) -> None:
    await Daemon(state_dir).run(serving)


def _detached() -> Callable[[], None]:
    """Fork into the background; the parent exits when the daemon serves, or with its status."""
    reported, teller = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reported)
        os.setsid()
        os.chdir("/")
        return lambda: os.close(teller) if os.write(teller, b"1") else None
    os.close(teller)
    if os.read(reported, 1):
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


if __name__ == "__main__":
    sys.exit(main())
