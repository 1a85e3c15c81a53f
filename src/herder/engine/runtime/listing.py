"""Performs lists for who must not decide on a cache that may be behind: caches of two kinds are never of one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import Kind
from herder.engine.runtime.remote import Remotes


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
    listed = await remotes.client(arguments["cluster"]).list_all(arguments["kind"].resource)
    return [obj["metadata"]["name"] for obj in listed.items if _at(obj, arguments["field"]) == arguments["value"]]


def _at(obj: Any, field: Sequence[str]) -> Any:
    for part in field:
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj
