"""Performs lists for who must not decide on a cache that may be behind: caches of two kinds are never of one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind, Object
from herder.engine.meta.printable import printable
from herder.engine.runtime.remote import Remotes
from herder.engine.runtime.remote.observation import MOST_OBJECTS

FIND_SECONDS = 120.0
MOST_FOUND, LONGEST_NAME = 10, 253
"""Names for messages: no more than ten objects have the same value anywhere but in a compromised cluster."""


async def list_names(client: Client, arguments: Mapping[str, Any]) -> list[str]:
    """Arguments: `kinds`. What objects of them the server has, each as `Kind namespace/name`."""
    return [name for kind in arguments["kinds"] for name in await _names(client, kind)]


async def _names(client: Client, kind: Kind) -> list[str]:
    try:
        listed = await client.list_all(kind.resource, metadata_only=True)
    except NotFound:
        return []
    return [f"{kind.kind} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}" for obj in listed.items]


async def find(remotes: Remotes, arguments: Mapping[str, Any]) -> list[str]:
    """Arguments: `cluster`, `kind`, `field` (parts), `value`. The names of those objects in a downstream cluster."""
    field, value = arguments["field"], arguments["value"]

    def keep(obj: Object) -> Object:
        """The name alone, of those that match: the cluster may be compromised, and send anything without an end."""
        return {"name": _at(obj, ("metadata", "name"))} if _at(obj, field) == value else {}

    async with asyncio.timeout(FIND_SECONDS):
        listed = await remotes.client(arguments["cluster"]).list_all(
            arguments["kind"].resource, keep=keep, most_items=MOST_OBJECTS
        )
    found = [printable(str(each["name"]), LONGEST_NAME) for each in listed.items if each]
    return found[:MOST_FOUND]


def _at(obj: Any, field: Sequence[str]) -> Any:
    for part in field:
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj
