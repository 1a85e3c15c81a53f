"""Encoding of messages: golden bytes, limits, and arbitrary input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herder.tunnel import frames
from herder.tunnel.frames import Frame, Kind, Malformed

GOLDEN = [
    ("02 04 04 b0 ea 01 74 63 70 2f 31 30 2e 31 3a 34", 1, 2, Kind.CONNECT, frames.connect("tcp", "10.1:4")),
    ("04 04 02 b0 ea 01 68 69", 2, 2, Kind.DATA, b"hi"),
    ("06 04 06 45 4f 46", 3, 2, Kind.ERROR, frames.error(frames.END)),
    ("08 04 0c", 4, 2, Kind.PAUSE, b""),
    ("08 04 0e", 4, 2, Kind.RESUME, b""),
    ("0a 00 10 02 00 00 00 00 00 00 00", 5, 0, Kind.SYNC, frames.connections([2])),
    ("0c 00 08 63 2d 6d 2f 37", 6, 0, Kind.ADD_CLIENT, frames.client("c-m", 7)),
    ("0e 00 0a 63 2d 6d 2f 37", 7, 0, Kind.REMOVE_CLIENT, frames.client("c-m", 7)),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "number", "connection", "kind", "payload"), GOLDEN)
def test_frames_match_golden_bytes(wire: str, number: int, connection: int, kind: Kind, payload: bytes) -> None:
    message = frames.head(number, connection, kind) + payload
    assert message == bytes.fromhex(wire)
    assert frames.decode(message) == Frame(kind, connection, memoryview(payload))


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (64, "8001"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ff" * 9 + "01"),
    ],
)
def test_varints_match_go(value: int, wire: str) -> None:
    assert frames.varint(value).hex() == wire
    assert frames.decode(frames.varint(value) * 3 + b"\x00").connection == value


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "varint is truncated"),
        (b"\x02", "varint is truncated"),
        (b"\x02\x04\x80", "varint is truncated"),
        (b"\x02\x04\x02", "varint is truncated"),  # DATA without its deadline
        (b"\xff" * 11, "varint is truncated or too large"),
        (b"\xff" * 9 + b"\x02\x04\x06", "varint is truncated or too large"),  # more than 64 bits
    ],
)
def test_malformed_messages_are_rejected(message: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        frames.decode(message)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"tcp:10.0.0.1:1", "address without a protocol"),
        (b"tcp/" + b"a" * 263, "address exceeds 266 bytes"),
        (b"tcp/\xff", "not UTF-8"),
    ],
)
def test_an_invalid_address_is_rejected_and_not_truncated(payload: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        frames.read_connect(memoryview(payload))


def test_an_address_is_split_at_the_first_slash() -> None:
    assert frames.read_connect(memoryview(b"unix//run/a.sock")) == ("unix", "/run/a.sock")
    assert frames.read_connect(memoryview(b"c-m::tcp/[::1]:443")) == ("c-m::tcp", "[::1]:443")
    longest = b"tcp/" + b"a" * 262
    assert frames.read_connect(memoryview(longest))[1] == "a" * 262


@pytest.mark.parametrize(("proto", "address"), [("", "a:1"), ("tcp", ""), ("t/cp", "a:1"), ("tcp", "a" * 263)])
def test_an_invalid_dial_is_rejected_before_it_is_sent(proto: str, address: str) -> None:
    with pytest.raises(ValueError, match="not a protocol and an address"):
        frames.connect(proto, address)


def test_error_messages_are_limited_to_100_bytes() -> None:
    assert frames.read_error(memoryview(b"x" * 1000)) == "x" * 100
    assert frames.error("x" * 1000) == b"x" * 100
    assert frames.read_error(memoryview("é".encode() * 100)) == "é" * 50


@pytest.mark.parametrize("payload", [b"no-session", b"key/", b"key/x", b"key/" + b"1" * 20, b"k" * 99 + b"/1"])
def test_an_announced_client_needs_a_key_and_a_session(payload: bytes) -> None:
    with pytest.raises(Malformed, match="key/session"):
        frames.read_client(memoryview(payload))


def test_a_truncated_connection_list_is_rejected() -> None:
    assert list(frames.read_connections(memoryview(frames.connections([7, 2])))) == [2, 7]
    with pytest.raises(Malformed, match="truncated"):
        frames.read_connections(memoryview(bytes(9)))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_do_not_crash_the_decoder(data: bytes) -> None:
    try:
        frame = frames.decode(data)
        for read in (frames.read_connect, frames.read_error, frames.read_client, frames.read_connections):
            try:
                read(frame.payload)
            except Malformed:
                continue
    except Malformed:
        pass


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.sampled_from(Kind), st.binary(max_size=64))
def test_encoded_frames_are_decoded_unchanged(number: int, connection: int, kind: Kind, payload: bytes) -> None:
    read = frames.decode(frames.head(number, connection, kind) + payload)
    assert (read.kind, read.connection, bytes(read.payload)) == (kind, connection, payload)


def test_control_characters_are_removed_from_errors() -> None:
    assert frames.read_error(memoryview(b"\x1b[2J\r\nno route\x00\xff")) == " [2J  no route \ufffd"
