"""Servers that send without an end, or far more than they seem to: a client reads so much and no more."""

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
    """A client of a server that answers every request so."""

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
async def test_a_watch_line_that_does_not_end_ends_the_watch(start: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(start) + start + b"\r\n")
        await _pieces(writer, PIECE)

    async with client_of(answer) as client, aclosing(client.watch(PODS)) as events:
        with pytest.raises(ServiceUnavailable, match="exceeds"):
            await anext(events)


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(PIECE * MOST_PIECES)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="compressed"):
            await client.raw("GET", "/api/v1/pods")


async def test_an_answer_is_not_read_without_an_end() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await _pieces(writer, PIECE)

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="exceeds"):
            await client.get(PODS, "a", namespace="default")


async def test_a_list_of_pages_without_an_end_is_given_up() -> None:
    items = b",".join(b'{"metadata":{"name":"p%d"}}' % number for number in range(500))
    page = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[' + items + b"]}"
    asked = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        end = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}'
        body = page if asked < 300 else end
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="more than"):
            await client.list_all(PODS, max_items=100_000)


async def test_a_list_of_empty_pages_is_given_up() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[]}'
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="empty pages"):
            await client.list_all(PODS, max_items=100_000)


async def test_a_list_that_expires_between_all_its_pages_ends() -> None:
    asked = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        page = b'{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"more"},"items":[]}'
        gone = b'{"kind":"Status","reason":"Expired","code":410}'
        head = HEAD.replace(b"200 OK", b"410 Gone") if asked == 2 else HEAD
        body = gone if asked == 2 else page
        writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        assert (await client.list_all(PODS)).items == []
    assert asked == 3


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
async def test_a_failure_of_any_json_is_a_failure_of_the_usual_kind(body: str, status: bytes) -> None:
    """Callers are ready for StatusError and OSError: anything else would end what they do."""
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


async def test_a_message_for_conditions_is_short_and_moves_no_cursor() -> None:
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


async def test_a_wait_of_five_thousand_digits_is_no_number_to_fail_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herder.engine.client.client.MAX_RETRY_AFTER_SECONDS", 0)

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"200 OK", b"429 Too Many Requests") + b"Connection: close\r\n"
        writer.write(head + b"Retry-After: " + b"9" * 5000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(StatusError):
            await client.get(PODS, "a", namespace="default")


@pytest.mark.parametrize("items", ["[1]", '["a"]', '{"a":1}', '[{"metadata":1}]', "7", '"text"'])
async def test_a_list_of_anything_else_is_a_failure_of_the_usual_kind(items: str) -> None:
    body = f'{{"kind":"PodList","items":{items}}}'.encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with client_of(answer) as client:
        with pytest.raises(ServiceUnavailable, match="not a Kubernetes list"):
            await client.list(PODS)


def test_an_answer_that_comes_byte_by_byte_is_not_awaited_for_ever() -> None:
    """As through a tunnel, where the body of an answer is a stream."""

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
