"""Request bodies: none is read before its sender is authenticated and authorized, and their total size is limited."""

from __future__ import annotations

import asyncio
import gzip
import json

from tests.support.attacks.attacker import RawConnection, Target, request

MIB = 1 << 20
PATH = "/api/v1/namespaces/alice/configmaps"


def head(user: str, length: int = 3 * MIB, *headers: str) -> bytes:
    return request("POST", PATH, user, None, f"Content-Length: {length}", "Content-Type: application/json", *headers)


async def send_almost_all(target: Target, start: bytes) -> RawConnection:
    """Send a body except its last byte."""
    raw = await target.connect()
    raw.send(start)
    await raw.flood(b" " * 65536, 3 * MIB - 65536)
    return raw


async def test_bodies_of_anonymous_clients_are_not_buffered(target: Target) -> None:
    async with target.under_attack(grows_mib=48):  # mostly TLS buffers
        await asyncio.gather(*(send_almost_all(target, head("")) for _ in range(60)))
        assert (await target.report())["usage"]["largest_connection_bytes"] <= 256 << 10


async def test_anonymous_clients_are_rejected_before_the_body_is_sent(target: Target) -> None:
    for authorization, status in [((), 403), (("Authorization: Bearer wrong",), 401)]:
        raw = await target.connect()
        raw.send(head("", 3 * MIB, *authorization, "Expect: 100-continue"))
        assert (await raw.head())[0] == status


async def test_unauthorized_users_are_rejected_before_the_body_is_sent(target: Target) -> None:
    raw = await target.connect()
    raw.send(head("bob", 3 * MIB, "Expect: 100-continue"))
    status, headers = await raw.head()
    assert (status, headers["connection"]) == (403, "close")


async def test_a_rejected_client_that_sends_its_body_gets_the_response(target: Target) -> None:
    raw = await target.connect()
    raw.send(head("bob") + b" " * (3 * MIB))
    assert (await raw.answer())[0] == 403


async def test_an_authorized_user_gets_100_continue(target: Target) -> None:
    body = json.dumps({"metadata": {"name": "continued"}, "data": {"a": "x" * 300_000}}).encode()
    raw = await target.connect()
    raw.send(head("alice", len(body), "Expect: 100-continue"))
    assert (await raw.head())[0] == 100
    raw.send(body)
    assert (await raw.answer())[0] == 201


async def test_bodies_of_one_user_are_read_within_the_users_budget(target: Target) -> None:
    async with target.under_attack(grows_mib=72):
        attackers = [await target.connect() for _ in range(60)]
        for raw in attackers:
            raw.send(head("alice"))
        await asyncio.gather(*(raw.flood(b" " * 65536, 3 * MIB - 65536) for raw in attackers))
        usage = (await target.report())["usage"]
        assert usage["body_bytes"]["largest_user"] <= 16 * MIB
        assert usage["body_bytes"]["total"] <= 64 * MIB
        body = json.dumps({"metadata": {"generateName": "b-"}, "data": {"a": "x" * 300_000}}).encode()
        raw = await target.connect()
        raw.send(request("POST", PATH.replace("alice", "bob"), "bob", body))
        assert (await raw.answer())[0] == 201  # another user's body is read at once


async def test_pipelined_bodies_are_read_one_at_a_time(target: Target) -> None:
    async with target.under_attack(grows_mib=16):
        raw = await target.connect()
        raw.send(request("GET", f"{PATH}?watch=true&resourceVersion=0", "alice"))
        assert (await raw.head())[0] == 200
        await raw.flood(head("alice") + b" " * (3 * MIB), 200 * MIB)
        assert (await target.report())["usage"]["largest_connection_bytes"] <= 512 << 10


async def test_compressed_bodies_of_anonymous_clients_are_not_inflated(target: Target) -> None:
    bomb = gzip.compress(b" " * (3 * MIB - 1))
    async with target.under_attack(grows_mib=16):
        for _ in range(50):
            raw = await target.connect()
            start = request("POST", PATH, "", None, f"Content-Length: {len(bomb)}", "Content-Encoding: gzip")
            raw.send((start + bomb) * 10)
            assert (await raw.answer())[0] == 403


async def test_compressed_bombs_of_users_are_inflated_up_to_the_limit(target: Target) -> None:
    """Each has 128 KiB, and would take 128 MiB."""
    bomb = gzip.compress(b" " * (128 * MIB), compresslevel=1)
    assert len(bomb) < MIB

    async def explode() -> int:
        raw = await target.connect()
        start = request("POST", PATH, "alice", None, f"Content-Length: {len(bomb)}", "Content-Encoding: gzip")
        raw.send(start + bomb)
        return (await raw.answer())[0]

    async with target.under_attack(grows_mib=64):
        assert set(await asyncio.gather(*(explode() for _ in range(40)))) == {413}
    await target.until(lambda report: not report["usage"]["body_bytes"]["total"])


async def test_bodies_of_many_users_are_read_within_the_budget_of_the_process(target: Target) -> None:
    async with target.under_attack(grows_mib=96):
        attackers = [await target.connect() for _ in range(40)]
        for number, raw in enumerate(attackers):
            user = ("alice", "bob")[number % 2]
            raw.send(head(user).replace(b"/alice/", f"/{user}/".encode()))
        await asyncio.gather(*(raw.flood(b" " * 65536, 3 * MIB - 65536) for raw in attackers))
        usage = (await target.report())["usage"]
        assert usage["body_bytes"]["largest_user"] * 2 >= usage["body_bytes"]["total"] > 16 * MIB
    target.hang_up()
    await target.until(
        lambda report: (
            not report["usage"]["connections"]
            and (report["usage"]["held_bytes"], report["usage"]["body_bytes"]["total"]) == (0, 0)
        )
    )
