"""A second agent with the registration token of a cluster whose agent is connected."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.parameters import Parameters
from herder.api.management.registration import Tokens
from herder.engine.certificates import KeyPair
from herder.engine.meta.kinds import Object
from tests.gateway.managed import Manager, authority, manager

CLUSTER, TOKEN = "c-m-meadow22", "b" * 54
ADDRESS = "10.43.0.1:443"
SIGNER, CA, OTHER_CA = authority("manager"), authority("meadow"), authority("mallory")


def agent(ca: KeyPair = CA, token: str = "service-account-token", address: str = ADDRESS) -> Parameters:
    return Parameters(address, token, ca.certificate_pem.decode())


@dataclass
class Dialer:
    here: Manager
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def dial(self, told: Parameters) -> int:
        """The status of the answer to an agent that registers; 101: it has its tunnel."""
        trusted = ssl.create_default_context(cadata=SIGNER.certificate_pem.decode())
        port = int(self.here.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        lines = ["GET /v3/connect/register HTTP/1.1", "Host: manager", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [f"X-API-Tunnel-Token: {TOKEN}", f"X-API-Tunnel-Params: {told.encoded()}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        self.open.append(writer)
        async with asyncio.timeout(30):
            return int((await reader.readuntil(b"\r\n\r\n")).split()[1])

    async def hang_up(self) -> None:
        """All tunnels are gone, which the manager knows."""
        for writer in self.open:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        self.open.clear()
        async with asyncio.timeout(30):
            while self.here.registry.has(CLUSTER):
                await asyncio.sleep(0.01)

    async def cluster(self) -> Object:
        return await self.here.client.get(MANAGEMENT_CLUSTER.resource, CLUSTER)

    async def known(self) -> tuple[str, str]:
        """Address and CA that requests to the cluster go by."""
        status = (await self.cluster())["status"]
        return status["apiEndpoint"].removeprefix("https://"), base64.b64decode(status["caCert"]).decode()


@pytest.fixture
async def dialer() -> AsyncIterator[Dialer]:
    tokens = Tokens(TOKEN, datetime.now(UTC) + timedelta(days=1))
    async with manager({CLUSTER: tokens}, SIGNER) as here:
        made = Dialer(here)
        try:
            assert await made.dial(agent()) == 101
            yield made
        finally:
            await made.hang_up()


@pytest.mark.xfail(reason="who has the registration token redirects a cluster that is connected")
@pytest.mark.parametrize(
    "other",
    [
        agent(OTHER_CA, "mine", "10.66.0.1:443"),
        agent(OTHER_CA, "mine"),
        agent(CA, "mine"),
        agent(CA, "mine", "10.66.0.1:443"),
    ],
    ids=["all", "ca and token", "token", "address and token"],
)
async def test_a_second_agent_does_not_displace_one_that_is_connected(dialer: Dialer, other: Parameters) -> None:
    before = await dialer.known()
    assert await dialer.dial(other) != 101
    assert await dialer.known() == before
    assert len(dialer.here.registry.sessions(CLUSTER)) == 1


async def test_the_same_agent_may_have_several_tunnels(dialer: Dialer) -> None:
    assert await dialer.dial(agent()) == 101


async def test_another_agent_is_let_in_when_the_first_is_gone(dialer: Dialer) -> None:
    await dialer.hang_up()
    assert await dialer.dial(agent(token="of the agent that was installed anew")) == 101
