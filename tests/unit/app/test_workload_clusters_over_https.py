"""Two workload clusters over HTTPS, reached with the kubeconfigs in their Secrets: watched, stopped, moved."""

from __future__ import annotations

import base64
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from herder.api.capi.kinds import NODE, SECRET
from herder.api.capi.nodes import NODE_RECORD, node_by_provider_id
from herder.app.workload_clusters import connect
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import load
from herder.engine.control.tasks import Tasks
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Connect, Observe
from herder.engine.runtime.remote import Remotes, connection, transport
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import new_manifest
from tests.support.embedded import Embedded
from tests.unit.engine.runtime.envtest import Environment, environment, until


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Embedded]]:
    started = {name: Embedded(tmp_path_factory.mktemp(name)) for name in ("one", "two")}
    try:
        for server in started.values():
            server.start()
        yield started
    finally:
        for server in started.values():
            server.kill()


@dataclass
class Fleet:
    management: Environment
    tasks: Tasks = field(default_factory=Tasks)
    woken: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.remotes = Remotes(
            partial(connect, self.management.client, allowed=lambda _host, _port: True),
            clock=lambda: datetime.now(UTC),
            tasks=self.tasks,
        )

    async def save_kubeconfig(self, cluster: str, path: Path) -> str:
        """Store the kubeconfig, and return its revision, which identifies the credential."""
        name = f"{cluster}-kubeconfig"
        data = {"value": base64.b64encode(path.read_bytes()).decode()}
        secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}
        saved = await self.management.outside.apply(SECRET.resource, {**secret, "data": data})
        return str(saved["metadata"]["resourceVersion"])

    def subscribe(self, subscriber: str, *requests: Observe | Connect) -> None:
        self.remotes.subscribe(requests, subscriber, lambda: self.woken.update([subscriber]))

    def names(self, request: Observe) -> list[str]:
        result = self.remotes.observed(request)
        return [obj["metadata"]["name"] for obj in result.objects] if isinstance(result, Observed) else []

    def healthy(self, cluster: str) -> bool:
        connection = self.remotes.connection(cluster)
        return connection is not None and connection.healthy


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """A fleet with short intervals of probes and retries."""
    monkeypatch.setattr(connection, "PROBE_INTERVAL_SECONDS", 0.2)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(transport, "PROBE_SECONDS", 0.5)
    async with environment() as management:
        created = Fleet(management)
        try:
            yield created
        finally:
            await created.tasks.stop()


def client_of(server: Embedded) -> Client:
    return Client(HttpTransport(load(server.kubeconfig)), field_manager="tester")


def node(name: str) -> Object:
    return new_manifest(NODE, name, labels={"zone": "a"}, spec={"providerID": f"test://{name}"})


async def test_an_unresponsive_cluster_does_not_block_watches_of_another(
    fleet: Fleet, servers: dict[str, Embedded]
) -> None:
    clients = {name: client_of(server) for name, server in servers.items()}
    for name in servers:
        credential = await fleet.save_kubeconfig(name, servers[name].kubeconfig)
        fleet.subscribe(f"{name} a", node_by_provider_id(f"default/{name}", "test://a"))
        fleet.subscribe(f"{name} b", node_by_provider_id(f"default/{name}", "test://b"))
        fleet.subscribe(name, Connect(f"default/{name}", credential))
        await clients[name].create(NODE.resource, node("a"))
    observations = {name: node_by_provider_id(f"default/{name}", "test://a") for name in servers}
    await until(lambda: fleet.names(observations["one"]) == fleet.names(observations["two"]) == ["a"])
    [record] = fleet.remotes.observed(observations["one"]).objects  # type: ignore[union-attr]
    assert record["metadata"]["labels"] == {"zone": "a"}
    assert "managedFields" not in record["metadata"]

    fleet.woken.clear()
    await clients["one"].create(NODE.resource, node("b"))
    await until(lambda: fleet.woken["one b"])
    assert fleet.woken == {"one b": 1}, "only its subscriber is woken"

    hung = servers["one"].process
    assert hung is not None
    hung.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: not fleet.healthy("default/one"))
        assert isinstance(fleet.remotes.observed(observations["one"]), Unreachable)
        with pytest.raises(ServiceUnavailable, match="default/one is not connected"):
            fleet.remotes.client("default/one")
        assert fleet.healthy("default/two")
        await clients["two"].create(NODE.resource, node("b"))
        await until(lambda: fleet.names(replace(observations["two"], focus=("providerID", "test://b"))) == ["b"])
    finally:
        hung.send_signal(signal.SIGCONT)
    await until(lambda: fleet.names(observations["one"]) == ["a"])
    assert fleet.healthy("default/one")
    for client in clients.values():
        await client.close()


async def test_a_new_kubeconfig_connects_to_the_new_server(fleet: Fleet, servers: dict[str, Embedded]) -> None:
    """Objects of the former server are dropped."""
    clients = {name: client_of(server) for name, server in servers.items()}
    for name, client in clients.items():
        await client.create(NODE.resource, node(f"only-{name}"))
    cluster = "default/moving"
    nodes = Observe(cluster, NODE, projection=NODE_RECORD, labels="zone=a")
    credential = await fleet.save_kubeconfig("moving", servers["one"].kubeconfig)
    fleet.subscribe("me", Connect(cluster, credential), nodes)
    await until(lambda: "only-one" in fleet.names(nodes))
    credential = await fleet.save_kubeconfig("moving", servers["two"].kubeconfig)
    fleet.subscribe("me", Connect(cluster, credential), nodes)
    await until(lambda: "only-two" in fleet.names(nodes))
    assert "only-one" not in fleet.names(nodes)
    for client in clients.values():
        await client.close()
