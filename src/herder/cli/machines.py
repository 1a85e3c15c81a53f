"""Whether this process provides machines, and the daemon of its host, by which Jobs make machines right here."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from herder.api.capi.core import CRD
from herder.api.capi.kinds import SECRET
from herder.api.machines import hosts
from herder.api.machines.kinds import NODE_DRIVER
from herder.cli.install import INSTALLER, make_namespace
from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import NotFound

log = get_logger(__name__)

FIELD_MANAGER = "herder-host"


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
    log.info("machines are provided by another", because=f"{definition['metadata']['name']} is not ours")
    return False


async def provide_host(client: Client, data_dir: Path, node: str) -> Path:
    """Machines of this host can be made from now on: its daemon runs, and Jobs on `node` may use it. The directory that
    they must see is handed back."""
    from herder.machine.host.starting import ensure_running

    state_dir = data_dir / "host"
    await asyncio.to_thread(ensure_running, state_dir)
    api = state_dir / "api"
    data = {
        hosts.HOST_KEY: (state_dir / "key").read_bytes(),
        hosts.HOST_DIRECTORY: str(api).encode(),
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
    return api
