# ruff: noqa: E501 — one exchange a line
"""Invalid HTTP and misbehaving clients: the server responds or closes the connection, and keeps serving others."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from tests.fuzz.inputs.mutation import mangled
from tests.fuzz.server_pair import CONFIG_MAPS, Pair
from tests.fuzz.wire import Input, NoResponse, Wire, read_reply

_TIMEOUT = 6.0  # after which the server is considered to wait for more
_NEXT_TIMEOUT = 1.0  # after which all responses are considered sent
_GET = f"GET {CONFIG_MAPS}/standing HTTP/1.1\r\nHost: x\r\n".encode()
_POST = f"POST {CONFIG_MAPS}?dryRun=All HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
_OBJECT = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x-raw"}}'
_END = b"\r\n\r\n"

EXCHANGES: dict[str, bytes] = {
    "a request": _GET + b"\r\n",
    "two requests at once": (_GET + b"\r\n") * 2,
    "fifty requests at once": (_GET + b"\r\n") * 50,
    "an empty line before it": b"\r\n" + _GET + b"\r\n",
    "bare line feeds": _GET.replace(b"\r\n", b"\n") + b"\n",
    "no host": f"GET {CONFIG_MAPS} HTTP/1.1".encode() + _END,
    "two hosts": _GET + b"Host: y" + _END,
    "HTTP/1.0": _GET.replace(b"1.1", b"1.0") + b"\r\n",
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "HTTP/1.2": _GET.replace(b"1.1", b"1.2") + b"\r\n",
    "HTTP/2.0": _GET.replace(b"1.1", b"2.0") + b"\r\n",
    "HTTP/9.9": _GET.replace(b"1.1", b"9.9") + b"\r\n",
    "HTTP/x": _GET.replace(b"1.1", b"x") + b"\r\n",
    "no version": b"GET /version \r\nHost: x" + _END,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "lower-case http": _GET.replace(b"HTTP", b"http") + b"\r\n",
    "two spaces": _GET.replace(b" HTTP", b"  HTTP") + b"\r\n",
    "a tab": _GET.replace(b"GET ", b"GET\t") + b"\r\n",
    "no method": _GET.removeprefix(b"GET") + b"\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: x" + _END,
    "a relative path": b"GET version HTTP/1.1\r\nHost: x" + _END,
    "a whole URL": b"GET https://x/version HTTP/1.1\r\nHost: x" + _END,
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: x" + _END,
    "a fragment": b"GET /version#x HTTP/1.1\r\nHost: x" + _END,
    "bytes above ASCII in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: x" + _END,
    "a NUL in the path": b"GET /\x00 HTTP/1.1\r\nHost: x" + _END,
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: x" + _END,
    "a header without a colon": _GET + b"nope" + _END,
    "a header without a name": _GET + b": x" + _END,
    "a space before the colon": _GET + b"X-Any : y" + _END,
    "a folded header": _GET + b"X-Any: y\r\n z" + _END,
    "a NUL in a header": _GET + b"X-Any: \x00" + _END,
    "a control character in a header": _GET + b"X-Any: \x01" + _END,
    "bytes above ASCII in a header": _GET + b"X-Any: \xff\xfe" + _END,
    "a strange name of a header": _GET + b"X(Any): y" + _END,
    "a header of 100 kB": _GET + b"X-Any: " + b"y" * 100_000 + _END,
    "a header of 2 MB": _GET + b"X-Any: " + b"y" * 2_000_000 + _END,
    "300 headers": _GET + b"".join(b"X-%d: y\r\n" % n for n in range(300)) + b"\r\n",
    "a path of 100 kB": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x" + _END,
    "a method of 10 kB": b"G" * 10_000 + b" / HTTP/1.1\r\nHost: x" + _END,
    "a body": _POST + b"Content-Length: %d\r\n\r\n" % len(_OBJECT) + _OBJECT,
    "a body that is chunked": _POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(_OBJECT), _OBJECT),
    "chunks with extensions": _POST + b"Transfer-Encoding: chunked\r\n\r\n%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(_OBJECT), _OBJECT),
    "chunks with trailers": _POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Any: y\r\n\r\n" % (len(_OBJECT), _OBJECT),
    "a chunk of no size": _POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
    "a chunk of negative size": _POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a chunk of too large a size": _POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
    "a chunk that goes on": _POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}}}\r\n0\r\n\r\n",
    "another encoding": _POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "two encodings": _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks and a length": _POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "the same length twice": _POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a negative length": _POST + b"Content-Length: -1\r\n\r\n{}",
    "a length that is none": _POST + b"Content-Length: x\r\n\r\n{}",
    "a length with a sign": _POST + b"Content-Length: +2\r\n\r\n{}",
    "a length in hexadecimal": _POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a length beyond counting": _POST + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    "a length of 1 GB": _POST + b"Content-Length: 1000000000\r\n\r\n{}",
    "a length shorter than the body": _POST + b"Content-Length: 1\r\n\r\n{}GET / HTTP/1.1\r\n\r\n",
    "an expectation": _POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(_OBJECT) + _OBJECT,
    "an upgrade to HTTP/2": _GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk" + _END,
    "a watch that is half-closed": f"GET {CONFIG_MAPS}?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: x".encode() + _END,
    "noise": bytes(range(256)),
    "zeros": b"\x00" * 1000,
}  # fmt: skip

_FRAMING = "the parser rejects framing that deviates from RFC 9112 with 400"
_LIMITS = "limits have their own status code"
_UNUSED = "the parser treats unused versions of HTTP as HTTP/1.1, or rejects them"
DIFFERENCES: dict[str, str] = {
    "an empty line before it": "allowed by RFC 9112",
    "bare line feeds": _FRAMING,
    "two hosts": "nothing depends on the host",
    "HTTP/1.2": _UNUSED,
    "HTTP/2.0": _UNUSED,
    "HTTP/9.9": _UNUSED,
    "the preface of HTTP/2": "HTTP/2 is not offered",
    "two spaces": _FRAMING,
    "an asterisk": "not found; kube-apiserver's HTTP library responds itself",
    "a fragment": "the part after `#` is not part of a request",
    "bytes above ASCII in the path": "a path is UTF-8",
    "a folded header": _FRAMING,
    "a path of 100 kB": _LIMITS,
    "a method of 10 kB": _FRAMING,
    "a chunk of no size": "the real server fails with 500",
    "a chunk of negative size": "the real server fails with 500",
    "a chunk of too large a size": "the real server fails with 500",
    "a chunk that goes on": "the real server fails with 500",
    "chunks and a length": _FRAMING,
    "the same length twice": _FRAMING,
    "a length of 1 GB": "rejected at once; kube-apiserver waits for the body",
    "zeros": "answered with 400; kube-apiserver closes the connection",
}
"""Exchanges whose codes differ from kube-apiserver's, and why."""


