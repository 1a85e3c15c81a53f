"""The plan of a worker gives it access to its own Node only, in a cluster of the embedded distribution."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from herder.api.capi.kinds import NODE as NODE_KIND
from herder.api.rke.names import MACHINE_UID
from herder.api.rke.node.join_token import node_token
from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import MachineInputs
from herder.embedded.node import LEASE_NAMESPACE, LEASES
from herder.engine.client.client import JSON_PATCH, Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig, load
from herder.engine.meta.errors import Forbidden, Invalid, StatusError, Unauthorized
from herder.engine.meta.kinds import Object
from tests.support.builders import new_manifest
from tests.unit.controllers.planner.distributions.test_embedded import NODE, READY
from tests.unit.embedded.test_cluster import NODES, Machine, eventually, ready

CLUSTER = replace(READY, server_token="for-servers", agent_token="for-nodes")
OTHER = "uid-of-another"
DENIED = (Forbidden, Invalid)


def config_of(machine: MachineInputs) -> Object:
    [content] = [each.decoded for each in Embedded().render(CLUSTER, machine).files if "config.yaml.d" in each.path]
    config: Object = json.loads(content)
    return config


WORKER = config_of(replace(NODE, uid="uid-of-w1", node_name="w1"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    base, third = tmp_path_factory.mktemp("identity"), os.getpid() % 250 + 1
    server = Machine(base / "server", "s1", f"127.89.{third}.1")
    node = Machine(base / "node", "w1", f"127.89.{third}.2")
    server.configure(token="for-servers", **{"agent-token": "for-nodes", "node-label": [f"{MACHINE_UID}=uid-of-s1"]})
    server.start("server")
    try:
        for _ in range(600):
            if server.kubeconfig.exists():
                break
            import time

            time.sleep(0.05)
        (node.data / "agent").mkdir(parents=True)
        (node.data / "agent" / "server-ca.crt").write_bytes((server.data / "server/tls/ca.crt").read_bytes())
        join_options = {name: WORKER[name] for name in ("token", "node-label")}
        node.configure(server=f"https://{server.address}:6443", **join_options)
        node.start("node")
        yield server
    finally:
        for machine in (node, server):
            with suppress(AssertionError):
                machine.stop()


def client_with_token(server: Machine, token: str) -> Client:
    ca = (server.data / "server/tls/ca.crt").read_bytes()
    return Client(HttpTransport(RestConfig(f"https://{server.address}:6443", ca=ca, token=token)))


@pytest.fixture
async def worker(server: Machine) -> AsyncIterator[Client]:
    """A client with the token of the worker, as for root on the machine."""
    admin, client = Client(HttpTransport(load(server.kubeconfig))), client_with_token(server, WORKER["token"])
    try:
        await eventually(lambda: _both_ready(admin))
        yield client
    finally:
        await admin.close()
        await client.close()


async def _both_ready(admin: Client) -> bool:
    return all([ready(await admin.get(NODES, name)) for name in ("s1", "w1")])


def lease(name: str, namespace: str = LEASE_NAMESPACE, **labels: str) -> Object:
    meta = {"name": name, "namespace": namespace, "labels": {MACHINE_UID: labels.get("machine", "uid-of-w1")}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {"holderIdentity": "w1"}}


def node(name: str, machine: str = "uid-of-w1", provider_id: str = "") -> Object:
    spec = {"providerID": provider_id or f"herder://{name}"}
    return new_manifest(NODE_KIND, name, labels={MACHINE_UID: machine}, spec=spec)


NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Forged", "message": "forged"}]}}


async def test_a_worker_updates_its_own_node(worker: Client) -> None:
    assert ready(await worker.get(NODES, "w1"))
    await worker.patch(NODES, "w1", {"metadata": {"labels": {"team": "blue"}}})
    await worker.patch(NODES, "w1", {"status": {"capacity": {"cpu": "1"}}}, subresource="status")
    assert await worker.get(LEASES, "w1", namespace=LEASE_NAMESPACE)


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_worker_cannot_write_the_node_of_another(worker: Client, subresource: str) -> None:
    change = NOT_READY if subresource else {"metadata": {"labels": {"forged": "true"}}}
    with pytest.raises(DENIED):
        await worker.patch(NODES, "s1", change, subresource=subresource)


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_worker_cannot_read_the_node_of_another(worker: Client, subresource: str) -> None:
    assert await worker.get(NODES, "w1", subresource=subresource)
    with pytest.raises(Forbidden):
        await worker.get(NODES, "s1", subresource=subresource)


async def test_a_worker_cannot_read_leases_of_others(server: Machine, worker: Client) -> None:
    admin = Client(HttpTransport(load(server.kubeconfig)))
    try:
        await admin.create(LEASES, lease("election", "default", machine=""), namespace="default")
    finally:
        await admin.close()
    for name, namespace in (("s1", LEASE_NAMESPACE), ("election", "default")):
        with pytest.raises(Forbidden):
            await worker.get(LEASES, name, namespace=namespace)


async def test_a_worker_cannot_guess_the_content_of_the_node_of_another(worker: Client) -> None:
    """A patch applies its tests before admission, so its error would show whether the value is right."""
    for hostname in ("s1", "another"):
        test = {"op": "test", "path": "/metadata/labels/kubernetes.io~1hostname", "value": hostname}
        response = await worker.raw(
            "PATCH", NODES.path(name="s1"), body=json.dumps([test]).encode(), headers={"content-type": JSON_PATCH}
        )
        assert response.status == Forbidden.code, response.content()


@pytest.mark.parametrize(
    "forged",
    [node("forged", OTHER), node("forged", provider_id="herder://s1")],
    ids=["label of another machine", "provider ID of another node"],
)
async def test_a_worker_cannot_register_as_another_machine(worker: Client, forged: Object) -> None:
    with pytest.raises(DENIED):
        await worker.create(NODES, forged)


async def test_a_worker_cannot_become_a_server(worker: Client) -> None:
    with pytest.raises(DENIED):
        await worker.patch(NODES, "w1", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "true"}}})


async def test_a_worker_cannot_relabel_its_node_as_another_machine(worker: Client) -> None:
    try:
        with pytest.raises(DENIED):
            await worker.patch(NODES, "w1", {"metadata": {"labels": {MACHINE_UID: OTHER}}})
    finally:
        with suppress(StatusError):
            await worker.patch(NODES, "w1", {"metadata": {"labels": {MACHINE_UID: "uid-of-w1"}}})


@pytest.mark.parametrize(
    "forged", [lease("s1"), lease("some-controller", "default"), lease("s1", machine="uid-of-s1")], ids=str
)
async def test_a_worker_cannot_hold_leases_of_others(worker: Client, forged: Object) -> None:
    with pytest.raises(DENIED):
        await worker.apply(LEASES, forged, force=True)


async def test_plans_of_workers_do_not_share_a_token(server: Machine) -> None:
    tokens = {config_of(replace(NODE, uid=uid))["token"] for uid in ("one", "two")}
    assert len(tokens) == 2
    assert "for-nodes" not in "".join(tokens)
    forged = f"{OTHER}.{WORKER['token'].partition('.')[2]}"
    client = client_with_token(server, forged)
    try:
        with pytest.raises(Unauthorized):
            await client.get(NODES, "w1")
    finally:
        await client.close()


@pytest.fixture
async def shared_token_client(server: Machine, worker: Client) -> AsyncIterator[Client]:
    """A client with the token that all workers of a cluster shared in version 0.1."""
    client = client_with_token(server, "for-nodes")
    yield client
    await client.close()


async def test_the_shared_token_identifies_no_machine(server: Machine) -> None:
    client = client_with_token(server, node_token("for-nodes", "uid-of-s1"))
    try:
        with pytest.raises(Unauthorized):
            await client.get(NODES, "s1")
    finally:
        await client.close()


@pytest.mark.parametrize("name", ["s1", "w1"])
@pytest.mark.parametrize("subresource", ["", "status"])
async def test_the_shared_token_cannot_write_nodes_of_machines_with_own_tokens(
    shared_token_client: Client, name: str, subresource: str
) -> None:
    change = NOT_READY if subresource else {"metadata": {"labels": {"forged": "true"}}}
    with pytest.raises(DENIED):
        await shared_token_client.patch(NODES, name, change, subresource=subresource)


@pytest.mark.parametrize("forged", [lease("s1"), lease("w1"), lease("next"), lease("x", "default")], ids=str)
async def test_the_shared_token_cannot_hold_leases_of_machines_with_own_tokens(
    shared_token_client: Client, forged: Object
) -> None:
    with pytest.raises(DENIED):
        await shared_token_client.apply(LEASES, forged, force=True)


async def test_the_shared_token_cannot_read_nodes_of_machines_with_own_tokens(shared_token_client: Client) -> None:
    for name in ("s1", "w1"):
        with pytest.raises(Forbidden):
            await shared_token_client.get(NODES, name)
        with pytest.raises(Forbidden):
            await shared_token_client.get(LEASES, name, namespace=LEASE_NAMESPACE)


async def test_the_shared_token_cannot_register_a_node(shared_token_client: Client) -> None:
    with pytest.raises(DENIED):
        await shared_token_client.create(NODES, node("forged", OTHER))


async def test_the_shared_token_can_update_a_node_until_its_machine_has_a_token(
    server: Machine, shared_token_client: Client, worker: Client
) -> None:
    """A worker of version 0.1, before and after it gets its new plan."""
    admin, own_client = (
        Client(HttpTransport(load(server.kubeconfig))),
        client_with_token(server, node_token("for-servers", "uid-of-w2")),
    )
    unlabeled = lease("w2")
    del unlabeled["metadata"]["labels"]
    try:
        await admin.create(NODES, node("w2", "uid-of-w2"))
        await admin.create(LEASES, unlabeled, namespace=LEASE_NAMESPACE)
        await shared_token_client.patch(NODES, "w2", NOT_READY, subresource="status")
        await shared_token_client.apply(LEASES, unlabeled, force=True)
        assert await shared_token_client.get(NODES, "w2")
        for client in (shared_token_client, worker):
            with pytest.raises(DENIED):
                await client.apply(LEASES, lease("w2"), force=True)
        await own_client.apply(LEASES, lease("w2", machine="uid-of-w2"), force=True)
        with pytest.raises(DENIED):
            await shared_token_client.patch(NODES, "w2", NOT_READY, subresource="status")
        with pytest.raises(DENIED):
            await shared_token_client.apply(LEASES, unlabeled, force=True)
    finally:
        await admin.close()
        await own_client.close()


async def test_a_machine_can_register_only_one_node(worker: Client) -> None:
    with pytest.raises(DENIED):
        await worker.create(NODES, node("next"))
    with pytest.raises(DENIED):
        await worker.apply(NODES, node("next-by-apply"))


async def test_only_one_of_concurrently_registered_nodes_is_accepted(server: Machine) -> None:
    client = client_with_token(server, config_of(replace(NODE, uid="uid-of-w9"))["token"])
    try:
        requests = [client.create(NODES, node(f"w9-{number}", "uid-of-w9")) for number in range(8)]
        results = await asyncio.gather(*requests, return_exceptions=True)
    finally:
        await client.close()
    assert sum(isinstance(each, DENIED) for each in results) == 7


async def test_a_machine_can_hold_only_the_lease_of_its_own_node(worker: Client) -> None:
    with pytest.raises(DENIED):
        await worker.apply(LEASES, lease("next"))


async def test_a_removed_machine_does_not_keep_the_lease_of_its_successor(server: Machine, worker: Client) -> None:
    """A machine that was reinstalled under the same host name has another token than before."""
    assert worker, "the server is ready"
    admin = Client(HttpTransport(load(server.kubeconfig)))
    old, new = [
        client_with_token(server, node_token("for-servers", machine)) for machine in ("uid-of-old", "uid-of-new")
    ]
    try:
        await old.create(NODES, node("h1", "uid-of-old"))
        await old.apply(LEASES, lease("h1", machine="uid-of-old"))
        await admin.delete(NODES, "h1")
        await old.apply(LEASES, lease("h1", machine="uid-of-old"))
        await new.create(NODES, node("h1", "uid-of-new"))
        with pytest.raises(DENIED):
            await old.apply(LEASES, {**lease("h1", machine="uid-of-old"), "spec": {"holderIdentity": "old"}})
        await new.apply(LEASES, lease("h1", machine="uid-of-new"))
    finally:
        for client in (admin, old, new):
            await client.close()
