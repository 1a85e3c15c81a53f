"""Bodies: none is read before its sender is known and allowed, and all of them together have a limit."""

from __future__ import annotations

import asyncio
import gzip
import json

from tests.support.attack import Raw, Target, request

MIB = 1 << 20
PATH = "/api/v1/namespaces/alice/configmaps"


def head(user: str, length: int = 3 * MIB, *headers: str) -> bytes:
    return request("POST", PATH, user, None, f"Content-Length: {length}", "Content-Type: application/json", *headers)


async def send_almost_all(target: Target, start: bytes) -> Raw:
    """All of a body but its last byte."""
    raw = await target.connect()
    raw.send(start)
    await raw.pour(b" " * 65536, 3 * MIB - 65536)
    return raw


async def test_bodies_of_strangers_are_not_held(target: Target) -> None:
    async with target.under_attack(grows_mib=48):  # most of it buffers of TLS
        await asyncio.gather(*(send_almost_all(target, head("")) for _ in range(60)))
        assert (await target.report())["usage"]["largest_connection_bytes"] <= 256 << 10


async def test_a_stranger_is_refused_before_the_body_is_sent(target: Target) -> None:
    for authorization, status in [((), 403), (("Authorization: Bearer wrong",), 401)]:
        raw = await target.connect()
        raw.send(head("", 3 * MIB, *authorization, "Expect: 100-continue"))
        assert (await raw.head())[0] == status


async def test_a_user_without_the_right_is_refused_before_the_body_is_sent(target: Target) -> None:
    raw = await target.connect()
    raw.send(head("bob", 3 * MIB, "Expect: 100-continue"))
    status, headers = await raw.head()
    assert (status, headers["connection"]) == (403, "close")


async def test_a_refused_client_that_sends_its_body_anyway_sees_the_answer(target: Target) -> None:
    raw = await target.connect()
    raw.send(head("bob") + b" " * (3 * MIB))
    assert (await raw.answer())[0] == 403


async def test_a_user_with_the_right_is_asked_for_the_body(target: Target) -> None:
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
        await asyncio.gather(*(raw.pour(b" " * 65536, 3 * MIB - 65536) for raw in attackers))
        usage = (await target.report())["usage"]
        assert usage["body_bytes"]["largest_user"] <= 16 * MIB
        assert usage["body_bytes"]["total"] <= 64 * MIB
        body = json.dumps({"metadata": {"generateName": "b-"}, "data": {"a": "x" * 300_000}}).encode()
        raw = await target.connect()
        raw.send(request("POST", PATH.replace("alice", "bob"), "bob", body))
        assert (await raw.answer())[0] == 201  # another user's body is read at once


async def test_pipelined_bodies_wait_for_their_turn(target: Target) -> None:
    async with target.under_attack(grows_mib=16):
        raw = await target.connect()
        raw.send(request("GET", f"{PATH}?watch=true&resourceVersion=0", "alice"))
        assert (await raw.head())[0] == 200
        await raw.pour(head("alice") + b" " * (3 * MIB), 200 * MIB)
        assert (await target.report())["usage"]["largest_connection_bytes"] <= 512 << 10


async def test_a_compressed_body_is_not_inflated_before_its_sender_is_known(target: Target) -> None:
    bomb = gzip.compress(b" " * (3 * MIB - 1))
    async with target.under_attack(grows_mib=16):
        for _ in range(50):
            raw = await target.connect()
            start = request("POST", PATH, "", None, f"Content-Length: {len(bomb)}", "Content-Encoding: gzip")
            raw.send((start + bomb) * 10)
            assert (await raw.answer())[0] == 403
