"""Registration requests of custom machines: Secrets that a controller answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from herder.api.capi.kinds import MACHINE, SECRET
from herder.api.capi.names import annotations_of, labels_of
from herder.api.rke import names
from herder.api.rke.node.requests import read_request, request_secret
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists, NotFound
from herder.engine.meta.kinds import Object
from herder.gateway.nodes.text_responses import Refusal

FIELD_MANAGER = "node-request"
RETRY = "the request was replaced by another of the same machine; retry"


class MachineRequests:
    """Creates requests and waits for the answer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def taken_in(self, cluster: str, kept: Mapping[str, Sequence[str]]) -> Object:
        """Register the machine and return its Machine. Callers set the timeout. Raises Refusal if it is refused."""
        wanted = request_secret(cluster, kept)
        name = wanted["metadata"]["name"]
        made = await self._client.apply(SECRET.resource, wanted, field_manager=FIELD_MANAGER)
        try:
            namespace, machine = await self._answer(made)
        finally:
            await asyncio.shield(self._delete(cluster, name, made["metadata"]["uid"]))
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
                    raise Refusal(503, RETRY)
                if (known := _answered(event.object)) is not None:
                    return known
        raise Refusal(503, "the watch of the request ended; retry")

    async def _delete(self, cluster: str, name: str, uid: str) -> None:
        with suppress(NotFound, AlreadyExists):
            await self._client.delete(SECRET.resource, name, namespace=cluster, uid=uid)


def _answered(request: Object) -> tuple[str, str] | None:
    """Namespace and name of the Machine; None while unanswered."""
    if problem := annotations_of(request).get(names.REQUEST_PROBLEM):
        raise Refusal(400, problem)
    labels = labels_of(request)
    if names.MACHINE_NAME not in labels or names.MACHINE_NAMESPACE not in labels:
        return None
    return labels[names.MACHINE_NAMESPACE], labels[names.MACHINE_NAME]


class RequestReader:
    """Effect executor of `machine-request`: reads a request, because controllers only see metadata."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, arguments: Mapping[str, Any]) -> dict[str, list[str]] | None:
        """None if it does not exist. An unreadable request counts as empty, and is refused."""
        try:
            secret = await self._client.get(SECRET.resource, arguments["name"], namespace=arguments["namespace"])
        except NotFound:
            return None
        try:
            return read_request(secret)
        except ValueError:
            return {}
