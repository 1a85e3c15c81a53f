"""Clusters have nothing to do with each other: what leads to one never leads to another, nor to the manager's host."""

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
from tests.unit.gateway.front import Front, front, namespace
from tests.unit.gateway.proxy.recorder import OneToken, Recorder
from tests.unit.gateway.proxy.serving import Gateway

BARN, MEADOW = "c-m-barn", "c-m-meadow"
EVERYWHERE = "10.43.0.1:443"
"""Most clusters have their API at the same address, as seen from inside."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("downstream"))


@pytest.fixture
async def recorders(authority: Authority) -> AsyncIterator[dict[str, Recorder]]:
    made = {name: await Recorder(name, authority).start() for name in (BARN, MEADOW)}
    yield made
    for recorder in made.values():
        await recorder.stop()


async def test_clusters_of_the_same_address_are_not_taken_for_each_other(recorders: dict[str, Recorder]) -> None:
    """Neither by kept connections, nor by the credentials that are sent on them."""

    async def dial(cluster: str, address: str) -> Channel:
        assert address == EVERYWHERE
        return await dial_tcp(cluster, recorders[cluster].address)

    targets = {
        name: replace(recorder.target(), address=EVERYWHERE, certified_name="127.0.0.1")
        for name, recorder in recorders.items()
    }
    gateway = await Gateway(targets, dial=dial, tokens=OneToken()).start()
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


# --- the manager's own host -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def outside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    async with front("embedded", tmp_path_factory.mktemp("front")) as made:
        yield made


async def _pretender(outside: Front, address: str, authority: Authority) -> None:
    """A cluster whose agent told that its API is where something of the manager's listens."""
    cluster = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": {"name": BARN}, "spec": {}}
    await outside.client.create(MANAGEMENT_CLUSTER.resource, cluster)
    status = {
        "apiEndpoint": f"https://{address}",
        "caCert": encoded(authority.path.read_text()),
        "serviceAccountTokenSecret": credential_secret(BARN),
    }
    await outside.client.patch(MANAGEMENT_CLUSTER.resource, BARN, {"status": status}, subresource="status")
    await namespace(outside.client, CREDENTIALS_NAMESPACE)
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": credential_secret(BARN)}}
    secret["data"] = {"credential": encoded("of the agent")}
    await outside.client.create(SECRET.resource, secret, namespace=CREDENTIALS_NAMESPACE)


async def test_nothing_is_dialled_from_the_managers_host(
    outside: Front, recorders: dict[str, Recorder], authority: Authority
) -> None:
    """Not for a cluster that says it is there, and not for anybody who names a host: everything goes by a tunnel."""
    listening = recorders[BARN]
    await _pretender(outside, listening.address, authority)
    await outside.administrator("u-boss")
    token = await outside.parts.identity.issuer.issue(NewToken("u-boss", "boss"))
    holder = outside.as_holder_of(token.bearer)
    answers = {
        path: (await holder.raw("GET", path)).status
        for path in (
            f"/k8s/clusters/{BARN}/api",
            f"/k8s/proxy/{BARN}/api",
            f"/meta/proxy/{listening.address}/",
            f"/v3/proxy/{listening.address}/",
            f"/k8s/clusters/{listening.address}/api",
            f"/api/v1/nodes/{listening.address}/proxy/",
            f"/api/v1/namespaces/default/services/https:{listening.address}/proxy/",
        )
    }
    assert answers[f"/k8s/clusters/{BARN}/api"] == 503, "its agent has no tunnel"
    assert all(status >= 400 for status in answers.values()), answers
    assert listening.connections == 0
