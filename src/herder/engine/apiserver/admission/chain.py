"""Admission chain: runs mutating plugins and then validating plugins on every write, in registration order.

The plugins for an operation, resource and subresource are looked up once and cached: a write without plugins costs one
dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from herder.engine.apiserver.registry.resources import Resource
from herder.engine.meta.errors import Forbidden, forbidden
from herder.engine.meta.kinds import GroupResource, GroupVersionKind, Object
from herder.engine.wire import User

CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"
WRITES = frozenset({CREATE, UPDATE, DELETE})


@dataclass(slots=True)
class Attributes:
    """One write in admission (admission.Attributes in Kubernetes). Mutating plugins may modify or replace `obj`."""

    operation: str
    resource: Resource
    version: str  # requested version, also of `obj` and `old`
    user: User
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    kind: GroupVersionKind | None = None  # kind of `obj`, if a subresource has its own; None: the resource's kind
    obj: Object | None = None
    old: Object | None = None
    options: Object | None = None  # the CreateOptions, UpdateOptions or DeleteOptions of the request
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)
    # Decodes and defaults an object returned by a webhook or policy; None: the resource's type does.
    normalizer: Callable[[Object], Object] | None = None
    plugin_state: dict[str, Any] = field(default_factory=dict)  # state of plugins, kept between invocations
    reinvoking: bool = False
    reinvoke: bool = False  # set by a plugin after a change, so that all plugins run again

    @property
    def group_version_kind(self) -> GroupVersionKind:
        return self.kind or GroupVersionKind(self.resource.group, self.version, self.resource.kind)

    def normalized(self, obj: Object) -> Object:
        if self.normalizer is not None:
            return self.normalizer(obj)
        model = self.resource.versions[self.version].model
        decoded, _ = model.decode(obj)
        model.default(decoded)
        return decoded

    @property
    def object(self) -> Object:
        """The object to validate: the new one, or the deleted one."""
        return self.obj if self.obj is not None else (self.old or {})


class Plugin(Protocol):
    """Selects writes. `resources` None means all; `subresources` None means all, and "" is the object itself."""

    name: str
    operations: frozenset[str]
    resources: frozenset[GroupResource] | None
    subresources: frozenset[str] | None


class Mutating(Plugin, Protocol):
    """A plugin that may modify the object."""

    async def admit(self, attributes: Attributes) -> None: ...


class Validating(Plugin, Protocol):
    """A plugin that may reject the write."""

    async def validate(self, attributes: Attributes) -> None: ...


Admit = Callable[[Attributes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Step:
    """One registered function and the writes it applies to."""

    name: str
    operations: frozenset[str]
    resources: frozenset[GroupResource] | None
    subresources: frozenset[str] | None
    run: Admit
    last: bool = False  # webhooks and policies run after all other plugins
    groups: frozenset[str] = frozenset()  # API groups of which all resources match, in addition to `resources`

    def matches(self, operation: str, resource: GroupResource, subresource: str) -> bool:
        return (
            operation in self.operations
            and (self.resources is None or resource in self.resources or resource.group in self.groups)
            and (self.subresources is None or subresource in self.subresources)
        )


class _Selected(NamedTuple):
    """The functions for one kind of write."""

    mutating: tuple[Admit, ...]
    validating: tuple[Admit, ...]
    of_this_server: tuple[Admit, ...]


class Chain:
    """Ordered mutating and validating plugins."""

    def __init__(self) -> None:
        self._mutating: list[_Step] = []
        self._validating: list[_Step] = []
        self._cache: dict[tuple[str, GroupResource, str], _Selected] = {}

    def add(self, plugin: Plugin, *, last: bool = False) -> None:
        """Add a plugin with `admit`, `validate` or both."""
        properties = (plugin.name, plugin.operations, plugin.resources, plugin.subresources)
        admit, validate = getattr(plugin, "admit", None), getattr(plugin, "validate", None)
        if admit is not None:
            self._insert(self._mutating, _Step(*properties, admit, last))
        if validate is not None:
            self._insert(self._validating, _Step(*properties, validate, last))

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
        """Add a mutating function. `groups` are API groups whose kinds are defined at run time."""
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

    async def repeat(self, attributes: Attributes) -> None:
        """Run the plugins of this server again on a copy of the result, because the rights that they check may have
        ended. Webhooks and policies are asked once."""
        for run in self._steps(attributes).of_this_server:
            await run(attributes)

    async def admit(self, attributes: Attributes) -> None:
        """Run the mutating plugins, and all of them again if one requests reinvocation."""
        steps = self._steps(attributes).mutating
        if not steps:
            return
        for run in steps:
            await run(attributes)
        if attributes.reinvoke:
            attributes.reinvoking = True
            for run in steps:
                await run(attributes)

    async def validate(self, attributes: Attributes) -> None:
        """Run the validating plugins. They must not modify the object."""
        for run in self._steps(attributes).validating:
            await run(attributes)

    def _insert(self, steps: list[_Step], step: _Step) -> None:
        position = len(steps) if step.last else sum(1 for other in steps if not other.last)
        steps.insert(position, step)
        self._cache.clear()

    def _steps(self, attributes: Attributes) -> _Selected:
        key = (attributes.operation, attributes.resource.group_resource, attributes.subresource)
        found = self._cache.get(key)
        if found is None:
            mutating = [step for step in self._mutating if step.matches(*key)]
            validating = [step for step in self._validating if step.matches(*key)]
            found = self._cache[key] = _Selected(
                tuple(step.run for step in mutating),
                tuple(step.run for step in validating),
                tuple(step.run for step in (*mutating, *validating) if not step.last),
            )
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
    """Return the object's metadata; empty if it has none."""
    found = (obj or {}).get("metadata")
    return found if isinstance(found, dict) else {}


def denied_by_plugin(attributes: Attributes, why: str) -> Forbidden:
    """Return the Forbidden error of a plugin, with kube-apiserver's message."""
    own = metadata(attributes.obj)
    name = attributes.name or own.get("name") or own.get("generateName") or "Unknown"
    return forbidden(attributes.resource.group_resource, name, why)
