"""Isolation of clusters: requests to one never reach another, nor the manager's host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.identity.authn.tokens import NewToken, encoded
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import CREDENTIALS_NAMESPACE, credential_secret
from herder.engine.meta.kinds import Object
from herder.gateway.proxy.upstream.channel import Channel, dial_tcp
from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Raw
from tests.unit.gateway.gateway_server import GatewayServer, create_namespace, running_gateway
from tests.unit.gateway.proxy.proxy_gateway import Gateway
from tests.unit.gateway.proxy.recorder import Recorder, StaticTokens

BARN, MEADOW = "c-m-barn", "c-m-meadow"
COMMON_ADDRESS = "10.43.0.1:443"
"""The address of the API server inside most clusters."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("downstream"))


@pytest.fixture
async def recorders(authority: Authority) -> AsyncIterator[dict[str, Recorder]]:
    created = {name: await Recorder(name, authority).start() for name in (BARN, MEADOW)}
    yield created
    for recorder in created.values():
        await recorder.stop()


async def test_clusters_with_the_same_address_are_not_confused(recorders: dict[str, Recorder]) -> None:
    """Neither by pooled connections, nor by the credentials that are sent on them."""

    async def dial(cluster: str, address: str) -> Channel:
        assert address == COMMON_ADDRESS
        return await dial_tcp(cluster, recorders[cluster].address)

    targets = {
        name: replace(recorder.target(), address=COMMON_ADDRESS, certified_name="127.0.0.1")
        for name, recorder in recorders.items()
    }
    gateway = await Gateway(targets, dial=dial, tokens=StaticTokens()).start()
    try:
        for name in (BARN, MEADOW, BARN, MEADOW):
            raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
            lines = (f"GET /k8s/clusters/{name}/api HTTP/1.1", "Host: m", "Authorization: Bearer token-alice", "", "")
            raw.send("\r\n".join(lines).encode())
            assert (await raw.answer()).status == 200
            raw.close()
    finally:
        await gateway.stop()
    for name, recorder in recorders.items():
        assert [each.all("authorization") for each in recorder.received] == [[f"Bearer of-u-alice-in-{name}-0"]] * 2
        assert recorder.connections == 1


# --- the manager's own host -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def manager_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayServer]:
    async with running_gateway("embedded", tmp_path_factory.mktemp("front")) as created:
        yield created


async def _create_hostile_cluster(manager_gateway: GatewayServer, address: str, authority: Authority) -> None:
    """Create a cluster whose agent reported an address on the manager's host."""
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": BARN}, "spec": {}}
    await manager_gateway.client.create(MANAGEMENT_CLUSTER.resource, cluster)
    status = {
        "apiEndpoint": f"https://{address}",
        "caCert": encoded(authority.path.read_text()),
        "serviceAccountTokenSecret": credential_secret(BARN),
    }
    await manager_gateway.client.patch(MANAGEMENT_CLUSTER.resource, BARN, {"status": status}, subresource="status")
    await create_namespace(manager_gateway.client, CREDENTIALS_NAMESPACE)
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": credential_secret(BARN)}}
    secret["data"] = {"credential": encoded("agent-token")}
    await manager_gateway.client.create(SECRET.resource, secret, namespace=CREDENTIALS_NAMESPACE)


async def test_nothing_is_dialed_from_the_managers_host(
    manager_gateway: GatewayServer, recorders: dict[str, Recorder], authority: Authority
) -> None:
    """Neither for a cluster that reports such an address, nor for a user who names a host: requests use a tunnel."""
    recorder = recorders[BARN]
    await _create_hostile_cluster(manager_gateway, recorder.address, authority)
    await manager_gateway.create_administrator("u-boss")
    token = await manager_gateway.parts.identity.issuer.issue(NewToken("u-boss", "boss"))
    client = manager_gateway.client_with_token(token.bearer)
    statuses = {
        path: (await client.raw("GET", path)).status
        for path in (
            f"/k8s/clusters/{BARN}/api",
            f"/k8s/proxy/{BARN}/api",
            f"/meta/proxy/{recorder.address}/",
            f"/v3/proxy/{recorder.address}/",
            f"/k8s/clusters/{recorder.address}/api",
            f"/api/v1/nodes/{recorder.address}/proxy/",
            f"/api/v1/namespaces/default/services/https:{recorder.address}/proxy/",
        )
    }
    assert statuses[f"/k8s/clusters/{BARN}/api"] == 503, "its agent has no tunnel"
    assert all(status >= 400 for status in statuses.values()), statuses
    assert recorder.connections == 0
