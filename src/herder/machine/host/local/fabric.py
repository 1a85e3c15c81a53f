"""The machines' network as seen by the daemon: exists while there are machines, and is recreated when lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from herder.machine.errors import MachineError
from herder.machine.host.local import locks, rootless
from herder.machine.host.local.background import BackgroundProcess
from herder.machine.host.local.holder import CONFIG, LOCK, READY
from herder.machine.host.local.network import Addresses, chosen_network, short_hash

PORTS_VARIABLE = "HERDER_LOCAL_GATEWAY_PORTS"
HOLDER = "herder.machine.host.local.holder"


class Fabric:
    """`some_guest` returns the PID 1 of any running machine, or 0; `lost` is called when the network disappears."""

    def __init__(self, directory: Path, some_guest: Callable[[], int], lost: Callable[[], None]) -> None:
        self.directory = directory
        self.lock = directory / LOCK
        self._some_guest = some_guest
        self._lost = lost
        self._alone = asyncio.Lock()
        self._addresses: Addresses | None = None
        self._watched = -1

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            network = chosen_network(self.directory)
            self._addresses = Addresses(self.directory / "addresses", network, forwarded=rootless.needed())
        return self._addresses

    def holder(self) -> int:
        """Return the PID of the process that holds the network; 0 if there is none."""
        return locks.holder_of(self.lock)

    async def ensure(self) -> None:
        """Ensure that it exists, with a forwarder for every address in use."""
        async with self._alone:
            await self._ensure()

    async def restore(self) -> None:
        """Restart it after it was lost, unless the last machine was removed meanwhile."""
        async with self._alone:
            if self.addresses:
                await self._ensure()

    async def _ensure(self) -> None:
        if not (holder := self.holder()):
            holder = await self._start()
        elif self.addresses.forwarded:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and `_watch` reports that
                os.kill(holder, signal.SIGHUP)
        self._watch(holder)

    async def end_if_unused(self) -> None:
        async with self._alone:
            if not self.addresses:
                self.unwatch()
                with locks.holding_process(self.lock) as holder:
                    if holder is not None:
                        signal.pidfd_send_signal(holder, signal.SIGKILL)
                        await asyncio.to_thread(select.select, [holder], [], [])

    def unwatch(self) -> None:
        if self._watched >= 0:
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _watch(self, holder: int) -> None:
        self.unwatch()
        try:
            self._watched = os.pidfd_open(holder)
        except ProcessLookupError:
            self._lost()
        else:
            asyncio.get_running_loop().add_reader(self._watched, self._ended)

    def _ended(self) -> None:
        self.unwatch()
        self._lost()

    async def _start(self) -> int:
        addresses = self.addresses
        config = {
            "network": str(addresses.network),
            "gateway": addresses.gateway,
            "prefix": addresses.network.prefixlen,
            "link": f"hd-{short_hash(str(self.directory))}",
            "rootless": rootless.needed(),
            "ports": _ports(),
            "beside": self._some_guest(),
        }
        (self.directory / CONFIG).write_text(json.dumps(config))
        self.lock.touch(mode=0o600)
        holder = BackgroundProcess(HOLDER, self.directory, self.directory / "fabric.log", heard=True)
        if await holder.first_word() != READY:
            await holder.ended.wait()
            raise MachineError("cannot create the network of local machines", holder.complaint())
        return holder.pid


def _ports() -> list[int]:
    return [int(port) for port in os.environ.get(PORTS_VARIABLE, "").split(",") if port.strip().isdecimal()]
