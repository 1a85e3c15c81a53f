"""Clients that request a lot of data and do not read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.support.attacks.attacker import RawConnection, Target, request

MIB = 1 << 20
PATH = "/api/v1/namespaces/alice/configmaps"


@pytest.fixture(scope="module")
async def large_state(server_under_attack: Target) -> AsyncIterator[None]:
    """30 MB of objects, most of them small."""
    target = server_under_attack
    for number in range(28):
        data = {"a": "x" * (950 << 10)}
        obj = {"metadata": {"name": f"large-{number}", "labels": {"state": "large"}}, "data": data}
        assert (await target.ask("POST", PATH, "alice", obj))[0] == 201
    for number in range(100):
        data = {"a": "x" * (20 << 10)}
        obj = {"metadata": {"name": f"small-{number}", "labels": {"state": "large"}}, "data": data}
        assert (await target.ask("POST", PATH, "alice", obj))[0] == 201
    yield
    assert (await target.ask("DELETE", f"{PATH}?labelSelector=state%3Dlarge", "alice"))[0] == 200


async def stalled(target: Target, path: str, *headers: str) -> RawConnection:
    """Send a request and read only the head of its response."""
    raw = await target.connect()
    raw.send(request("GET", path, "alice", None, *headers))
    assert (await raw.head())[0] == 200
    raw.stop_reading()
    return raw


@pytest.mark.parametrize("query", ["watch=true", "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"])
async def test_watchers_that_do_not_read_initial_events_use_little_memory(
    target: Target, large_state: None, query: str
) -> None:
    async with target.under_attack(grows_mib=24):
        for _ in range(20):
            await stalled(target, f"{PATH}?{query}")
        await asyncio.sleep(0.3)
        usage = (await target.report())["usage"]
        assert usage["largest_connection_bytes"] <= 1 * MIB


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ],
    ids=["objects", "table", "metadata"],
)
async def test_stalled_readers_of_large_lists_use_little_memory(target: Target, large_state: None, accept: str) -> None:
    async with target.under_attack(grows_mib=24):
        for _ in range(20):
            await stalled(target, PATH, f"Accept: {accept}")
        await asyncio.sleep(0.3)


async def test_compressed_lists_are_generated_as_they_are_read(target: Target, large_state: None) -> None:
    async with target.under_attack(grows_mib=24):
        for _ in range(10):
            await stalled(target, PATH, "Accept-Encoding: gzip")


async def test_a_reader_gets_the_whole_list(target: Target, large_state: None) -> None:
    async with target.under_attack(grows_mib=100):
        status, _, body = await target.ask("GET", f"{PATH}?labelSelector=state%3Dlarge", "alice")
    assert status == 200
    assert len(json.loads(body)["items"]) == 128


async def test_watches_share_the_memory_of_a_large_object(target: Target) -> None:
    revision = json.loads((await target.ask("GET", f"{PATH}?limit=1", "alice"))[2])["metadata"]["resourceVersion"]
    watchers = []
    async with target.under_attack(grows_mib=100):
        for _ in range(100):
            watchers.append(await stalled(target, f"{PATH}?watch=true&resourceVersion={revision}"))
    idle = await target.report()
    async with target.under_attack(grows_mib=60):
        for number in range(4):
            data = {"a": "x" * (1_400 << 10)}
            obj = {"metadata": {"name": f"shared-{number}"}, "data": data}
            assert (await target.ask("POST", PATH, "alice", obj))[0] in (201, 413, 422)
            patch = {"metadata": {"name": f"medium-{number}"}, "data": {"a": "x" * (900 << 10)}}
            assert (await target.ask("POST", PATH, "alice", patch))[0] == 201
        assert (await target.report())["usage"]["largest_connection_bytes"] <= 1 * MIB
    assert idle["usage"]["connections"] >= 100
    target.hang_up()
    # Memory is freed with the connection, not by the next garbage collection.
    await target.until(
        lambda report: not report["usage"]["long_running"]["total"] and report["live"]["Connection"] <= 1
    )


async def test_a_stalled_watch_ends_after_too_many_unread_bytes(target: Target) -> None:
    name = {"metadata": {"name": "busy"}, "data": {"a": "x"}}
    status, _, body = await target.ask("POST", PATH, "alice", name)
    assert status == 201
    revision = json.loads(body)["metadata"]["resourceVersion"]
    raw = await stalled(target, f"{PATH}?watch=true&resourceVersion={revision}")
    async with target.under_attack(grows_mib=120):
        for number in range(25):
            changed = {"metadata": {"name": "busy"}, "data": {"a": str(number % 10) * (900 << 10)}}
            assert (await target.ask("PUT", f"{PATH}/busy", "alice", changed))[0] == 200
        assert (await target.report())["usage"]["long_running"]["total"] >= 1
    raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
    content = b"".join([piece async for piece in raw.chunks()])
    assert json.loads(content.strip().splitlines()[-1])["object"]["code"] == 410


async def test_earlier_states_that_slow_readers_keep_are_limited(target: Target, large_state: None) -> None:
    """Each list keeps the objects that were changed after it began. The newest one may be larger than the limit."""
    await stalled(target, PATH)
    state = (await target.report())["usage"]["retained_bytes"]["largest_user"]
    for number in range(4):
        added = {"metadata": {"name": f"next-{number}"}, "data": {"a": str(number) * (900 << 10)}}
        assert (await target.ask("POST", PATH, "alice", added))[0] == 201
        await stalled(target, PATH)
    report = await target.report()
    limit = report["usage"]["limits"]["retained_bytes_per_user"]
    assert report["usage"]["retained_bytes"]["largest_user"] > 4 * state > limit
    await target.until(lambda report: report["usage"]["retained_bytes"]["largest_user"] <= 2 * state)
    assert (await target.report())["usage"]["connections"] >= 1  # the newest list goes on
    target.hang_up()
    await target.until(lambda report: not report["usage"]["retained_bytes"]["total"])


async def test_a_watch_keeps_its_initial_state_until_it_is_sent(target: Target, large_state: None) -> None:
    raw = await target.connect()
    raw.send(request("GET", f"{PATH}?watch=true", "alice"))
    assert (await raw.head())[0] == 200
    content = b""
    async for piece in raw.chunks():
        content += piece
        if content.count(b"\n") >= 128:
            break
    assert (await target.report())["usage"]["retained_bytes"]["total"] == 0
