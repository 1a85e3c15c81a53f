"""A whole deployment in one deterministic process: the real API server, the real runtime, the real reconcilers.

Only time, randomness and the network are simulated. The same seed gives the same event log, byte for byte; a failing
seed is a bug report that can be replayed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from herder.api.settings import Settings
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.server import ApiServer, assemble
from herder.engine.client.client import Client, WatchEvent
from herder.engine.client.wire import Transport, User
from herder.engine.control.metrics import Metrics
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.dynamic import DynamicController
from herder.engine.runtime.effects import Performer
from herder.engine.runtime.executor import Guard
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.remote import RemotePerformer
from herder.sim.faults import NONE, Faults, FaultyTransport
from herder.sim.workloads import Workloads

START = datetime(2026, 1, 1, tzinfo=UTC)
RESTART_SECONDS = 1.0
SAME_MOMENT = 1e-6
CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
ADMIN = User("sim-admin", groups=("system:masters", "system:authenticated"))
MANAGER = User("sim-manager", groups=("system:masters", "system:authenticated"))


class World:
    def __init__(
        self,
        seed: int,
        controllers: Sequence[Controller],
        *,
        dynamic_controllers: Sequence[DynamicController] = (),
        crds: Sequence[Object] = (),
        guards: Sequence[Guard] = (),
        performers: Mapping[str, Performer] | None = None,
        remote_performers: Mapping[str, RemotePerformer] | None = None,
        faults: Faults = NONE,
        watched: Sequence[Kind] = (),
        invariant: Callable[[Kind, str, Object], None] | None = None,
        prepare: Callable[[ApiServer], None] | None = None,
        settings: Settings | None = None,
        strict: bool = True,
    ) -> None:
        """`invariant` is asked at every event of the watched kinds, in the order in which they happened; `prepare` may
        add to the server, such as admission, before anything is stored there. `strict`: decisions are checked for being
        pure, and groups for being up to date, which costs more than they do."""
        self.random = Random(seed)  # noqa: S311 - a seeded generator is the point
        self.log: list[str] = []
        self.crashes = 0
        self._controllers = controllers
        self._dynamic_controllers = dynamic_controllers
        self._crds = crds
        self._guards = guards
        self.workloads = Workloads(clock=self.now, entropy=self.random.randbytes, note=self.note)
        self._performers = {**self.workloads.performers(), **(performers or {})}
        self._remote_performers = remote_performers or {}
        self._transports: list[FaultyTransport] = []  # of the manager that runs
        self._faults = faults
        self._watched = watched
        self._invariant = invariant
        self._prepare = prepare
        self._settings = settings or Settings()
        self._strict = strict
        self._metrics = Metrics()  # dear to make, and nobody reads them here
        self._seen: list[tuple[int, Kind, WatchEvent]] = []  # that are yet to be put in order
        self._wrong: Exception | None = None  # the first invariant that did not hold
        self._manager_task: asyncio.Task[None] | None = None
        self._recorders: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> World:
        self.server: ApiServer = await assemble(None, clock=self.now, entropy=self.random.randbytes, inline=True)
        if self._prepare is not None:
            self._prepare(self.server)
        self.client = Client(InProcess(self.server, ADMIN), field_manager="sim")
        for crd in self._crds:
            await self.client.create(CRDS, crd)
        for crd in self._crds:
            await self._established(crd["metadata"]["name"])
        for kind in self._watched:
            self._recorders.append(asyncio.ensure_future(self._record(kind)))
        self.start_manager()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await asyncio.sleep(2 * SAME_MOMENT)  # the last events are judged too
        if self._manager_task is not None:
            self._tasks.append(self._manager_task)
        tasks = (*self._recorders, *self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.workloads.close()
        await self.server.stop()
        if kind is None and self._wrong is not None:
            raise self._wrong

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time())

    def note(self, line: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.6f} {line}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()

    def start_manager(self) -> None:
        self._transports = []
        self.manager = Manager(
            self._managers_client(InProcess(self.server, MANAGER)),
            self._controllers,
            dynamic_controllers=self._dynamic_controllers,
            clock=self.now,
            entropy=self.random.randbytes,
            guards=self._guards,
            performers=self._performers,
            connect=self._connect,
            remote_performers=self._remote_performers,
            setting=self._settings.get,
            metrics=self._metrics,
            stopwatch=asyncio.get_running_loop().time,
            strict=self._strict,
        )
        self._manager_task = asyncio.ensure_future(self.manager.run())

    async def _connect(self, cluster: str) -> Client:
        return self._managers_client(self.workloads.transport(cluster))

    def _managers_client(self, inner: Transport) -> Client:
        transport = FaultyTransport(inner, faults=self._faults, random=self.random, note=self.note, crash=self.crash)
        self._transports.append(transport)
        return Client(transport, field_manager="manager")

    @property
    def writes(self) -> int:
        """Of the manager that runs."""
        return sum(transport.writes for transport in self._transports)

    def crash(self) -> None:
        """The manager is gone at once: nothing of it runs on, a new one starts a little later."""
        dead, self._manager_task = self._manager_task, None
        if dead is None:
            return  # it crashed already: two restarts would leave two managers
        self.crashes += 1
        for transport in self._transports:
            transport.dead = True
        self.manager.abort()
        dead.cancel()
        self._tasks.append(dead)
        asyncio.get_running_loop().call_later(RESTART_SECONDS, self.start_manager)

    def calm(self) -> None:
        """From now on nothing goes wrong by itself."""
        self._faults = NONE
        for transport in self._transports:
            transport.faults = NONE

    async def until(self, reached: Callable[[], Awaitable[bool]], *, within: float = 3600.0) -> None:
        """Let virtual time pass until it is so."""
        deadline = asyncio.get_running_loop().time() + within
        while not await reached():
            self.check()
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"not reached within {within} s of virtual time; last: {self.log[-5:]}")
            await asyncio.sleep(0.25)

    def check(self) -> None:
        """A broken invariant ends the simulation, and so does a manager or a recorder that ended by itself."""
        if self._wrong is not None:
            raise self._wrong
        for task in (self._manager_task, *self._recorders):
            if task is not None and task.done():
                raise RuntimeError(f"{task.get_coro()} has ended") from task.exception()

    async def _record(self, kind: Kind) -> None:
        seen = ""
        while True:  # a server ends each watch some time
            events = self.client.watch(
                kind.resource, fields=kind.fields, resource_version=seen, initial_events=not seen
            )
            async for event in events:
                meta = event.object["metadata"]
                seen = meta["resourceVersion"]
                if event.type == "BOOKMARK" or meta.get("name") == "kube-root-ca.crt":
                    continue  # certificates are real, so they differ from run to run
                if not self._seen:
                    asyncio.get_running_loop().call_later(SAME_MOMENT, self._judge)
                self._seen.append((int(seen), kind, event))

    def _judge(self) -> None:
        """Every event of the watched kinds goes into the log, and before the invariant.

        Each kind has a watch of its own. Time goes on only when none has anything more to say, so what they said in
        the moment before is all that happened in it, and revisions tell in which order.
        """
        seen, self._seen = sorted(self._seen, key=lambda each: each[0]), []
        for revision, kind, event in seen:
            meta = event.object["metadata"]
            content = hashlib.sha256(repr(sorted(event.object.items(), key=str)).encode()).hexdigest()[:12]
            name = f"{meta.get('namespace', '')}/{meta['name']}"
            self.note(f"{event.type} {kind.kind} {name} {revision} {content}")
            if self._invariant is None or self._wrong is not None:
                continue
            try:
                self._invariant(kind, event.type, event.object)
            except Exception as error:
                self._wrong = error

    async def _established(self, name: str) -> None:
        while True:
            crd = await self.client.get(CRDS, name)
            conditions = (crd.get("status") or {}).get("conditions") or []
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            await asyncio.sleep(0.01)
