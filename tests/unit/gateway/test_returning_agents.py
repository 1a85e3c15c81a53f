"""An agent that was away for a moment, and whoever registered in its place meanwhile with the registration token."""

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
from tests.unit.gateway.front import Front, front
from tests.unit.gateway.managed import authority, managed, serving_context

HOST, PORT = "10.43.0.1", 443
CA, OTHER_CA = authority("meadow"), authority("mallory")
OF_THE_AGENT = "service-account-token-of-the-agent"


@dataclass
class Impostor:
    """An API server that accepts every token and keeps what it is sent."""

    signer: KeyPair
    host: str = HOST
    seen: list[str] = field(default_factory=list)
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
                self.seen.append(head + (await reader.readexactly(int(sizes[0]))).decode() if sizes else head)
                start = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                writer.write(f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


@dataclass
class Site:
    here: Front
    cluster: str
    token: str = field(repr=False)  # for registration
    open: list[TunnelClient] = field(default_factory=list)

    async def register(self, ca: str, account: str, leads_to: str = "", host: str = HOST) -> Link:
        """The session of an agent, which connects whatever is dialled to `leads_to`."""
        reported = Parameters(f"{host}:{PORT}", account, ca).encoded()
        headers = {"X-API-Tunnel-Token": self.token, "X-API-Tunnel-Params": reported}
        url = self.here.url.replace("https://", "wss://") + "/v3/connect/register"
        trusted = ssl.create_default_context(cadata=self.here.ca.decode())

        async def dial(stream: Stream) -> None:
            stream.address = leads_to or "127.0.0.1:1"
            await pipe.dial(stream, DEFAULT.dial)

        made = TunnelClient(lambda: Target(url, headers, trusted), lambda _proto, _address: True, dial=dial)
        self.open.append(made)
        return await made.connect()

    async def away(self, link: Link) -> None:
        link.close("the node restarts")
        async with asyncio.timeout(30):
            await link.done
            while self.here.parts.tunnels.has(self.cluster):
                await asyncio.sleep(0.01)

    async def until_connected(self, wanted: bool) -> None:
        """As the management Cluster says."""
        async with asyncio.timeout(30):
            while bool(connected_since(self.here.parts.clusters.get(self.cluster) or {"metadata": {}})) != wanted:
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module", params=["embedded", "real"])
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    async with front(request.param, tmp_path_factory.mktemp("front")) as made:
        yield made


@pytest.fixture
async def site(here: Front) -> AsyncIterator[Site]:
    """A cluster of its own for each test."""
    made = Site(here, f"c-m-{os.urandom(4).hex()}", os.urandom(27).hex())
    await managed(here.client, made.cluster, Tokens(made.token, datetime.now(UTC) + timedelta(days=1)))
    async with asyncio.timeout(30):
        while here.parts.registration.cluster_of(made.token) is None:
            await asyncio.sleep(0.01)
    try:
        yield made
    finally:
        for client in made.open:
            client.stop()


def pem(*authorities: KeyPair) -> str:
    return "".join(each.certificate_pem.decode() for each in authorities)


@pytest.mark.parametrize(
    ("signer", "bundle", "host"),
    [(OTHER_CA, (CA, OTHER_CA), HOST), (CA, (CA,), "10.66.0.1")],
    ids=["further authority", "serving certificate of a node"],
)
async def test_its_token_is_shown_to_no_server_but_its_own(
    site: Site, signer: KeyPair, bundle: tuple[KeyPair, ...], host: str
) -> None:
    """The registration token and the CA of a cluster, which is public, give no rights in the cluster. k3s and RKE2 sign
    the serving certificates of kubelets with the same CA."""
    await site.away(await site.register(pem(CA), OF_THE_AGENT))
    async with Impostor(signer, host).serving() as impostor:
        for who, ca, account, where in (
            ("mallory", pem(*bundle), "of-mallory", host),
            ("the agent", pem(CA), OF_THE_AGENT, HOST),
        ):
            try:
                await site.register(ca, account, impostor.address, where)
            except TunnelError as refused:
                print(who, refused)
        assert not any(OF_THE_AGENT in each for each in impostor.seen)


async def test_its_token_is_used_at_no_other_address(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent reports is stored in two objects: between the two writes, or where the second one fails, the token
    must not go to the server of the agent before, which may have been an impostor's."""
    link = await site.register(pem(OTHER_CA), "of-mallory", host="10.66.0.1")
    await site.until_connected(True)
    await site.away(link)
    await site.until_connected(False)
    clusters, patch = site.here.parts.clusters, Client.patch

    async def failing(self: Client, *arguments: Any, **options: Any) -> Object:
        if options.get("subresource") == "status":
            raise ServiceUnavailable("try again")
        return await patch(self, *arguments, **options)

    monkeypatch.setattr(Client, "patch", failing)
    with pytest.raises(TunnelError):
        await site.register(pem(CA), OF_THE_AGENT)
    monkeypatch.undo()

    async def token() -> str:
        try:
            return (await clusters.target_of(site.cluster)).token
        except ServiceUnavailable:
            return "unavailable"

    async with asyncio.timeout(30):
        while (found := await token()) == "of-mallory":
            await asyncio.sleep(0.01)
    assert found == "unavailable"
    await site.register(pem(CA), OF_THE_AGENT)
    async with asyncio.timeout(30):
        while (found := await token()) == "unavailable":
            await asyncio.sleep(0.01)
    assert found == OF_THE_AGENT


async def test_nothing_is_kept_of_the_certificates_that_agents_choose(site: Site) -> None:
    """Of a bundle of many there are more choices than memory for their TLS contexts."""
    bundle = [authority(f"ca-{number}") for number in range(8)]
    async with Impostor(bundle[0]).serving() as server:
        await site.register(pem(*bundle), "first", server.address)
        for number in range(1, 8):
            await site.register(pem(bundle[0], *bundle[number:]), f"agent-{number}", server.address)
    assert len(server.seen) >= 14, "the cluster was asked about each"
    connections = site.here.parts.connections
    assert not [key for key in connections._contexts if key[0] == site.cluster]


async def test_of_a_cluster_that_changes_its_ca_one_tls_context_is_kept(site: Site) -> None:
    """Its agent may report another one as often as it likes."""
    parts = site.here.parts
    async with Impostor(OTHER_CA).serving() as server:
        for number in range(4):
            ca = pem(OTHER_CA, authority(f"ca-{number}"))
            await site.register(ca, "same", server.address)
            async with asyncio.timeout(30):
                while await _known_ca(site) != ca:
                    await asyncio.sleep(0.01)
            target = await parts.clusters.target_of(site.cluster)
            await Client(DownstreamTransport(parts.connections, target, "same")).raw("GET", "/version")
    assert len([key for key in parts.connections._contexts if key[0] == site.cluster]) == 1
    assert len([key for key in parts.connections._idle if key[0] == site.cluster]) == 1


async def _known_ca(site: Site) -> str:
    try:
        return (await site.here.parts.clusters.target_of(site.cluster)).ca
    except ServiceUnavailable:  # a real API server's watch has not brought the registration yet
        return ""
