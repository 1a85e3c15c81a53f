"""Members of a cluster: what they began there ends when they may use it no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Raw
from tests.unit.gateway.proxy.recorder import OneToken, Received, Recorder
from tests.unit.gateway.proxy.serving import ALICE, Gateway

CLUSTER = "c-m-one"
PATH = f"/k8s/clusters/{CLUSTER}/api/v1"
WATCH = (f"GET {PATH}/secrets?watch=true HTTP/1.1",)
EXEC = (
    f"GET {PATH}/namespaces/default/pods/a/exec HTTP/1.1",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


async def going_on(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that has no end of its own."""
    if received.all("upgrade"):
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.drain()
    await reader.read()
    raise ConnectionResetError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("downstream"))


@pytest.fixture
async def gateway(authority: Authority) -> AsyncIterator[Gateway]:
    recorder = await Recorder(CLUSTER, authority).start()
    recorder.answer = going_on
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=OneToken()).start()
    yield gateway
    await gateway.stop()
    await recorder.stop()


async def begun(gateway: Gateway, lines: tuple[str, ...], token: str, *headers: str) -> Raw:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    sent = [*lines, f"Host: 127.0.0.1:{gateway.port}", f"Authorization: Bearer {token}", *headers, "", ""]
    raw.send("\r\n".join(sent).encode())
    assert (await raw.answer(bodiless=True)).status in (101, 200)
    return raw


async def has_ended(raw: Raw) -> bool:
    try:
        async with asyncio.timeout(2):
            return await raw.reader.read() == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("lines", [WATCH, EXEC], ids=["watch", "exec"])
async def test_what_a_member_began_ends_with_the_membership(gateway: Gateway, lines: tuple[str, ...]) -> None:
    raws = [await begun(gateway, lines, token) for token in ("token-alice", "token-support")]
    with closing(raws[0]) as hers, closing(raws[1]) as others:
        gateway.removed.add(ALICE.name)
        assert await has_ended(hers)
        assert not await has_ended(others)


@pytest.mark.parametrize("lines", [WATCH, EXEC], ids=["watch", "exec"])
async def test_what_is_done_in_the_name_of_a_member_ends_too(gateway: Gateway, lines: tuple[str, ...]) -> None:
    with closing(await begun(gateway, lines, "token-support", f"Impersonate-User: {ALICE.name}")) as acting:
        gateway.removed.add(ALICE.name)
        assert await has_ended(acting)
