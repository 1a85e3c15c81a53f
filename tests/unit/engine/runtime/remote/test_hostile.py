"""A malicious API server of a downstream cluster costs the manager no more than a bounded share of time and memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from herder.engine.control.cache import Key
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.runtime.decision import Apply, Connect, Decision, Observe, Parallel
from herder.engine.runtime.executor import DOWNSTREAM_SECONDS, DecisionExecutor
from herder.engine.runtime.remote import observation
from herder.engine.runtime.view import Observed, Unreachable, View
from herder.engine.runtime.writer import Writer
from herder.engine.wire import Request, Response
from tests.unit.engine.runtime.envtest import CONFIG_MAP, START, new_object, now
from tests.unit.engine.runtime.remote.hostile_servers import (
    LISTED,
    RECORD_BYTES,
    Hostile,
    answer_with,
    event,
    initial_events_end,
    large_node,
)
from tests.unit.engine.runtime.remote.remote_cluster import NODES, WATCHED, RemoteCluster, RemoteWire, run


def as_stream(wire: Hostile, _request: Request) -> Response:
    return wire.stream_of(event("ADDED", large_node(number)) for number in range(10_000))


def after_the_list(wire: Hostile, _request: Request) -> Response:
    def documents() -> Iterator[bytes]:
        yield initial_events_end()
        yield from (event("ADDED", large_node(number)) for number in range(10_000))

    return wire.stream_of(documents())


def as_pages(wire: Hostile, request: Request) -> Response:
    if request.is_streaming:
        return Response(400, body=b'{"kind": "Status", "code": 400, "reason": "BadRequest"}')
    first = int(request.query.get("continue") or 0)
    body = json.dumps(
        {
            "kind": "NodeList",
            "metadata": {"resourceVersion": "1", "continue": str(first + 10)},
            "items": [large_node(number) for number in range(first, first + 10)],
        }
    ).encode()
    return wire.stream_of(iter([body, b""]))


@pytest.mark.parametrize(
    ("answer", "subscription"),
    [(as_stream, NODES), (as_pages, NODES), (as_pages, LISTED)],
    ids=["in a stream", "in pages", "in pages on demand"],
)
def test_records_over_the_byte_limit_make_the_cluster_unreachable(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Hostile, Request], Response], subscription: Observe
) -> None:
    monkeypatch.setattr(observation, "MAX_BYTES", 8 * RECORD_BYTES)

    async def work(cluster: RemoteCluster) -> None:
        answer_with(cluster, answer)
        cluster.ask(subscription)
        await asyncio.sleep(5)
        seen = cluster.remotes.observed(subscription)
        assert isinstance(seen, Unreachable)
        assert f"more than {8 * RECORD_BYTES} bytes" in seen.reason
        [wire] = cluster.wires
        assert wire.opened
        assert wire.sent < len(wire.opened) * 20 * RECORD_BYTES, "the rest is not read"

    run(work)


def test_an_endless_probe_response_is_closed() -> None:
    """Through a tunnel, each open response would hold a connection and megabytes of the shared budget."""

    class Endless(Hostile):
        async def send(self, request: Request) -> Response:
            return self.stream_of(iter([b"{"])) if request.path == "/" else await super().send(request)

    async def work(cluster: RemoteCluster) -> None:
        def prepare(wire: RemoteWire) -> None:
            wire.__class__ = type("Answering", (Endless,), {"answer": as_stream, "opened": []})

        cluster.prepare = prepare
        cluster.ask(Connect("far"))
        await asyncio.sleep(60)
        [wire] = cluster.wires
        assert len(wire.opened) > 3
        assert all(stream_of.is_closed for stream_of in wire.opened)

    run(work)


def test_watch_events_over_the_byte_limit_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "MAX_BYTES", 8 * RECORD_BYTES)

    async def work(cluster: RemoteCluster) -> None:
        answer_with(cluster, after_the_list)
        cluster.ask(NODES)
        await asyncio.sleep(5)
        seen = cluster.remotes.observed(NODES)
        assert isinstance(seen, Observed)
        assert 0 < len(seen.objects) < 8
        [wire] = cluster.wires
        assert wire.sent < len(wire.opened) * 20 * RECORD_BYTES, "the rest is not read"
        open_streams = [each for each in wire.opened if not each.is_closed]
        assert len(open_streams) <= 1, "what is not read to its end holds no connection"

    run(work)


@pytest.mark.parametrize("field", ["name", "namespace", "uid", "resourceVersion"])
@pytest.mark.parametrize("value", ["1" * 5000, ["1"]], ids=["long", "no text"])
def test_an_object_with_invalid_identity_metadata_is_rejected(field: str, value: Any) -> None:
    """This includes deleted objects, whose uid is kept as a tombstone."""

    async def work(cluster: RemoteCluster) -> None:
        keep = observation.projector(NODES)
        for obj in (large_node(1), large_node(1, **{field: value})):
            if obj["metadata"].get(field) != value:
                assert keep(obj)["metadata"]["name"] == "n1"
                continue
            with pytest.raises(ServiceUnavailable, match=f"metadata.{field} "):
                keep(obj)
        answer_with(cluster, lambda wire, _request: wire.stream_of(iter([initial_events_end(), event("DELETED", obj)])))
        cluster.ask(NODES)
        await asyncio.sleep(1)
        [wire] = cluster.wires
        assert len(wire.opened) > 1, "the watch was given up and begun anew"

    run(work)


def test_an_endless_write_response_times_out() -> None:
    """A write waits for its response, and a worker waits for the write."""

    class Endless(RemoteWire):
        async def send(self, request: Request) -> Response:
            if request.method == "GET":
                return await super().send(request)
            return Response(200, {"content-type": "application/json"}, stream=self._drip())

        async def _drip(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(1)

    async def work(cluster: RemoteCluster) -> None:
        def prepare(wire: RemoteWire) -> None:
            wire.__class__ = Endless

        cluster.prepare = prepare
        cluster.ask(Connect("far"), WATCHED)
        await asyncio.sleep(1)
        config_map: Any = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
        async with asyncio.timeout(3600):  # on virtual time
            with pytest.raises(ServiceUnavailable, match="response timed out"):
                await cluster.remotes.client("far").apply(WATCHED.kind.resource, config_map)

    run(work)


def test_projection_failures_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def answer(wire: Hostile, _request: Request) -> Response:
        unreadable = [{**large_node(number), "spec": "odd"} for number in range(50)]
        return wire.stream_of(iter([*(event("ADDED", each) for each in unreadable), initial_events_end()]))

    async def work(cluster: RemoteCluster) -> None:
        answer_with(cluster, answer)
        cluster.ask(NODES)
        await asyncio.sleep(1)
        assert len(cluster.names(NODES)) == 50
        assert caplog.messages.count("projection failed") == 1

    with caplog.at_level("INFO"):
        run(work)


@pytest.mark.parametrize("parallel", [False, True])
def test_slow_writes_occupy_a_worker_for_a_bounded_time(parallel: bool) -> None:
    """Controllers delete objects there that they did not create, so the cluster controls the number of writes."""

    class Slow(RemoteWire):
        async def send(self, request: Request) -> Response:
            if request.method != "GET":
                await asyncio.sleep(9)
            return await super().send(request)

    def prepare(wire: RemoteWire) -> None:
        wire.__class__ = Slow

    async def work(cluster: RemoteCluster) -> None:
        cluster.prepare = prepare
        cluster.ask(Connect("far"), WATCHED)
        await asyncio.sleep(1)
        executor = DecisionExecutor(
            Writer(cluster.there.client, caches={}, on_change=lambda *_change: None, remote=cluster.remotes.client)
        )
        writes = tuple(Apply(CONFIG_MAP, new_object(f"a{number}"), "wanted", target="far") for number in range(1000))
        decision = Decision((Parallel(writes),) if parallel else writes)
        start = asyncio.get_running_loop().time()
        with pytest.raises(ServiceUnavailable, match="far"):
            await executor.execute(decision, VIEW, manager="tester", now=now())
        assert asyncio.get_running_loop().time() - start <= DOWNSTREAM_SECONDS + 10, "on virtual time"
        assert (await cluster.there.outside.list_all(CONFIG_MAP.resource)).items, "what was written stays"

    run(work)


VIEW = View(
    key=Key("default", "x"),
    now=START,
    caches={},
    all_caches={},
    results={},
    observe=lambda _subscription: None,
    setting=str,
    seed=b"seed",
)
