"""The proxy between two sockets: raw bytes from a caller, and what a cluster's API gets to see of them."""

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
from tests.unit.gateway.proxy.recorder import OK, UNAUTHORIZED, OneToken, Received, Recorder
from tests.unit.gateway.proxy.serving import OUTSIDE, Gateway

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
    gateway = await Gateway({CLUSTER: recorder.target()}, tokens=OneToken()).start()
    yield gateway
    await gateway.stop()


async def connect(gateway: Gateway) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", gateway.port))


async def ask(gateway: Gateway, request: bytes) -> Answer:
    raw = await connect(gateway)
    try:
        raw.send(request)
        return await raw.answer()
    finally:
        raw.close()


def get(path: str, *headers: str, method: str = "GET", who: str = "Authorization: Bearer token-alice") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: manager.example", who, *headers, "", ""]
    return "\r\n".join(line for line in lines[:-2] if line).encode() + b"\r\n\r\n"


# --- what arrives ---------------------------------------------------------------------------------------------------


async def test_a_request_arrives_as_the_user_who_asked(gateway: Gateway, recorder: Recorder) -> None:
    answer = await ask(gateway, get(f"{PATH}/api/v1/x%2Fy?a=%7e&b", "Accept: application/json", "Cookie: R_SESS=abc"))
    assert (answer.status, answer.body) == (200, b"{}")
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
async def test_smuggled_headers_end_at_the_manager(gateway: Gateway, recorder: Recorder, headers: list[str]) -> None:
    raw = await connect(gateway)
    raw.send(get(f"{PATH}/api", *headers, method="POST"))
    raw.send(b"0\r\n\r\n" + get(f"{PATH}/second", "Impersonate-User: admin"))
    answer = await raw.answer()
    raw.close()
    assert answer.status in (400, 403, 501)
    assert recorder.received == []


async def test_an_absolute_url_is_a_path_here_and_its_host_nobodys(gateway: Gateway, recorder: Recorder) -> None:
    await ask(gateway, get(f"http://169.254.169.254{PATH}/api"))
    assert recorder.received[0].line == "GET /api HTTP/1.1"
    assert recorder.received[0].all("host") == [recorder.address]
    assert (await ask(gateway, get("http://169.254.169.254/latest/meta-data"))).status == 404


