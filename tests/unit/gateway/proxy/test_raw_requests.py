"""The proxy between two sockets: raw requests of clients, and what the cluster API receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from herder.gateway.proxy.rewrite import Outgoing
from herder.gateway.proxy.upstream import channel, connections
from herder.tunnel.errors import NoSession, StreamError
from tests.support.kube import Authority
from tests.unit.engine.front.sockets import Answer, Raw
from tests.unit.gateway.proxy.proxy_gateway import FORBIDDEN_CLUSTER, Gateway
from tests.unit.gateway.proxy.recorder import OK, UNAUTHORIZED, Received, Recorder, StaticTokens

CLUSTER = "c-m-one"
PATH = f"/k8s/clusters/{CLUSTER}"
TOKEN = "Bearer of-u-alice-in-c-m-one-0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("downstream"))


@pytest.fixture
async def recorder(authority: Authority) -> AsyncIterator[Recorder]:
    recorder = await Recorder(CLUSTER, authority).start()
    yield recorder
    await recorder.stop()


@pytest.fixture
async def gateway(recorder: Recorder) -> AsyncIterator[Gateway]:
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=StaticTokens()).start()
    yield gateway
    await gateway.stop()


async def connect(gateway: Gateway) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))


async def send(gateway: Gateway, request: bytes) -> Answer:
    raw = await connect(gateway)
    try:
        raw.send(request)
        return await raw.answer()
    finally:
        raw.close()


def get(path: str, *headers: str, method: str = "GET", credential: str = "Authorization: Bearer token-alice") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: manager.example", credential, *headers, "", ""]
    return "\r\n".join(line for line in lines[:-2] if line).encode() + b"\r\n\r\n"


# --- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_arrives_with_the_identity_of_its_user(gateway: Gateway, recorder: Recorder) -> None:
    response = await send(
        gateway, get(f"{PATH}/api/v1/x%2Fy?a=%7e&b", "Accept: application/json", "Cookie: R_SESS=abc")
    )
    assert (response.status, response.body) == (200, b"{}")
    (received,) = recorder.received
    assert received.line == "GET /api/v1/x%2Fy?a=%7e&b HTTP/1.1"
    assert received.headers == [
        ("host", recorder.address),
        ("accept", "application/json"),
        ("impersonate-user", "u-alice"),
        ("impersonate-group", "devs"),
        ("impersonate-group", "system:authenticated"),
        ("impersonate-group", "system:cattle:authenticated"),
        ("impersonate-extra-username", "alice"),
        ("authorization", TOKEN),
    ]


SMUGGLED = {
    "a header for one hop": ["Connection: Impersonate-User"],
    "two connections": ["Connection: close", "Connection: authorization"],
    "a foreign user twice": ["Impersonate-User: u-alice", "Impersonate-User: admin"],
    "mixed case": ["iMpErSoNaTe-UsEr: admin"],
    "a blank before the colon": ["Impersonate-User : admin"],
    "a folded line": ["User-Agent: x", " Impersonate-User: admin"],
    "a tab in the name": ["Impersonate-User\t: admin"],
    "a bare line feed": ["User-Agent: x\nImpersonate-User: admin"],
    "a bare carriage return": ["User-Agent: x\rImpersonate-User: admin"],
    "a null": ["User-Agent: x\x00y"],
    "two lengths": ["Content-Length: 0", "Content-Length: 40"],
    "a length and chunks": ["Content-Length: 5", "Transfer-Encoding: chunked"],
    "chunks in disguise": ["Transfer-Encoding: xchunked"],
    "chunks twice": ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    "a signed length": ["Content-Length: +5"],
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED)
async def test_smuggled_headers_are_rejected_by_the_manager(
    gateway: Gateway, recorder: Recorder, headers: list[str]
) -> None:
    raw = await connect(gateway)
    raw.send(get(f"{PATH}/api", *headers, method="POST"))
    raw.send(b"0\r\n\r\n" + get(f"{PATH}/second", "Impersonate-User: admin"))
    response = await raw.answer()
    raw.close()
    assert response.status in (400, 403, 501)
    assert recorder.received == []


async def test_the_host_of_an_absolute_url_is_ignored(gateway: Gateway, recorder: Recorder) -> None:
    await send(gateway, get(f"http://169.254.169.254{PATH}/api"))
    assert recorder.received[0].line == "GET /api HTTP/1.1"
    assert recorder.received[0].all("host") == [recorder.address]
    assert (await send(gateway, get("http://169.254.169.254/latest/meta-data"))).status == 404


async def test_a_chunked_body_is_sent_with_a_content_length(gateway: Gateway, recorder: Recorder) -> None:
    chunked = (
        get(f"{PATH}/api", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n"
    )
    assert (await send(gateway, chunked)).status == 200
    assert recorder.received[0].body == b"abcde"
    assert recorder.received[0].all("transfer-encoding") == []
    assert recorder.received[0].all("content-length") == ["5"]


async def test_support_can_impersonate_only_alice(gateway: Gateway, recorder: Recorder) -> None:
    support = "Authorization: Bearer token-support"
    assert (await send(gateway, get(f"{PATH}/api", "Impersonate-User: u-alice", credential=support))).status == 200
    assert recorder.received[0].all("impersonate-user") == ["u-alice"]
    assert recorder.received[0].all("authorization") == [TOKEN]
    for headers in (["Impersonate-User: admin"], ["Impersonate-User: u-alice", "Impersonate-Group: system:masters"]):
        assert (await send(gateway, get(f"{PATH}/api", *headers, credential=support))).status == 403
    assert len(recorder.received) == 1


async def test_a_rejected_impersonator_token_is_renewed_once(gateway: Gateway, recorder: Recorder) -> None:
    async def refuse(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(UNAUTHORIZED)

    recorder.answer = refuse
    assert (await send(gateway, get(f"{PATH}/api"))).status == 502  # a 401 would refer to the client's own token
    assert [received.all("authorization") for received in recorder.received] == [
        ["Bearer of-u-alice-in-c-m-one-0"],
        ["Bearer of-u-alice-in-c-m-one-1"],
    ]


async def test_a_401_of_a_program_in_the_cluster_is_passed_on(gateway: Gateway, recorder: Recorder) -> None:
    page = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 6\r\n\r\nlog in"
    response = await respond_with(gateway, recorder, page)
    assert (response.status, response.body) == (401, b"log in")
    assert len(recorder.received) == 1


async def test_a_connection_serves_many_requests_of_many_users(gateway: Gateway, recorder: Recorder) -> None:
    for user in ("alice", "support", "alice"):
        assert (await send(gateway, get(f"{PATH}/api", credential=f"Authorization: Bearer token-{user}"))).status == 200
    assert recorder.connections == 1
    assert [received.all("impersonate-user") for received in recorder.received] == [
        ["u-alice"],
        ["u-support"],
        ["u-alice"],
    ]


async def test_a_closed_pooled_connection_is_not_reused(gateway: Gateway, recorder: Recorder) -> None:
    closed = asyncio.Event()

    async def last(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed.set()

    recorder.answer = last
    for number in (1, 2, 3):
        closed.clear()
        assert (await send(gateway, get(f"{PATH}/api"))).status == 200
        await closed.wait()
        assert recorder.connections == number


# --- responses ------------------------------------------------------------------------------------------------------


async def respond_with(gateway: Gateway, recorder: Recorder, response: bytes, *, method: str = "GET") -> Answer:
    async def write_response(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await writer.drain()
        if b"Connection: close" in response:
            writer.close()

    recorder.answer = write_response
    raw = await connect(gateway)
    try:
        raw.send(get(f"{PATH}/api", method=method))
        result = await raw.answer(bodiless=method == "HEAD")
        if result.headers.get("transfer-encoding") == "chunked":
            async with asyncio.timeout(10):
                while (size := int(await raw.reader.readline(), 16)) > 0:
                    result.body += await raw.reader.readexactly(size)
                    await raw.reader.readexactly(2)
        return result
    finally:
        raw.close()


async def test_cookies_and_policies_of_a_cluster_are_removed(gateway: Gateway, recorder: Recorder) -> None:
    response = await respond_with(
        gateway,
        recorder,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: R_SESS=mine\r\nAccess-Control-Allow-Origin: *\r\n"
        b"Strict-Transport-Security: max-age=0\r\nWarning: 299 - a\r\nWarning: 299 - b\r\nContent-Length: 2\r\n\r\nok",
    )
    assert response.headers["warning"] == "299 - a, 299 - b"
    assert response.headers["content-security-policy"] == "sandbox"
    assert response.headers.keys() & {"set-cookie", "access-control-allow-origin", "strict-transport-security"} == set()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/api/", f"{PATH}/api/"),
        ("/api?a=/../b", f"{PATH}/api?a=/../b"),
        ("https://evil.example/", None),
        ("//evil.example/", None),
    ],
)
async def test_a_redirect_stays_in_its_cluster(
    gateway: Gateway, recorder: Recorder, location: str, expected: str | None
) -> None:
    redirect = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    response = await respond_with(gateway, recorder, redirect)
    assert (response.status, response.headers.get("location")) == (302, expected)


@pytest.mark.parametrize(
    "location",
    [
        *("/../c-m-two/api/v1/secrets", "/api/../../c-m-two/api", "/../../../api/v1/secrets", "/..", "/..?a=b"),
        *("/%2e%2e/c-m-two/api", "/.%2E/c-m-two/api", "/..\\c-m-two", "/\\../c-m-two", "/.\t./c-m-two/api", "/..#x"),
    ],
)
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_cannot_leave_its_cluster(
    gateway: Gateway, recorder: Recorder, status: int, location: str
) -> None:
    """To the manager's API or another cluster: clients repeat writes there on 307 and 308, as the user."""
    redirect = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    response = await respond_with(gateway, recorder, redirect)
    assert (response.status, response.headers.get("location")) == (status, None)


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
    ],
    ids=["chunks, extensions and trailers", "hints before the answer", "until the connection ends"],
)
async def test_every_framing_of_a_body_is_supported(gateway: Gateway, recorder: Recorder, wire: bytes) -> None:
    response = await respond_with(gateway, recorder, wire)
    assert (response.status, response.body) == (200, b"abc")
    assert "link" not in response.headers


