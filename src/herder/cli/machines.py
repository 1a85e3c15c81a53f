"""Whether this process provides machines, and the daemon of its host, by which Jobs make machines right here."""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import suppress
from pathlib import Path

from herder import __version__
from herder.api.capi.core import CRD
from herder.api.capi.kinds import SECRET
from herder.api.machines import hosts
from herder.api.machines.kinds import NODE_DRIVER
from herder.cli.install import INSTALLER, make_namespace
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound
from herder.machine.errors import MachineError
from herder.machine.host import places
from herder.machine.host.client import HostClient
from herder.machine.host.starting import ensure_running

log = get_logger(__name__)

FIELD_MANAGER = "herder-host"
RETRY_FIRST, RETRY_LIMIT = 0.5, 30.0


async def provide_machines(client: Client, asked: bool | None) -> bool:
    """Whether we do: as we are told, else unless the kinds are there and somebody else's."""
    if asked is not None:
        return asked
    try:
        definition = await client.get(CRD.resource, f"{NODE_DRIVER.plural}.{NODE_DRIVER.group}")
    except NotFound:
        return True
    managers = {entry.get("manager") for entry in definition["metadata"].get("managedFields") or ()}
    if INSTALLER in managers:
        return True
    log.info("another manager provides machines", reason=f"{definition['metadata']['name']} has another field manager")
    return False


async def provide_host(client: Client, data_dir: Path, node: str) -> tuple[Path, ...]:
    """Machines of this host can be made from now on: its daemon runs, and Jobs on `node` may use it. The directories
    that they must see are handed back: none where there is no daemon, and everything else goes on without one."""
    state_dir = data_dir / "host"
    try:
        await _running_daemon(state_dir)
    except MachineError as error:
        log.error("host daemon failed to start; cannot create machines on this host", error=str(error))
        return ()
    data = {
        hosts.HOST_KEY: (state_dir / places.KEY).read_bytes(),
        hosts.HOST_DIRECTORY: str(places.socket_of(state_dir).parent).encode(),
        hosts.HOST_NODE: node.encode(),
    }
    secret = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": hosts.HOST_SECRET, "namespace": hosts.HOST_NAMESPACE},
        "type": hosts.HOST_SECRET_TYPE,
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    await make_namespace(client, hosts.HOST_NAMESPACE)
    await client.apply(SECRET.resource, secret, field_manager=FIELD_MANAGER)
    return (places.socket_of(state_dir).parent,)


async def keep_host(data_dir: Path) -> None:
    """Until cancelled: a daemon that ends is started again for its machines; without machines it ends with us."""
    state_dir = data_dir / "host"
    delay = RETRY_FIRST
    try:
        while True:
            try:
                await _ended(await _running_daemon(state_dir))
                log.warning("host daemon exited; restarting it")
                delay = RETRY_FIRST
            except MachineError as error:
                log.error("host daemon failed to start", error=str(error), retry_in=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)
    finally:
        _end_if_idle(HostClient.of(state_dir, patience=0))


def _end_if_idle(host: HostClient) -> None:
    with suppress(MachineError):
        if not host.machines():
            host.shutdown()


async def _running_daemon(state_dir: Path) -> int:
    """Its process. One of another version makes room: machines do not notice."""
    host = HostClient.of(state_dir)
    await asyncio.to_thread(ensure_running, state_dir)
    reported = await asyncio.to_thread(host.version)
    if reported["version"] != __version__:
        await asyncio.to_thread(host.shutdown)
        await _ended(int(reported["pid"]))
        await asyncio.to_thread(ensure_running, state_dir)
        reported = await asyncio.to_thread(host.version)
    return int(reported["pid"])


async def _ended(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
