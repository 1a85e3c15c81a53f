"""Streams of a cluster member end when the member loses access."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing, suppress

import pytest

from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Raw
from tests.unit.gateway.proxy.proxy_gateway import ALICE, Gateway
from tests.unit.gateway.proxy.recorder import Received, Recorder, StaticTokens

CLUSTER = "c-m-one"
PATIENCE_SECONDS = 10
PATH = f"/k8s/clusters/{CLUSTER}/api/v1"
WATCH = (f"GET {PATH}/secrets?watch=true HTTP/1.1",)
EXEC = (
    f"GET {PATH}/namespaces/default/pods/a/exec HTTP/1.1",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


async def respond_forever(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A response without an end."""
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
    recorder.answer = respond_forever
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    yield gateway
    await gateway.stop()
    await recorder.stop()


async def open_stream(gateway: Gateway, lines: tuple[str, ...], token: str, *headers: str) -> Raw:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    request_lines = [*lines, f"Host: 127.0.0.1:{gateway.port}", f"Authorization: Bearer {token}", *headers, "", ""]
    raw.send("\r\n".join(request_lines).encode())
    assert (await raw.answer(bodiless=True)).status in (101, 200)
    return raw


async def has_ended(raw: Raw) -> bool:
    try:
        async with asyncio.timeout(2):
            return await raw.reader.read() == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("lines", [WATCH, EXEC], ids=["watch", "exec"])
async def test_streams_of_a_member_end_with_the_membership(gateway: Gateway, lines: tuple[str, ...]) -> None:
    raws = [await open_stream(gateway, lines, token) for token in ("token-alice", "token-support")]
    with closing(raws[0]) as removed, closing(raws[1]) as unaffected:
        gateway.removed.add(ALICE.name)
        assert await has_ended(removed)
        assert not await has_ended(unaffected)


@pytest.mark.parametrize("lines", [WATCH, EXEC], ids=["watch", "exec"])
async def test_streams_that_impersonate_a_member_end_too(gateway: Gateway, lines: tuple[str, ...]) -> None:
    with closing(
        await open_stream(gateway, lines, "token-support", f"Impersonate-User: {ALICE.name}")
    ) as impersonating:
        gateway.removed.add(ALICE.name)
        assert await has_ended(impersonating)


async def test_a_response_to_a_refused_upgrade_ends_with_the_membership(authority: Authority) -> None:
    """The gateway buffers such a response, and would send all of it at its end."""

    async def watch(_received: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(2)
        writer.write(b"6\r\nsecret\r\n0\r\n\r\n")

    recorder = await Recorder(CLUSTER, authority).start()
    recorder.answer = watch
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    request_lines = [*EXEC, f"Host: 127.0.0.1:{gateway.port}", "Authorization: Bearer token-alice", "", ""]
    raw.send("\r\n".join(request_lines).encode())
    while not recorder.received:
        await asyncio.sleep(0.01)
    gateway.removed.add(ALICE.name)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionError):
                assert await raw.reader.read() == b""
    finally:
        raw.close()
        await gateway.stop()
        await recorder.stop()
