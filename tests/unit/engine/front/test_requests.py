"""Requests: request lines, headers and bodies, well-formed and malformed."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from tests.unit.engine.front.sockets import RunningFront

HOST = b"Host: x\r\n"


async def test_responses_on_one_connection_keep_the_request_order(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n" + b"POST /b?c=d HTTP/1.1\r\n" + HOST)
    raw.send(b"Content-Length: 3\r\n\r\nxyzGET /e HTTP/1.1\r\n" + HOST + b"\r\n")
    assert [(await raw.answer()).body for _ in range(3)] == [b"GET /a  ", b"POST /b c=d xyz", b"GET /e  "]


async def test_hundreds_of_pipelined_requests_are_all_answered(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"".join(b"GET /%d HTTP/1.1\r\n%b\r\n" % (i, HOST) for i in range(500)))
    assert [(await raw.answer()).body for _ in range(500)] == [b"GET /%d  " % i for i in range(500)]


async def test_a_request_may_arrive_byte_by_byte(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    for byte in b"\r\nPOST /slow HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok":
        raw.send(bytes([byte]))
        await raw.writer.drain()
        await asyncio.sleep(0)
    assert (await raw.answer()).body == b"POST /slow  ok"


async def test_chunked_bodies_are_assembled(fronted: RunningFront) -> None:
    answer = await fronted.ask(
        b"POST / HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n"
    )
    assert answer.body == b"POST /  abcde"
    assert "x-late" not in fronted.recorder.requests[0].headers


@pytest.mark.parametrize("compressor", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
async def test_compressed_bodies_are_inflated(fronted: RunningFront, compressor: object) -> None:
    body = compressor(b"plain")  # type: ignore[operator]
    name = b"gzip" if compressor is gzip.compress else b"deflate"
    head = b"POST / HTTP/1.1\r\n%bContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (HOST, name, len(body))
    assert (await fronted.ask(head + body)).body == b"POST /  plain"


@pytest.mark.parametrize(
    ("body", "status"),
    [(gzip.compress(b"0" * (4 << 20)), 413), (b"not gzip", 400), (gzip.compress(b"plain")[:-4], 400)],
    ids=["a bomb", "garbage", "cut off"],
)
async def test_invalid_compressed_bodies_are_rejected(fronted: RunningFront, body: bytes, status: int) -> None:
    head = b"POST / HTTP/1.1\r\n%bContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % (HOST, len(body))
    assert (await fronted.ask(head + body)).status == status


async def test_expect_100_continue_is_answered(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert (await raw.answer()).status == 100
    raw.send(b"ok")
    assert (await raw.answer()).body == b"POST /  ok"


async def test_other_expectations_are_rejected(fronted: RunningFront) -> None:
    answer = await fronted.ask(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: magic\r\n\r\n")
    assert answer.status == 417


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(fronted: RunningFront) -> None:
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
    answer = await fronted.ask(head)
    assert answer.status == 413
    assert json.loads(answer.body)["message"] == "Request entity too large: limit is 3145728"
    assert answer.headers["connection"] == "close"


async def test_a_chunked_body_over_the_limit_is_refused(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(50):
        raw.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    assert (await raw.answer()).status == 413
    assert fronted.recorder.requests == []


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET /" + b"a" * (70 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (300 << 10), 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(2000)) + b"\r\n", 431),
    ],
)
async def test_malformed_http_is_rejected_with_a_status(fronted: RunningFront, content: bytes, status: int) -> None:
    answer = await fronted.ask(content)
    assert answer.status == status
    status_object = json.loads(answer.body)
    assert (status_object["kind"], status_object["code"]) == ("Status", status)
    assert fronted.recorder.requests == []


async def test_requests_before_a_malformed_one_are_answered_first(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"GET /good HTTP/1.1\r\n" + HOST + b"\r\nGET bad\r\n\r\n")
    assert (await raw.answer()).body == b"GET /good  "
    assert (await raw.answer()).status == 400
    assert await raw.rest() == b""


@pytest.mark.parametrize("method", [b"UNHEARD", b"TRACE", b"get", b"M-SEARCH", b"PROPFIND"])
async def test_any_token_is_accepted_as_a_method(fronted: RunningFront, method: bytes) -> None:
    assert (await fronted.ask(method + b" /x HTTP/1.1\r\n" + HOST + b"\r\n")).body == method + b" /x  "


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a%2Fb%20c+d", "/a/b c+d", []),
        (b"/%E2%82%AC", "/€", []),
        (b"/a?b=%2B%26&c&b=+", "/a", [("b", "+&"), ("c", ""), ("b", " ")]),
        (b"/a?b=%2541", "/a", [("b", "%41")]),
        (b"http://host/a?b=c", "/a", [("b", "c")]),
        (b"http://host", "/", []),
        (b"/a//b/../c", "/a//b/../c", []),
        (b"*", "*", []),
    ],
)
async def test_targets_are_decoded_once(
    fronted: RunningFront, target: bytes, path: str, query: list[tuple[str, str]]
) -> None:
    assert (await fronted.ask(b"OPTIONS " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")).status == 200
    (request,) = fronted.recorder.requests
    assert (request.path, request.query.items) == (path, query)


async def test_header_names_are_lower_case_and_repeated_ones_joined(fronted: RunningFront) -> None:
    await fronted.ask(
        b"GET / HTTP/1.1\r\nHOST: x\r\nAccept: a\r\naccept: b\r\nX-Odd: caf\xe9\r\nX-Utf: \xe2\x82\xac\r\n\r\n"
    )
    assert fronted.recorder.requests[0].headers == {"host": "x", "accept": "a, b", "x-odd": "café", "x-utf": "€"}
    assert fronted.recorder.requests[0].remote == "127.0.0.1"
