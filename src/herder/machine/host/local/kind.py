"""The `local` machine kind: create, start, recover and remove.

A running machine consists of processes and cgroups only: mounts, network and namespaces end with the processes. So
removal means: kill the processes, remove the cgroups, release the address.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herder.machine.driver import State
from herder.machine.errors import MachineError, PreCreateFailed
from herder.machine.host.kinds import Ask, Place, Record, Report
from herder.machine.host.local import image, locks, rootless, seed
from herder.machine.host.local.background import BackgroundProcess
from herder.machine.host.local.cgroups import Groups
from herder.machine.host.local.fabric import Fabric
from herder.machine.host.local.network import FORWARD_PORT, forward_address, hardware_address, short_hash
from herder.machine.host.local.options import Options
from herder.machine.host.local.supervisor import CONFIG, CONSOLE, LOCK, STATUS
from herder.machine.host.local.supervisor.boot import inside_of
from herder.machine.host.records import write_whole

SUPERVISOR = "herder.machine.host.local.supervisor"
_LAYERS = ("upper", "work", "root", "data")
_SSH = 22
_BOOT_SECONDS = 180.0  # for sshd to respond on a busy host
_LOOK_AGAIN = 0.03


class LocalKind:
    name = "local"

    def __init__(self, state_dir: Path) -> None:
        self._machines = state_dir / "machines"
        self._fabric = Fabric(state_dir / "local", self._some_guest, self._network_lost)
        self._mending: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Nothing: shared resources are created with the first machine."""

    def check(self, options: dict[str, Any]) -> None:
        for requirement in requirements(Options.parse(options)).values():
            requirement()

    async def create(self, record: Record, ask: Ask, report: Report) -> Place:
        options = Options.parse(record.options)
        layers = await image.ensure(options.image, report, kubernetes=options.kubernetes)
        record.facts["image"] = [str(layer) for layer in layers]
        if "host_key" not in record.facts:
            self._seed(record, ask, options)
        return await self.start(record, report)

    async def start(self, record: Record, report: Report) -> Place:
        supervisor = None if locks.holder_of(record.directory / LOCK) else await self._boot(record)
        place = self._place(record)
        await self._answers(record, place, supervisor)
        return place

    async def stop(self, record: Record, *, grace: float) -> None:
        with locks.holding_process(record.directory / LOCK) as supervisor:
            if supervisor is not None and grace:
                signal.pidfd_send_signal(supervisor, signal.SIGTERM)
                await asyncio.to_thread(select.select, [supervisor], [], [], grace)
        await self._end(record)

    def state(self, record: Record) -> State:
        if not locks.holder_of(record.directory / LOCK):
            return State.STOPPED
        return State.RUNNING if _status(record.directory).get("guest") else State.STARTING

    async def recover(self, record: Record) -> None:
        await self._fabric.ensure()
        if locks.holder_of(record.directory / LOCK):
            self._connect(record.directory)
        else:
            await self._boot(record)

    async def remove(self, record: Record) -> None:
        await self._end(record)
        await self._groups(record).remove()
        await asyncio.to_thread(self._delete_files, record)
        self._fabric.addresses.release(record.id)
        await self._fabric.end_if_unused()

    async def close(self) -> None:
        self._fabric.unwatch()
        if self._mending is not None:
            self._mending.cancel()

    def _seed(self, record: Record, ask: Ask, options: Options) -> None:
        """Write the first-boot files. The key is recorded last: without it, everything is written again."""
        for layer in _LAYERS:
            (record.directory / layer).mkdir(mode=0o755, exist_ok=True)
        address = self._fabric.addresses.take(record.id)
        key_file, public_key = seed.host_key()
        content = seed.files(ask, machine_id=record.id, cloud_init=options.cloud_init)
        seed.write(record.directory / "upper", [key_file, *content])
        record.facts |= {"address": address, "host_key": public_key}
        record.save()

    def _place(self, record: Record) -> Place:
        address, port, addresses = record.facts["address"], _SSH, self._fabric.addresses
        if addresses.forwarded:
            address, port = forward_address(address, addresses.network), FORWARD_PORT
        return Place(address, port, "root", record.facts["host_key"])

    def _groups(self, record: Record) -> Groups:
        return Groups(short_hash(str(record.directory), 12))

    async def _boot(self, record: Record) -> BackgroundProcess:
        """Boot; remains of an earlier boot are terminated first."""
        await self._end(record)
        options, groups = Options.parse(record.options), self._groups(record)
        groups.make(options.cpus, options.memory_bytes)
        await self._fabric.ensure()
        addresses, directory = self._fabric.addresses, record.directory
        config = {
            "lower": _layers(record),
            **{layer: str(directory / layer) for layer in _LAYERS},
            "kubernetes": options.kubernetes,
            "groups": [str(path) for path in groups.inner()],
            "trees": [[tree.name, tree.options] for tree in groups.trees],
            "rootless": rootless.needed(),
            "fabric": str(self._fabric.lock),
            "link": f"v-{short_hash(str(directory), 12)}",
            "net": {
                "address": record.facts["address"],
                "prefix": addresses.network.prefixlen,
                "gateway": addresses.gateway,
                "mac": hardware_address(record.facts["address"]),
            },
        }
        write_whole(directory / CONFIG, json.dumps(config).encode())
        (directory / STATUS).unlink(missing_ok=True)
        (directory / LOCK).touch(mode=0o600)
        return BackgroundProcess(SUPERVISOR, directory, directory / "supervisor.log")

    async def _answers(self, record: Record, place: Place, supervisor: BackgroundProcess | None) -> None:
        """Wait until SSH responds; independent of the image, this is the only reliable sign."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BOOT_SECONDS
        while True:
            status = _status(record.directory)
            if "guest" in status and await _has_banner(place):  # its address is not configured before
                return
            if "error" in status:
                raise MachineError(f'machine "{record.name}" failed to boot', status["error"])
            if supervisor.ended.is_set() if supervisor else not locks.holder_of(record.directory / LOCK):
                why = supervisor.complaint() if supervisor else "it was shutting down; start it again"
                raise MachineError(
                    f'machine "{record.name}" stopped during boot', _no_watchers_left(record.directory) or why
                )
            if loop.time() > deadline:
                raise MachineError(
                    f'machine "{record.name}" is running, but SSH did not answer within {_BOOT_SECONDS:.0f} s',
                    f"see {record.directory / CONSOLE}",
                )
            await asyncio.sleep(_LOOK_AGAIN)

    async def _end(self, record: Record) -> None:
        """Terminate all its processes."""
        with locks.holding_process(record.directory / LOCK) as supervisor:
            if supervisor is not None:
                signal.pidfd_send_signal(supervisor, signal.SIGKILL)
                await asyncio.to_thread(select.select, [supervisor], [], [])
        await self._groups(record).kill()

    def _network_lost(self) -> None:
        """Machines keep running; reconnect them to a new network."""
        self._mending = asyncio.create_task(self._repair_network())

    async def _repair_network(self) -> None:
        await self._fabric.restore()
        for config in self._machines.glob(f"*/{CONFIG}"):
            self._connect(config.parent)

    def _connect(self, directory: Path) -> None:
        """Connect a running machine to the current network, if necessary."""
        if _status(directory).get("fabric") != inside_of(str(self._fabric.lock)):
            with locks.holding_process(directory / LOCK) as supervisor:
                if supervisor is not None:
                    signal.pidfd_send_signal(supervisor, signal.SIGUSR1)

    def _some_guest(self) -> int:
        for config in self._machines.glob(f"*/{CONFIG}"):
            if locks.holder_of(config.parent / LOCK) and (guest := _status(config.parent).get("guest")):
                return int(guest)
        return 0

    def _delete_files(self, record: Record) -> None:
        """Delete the files here: without root, most of them belong to the machine's subordinate UIDs."""
        for layer in _LAYERS:
            image.delete(record.directory / layer)


