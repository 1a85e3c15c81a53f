"""The machine provider as a part of this process: its kinds, its controllers, who performs their effects, its host."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.machines import hosts
from herder.engine.client.client import Client
from herder.engine.client.wire import Query
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runtime.effects import Performer

FIELD_MANAGER = "herder-host"
PODS = GroupVersionResource("", "v1", "pods")
LOG_LINES = 5000


def performers(client: Client) -> dict[str, Performer]:
    async def pod_log(arguments: Mapping[str, Any]) -> str:
        """The end of what a container said."""
        path = PODS.path(arguments["namespace"], arguments["pod"], "log")
        query = Query([("container", arguments["container"]), ("tailLines", str(LOG_LINES))])
        return (await client.text(path, query))[-int(arguments["limit_bytes"]) :]

    async def read_secret(arguments: Mapping[str, Any]) -> Object | None:
        try:
            return await client.get(SECRET.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None

    return {"pod-log": pod_log, "read-secret": read_secret}


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
    await client.apply(SECRET.resource, secret, field_manager=FIELD_MANAGER)
    return api
