"""The resources that a server serves, and the registry that finds them by path, kind and name.

A `Resource` is one collection of objects (group and plural); each served `Version` of it has its own type. Built-in
resources are registered at start from generated data; custom ones come and go with their definitions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from herder.engine.apiserver.strategy import PLAIN, Strategy
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersionKind, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed import TypeRef

Schema = Mapping[str, Any]
"""An OpenAPI v3 schema; `$ref` values are looked up in the type model's definitions."""


class TypeModel(Protocol):
    """The shape of one version of one kind: built-in types and custom ones answer the same questions."""

    @property
    def merge_type(self) -> TypeRef:
        """For server-side apply and strategic merge."""
        ...

    def decode(self, obj: Object) -> tuple[Object, list[str]]:
        """The object without fields the type does not know, and those fields as strict-decoding complaints
        (`unknown field "spec.foo"`). Raises BadRequest where a built-in's value has the wrong type."""
        ...

    def default(self, obj: Object) -> None:
        """Fill in the schema's defaults, in place."""
        ...

    def validate(
        self, obj: Object, old: Object | None, *, subresource: str = "", warnings: list[str] | None = None
    ) -> list[FieldError]:
        """What the schema (and its rules) find wrong; `old` for ratcheting and transition rules. What is let pass
        because it was wrong before is added to `warnings`."""
        ...

    def compiles_much(self) -> bool:
        """Whether the next use compiles a large schema, so that it belongs beside the event loop."""
        ...

    def openapi(self) -> Schema:
        """The schema to publish."""
        ...


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Table: as additionalPrinterColumns and the built-in printers declare it."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = ""  # for custom resources; built-ins have a row function instead


@dataclass(frozen=True, slots=True)
class ScalePaths:
    spec_replicas: str
    status_replicas: str
    label_selector: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    name: str
    model: TypeModel
    served: bool = True
    columns: Sequence[Column] = ()
    row: Callable[[Object, datetime], list[Any]] | None = (
        None  # built-in printers; None means `columns` have JSON paths
    )
    selectable: Sequence[str] = ()  # JSON paths of selectable fields, custom resources only
    status: bool = False
    scale: ScalePaths | None = None
    deprecation: str = ""  # text of the Warning header on each use


# A subresource other than status and scale. Gets the stored parent (None where it is absent), the verb and the
# decoded body, and answers an object; see verbs/ for how it is called.
SubresourceCall = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Subresource:
    name: str
    kind: GroupVersionKind
    verbs: tuple[str, ...]  # RBAC verbs: get, create, update, patch …
    call: SubresourceCall


ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    versions: Mapping[str, Version]
    storage_version: str
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    strategy: Strategy = PLAIN
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    custom: bool = False
    # A create-only resource that is computed, never stored (reviews): body in, answer out.
    virtual: Callable[..., Awaitable[Object]] | None = None
    # Where objects lie, when another group serves the same ones (events.k8s.io and core events).
    stored_as: GroupResource | None = None
    # Between versions: (objects, wanted apiVersion) -> objects. None: only apiVersion changes.
    convert: Callable[[Sequence[Object], str], Awaitable[list[Object]]] | None = None
    convert_renames: bool = False  # all that `convert` does is rename, and drop what the other version does not know
    # Objects stored before this revision were written under another schema: `reshape` makes them, in place, what
    # the schema of the version that they are stored in says now.
    schema_changed_at: int = 0
    reshape: Callable[[Object], None] | None = None

    # Derived, and asked for several times with each request.
    group_resource: GroupResource = field(init=False, repr=False)
    group_kind: GroupKind = field(init=False, repr=False)
    storage: GroupResource = field(init=False, repr=False)

    def __post_init__(self) -> None:
        own = GroupResource(self.group, self.plural)
        object.__setattr__(self, "group_resource", own)
        object.__setattr__(self, "group_kind", GroupKind(self.group, self.kind))
        object.__setattr__(self, "storage", self.stored_as or own)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    def with_strategy(self, strategy: Strategy) -> Resource:
        return replace(self, strategy=strategy)


class Registry:
    """Every resource served now. `generation` moves with each change, so what is derived can be cached by it."""

    def __init__(self, resources: Iterable[Resource] = ()) -> None:
        self._by_resource: dict[GroupResource, Resource] = {}
        self._by_kind: dict[GroupKind, Resource] = {}
        self.generation = 0
        for resource in resources:
            self.add(resource)

    def add(self, resource: Resource) -> None:
        """Serve a resource, in place of an earlier one of the same name."""
        self.remove(resource.group_resource)
        self._by_resource[resource.group_resource] = resource
        self._by_kind[resource.group_kind] = resource
        self.generation += 1

    def remove(self, name: GroupResource) -> None:
        gone = self._by_resource.pop(name, None)
        if gone is not None:
            self._by_kind.pop(gone.group_kind, None)
            self.generation += 1

    def get(self, name: GroupResource) -> Resource | None:
        return self._by_resource.get(name)

    def by_kind(self, kind: GroupKind) -> Resource | None:
        return self._by_kind.get(kind)

    def served(self, group: str, version: str, plural: str) -> tuple[Resource, Version] | None:
        resource = self._by_resource.get(GroupResource(group, plural))
        found = resource.versions.get(version) if resource else None
        return (resource, found) if resource and found and found.served else None

    def serves_group_version(self, group: str, version: str) -> bool:
        return any(r.group == group and version in r.versions and r.versions[version].served for r in self)

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_resource.values()))
