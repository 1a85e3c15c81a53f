"""Connections that change their protocol: exec, attach and port-forward over WebSocket or SPDY, as raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from herder.engine.meta.errors import Forbidden
from herder.engine.wire import Request
from herder.gateway.proxy.origins import check_origin
from herder.gateway.proxy.upstream.pump import Pump
from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Raw
from tests.unit.gateway.proxy.recorder import UNAUTHORIZED, OneToken, Received, Recorder
from tests.unit.gateway.proxy.serving import Gateway

CLUSTER = "c-m-one"
EXEC = f"/k8s/clusters/{CLUSTER}/api/v1/namespaces/default/pods/a/exec?command=sh&command=-c"
ALICE = "Authorization: Bearer token-alice"
WEBSOCKET = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
SPDY = ("Connection: Upgrade", "Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: v5.channel.k8s.io")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("downstream"))


@pytest.fixture
async def recorder(authority: Authority) -> AsyncIterator[Recorder]:
    recorder = await Recorder(CLUSTER, authority).start()
    recorder.answer = echo
    yield recorder
    await recorder.stop()


@pytest.fixture
async def gateway(recorder: Recorder) -> AsyncIterator[Gateway]:
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=OneToken()).start()
    yield gateway
    await gateway.stop()


async def echo(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switches, greets in the same breath, and says back what is said until it hears "bye"."""
    (protocol,) = received.all("upgrade")
    writer.write(f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n".encode())
    writer.write(b"Sec-WebSocket-Accept: accepted\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n")
    writer.write(b"Set-Cookie: a=b\r\n\r\nhello ")
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
        if data.endswith(b"bye"):
            break
    raise ConnectionResetError


async def upgrading(gateway: Gateway, *headers: str, method: str = "GET", path: str = EXEC, early: bytes = b"") -> Raw:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}", *headers, "", ""]
    raw.send("\r\n".join(lines).encode() + early)
    return raw


@pytest.mark.parametrize(("protocol", "method"), [(WEBSOCKET, "GET"), (SPDY, "POST")], ids=["websocket", "spdy"])
async def test_after_the_switch_bytes_go_both_ways_untouched(
    gateway: Gateway, recorder: Recorder, protocol: tuple[str, ...], method: str
) -> None:
    raw = await upgrading(gateway, ALICE, *protocol, method=method, early=b"early ")
    answer = await raw.answer(bodiless=True)
    assert (answer.status, answer.headers["upgrade"]) == (101, protocol[1].removeprefix("Upgrade: "))
    assert "set-cookie" not in answer.headers
    raw.send(bytes(range(256)) + b"bye")
    assert await raw.rest() == b"hello early " + bytes(range(256)) + b"bye"
    assert recorder.received[0].line.endswith("/exec?command=sh&command=-c HTTP/1.1")
    assert recorder.received[0].all("impersonate-user") == ["u-alice"]
    assert recorder.received[0].all("connection") == ["Upgrade"]
    raw.close()


async def test_versions_of_a_stream_protocol_arrive_one_by_one(gateway: Gateway, recorder: Recorder) -> None:
    raw = await upgrading(gateway, ALICE, *SPDY, "X-Stream-Protocol-Version: v4.channel.k8s.io", method="POST")
    assert (await raw.answer(bodiless=True)).status == 101
    assert recorder.received[0].all("x-stream-protocol-version") == ["v5.channel.k8s.io", "v4.channel.k8s.io"]
    raw.close()


async def test_a_token_sent_as_a_protocol_stays_here(gateway: Gateway, recorder: Recorder) -> None:
    offered = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io"
    raw = await upgrading(gateway, ALICE, *WEBSOCKET, offered)
    assert (await raw.answer(bodiless=True)).status == 101
    assert recorder.received[0].all("sec-websocket-protocol") == ["v5.channel.k8s.io"]
    raw.close()


