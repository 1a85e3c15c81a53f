"""`herder resume cluster` reads Nodes of clusters that may be hostile. One must not keep others from being resumed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.server import resume
from herder.engine.client import http
from herder.engine.client.client import Client
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.wire import Request, Response
from tests.support.builders import new_object

TARGET = resume.Target(PROVISIONING_CLUSTER, new_object(PROVISIONING_CLUSTER, "demo", "x", status={"clusterName": "c"}))


class Endless:
    """A server whose list of Nodes has no last page."""

    def __init__(self, nodes: int, seconds: float = 0) -> None:
        self._nodes = nodes
        self._seconds = seconds
        self.pages = 0

    async def send(self, _request: Request) -> Response:
        self.pages += 1
        assert self.pages < 500, "the list is read without end"
        await asyncio.sleep(self._seconds)
        items = [{"metadata": {"name": f"node-{self.pages}-{number}"}} for number in range(self._nodes)]
        found = {"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": "more"}, "items": items}
        return Response(200, {}, json.dumps(found).encode())

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (Endless(500), "more than 10000 objects"),
        (Endless(0), "too many empty pages"),
        (Endless(1, seconds=0.02), "is not complete after 0.3 s"),
    ],
    ids=["nodes", "empty pages", "slow pages"],
)
def test_a_list_of_nodes_without_end_ends(server: Endless, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connection(*_arguments: Any) -> RestConfig:
        return RestConfig(server="https://cluster.test")

    monkeypatch.setattr(resume, "_connection", connection)
    monkeypatch.setattr(http, "HttpTransport", lambda _connection: server)
    monkeypatch.setattr(resume, "NODES_SECONDS", 0.3 if server._seconds else 60, raising=False)
    here = RestConfig(server="https://manager.test")
    nodes, unreachable = asyncio.run(resume._nodes(Client(server), here, TARGET))
    assert nodes is None
    assert reason in unreachable
