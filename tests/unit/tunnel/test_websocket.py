"""WebSocket handshake and framing: fragmented and masked messages, and protocol violations."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.tunnel import websocket
from herder.tunnel.errors import Rejected, SessionError
from herder.tunnel.session import Opcode, Outgoing
from herder.tunnel.websocket import FrameReader, FrameWriter, frame_head

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # the sample from RFC 6455
VALID = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
}
LIMIT = 1 << 20


class Inbox:
    def __init__(self, *, masked: bool = False, limit: int = LIMIT) -> None:
        self.messages: list[tuple[int, bytes]] = []
        self._reader = FrameReader(
            lambda opcode, payload: self.messages.append((opcode, bytes(payload))), masked=masked, limit=limit
        )

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        self._reader.feed(memoryview(data))
        return self.messages


def framed(payload: bytes, *, masks: bool = False, opcode: int = Opcode.BINARY) -> bytes:
    return b"".join(FrameWriter(masks=masks).frame(Outgoing(opcode, payload[:3], payload[3:])))


class TestHandshake:
    def test_the_accept_key_matches_the_rfc(self) -> None:
        assert websocket.accept_key(KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert websocket.upgrade_problem("GET", VALID) == ""
        assert websocket.switching_protocols(VALID).startswith(b"HTTP/1.1 101 Switching Protocols\r\n")

    def test_extensions_and_subprotocols_are_declined(self) -> None:
        offers = {"sec-websocket-extensions": "permessage-deflate", "sec-websocket-protocol": "v4.channel.k8s.io"}
        assert websocket.switching_protocols(VALID | offers) == websocket.switching_protocols(VALID)

    @pytest.mark.parametrize(
        ("method", "changes", "problem"),
        [
            ("POST", {}, "use GET"),
            ("GET", {"connection": "keep-alive"}, "'Connection: Upgrade'"),
            ("GET", {"upgrade": "h2c"}, "'Upgrade: websocket'"),
            ("GET", {"sec-websocket-version": "8"}, "must be 13"),
            ("GET", {"sec-websocket-key": "short"}, "16 bytes in base64"),
            ("GET", {"sec-websocket-key": ""}, "16 bytes in base64"),
        ],
    )
    def test_an_invalid_upgrade_request_names_the_problem(
        self, method: str, changes: dict[str, str], problem: str
    ) -> None:
        assert problem in websocket.upgrade_problem(method, VALID | changes)

    def test_flow_control_per_direction_is_negotiated(self) -> None:
        headers = VALID | {"x-tunnel-flow": "per-direction"}
        assert b"X-Tunnel-Flow: per-direction" in websocket.switching_protocols(headers)
        assert b"X-Tunnel-Flow" not in websocket.switching_protocols(VALID)

    def test_header_values_with_line_breaks_are_rejected(self) -> None:
        with pytest.raises(ValueError, match="'X-API-Tunnel-Token' contains a line break"):
            websocket.request("host", "/", {"X-API-Tunnel-Token": "a\r\nX-Evil: 1"}, KEY)

    @pytest.mark.parametrize(
        ("status", "headers", "problem"),
        [
            (401, {}, "401 failed authentication"),
            (101, {}, "does not match"),
            (101, {"sec-websocket-accept": websocket.accept_key(KEY), "sec-websocket-extensions": "x"}, "extension"),
        ],
    )
    def test_an_invalid_upgrade_response_is_rejected(self, status: int, headers: dict[str, str], problem: str) -> None:
        with pytest.raises(Rejected, match=problem):
            websocket.check_response(status, headers, b"failed authentication", KEY)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 4095, 4096, 65535, 65536, 300_000])
def test_messages_of_every_length_are_read_as_written(size: int, masks: bool) -> None:
    payload = bytes(range(251)) * (size // 251 + 1)
    wire = framed(payload[:size], masks=masks) * 2
    assert Inbox(masked=masks).feed(wire) == [(Opcode.BINARY, payload[:size])] * 2


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), min_size=1), st.booleans())
def test_frames_may_be_split_anywhere(payloads: list[bytes], cuts: list[int], masks: bool) -> None:
    wire = b"".join(framed(payload, masks=masks) for payload in payloads)
    inbox, at, step_index = Inbox(masked=masks), 0, 0
    while at < len(wire):
        step = cuts[step_index % len(cuts)]
        inbox.feed(wire[at : at + step])
        at, step_index = at + step, step_index + 1
    assert inbox.messages == [(Opcode.BINARY, payload) for payload in payloads]


def test_a_fragmented_message_is_reassembled_around_pings() -> None:
    first = b"\x02\x03abc"
    ping = framed(b"p", opcode=Opcode.PING)
    last = b"\x80\x02de"
    assert Inbox().feed(first + ping + last) == [(Opcode.PING, b"p"), (Opcode.BINARY, b"abcde")]


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        (b"\x81\x02hi", "wrong websocket message type"),
        (b"\xc2\x02hi", "reserved bits"),
        (b"\x82\x82\0\0\0\0hi", "masked"),
        (b"\x80\x02hi", "unexpected continuation"),
        (b"\x02\x02hi\x82\x02hi", "unexpected continuation"),
        (b"\x83\x02hi", "unexpected continuation"),
        (b"\x09\x00", "control frame"),
        (b"\x89\x7e\x00\x7e", "control frame"),
        (b"\x8b\x00", "control frame"),
        (frame_head(Opcode.BINARY, LIMIT + 1, b""), "exceeds 1048576 bytes"),
        (b"\x02" + frame_head(Opcode.BINARY, LIMIT, b"")[1:] + bytes(LIMIT) + b"\x80\x01", "exceeds 1048576 bytes"),
        (struct.pack("!BBQ", 0x82, 127, 1 << 63), "exceeds 1048576 bytes"),
    ],
)
def test_protocol_violations_end_the_session(wire: bytes, problem: str) -> None:
    with pytest.raises(SessionError, match=problem):
        Inbox().feed(wire)


def test_a_claimed_length_allocates_no_memory() -> None:
    inbox = Inbox(limit=1 << 40)
    inbox.feed(frame_head(Opcode.BINARY, 1 << 39, b"") + b"a little")
    assert inbox.messages == []
    assert len(inbox._reader._frame) == len(b"a little")


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_arbitrary_bytes_do_not_crash_the_reader(chunks: list[bytes], masked: bool) -> None:
    inbox = Inbox(masked=masked, limit=4096)
    try:
        for chunk in chunks:
            inbox.feed(chunk)
    except SessionError:
        pass
