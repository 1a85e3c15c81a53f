"""Servers that send without an end, or far more than they seem to: a client reads so much and no more."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import Connection
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import GroupVersionResource

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
        client = Client(HttpTransport(Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")))
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
        with pytest.raises(ServiceUnavailable, match="longer than"):
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
        with pytest.raises(ServiceUnavailable, match="longer than"):
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
            await client.list_all(PODS, most_items=100_000)
