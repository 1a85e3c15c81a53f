"""Responses: headers, bodies, streams, timeouts and the end of a connection."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from herder.engine.front import limits
from herder.engine.front.hijack import Hijack
from herder.engine.wire import Request, Response
from tests.unit.engine.front.sockets import TIMEOUT, RecordingHandler, RunningFront

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def answers_with(fronted: RunningFront, response: Response) -> None:
    async def handler(request: Request) -> Response:
        return response

    fronted.recorder.handler = handler


async def until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_head_response_has_a_content_length_and_no_body(fronted: RunningFront) -> None:
    raw = await fronted.connect()
    raw.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await raw.answer(bodiless=True)).headers["content-length"] == "8"
    raw.send(GET)
    assert (await raw.answer()).body == b"GET /  "


async def test_bodies_in_several_pieces_reach_a_slow_reader_completely(fronted: RunningFront) -> None:
    pieces = [bytes([65 + number]) * (1 << 20) for number in range(8)]
    answers_with(fronted, Response(200, {}, pieces))
    raw = await fronted.connect()
    raw.send(GET)
    await asyncio.sleep(0.05)
    assert (await raw.answer()).body == b"".join(pieces)


async def test_headers_that_would_split_the_response_are_dropped(fronted: RunningFront) -> None:
    answers_with(fronted, Response(200, {"x-a": "1\r\nx-b: 2", "x-c": "3"}, b"", warnings=['say "hi"\r\n\\']))
    answer = await fronted.ask(GET)
    assert "x-a" not in answer.headers
    assert "x-b" not in answer.headers
    assert answer.headers["x-c"] == "3"
    assert answer.headers["warning"] == '299 - "say \\"hi\\"\\\\"'
    assert answer.headers["date"].endswith("2026 03:04:05 GMT")


@pytest.mark.parametrize(
    ("request_", "stays"),
    [
        (GET, True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
async def test_a_connection_is_kept_alive_if_the_client_requests_it(
    fronted: RunningFront, request_: bytes, stays: bool
) -> None:
    raw = await fronted.connect()
    raw.send(request_)
    assert ("connection" in (await raw.answer()).headers) is not stays
    raw.send(GET)
    if stays:
        assert (await raw.answer()).status == 200
    else:
        assert await raw.rest() == b""


async def test_streams_are_chunked_and_end(fronted: RunningFront) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one\n"
        yield b""
        yield b"twelve bytes"

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    assert (await raw.answer()).headers["transfer-encoding"] == "chunked"
    assert await raw.reader.readexactly(31) == b"4\r\none\n\r\nc\r\ntwelve bytes\r\n0\r\n\r\n"


async def test_streams_to_http_1_0_clients_end_with_the_connection(fronted: RunningFront) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one"

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(b"GET / HTTP/1.0\r\n\r\n")
    assert "transfer-encoding" not in (await raw.answer()).headers
    assert await raw.rest() == b"one"


async def test_a_failing_stream_is_aborted_without_the_final_chunk(fronted: RunningFront) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("broken")

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await raw.reader.readuntil(b"0\r\n\r\n")


async def test_the_handler_is_cancelled_when_its_client_disconnects(fronted: RunningFront) -> None:
    seen: list[str] = []

    async def handler(request: Request) -> Response:
        seen.append("started")
        try:
            await asyncio.sleep(TIMEOUT)
        finally:
            seen.append("ended")
        return Response()

    fronted.recorder.handler = handler
    raw = await fronted.connect()
    raw.send(GET)
    await until(lambda: seen == ["started"])
    raw.reset()
    await until(lambda: seen == ["started", "ended"])


async def test_a_stream_is_closed_when_its_client_disconnects(fronted: RunningFront) -> None:
    closed = asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.sleep(TIMEOUT)
        finally:
            closed.set()

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    raw.close()
    async with asyncio.timeout(TIMEOUT):
        await closed.wait()


async def test_a_stream_waits_for_a_client_that_does_not_read(fronted: RunningFront) -> None:
    chunks_produced = 0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal chunks_produced
        while True:
            chunks_produced += 1
            yield b"x" * (1 << 20)

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    await asyncio.sleep(0.2)
    assert chunks_produced < 64  # no more than the socket buffers hold
    raw.close()


async def test_a_half_closed_client_receives_its_response(fronted: RunningFront) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return Response(200, {}, b"late")

    fronted.recorder.handler = handler
    raw = await fronted.connect()
    raw.send(GET)
    raw.writer.write_eof()
    assert (await raw.answer()).body == b"late"
    assert await raw.rest() == b""


# --- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHos", b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", b"HTTP/1.1 408 Request Timeout"),
    ],
)
async def test_clients_that_never_finish_a_request_are_disconnected(
    fronted: RunningFront, sent: bytes, answer: bytes
) -> None:
    raw = await fronted.connect()
    raw.send(sent)
    await until(lambda: fronted.front.connections)
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    for connection in list(fronted.front.connections):
        connection.check(loop.time() + limits.HEAD_SECONDS - 5)
        assert len(fronted.front.connections) == 1
        connection.check(loop.time() + limits.BODY_SECONDS + 5)
    assert (await raw.rest()).partition(b"\r\n")[0] == answer


async def test_clients_that_never_read_are_disconnected(fronted: RunningFront) -> None:
    answers_with(fronted, Response(200, {}, [b"x" * (1 << 20)] * 64))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.2)
    for connection in list(fronted.front.connections):
        connection.check(asyncio.get_running_loop().time() + limits.STALL_SECONDS + 5)
    await until(lambda: not fronted.front.connections)


# --- stopping -----------------------------------------------------------------------------------------------------


async def test_a_stop_lets_requests_finish_and_closes_idle_connections(fronted: RunningFront) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.1)
        return Response(200, {}, b"done")

    idle = await fronted.connect()
    fronted.recorder.handler = handler
    busy = await fronted.connect()
    busy.send(GET)
    await until(lambda: fronted.recorder.requests)
    stopped = asyncio.ensure_future(fronted.front.stop())
    answer = await busy.answer()
    assert (answer.body, answer.headers["connection"]) == (b"done", "close")
    assert await idle.rest() == b""
    async with asyncio.timeout(TIMEOUT):
        await stopped
    with pytest.raises(OSError):  # noqa: PT011
        await fronted.connect()


# --- upgrades -----------------------------------------------------------------------------------------------------

UPGRADE = b"GET /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class UppercaseProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


async def test_an_upgraded_connection_is_handed_over_with_the_bytes_already_sent(fronted: RunningFront) -> None:
    async def upgrade(hijack: Hijack, request: Request) -> bool:
        await asyncio.sleep(0.02)
        hijack.take(UppercaseProtocol(), b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        return True

    upgrading = await RunningFront.listen(fronted.recorder, upgrade)
    raw = await upgrading.connect()
    raw.send(UPGRADE + b"early ")
    await asyncio.sleep(0.01)
    raw.send(b"bird ")
    assert (await raw.answer()).status == 101
    raw.send(b"late")
    assert await raw.reader.readexactly(15) == b"EARLY BIRD LATE"
    assert not upgrading.front.connections
    await upgrading.stop()


@pytest.mark.parametrize("with_handler", [True, False])
async def test_a_declined_upgrade_continues_as_http(fronted: RunningFront, with_handler: bool) -> None:
    async def upgrade(hijack: Hijack, request: Request) -> bool:
        return False

    upgrading = await RunningFront.listen(fronted.recorder, upgrade if with_handler else None)
    raw = await upgrading.connect()
    raw.send(UPGRADE + GET)
    assert (await raw.answer()).body == b"GET /exec  "
    assert (await raw.answer()).body == b"GET /  "
    await upgrading.stop()


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_leaves_no_socket_of_a_connection_that_just_arrived(turns: int) -> None:
    """Its end sees that: a socket that is lost stays open until garbage is collected."""
    front = await RunningFront.listen(RecordingHandler())
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            await front.stop()
            gc.collect()
        assert [str(each.message) for each in caught] == []
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
