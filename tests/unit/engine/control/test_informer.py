"""An informer keeps its cache true over broken connections, forgotten history and servers of other ages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import RETRY_LIMIT, Informer
from herder.engine.meta.errors import BadRequest, Invalid, StatusError
from herder.engine.meta.kinds import Kind, Object
from herder.engine.wire import Query, Request, Response
from herder.sim import loop as virtual
from tests.conformance.objects import custom, define, definition
from tests.support.api import Api
from tests.support.engines import Engine, unique
from tests.unit.engine.runtime.world import CONFIG_MAP, Wire, thing, until, world


class Following:
    """An informer at work, and what it told."""

    def __init__(self, client: Client, *, kind: Kind = CONFIG_MAP, namespace: str = "default") -> None:
        self.changes: list[Change] = []
        self.health: list[str] = []
        self.cache = Cache(kind)
        self.informer = Informer(
            client, self.cache, self.changes.append, namespace=namespace, on_health=self.health.append
        )
        self.namespace = namespace

    def names(self) -> list[str]:
        return [key.name for key in sorted(self.cache.keys()) if key.name != "kube-root-ca.crt"]

    def data(self, name: str) -> object:
        return (self.cache.get(Key(self.namespace, name)) or {}).get("data")

    def told(self) -> list[tuple[str, str]]:
        def kind(change: Change) -> str:
            return "added" if change.old is None else "removed" if change.new is None else "changed"

        return [(kind(change), change.key.name) for change in self.changes if change.key.name != "kube-root-ca.crt"]


@asynccontextmanager
async def following(
    client: Client, *, kind: Kind = CONFIG_MAP, namespace: str = "default", sync: bool = True
) -> AsyncIterator[Following]:
    made = Following(client, kind=kind, namespace=namespace)
    task = asyncio.ensure_future(made.informer.run())
    try:
        if sync:
            await asyncio.wait_for(made.informer.synced.wait(), 60)
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- on both engines, over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
async def wire(engine: Engine) -> AsyncIterator[Wire]:
    transport = HttpTransport(engine.connection)
    yield Wire(transport)
    await transport.close()


async def test_it_fills_by_one_stream_and_follows_changes(api: Api, wire: Wire) -> None:
    await api.create("configmaps", {"metadata": {"name": "a"}})
    async with following(Client(wire), namespace=api.namespace) as seen:
        assert seen.names() == ["a"]
        await api.create("configmaps", {"metadata": {"name": "b"}})
        await api.patch(api.at("configmaps", "a"), {"data": {"x": "1"}})
        await api.delete(api.at("configmaps", "b"))
        await until(lambda: seen.names() == ["a"] and seen.data("a") == {"x": "1"} and ("removed", "b") in seen.told())
    assert wire.reads("configmaps") == ["stream"]


async def test_after_a_broken_connection_it_resumes_and_lists_nothing_again(api: Api, wire: Wire) -> None:
    await api.create("configmaps", {"metadata": {"name": "a"}})
    async with following(Client(wire), namespace=api.namespace) as seen:
        for number in range(3):
            wire.cut()
            await api.create("configmaps", {"metadata": {"name": f"b{number}"}})
            await until(lambda number=number: f"b{number}" in seen.names())  # type: ignore[misc]
    assert wire.reads("configmaps") == ["stream", "watch", "watch", "watch"]
    assert seen.told() == [("added", name) for name in ("a", "b0", "b1", "b2")], "each exactly once"
    assert seen.informer.relists == 1


@pytest.fixture
async def widgets(api: Api) -> Kind:
    """A kind that came late: what was before its time, a real server cannot replay."""
    group = f"{unique('informer')}.example.com"
    await define(api, definition(group, "widgets", "Widget", {"type": "object"}))
    return Kind(group, "v1", "Widget", "widgets")


async def test_what_the_server_has_forgotten_is_listed_afresh_and_told_as_differences(
    api: Api, wire: Wire, engine: Engine, widgets: Kind
) -> None:
    resource = f"{widgets.group}/v1/widgets"
    for name in ("stays", "goes", "changes"):
        await api.create(resource, custom(widgets.group, "Widget", name))
    async with following(Client(wire), kind=widgets, namespace=api.namespace) as seen:
        seen.changes.clear()
        wire.down = True
        wire.cut()
        await api.delete(api.at(resource, "goes"))
        await api.patch(api.at(resource, "changes"), {"metadata": {"labels": {"x": "1"}}})
        await api.create(resource, custom(widgets.group, "Widget", "comes"))
        wire.bend = lambda request: _too_old(request, engine)
        wire.down = False
        await until(lambda: seen.names() == ["changes", "comes", "stays"])
    assert sorted(seen.told()) == [("added", "comes"), ("changed", "changes"), ("removed", "goes")]
    assert seen.informer.relists == wire.reads("widgets").count("stream") == 2


def _too_old(request: Request, engine: Engine) -> Request | Response:
    """A resumed watch asks for a moment long forgotten. The embedded server forgets after a day only: it is played."""
    if "sendInitialEvents" in request.query or request.query.get("watch") != "true":
        return request
    if engine.is_real:
        items = [(name, "1" if name == "resourceVersion" else value) for name, value in request.query.items]
        return replace(request, query=Query(items))
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
    return Response(200, body=json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")


# --- against a server in this process ------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [BadRequest, Invalid])
async def test_a_server_without_streaming_lists_is_listed_in_pages(refusal: type[StatusError]) -> None:
    def bend(request: Request) -> Request | Response:
        if "sendInitialEvents" in request.query:
            status = refusal("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch").to_status()
            return Response(refusal.code, body=json.dumps(status).encode())
        return request

    async with world() as here:
        here.wire.bend = bend
        await here.create("a")
        async with following(here.client) as seen:
            await here.create("b")
            await until(lambda: seen.names() == ["a", "b"])
            here.wire.bend = lambda request: request
            assert here.wire.reads("configmaps") == ["stream", "list", "watch"]


async def test_what_is_deleted_while_the_stream_still_lists_is_not_there() -> None:
    def line(kind: str, obj: Object) -> bytes:
        return json.dumps({"type": kind, "object": obj}).encode() + b"\n"

    def at(name: str, revision: int) -> Object:
        return thing(name, metadata={"resourceVersion": str(revision), "uid": name})

    end = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
    stream = [line("ADDED", at("a", 1)), line("ADDED", at("b", 2)), line("DELETED", at("a", 3)),
              line("BOOKMARK", {"metadata": end})]  # fmt: skip

    async with world() as here:
        here.wire.bend = lambda request: (
            Response(200, body=b"".join(stream)) if "sendInitialEvents" in request.query else request
        )
        async with following(here.client) as seen:
            assert seen.names() == ["b"]


@pytest.mark.parametrize(
    "junk",
    [b"<html>bad gateway</html>\n", b'{"type":"ADDED"}\n', b"[]\n", b'{"type":"ADDED","object":{}}\n', b"\xff\n"],
)
async def test_nothing_that_a_server_sends_ends_an_informer(junk: bytes) -> None:
    async with world() as here:
        await here.create("a")
        here.wire.bend = lambda _request: Response(200, body=junk)
        async with following(here.client, sync=False) as seen:
            await until(lambda: seen.informer.failure)
            here.wire.bend = lambda request: request
            await until(lambda: seen.names() == ["a"])
            assert seen.health[-1] == ""


@pytest.mark.parametrize(
    ("kind", "down", "level"),
    [
        (Kind("example.com", "v1", "Widget", "widgets"), False, "INFO"),  # its definition may come
        (CONFIG_MAP, True, "WARNING"),
    ],
)
async def test_only_what_is_wrong_is_a_warning(
    kind: Kind, down: bool, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        async with world() as here:
            here.wire.down = down
            async with following(here.client, kind=kind, sync=False) as seen:
                await until(lambda: seen.informer.failure)
    told = [record.levelname for record in caplog.records if record.getMessage() == "informer failed"]
    assert told == [level], "and it is said once"


def test_a_server_that_stays_away_is_asked_ever_more_slowly_also_after_it_was_there() -> None:
    async def work() -> int:
        async with world() as here, following(here.client):
            here.wire.down = True
            here.wire.cut()
            await asyncio.sleep(300)
            before = len(here.wire.requests)
            await asyncio.sleep(300)
            return len(here.wire.requests) - before

    assert virtual.run(work()) <= 300 / (RETRY_LIMIT / 2) + 1


def test_a_server_that_hangs_up_at_once_is_not_asked_in_a_loop() -> None:
    async def work() -> int:
        async with world() as here, following(here.client):
            here.wire.bend = lambda _request: Response(200, body=b"")
            here.wire.cut()
            await asyncio.sleep(300)
            return len(here.wire.requests)

    assert virtual.run(work()) < 30


def test_a_server_that_hangs_up_after_each_event_is_not_asked_in_a_loop() -> None:
    """One request after another, as fast as they are answered, would leave other clusters no time."""
    event = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'

    def bend(_request: Request) -> Response:
        if len(asked) > 1000:
            raise OSError("enough")
        asked.append(None)
        return Response(200, body=event)

    asked: list[None] = []

    async def work() -> None:
        async with world() as here, following(here.client):
            here.wire.bend = bend
            here.wire.cut()
            await asyncio.sleep(300)

    virtual.run(work())
    assert len(asked) < 400


NOT_SERVED = Response(404, body=b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}')


def test_what_was_read_of_a_kind_does_not_count_when_it_is_no_longer_served() -> None:
    async def work() -> tuple[bool, bool]:
        async with world() as here, following(here.client) as seen:
            here.wire.bend = lambda _request: NOT_SERVED
            here.wire.cut()
            await asyncio.sleep(5)
            counted = seen.informer.synced.is_set()
            here.wire.bend = lambda request: request
            await asyncio.sleep(2 * RETRY_LIMIT)
            return counted, seen.informer.synced.is_set()

    assert virtual.run(work()) == (False, True)


def test_who_knows_that_a_kind_is_served_again_need_not_wait_for_the_next_try() -> None:
    async def work() -> float:
        clock = asyncio.get_running_loop().time
        async with world() as here, following(here.client) as seen:
            here.wire.bend = lambda _request: NOT_SERVED
            here.wire.cut()
            await asyncio.sleep(300)
            here.wire.bend = lambda request: request
            began = clock()
            seen.informer.retry_now()
            await seen.informer.synced.wait()
            return clock() - began

    assert virtual.run(work()) < 1.0, "of virtual time"


def test_a_quiet_kind_counts_as_well_again_once_its_watch_is_accepted() -> None:
    async def work() -> tuple[list[str], str]:
        async with world() as here, following(here.client) as seen:
            here.wire.down = True
            here.wire.cut()
            await asyncio.sleep(5)
            here.wire.down = False
            await asyncio.sleep(30)
            return seen.health, seen.informer.failure

    health, failure = virtual.run(work())
    assert health[0] == "the line was cut"
    assert health[-1] == failure == ""


def test_watches_are_renewed_without_a_list_and_bookmarks_carry_them_over_what_others_did() -> None:
    async def work() -> tuple[list[str], int]:
        async with world() as here, following(here.client) as seen:
            for _ in range(24):
                await here.outside.create(
                    CONFIG_MAP.resource,
                    {"metadata": {"generateName": "x-", "namespace": "kube-system"}},
                    namespace="kube-system",
                )
                await asyncio.sleep(300)
            await here.server.deps.store.compact(here.server.deps.store.revision - 2)
            await asyncio.sleep(3600)
            return here.wire.reads("configmaps"), seen.informer.relists

    reads, relists = virtual.run(work())
    assert relists == 1
    assert reads.count("watch") > 10
