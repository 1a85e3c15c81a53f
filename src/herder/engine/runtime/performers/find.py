"""List objects live, for decisions that must not rely on caches: two caches never show the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable
from herder.engine.runtime.remote import Remotes
from herder.engine.runtime.remote.observation import MAX_OBJECTS

FIND_SECONDS = 120.0
MAX_FOUND, MAX_NAME_LENGTH = 10, 253
"""Limits for names in messages. Only a compromised cluster has more than ten objects with the same value."""


async def list_names(client: Client, arguments: Mapping[str, Any]) -> list[str]:
    """List the objects of `kinds`, each as `Kind namespace/name`."""
    return [name for kind in arguments["kinds"] for name in await _names(client, kind)]


async def _names(client: Client, kind: Kind) -> list[str]:
    try:
        listed = await client.list_all(kind.resource, metadata_only=True)
    except NotFound:
        return []
    return [f"{kind.kind} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}" for obj in listed.items]


async def find(remotes: Remotes, arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of objects in a downstream cluster. Arguments: `cluster`, `kind`, `field` (path parts),
    `value`."""
    field, value = arguments["field"], arguments["value"]

    def project(obj: Object) -> Object:
        """Keep only the names of matches: a compromised cluster may send objects of any size."""
        return {"name": _at(obj, ("metadata", "name"))} if _at(obj, field) == value else {}

    async with asyncio.timeout(FIND_SECONDS):
        listed = await remotes.client(arguments["cluster"]).list_all(
            arguments["kind"].resource, transform=project, max_items=MAX_OBJECTS
        )
    found = [printable(str(each["name"]), MAX_NAME_LENGTH) for each in listed.items if each]
    return found[:MAX_FOUND]


def _at(obj: Any, field: Sequence[str]) -> Any:
    for part in field:
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj
