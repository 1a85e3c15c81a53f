"""An informer keeps its cache correct across broken connections, expired revisions and servers of other versions."""

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
from tests.unit.engine.runtime.envtest import CONFIG_MAP, Wire, environment, new_object, until


class RunningInformer:
    """A running informer, with the changes and health messages that it reported."""

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

    def events(self) -> list[tuple[str, str]]:
        def kind(change: Change) -> str:
            return "added" if change.old is None else "removed" if change.new is None else "changed"

        return [(kind(change), change.key.name) for change in self.changes if change.key.name != "kube-root-ca.crt"]


@asynccontextmanager
async def running_informer(
    client: Client, *, kind: Kind = CONFIG_MAP, namespace: str = "default", sync: bool = True
) -> AsyncIterator[RunningInformer]:
    informer_run = RunningInformer(client, kind=kind, namespace=namespace)
    task = asyncio.ensure_future(informer_run.informer.run())
    try:
        if sync:
            await asyncio.wait_for(informer_run.informer.synced.wait(), 60)
        yield informer_run
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- on both engines, over HTTP -----------------------------------------------------------------------------------


@pytest.fixture
async def wire(engine: Engine) -> AsyncIterator[Wire]:
    transport = HttpTransport(engine.connection)
    yield Wire(transport)
    await transport.close()


async def test_one_streaming_list_fills_the_cache_and_delivers_changes(api: Api, wire: Wire) -> None:
    await api.create("configmaps", {"metadata": {"name": "a"}})
    async with running_informer(Client(wire), namespace=api.namespace) as seen:
        assert seen.names() == ["a"]
        await api.create("configmaps", {"metadata": {"name": "b"}})
        await api.patch(api.at("configmaps", "a"), {"data": {"x": "1"}})
        await api.delete(api.at("configmaps", "b"))
        await until(
            lambda: seen.names() == ["a"] and seen.data("a") == {"x": "1"} and ("removed", "b") in seen.events()
        )
    assert wire.reads("configmaps") == ["stream"]


async def test_a_broken_watch_is_resumed_without_a_relist(api: Api, wire: Wire) -> None:
    await api.create("configmaps", {"metadata": {"name": "a"}})
    async with running_informer(Client(wire), namespace=api.namespace) as seen:
        for number in range(3):
            wire.cut()
            await api.create("configmaps", {"metadata": {"name": f"b{number}"}})
            await until(lambda number=number: f"b{number}" in seen.names())  # type: ignore[misc]
    assert wire.reads("configmaps") == ["stream", "watch", "watch", "watch"]
    assert seen.events() == [("added", name) for name in ("a", "b0", "b1", "b2")], "each exactly once"
    assert seen.informer.relists == 1


@pytest.fixture
async def widgets(api: Api) -> Kind:
    """A kind defined during the test: a real server cannot replay revisions from before its definition."""
    group = f"{unique('informer')}.example.com"
    await define(api, definition(group, "widgets", "Widget", {"type": "object"}))
    return Kind(group, "v1", "Widget", "widgets")


async def test_an_expired_watch_is_relisted_and_reported_as_differences(
    api: Api, wire: Wire, engine: Engine, widgets: Kind
) -> None:
    resource = f"{widgets.group}/v1/widgets"
    for name in ("stays", "goes", "changes"):
        await api.create(resource, custom(widgets.group, "Widget", name))
    async with running_informer(Client(wire), kind=widgets, namespace=api.namespace) as seen:
        seen.changes.clear()
        wire.down = True
        wire.cut()
        await api.delete(api.at(resource, "goes"))
        await api.patch(api.at(resource, "changes"), {"metadata": {"labels": {"x": "1"}}})
        await api.create(resource, custom(widgets.group, "Widget", "comes"))
        wire.intercept = lambda request: _too_old(request, engine)
        wire.down = False
        await until(lambda: seen.names() == ["changes", "comes", "stays"])
    assert sorted(seen.events()) == [("added", "comes"), ("changed", "changes"), ("removed", "goes")]
    assert seen.informer.relists == wire.reads("widgets").count("stream") == 2