def requirements(wanted: Options) -> dict[str, Callable[[], None]]:
    """Pre-create checks by name; each raises `PreCreateFailed`."""
    found: dict[str, Callable[[], None]] = {
        "image": lambda: image.check(wanted.image, kubernetes=wanted.kubernetes),
        "programs": _check_programs,
    }
    if rootless.needed():
        found["user namespace"] = rootless.check
    limits = bool(wanted.cpus or wanted.memory)
    return found | {"cgroups": lambda: Groups("check").check(limits=limits)}


def _check_programs() -> None:
    if shutil.which("ip", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
        raise PreCreateFailed("`ip` is not installed, but local machines require it", "install the package iproute2")


def _layers(record: Record) -> list[str]:
    """Records from before images had layers have a single path."""
    kept = record.facts["image"]
    return [kept] if isinstance(kept, str) else kept


def _status(directory: Path) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((directory / STATUS).read_text())
    except FileNotFoundError:
        return {}
    return status


def _no_watchers_left(directory: Path) -> str:
    """Return advice if inotify instances are exhausted; systemd reports it nowhere else."""
    try:
        text = (directory / CONSOLE).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    if "Too many open files" not in text:
        return ""
    return "the host has no free inotify instances: raise the limit with sysctl -w fs.inotify.max_user_instances=1024"


async def _has_banner(place: Place) -> bool:
    writer = None
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(place.address, place.ssh_port)
            return (await reader.readline()).startswith(b"SSH-")
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
