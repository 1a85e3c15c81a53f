"""HTTP/1.1 parsing of the proxy, on channels that deliver any pieces or invalid data."""

from __future__ import annotations

from random import Random

import pytest

from herder.gateway.proxy.rewrite import Outgoing
from herder.gateway.proxy.upstream.channel import Buffer
from herder.gateway.proxy.upstream.exchange import Exchange

RESPONSE = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nWarning: 299 - a\r\nWarning: 299 - b\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\nExpires: never\r\n\r\n"
)
HEADERS = [
    ("content-type", "application/json"),
    ("warning", "299 - a"),
    ("warning", "299 - b"),
    ("transfer-encoding", "chunked"),
]


class Pieces:
    """A channel that delivers these pieces, and then its end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.sent = b""

    async def receive(self) -> Buffer:
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: Buffer) -> None:
        self.sent += data

    def close(self) -> None: ...


async def exchange_with(pieces: list[bytes]) -> tuple[Exchange, bytes]:
    exchange = Exchange(Pieces([piece for piece in pieces if piece]))
    await exchange.ask(Outgoing("GET", "/", [("host", "x")]))
    body = b""
    while (piece := await exchange.more()) is not None:
        body += piece
    return exchange, body


@pytest.mark.parametrize("at", range(len(RESPONSE)))
async def test_a_response_is_parsed_wherever_it_is_split(at: int) -> None:
    exchange, body = await exchange_with([RESPONSE[:at], RESPONSE[at:]])
    assert (exchange.status, exchange.headers, body, exchange.reusable) == (200, HEADERS, b"hello world", True)


async def test_data_after_a_protocol_switch_belongs_to_the_new_protocol() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    exchange = Exchange(Pieces([switch + b"\x00HTTP/1.1 200 OK\r\n\r\n"]))
    await exchange.ask(Outgoing("GET", "/", [("host", "x")]))
    assert (exchange.status, exchange.upgraded_data) == (101, b"\x00HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize("seed", range(20))
async def test_a_malformed_response_is_a_connection_error(seed: int) -> None:
    """Changed, dropped and repeated bytes lead to a response or a connection error, and never to a hang."""
    random = Random(seed)
    for _ in range(100):
        wire = bytearray(RESPONSE)
        for _ in range(random.randrange(1, 6)):
            at = random.randrange(len(wire))
            match random.randrange(3):
                case 0:
                    wire[at] = random.randrange(256)
                case 1:
                    del wire[at : at + random.randrange(1, 20)]
                case 2:
                    wire[at:at] = wire[at : at + random.randrange(1, 40)]
        try:
            await exchange_with([bytes(wire)])
        except ConnectionError:
            continue