def _too_old(request: Request, engine: Engine) -> Request | Response:
    """Resume a watch at a compacted revision. The embedded server compacts after a day, so this is simulated."""
    if "sendInitialEvents" in request.query or request.query.get("watch") != "true":
        return request
    if engine.is_real:
        items = [(name, "1" if name == "resourceVersion" else value) for name, value in request.query.items]
        return replace(request, query=Query(items))
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
    return Response(200, body=json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")


# --- against a server in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [BadRequest, Invalid])
async def test_a_server_without_streaming_lists_is_listed_in_pages(refusal: type[StatusError]) -> None:
    def intercept(request: Request) -> Request | Response:
        if "sendInitialEvents" in request.query:
            status = refusal("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch").to_status()
            return Response(refusal.code, body=json.dumps(status).encode())
        return request

    async with environment() as env:
        env.wire.intercept = intercept
        await env.create("a")
        async with running_informer(env.client) as seen:
            await env.create("b")
            await until(lambda: seen.names() == ["a", "b"])
            env.wire.intercept = lambda request: request
            assert env.wire.reads("configmaps") == ["stream", "list", "watch"]


async def test_an_object_deleted_during_the_streaming_list_is_not_cached() -> None:
    def line(kind: str, obj: Object) -> bytes:
        return json.dumps({"type": kind, "object": obj}).encode() + b"\n"

    def at(name: str, revision: int) -> Object:
        return new_object(name, metadata={"resourceVersion": str(revision), "uid": name})

    end = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
    stream = [line("ADDED", at("a", 1)), line("ADDED", at("b", 2)), line("DELETED", at("a", 3)),
              line("BOOKMARK", {"metadata": end})]  # fmt: skip

    async with environment() as env:
        env.wire.intercept = lambda request: (
            Response(200, body=b"".join(stream)) if "sendInitialEvents" in request.query else request
        )
        async with running_informer(env.client) as seen:
            assert seen.names() == ["b"]


@pytest.mark.parametrize(
    "junk",
    [b"<html>bad gateway</html>\n", b'{"type":"ADDED"}\n', b"[]\n", b'{"type":"ADDED","object":{}}\n', b"\xff\n"],
)
async def test_no_response_of_a_server_stops_an_informer(junk: bytes) -> None:
    async with environment() as env:
        await env.create("a")
        env.wire.intercept = lambda _request: Response(200, body=junk)
        async with running_informer(env.client, sync=False) as seen:
            await until(lambda: seen.informer.failure)
            env.wire.intercept = lambda request: request
            await until(lambda: seen.names() == ["a"])
            assert seen.health[-1] == ""


@pytest.mark.parametrize(
    ("kind", "down", "level"),
    [
        (Kind("example.com", "v1", "Widget", "widgets"), False, "INFO"),  # its definition may still be created
        (CONFIG_MAP, True, "WARNING"),
    ],
)
async def test_only_real_failures_are_logged_as_warnings(
    kind: Kind, down: bool, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        async with environment() as env:
            env.wire.down = down
            async with running_informer(env.client, kind=kind, sync=False) as seen:
                await until(lambda: seen.informer.failure)
                await until(lambda: levels_of_failures(caplog))
    assert levels_of_failures(caplog) == [level], "logged once, after the second failed attempt"


def levels_of_failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.getMessage() == "informer failed"]


def test_an_unavailable_server_is_retried_with_backoff_even_after_a_sync() -> None:
    async def work() -> int:
        async with environment() as env, running_informer(env.client):
            env.wire.down = True
            env.wire.cut()
            await asyncio.sleep(300)
            before = len(env.wire.requests)
            await asyncio.sleep(300)
            return len(env.wire.requests) - before

    assert virtual.run(work()) <= 300 / (RETRY_LIMIT / 2) + 1


def test_a_server_that_closes_every_watch_at_once_is_retried_with_backoff() -> None:
    async def work() -> int:
        async with environment() as env, running_informer(env.client):
            env.wire.intercept = lambda _request: Response(200, body=b"")
            env.wire.cut()
            await asyncio.sleep(300)
            return len(env.wire.requests)

    assert virtual.run(work()) < 30


def test_a_server_that_closes_the_watch_after_each_event_is_retried_with_backoff() -> None:
    """Retries without a delay would starve the other clusters."""
    event = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n'

    def intercept(_request: Request) -> Response:
        if len(attempts) > 1000:
            raise OSError("enough")
        attempts.append(None)
        return Response(200, body=event)

    attempts: list[None] = []

    async def work() -> None:
        async with environment() as env, running_informer(env.client):
            env.wire.intercept = intercept
            env.wire.cut()
            await asyncio.sleep(300)

    virtual.run(work())
    assert len(attempts) < 400


NOT_SERVED = Response(404, body=b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}')


def test_an_informer_of_a_kind_that_is_no_longer_served_is_not_synced() -> None:
    async def work() -> tuple[bool, bool]:
        async with environment() as env, running_informer(env.client) as seen:
            env.wire.intercept = lambda _request: NOT_SERVED
            env.wire.cut()
            await asyncio.sleep(5)
            counted = seen.informer.synced.is_set()
            env.wire.intercept = lambda request: request
            await asyncio.sleep(2 * RETRY_LIMIT)
            return counted, seen.informer.synced.is_set()

    assert virtual.run(work()) == (False, True)


def test_retry_now_skips_the_backoff() -> None:
    async def work() -> float:
        clock = asyncio.get_running_loop().time
        async with environment() as env, running_informer(env.client) as seen:
            env.wire.intercept = lambda _request: NOT_SERVED
            env.wire.cut()
            await asyncio.sleep(300)
            env.wire.intercept = lambda request: request
            began = clock()
            seen.informer.retry_now()
            await seen.informer.synced.wait()
            return clock() - began

    assert virtual.run(work()) < 1.0, "of virtual time"


def test_an_informer_without_events_is_healthy_once_its_watch_is_accepted() -> None:
    async def work() -> tuple[list[str], str]:
        async with environment() as env, running_informer(env.client) as seen:
            env.wire.down = True
            env.wire.cut()
            await asyncio.sleep(5)
            env.wire.down = False
            await asyncio.sleep(30)
            return seen.health, seen.informer.failure

    health, failure = virtual.run(work())
    assert health[0] == "the line was cut"
    assert health[-1] == failure == ""


def test_watches_resume_from_bookmarks_without_a_relist() -> None:
    async def work() -> tuple[list[str], int]:
        async with environment() as env, running_informer(env.client) as seen:
            for _ in range(24):
                await env.outside.create(
                    CONFIG_MAP.resource,
                    {"metadata": {"generateName": "x-", "namespace": "kube-system"}},
                    namespace="kube-system",
                )
                await asyncio.sleep(300)
            await env.server.deps.store.compact(env.server.deps.store.revision - 2)
            await asyncio.sleep(3600)
            return env.wire.reads("configmaps"), seen.informer.relists

    reads, relists = virtual.run(work())
    assert relists == 1
    assert reads.count("watch") > 10
