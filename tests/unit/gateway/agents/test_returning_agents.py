"""A disconnected agent, and an impostor that registers in the meantime with the registration token."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.api.management.clusters import connected_since
from herder.api.management.parameters import Parameters
from herder.api.management.registration import Tokens
from herder.engine.certificates import KeyPair
from herder.engine.client.client import Client
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Object
from herder.gateway.proxy.upstream.transport import DownstreamTransport
from herder.tunnel import pipe
from herder.tunnel.client import Target, TunnelClient
from herder.tunnel.errors import TunnelError
from herder.tunnel.limits import DEFAULT
from herder.tunnel.link import Link
from herder.tunnel.stream import Stream
from tests.unit.gateway.gateway_server import GatewayServer, running_gateway
from tests.unit.gateway.managed_clusters import authority, create_managed_cluster, serving_context

HOST, PORT = "10.43.0.1", 443
CA, OTHER_CA = authority("meadow"), authority("mallory")
AGENT_TOKEN = "service-account-token-of-the-agent"


@dataclass
class Impostor:
    """An API server that accepts every token and records what it receives."""

    signer: KeyPair
    host: str = HOST
    received: list[str] = field(default_factory=list)
    address: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Impostor]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=serving_context(self.signer, self.host))
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = {"authenticated": True, "user": {"username": "system:serviceaccount:x:y", "uid": "1"}}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "status": user}
        body = json.dumps(review).encode()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                sizes = [line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length")]
                self.received.append(head + (await reader.readexactly(int(sizes[0]))).decode() if sizes else head)
                start = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                writer.write(f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


@dataclass
class Harness:
    gateway: GatewayServer
    cluster: str
    token: str = field(repr=False)  # registration token
    clients: list[TunnelClient] = field(default_factory=list)

    async def register(self, ca: str, account: str, backend: str = "", host: str = HOST) -> Link:
        """Open the session of an agent that forwards every connection to `backend`."""
        reported = Parameters(f"{host}:{PORT}", account, ca).encoded()
        headers = {"X-API-Tunnel-Token": self.token, "X-API-Tunnel-Params": reported}
        url = self.gateway.url.replace("https://", "wss://") + "/v3/connect/register"
        trusted = ssl.create_default_context(cadata=self.gateway.ca.decode())

        async def dial(stream: Stream) -> None:
            stream.address = backend or "127.0.0.1:1"
            await pipe.dial(stream, DEFAULT.dial)

        client = TunnelClient(lambda: Target(url, headers, trusted), lambda _proto, _address: True, dial=dial)
        self.clients.append(client)
        return await client.connect()

    async def disconnect(self, link: Link) -> None:
        link.close("the node restarts")
        async with asyncio.timeout(30):
            await link.done
            while self.gateway.parts.tunnels.has(self.cluster):
                await asyncio.sleep(0.01)

    async def until_connected(self, wanted: bool) -> None:
        """Wait until the management Cluster reports it."""
        async with asyncio.timeout(30):
            while bool(connected_since(self.gateway.parts.clusters.get(self.cluster) or {"metadata": {}})) != wanted:
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as server:
        yield server


@pytest.fixture
async def harness(gateway: GatewayServer) -> AsyncIterator[Harness]:
    """A new cluster for each test."""
    created = Harness(gateway, f"c-m-{os.urandom(4).hex()}", os.urandom(27).hex())
    await create_managed_cluster(
        gateway.client, created.cluster, Tokens(created.token, datetime.now(UTC) + timedelta(days=1))
    )
    async with asyncio.timeout(30):
        while gateway.parts.registration.cluster_of(created.token) is None:
            await asyncio.sleep(0.01)
    try:
        yield created
    finally:
        for client in created.clients:
            client.stop()


def pem(*authorities: KeyPair) -> str:
    return "".join(each.certificate_pem.decode() for each in authorities)


@pytest.mark.parametrize(
    ("signer", "bundle", "host"),
    [(OTHER_CA, (CA, OTHER_CA), HOST), (CA, (CA,), "10.66.0.1")],
    ids=["further authority", "serving certificate of a node"],
)
async def test_the_token_of_an_agent_is_sent_only_to_its_own_api_server(
    harness: Harness, signer: KeyPair, bundle: tuple[KeyPair, ...], host: str
) -> None:
    """The registration token and the public CA of a cluster give no rights in the cluster.

    k3s and RKE2 sign the serving certificates of kubelets with the same CA.
    """
    await harness.disconnect(await harness.register(pem(CA), AGENT_TOKEN))
    async with Impostor(signer, host).serving() as impostor:
        for client_name, ca, account, api_host in (
            ("mallory", pem(*bundle), "of-mallory", host),
            ("the agent", pem(CA), AGENT_TOKEN, HOST),
        ):
            try:
                await harness.register(ca, account, impostor.address, api_host)
            except TunnelError as error:
                print(client_name, error)
        assert not any(AGENT_TOKEN in each for each in impostor.received)


async def test_the_token_of_an_agent_is_not_used_at_the_address_of_another(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reported values are stored in two objects.

    Between the two writes, or if the second one fails, the token must not be sent to the server of the former agent,
    which may have been an impostor.
    """
    link = await harness.register(pem(OTHER_CA), "of-mallory", host="10.66.0.1")
    await harness.until_connected(True)
    await harness.disconnect(link)
    await harness.until_connected(False)
    clusters, patch = harness.gateway.parts.clusters, Client.patch

    async def failing(self: Client, *arguments: Any, **options: Any) -> Object:
        if options.get("subresource") == "status":
            raise ServiceUnavailable("try again")
        return await patch(self, *arguments, **options)

    monkeypatch.setattr(Client, "patch", failing)
    with pytest.raises(TunnelError):
        await harness.register(pem(CA), AGENT_TOKEN)
    monkeypatch.undo()

    async def token() -> str:
        try:
            return (await clusters.target_of(harness.cluster)).token
        except ServiceUnavailable:
            return "unavailable"

    async with asyncio.timeout(30):
        while (found := await token()) == "of-mallory":
            await asyncio.sleep(0.01)
    assert found == "unavailable"
    await harness.register(pem(CA), AGENT_TOKEN)
    async with asyncio.timeout(30):
        while (found := await token()) == "unavailable":
            await asyncio.sleep(0.01)
    assert found == AGENT_TOKEN


