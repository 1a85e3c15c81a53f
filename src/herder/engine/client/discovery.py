"""From what a person types (`po`, `deploy`, `machines.cluster.x-k8s.io`, `Secret`) to a resource of the server's."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from herder.engine.client.client import Client
from herder.engine.meta.errors import NotFound, StatusError
from herder.engine.meta.kinds import GroupVersion, GroupVersionResource, Object


class Found(NamedTuple):
    resource: GroupVersionResource
    kind: str
    namespaced: bool
    verbs: tuple[str, ...] = ()


async def find_resource(client: Client, word: str) -> Found:
    """The best match: a plural, singular, short name or kind, with its group behind a dot where it is ambiguous."""
    name, _, group = word.partition(".")
    for found, entry in await all_resources(client):
        names = {entry["name"], entry.get("singularName"), *(entry.get("shortNames") or ()), entry["kind"].lower()}
        if name.lower() in names and (not group or found.resource.group == group):
            return found
    raise NotFound(f'the server does not have a resource type "{word}"')


async def all_resources(client: Client) -> list[tuple[Found, Object]]:
    """Every resource in its preferred version, core first, as discovery lists them; subresources left out."""
    versions = [GroupVersion("", "v1")]
    for group in (await _document(client, "/apis"))["groups"]:
        versions.append(GroupVersion.parse(group["preferredVersion"]["groupVersion"]))
    found = []
    for version in versions:
        path = f"/apis/{version}" if version.group else "/api/v1"
        try:
            listed = await _document(client, path)
        except StatusError:
            continue  # an aggregated API whose server is away must not hide the others
        for entry in listed["resources"]:
            if "/" not in entry["name"]:
                resource = GroupVersionResource(version.group, version.version, entry["name"])
                found.append((Found(resource, entry["kind"], entry["namespaced"], tuple(entry["verbs"])), entry))
    return found


async def _document(client: Client, path: str) -> Object:
    response = await client.raw("GET", path, headers={"accept": "application/json"})
    document: Object = msgspec.json.decode(response.content())
    if response.status >= 400:
        raise StatusError.from_status(document, response.status)
    return document
