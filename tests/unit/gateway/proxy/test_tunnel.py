"""Manager and cluster connected by a tunnel that the cluster dialed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.wire import Request, ResponseTooLarge
from herder.gateway.proxy.upstream.channel import Channel, Dial
from herder.gateway.proxy.upstream.connections import Connections
from herder.gateway.proxy.upstream.transport import DownstreamTransport
from herder.tunnel.client import Target as Server
from herder.tunnel.client import TunnelClient
from herder.tunnel.registry import Registry
from herder.tunnel.server import serve
from tests.support.kube import Authority
from tests.unit.gateway.proxy.proxy_gateway import Gateway
from tests.unit.gateway.proxy.recorder import Received, Recorder, StaticTokens
from tests.unit.gateway.proxy.test_raw_requests import connect, get, send

CLUSTER = "c-m-one"
PATH = f"/k8s/clusters/{CLUSTER}"


class Harness:
    """`disconnect` closes the agent's end."""

    def __init__(self, gateway: Gateway, dial: Dial, recorder: Recorder, client: TunnelClient) -> None:
        self.gateway = gateway
        self.dial = dial
        self.recorder = recorder
        self._client = client

    async def disconnect(self) -> None:
        link = self._client.link
        assert link is not None
        link.close("closed by the test")
        await link.done
        await asyncio.sleep(0)


@pytest.fixture
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    registry = Registry()
    joined = asyncio.Event()
    registry.listen(lambda _key, present: joined.set() if present else joined.clear())

    def key_of(headers: Mapping[str, str]) -> str:
        return headers["x-cluster"]

    async def dial(cluster: str, address: str) -> Channel:
        return registry.dial(cluster, "tcp", address)

    listening = await serve(registry, key_of)
    url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v3/connect"
    recorder = await Recorder(CLUSTER, Authority(tmp_path_factory.mktemp("downstream"))).start()
    client = TunnelClient(
        lambda: Server(url, {"x-cluster": CLUSTER}), lambda _proto, address: address == recorder.address
    )
    await client.connect()
    await joined.wait()
    gateway = await Gateway({CLUSTER: recorder.target()}, dial=dial, tokens=StaticTokens()).start()
    yield Harness(gateway, dial, recorder, client)
    await gateway.stop()
    await recorder.stop()
    client.stop()
    registry.close()
    listening.close()
    await listening.wait_closed()


async def test_requests_pass_through_a_tunnel_and_share_connections(harness: Harness) -> None:
    for _ in range(3):
        assert (await send(harness.gateway, get(f"{PATH}/api"))).body == b"{}"
    assert harness.recorder.connections == 1


async def test_a_large_response_arrives_completely(harness: Harness) -> None:
    content = bytes(range(256)) * (32 << 10)

    async def large(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content)

    harness.recorder.answer = large
    raw = await connect(harness.gateway)
    raw.send(get(f"{PATH}/api"))
    assert (await raw.answer()).status == 200
    received = b""
    while (size := int(await raw.reader.readline(), 16)) > 0:
        received += await raw.reader.readexactly(size)
        await raw.reader.readexactly(2)
    raw.close()
    assert received == content


async def test_responses_to_the_manager_are_limited(harness: Harness) -> None:
    """Responses are decoded as a whole: 64 MiB of the smallest objects would take more than a GiB."""
    content = b'{"items":[' + b"{}," * (7 << 20) + b"{}]}"

    async def large(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content)

    harness.recorder.answer = large
    transport = DownstreamTransport(Connections(harness.dial), harness.recorder.target(), "token")
    with pytest.raises(ResponseTooLarge):
        await Client(transport).get(SECRET.resource, "a", namespace="b")


async def start_stream(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
    await writer.drain()
    await reader.read()


async def test_a_watch_of_the_manager_fails_with_its_tunnel_like_any_request(harness: Harness) -> None:
    """Not as a broken line, which an informer would treat as a bug, and start again."""
    harness.recorder.answer = start_stream
    transport = DownstreamTransport(Connections(harness.dial), harness.recorder.target(), "token")
    response = await transport.send(Request("GET", "/api"))
    assert response.stream is not None
    assert await anext(response.stream) == b"ab"
    await harness.disconnect()
    with pytest.raises(StatusError, match="tunnel disconnect"):
        await anext(response.stream)


async def test_a_watch_ends_with_its_tunnel_and_the_next_request_is_rejected(harness: Harness) -> None:
    harness.recorder.answer = start_stream
    raw = await connect(harness.gateway)
    raw.send(get(f"{PATH}/api?watch=true"))
    assert (await raw.answer()).status == 200
    assert await raw.line() == b"2\r\n"
    await harness.disconnect()
    assert await raw.rest() == b"ab\r\n"  # without the last chunk, so no client takes it for a complete response
    raw.close()
    response = await send(harness.gateway, get(f"{PATH}/api"))
    assert (response.status, b"cluster agent disconnected" in response.body) == (503, True)
