"""Admission: what may be written, after the caller was found allowed to write at all.

A chain runs twice over each write: once to change the object (`admit`), once to judge it (`validate`), in the order
in which plug-ins were added. Which plug-ins care about a kind of write is worked out once and remembered, so that a
write which no plug-in cares about pays for one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from herder.engine.apiserver.resources import Resource
from herder.engine.client.wire import User
from herder.engine.meta.errors import Forbidden, forbidden
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object

CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"
WRITES = frozenset({CREATE, UPDATE, DELETE})


@dataclass(slots=True)
class Attributes:
    """One write under judgement. Mutating plug-ins may change `obj` in place or replace it."""

    operation: str
    resource: Resource
    version: str  # the version asked for; `obj` and `old` are in it
    user: User
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    kind: GroupVersionKind | None = None  # of `obj`, where a subresource has its own; None: the resource's
    obj: Object | None = None
    old: Object | None = None
    options: Object | None = None  # the CreateOptions, UpdateOptions … of the call
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    # Decode and default again an object that came back from outside; the type's own decoder where none is given.
    settle: Callable[[Object], Object] | None = None
    scratch: dict[str, Any] = field(default_factory=dict)  # plug-ins' own notes between the two passes
    reinvoking: bool = False
    reinvoke: bool = False  # set by a plug-in whose change others should see again

    @property
    def group_version_kind(self) -> GroupVersionKind:
        return self.kind or GroupVersionKind(self.resource.group, self.version, self.resource.kind)

    def settled(self, obj: Object) -> Object:
        if self.settle is not None:
            return self.settle(obj)
        model = self.resource.versions[self.version].model
        decoded, _ = model.decode(obj)
        model.default(decoded)
        return decoded

    @property
    def object(self) -> Object:
        """The object to judge: the new one, or the one that is going away."""
        return self.obj if self.obj is not None else (self.old or {})


class Plugin(Protocol):
    """`resources` None means all; `subresources` None means all, else those named ("" is the object itself)."""

    name: str
    operations: frozenset[str]
    resources: frozenset[GroupResource] | None
    subresources: frozenset[str] | None


class Mutating(Plugin, Protocol):
    async def admit(self, attributes: Attributes) -> None: ...


class Validating(Plugin, Protocol):
    async def validate(self, attributes: Attributes) -> None: ...


Admit = Callable[[Attributes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    operations: frozenset[str]
    resources: frozenset[GroupResource] | None
    subresources: frozenset[str] | None
    run: Admit
    last: bool = False  # webhooks and policies: after every plug-in of the process
    groups: frozenset[str] = frozenset()  # API groups all of whose resources are concerned, besides `resources`

    def concerns(self, operation: str, resource: GroupResource, subresource: str) -> bool:
        return (
            operation in self.operations
            and (self.resources is None or resource in self.resources or resource.group in self.groups)
            and (self.subresources is None or subresource in self.subresources)
        )


class Chain:
    def __init__(self) -> None:
        self._mutating: list[_Step] = []
        self._validating: list[_Step] = []
        self._found: dict[tuple[str, GroupResource, str], tuple[tuple[Admit, ...], tuple[Admit, ...]]] = {}

    def add(self, plugin: Plugin, *, last: bool = False) -> None:
        """A plug-in with `admit`, `validate`, or both."""
        facts = (plugin.name, plugin.operations, plugin.resources, plugin.subresources)
        admit, validate = getattr(plugin, "admit", None), getattr(plugin, "validate", None)
        if admit is not None:
            self._insert(self._mutating, _Step(*facts, admit, last))
        if validate is not None:
            self._insert(self._validating, _Step(*facts, validate, last))

    def add_mutating(
        self,
        name: str,
        resources: Iterable[GroupResource] | None,
        run: Admit,
        *,
        operations: Iterable[str] = (CREATE, UPDATE),
        subresources: Iterable[str] | None = ("",),
        groups: Iterable[str] = (),
    ) -> None:
        """`groups`: API groups whose kinds are defined at run time."""
        self._insert(self._mutating, _step(name, operations, resources, subresources, run, groups))

    def add_validating(
        self,
        name: str,
        resources: Iterable[GroupResource] | None,
        run: Admit,
        *,
        operations: Iterable[str] = (CREATE, UPDATE),
        subresources: Iterable[str] | None = ("",),
    ) -> None:
        self._insert(self._validating, _step(name, operations, resources, subresources, run))

    async def admit(self, attributes: Attributes) -> None:
        """Let plug-ins change the object. Once more for all, where one asks for it."""
        steps = self._steps(attributes)[0]
        if not steps:
            return
        for run in steps:
            await run(attributes)
        if attributes.reinvoke:
            attributes.reinvoking = True
            for run in steps:
                await run(attributes)

    async def validate(self, attributes: Attributes) -> None:
        """Let plug-ins refuse the write. The object is settled: they must not change it."""
        for run in self._steps(attributes)[1]:
            await run(attributes)

    def _insert(self, steps: list[_Step], step: _Step) -> None:
        position = len(steps) if step.last else sum(1 for other in steps if not other.last)
        steps.insert(position, step)
        self._found.clear()

    def _steps(self, attributes: Attributes) -> tuple[tuple[Admit, ...], tuple[Admit, ...]]:
        key = (attributes.operation, attributes.resource.group_resource, attributes.subresource)
        found = self._found.get(key)
        if found is None:
            mutating = tuple(step.run for step in self._mutating if step.concerns(*key))
            validating = tuple(step.run for step in self._validating if step.concerns(*key))
            found = self._found[key] = (mutating, validating)
        return found


def _step(
    name: str,
    operations: Iterable[str],
    resources: Iterable[GroupResource] | None,
    subresources: Iterable[str] | None,
    run: Admit,
    groups: Iterable[str] = (),
) -> _Step:
    return _Step(
        name,
        frozenset(operations),
        None if resources is None else frozenset(resources),
        None if subresources is None else frozenset(subresources),
        run,
        groups=frozenset(groups),
    )


def metadata(obj: Object | None) -> Mapping[str, Any]:
    """An object's metadata, or nothing where there is none."""
    found = (obj or {}).get("metadata")
    return found if isinstance(found, dict) else {}


def refused(attributes: Attributes, why: str) -> Forbidden:
    """The refusal of a plug-in, in the real server's words."""
    own = metadata(attributes.obj)
    name = attributes.name or own.get("name") or own.get("generateName") or "Unknown"
    return forbidden(attributes.resource.group_resource, name, why)
