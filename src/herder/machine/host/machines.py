"""Machine operations of the daemon: one at a time per machine, completed even if the client disconnects.

A repeated creation with the same token joins the one in progress.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from herder.machine.driver import State
from herder.machine.errors import MachineError, PreCreateFailed, ServerGone
from herder.machine.host.kinds import Ask, MachineKind, Place, Record, Report
from herder.machine.host.protocol import Request
from herder.machine.host.records import Records, machine_id

GRACE_SECONDS = 20.0
KINDS = {
    "local": "herder.machine.host.local.kind:LocalKind",
    "process": "herder.machine.host.process.kind:ProcessKind",
}

log = logging.getLogger(__name__)


def load_kind(name: str, state_dir: Path) -> MachineKind:
    if name not in KINDS:
        raise PreCreateFailed(f'kind: "{name[:40]}" is none of {", ".join(KINDS)}')
    module, _, attribute = KINDS[name].partition(":")
    kind: MachineKind = getattr(importlib.import_module(module), attribute)(state_dir)
    return kind


@dataclass
class Creation:
    """A creation in progress, and its listeners."""

    listeners: list[Report] = field(default_factory=list)
    task: asyncio.Task[Place] | None = None

    def report(self, line: str) -> None:
        for listener in self.listeners:
            listener(line)


class Machines:
    def __init__(
        self,
        state_dir: Path,
        load: Callable[[str, Path], MachineKind] = load_kind,
        at_once: int = 2 * (os.cpu_count() or 1),
    ) -> None:
        self._state_dir = state_dir
        self._load = load
        self._records = Records(state_dir)
        self._kinds: dict[str, asyncio.Task[MachineKind]] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._creations: dict[str, Creation] = {}
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self._acts: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(at_once)
        self._waiting = 0

    def recover(self) -> None:
        """Start to bring every machine to its desired state after a restart of the daemon."""
        self._records.load()
        for record in self._records:
            recovery = self._begin(self._recover(record))
            if record.wanted != "removed":
                self._recoveries[record.id] = recovery

    async def recovered(self, request: Request) -> None:
        """Wait until the machine is recovered, as far as possible; removals are not waited for."""
        recovery = self._recoveries.get(machine_id(request.scope, request.name))
        if recovery is not None:
            await asyncio.wait({recovery})

    async def close(self) -> None:
        """Cancel operations in progress, as a power failure would; machines keep running."""
        for act in list(self._acts):
            act.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)
        for kind in list(self._kinds.values()):
            if kind.done() and not kind.cancelled() and kind.exception() is None:
                await kind.result().close()

    async def check(self, request: Request, _tell: Report) -> dict[str, Any]:
        (await self._kind(request.kind)).check(request.options)
        return {}

    async def create(self, request: Request, report: Report) -> dict[str, Any]:
        record = self._records.find(request.scope, request.name)
        if record is None:
            (await self._kind(request.kind)).check(request.options)
            record = self._records.find(request.scope, request.name)  # another request may have created it meanwhile
        if record is None:
            record = self._records.add(request.scope, request.name, request.kind, request.token, request.options)
        if record.token != request.token:
            raise MachineError(
                f'machine "{request.name}" already exists on this host, from another creation',
                "remove it first, or choose another name",
            )
        if record.wanted == "removed":
            raise MachineError(f'machine "{request.name}" is being removed', "create it again after that")
        place = record.place or await self._joined(record, request.ask, report)
        return asdict(place)

    async def start(self, request: Request, report: Report) -> dict[str, Any]:
        record = self._complete(request)

        async def act(kind: MachineKind) -> None:
            self._want(record, "running")
            self._put(record, await kind.start(record, report))

        await self._do(record, act)
        return {}

    async def stop(self, request: Request, _tell: Report) -> dict[str, Any]:
        return await self._stop(self._complete(request), GRACE_SECONDS)

    async def kill(self, request: Request, _tell: Report) -> dict[str, Any]:
        return await self._stop(self._complete(request), 0)

    async def restart(self, request: Request, report: Report) -> dict[str, Any]:
        record = self._complete(request)

        async def act(kind: MachineKind) -> None:
            self._want(record, "running")
            await kind.stop(record, grace=GRACE_SECONDS)
            self._put(record, await kind.start(record, report))

        await self._do(record, act)
        return {}

    async def state(self, request: Request, _tell: Report) -> dict[str, Any]:
        record = self._find(request)
        return {"state": str(await self._state(record) if record else State.NOT_FOUND)}

    async def place(self, request: Request, _tell: Report) -> dict[str, Any]:
        place = self._complete(request).place
        return asdict(place) if place else {}

    async def remove(self, request: Request, _tell: Report) -> dict[str, Any]:
        record = self._find(request)
        if record is not None:
            self._want(record, "removed")
            await asyncio.shield(self._begin(self._remove(record)))
        return {}

    async def purge(self, _request: Request, _tell: Report) -> dict[str, Any]:
        """Remove all machines before the state directory is deleted, because they would outlive it."""
        removals = []
        for record in self._records:
            self._want(record, "removed")
            removals.append(asyncio.shield(self._begin(self._remove(record))))
        await asyncio.gather(*removals)
        return {}

    async def list(self, _request: Request, _tell: Report) -> dict[str, Any]:
        return {"machines": [await self._listed(record) for record in self._records]}

    async def _listed(self, record: Record) -> dict[str, str]:
        try:
            state = await self._state(record)
        except MachineError:
            state = State.ERROR  # of a kind that this host no longer supports
        return {
            "scope": record.scope,
            "name": record.name,
            "kind": record.kind,
            "state": str(state),
            "address": record.place.address if record.place else "",
            "directory": str(record.directory),
        }

    def _find(self, request: Request) -> Record | None:
        """A record with another token is another machine of the same name."""
        record = self._records.find(request.scope, request.name)
        return record if record is not None and record.token == request.token else None

    def _complete(self, request: Request) -> Record:
        record = self._find(request)
        if record is None or record.wanted == "removed":
            raise ServerGone(
                f'machine "{request.name}" does not exist on this host', "remove its state and create it again"
            )
        if record.place is None:
            raise MachineError(
                f'the creation of machine "{request.name}" is not finished', "create it again, or remove it"
            )
        return record

    async def _kind(self, name: str) -> MachineKind:
        if name not in self._kinds:
            self._kinds[name] = asyncio.create_task(self._prepared(name))
        try:
            return await asyncio.shield(self._kinds[name])
        except Exception:
            self._kinds.pop(name, None)  # a missing dependency may be installed by the next time
            raise

    async def _prepared(self, name: str) -> MachineKind:
        kind = self._load(name, self._state_dir)
        await kind.prepare()
        return kind

    def _want(self, record: Record, wanted: str) -> None:
        if record.wanted != wanted:
            record.wanted = wanted
            record.save()

    def _put(self, record: Record, place: Place) -> None:
        if record.place != place:
            record.place = place
            record.save()

    async def _state(self, record: Record) -> State:
        if record.id in self._creations:
            return State.STARTING
        if record.wanted == "removed":
            return State.STOPPING
        if record.place is None:
            return State.ERROR  # interrupted: create it again, or remove it
        return (await self._kind(record.kind)).state(record)

    async def _joined(self, record: Record, ask: Ask, report: Report) -> Place:
        creation = self._creations.get(record.id)
        if creation is None:
            creation = self._creations[record.id] = Creation()
            creation.task = self._begin(self._create(record, ask, creation))
            creation.task.add_done_callback(lambda _task: self._creations.pop(record.id, None))
        assert creation.task is not None
        creation.listeners.append(report)
        try:
            return await asyncio.shield(creation.task)
        except asyncio.CancelledError:
            if creation.task.cancelled():
                raise MachineError(f'the creation of machine "{record.name}" was interrupted') from None
            raise
        finally:
            creation.listeners.remove(report)

    async def _create(self, record: Record, ask: Ask, creation: Creation) -> Place:
        kind = await self._kind(record.kind)
        async with self._turn(record):
            await self._slot(creation)
            try:
                place = await kind.create(record, ask, creation.report)
            finally:
                self._slots.release()
            self._put(record, place)
        return place

    async def _slot(self, creation: Creation) -> None:
        if self._slots.locked():
            creation.report(f"Waiting for {self._waiting + 1} other machines to be created on this host")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    async def _stop(self, record: Record, grace: float) -> dict[str, Any]:
        async def act(kind: MachineKind) -> None:
            self._want(record, "stopped")
            await kind.stop(record, grace=grace)

        await self._do(record, act)
        return {}

    async def _remove(self, record: Record) -> None:
        self._break_off(record)
        async with self._turn(record):
            if self._records.find(record.scope, record.name) is not record:
                return  # another request has removed it already
            await (await self._kind(record.kind)).remove(record)
            await self._records.drop(record)
            self._turns.pop(record.id, None)

    def _break_off(self, record: Record) -> None:
        """Cancel a creation, since the machine is to be removed."""
        creation, recovery = self._creations.get(record.id), self._recoveries.get(record.id)
        if creation is not None and creation.task is not None:
            creation.task.cancel()
        if recovery is not None:
            recovery.cancel()

    async def _recover(self, record: Record) -> None:
        try:
            if record.wanted == "removed":
                await self._remove(record)
            elif record.place is not None:  # an incomplete one waits for its client to repeat the request
                kind = await self._kind(record.kind)
                async with self._turn(record), self._slots:
                    if record.wanted == "running":
                        await kind.recover(record)
                    elif record.wanted == "stopped":
                        await kind.stop(record, grace=GRACE_SECONDS)
        except Exception as error:
            log.exception("cannot recover machine %s/%s: %s", record.scope, record.name, error)
        finally:
            self._recoveries.pop(record.id, None)

    async def _do(self, record: Record, act: Callable[[MachineKind], Awaitable[None]]) -> None:
        async def in_turn() -> None:
            kind = await self._kind(record.kind)
            async with self._turn(record):
                if record.wanted == "removed":
                    raise ServerGone(f'machine "{record.name}" is being removed')
                await act(kind)

        await asyncio.shield(self._begin(in_turn()))

    def _turn(self, record: Record) -> asyncio.Lock:
        return self._turns.setdefault(record.id, asyncio.Lock())

    def _begin(self, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in the background, independent of the client."""
        task = asyncio.create_task(act)
        self._acts.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._acts.discard(task)
        if not task.cancelled():
            task.exception()  # reported to the client, if it is still connected
