"""Limits of requests, as the gateway counts them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from herder.api.identity.authn.tokens import NewToken
from tests.unit.gateway.front import Front, front

PATIENCE = 30
WATCHES = {
    "plain": "/api/v1/namespaces?watch=true",
    "another value": "/api/v1/namespaces?watch=yes",
    "old path": "/api/v1/watch/namespaces",
}


@pytest.fixture(scope="module", params=["embedded", "real"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    async with front(request.param, tmp_path_factory.mktemp("front")) as made:
        await made.administrator("u-person")
        yield made


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/local"], ids=["management API", "cluster"])
@pytest.mark.parametrize("watch", WATCHES.values(), ids=WATCHES)
async def test_every_watch_is_a_long_running_request(scene: Front, watch: str, prefix: str) -> None:
    """Else a few users could hold all turns of requests that end soon."""
    issued = await scene.parts.identity.issuer.issue_ext(NewToken("u-person", "u-person", ttl_ms=3_600_000))
    trusted = ssl.create_default_context(cadata=scene.ca.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(scene.url.rpartition(":")[2]), ssl=trusted)
    lines = [f"GET {prefix}{watch} HTTP/1.1", "Host: manager", f"Authorization: Bearer {issued.bearer}", "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(PATIENCE):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        usage = scene.http.usage()
        writer.close()
        while scene.http.usage()["connections"]:
            await asyncio.sleep(0.01)
    assert (usage["in_flight"]["total"], usage["long_running"]["total"]) == (0, 1)
