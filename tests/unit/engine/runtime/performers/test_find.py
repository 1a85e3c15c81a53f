"""What is looked for in a workload cluster, which may be compromised, and answer with anything, without an end."""

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

ABOUT = {"cluster": "c", "kind": NODE, "field": ("spec", "providerID"), "value": "x://1"}


class Cluster:
    """Answers each list with the same page."""

    def __init__(self, items: list[Any], more: str = "") -> None:
        self.asked = 0
        self._body = json.dumps({"kind": "NodeList", "metadata": {"continue": more}, "items": items}).encode()

    async def send(self, _request: Request) -> Response:
        self.asked += 1
        await asyncio.sleep(0)
        return Response(200, body=self._body)

    async def close(self) -> None: ...

    def client(self, _cluster: str) -> Client:
        return Client(self)


def found(name: object) -> Object:
    return {"metadata": {"name": name}, "spec": {"providerID": "x://1"}}


async def names(cluster: Cluster) -> list[str]:
    return await find(cast(Remotes, cluster), ABOUT)


async def test_a_list_without_an_end_is_given_up() -> None:
    cluster = Cluster([{"metadata": {"name": "n" * 1000}}] * 500, more="more")
    with pytest.raises(ServiceUnavailable, match="more than"):
        await names(cluster)
    assert cluster.asked < 300


@pytest.mark.parametrize("name", [7, None, ["a"], {"a": 1}, "\x1b[2J", "n" * 100_000])
async def test_names_of_any_type_can_be_put_into_a_message(name: object) -> None:
    told = ", ".join(await names(Cluster([found(name)] * 5000 + [{"spec": None}])))
    assert len(told) < 10_000
    assert "\x1b" not in told
