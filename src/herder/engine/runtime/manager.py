"""The manager: shared caches, controllers over them, and an orderly life from first sync to last write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key, controller_uid
from herder.engine.control.informer import Informer
from herder.engine.control.metrics import Metrics
from herder.engine.control.tasks import Tasks
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller, ControllerWorker
from herder.engine.runtime.decision import Decision, Effect, Refusal
from herder.engine.runtime.dynamic import UNKNOWN, DynamicController
from herder.engine.runtime.effects import Effects, Performer
from herder.engine.runtime.executor import DecisionExecutor, Guard
from herder.engine.runtime.groups import Grouping, Groups
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.remote import Connector, RemotePerformer, Remotes
from herder.engine.runtime.view import UndeclaredKind, View
from herder.engine.runtime.writer import Writer

log = get_logger(__name__)

STOP_SECONDS = 10.0
"""For writes on their way when a stop is asked for."""


class Manager:
    def __init__(
        self,
        client: Client,
        controllers: Sequence[Controller],
        *,
        dynamic_controllers: Sequence[DynamicController] = (),
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        guards: Sequence[Guard] = (),
        performers: Mapping[str, Performer] | None = None,
        connect: Connector | None = None,
        remote_performers: Mapping[str, RemotePerformer] | None = None,
        setting: Callable[[str], str] | None = None,
        metrics: Metrics | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
        strict: bool = False,
    ) -> None:
        """`stopwatch` tells how long passes take; what a simulation does must not depend on how fast it runs."""
        self.metrics = metrics or Metrics()
        self._client = client
        self._clock = clock
        self._setting = setting or _no_settings
        self._seed = entropy(32)
        self._entropy = entropy
        self._stopwatch = stopwatch
        self._strict = strict
        self._tasks = Tasks()
        self._workers: list[asyncio.Task[None]] = []
        self._remotes = Remotes(connect, clock=clock, tasks=self._tasks) if connect else None
        self._effects = Effects({**(performers or {}), **self._reaching(remote_performers or {})}, self._tasks)
        self._dynamic_controllers = dynamic_controllers
        self._guards = guards
        declared = [watch for controller in controllers for watch in controller.kinds()]
        declared += [watch for dynamic in dynamic_controllers for watch in dynamic.watches()]
        self.caches = {watch.kind: Cache(watch.kind) for watch in declared}
        for controller in (*controllers, *(dynamic.controller(UNKNOWN) for dynamic in dynamic_controllers)):
            self._add_indexes(controller)
        selected = _selected(declared)
        self.informers = {kind: self._informer(kind, *selected[kind]) for kind in self.caches}
        self._followers: dict[Kind, dict[tuple[str, Key], None]] = {}  # who waits for the first look at a kind
        declared_groups = {each.name: each for controller in controllers for each in controller.groupings}
        self._groups = {name: self._group(grouping) for name, grouping in declared_groups.items()}
        self.running = {controller.name: self._make(controller) for controller in controllers}

    def _reaching(self, performers: Mapping[str, RemotePerformer]) -> dict[str, Performer]:
        """The performers that act on downstream clusters, where there is a way to reach them."""
        remotes = self._remotes
        return {name: partial(perform, remotes) for name, perform in performers.items()} if remotes else {}

    def _add_indexes(self, controller: Controller) -> None:
        """There is one cache for each kind, whoever reads it, with everyone's indexes."""
        for watch in controller.kinds():
            if watch.kind in self.caches:
                for name, indexer in controller.indexers(watch.kind).items():
                    self.caches[watch.kind].add_indexer(name, indexer)

    def _group(self, grouping: Grouping[Any]) -> Groups:
        caches = {watch.kind: self.caches[watch.kind] for watch in grouping.kinds()}
        return Groups(grouping, caches, lambda key: self._view(key, caches), strict=self._strict)

    def _grouped(self, grouping: Grouping[Any], scope: str) -> Mapping[Any, Collection[Key]]:
        groups = self._groups.get(grouping.name)
        if groups is None:
            raise UndeclaredKind(f"grouping {grouping.name} is not declared by anybody here")
        return groups.within(scope)

    def _make(self, controller: Controller) -> ControllerWorker:
        name = controller.name
        declared = {watch.kind for watch in controller.kinds()}
        caches = {kind: cache for kind, cache in self.caches.items() if kind in declared}
        own = self.caches[controller.kind]
        writer = Writer(
            self._client,
            caches=self.caches,
            on_change=self._changed,
            remote=self._remotes.client if self._remotes else None,
        )
        executor = DecisionExecutor(
            writer, guards=self._guards, perform=lambda effect, key: self._perform(name, effect, key)
        )
        followed = self._followed if controller.follows is not None else None
        return ControllerWorker(
            controller,
            now=self._clock,
            view_of=lambda key, refused: self._view(key, caches, followed, refused),
            executor=executor,
            object_of=own.get,
            indexed=own.indexed,
            observe=lambda decision, key: self._observe(name, decision, key),
            follow=lambda kind, key: self._follow(kind, name, key),
            metrics=self.metrics,
            stopwatch=self._stopwatch,
            strict=self._strict,
        )

    async def run(self) -> None:
        """Until cancelled: fill the caches, then work."""
        for kind, informer in self.informers.items():
            self._tasks.spawn(informer.run(), name=f"informer {kind}")
        for running in self.running.values():
            self._tasks.spawn(self._start(running), name=f"start {running.controller.name}")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._stop()

    async def _start(self, running: ControllerWorker) -> None:
        """A controller starts when everything it reads is there; a kind that is missing holds up nobody else."""
        controller = running.controller
        for watch in controller.kinds():
            await self.informers[watch.kind].synced.wait()
        log.info("controller starts", controller=controller.name, objects=len(self.caches[controller.kind]))
        for number in range(controller.workers):
            self._workers.append(self._tasks.spawn(running.work(), name=f"{controller.name} {number}"))

    async def _stop(self) -> None:
        """Take no more keys, let writes on their way finish, end."""
        for running in self.running.values():
            running.queue.close()
        if self._workers:
            await asyncio.wait(self._workers, timeout=STOP_SECONDS)
        await self._tasks.stop()

    def halt(self, controllers: Sequence[str]) -> None:
        """These take no more keys; writes on their way finish, the others work on."""
        for name in controllers:
            self.running[name].queue.close()

    def abort(self) -> None:
        """End at once, finishing nothing: what a crash does, for whoever simulates one."""
        for running in self.running.values():
            running.queue.close()
        self._tasks.cancel()

    def trigger(self, controller: str, key: Key) -> None:
        self.running[controller].queue.add(key)

    # --- kinds met at run time ----------------------------------------------------------------------------------

    def _start_dynamic(self, dynamic: DynamicController, definition: Object) -> None:
        """A kind was defined that a family has a controller for: it works from now on. One whose definition goes has
        no objects any more, and nothing to do."""
        kind = dynamic.kind_of(definition)
        controller = dynamic.controller(kind) if kind is not None else None
        if kind is None or controller is None or controller.name in self.running:
            return
        known = kind in self.informers
        if not known:
            self.caches[kind] = Cache(kind)
            self.informers[kind] = self._informer(kind)
            self._tasks.spawn(self.informers[kind].run(), name=f"informer {kind}")
        self._add_indexes(controller)
        running = self.running[controller.name] = self._make(controller)
        for key in self.caches[kind].keys() if known else ():
            running.queue.add(key)
        self._tasks.spawn(self._start(running), name=f"start {controller.name}")

    def _followed(self, kind: Kind) -> Cache | None:
        informer = self.informers.get(kind)
        return informer.cache if informer is not None and informer.synced.is_set() else None

    def _follow(self, kind: Kind, controller: str, key: Key) -> None:
        """Read the kind from now on; whoever met it looks again once it is there."""
        waiting = self._followers.setdefault(kind, {})
        first = not waiting
        waiting[controller, key] = None
        if kind not in self.informers:
            self.caches[kind] = Cache(kind, {"controller": controller_uid})
            self.informers[kind] = self._informer(kind)
            self._tasks.spawn(self.informers[kind].run(), name=f"informer {kind}")
        self.informers[kind].retry_now()  # a kind that was not served is read for a reason: it is by now
        if first:
            self._tasks.spawn(self._wake_followers(kind), name=f"first look at {kind}")

    async def _wake_followers(self, kind: Kind) -> None:
        await self.informers[kind].synced.wait()
        for controller, key in self._followers.pop(kind):
            self.trigger(controller, key)

    # --- what controllers are given -----------------------------------------------------------------------------

    def _informer(self, kind: Kind, labels: str = "", fields: str = "") -> Informer:
        return Informer(
            self._client,
            self.caches[kind],
            self._event_handler(kind),
            labels=labels,
            fields=fields or kind.fields,
            jitter=self._jitter,
            on_list=self.metrics.lists.labels(kind=str(kind)).inc,
        )

    def _view(
        self,
        key: Key,
        caches: Mapping[Kind, Cache],
        followed: Callable[[Kind], Cache | None] | None = None,
        refused: Refusal | None = None,
    ) -> View:
        return View(
            key=key,
            now=self._clock(),
            caches=caches,
            results=self._effects.results,
            observe=self._remotes.observed if self._remotes else lambda _wish: None,
            connection=self._remotes.connection if self._remotes else lambda _cluster: None,
            setting=self._setting,
            seed=self._seed,
            strict=self._strict,
            all_caches=self.caches,
            followed=followed,
            groups=self._grouped,
            refused=refused,
        )

    def _event_handler(self, kind: Kind) -> Callable[[Change], None]:
        return lambda change: self._changed(kind, change)

    def _changed(self, kind: Kind, change: Change) -> None:
        for groups in self._groups.values():
            groups.changed(kind, change)
        for name, running in self.running.items():
            try:
                running.changed(kind, change)
                running.changed_followed(kind, change)
            except Exception as error:
                # One controller's faulty trigger must not hide the change from the others.
                log.error("trigger failed", controller=name, kind=str(kind), key=str(change.key), exc_info=error)
            if change.new is None and kind == running.controller.kind:
                self._effects.forget((name, change.key))
        for dynamic in self._dynamic_controllers:
            if change.new is not None and kind == dynamic.definitions:
                try:
                    self._start_dynamic(dynamic, change.new)
                except Exception as error:
                    log.error("definition not understood", dynamic=dynamic.name, key=str(change.key), exc_info=error)

    def _observe(self, controller: str, decision: Decision, key: Key) -> None:
        if self._remotes is not None:
            self._remotes.ask(decision.observe, (controller, key), lambda: self.trigger(controller, key))
        elif decision.observe:
            raise LookupError("this manager has no way to reach downstream clusters")

    def _perform(self, controller: str, effect: Effect, key: Key) -> str:
        return self._effects.perform(effect, (controller, key), lambda: self.trigger(controller, key))

    def _jitter(self) -> float:
        return int.from_bytes(self._entropy(2), "big") / 65536


def _no_settings(name: str) -> str:
    raise KeyError(name)


def _selected(declared: Sequence[Watches]) -> dict[Kind, tuple[str, str]]:
    """Which objects of a kind are read: as the controllers say if they agree, else all."""
    wished: dict[Kind, set[tuple[str, str]]] = {}
    for watch in declared:
        wished.setdefault(watch.kind, set()).add((watch.labels, watch.fields))
    return {kind: wishes.pop() if len(wishes) == 1 else ("", "") for kind, wishes in wished.items()}
