"""Watches over a socket: events are pushed, or sent by a task if the client is slow, and never reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from herder.engine.front.http import HttpFront
from herder.engine.wire import Request, Response
from tests.unit.engine.apiserver.api import ADMIN, Api, config_map, start
from tests.unit.engine.front.sockets import TIMEOUT, Raw, RecordingHandler, RunningFront

PATH = "/api/v1/namespaces/default/configmaps"


class Served:
    def __init__(self, fronted: RunningFront, api: Api) -> None:
        self.fronted = fronted
        self.api = api

    async def watch(self, query: str = "") -> Raw:
        raw = await self.fronted.connect()
        raw.send(f"GET {PATH}?watch=true{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await raw.answer()).status == 200
        return raw

    async def create(self, name: str, **data: str) -> None:
        assert (await self.api.post(PATH, config_map(name, **data))).status == 201


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    server, clock = await start()
    handler = RecordingHandler()

    async def as_admin(request: Request) -> Response:
        request.user = ADMIN
        return await server.handle(request)

    handler.handler = as_admin
    fronted = await RunningFront.listen(handler)
    yield Served(fronted, Api(server, clock))
    await server.stop()
    await fronted.stop()


async def chunk(raw: Raw) -> bytes:
    size = int(await raw.line(), 16)
    async with asyncio.timeout(TIMEOUT):
        content = await raw.reader.readexactly(size + 2)
    return content[:-2]


async def events(raw: Raw, count: int) -> list[tuple[str, str]]:
    seen: list[Any] = []
    held = b""
    while len(seen) < count:  # a line may span several chunks
        *lines, held = (held + await chunk(raw)).split(b"\n")
        seen += [msgspec.json.decode(line) for line in lines]
    return [(event["type"], event["object"]["metadata"]["name"]) for event in seen]


async def test_every_watcher_receives_every_event_in_order(served: Served) -> None:
    revision = (await served.api.get(PATH)).body["metadata"]["resourceVersion"]
    watchers = [await served.watch(f"&resourceVersion={revision}") for _ in range(5)]
    names = [f"m-{number:03}" for number in range(100)]
    await asyncio.gather(*(served.create(name) for name in names))
    seen = [await events(raw, 100) for raw in watchers]
    assert sorted(seen[0]) == [("ADDED", name) for name in names]
    assert all(other == seen[0] for other in seen)


async def test_selectors_apply_to_pushed_events(served: Served) -> None:
    revision = (await served.api.get(PATH)).body["metadata"]["resourceVersion"]
    raw = await served.watch(f"&resourceVersion={revision}&labelSelector=a%3Db")
    await served.create("other")
    await served.create("mine")
    label = {"metadata": {"labels": {"a": "b"}}}
    await served.api.patch(f"{PATH}/mine", label)
    await served.api.patch(f"{PATH}/mine", {"metadata": {"labels": {"a": "c"}}})
    assert await events(raw, 2) == [("ADDED", "mine"), ("DELETED", "mine")]


async def test_a_watcher_that_falls_behind_misses_nothing(served: Served) -> None:
    revision = (await served.api.get(PATH)).body["metadata"]["resourceVersion"]
    raw = await served.watch(f"&resourceVersion={revision}")
    names = [f"large-{number:03}" for number in range(60)]
    for name in names:
        await served.create(name, payload="x" * 200_000)
    assert await events(raw, 60) == [("ADDED", name) for name in names]
    await served.create("last")
    assert await events(raw, 1) == [("ADDED", "last")]


async def test_a_stop_ends_watches_with_the_final_chunk(served: Served) -> None:
    raw = await served.watch()
    await served.create("seen")
    while b'"seen"' not in await chunk(raw):
        pass
    front: HttpFront = served.fronted.front
    await asyncio.gather(front.stop(), served.api.server.stop())
    assert await raw.rest() == b"0\r\n\r\n"
