"""An API server in memory, and a small client for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.wire import Query, Request, Response, User

ADMIN = User("admin", groups=("system:masters", "system:authenticated"))

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Clock:
    """A clock that stands still until it is set, so that timestamps are known."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Api:
    def __init__(self, server: ApiServer, clock: Clock, user: User = ADMIN, namespace: str = "default") -> None:
        self.server = server
        self.clock = clock
        self.user = user
        self.namespace = namespace
        self.transport = InProcess(server, user, user_agent="tester/1")

    def as_user(self, name: str, *groups: str) -> Api:
        return Api(self.server, self.clock, User(name, groups=(*groups, "system:authenticated")), self.namespace)

    def path(self, plural: str, name: str = "", *, group: str = "", version: str = "v1", sub: str = "") -> str:
        parts = ["/apis", group, version] if group else ["/api", version]
        parts += ["namespaces", self.namespace, plural]
        parts += [part for part in (name, sub) if part]
        return "/".join(parts)

    async def send(self, method: str, url: str, body: Any = None, **headers: str) -> Response:
        split = urlsplit(url)
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        query = Query.parse(split.query) if split.query else Query()
        return await self.transport.send(Request(method, split.path, query, sent, content))

    async def ask(self, method: str, url: str, body: Any = None, **headers: str) -> Answer:
        response = await self.send(method, url, body, **headers)
        content = response.content()
        if response.stream is not None:
            content = b"".join([chunk async for chunk in response.stream])
        is_json = response.headers.get("content-type", "").startswith("application/json")
        decoded = msgspec.json.decode(content) if is_json and "content-encoding" not in response.headers else content
        return Answer(response.status, decoded, response.headers, response.warnings)

    async def get(self, url: str, **headers: str) -> Answer:
        return await self.ask("GET", url, **headers)

    async def post(self, url: str, body: Any, **headers: str) -> Answer:
        return await self.ask("POST", url, body, **headers)

    async def put(self, url: str, body: Any, **headers: str) -> Answer:
        return await self.ask("PUT", url, body, **headers)

    async def patch(self, url: str, body: Any, content_type: str = MERGE) -> Answer:
        return await self.ask("PATCH", url, body, content_type=content_type)

    async def delete(self, url: str, body: Any = None) -> Answer:
        return await self.ask("DELETE", url, body)

    async def watch(self, url: str) -> Watching:
        response = await self.send("GET", url)
        assert response.status == 200, response.content()
        assert response.stream is not None
        return Watching(response.stream)


class Watching:
    """Events of one watch, one at a time."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._waiting: list[Any] = []

    async def next(self) -> Any:
        while not self._waiting:
            async with asyncio.timeout(10):
                chunk = await anext(self._stream)
            self._waiting += [msgspec.json.decode(line) for line in chunk.splitlines()]
        return self._waiting.pop(0)

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    async def rest(self) -> list[Any]:
        """Return everything until the server ends the stream."""
        async with asyncio.timeout(10):
            async for chunk in self._stream:
                self._waiting += [msgspec.json.decode(line) for line in chunk.splitlines()]
        rest, self._waiting = self._waiting, []
        return rest

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]


async def start(directory: Path | None = None) -> tuple[ApiServer, Clock]:
    """Start a server with an in-memory store, or with one on disk, which commits on its own thread."""
    clock = Clock()
    return await assemble(directory, clock=clock, entropy=os.urandom, inline=directory is None), clock


def config_map(name: str = "", **data: str) -> dict[str, Any]:
    obj: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    return obj | ({"data": data} if data else {})


def widget(name: str) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}}


WIDGETS = "/apis/example.com/v1/namespaces/{}/widgets"


def widget_definition() -> dict[str, Any]:
    spec = {
        "type": "object",
        "properties": {
            "replicas": {"type": "integer", "minimum": 0, "default": 1},
            "color": {"type": "string"},
        },
    }
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "served": True,
        "schema": schema,
        "subresources": {"status": {}, "scale": scale},
        "selectableFields": [{"jsonPath": ".spec.color"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": "v1", "storage": True, **version},
                {"name": "v2", "storage": False, **version},
            ],
        },
    }


async def serve_widgets(api: Api) -> None:
    """Create the CRD of Widgets and wait until they are served."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if (await api.get(f"{crds}/widgets.example.com")).status == 404:
        created = await api.post(crds, widget_definition())
        assert created.status == 201, created.body
    async with asyncio.timeout(10):
        while (await api.get(WIDGETS.format("default"))).status != 200:
            await asyncio.sleep(0.01)
