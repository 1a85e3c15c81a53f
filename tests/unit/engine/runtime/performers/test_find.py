"""Searching a workload cluster is bounded: it may be compromised, and send invalid or endless responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from herder.api.capi.kinds import NODE
from herder.engine.client.client import Client
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.runtime.performers.find import find
from herder.engine.runtime.remote import Remotes
from herder.engine.wire import Request, Response

ARGUMENTS = {"cluster": "c", "kind": NODE, "field": ("spec", "providerID"), "value": "x://1"}


class Cluster:
    """Answer each list with the same page."""

    def __init__(self, items: list[Any], more: str = "") -> None:
        self.requests = 0
        self._body = json.dumps({"kind": "NodeList", "metadata": {"continue": more}, "items": items}).encode()

    async def send(self, _request: Request) -> Response:
        self.requests += 1
        await asyncio.sleep(0)
        return Response(200, body=self._body)

    async def close(self) -> None: ...

    def client(self, _cluster: str) -> Client:
        return Client(self)


def matching_node(name: object) -> Object:
    return {"metadata": {"name": name}, "spec": {"providerID": "x://1"}}


async def find_names(cluster: Cluster) -> list[str]:
    return await find(cast(Remotes, cluster), ARGUMENTS)


async def test_an_endless_list_is_aborted() -> None:
    cluster = Cluster([{"metadata": {"name": "n" * 1000}}] * 500, more="more")
    with pytest.raises(ServiceUnavailable, match="more than"):
        await find_names(cluster)
    assert cluster.requests < 300


@pytest.mark.parametrize("name", [7, None, ["a"], {"a": 1}, "\x1b[2J", "n" * 100_000])
async def test_names_of_any_type_can_be_reported(name: object) -> None:
    message = ", ".join(await find_names(Cluster([matching_node(name)] * 5000 + [{"spec": None}])))
    assert len(message) < 10_000
    assert "\x1b" not in message