@dataclass
class ExchangeResults:
    count: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        summary = f"sockets: {self.count} exchanges with the embedded server, {len(self.failures)} failures"
        return "\n".join([summary, *(f"  {text}" for text in self.failures)])


async def exchange(wire: Wire, content: bytes) -> list[int]:
    """Status codes of the responses to these bytes; [-1] if the server waits for more."""
    reader, writer = await wire.open()
    codes: list[int] = []
    try:
        async with asyncio.timeout(_TIMEOUT):
            with suppress(OSError):
                writer.write(content)
                await writer.drain()
        ended = False
        while not ended:
            async with asyncio.timeout(_NEXT_TIMEOUT if codes else _TIMEOUT):
                reply, ended = await read_reply(reader)
                codes.append(reply.code)
    except (NoResponse, OSError, ValueError):
        pass
    except TimeoutError:
        if not codes:
            return [-1]  # waits for more, which is allowed
    finally:
        writer.transport.abort()
    return codes


async def run(pair: Pair, seed: int, count: int) -> ExchangeResults:
    """Send mangled exchanges of the table to the embedded server; then misbehave as a client."""
    results = ExchangeResults()
    dice = random.Random(f"sockets/{seed}")
    gate = asyncio.Semaphore(20)

    async def one(content: bytes) -> None:
        async with gate:
            codes = await exchange(pair.embedded, content)
        results.count += 1
        if any(code >= 500 and code not in (501, 505) for code in codes):
            results.failures.append(f"{codes}: {content[:300]!r}")

    usual = [content for name, content in EXCHANGES.items() if len(content) < 5000]
    await asyncio.gather(*(one(mangled(dice.choice(usual), dice)) for _ in range(count)))
    await misbehave(pair.embedded, seed)
    if (await pair.embedded.send(Input("sockets", "GET", "/readyz"))).code != 200:
        results.failures.append("not ready afterwards")
    return results


async def misbehave(wire: Wire, seed: int) -> None:
    """Slow, idle, disconnecting and garbling clients, many at once, while another client is served."""
    dice = random.Random(seed)
    await asyncio.gather(*(_idle_client(wire) for _ in range(30)), *(_slow_client(wire) for _ in range(10)), *(_disconnecting(wire, dice) for _ in range(30)), *(_garbling(wire, dice) for _ in range(30)), _assert_served(wire))  # fmt: skip


async def _assert_served(wire: Wire) -> None:
    other = Wire(wire.connection)
    for _ in range(20):
        assert (await other.send(Input("sockets", "GET", f"{CONFIG_MAPS}/standing"))).code == 200
        await asyncio.sleep(0.02)
    await other.close()


async def _idle_client(wire: Wire) -> None:
    _, writer = await wire.open()
    await asyncio.sleep(0.5)
    writer.transport.abort()


async def _slow_client(wire: Wire) -> None:
    """Send one byte at a time; the server responds nevertheless."""
    reader, writer = await wire.open()
    for byte in _GET[:30] + _GET[30:] + b"\r\n":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.005)
    reply, _ = await read_reply(reader)
    assert reply.code == 200, reply
    writer.transport.abort()


async def _disconnecting(wire: Wire, dice: random.Random) -> None:
    """Disconnect in the middle of the request, the body or the response."""
    _, writer = await wire.open()
    content = _POST + b"Content-Length: %d\r\n\r\n" % len(_OBJECT) + _OBJECT
    writer.write(content[: dice.randrange(len(content) + 1)])
    await asyncio.sleep(dice.random() * 0.05)
    writer.transport.abort()


async def _garbling(wire: Wire, dice: random.Random) -> None:
    """Send something other than TLS, or an incomplete handshake."""
    reader, writer = await asyncio.open_connection(wire.host, wire.port)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(dice.randrange(600))
    try:
        with suppress(OSError, TimeoutError):
            writer.write(
                dice.choice([_GET + b"\r\n", dice.randbytes(100), hello, b"\x16\x03\x01\xff\xff", b"", b"\x00" * 50])
            )
            if dice.random() < 0.5:
                writer.write_eof()
            async with asyncio.timeout(1.0):
                await reader.read(1000)
    finally:
        writer.transport.abort()
