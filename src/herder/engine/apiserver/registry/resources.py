"""Served resources, and the registry that finds them by path, kind and name.

A `Resource` is one collection of objects (group and plural); each of its served `Version`s has its own type. Built-in
resources are registered at start from generated data, custom resources when their CRD is established.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from herder.engine.apiserver.registry.strategy import DEFAULT_STRATEGY, Strategy
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersionKind, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed.types import TypeRef

Schema = Mapping[str, Any]
"""An OpenAPI v3 schema; a `$ref` refers to the definitions of the type model."""


class TypeModel(Protocol):
    """The type of one version of a kind. Built-in and custom types implement the same protocol."""

    @property
    def merge_type(self) -> TypeRef:
        """Schema for server-side apply and strategic merge patch."""
        ...

    def decode(self, obj: Object) -> tuple[Object, list[str]]:
        """Return the object without unknown fields, and those fields as strict-decoding errors (`unknown field
        "spec.foo"`).

        Raises BadRequest if a value of a built-in type has the wrong type.
        """
        ...

    def default(self, obj: Object) -> None:
        """Apply the schema's defaults, in place."""
        ...

    def validate(
        self, obj: Object, old: Object | None, *, subresource: str = "", warnings: list[str] | None = None
    ) -> list[FieldError]:
        """Return the errors of the schema and its CEL rules. `old` enables ratcheting and transition rules.

        Errors that ratcheting tolerates are added to `warnings`.
        """
        ...

    def compiles_large_schema(self) -> bool:
        """Whether the next use compiles a large schema, and should therefore run in the executor's thread."""
        ...

    def openapi(self) -> Schema:
        """Return the schema to publish."""
        ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Table, as declared by additionalPrinterColumns or a built-in printer."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = ""  # custom resources only; built-in kinds have a row function


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """JSON paths of the scale subresource."""

    spec_replicas: str
    status_replicas: str
    label_selector: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a resource."""

    name: str
    model: TypeModel
    served: bool = True
    columns: Sequence[Column] = ()
    row: Callable[[Object, datetime], list[Any]] | None = (
        None  # built-in printers only; None: `columns` have JSON paths
    )
    selectable: Sequence[str] = ()  # JSON paths of selectable fields; custom resources only
    status: bool = False
    scale: ScalePaths | None = None
    deprecation: str = ""  # text of the Warning header of every request


# Handler of a subresource other than status and scale. Receives a SubresourceRequest and returns an object; see
# verbs/subresources.py.
SubresourceCall = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource other than status and scale."""

    name: str
    kind: GroupVersionKind
    verbs: tuple[str, ...]  # RBAC verbs: get, create, update, patch …
    call: SubresourceCall


ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource (group and plural) with all its versions, and what differs between kinds."""

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
    strategy: Strategy = DEFAULT_STRATEGY
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    custom: bool = False
    # Handler of a create-only resource that is computed and never stored (reviews).
    virtual: Callable[..., Awaitable[Object]] | None = None
    # The resource that stores the objects, if another group serves the same ones (events.k8s.io and core events).
    stored_as: GroupResource | None = None
    # Version conversion: (objects, desired apiVersion) -> objects. None: only apiVersion changes.
    convert: Callable[[Sequence[Object], str], Awaitable[list[Object]]] | None = None
    convert_renames: bool = False  # `convert` only renames fields, and drops those unknown to the other version
    # Objects stored before this revision were written under an older schema. `prune_and_default` adapts them, in place,
    # to the current schema of their storage version.
    schema_changed_at: int = 0
    prune_and_default: Callable[[Object], None] | None = None

    # Derived; every request needs them several times.
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
    """All resources that are currently served. `generation` increases with every change, as a key for caches."""

    def __init__(self, resources: Iterable[Resource] = ()) -> None:
        self._by_resource: dict[GroupResource, Resource] = {}
        self._by_kind: dict[GroupKind, Resource] = {}
        self.generation = 0
        for resource in resources:
            self.add(resource)

    def add(self, resource: Resource) -> None:
        """Serve a resource, replacing one of the same name."""
        self.remove(resource.group_resource)
        self._by_resource[resource.group_resource] = resource
        self._by_kind[resource.group_kind] = resource
        self.generation += 1

    def remove(self, name: GroupResource) -> None:
        removed = self._by_resource.pop(name, None)
        if removed is not None:
            self._by_kind.pop(removed.group_kind, None)
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
