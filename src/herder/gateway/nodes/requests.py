"""A machine that somebody else made asks to be taken in: its request is an object, which a controller answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import annotations_of, labels_of
from herder.api.rke import names
from herder.api.rke.requests import read_request, request_secret
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Object
from herder.gateway.nodes.answers import Refusal

FIELD_MANAGER = "node-request"
AGAIN = "the request was answered for another of the same machine: try again"


class Requests:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def taken_in(self, cluster: str, kept: Mapping[str, Sequence[str]]) -> Object:
        """The Machine, once there is one; for as long as one likes. Raises Refusal where there never will be."""
        wanted = request_secret(cluster, kept)
        name = wanted["metadata"]["name"]
        made = await self._client.apply(SECRET.resource, wanted, field_manager=FIELD_MANAGER)
        try:
            namespace, machine = await self._answer(made)
        finally:
            await asyncio.shield(self._withdraw(cluster, name, made["metadata"]["uid"]))
        return await self._client.get(MACHINE.resource, machine, namespace=namespace)

    async def _answer(self, request: Object) -> tuple[str, str]:
        if (known := _answered(request)) is not None:
            return known
        meta = request["metadata"]
        field = f"metadata.name={meta['name']}"
        watch = self._client.watch(
            SECRET.resource, namespace=meta["namespace"], fields=field, resource_version=meta["resourceVersion"]
        )
        async with aclosing(watch) as events:
            async for event in events:
                if event.type == "DELETED" or event.object["metadata"].get("uid", meta["uid"]) != meta["uid"]:
                    raise Refusal(503, AGAIN)
                if (known := _answered(event.object)) is not None:
                    return known
        raise Refusal(503, "the watch of the request ended: try again")

    async def _withdraw(self, cluster: str, name: str, uid: str) -> None:
        with suppress(NotFound, AlreadyExists):
            await self._client.delete(SECRET.resource, name, namespace=cluster, uid=uid)


def _answered(request: Object) -> tuple[str, str] | None:
    """Where the Machine is; None while nobody has said."""
    if problem := annotations_of(request).get(names.REQUEST_PROBLEM):
        raise Refusal(400, problem)
    labels = labels_of(request)
    if names.MACHINE_NAME not in labels or names.MACHINE_NAMESPACE not in labels:
        return None
    return labels[names.MACHINE_NAMESPACE], labels[names.MACHINE_NAME]


class RequestReader:
    """The performer of `machine-request`: what is in a request, as controllers see metadata alone."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, arguments: Mapping[str, Any]) -> dict[str, list[str]] | None:
        """None: it is gone. What cannot be read is as good as empty, and refused for that."""
        try:
            secret = await self._client.get(SECRET.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None
        try:
            return read_request(secret)
        except ValueError:
            return {}
