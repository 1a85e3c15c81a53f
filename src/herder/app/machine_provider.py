"""Whether this process runs the machine provider, and the host daemon with which Jobs create local machines."""

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
from herder.app.install import INSTALLER, ensure_namespace
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound
from herder.machine.errors import MachineError
from herder.machine.host import places
from herder.machine.host.autostart import ensure_running
from herder.machine.host.client import HostClient

log = get_logger(__name__)

FIELD_MANAGER = "herder-host"
RETRY_FIRST, RETRY_LIMIT = 0.5, 30.0


async def provide_machines(client: Client, requested: bool | None) -> bool:
    """As requested; by default yes, unless another manager owns the CRDs."""
    if requested is not None:
        return requested
    try:
        definition = await client.get(CRD.resource, f"{NODE_DRIVER.plural}.{NODE_DRIVER.group}")
    except NotFound:
        return True
    managers = {entry.get("manager") for entry in definition["metadata"].get("managedFields") or ()}
    if INSTALLER in managers:
        return True
    log.info("another manager provides machines", reason=f"{definition['metadata']['name']} has another field manager")
    return False


async def publish_host(client: Client, data_dir: Path, node: str) -> tuple[Path, ...]:
    """Start the host daemon and publish it for Jobs on `node`.

    Returns the directories that pods must mount; none if the daemon does not start, which is not fatal.
    """
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
    await ensure_namespace(client, hosts.HOST_NAMESPACE)
    await client.apply(SECRET.resource, secret, field_manager=FIELD_MANAGER)
    return (places.socket_of(state_dir).parent,)


async def maintain_host(data_dir: Path) -> None:
    """Restart the daemon until canceled; stop it at the end if it has no machines."""
    state_dir = data_dir / "host"
    delay = RETRY_FIRST
    try:
        while True:
            try:
                await _wait_exit(await _running_daemon(state_dir))
                log.warning("host daemon exited; restarting it")
                delay = RETRY_FIRST
            except MachineError as error:
                log.error("host daemon failed to start", error=str(error), retry_in=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_LIMIT)
    finally:
        _stop_if_idle(HostClient.of(state_dir, timeout=0))


def _stop_if_idle(host: HostClient) -> None:
    with suppress(MachineError):
        if not host.machines():
            host.shutdown()


async def _running_daemon(state_dir: Path) -> int:
    """PID of the daemon. One of another version is replaced, which does not affect machines."""
    host = HostClient.of(state_dir)
    await asyncio.to_thread(ensure_running, state_dir)
    reported = await asyncio.to_thread(host.version)
    if reported["version"] != __version__:
        await asyncio.to_thread(host.shutdown)
        await _wait_exit(int(reported["pid"]))
        await asyncio.to_thread(ensure_running, state_dir)
        reported = await asyncio.to_thread(host.version)
    return int(reported["pid"])


async def _wait_exit(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, exited = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
