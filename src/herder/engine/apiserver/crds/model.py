"""Type of one version of a custom resource, compiled from its structural schema.

Compiling takes milliseconds, and most schemas are never used between two restarts. It therefore happens on first use
and is cached by the schema's content: a CRD whose status changes keeps its compiled schemas.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from herder.engine.apiserver.builtin import leaves
from herder.engine.apiserver.crds.scale_validation import scale_problems
from herder.engine.apiserver.registry.resources import ScalePaths
from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.meta.kinds import GroupVersionKind, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed.types import TypeRef
    from herder.engine.schema import CompiledSchema

_OBJECT_META = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_OBJECT_FIELDS: Object = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"allOf": [{"$ref": _OBJECT_META}]},
}
_LARGE_SCHEMA = 32 << 10
_ANYTHING: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class CustomModel:
    """`resources.TypeModel` of custom resources."""

    def __init__(self, kind: GroupVersionKind, schema: Object | None, scale: ScalePaths | None = None) -> None:
        self.kind = kind
        self.schema = schema if schema is not None else _ANYTHING
        self.scale = scale
        self._used = False

    @cached_property
    def _key(self) -> bytes:
        return msgspec.json.encode(self.schema)

    def compiles_large_schema(self) -> bool:
        """Whether the next use is the first one of a large schema, and therefore compiles it."""
        first, self._used = not self._used, True
        return first and len(self._key) > _LARGE_SCHEMA

    @property
    def compiled(self) -> CompiledSchema:
        return _compiled(self._key)

    @property
    def merge_type(self) -> TypeRef:
        return _merge_type(self._key)

    def decode(self, obj: Object) -> tuple[Object, list[str]]:
        """Decode in place. Metadata is always decoded as ObjectMeta, whatever the schema says."""
        from herder.engine.schema.objectmeta import coerce

        unknown: list[str] = []
        if obj.get("metadata") is not None:
            try:
                coerce(obj["metadata"], unknown)
                _check_times(obj["metadata"])
            except ValueError as problem:
                raise self._decode_error(str(problem)) from problem
        return obj, [f'unknown field "{path}"' for path in unknown] + self.compiled.prune(obj)

    def default(self, obj: Object) -> None:
        self.compiled.default(obj)

    def validate(
        self, obj: Object, old: Object | None, *, subresource: str = "", warnings: list[str] | None = None
    ) -> list[FieldError]:
        """Validate the object. A write to the status subresource validates only the status."""
        of_status = subresource == "status" and old is not None
        others = [*scale_problems(obj, self.scale, status_only=of_status)] if self.scale else []
        if of_status and old is not None:
            return self.compiled.validate_status(obj, old, others=others, warnings=warnings)
        return self.compiled.validate(obj, old, others=others, warnings=warnings)

    def prune_and_default(self, obj: Object) -> None:
        """Prune and default a stored object by the current schema, in place."""
        self.compiled.prune(obj)
        self.compiled.default(obj)

    def openapi(self) -> Object:
        return published_schema(self.schema, self.kind)

    def _decode_error(self, why: str) -> BadRequest:
        kind = self.kind.kind
        return BadRequest(f'{kind} in version "{self.kind.version}" cannot be handled as a {kind}: {why}')


@lru_cache(maxsize=512)
def _compiled(schema: bytes) -> CompiledSchema:
    from herder.engine.schema import compile_schema

    return compile_schema(msgspec.json.decode(schema))


@lru_cache(maxsize=512)
def _merge_type(schema: bytes) -> TypeRef:
    from herder.engine.patch.typed.types import type_from_schema

    return type_from_schema(msgspec.json.decode(schema))


def _check_times(metadata: Object) -> None:
    managers = metadata.get("managedFields") or ()
    for text in (
        metadata.get("creationTimestamp"),
        metadata.get("deletionTimestamp"),
        *(entry.get("time") for entry in managers),
    ):
        if text is not None:
            try:
                leaves.time(text)
            except leaves.Unreadable as problem:
                raise ValueError(str(problem)) from None


def published_schema(schema: Object, kind: GroupVersionKind) -> Object:
    """Return the schema for OpenAPI, with ObjectMeta and x-kubernetes-group-version-kind."""
    published = _published(schema)
    published |= {"type": "object", "properties": {**published.get("properties", {}), **_OBJECT_FIELDS}}
    published["x-kubernetes-group-version-kind"] = [{"group": kind.group, "kind": kind.kind, "version": kind.version}]
    return published


def _published(schema: Object) -> Object:
    """Return a copy with implied fields and types written out, for clients that do not know the extensions."""
    found = dict(schema)
    if schema.get("properties"):
        found["properties"] = {name: _published(inner) for name, inner in schema["properties"].items()}
    for field in ("items", "additionalProperties"):
        if isinstance(schema.get(field), dict):
            found[field] = _published(schema[field])
    if schema.get("x-kubernetes-int-or-string"):
        found.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("x-kubernetes-embedded-resource"):
        found["properties"] = {**found.get("properties", {}), **_OBJECT_FIELDS}
        found["required"] = [*dict.fromkeys([*(schema.get("required") or ()), "kind", "apiVersion"])]
    return found
