"""Deterministic simulation of a deployment: the real API server, runtime and reconcilers in one process.

Only time, randomness and the network are simulated. The same seed gives the same event log, byte for byte, so a failing
seed can be replayed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from herder.api.settings import Settings
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.client.client import Client, WatchEvent
from herder.engine.control.metrics import Metrics
from herder.engine.meta.kinds import GroupVersionResource, Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.dynamic import DynamicController
from herder.engine.runtime.effects import Performer
from herder.engine.runtime.executor import Guard
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.remote import RemotePerformer
from herder.engine.wire import Transport, User
from herder.sim.faults import NONE, Faults, FaultyTransport
from herder.sim.workloads import Workloads

START = datetime(2026, 1, 1, tzinfo=UTC)
RESTART_SECONDS = 1.0
SAME_MOMENT = 1e-6
CRDS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
ADMIN = User("sim-admin", groups=("system:masters", "system:authenticated"))
MANAGER = User("sim-manager", groups=("system:masters", "system:authenticated"))


class World:
    """One management cluster and its manager."""

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
        """Options:

        - `invariant` is called for every event of the watched kinds, in order.
        - `prepare` may add to the server, such as admission, before anything is stored.
        - `strict` checks that decisions are pure and indexes up to date, at some cost.
        """
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
        self._transports: list[FaultyTransport] = []  # of the running manager
        self._faults = faults
        self._watched = watched
        self._invariant = invariant
        self._prepare = prepare
        self._settings = settings or Settings()
        self._strict = strict
        self._metrics = Metrics()  # expensive to create, and not read here
        self._events: list[tuple[int, Kind, WatchEvent]] = []  # events not yet ordered
        self._violation: Exception | None = None  # the first violated invariant
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
            await asyncio.sleep(2 * SAME_MOMENT)  # check the last events too
        if self._manager_task is not None:
            self._tasks.append(self._manager_task)
        tasks = (*self._recorders, *self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.workloads.close()
        await self.server.stop()
        if kind is None and self._violation is not None:
            raise self._violation

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
        """Writes of the running manager."""
        return sum(transport.writes for transport in self._transports)

    def crash(self, outage: float = RESTART_SECONDS) -> None:
        """Kill the manager at once; a new one starts after the outage, in seconds."""
        crashed, self._manager_task = self._manager_task, None
        if crashed is None:
            return  # already crashed: two restarts would leave two managers
        self.crashes += 1
        for transport in self._transports:
            transport.dead = True
        self.manager.abort()
        crashed.cancel()
        self._tasks.append(crashed)
        asyncio.get_running_loop().call_later(outage, self.start_manager)

    def replace_manager(self, controllers: Sequence[Controller]) -> None:
        """Replace the manager by one with other controllers, as after an upgrade."""
        self._controllers = controllers
        self.crash()

    def calm(self) -> None:
        """Disable random faults."""
        self.disturb(NONE)

    def disturb(self, faults: Faults) -> None:
        """Inject other random faults from now on."""
        self._faults = faults
        for transport in self._transports:
            transport.faults = faults

    async def until(self, reached: Callable[[], Awaitable[bool]], *, within: float = 3600.0) -> None:
        """Let virtual time pass until the condition holds."""
        deadline = asyncio.get_running_loop().time() + within
        while not await reached():
            self.check()
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"not reached within {within} s of virtual time; last: {self.log[-5:]}")
            await asyncio.sleep(0.25)

    def check(self) -> None:
        """Raise a violated invariant, or the error of a manager or recorder that ended by itself."""
        if self._violation is not None:
            raise self._violation
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
                    continue  # certificates are real and differ between runs
                if not self._events:
                    asyncio.get_running_loop().call_later(SAME_MOMENT, self._check_invariant)
                self._events.append((int(seen), kind, event))

    def _check_invariant(self) -> None:
        """Log every event of the watched kinds and check the invariant.

        Each kind has its own watch. Time advances only when none has more events, so the collected events are complete
        for that instant, and revisions give their order.
        """
        seen, self._events = sorted(self._events, key=lambda each: each[0]), []
        for revision, kind, event in seen:
            meta = event.object["metadata"]
            content = hashlib.sha256(repr(sorted(event.object.items(), key=str)).encode()).hexdigest()[:12]
            name = f"{meta.get('namespace', '')}/{meta['name']}"
            self.note(f"{event.type} {kind.kind} {name} {revision} {content}")
            if self._invariant is None or self._violation is not None:
                continue
            try:
                self._invariant(kind, event.type, event.object)
            except Exception as error:
                self._violation = error

    async def _established(self, name: str) -> None:
        while True:
            crd = await self.client.get(CRDS, name)
            conditions = (crd.get("status") or {}).get("conditions") or []
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            await asyncio.sleep(0.01)
