"""Clients without credentials that never come to the end of a request."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.support.attack import Raw, Target, request

MIB = 1 << 20
CHUNKED = request("POST", "/api/v1/namespaces/alice/configmaps", "", None, "Transfer-Encoding: chunked")


async def test_endless_trailers_are_refused(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"0\r\nX: ")
        await raw.pour(b"a" * 65536, 64 * MIB)


async def test_many_trailers_are_refused(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"0\r\n")
        await raw.pour(b"a:b\r\n" * 13_000, 16 * MIB)


async def test_an_endless_chunk_extension_is_refused(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"5;")
        await raw.pour(b"a" * 65536, 64 * MIB)
    await target.until(lambda report: not report["usage"]["connections"])


async def test_tiny_chunks_cost_no_more_memory_than_their_bytes(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=16):
        raw.send(request("POST", "/api/v1/namespaces/alice/configmaps", "alice", None, "Transfer-Encoding: chunked"))
        await raw.pour(b"1\r\na\r\n" * 10_000, 12 * MIB)


@pytest.mark.parametrize("connections", [1, 20])
async def test_junk_after_an_undecided_upgrade_is_not_held(target: Target, connections: int) -> None:
    upgrade = request("GET", "/silent/exec", "", None, "Connection: Upgrade", "Upgrade: SPDY/3.1")

    async def attack() -> None:
        raw = await target.connect()
        raw.send(upgrade)
        await raw.pour(b"j" * 65536, 64 * MIB // connections)

    async with target.under_attack(grows_mib=8 + connections):
        await asyncio.gather(*(attack() for _ in range(connections)))
        usage = (await target.report())["usage"]
        assert usage["largest_connection_bytes"] <= 256 << 10


@pytest.mark.parametrize("line", [b"a:\r\n", b"\r\n"], ids=["one header again and again", "empty lines"])
async def test_heads_without_an_end_are_refused(target: Target, line: bytes) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        if line.strip():
            raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        await raw.pour(line * (65536 // len(line)), 16 * MIB)
    await target.until(lambda report: not report["usage"]["connections"])


async def test_one_long_header_repeated_is_joined_once(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\na: " + b"a" * 250_000 + b"\r\n" + b"a:\r\n" * 900 + b"\r\n")
        assert (await raw.answer())[0] in (200, 431)


async def test_thousands_of_pipelined_requests_are_read_no_faster_than_they_are_answered(target: Target) -> None:
    raw = await target.connect()
    raw.stop_reading()
    async with target.under_attack(grows_mib=16):
        await raw.pour(b"GET /x HTTP/1.1\r\nHost:x\r\n\r\n" * 5_000, 8 * MIB)
        usage = (await target.report())["usage"]
        assert usage["largest_connection_bytes"] <= 512 << 10


async def test_another_user_is_answered_meanwhile(target: Target) -> None:
    """Every attack above at the same time, and small requests of a user between them."""
    starts = [
        CHUNKED + b"0\r\nX: ",
        CHUNKED + b"5;",
        request("GET", "/silent", "", None, "Upgrade: x", "Connection: Upgrade"),
    ]

    async def attack(raw: Raw, start: bytes) -> None:
        raw.send(start)
        await raw.pour(b"a" * 65536, 8 * MIB)

    attacks = [attack(await target.connect(), start) for start in itertools.chain(*([starts] * 3))]
    async with target.under_attack(grows_mib=16):
        running = asyncio.gather(*attacks)
        for _ in range(20):
            assert (await target.ask("GET", "/api/v1/namespaces/alice/configmaps?limit=1", "alice"))[0] == 200
        await running
