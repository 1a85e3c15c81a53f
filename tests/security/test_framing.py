"""Clients without credentials that never complete a request."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.support.attacks.attacker import RawConnection, Target, request

MIB = 1 << 20
CHUNKED = request("POST", "/api/v1/namespaces/alice/configmaps", "", None, "Transfer-Encoding: chunked")


async def test_endless_trailers_are_rejected(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"0\r\nX: ")
        await raw.flood(b"a" * 65536, 64 * MIB)


async def test_many_trailers_are_rejected(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"0\r\n")
        await raw.flood(b"a:b\r\n" * 13_000, 16 * MIB)


async def test_endless_chunk_extensions_are_rejected(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(CHUNKED + b"5;")
        await raw.flood(b"a" * 65536, 64 * MIB)
    await target.until(lambda report: not report["usage"]["connections"])


async def test_tiny_chunks_cost_no_more_memory_than_their_bytes(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=16):
        raw.send(request("POST", "/api/v1/namespaces/alice/configmaps", "alice", None, "Transfer-Encoding: chunked"))
        await raw.flood(b"1\r\na\r\n" * 10_000, 12 * MIB)


@pytest.mark.parametrize("connections", [1, 20])
async def test_data_after_a_pending_upgrade_is_not_buffered(target: Target, connections: int) -> None:
    upgrade = request("GET", "/silent/exec", "", None, "Connection: Upgrade", "Upgrade: SPDY/3.1")

    async def attack() -> None:
        raw = await target.connect()
        raw.send(upgrade)
        await raw.flood(b"j" * 65536, 64 * MIB // connections)

    async with target.under_attack(grows_mib=8 + connections):
        await asyncio.gather(*(attack() for _ in range(connections)))
        usage = (await target.report())["usage"]
        assert usage["largest_connection_bytes"] <= 256 << 10


@pytest.mark.parametrize("line", [b"a:\r\n", b"\r\n"], ids=["one header again and again", "empty lines"])
async def test_endless_headers_are_rejected(target: Target, line: bytes) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        if line.strip():
            raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        await raw.flood(line * (65536 // len(line)), 16 * MIB)
    await target.until(lambda report: not report["usage"]["connections"])


async def test_repeated_headers_are_joined_once(target: Target) -> None:
    raw = await target.connect()
    async with target.under_attack(grows_mib=8):
        raw.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\na: " + b"a" * 250_000 + b"\r\n" + b"a:\r\n" * 900 + b"\r\n")
        assert (await raw.answer())[0] in (200, 431)


async def test_pipelined_requests_are_read_no_faster_than_answered(target: Target) -> None:
    raw = await target.connect()
    raw.stop_reading()
    async with target.under_attack(grows_mib=16):
        await raw.flood(b"GET /x HTTP/1.1\r\nHost:x\r\n\r\n" * 5_000, 8 * MIB)
        usage = (await target.report())["usage"]
        assert usage["largest_connection_bytes"] <= 512 << 10


async def test_other_users_are_served_during_attacks(target: Target) -> None:
    """All attacks above at the same time, with small requests of a user in between."""
    starts = [
        CHUNKED + b"0\r\nX: ",
        CHUNKED + b"5;",
        request("GET", "/silent", "", None, "Upgrade: x", "Connection: Upgrade"),
    ]

    async def attack(raw: RawConnection, start: bytes) -> None:
        raw.send(start)
        await raw.flood(b"a" * 65536, 8 * MIB)

    attacks = [attack(await target.connect(), start) for start in itertools.chain(*([starts] * 3))]
    async with target.under_attack(grows_mib=16):
        running = asyncio.gather(*attacks)
        for _ in range(20):
            assert (await target.ask("GET", "/api/v1/namespaces/alice/configmaps?limit=1", "alice"))[0] == 200
        await running
