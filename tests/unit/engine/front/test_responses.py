"""What goes out: heads, bodies in one piece and in many, streams, and how a connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from herder.engine.front import limits
from herder.engine.front.hijack import Hijack
from herder.engine.wire import Request, Response
from tests.unit.engine.front.sockets import PATIENCE, Fronted

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def answers_with(fronted: Fronted, response: Response) -> None:
    async def handler(request: Request) -> Response:
        return response

    fronted.told.handler = handler


async def until(happened: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.005)


async def test_a_head_answer_has_the_length_but_no_body(fronted: Fronted) -> None:
    raw = await fronted.connect()
    raw.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await raw.answer(bodiless=True)).headers["content-length"] == "8"
    raw.send(GET)
    assert (await raw.answer()).body == b"GET /  "


async def test_bodies_of_many_pieces_arrive_whole_at_a_slow_reader(fronted: Fronted) -> None:
    pieces = [bytes([65 + number]) * (1 << 20) for number in range(8)]
    answers_with(fronted, Response(200, {}, pieces))
    raw = await fronted.connect()
    raw.send(GET)
    await asyncio.sleep(0.05)
    assert (await raw.answer()).body == b"".join(pieces)


async def test_headers_that_would_split_the_answer_are_left_out(fronted: Fronted) -> None:
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
async def test_a_connection_stays_open_where_the_client_wants_it(
    fronted: Fronted, request_: bytes, stays: bool
) -> None:
    raw = await fronted.connect()
    raw.send(request_)
    assert ("connection" in (await raw.answer()).headers) is not stays
    raw.send(GET)
    if stays:
        assert (await raw.answer()).status == 200
    else:
        assert await raw.rest() == b""


async def test_streams_are_chunked_and_end(fronted: Fronted) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one\n"
        yield b""
        yield b"twelve bytes"

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    assert (await raw.answer()).headers["transfer-encoding"] == "chunked"
    assert await raw.reader.readexactly(31) == b"4\r\none\n\r\nc\r\ntwelve bytes\r\n0\r\n\r\n"


async def test_streams_to_old_clients_end_with_the_connection(fronted: Fronted) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one"

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(b"GET / HTTP/1.0\r\n\r\n")
    assert "transfer-encoding" not in (await raw.answer()).headers
    assert await raw.rest() == b"one"


async def test_a_stream_that_fails_is_cut_off_without_its_end(fronted: Fronted) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("broken")

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await raw.reader.readuntil(b"0\r\n\r\n")


async def test_the_handler_is_cancelled_when_its_client_goes_away(fronted: Fronted) -> None:
    seen: list[str] = []

    async def handler(request: Request) -> Response:
        seen.append("started")
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            seen.append("ended")
        return Response()

    fronted.told.handler = handler
    raw = await fronted.connect()
    raw.send(GET)
    await until(lambda: seen == ["started"])
    raw.reset()
    await until(lambda: seen == ["started", "ended"])


async def test_a_stream_is_closed_when_its_client_goes_away(fronted: Fronted) -> None:
    closed = asyncio.Event()

    async def lines() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.sleep(PATIENCE)
        finally:
            closed.set()

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    raw.close()
    async with asyncio.timeout(PATIENCE):
        await closed.wait()


async def test_a_stream_waits_for_a_client_that_does_not_read(fronted: Fronted) -> None:
    made = 0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * (1 << 20)

    answers_with(fronted, Response(200, {}, stream=lines()))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.answer()
    await asyncio.sleep(0.2)
    assert made < 64  # what the sockets' buffers hold, and no more
    raw.close()


async def test_a_client_that_only_stopped_sending_gets_its_answer(fronted: Fronted) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return Response(200, {}, b"late")

    fronted.told.handler = handler
    raw = await fronted.connect()
    raw.send(GET)
    raw.writer.write_eof()
    assert (await raw.answer()).body == b"late"
    assert await raw.rest() == b""


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHos", b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", b"HTTP/1.1 408 Request Timeout"),
    ],
)
async def test_clients_that_never_finish_asking_are_cut_off(fronted: Fronted, sent: bytes, answer: bytes) -> None:
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


async def test_clients_that_never_read_are_cut_off(fronted: Fronted) -> None:
    answers_with(fronted, Response(200, {}, [b"x" * (1 << 20)] * 64))
    raw = await fronted.connect()
    raw.send(GET)
    await raw.reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.2)
    for connection in list(fronted.front.connections):
        connection.check(asyncio.get_running_loop().time() + limits.STALL_SECONDS + 5)
    await until(lambda: not fronted.front.connections)


# --- stopping -----------------------------------------------------------------------------------------------------


async def test_a_stop_lets_requests_finish_and_closes_idle_connections(fronted: Fronted) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.1)
        return Response(200, {}, b"done")

    idle = await fronted.connect()
    fronted.told.handler = handler
    busy = await fronted.connect()
    busy.send(GET)
    await until(lambda: fronted.told.requests)
    stopped = asyncio.ensure_future(fronted.front.stop())
    answer = await busy.answer()
    assert (answer.body, answer.headers["connection"]) == (b"done", "close")
    assert await idle.rest() == b""
    async with asyncio.timeout(PATIENCE):
        await stopped
    with pytest.raises(OSError):  # noqa: PT011
        await fronted.connect()


# --- upgrades -----------------------------------------------------------------------------------------------------

UPGRADE = b"GET /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


class Shouting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


async def test_an_upgraded_connection_is_the_handlers_with_all_that_was_sent(fronted: Fronted) -> None:
    async def upgrade(hijack: Hijack, request: Request) -> bool:
        await asyncio.sleep(0.02)
        hijack.take(Shouting(), b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        return True

    upgrading = await Fronted.listen(fronted.told, upgrade)
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
async def test_where_nobody_upgrades_http_goes_on(fronted: Fronted, with_handler: bool) -> None:
    async def upgrade(hijack: Hijack, request: Request) -> bool:
        return False

    upgrading = await Fronted.listen(fronted.told, upgrade if with_handler else None)
    raw = await upgrading.connect()
    raw.send(UPGRADE + GET)
    assert (await raw.answer()).body == b"GET /exec  "
    assert (await raw.answer()).body == b"GET /  "
    await upgrading.stop()
