"""The client bounds what it reads from servers that send endless or oversized responses."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import ServiceUnavailable, StatusError
from herder.engine.meta.kinds import GroupVersionResource
from herder.engine.wire import Request, Response
from herder.sim import loop as virtual

PODS = GroupVersionResource("", "v1", "pods")
PIECE = b"x" * (1 << 20)
MOST_PIECES = 100
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(answer: Answer) -> AsyncIterator[Client]:
    """A client of a server that gives this answer to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = Client(HttpTransport(RestConfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")))
        try:
            yield client
        finally:
            await client.close()


async def _pieces(writer: asyncio.StreamWriter, piece: bytes) -> None:
    for _ in range(MOST_PIECES):
        writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize("start", [b'{"type":"ADDED","object":{"a":"', b'{\n  "type": "ADDED",\n'])
async def test_an_endless_watch_line_ends_the_watch(start: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(start) + start + b"\r\n")
        await _pieces(writer, PIECE)

    async with client_of(answer) as client, aclosing(client.watch(PODS)) as events:
        with pytest.raises(ServiceUnavailable, match="exceeds"):
            await anext(events)


async def test_a_compressed_response_is_not_decompressed() -> None:
    bomb = gzip.compress(PIECE * MOST_PIECES)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="compressed"):
            await client.raw("GET", "/api/v1/pods")


async def test_an_endless_response_is_aborted() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await _pieces(writer, PIECE)

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="exceeds"):
            await client.get(PODS, "a", namespace="default")


async def test_an_endless_paged_list_is_aborted() -> None:
    items = b",".join(b'{"metadata":{"name":"p%d"}}' % number for number in range(500))
    page = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[' + items + b"]}"
    requests = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        end = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}'
        body = page if requests < 300 else end
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="more than"):
            await client.list_all(PODS, max_items=100_000)


async def test_a_list_of_empty_pages_is_aborted() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[]}'
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="empty pages"):
            await client.list_all(PODS, max_items=100_000)


async def test_a_list_that_is_still_paged_after_it_expired_ends() -> None:
    requests = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        page = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[]}'
        gone = b'{"kind":"Status","reason":"Expired","code":410}'
        head = HEAD.replace(b"200 OK", b"410 Gone") if requests == 2 else HEAD
        body = gone if requests == 2 else page
        writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        assert (await client.list_all(PODS)).items == []
    assert requests == 3


ODD_STATUSES = (
    '{"kind":"Status","reason":["NotFound"],"code":404}',
    '{"kind":"Status","reason":{"a":1},"code":{"b":2},"message":[1]}',
    '{"kind":"Status","code":%s,"message":7,"details":"none"}' % ("9" * 5000),
    '{"kind":"Status","code":-1,"reason":7,"details":[1]}',
    '{"kind":"Status","code":true,"message":null}',
    '{"kind":"Status","code":"404"}',
    "[" * 50_000,
    '{"kind":"Status","details":' + '{"a":' * 50_000,
)


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
@pytest.mark.parametrize("body", ODD_STATUSES)
async def test_any_json_error_body_raises_a_status_error(body: str, status: bytes) -> None:
    """Callers handle StatusError and OSError; any other exception would stop them."""
    if status.startswith(b"200") and not body.startswith("["):
        body = f"[{body}]"

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"200 OK", status) + b"Connection: close\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(StatusError) as failure:
            await client.get(PODS, "a", namespace="default")
    error = failure.value
    assert (type(error.code), type(error.reason), type(error.message)) == (int, str, str)
    assert error.details is None or isinstance(error.details, dict)


async def test_an_error_message_is_truncated_and_has_no_control_characters() -> None:
    body = b'{"kind":"Status","message":"\\u001b[2J' + b"m" * (1 << 20) + b'","code":503}'

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"200 OK", b"503 Unavailable") + b"Connection: close\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(StatusError) as failure:
            await client.get(PODS, "a", namespace="default")
    assert len(failure.value.message) < 10_000
    assert "\x1b" not in failure.value.message


async def test_a_retry_after_of_5000_digits_raises_a_status_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herder.engine.client.client.MAX_RETRY_AFTER_SECONDS", 0)

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"200 OK", b"429 Too Many Requests") + b"Connection: close\r\n"
        writer.write(head + b"Retry-After: " + b"9" * 5000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(StatusError):
            await client.get(PODS, "a", namespace="default")


@pytest.mark.parametrize("items", ["[1]", '["a"]', '{"a":1}', '[{"metadata":1}]', "7", '"text"'])
async def test_a_malformed_list_raises_a_status_error(items: str) -> None:
    body = f'{{"kind":"PodList","items":{items}}}'.encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="not a Kubernetes list"):
            await client.list(PODS)


def test_a_response_that_arrives_byte_by_byte_times_out() -> None:
    """Through a tunnel, the body of a response is a stream."""

    class Dripping:
        async def send(self, _request: Request) -> Response:
            return Response(200, stream=self._drip())

        async def _drip(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(5)

        async def close(self) -> None: ...

    async def work() -> None:
        with pytest.raises(ServiceUnavailable, match="did not end"):
            await Client(Dripping()).get(PODS, "a", namespace="default")

    virtual.run(work())
