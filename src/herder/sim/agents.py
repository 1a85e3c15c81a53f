"""Simulated node agent: the real agent core on the loop's virtual clock, with a simulated host.

It can be killed at any moment. Its journal is all that the next process knows.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from herder.agent.core import events
from herder.agent.core.core import Core
from herder.agent.core.events import Action, Event, Now, Record, Secret
from herder.agent.core.plan import File, Instruction, Probe
from herder.agent.core.protocol import ANONYMOUS, Identity
from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.engine.meta.errors import Conflict, Expired, NotFound, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Object

_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
_SHORTEST_WATCH = 1.0


class Journal:
    """Persistent state of the agent on the machine's disk."""

    def __init__(self) -> None:
        self.record: Record | None = None


class Body(Protocol):
    """The host of an agent: executes its actions."""

    def begins(self, action: Action) -> bool:
        """Called before each action; False kills the agent instead."""

    def write_files(self, files: list[File]) -> str:
        """The error; empty on success."""

    async def run(self, instruction: Instruction, attempt: int) -> events.Finished: ...

    def probe(self, probe: Probe) -> str:
        """The error; empty if healthy."""


class SimulatedAgent:
    """One agent process."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        secret: str,
        *,
        body: Body,
        journal: Journal,
        wall: Callable[[], float],
        jitter: float = 0.5,
        identity: Identity = ANONYMOUS,
        died: Callable[[], None] = lambda: None,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`died` is called when it is killed; `failed` on errors of the simulation itself."""
        self._client = client
        self._namespace = namespace
        self._name = secret
        self._body = body
        self._journal = journal
        self._wall = wall
        self._jitter = jitter
        self._died = died
        self._failed = failed
        self._core = Core(journal.record, jitter, identity)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._writes = 0  # started plus finished writes; odd while one is in flight
        self.alive = False

    @property
    def is_identified(self) -> bool:
        """Whether the manager knows which agent this is."""
        return self._core.is_identified

    @property
    def is_idle(self) -> bool:
        """Whether it applies no plan."""
        return not self._core.running

    def start(self) -> None:
        self.alive = True
        self._spawn(self._watch())

    def kill(self) -> None:
        """Abort everything, including the running instruction."""
        if not self.alive:
            return
        self.alive = False
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        self._died()

    # --- events and actions -----------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if not self.alive:
            return
        now = Now(self._wall(), asyncio.get_running_loop().time())
        for action in self._core.handle(event, now):
            if not self._body.begins(action):
                self.kill()
                return
            self._execute(action)
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._core.wake_at is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_at(max(self._core.wake_at, loop.time()), self._handle, events.Tick())

    def _execute(self, action: Action) -> None:
        match action:
            case events.Persist(record):
                self._journal.record = record
            case events.Write():
                self._run_effect(partial(self._write, action))
            case events.Read():
                self._run_effect(self._read)
            case events.AcquireInterlock():
                self._later(0.0, events.InterlockAcquired())
            case events.WriteFiles(files):
                self._later(0.0, events.FilesWritten(self._body.write_files(files)))
            case events.Run(_, instruction, attempt):
                self._run_effect(partial(self._body.run, instruction, attempt))
            case events.StartProbe(round_, probe, delay):
                asyncio.get_running_loop().call_later(delay, self._probe, round_, probe)

    def _later(self, seconds: float, event: Event) -> None:
        asyncio.get_running_loop().call_later(seconds, self._handle, event)

    def _probe(self, round_: int, probe: Probe) -> None:
        problem = self._body.probe(probe)
        self._handle(events.Probed(round_, probe.name, not problem, problem))

    def _run_effect(self, work: Callable[[], Awaitable[Event]]) -> None:
        self._spawn(self._effect(work))

    async def _effect(self, work: Callable[[], Awaitable[Event]]) -> None:
        """The agent may be killed before this has started: it must have had no effect then."""
        self._handle(await work())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # --- API --------------------------------------------------------------------------------------------------------

    async def _write(self, action: events.Write) -> Event:
        body = dict(action.secret.raw)
        body["data"] = {key: base64.b64encode(value).decode() for key, value in action.data.items()}
        self._writes += 1
        try:
            return events.Written(_secret(await self._client.update(SECRET.resource, body)))
        except Conflict:
            return events.Conflict()
        except NotFound:
            return events.SecretGone()
        except StatusError as error:
            return events.RequestFailed(error.message)
        finally:
            self._writes += 1

    async def _read(self) -> Event:
        try:
            found = await self._client.get(SECRET.resource, self._name, namespace=self._namespace)
        except NotFound:
            return events.SecretGone()
        except StatusError as error:
            return events.RequestFailed(error.message)
        return events.SecretSeen(_secret(found), True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        failures, version = 0, ""
        while True:
            try:
                version = version or await self._list()
                began = loop.time()
                watching = self._client.watch(
                    SECRET.resource, namespace=self._namespace, fields=self._selector, resource_version=version
                )
                async with aclosing(watching) as seen:
                    async for event in seen:
                        failures, version = 0, str(event.object["metadata"]["resourceVersion"])
                        if event.type == "DELETED":
                            self._handle(events.SecretGone())
                        elif event.type != "BOOKMARK":
                            self._handle(events.SecretSeen(_secret(event.object)))
                if loop.time() - began < _SHORTEST_WATCH:
                    raise ServiceUnavailable("the server ended the watch at once")
            except Expired:
                version = ""
            except StatusError:
                version, failures = "", failures + 1
                wait = min(_LONGEST_BACKOFF, _SHORTEST_BACKOFF * 2 ** min(failures - 1, 8))
                await asyncio.sleep(wait * (0.5 + self._jitter / 2))

    async def _list(self) -> str:
        """A list that one of our writes has overtaken may be older than what we know."""
        before = self._writes
        page = await self._client.list(SECRET.resource, namespace=self._namespace, fields=self._selector)
        stale = before != self._writes or before % 2 == 1
        if page.items:
            self._handle(events.SecretSeen(_secret(page.items[0]), not stale))
        elif not stale:
            self._handle(events.SecretGone())
        return page.resource_version

    @property
    def _selector(self) -> str:
        return f"metadata.name={self._name}"


def _secret(obj: Object) -> Secret:
    meta = obj["metadata"]
    data = {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    kept = {key: value for key, value in obj.items() if key != "data"} | {"apiVersion": "v1", "kind": "Secret"}
    return Secret(meta["uid"], meta["resourceVersion"], data, kept)
