"""Request limits of the gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from herder.api.identity.authn.tokens import NewToken
from tests.unit.gateway.gateway_server import GatewayServer, running_gateway

PATIENCE = 30
WATCHES = {
    "plain": "/api/v1/namespaces?watch=true",
    "another value": "/api/v1/namespaces?watch=yes",
    "old path": "/api/v1/watch/namespaces",
}


@pytest.fixture(scope="module", params=["embedded", "real"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayServer]:
    async with running_gateway(request.param, tmp_path_factory.mktemp("front")) as gateway:
        await gateway.create_administrator("u-person")
        yield gateway


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/local"], ids=["management API", "cluster"])
@pytest.mark.parametrize("watch", WATCHES.values(), ids=WATCHES)
async def test_every_watch_is_a_long_running_request(gateway: GatewayServer, watch: str, prefix: str) -> None:
    """Otherwise a few users could occupy all slots of short requests."""
    issued = await gateway.parts.identity.issuer.issue_ext(NewToken("u-person", "u-person", ttl_ms=3_600_000))
    trusted = ssl.create_default_context(cadata=gateway.ca.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]), ssl=trusted)
    lines = [f"GET {prefix}{watch} HTTP/1.1", "Host: manager", f"Authorization: Bearer {issued.bearer}", "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(PATIENCE):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        usage = gateway.http.usage()
        writer.close()
        while gateway.http.usage()["connections"]:
            await asyncio.sleep(0.01)
    assert (usage["in_flight"]["total"], usage["long_running"]["total"]) == (0, 1)


NAMESPACES = "/api/v1/namespaces"
SHORT = {
    "upgrade without a connection header": (NAMESPACES, "Upgrade: websocket"),
    "another protocol": (NAMESPACES, "Connection: Upgrade\r\nUpgrade: h2c"),
    "follow": (f"{NAMESPACES}?follow=true", "X: y"),
    "watch of a path that is not watched": ("/apis?watch=true", "X: y"),
}


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/local"], ids=["management API", "cluster"])
@pytest.mark.parametrize(("path", "headers"), SHORT.values(), ids=SHORT)
async def test_clients_cannot_declare_a_request_long_running(
    gateway: GatewayServer, path: str, headers: str, prefix: str
) -> None:
    """Each user may have ten times as many long-running requests as others, beyond the limit for all users."""
    issued = await gateway.parts.identity.issuer.issue_ext(NewToken("u-person", "u-person", ttl_ms=3_600_000))
    slots, holder = gateway.http.flow.in_flight, ("u-person", "")
    while slots.try_acquire(holder):
        pass
    taken = slots.usage()["largest_user"]
    try:
        trusted = ssl.create_default_context(cadata=gateway.ca.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]), ssl=trusted)
        lines = [f"GET {prefix}{path} HTTP/1.1", "Host: manager", f"Authorization: Bearer {issued.bearer}", headers]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(PATIENCE):
            while not slots.usage()["waiting"]:
                assert gateway.http.usage()["long_running"]["total"] == 0
                assert not reader._buffer  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
    finally:
        for _ in range(taken):
            slots.release(holder)
    async with asyncio.timeout(PATIENCE):
        assert await reader.readuntil(b"\r\n\r\n")
    writer.close()
