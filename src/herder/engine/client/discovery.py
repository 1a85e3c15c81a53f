"""Resolve resource names as kubectl does (`po`, `deploy`, `machines.cluster.x-k8s.io`, `Secret`), by discovery."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersion, GroupVersionResource, Object


class Found(NamedTuple):
    """A resource that the server offers."""

    resource: GroupVersionResource
    kind: str
    namespaced: bool
    verbs: tuple[str, ...] = ()


async def find_resource(client: Client, name_or_kind: str, *, prefer: str = "") -> Found:
    """Find a resource by plural, singular, short name or kind, optionally with its group after a dot.

    If several groups match and none is given, prefer the group `prefer`, else the first.
    """
    name, _, group = name_or_kind.partition(".")
    matches = []
    for found, entry in await all_resources(client):
        names = {entry["name"], entry.get("singularName"), *(entry.get("shortNames") or ()), entry["kind"].lower()}
        groups = {"", found.resource.group, f"{found.resource.version}.{found.resource.group}".rstrip(".")}
        if name.lower() in names and group in groups:
            matches.append(found)
    if not matches:
        raise NotFound(f'the server does not have a resource type "{name_or_kind}"')
    return next((found for found in matches if found.resource.group == prefer), matches[0])


async def is_served(client: Client, resource: GroupVersionResource) -> bool:
    """Whether the server offers a resource in this version. Every user may read the discovery documents."""
    version = GroupVersion(resource.group, resource.version)
    return any(entry["name"] == resource.resource for entry in await _entries(client, version))


async def all_resources(client: Client) -> list[tuple[Found, Object]]:
    """Return every resource in its preferred version, core first, without subresources."""
    versions = [GroupVersion("", "v1")]
    for group in (await client.document("/apis"))["groups"]:
        versions.append(GroupVersion.parse(group["preferredVersion"]["groupVersion"]))
    found = []
    for version, entries in zip(versions, await asyncio.gather(*(_entries(client, v) for v in versions)), strict=True):
        for entry in entries:
            resource = GroupVersionResource(version.group, version.version, entry["name"])
            found.append((Found(resource, entry["kind"], entry["namespaced"], tuple(entry["verbs"])), entry))
    return found


async def _entries(client: Client, version: GroupVersion) -> list[Object]:
    try:
        listed = await client.document(f"/apis/{version}" if version.group else "/api/v1")
    except StatusError:
        if not version.group:
            raise
        return []  # an unavailable aggregated API must not hide the others
    return [entry for entry in listed["resources"] if "/" not in entry["name"]]