async def test_no_tls_contexts_are_kept_for_ca_bundles_that_agents_choose(harness: Harness) -> None:
    """A bundle of many CAs has more subsets than there is memory for TLS contexts."""
    bundle = [authority(f"ca-{number}") for number in range(8)]
    async with Impostor(bundle[0]).serving() as server:
        await harness.register(pem(*bundle), "first", server.address)
        for number in range(1, 8):
            await harness.register(pem(bundle[0], *bundle[number:]), f"agent-{number}", server.address)
    assert len(server.received) >= 14, "the cluster reviewed each of them"
    connections = harness.gateway.parts.connections
    assert not [key for key in connections._contexts if key[0] == harness.cluster]


async def test_a_cluster_that_changes_its_ca_has_one_tls_context(harness: Harness) -> None:
    """Its agent may report another CA as often as it likes."""
    parts = harness.gateway.parts
    async with Impostor(OTHER_CA).serving() as server:
        for number in range(4):
            ca = pem(OTHER_CA, authority(f"ca-{number}"))
            await harness.register(ca, "same", server.address)
            async with asyncio.timeout(30):
                while await _known_ca(harness) != ca:
                    await asyncio.sleep(0.01)
            target = await parts.clusters.target_of(harness.cluster)
            await Client(DownstreamTransport(parts.connections, target, "same")).raw("GET", "/version")
    assert len([key for key in parts.connections._contexts if key[0] == harness.cluster]) == 1
    assert len([key for key in parts.connections._idle if key[0] == harness.cluster]) == 1


async def _known_ca(harness: Harness) -> str:
    try:
        return (await harness.gateway.parts.clusters.target_of(harness.cluster)).ca
    except ServiceUnavailable:  # the watch of a real API server has not reported the registration yet
        return ""
