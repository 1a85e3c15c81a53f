"""Effects of the machine controllers: pod logs, Secrets, driver flags, and names of existing objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from herder.api.capi.kinds import SECRET
from herder.api.settings import RANCHER_MACHINE_PATH, Settings
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.runtime.effects import Performer
from herder.engine.runtime.performers.find import list_names
from herder.engine.wire import Query

PODS = GroupVersionResource("", "v1", "pods")
LOG_LINES = 5000


def performers(client: Client, settings: Settings) -> dict[str, Performer]:
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

    async def driver_flags(arguments: Mapping[str, Any]) -> Any:
        from herder.machine.probing import driver_flags

        return await driver_flags(arguments, rancher_machine=settings.get(RANCHER_MACHINE_PATH))

    return {
        "pod-log": pod_log,
        "read-secret": read_secret,
        "driver-flags": driver_flags,
        "list-names": partial(list_names, client),
    }
