"""Manager and cluster joined by a tunnel that the cluster's side has dialled."""

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
from tests.unit.gateway.proxy.recorder import OneToken, Received, Recorder
from tests.unit.gateway.proxy.serving import Gateway
from tests.unit.gateway.proxy.test_on_the_wire import ask, connect, get

CLUSTER = "c-m-one"
PATH = f"/k8s/clusters/{CLUSTER}"


class Tunnelled:
    """`away` takes the agent's end down."""

    def __init__(self, gateway: Gateway, dial: Dial, recorder: Recorder, client: TunnelClient) -> None:
        self.gateway = gateway
        self.dial = dial
        self.recorder = recorder
        self._client = client

    async def away(self) -> None:
        link = self._client.link
        assert link is not None
        link.close("the test ends it")
        await link.done
        await asyncio.sleep(0)


@pytest.fixture
async def tunnelled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tunnelled]:
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
    gateway = await Gateway({CLUSTER: recorder.target()}, dial=dial, tokens=OneToken()).start()
    yield Tunnelled(gateway, dial, recorder, client)
    await gateway.stop()
    await recorder.stop()
    client.stop()
    registry.close()
    listening.close()
    await listening.wait_closed()


async def test_requests_pass_through_a_tunnel_and_share_connections(tunnelled: Tunnelled) -> None:
    for _ in range(3):
        assert (await ask(tunnelled.gateway, get(f"{PATH}/api"))).body == b"{}"
    assert tunnelled.recorder.connections == 1


async def test_a_large_answer_arrives_whole(tunnelled: Tunnelled) -> None:
    content = bytes(range(256)) * (32 << 10)

    async def large(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content)

    tunnelled.recorder.answer = large
    raw = await connect(tunnelled.gateway)
    raw.send(get(f"{PATH}/api"))
    assert (await raw.answer()).status == 200
    found = b""
    while (size := int(await raw.reader.readline(), 16)) > 0:
        found += await raw.reader.readexactly(size)
        await raw.reader.readexactly(2)
    raw.close()
    assert found == content


async def test_an_answer_to_the_manager_is_not_read_without_an_end(tunnelled: Tunnelled) -> None:
    """It is decoded as a whole: of the smallest objects, 64 MiB would take more than a GiB."""
    content = b'{"items":[' + b"{}," * (7 << 20) + b"{}]}"

    async def large(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content)

    tunnelled.recorder.answer = large
    transport = DownstreamTransport(Connections(tunnelled.dial), tunnelled.recorder.target(), "token")
    with pytest.raises(ResponseTooLarge):
        await Client(transport).get(SECRET.resource, "a", namespace="b")


async def begin(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
    await writer.drain()
    await reader.read()


async def test_a_watch_of_the_managers_own_fails_with_its_tunnel_as_any_request_does(tunnelled: Tunnelled) -> None:
    """Not as a broken line: an informer would take that for a mistake of ours, and begin anew."""
    tunnelled.recorder.answer = begin
    transport = DownstreamTransport(Connections(tunnelled.dial), tunnelled.recorder.target(), "token")
    response = await transport.send(Request("GET", "/api"))
    assert response.stream is not None
    assert await anext(response.stream) == b"ab"
    await tunnelled.away()
    with pytest.raises(StatusError, match="tunnel disconnect"):
        await anext(response.stream)


async def test_a_watch_ends_with_its_tunnel_and_the_next_request_is_told_why(tunnelled: Tunnelled) -> None:
    tunnelled.recorder.answer = begin
    raw = await connect(tunnelled.gateway)
    raw.send(get(f"{PATH}/api?watch=true"))
    assert (await raw.answer()).status == 200
    assert await raw.line() == b"2\r\n"
    await tunnelled.away()
    assert await raw.rest() == b"ab\r\n"  # and no last chunk: nobody takes it for the end
    raw.close()
    answer = await ask(tunnelled.gateway, get(f"{PATH}/api"))
    assert (answer.status, b"cluster agent disconnected" in answer.body) == (503, True)
