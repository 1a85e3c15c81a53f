"""An API server in this process on the test's clock, and a transport that records and intercepts requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client
from herder.engine.meta.errors import ServiceUnavailable
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.view import View
from herder.engine.wire import Query, Request, Response, Transport, User

CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
ADMIN = User("admin", groups=("system:masters", "system:authenticated"))
START = datetime(2026, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """Return the event loop's time as a date, which is virtual time on a virtual loop."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


class Wire:
    """A transport that records every request, and can refuse, rewrite or interrupt it."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self._cut = asyncio.Event()
        self.requests: list[tuple[str, str, Query]] = []
        self.down = False
        self.intercept: Callable[[Request], Request | Response] = lambda request: request

    async def send(self, request: Request) -> Response:
        self.requests.append((request.method, request.path, request.query))
        if self.down:
            raise ServiceUnavailable("the line is dead")
        intercepted = self.intercept(request)
        if isinstance(intercepted, Response):
            return intercepted
        response = await self.inner.send(intercepted)
        if response.stream is not None:
            response = replace(response, stream=self._interruptible(response.stream))
        return response

    async def close(self) -> None:
        await self.inner.close()

    def cut(self) -> None:
        """Break every open stream."""
        self._cut.set()
        self._cut = asyncio.Event()

    async def _interruptible(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        chunks: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        reader = asyncio.ensure_future(_read(stream, chunks))
        interrupter = asyncio.ensure_future(self._cut.wait())
        interrupter.add_done_callback(lambda _: chunks.put_nowait(ServiceUnavailable("the line was cut")))
        try:
            while (chunk := await chunks.get()) is not None:
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
        finally:
            for task in (reader, interrupter):
                task.cancel()
            await asyncio.gather(reader, interrupter, return_exceptions=True)

    # --- recorded requests --------------------------------------------------------------------------------------

    def count(self, method: str, part: str = "") -> int:
        return sum(1 for sent, path, _ in self.requests if sent == method and part in path)

    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _ in self.requests if method != "GET"]

    def reads(self, plural: str) -> list[str]:
        """Return how each read was made: `list`, `stream` (a streaming list) or `watch` (a resumed watch)."""
        kinds = []
        for method, path, query in self.requests:
            if method == "GET" and path.endswith(plural):
                watched = query.get("watch") == "true"
                kinds.append("stream" if "sendInitialEvents" in query else "watch" if watched else "list")
        return kinds


async def _read(stream: AsyncIterator[bytes], chunks: asyncio.Queue[bytes | BaseException | None]) -> None:
    try:
        async for chunk in stream:
            chunks.put_nowait(chunk)
    except Exception as error:
        chunks.put_nowait(error)
    else:
        chunks.put_nowait(None)


@dataclass
class Environment:
    server: ApiServer
    wire: Wire
    client: Client  # through the wire
    outside: Client  # another user's client, which bypasses the wire

    async def create(self, name: str, kind: Kind = CONFIG_MAP, **fields: Any) -> Object:
        return await self.outside.create(kind.resource, new_object(name, kind, **fields), namespace="default")

    async def change(self, name: str, **fields: Any) -> Object:
        return await self.outside.patch(CONFIG_MAP.resource, name, fields, namespace="default")

    async def delete(self, name: str) -> Object:
        return await self.outside.delete(CONFIG_MAP.resource, name, namespace="default")


@asynccontextmanager
async def environment() -> AsyncIterator[Environment]:
    server = await assemble(None, clock=now, entropy=Random(1).randbytes, inline=True)
    wire = Wire(InProcess(server, ADMIN))
    try:
        yield Environment(server, wire, Client(wire, field_manager="test"), Client(InProcess(server, ADMIN)))
    finally:
        await server.stop()


def new_object(name: str, kind: Kind = CONFIG_MAP, **fields: Any) -> Object:
    metadata = {"name": name, "namespace": "default"} | fields.pop("metadata", {})
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Sleep until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def controller(reconcile: Callable[[View], Decision], **options: Any) -> Controller:
    return Controller("test", CONFIG_MAP, reconcile, **options)


@asynccontextmanager
async def running_manager(env: Environment, *controllers: Controller, **options: Any) -> AsyncIterator[Manager]:
    manager = Manager(env.client, controllers, clock=now, entropy=os.urandom, strict=True, **options)
    task = asyncio.ensure_future(manager.run())
    try:
        yield manager
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