@pytest.mark.parametrize(
    "wire",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n"],
)
async def test_a_response_without_a_body_keeps_the_connection(
    gateway: Gateway, recorder: Recorder, wire: bytes
) -> None:
    assert (await respond_with(gateway, recorder, wire)).body == b""
    assert (await respond_with(gateway, recorder, OK)).status == 200
    assert recorder.connections == 1


async def test_a_head_request_waits_for_no_body(gateway: Gateway, recorder: Recorder) -> None:
    response = await respond_with(gateway, recorder, b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", method="HEAD")
    assert (response.status, response.body) == (200, b"")


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nabc",
        b"SSH-2.0-OpenSSH_9.6\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (300 << 10) + b"Connection: close",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + OK,
        b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["cut short", "framed twice", "not HTTP", "an endless head", "another protocol", "101 as an answer"],
)
async def test_a_broken_response_is_a_bad_gateway(gateway: Gateway, recorder: Recorder, wire: bytes) -> None:
    response = await respond_with(gateway, recorder, wire, method="POST")
    assert response.status == 502
    assert "retry-after" not in response.headers  # the request may have been executed


async def test_a_slow_watcher_applies_backpressure_to_the_cluster(gateway: Gateway, recorder: Recorder) -> None:
    piece, offered, taken = b"x" * (1 << 20), 256, 0

    async def flood(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _number in range(offered):
            writer.write(b"100000\r\n" + piece + b"\r\n")
            await writer.drain()
            taken += 1
        writer.write(b"0\r\n\r\n")

    recorder.answer = flood
    raw = await connect(gateway)
    raw.send(get(f"{PATH}/api/v1/configmaps?watch=true"))
    before = -1
    while before != taken or not taken:  # until nothing more is accepted
        before = taken
        await asyncio.sleep(0.3)
    raw.close()
    assert taken < offered / 4


def test_repr_shows_no_secrets(recorder: Recorder) -> None:
    target = replace(recorder.target(), token="canary-of-the-agent")
    outgoing = Outgoing("GET", "/", [("authorization", "Bearer canary")], b"canary")
    assert "canary" not in f"{target!r} {target} {outgoing!r} {outgoing}"


async def test_a_watch_ends_in_the_cluster_when_its_client_disconnects(gateway: Gateway, recorder: Recorder) -> None:
    disconnected = asyncio.Event()

    async def watch(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await writer.drain()
        assert await reader.read() == b""
        disconnected.set()

    recorder.answer = watch
    raw = await connect(gateway)
    raw.send(get(f"{PATH}/api?watch=true"))
    assert (await raw.answer()).status == 200
    assert await raw.line() == b"2\r\n"
    raw.close()
    async with asyncio.timeout(10):
        await disconnected.wait()


# --- failures -------------------------------------------------------------------------------------------------------


async def test_rejections_have_a_reason(gateway: Gateway, recorder: Recorder) -> None:
    unknown = await send(gateway, get("/k8s/clusters/c-m-none/api"))
    assert (unknown.status, json.loads(unknown.body)["reason"]) == (404, "NotFound")
    outside = await send(gateway, get(f"/k8s/clusters/{FORBIDDEN_CLUSTER}/api"))
    assert (outside.status, json.loads(outside.body)["reason"]) == (403, "Forbidden")
    assert (await send(gateway, get(f"{PATH}/api", credential=""))).status == 401
    assert recorder.received == []


async def test_a_disconnected_agent_is_reported_with_the_time(recorder: Recorder) -> None:
    async def dial_without_session(cluster: str, _address: str) -> channel.Channel:
        raise NoSession(cluster)

    target = replace(recorder.target(), disconnected_since="2026-01-02T03:04:05Z")
    gateway = await Gateway({CLUSTER: target}, dial=dial_without_session, tokens=StaticTokens()).start()
    response = await send(gateway, get(f"{PATH}/api"))
    await gateway.stop()
    assert (response.status, response.headers["retry-after"]) == (503, connections.RETRY_SECONDS)
    assert "cluster agent disconnected since 2026-01-02T03:04:05Z" in json.loads(response.body)["message"]


async def test_a_failed_dial_is_reported(recorder: Recorder) -> None:
    class RefusedChannel:
        async def receive(self) -> bytes:
            raise StreamError("dial tcp 10.43.0.1:443: connect: connection refused")

        async def send(self, data: channel.Buffer) -> None:
            """Writes are not acknowledged; the failure appears on read."""

        def close(self) -> None: ...

    async def refuse(_cluster: str, _address: str) -> channel.Channel:
        return RefusedChannel()

    gateway = await Gateway({CLUSTER: recorder.target()}, dial=refuse, tokens=StaticTokens()).start()
    response = await send(gateway, get(f"{PATH}/api"))
    await gateway.stop()
    assert response.status == 502
    assert "connection refused" in json.loads(response.body)["message"]


async def test_a_cluster_is_verified_with_its_own_ca(
    recorder: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    foreign_ca = Authority(tmp_path_factory.mktemp("stranger")).path.read_text()
    renamed = replace(recorder.target(), certified_name="elsewhere.example")
    for target, status in ((recorder.target(foreign_ca), 502), (renamed, 502), (recorder.target(""), 503)):
        gateway = await Gateway({CLUSTER: target}, tokens=StaticTokens()).start()
        assert (await send(gateway, get(f"{PATH}/api"))).status == status
        await gateway.stop()
    assert recorder.received == []
