"""Upgraded connections as raw bytes: exec, attach and port-forward over WebSocket or SPDY."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from herder.engine.front import limits
from herder.engine.meta.errors import Forbidden
from herder.engine.wire import Request
from herder.gateway.proxy import relay
from herder.gateway.proxy.origins import check_origin
from herder.gateway.proxy.upstream.pump import Pump
from tests.support.attacks.attacker import TURN_MS
from tests.support.attacks.turns import measured_turns
from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Raw
from tests.unit.gateway.proxy.proxy_gateway import Gateway
from tests.unit.gateway.proxy.recorder import UNAUTHORIZED, Received, Recorder, StaticTokens

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
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    yield gateway
    await gateway.stop()


async def echo(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Switches protocols, sends a greeting in the same packet, and echoes all data until "bye"."""
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


async def open_upgrade(
    gateway: Gateway, *headers: str, method: str = "GET", path: str = EXEC, early: bytes = b""
) -> Raw:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}", *headers, "", ""]
    raw.send("\r\n".join(lines).encode() + early)
    return raw


@pytest.mark.parametrize(("protocol", "method"), [(WEBSOCKET, "GET"), (SPDY, "POST")], ids=["websocket", "spdy"])
async def test_upgraded_connections_forward_bytes_unchanged(
    gateway: Gateway, recorder: Recorder, protocol: tuple[str, ...], method: str
) -> None:
    raw = await open_upgrade(gateway, ALICE, *protocol, method=method, early=b"early ")
    response = await raw.answer(bodiless=True)
    assert (response.status, response.headers["upgrade"]) == (101, protocol[1].removeprefix("Upgrade: "))
    assert "set-cookie" not in response.headers
    raw.send(bytes(range(256)) + b"bye")
    assert await raw.rest() == b"hello early " + bytes(range(256)) + b"bye"
    assert recorder.received[0].line.endswith("/exec?command=sh&command=-c HTTP/1.1")
    assert recorder.received[0].all("impersonate-user") == ["u-alice"]
    assert recorder.received[0].all("connection") == ["Upgrade"]
    raw.close()


async def test_stream_protocol_versions_are_forwarded_separately(gateway: Gateway, recorder: Recorder) -> None:
    raw = await open_upgrade(gateway, ALICE, *SPDY, "X-Stream-Protocol-Version: v4.channel.k8s.io", method="POST")
    assert (await raw.answer(bodiless=True)).status == 101
    assert recorder.received[0].all("x-stream-protocol-version") == ["v5.channel.k8s.io", "v4.channel.k8s.io"]
    raw.close()


async def test_a_token_sent_as_a_subprotocol_is_not_forwarded(gateway: Gateway, recorder: Recorder) -> None:
    offered = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io"
    raw = await open_upgrade(gateway, ALICE, *WEBSOCKET, offered)
    assert (await raw.answer(bodiless=True)).status == 101
    assert recorder.received[0].all("sec-websocket-protocol") == ["v5.channel.k8s.io"]
    raw.close()


