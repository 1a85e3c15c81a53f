"""Transports to API servers that answer reads of Nodes themselves, and without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from herder.engine.control.informer import INITIAL_EVENTS_END
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from tests.unit.engine.runtime.remote.remote_cluster import NODES, RemoteCluster, RemoteWire

RECORD_BYTES = 8 << 10
LISTED = replace(NODES, freshness=30.0)


class Hostile(RemoteWire):
    """A transport that answers reads of Nodes itself; `sent` counts the bytes that the reader consumed."""

    answer: Callable[[Hostile, Request], Response]
    opened: list[Stream]
    sent = 0

    async def send(self, request: Request) -> Response:
        return self.answer(request) if request.path.endswith("/nodes") else await super().send(request)

    def stream_of(self, documents: Iterator[bytes]) -> Response:
        self.opened.append(Stream(self, documents))
        return Response(200, {"content-type": "application/json"}, stream=self.opened[-1])


class Stream:
    """A response stream like a tunnel's: not a generator, and closed explicitly."""

    is_closed = False

    def __init__(self, wire: Hostile, documents: Iterator[bytes]) -> None:
        self._wire, self._documents = wire, documents

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        document = next(self._documents, None)
        if document is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nothing comes any more")
        if not document:
            raise StopAsyncIteration
        self._wire.sent += len(document)
        return document

    async def aclose(self) -> None:
        self.is_closed = True


def answer_with(cluster: RemoteCluster, answer: Callable[[Hostile, Request], Response]) -> None:
    def prepare(wire: RemoteWire) -> None:
        wire.__class__ = type("Answering", (Hostile,), {"answer": answer, "opened": []})

    cluster.prepare = prepare


def large_node(number: int, **meta: Any) -> Object:
    name = {"name": f"n{number}", "uid": str(number), "resourceVersion": str(number + 1), **meta}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": name,
        "spec": {"providerID": f"{number} ".ljust(RECORD_BYTES, "x")},
    }


def event(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def initial_events_end() -> bytes:
    meta = {"name": "", "resourceVersion": "1", "annotations": {INITIAL_EVENTS_END: "true"}}
    return event("BOOKMARK", {"kind": "Node", "metadata": meta})


def small_node(number: int) -> Object:
    meta = {"name": f"n{number}", "uid": str(number), "resourceVersion": str(number + 1)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"providerID": f"sim://{number}"}}


def serve_nodes(count: int) -> Callable[[Hostile, Request], Response]:
    """Serve a list of `count` Nodes that yields to the event loop between any two of them, as over a network."""

    documents = [*(event("ADDED", small_node(number)) for number in range(count)), initial_events_end()]

    def answer(wire: Hostile, _request: Request) -> Response:
        wire.opened.append(Slow(wire, iter(documents)))
        return Response(200, {"content-type": "application/json"}, stream=wire.opened[-1])

    return answer


class Slow(Stream):
    async def __anext__(self) -> bytes:
        await asyncio.sleep(0)
        return await super().__anext__()
