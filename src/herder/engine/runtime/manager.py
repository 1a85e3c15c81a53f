"""Manager: shared informers and caches, the controllers that use them, and their start and shutdown."""

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
from herder.engine.runtime.contact import EVER, Contact
from herder.engine.runtime.controller import Controller, ControllerWorker
from herder.engine.runtime.decision import Decision, Effect, Refusal
from herder.engine.runtime.dynamic import UNKNOWN, DynamicController
from herder.engine.runtime.effects import Effects, Performer
from herder.engine.runtime.events.recorder import ControllerEvents, EventRecorder
from herder.engine.runtime.executor import DecisionExecutor, Guard, Withhold
from herder.engine.runtime.groups import Grouping, Groups
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.remote import Connector, RemotePerformer, Remotes
from herder.engine.runtime.view import UndeclaredKind, View
from herder.engine.runtime.writer import Writer

log = get_logger(__name__)

STOP_SECONDS = 10.0
"""Time limit for writes in flight on shutdown."""


class Manager:
    """Runs controllers over shared informers."""

    def __init__(
        self,
        client: Client,
        controllers: Sequence[Controller],
        *,
        dynamic_controllers: Sequence[DynamicController] = (),
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        guards: Sequence[Guard] = (),
        withhold: Withhold | None = None,
        performers: Mapping[str, Performer] | None = None,
        connect: Connector | None = None,
        remote_performers: Mapping[str, RemotePerformer] | None = None,
        setting: Callable[[str], str] | None = None,
        metrics: Metrics | None = None,
        stopwatch: Callable[[], float] = time.perf_counter,
        strict: bool = False,
    ) -> None:
        """Wire the controllers to shared caches.

        `stopwatch` measures how long reconciles take; a simulation passes a virtual one, because its behavior must not
        depend on how fast it runs. `strict` checks that reconcilers do not modify cached objects.
        """
        self.metrics = metrics or Metrics()
        self._client = client
        self._clock = clock
        self._contacts: dict[Kind, Contact] = {}
        self._listeners: dict[Kind, list[Callable[[Change], None]]] = {}
        self._setting = setting or _no_settings
        self._seed = entropy(32)
        self._entropy = entropy
        self._stopwatch = stopwatch
        self._strict = strict
        self._tasks = Tasks()
        self._workers: list[asyncio.Task[None]] = []
        self._remotes = Remotes(connect, clock=clock, tasks=self._tasks) if connect else None
        self._effects = Effects(
            {**(performers or {}), **self._bind_remote_performers(remote_performers or {})}, self._tasks
        )
        self._recorder = EventRecorder(client, clock=clock, jitter=self._jitter)
        self._dynamic_controllers = dynamic_controllers
        self._guards = guards
        self._withhold = withhold
        declared = [watch for controller in controllers for watch in controller.kinds()]
        declared += [watch for dynamic in dynamic_controllers for watch in dynamic.watches()]
        self.caches = {watch.kind: Cache(watch.kind) for watch in declared}
        for controller in (*controllers, *(dynamic.controller(UNKNOWN) for dynamic in dynamic_controllers)):
            self._add_indexes(controller)
        selected = _selectors(declared)
        self.informers = {kind: self._informer(kind, *selected[kind]) for kind in self.caches}
        self._spellings = {_unspelled(kind): kind for kind in self.informers}
        # Controllers and keys that wait for the first list of a kind.
        self._waiting_for_kind: dict[Kind, dict[tuple[str, Key], None]] = {}
        declared_groups = {each.name: each for controller in controllers for each in controller.groupings}
        self._groups = {name: self._group(grouping) for name, grouping in declared_groups.items()}
        self.running = {controller.name: self._create_worker(controller) for controller in controllers}

    def _bind_remote_performers(self, performers: Mapping[str, RemotePerformer]) -> dict[str, Performer]:
        """Bind the performers that act on downstream clusters to the connections, if there are any."""
        remotes = self._remotes
        return {name: partial(perform, remotes) for name, perform in performers.items()} if remotes else {}

    def _add_indexes(self, controller: Controller) -> None:
        """Add the controller's indexes to the caches, which all readers of a kind share."""
        for watch in controller.kinds():
            if watch.kind in self.caches:
                for name, indexer in controller.indexers(watch.kind).items():
                    self.caches[watch.kind].add_indexer(name, indexer)

    def _group(self, grouping: Grouping[Any]) -> Groups:
        caches = {watch.kind: self.caches[watch.kind] for watch in grouping.kinds()}
        return Groups(grouping, caches, lambda key: self._view(key, caches), strict=self._strict)

    def _groups_in_scope(self, grouping: Grouping[Any], scope: str) -> Mapping[Any, Collection[Key]]:
        groups = self._groups.get(grouping.name)
        if groups is None:
            raise UndeclaredKind(f"grouping {grouping.name} is not declared by any controller")
        return groups.in_scope(scope)

    def _create_worker(self, controller: Controller) -> ControllerWorker:
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
        events = ControllerEvents(self._recorder, name, controller.kind, own.get)
        executor = DecisionExecutor(
            writer,
            guards=self._guards,
            withhold=self._withhold,
            perform=lambda effect, key: self._perform(name, effect, key),
            events=events,
        )
        dynamic_cache = self._dynamic_cache if controller.dynamic_watches is not None else None
        return ControllerWorker(
            controller,
            now=self._clock,
            view_of=lambda key, refused, rejected: self._view(
                key, caches, dynamic_cache, refused, rejected, controller.kind
            ),
            executor=executor,
            object_of=own.get,
            indexed=own.indexed,
            observe=lambda decision, key: self._observe(name, decision, key),
            watch_kind=lambda kind, key: self._watch_kind(kind, name, key),
            metrics=self.metrics,
            events=events,
            stopwatch=self._stopwatch,
            strict=self._strict,
        )

    async def run(self) -> None:
        """Run informers and controllers until cancelled."""
        for contact in self._contacts.values():
            contact.begin()
        for kind, informer in self.informers.items():
            self._tasks.spawn(informer.run(), name=f"informer {kind}")
        for running in self.running.values():
            self._tasks.spawn(self._start(running), name=f"start {running.controller.name}")
        self._tasks.spawn(self._recorder.run(), name="event recorder")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._stop()

    async def ready(self) -> None:
        """Wait until all controllers that `run` was started with work on their objects."""
        for running in list(self.running.values()):
            for watch in running.controller.kinds():
                informer = self.informers[watch.kind]
                await (informer.answered if watch.optional else informer.synced).wait()

    async def _start(self, running: ControllerWorker) -> None:
        """Start a controller once the informers of all its kinds are synced; a missing kind blocks no other
        controller."""
        controller = running.controller
        for watch in controller.kinds():
            informer = self.informers[watch.kind]
            await (informer.answered if watch.optional else informer.synced).wait()
        log.info("controller starts", controller=controller.name, objects=len(self.caches[controller.kind]))
        for number in range(controller.workers):
            self._workers.append(self._tasks.spawn(running.work(), name=f"{controller.name} {number}"))

    async def _stop(self) -> None:
        """Stop taking keys, let writes in flight and their Events finish, and stop all tasks."""
        for running in self.running.values():
            running.queue.close()
        if self._workers:
            await asyncio.wait(self._workers, timeout=STOP_SECONDS)
        await self._recorder.flush()
        await self._tasks.stop()

    def halt(self, controllers: Sequence[str]) -> None:
        """Stop these controllers from taking keys; writes in flight finish, and the other controllers continue."""
        for name in controllers:
            self.running[name].queue.close()

    def abort(self) -> None:
        """Stop immediately without finishing writes, as a crash would; for simulation."""
        for running in self.running.values():
            running.queue.close()
        self._tasks.cancel()

    def listen(self, kind: Kind, changed: Callable[[Change], None]) -> None:
        """Call `changed` with each change of a watched kind, once: for metrics that count what happens."""
        self._listeners.setdefault(kind, []).append(changed)

    def trigger(self, controller: str, key: Key) -> None:
        self.running[controller].queue.add(key)

    # --- kinds discovered at run time ---------------------------------------------------------------------------

    def _start_dynamic(self, dynamic: DynamicController, definition: Object) -> None:
        """Start the controller for a newly defined kind. When the definition is deleted, no objects remain and it
        idles."""
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
        running = self.running[controller.name] = self._create_worker(controller)
        for key in self.caches[kind].keys() if known else ():
            running.queue.add(key)
        self._tasks.spawn(self._start(running), name=f"start {controller.name}")

    def _dynamic_cache(self, kind: Kind) -> Cache | None:
        informer = self.informers.get(self._spelling(kind))
        if informer is None or not informer.synced.is_set():
            return None
        self.caches.setdefault(kind, informer.cache)  # the writer compares with it
        return informer.cache

    def _spelling(self, kind: Kind) -> Kind:
        """The kind as it was spelled first: users write kinds in any case, and a watch is of a resource."""
        return kind if kind in self.informers else self._spellings.setdefault(_unspelled(kind), kind)

    def _watch_kind(self, kind: Kind, controller: str, key: Key) -> None:
        """Start watching a kind, and requeue the key that needs it once its informer is synced."""
        kind = self._spelling(kind)
        waiting = self._waiting_for_kind.setdefault(kind, {})
        first = not waiting
        waiting[controller, key] = None
        if kind not in self.informers:
            self.caches[kind] = Cache(kind, {"controller": controller_uid})
            self.informers[kind] = self._informer(kind)
            self._tasks.spawn(self.informers[kind].run(), name=f"informer {kind}")
        self.informers[kind].retry_now()  # a reference to the kind suggests that it is served by now
        if first:
            self._tasks.spawn(self._wake_waiting(kind), name=f"first list of {kind}")

    async def _wake_waiting(self, kind: Kind) -> None:
        await self.informers[kind].synced.wait()
        for controller, key in self._waiting_for_kind.pop(kind):
            self.trigger(controller, key)

    # --- wiring of controllers ----------------------------------------------------------------------------------

    def _informer(self, kind: Kind, labels: str = "", fields: str = "") -> Informer:
        contact = self._contacts[kind] = Contact(self._clock)
        return Informer(
            self._client,
            self.caches[kind],
            self._event_handler(kind),
            labels=labels,
            fields=fields or kind.fields,
            jitter=self._jitter,
            on_health=contact.report,
            on_list=self.metrics.lists.labels(kind=str(kind)).inc,
        )

    def _view(
        self,
        key: Key,
        caches: Mapping[Kind, Cache],
        dynamic_cache: Callable[[Kind], Cache | None] | None = None,
        refused: Refusal | None = None,
        rejected: str = "",
        kind: Kind | None = None,
    ) -> View:
        return View(
            key=key,
            now=self._clock(),
            caches=caches,
            results=self._effects.results,
            observe=self._remotes.observed if self._remotes else lambda _subscription: None,
            connection=self._remotes.connection if self._remotes else lambda _cluster: None,
            setting=self._setting,
            seed=self._seed,
            strict=self._strict,
            all_caches=self.caches,
            dynamic_cache=dynamic_cache,
            groups=self._groups_in_scope,
            refused=refused,
            rejected=rejected,
            connected_since=self._contacts[kind].since() if kind is not None else EVER,
        )

    def _event_handler(self, kind: Kind) -> Callable[[Change], None]:
        return lambda change: self._changed(kind, change)

    def _changed(self, kind: Kind, change: Change) -> None:
        for groups in self._groups.values():
            groups.changed(kind, change)
        for name, running in self.running.items():
            try:
                running.changed(kind, change)
                running.changed_dynamic(kind, change)
            except Exception as error:
                # A faulty handler of one controller must not hide the change from the others.
                log.error("event handler failed", controller=name, kind=str(kind), key=str(change.key), exc_info=error)
            if change.new is None and kind == running.controller.kind:
                self._effects.forget((name, change.key))
        for listener in self._listeners.get(kind, ()):
            try:
                listener(change)
            except Exception as error:
                log.error("listener failed", kind=str(kind), key=str(change.key), exc_info=error)
        for dynamic in self._dynamic_controllers:
            if change.new is not None and kind == dynamic.definitions:
                try:
                    self._start_dynamic(dynamic, change.new)
                except Exception as error:
                    log.error("dynamic controller failed", dynamic=dynamic.name, key=str(change.key), exc_info=error)

    def _observe(self, controller: str, decision: Decision, key: Key) -> None:
        if self._remotes is not None:
            self._remotes.subscribe(decision.observe, (controller, key), lambda: self.trigger(controller, key))
        elif decision.observe:
            raise LookupError("downstream clusters are not configured for this manager")

    def _perform(self, controller: str, effect: Effect, key: Key) -> str:
        return self._effects.perform(effect, (controller, key), lambda: self.trigger(controller, key))

    def _jitter(self) -> float:
        return int.from_bytes(self._entropy(2), "big") / 65536


def _no_settings(name: str) -> str:
    raise KeyError(name)


def _unspelled(kind: Kind) -> Kind:
    return kind._replace(kind="")


def _selectors(declared: Sequence[Watches]) -> dict[Kind, tuple[str, str]]:
    """Return the label and field selector per kind: the common one if all controllers agree, else none."""
    selectors: dict[Kind, set[tuple[str, str]]] = {}
    for watch in declared:
        selectors.setdefault(watch.kind, set()).add((watch.labels, watch.fields))
    return {
        kind: selector_set.pop() if len(selector_set) == 1 else ("", "") for kind, selector_set in selectors.items()
    }
