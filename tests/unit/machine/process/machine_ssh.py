"""SSH connections to machines with their owner's key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncssh

from herder.machine.host.kinds import Place
from tests.unit.machine.host.hosts import PRIVATE_KEY

TIMEOUT_SECONDS = 60


def connect(place: Place, key: str = PRIVATE_KEY, **options: Any) -> Any:
    pinned = asyncssh.import_known_hosts(f"[{place.address}]:{place.ssh_port} {place.host_key}\n")
    return asyncssh.connect(
        place.address,
        place.ssh_port,
        username=place.ssh_user,
        client_keys=[asyncssh.import_private_key(key)],
        known_hosts=pinned,
        config=None,
        **options,
    )


async def run(place: Place, command: str, **options: Any) -> Any:
    """Run a command in a machine; input and output are bytes."""
    async with connect(place) as connection:
        return await connection.run(command, encoding=None, **options)


async def output_of(place: Place, command: str) -> str:
    done = await run(place, command)
    assert done.exit_status == 0, done.stderr
    return str(done.stdout.decode().strip())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition that a machine fulfills asynchronously."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


async def wait_bootstrapped(place: Place) -> None:
    await eventually(lambda: _exists(place, "/var/lib/herder/bootstrapped"))


async def _exists(place: Place, path: str) -> bool:
    return bool((await run(place, f"test -e {path}")).exit_status == 0)