async def test_a_refused_upgrade_is_answered_in_the_clusters_words(gateway: Gateway, recorder: Recorder) -> None:
    async def refuse(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{a: 0}\n")

    recorder.answer = refuse
    raw = await upgrading(gateway, ALICE, *WEBSOCKET)
    answer = await raw.answer()
    assert (answer.status, answer.body, answer.headers["connection"]) == (403, b"{a: 0}\n", "close")
    assert await raw.rest() == b""
    assert len(recorder.received) == 1
    raw.close()


async def test_an_upgrade_with_an_outdated_impersonator_is_tried_again(gateway: Gateway, recorder: Recorder) -> None:
    async def refuse_once(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorder.answer = echo
        writer.write(UNAUTHORIZED)

    recorder.answer = refuse_once
    raw = await upgrading(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.close()


async def test_an_upgrade_of_who_may_not_is_refused_here(gateway: Gateway, recorder: Recorder) -> None:
    for headers, status in (
        (("Authorization: Bearer token-mallory",), 403),
        (("Authorization: Bearer guessed",), 401),
        ((ALICE, "Impersonate-User: admin"), 403),
        ((ALICE, "Connection: Impersonate-User"), 400),
    ):
        raw = await upgrading(gateway, *headers, *WEBSOCKET)
        assert (await raw.answer()).status == status
        raw.close()
    assert recorder.received == []


async def test_an_upgrade_to_something_else_is_an_ordinary_request(gateway: Gateway, recorder: Recorder) -> None:
    async def ok(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    recorder.answer = ok
    raw = await upgrading(gateway, ALICE, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    assert (await raw.answer()).body == b"ok"
    assert recorder.received[0].all("upgrade") == []
    raw.close()


async def test_when_the_caller_goes_so_does_the_clusters_connection(gateway: Gateway, recorder: Recorder) -> None:
    gone = asyncio.Event()

    async def wait(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await echo(received, reader, writer)
        finally:
            gone.set()

    recorder.answer = wait
    raw = await upgrading(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.reset()
    raw.close()
    async with asyncio.timeout(10):
        await gone.wait()


async def test_who_does_not_read_holds_the_other_side_back(gateway: Gateway, recorder: Recorder) -> None:
    """Both ways: a cluster that does not read, then a caller that does not."""
    piece, offered, taken, read_on = b"x" * (1 << 20), 128, 0, asyncio.Event()

    async def flood(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        for _ in range(offered):
            writer.write(piece)
            await writer.drain()
            taken += 1
        await read_on.wait()

    recorder.answer = flood
    raw = await upgrading(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    await _stands_still(lambda: taken)
    assert taken < offered / 3

    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(offered):
            raw.send(piece)
            await raw.writer.drain()
            sent += 1

    sending = asyncio.create_task(send())
    await _stands_still(lambda: sent)
    assert sent < offered / 3
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    raw.writer.transport.abort()
    read_on.set()


async def _stands_still(count: Callable[[], int]) -> None:
    before = -1
    while before != count():
        before = count()
        await asyncio.sleep(0.2)


OURS = "https://manager.example"


@pytest.mark.parametrize(
    ("method", "upgrade", "headers", "allowed"),
    [
        ("GET", True, {"cookie": "R_SESS=x", "origin": OURS}, True),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "https://manager.example:443"}, True),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "https://evil.example"}, False),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "http://manager.example"}, False),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "https://manager.example.evil.example"}, False),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "https://manager.example:8443"}, False),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "null"}, False),
        ("GET", True, {"cookie": "R_SESS=x", "origin": "https://[manager"}, False),
        ("GET", True, {"cookie": "R_SESS=x"}, False),
        ("GET", True, {"authorization": "Bearer x", "origin": "https://evil.example"}, True),
        ("POST", False, {"cookie": "R_SESS=x", "origin": "https://evil.example"}, False),
        ("POST", False, {"cookie": "R_SESS=x", "origin": OURS}, True),
        ("POST", False, {"cookie": "R_SESS=x"}, True),
        ("GET", False, {"cookie": "R_SESS=x", "origin": "https://evil.example"}, True),
    ],
)
def test_a_cookie_counts_only_on_pages_of_ours(
    method: str, upgrade: bool, headers: dict[str, str], allowed: bool
) -> None:
    request = Request(method, "/", headers=headers)
    if allowed:
        check_origin(request, OURS, upgrade=upgrade)
        return
    with pytest.raises(Forbidden, match="origin"):
        check_origin(request, OURS, upgrade=upgrade)


def test_without_a_known_address_no_page_is_ours() -> None:
    with pytest.raises(Forbidden):
        check_origin(Request("GET", "/", headers={"cookie": "R_SESS=x"}), "", upgrade=True)


async def test_a_page_of_somebody_else_opens_no_websocket_with_our_cookie(gateway: Gateway, recorder: Recorder) -> None:
    raw = await upgrading(gateway, "Cookie: R_SESS=token-alice", "Origin: https://evil.example", *WEBSOCKET)
    assert (await raw.answer()).status == 403
    raw.close()
    raw = await upgrading(gateway, "Cookie: R_SESS=token-alice", f"Origin: {gateway.url}", *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.close()
    assert [received.all("cookie") for received in recorder.received] == [[]]


async def test_a_silent_cluster_does_not_make_the_gateway_hold_what_a_caller_sends(
    gateway: Gateway, recorder: Recorder
) -> None:
    """As long as the cluster has not answered, its caller is not read any further than a little."""
    release = asyncio.Event()

    async def silent(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await echo(received, reader, writer)

    recorder.answer = silent
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    raw.send("\r\n".join([f"GET {EXEC} HTTP/1.1", "Host: x", ALICE, *SPDY, "", ""]).encode())
    junk = b"j" * (16 << 20)
    raw.send(junk)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert gateway.front.usage()["largest_connection_bytes"] <= 256 << 10
    release.set()
    assert (await raw.answer()).status == 101
    async with asyncio.timeout(30):  # all of it arrives, once somebody wants it
        assert await raw.reader.readexactly(6 + len(junk)) == b"hello " + junk
    raw.close()


@pytest.mark.parametrize(("token", "status"), [("token-nobody", 401), ("token-mallory", 403)])
async def test_a_body_is_not_asked_for_before_its_sender_may_use_the_cluster(
    gateway: Gateway, token: str, status: int
) -> None:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    path = f"/k8s/clusters/{CLUSTER}/api/v1/namespaces/default/configmaps"
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", "Content-Length: 3000000"]
    raw.send("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
    assert (await raw.answer()).status == status
    raw.close()


# --- what is held of it -----------------------------------------------------------------------------------------------


class Silent:
    """A cluster that takes nothing."""

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def send(self, _data: bytes | memoryview) -> None:
        await asyncio.Event().wait()

    def close(self) -> None: ...


class Reading(asyncio.Transport):
    """Hands over what it reads, unless it is told to wait."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None: ...


async def test_little_is_held_for_a_cluster_that_takes_nothing() -> None:
    """A user may have a thousand of these."""
    caller, taken = Reading(), 0
    pump = Pump(Silent(), b"", lambda _pump: None)
    pump.connection_made(caller)
    for _ in range(100):
        if not caller.reads:
            break
        pump.data_received(b"x" * 16384)
        taken += 16384
        await asyncio.sleep(0)
    await pump.stop()
    assert not caller.reads
    assert taken <= 96 << 10