async def test_a_body_arrives_with_a_length_of_its_own(gateway: Gateway, recorder: Recorder) -> None:
    chunked = (
        get(f"{PATH}/api", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n"
    )
    assert (await ask(gateway, chunked)).status == 200
    assert recorder.received[0].body == b"abcde"
    assert recorder.received[0].all("transfer-encoding") == []
    assert recorder.received[0].all("content-length") == ["5"]


async def test_support_acts_as_alice_and_as_nobody_else(gateway: Gateway, recorder: Recorder) -> None:
    support = "Authorization: Bearer token-support"
    assert (await ask(gateway, get(f"{PATH}/api", "Impersonate-User: u-alice", who=support))).status == 200
    assert recorder.received[0].all("impersonate-user") == ["u-alice"]
    assert recorder.received[0].all("authorization") == [TOKEN]
    for who in (["Impersonate-User: admin"], ["Impersonate-User: u-alice", "Impersonate-Group: system:masters"]):
        assert (await ask(gateway, get(f"{PATH}/api", *who, who=support))).status == 403
    assert len(recorder.received) == 1


async def test_an_impersonator_that_a_cluster_no_longer_knows_is_renewed_once(
    gateway: Gateway, recorder: Recorder
) -> None:
    async def refuse(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(UNAUTHORIZED)

    recorder.answer = refuse
    assert (await ask(gateway, get(f"{PATH}/api"))).status == 502  # a 401 would be taken as said of the caller
    assert [received.all("authorization") for received in recorder.received] == [
        ["Bearer of-u-alice-in-c-m-one-0"],
        ["Bearer of-u-alice-in-c-m-one-1"],
    ]


async def test_a_program_in_the_cluster_may_ask_for_a_login_of_its_own(gateway: Gateway, recorder: Recorder) -> None:
    page = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 6\r\n\r\nlog in"
    answer = await answering(gateway, recorder, page)
    assert (answer.status, answer.body) == (401, b"log in")
    assert len(recorder.received) == 1


async def test_a_connection_serves_many_requests_of_many_users(gateway: Gateway, recorder: Recorder) -> None:
    for who in ("alice", "support", "alice"):
        assert (await ask(gateway, get(f"{PATH}/api", who=f"Authorization: Bearer token-{who}"))).status == 200
    assert recorder.connections == 1
    assert [received.all("impersonate-user") for received in recorder.received] == [
        ["u-alice"],
        ["u-support"],
        ["u-alice"],
    ]


async def test_a_connection_that_ended_while_it_was_kept_is_not_used(gateway: Gateway, recorder: Recorder) -> None:
    closed = asyncio.Event()

    async def last(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed.set()

    recorder.answer = last
    for number in (1, 2, 3):
        closed.clear()
        assert (await ask(gateway, get(f"{PATH}/api"))).status == 200
        await closed.wait()
        assert recorder.connections == number


# --- what comes back --------------------------------------------------------------------------------------------------


async def answering(gateway: Gateway, recorder: Recorder, answer: bytes, *, method: str = "GET") -> Answer:
    async def say(_: Received, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        if b"Connection: close" in answer:
            writer.close()

    recorder.answer = say
    raw = await connect(gateway)
    try:
        raw.send(get(f"{PATH}/api", method=method))
        found = await raw.answer(bodiless=method == "HEAD")
        if found.headers.get("transfer-encoding") == "chunked":
            async with asyncio.timeout(10):
                while (size := int(await raw.reader.readline(), 16)) > 0:
                    found.body += await raw.reader.readexactly(size)
                    await raw.reader.readexactly(2)
        return found
    finally:
        raw.close()


async def test_a_cluster_sets_no_cookie_and_no_policy_at_our_address(gateway: Gateway, recorder: Recorder) -> None:
    answer = await answering(
        gateway,
        recorder,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: R_SESS=mine\r\nAccess-Control-Allow-Origin: *\r\n"
        b"Strict-Transport-Security: max-age=0\r\nWarning: 299 - a\r\nWarning: 299 - b\r\nContent-Length: 2\r\n\r\nok",
    )
    assert answer.headers["warning"] == "299 - a, 299 - b"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers.keys() & {"set-cookie", "access-control-allow-origin", "strict-transport-security"} == set()


@pytest.mark.parametrize(
    ("location", "kept"),
    [
        ("/api/", f"{PATH}/api/"),
        ("/api?a=/../b", f"{PATH}/api?a=/../b"),
        ("https://evil.example/", None),
        ("//evil.example/", None),
    ],
)
async def test_a_redirect_stays_in_its_cluster(
    gateway: Gateway, recorder: Recorder, location: str, kept: str | None
) -> None:
    redirect = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    answer = await answering(gateway, recorder, redirect)
    assert (answer.status, answer.headers.get("location")) == (302, kept)


@pytest.mark.parametrize(
    "location",
    [
        *("/../c-m-two/api/v1/secrets", "/api/../../c-m-two/api", "/../../../api/v1/secrets", "/..", "/..?a=b"),
        *("/%2e%2e/c-m-two/api", "/.%2E/c-m-two/api", "/..\\c-m-two", "/\\../c-m-two", "/.\t./c-m-two/api", "/..#x"),
    ],
)
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_does_not_climb_out_of_its_cluster(
    gateway: Gateway, recorder: Recorder, status: int, location: str
) -> None:
    """To the manager's own API or another cluster: 307 and 308 repeat writes there, as the user."""
    redirect = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    answer = await answering(gateway, recorder, redirect)
    assert (answer.status, answer.headers.get("location")) == (status, None)


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
async def test_every_framing_of_a_body_is_understood(gateway: Gateway, recorder: Recorder, wire: bytes) -> None:
    answer = await answering(gateway, recorder, wire)
    assert (answer.status, answer.body) == (200, b"abc")
    assert "link" not in answer.headers


@pytest.mark.parametrize(
    "wire",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n"],
)
async def test_an_answer_without_a_body_has_none(gateway: Gateway, recorder: Recorder, wire: bytes) -> None:
    assert (await answering(gateway, recorder, wire)).body == b""
    assert (await answering(gateway, recorder, OK)).status == 200
    assert recorder.connections == 1


async def test_a_head_is_asked_for_and_no_body_awaited(gateway: Gateway, recorder: Recorder) -> None:
    answer = await answering(gateway, recorder, b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


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
async def test_a_broken_answer_is_a_bad_gateway(gateway: Gateway, recorder: Recorder, wire: bytes) -> None:
    answer = await answering(gateway, recorder, wire, method="POST")
    assert answer.status == 502
    assert "retry-after" not in answer.headers  # nobody knows whether it was done


async def test_a_watcher_who_does_not_read_holds_the_cluster_back(gateway: Gateway, recorder: Recorder) -> None:
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
    while before != taken or not taken:  # until it stands still
        before = taken
        await asyncio.sleep(0.3)
    raw.close()
    assert taken < offered / 4


def test_what_is_printed_tells_no_secret(recorder: Recorder) -> None:
    target = replace(recorder.target(), token="canary-of-the-agent")
    outgoing = Outgoing("GET", "/", [("authorization", "Bearer canary")], b"canary")
    assert "canary" not in f"{target!r} {target} {outgoing!r} {outgoing}"


async def test_a_watch_ends_in_the_cluster_when_its_reader_goes(gateway: Gateway, recorder: Recorder) -> None:
    gone = asyncio.Event()

    async def watch(_: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await writer.drain()
        assert await reader.read() == b""
        gone.set()

    recorder.answer = watch
    raw = await connect(gateway)
    raw.send(get(f"{PATH}/api?watch=true"))
    assert (await raw.answer()).status == 200
    assert await raw.line() == b"2\r\n"
    raw.close()
    async with asyncio.timeout(10):
        await gone.wait()


# --- when it does not work --------------------------------------------------------------------------------------------


async def test_refusals_say_what_is_wrong(gateway: Gateway, recorder: Recorder) -> None:
    unknown = await ask(gateway, get("/k8s/clusters/c-m-none/api"))
    assert (unknown.status, json.loads(unknown.body)["reason"]) == (404, "NotFound")
    outside = await ask(gateway, get(f"/k8s/clusters/{OUTSIDE}/api"))
    assert (outside.status, json.loads(outside.body)["reason"]) == (403, "Forbidden")
    assert (await ask(gateway, get(f"{PATH}/api", who=""))).status == 401
    assert recorder.received == []


async def test_an_agent_that_is_away_is_said_to_be_away_and_since_when(recorder: Recorder) -> None:
    async def away(cluster: str, _address: str) -> channel.Channel:
        raise NoSession(cluster)

    target = replace(recorder.target(), disconnected_since="2026-01-02T03:04:05Z")
    gateway = await Gateway({CLUSTER: target}, dial=away, tokens=OneToken()).start()
    answer = await ask(gateway, get(f"{PATH}/api"))
    await gateway.stop()
    assert (answer.status, answer.headers["retry-after"]) == (503, connections.RETRY_SECONDS)
    assert "cluster agent disconnected since 2026-01-02T03:04:05Z" in json.loads(answer.body)["message"]


async def test_an_api_that_cannot_be_dialled_is_named(recorder: Recorder) -> None:
    class Refused:
        async def receive(self) -> bytes:
            raise StreamError("dial tcp 10.43.0.1:443: connect: connection refused")

        async def send(self, data: channel.Buffer) -> None:
            """There is no acknowledgement: it fails when it is read."""

        def close(self) -> None: ...

    async def refuse(_cluster: str, _address: str) -> channel.Channel:
        return Refused()

    gateway = await Gateway({CLUSTER: recorder.target()}, dial=refuse, tokens=OneToken()).start()
    answer = await ask(gateway, get(f"{PATH}/api"))
    await gateway.stop()
    assert answer.status == 502
    assert "connection refused" in json.loads(answer.body)["message"]


async def test_a_cluster_is_known_by_its_own_ca_alone(
    recorder: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger")).path.read_text()
    renamed = replace(recorder.target(), certified_name="elsewhere.example")
    for target, status in ((recorder.target(stranger), 502), (renamed, 502), (recorder.target(""), 503)):
        gateway = await Gateway({CLUSTER: target}, tokens=OneToken()).start()
        assert (await ask(gateway, get(f"{PATH}/api"))).status == status
        await gateway.stop()
    assert recorder.received == []
