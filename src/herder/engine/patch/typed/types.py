"""Types for server-side apply: fields of an object, which lists are sets or maps, what is atomic.

A `TypeRef` is built from an OpenAPI schema of a built-in kind or a custom resource, and is resolved lazily: a Pod has
many definitions, and most objects use few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from herder.engine.patch.patches.schema import Definitions, PatchSchema, Schema, dereference, reference_name
from herder.engine.patch.typed.metadata import OBJECT_META

MAP, SCALAR, LIST = 0, 1, 2
UNTYPED = "untyped"

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_RAW_EXTENSION = "io.k8s.apimachinery.pkg.runtime.RawExtension"
_SCALARS = {"integer": "numeric", "number": "numeric", "boolean": "boolean"}
_ABSENT: Any = object()


class ListType:
    """A list: atomic (`associative` false), a set of scalars (no keys), or a map by the key fields of its items."""

    __slots__ = ("associative", "element", "keys", "sorted_keys")

    def __init__(self, element: TypeRef, associative: bool = False, keys: tuple[str, ...] = ()) -> None:
        self.element = element
        self.associative = associative
        self.keys = keys
        self.sorted_keys = sorted(keys)


class MapType:
    """An object: declared fields, and an optional type for other keys."""

    __slots__ = ("atomic", "defaults", "element", "fields", "implied", "is_struct")

    def __init__(
        self,
        fields: dict[str, TypeRef],
        element: TypeRef | None,
        atomic: bool = False,
        defaults: dict[str, Any] | None = None,
        implied: dict[str, Any] | None = None,
    ) -> None:
        self.fields = fields
        self.element = element
        self.atomic = atomic
        self.defaults = defaults or {}
        self.is_struct = implied is not None
        """Whether kube-apiserver represents it as a Go struct, in which every field is always present."""
        self.implied = implied or {}
        """Zero values of absent struct fields."""

    def type_of(self, key: str) -> TypeRef | None:
        return self.fields.get(key, self.element)


class Atom:
    """What a type allows a value to be: any of scalar, list and map."""

    __slots__ = ("fallback", "list", "map", "scalar")

    def __init__(self, *, scalar: str | None = None, list: ListType | None = None, map: MapType | None = None) -> None:
        self.scalar = scalar
        self.list = list
        self.map = map
        self.fallback = MAP if map is not None else SCALAR if scalar is not None else LIST

    def kind_of(self, value: Any) -> int:
        """Return the kind as which the value is treated. A value that matches none, such as null, is treated as the
        first."""
        kind = value.__class__
        if kind is dict:
            return MAP if self.map is not None else self.fallback
        if kind is list:
            return LIST if self.list is not None else self.fallback
        return SCALAR if self.scalar is not None and value is not None else self.fallback


class TypeRef:
    """A lazily resolved type: `atom` is a plain attribute after the first use, because it is read at every step."""

    __slots__ = ("_loose", "_resolve", "_schema", "atom", "builtin", "reconciled")

    atom: Atom

    def __init__(
        self, resolve: Callable[[], Atom], schema: tuple[Schema, Definitions] | None = None, *, builtin: bool = False
    ) -> None:
        self._resolve = resolve
        self._schema = schema
        self._loose: bool | None = None
        self.builtin = builtin
        self.reconciled: dict[bytes, Any] = {}
        """Field sets already reconciled with this type (see `ownership`)."""

    def __getattr__(self, name: str) -> Any:
        if name != "atom":
            raise AttributeError(name)
        self.atom = self._resolve()
        return self.atom

    @property
    def loose(self) -> bool:
        """Whether a value may change from true to 1 and still match, which `==` does not detect."""
        if self._loose is None:
            self._loose = False  # a recursive type is as loose as the rest of it
            self._loose = _is_loose(self.atom)
        return self._loose

    def patch_schema(self) -> PatchSchema:
        """Return the type as a schema for strategic merge patches."""
        schema, definitions = self._schema or ({}, {})
        return PatchSchema(schema, definitions)


def _is_loose(atom: Atom) -> bool:
    if atom.scalar == UNTYPED and atom.map is not None:
        return True
    if atom.list is not None:
        return atom.list.element.loose
    if atom.map is not None:
        element = atom.map.element
        # Objects are compared without managedFields, which would make every type with metadata loose.
        fields = (field for name, field in atom.map.fields.items() if name != "managedFields")
        return any(field.loose for field in fields) or (element is not None and element.loose)
    return False


def _untyped_atom() -> Atom:
    return Atom(scalar=UNTYPED, list=ListType(UNTYPED_ATOMIC), map=MapType({}, UNTYPED_ATOMIC, atomic=True))


def _deduced_atom() -> Atom:
    return Atom(scalar=UNTYPED, list=ListType(UNTYPED_ATOMIC), map=MapType({}, DEDUCED))


UNTYPED_ATOMIC = TypeRef(_untyped_atom)
DEDUCED = TypeRef(_deduced_atom)
"""Type of values without a schema: maps by key, atomic lists."""


class _Scope:
    """Definitions of one root type. Each definition has one type, so types may be recursive."""

    __slots__ = ("builtin", "definitions", "named")

    def __init__(self, definitions: Definitions, builtin: bool) -> None:
        self.definitions = definitions
        self.builtin = builtin
        """Whether objects are Go structs in kube-apiserver, as those of built-ins are."""
        self.named: dict[str, TypeRef] = {}

    def type_named(self, name: str) -> TypeRef:
        found = self.named.get(name)
        if found is None:
            schema = {"$ref": name}
            found = self.named[name] = TypeRef(lambda: self._atom_by_name(name), (schema, self.definitions))
        return found

    def _atom_by_name(self, name: str) -> Atom:
        if name == _QUANTITY:
            return Atom(scalar=UNTYPED)
        if name == _RAW_EXTENSION:
            return _untyped_atom()
        return _atom_of(dereference({"$ref": name}, self.definitions), self, preserve=False)


_CUSTOM = {"ObjectMeta": OBJECT_META}


def type_from_schema(schema: Schema | None, definitions: Definitions | None = None) -> TypeRef:
    """Return the type of an object.

    The schema of a built-in refers to `definitions` (a mapping, or a function from name to schema). That of a custom
    resource is self-contained and gets ObjectMeta. None means that nothing is known.
    """
    if not schema:
        return DEDUCED
    known = definitions if definitions is not None else {}
    root = dereference(schema, known)
    builtin = _is_builtin(root)
    if not builtin:
        root, known = _with_object_fields(root), _CUSTOM
    scope = _Scope(known, builtin)
    return TypeRef(lambda: _atom_of(root, scope, preserve=False), (root, known), builtin=builtin)


def _is_builtin(root: Schema) -> bool:
    """Return whether the schema is of a built-in: each refers to its metadata, while custom resources cannot use
    references."""
    properties = root.get("properties") or {}
    return bool(reference_name(properties.get("metadata") or {}))


def _with_object_fields(schema: Schema) -> Schema:
    text = {"type": "string"}
    object_fields = {"apiVersion": text, "kind": text, "metadata": {"$ref": "ObjectMeta"}}
    return {**schema, "properties": {**(schema.get("properties") or {}), **object_fields}}


def _reference(schema: Schema, scope: _Scope, preserve: bool) -> TypeRef:
    """Return the type of a field or an item, which may itself declare that a referenced map type is atomic."""
    name = reference_name(schema)
    if not name:
        return TypeRef(lambda: _atom_of(schema, scope, preserve), (schema, scope.definitions))
    named = scope.type_named(name)
    relationship = schema.get("x-kubernetes-map-type")
    if not relationship:
        return named

    def resolve() -> Atom:
        found = named.atom.map
        if found is None:
            return named.atom
        implied = found.implied if found.is_struct else None
        return Atom(map=MapType(found.fields, found.element, relationship == "atomic", found.defaults, implied))

    return TypeRef(resolve, (schema, scope.definitions))


def _atom_of(schema: Schema, scope: _Scope, preserve: bool) -> Atom:
    preserve = preserve or schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type") or ""
    if schema.get("x-kubernetes-embedded-resource") is True:
        schema = _with_object_fields(schema)
    if kind == "object":
        return Atom(map=_map_type(schema, scope, preserve))
    if kind == "array":
        return Atom(list=_list_type(schema, scope, preserve))
    if kind in _SCALARS:
        return Atom(scalar=_SCALARS[kind])
    if kind == "string":
        return Atom(scalar="string" if schema.get("format", "") in ("", "byte") else UNTYPED)
    if schema.get("format") == "int-or-string":
        return Atom(scalar=UNTYPED)
    return Atom(scalar=UNTYPED, list=_list_type(schema, scope, preserve), map=_map_type(schema, scope, preserve))


def _map_type(schema: Schema, scope: _Scope, preserve: bool) -> MapType:
    properties: Mapping[str, Schema] = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    element: TypeRef | None = None
    if isinstance(additional, Mapping):
        element = _reference(additional, scope, preserve)
    elif additional is True or (additional is None and (preserve or not properties)):
        element = DEDUCED
    return MapType(
        {name: _reference(field, scope, preserve) for name, field in properties.items()},
        element,
        schema.get("x-kubernetes-map-type") == "atomic",
        {name: field["default"] for name, field in properties.items() if field.get("default") is not None},
        _implied_values(schema, properties) if scope.builtin else None,
    )


def _implied_values(schema: Schema, properties: Mapping[str, Schema]) -> dict[str, Any]:
    """A default that is a Go zero value marks a field that is always there; so is a required one, if only as null."""
    required = schema.get("required") or ()
    implied: dict[str, Any] = {}
    for name, field in properties.items():
        default = field.get("default", _ABSENT)
        if default is _ABSENT:
            if name in required:
                implied[name] = None
        elif not default:
            implied[name] = default
    return implied


def _list_type(schema: Schema, scope: _Scope, preserve: bool) -> ListType:
    items = schema.get("items")
    element = _reference(items, scope, preserve) if isinstance(items, Mapping) else UNTYPED_ATOMIC
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return ListType(element, associative=True)
    if kind == "map":
        return ListType(element, associative=True, keys=tuple(schema.get("x-kubernetes-list-map-keys") or ()))
    if kind is None and str(schema.get("x-kubernetes-patch-strategy") or "").startswith("merge"):
        key = schema.get("x-kubernetes-patch-merge-key")
        return ListType(element, associative=True, keys=(key,) if key else ())
    return ListType(element)