async def test_a_rejected_upgrade_returns_the_clusters_response(gateway: Gateway, recorder: Recorder) -> None:
    async def refuse(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{a: 0}\n")

    recorder.answer = refuse
    raw = await open_upgrade(gateway, ALICE, *WEBSOCKET)
    response = await raw.answer()
    assert (response.status, response.body, response.headers["connection"]) == (403, b"{a: 0}\n", "close")
    assert await raw.rest() == b""
    assert len(recorder.received) == 1
    raw.close()


async def test_a_client_that_does_not_read_why_its_upgrade_is_rejected_is_disconnected(
    gateway: Gateway, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection counts as before: members could otherwise fill the memory with responses of their clusters."""
    monkeypatch.setattr(limits, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(limits, "RESPONSE_BYTES_PER_SECOND", 10 << 20)
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(relay, "_REFUSAL_BYTES", 8 << 20)  # more than the socket's buffers
    content = b"x" * (8 << 20)

    async def refuse(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)

    recorder.answer = refuse
    gateway.front._check_timeouts(asyncio.get_running_loop())
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", gateway.port))
        lines = [f"GET {EXEC} HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}", ALICE, *WEBSOCKET, "", ""]
        await loop.sock_sendall(client, "\r\n".join(lines).encode())
        async with asyncio.timeout(30):
            start = await loop.sock_recv(client, 64)
            assert start.startswith(b"HTTP/1.1 200")
            assert gateway.front.usage()["connections"] == 1
            while gateway.front.usage()["connections"]:
                await asyncio.sleep(0.05)


async def test_an_upgrade_with_an_outdated_impersonator_is_retried(gateway: Gateway, recorder: Recorder) -> None:
    async def refuse_once(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorder.answer = echo
        writer.write(UNAUTHORIZED)

    recorder.answer = refuse_once
    raw = await open_upgrade(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.close()


async def test_unauthorized_upgrades_are_rejected_by_the_manager(gateway: Gateway, recorder: Recorder) -> None:
    for headers, status in (
        (("Authorization: Bearer token-mallory",), 403),
        (("Authorization: Bearer guessed",), 401),
        ((ALICE, "Impersonate-User: admin"), 403),
        ((ALICE, "Connection: Impersonate-User"), 400),
    ):
        raw = await open_upgrade(gateway, *headers, *WEBSOCKET)
        assert (await raw.answer()).status == status
        raw.close()
    assert recorder.received == []


async def test_an_upgrade_to_another_protocol_is_an_ordinary_request(gateway: Gateway, recorder: Recorder) -> None:
    async def ok(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    recorder.answer = ok
    raw = await open_upgrade(gateway, ALICE, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    assert (await raw.answer()).body == b"ok"
    assert recorder.received[0].all("upgrade") == []
    raw.close()


async def test_the_clusters_connection_ends_with_the_client(gateway: Gateway, recorder: Recorder) -> None:
    disconnected = asyncio.Event()

    async def wait(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await echo(received, reader, writer)
        finally:
            disconnected.set()

    recorder.answer = wait
    raw = await open_upgrade(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.reset()
    raw.close()
    async with asyncio.timeout(10):
        await disconnected.wait()


async def test_a_side_that_does_not_read_applies_backpressure(gateway: Gateway, recorder: Recorder) -> None:
    """In both directions: a cluster that does not read, then a client that does not."""
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
    raw = await open_upgrade(gateway, ALICE, *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    await _wait_until_stalled(lambda: taken)
    assert taken < offered / 3

    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(offered):
            raw.send(piece)
            await raw.writer.drain()
            sent += 1

    sending = asyncio.create_task(send())
    await _wait_until_stalled(lambda: sent)
    assert sent < offered / 3
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    raw.writer.transport.abort()
    read_on.set()


async def _wait_until_stalled(count: Callable[[], int]) -> None:
    before = -1
    while before != count():
        before = count()
        await asyncio.sleep(0.2)


SERVER_URL = "https://manager.example"


@pytest.mark.parametrize(
    ("method", "upgrade", "headers", "allowed"),
    [
        ("GET", True, {"cookie": "R_SESS=x", "origin": SERVER_URL}, True),
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
        ("POST", False, {"cookie": "R_SESS=x", "origin": SERVER_URL}, True),
        ("POST", False, {"cookie": "R_SESS=x"}, True),
        ("GET", False, {"cookie": "R_SESS=x", "origin": "https://evil.example"}, True),
    ],
)
def test_cookies_are_accepted_only_from_the_managers_origin(
    method: str, upgrade: bool, headers: dict[str, str], allowed: bool
) -> None:
    request = Request(method, "/", headers=headers)
    if allowed:
        check_origin(request, SERVER_URL, upgrade=upgrade)
        return
    with pytest.raises(Forbidden, match="origin"):
        check_origin(request, SERVER_URL, upgrade=upgrade)


def test_without_a_server_url_no_origin_is_accepted() -> None:
    with pytest.raises(Forbidden):
        check_origin(Request("GET", "/", headers={"cookie": "R_SESS=x"}), "", upgrade=True)


async def test_a_foreign_page_cannot_open_a_websocket_with_the_cookie(gateway: Gateway, recorder: Recorder) -> None:
    raw = await open_upgrade(gateway, "Cookie: R_SESS=token-alice", "Origin: https://evil.example", *WEBSOCKET)
    assert (await raw.answer()).status == 403
    raw.close()
    raw = await open_upgrade(gateway, "Cookie: R_SESS=token-alice", f"Origin: {gateway.url}", *WEBSOCKET)
    assert (await raw.answer(bodiless=True)).status == 101
    raw.close()
    assert [received.all("cookie") for received in recorder.received] == [[]]


async def test_data_for_a_silent_cluster_is_not_buffered(gateway: Gateway, recorder: Recorder) -> None:
    """Until the cluster has responded, only a little of the client's data is read."""
    release = asyncio.Event()

    async def silent(received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await echo(received, reader, writer)

    recorder.answer = silent
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    raw.send("\r\n".join([f"GET {EXEC} HTTP/1.1", "Host: x", ALICE, *SPDY, "", ""]).encode())
    junk = b"j" * (16 << 20)
    raw.send(junk)
    with measured_turns() as turns:
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert gateway.front.usage()["largest_connection_bytes"] <= 256 << 10
    assert turns.longest * 1000 <= TURN_MS, turns.what
    release.set()
    assert (await raw.answer()).status == 101
    async with asyncio.timeout(30):  # all of it arrives once the cluster reads
        assert await raw.reader.readexactly(6 + len(junk)) == b"hello " + junk
    raw.close()


@pytest.mark.parametrize(("token", "status"), [("token-unknown", 401), ("token-mallory", 403)])
async def test_a_body_is_not_requested_before_authorization(gateway: Gateway, token: str, status: int) -> None:
    raw = Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))
    path = f"/k8s/clusters/{CLUSTER}/api/v1/namespaces/default/configmaps"
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", "Content-Length: 3000000"]
    raw.send("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
    assert (await raw.answer()).status == status
    raw.close()


# --- buffers --------------------------------------------------------------------------------------------------------


class Silent:
    """A cluster that reads nothing."""

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def send(self, _data: bytes | memoryview) -> None:
        await asyncio.Event().wait()

    def close(self) -> None: ...


class Reading(asyncio.Transport):
    """A client transport that delivers data unless reading is paused."""

    accepts_data = True

    def pause_reading(self) -> None:
        self.accepts_data = False

    def resume_reading(self) -> None:
        self.accepts_data = True

    def close(self) -> None: ...


async def test_buffers_for_a_cluster_that_reads_nothing_are_small() -> None:
    """A user may have a thousand such connections."""
    caller, taken = Reading(), 0
    pump = Pump(Silent(), b"", lambda _pump: None)
    pump.connection_made(caller)
    for _ in range(100):
        if not caller.accepts_data:
            break
        pump.data_received(b"x" * 16384)
        taken += 16384
        await asyncio.sleep(0)
    await pump.stop()
    assert not caller.accepts_data
    assert taken <= 96 << 10
