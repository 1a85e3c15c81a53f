"""Effect `read-object`: read the Secrets and ConfigMaps that plans reference, without a watch of all Secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object


class ReferencedObjects:
    """Executor of `read-object`."""

    KINDS: ClassVar[Mapping[str, Kind]] = {"Secret": SECRET, "ConfigMap": Kind("", "v1", "ConfigMap", "configmaps")}

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, arguments: Mapping[str, Any]) -> Object | None:
        kind = self.KINDS[arguments["kind"]]
        try:
            found = await self._client.get(kind.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None
        return {"kind": kind.kind, **found}
