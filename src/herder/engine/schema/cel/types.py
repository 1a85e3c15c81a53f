"""CEL types of the checker.

A type from an OpenAPI schema also carries sizes and list semantics (`x-kubernetes-list-type`) of the schema. These are
not part of its identity: a string of at most five characters is a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from herder.engine.schema.cel.parse.escaping import RESERVED


class Type:
    """A CEL type. `kind` is its class; `name` and `params` distinguish types of that kind."""

    __slots__ = ("kind", "list_keys", "list_type", "max_elements", "min_size", "name", "params")

    def __init__(
        self,
        kind: str,
        name: str = "",
        params: tuple[Type, ...] = (),
        *,
        max_elements: int | None = None,
        min_size: int = 1,
        list_type: str = "atomic",
        list_keys: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.name = name or kind
        self.params = params
        self.max_elements = max_elements
        self.min_size = min_size
        self.list_type = list_type
        self.list_keys = list_keys

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Type)
            and self.kind == other.kind
            and self.name == other.name
            and self.params == other.params
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.params))

    def __str__(self) -> str:
        """Format as in compile errors, which for a few types differs from the run-time name."""
        if not self.params:
            return _SHOWN.get(self.kind, self.name)
        return f"{self.name}({', '.join(map(str, self.params))})"

    __repr__ = __str__


_SHOWN = {"timestamp": "timestamp", "duration": "duration", "null_type": "null"}


class Field:
    """A property of an object type: its type, and its key in the data (unescaped)."""

    __slots__ = ("key", "type")

    def __init__(self, key: str, type: Type) -> None:
        self.key = key
        self.type = type


class ObjectType(Type):
    """A type with known fields, by their names in expressions."""

    __slots__ = ("fields",)

    def __init__(self, name: str, fields: Mapping[str, Field], *, min_size: int = 2) -> None:
        super().__init__("object", name, min_size=min_size)
        self.fields = fields

    def find(self, name: str) -> Field | None:
        """Return the field for a name; reserved words may be written unescaped (`self.namespace`)."""
        field = self.fields.get(name)
        if field is None and name in RESERVED:
            return self.fields.get(f"__{name}__")
        return field


BOOL: Final = Type("bool", min_size=4)
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string", min_size=2)
BYTES: Final = Type("bytes", min_size=2)
NULL: Final = Type("null_type")
DYN: Final = Type("dyn")
ERROR: Final = Type("error", "!error!")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
DURATION: Final = Type("duration", "google.protobuf.Duration")
TYPE: Final = Type("type")


def list_of(element: Type, *, max_elements: int | None = None) -> Type:
    return Type("list", "list", (element,), max_elements=max_elements, min_size=2)


def map_of(key: Type, value: Type, *, max_elements: int | None = None) -> Type:
    return Type("map", "map", (key, value), max_elements=max_elements, min_size=2)


def opaque(name: str, *params: Type) -> Type:
    return Type("opaque", name, params)


def optional_of(value: Type) -> Type:
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", "type", (value,))


def param(name: str) -> Type:
    """Return a type variable: a declared one (`T`) or a fresh one of the checker (`_var3`)."""
    return Type("param", name)


def is_dyn(type: Type) -> bool:
    return type.kind == "dyn" or type.kind == "error"


def is_optional(type: Type) -> bool:
    return type.kind == "opaque" and type.name == "optional_type"


def unwrap_optional(type: Type) -> tuple[Type, bool]:
    """Return the type inside an optional, and whether it was one."""
    if is_optional(type):
        return type.params[0], True
    return type, False


QUANTITY: Final = ObjectType("kubernetes.Quantity", {})
URL: Final = ObjectType("kubernetes.URL", {})
IP: Final = opaque("net.IP")
CIDR: Final = opaque("net.CIDR")
SEMVER: Final = ObjectType("kubernetes.Semver", {})
FORMAT: Final = ObjectType("kubernetes.NamedFormat", {})
AUTHORIZER: Final = ObjectType("kubernetes.authorization.Authorizer", {})
PATH_CHECK: Final = ObjectType("kubernetes.authorization.PathCheck", {})
GROUP_CHECK: Final = ObjectType("kubernetes.authorization.GroupCheck", {})
RESOURCE_CHECK: Final = ObjectType("kubernetes.authorization.ResourceCheck", {})
DECISION: Final = ObjectType("kubernetes.authorization.Decision", {})
