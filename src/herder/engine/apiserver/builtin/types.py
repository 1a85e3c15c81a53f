"""Type model of built-in kinds: Go struct, published schema and defaults."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from herder.engine.apiserver.builtin import data, decode
from herder.engine.apiserver.builtin.leaves import Mismatch, Unreadable
from herder.engine.apiserver.registry.resources import Schema
from herder.engine.meta.errors import BadRequest, FieldError
from herder.engine.meta.kinds import GroupVersionKind, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed.types import TypeRef


class BuiltinType:
    """One version of a built-in kind. Its data is loaded on first use."""

    def __init__(self, kind: GroupVersionKind, struct: str = "") -> None:
        self.kind = kind
        self.struct = struct or f"{data.package_of(kind.group, kind.version)}.{kind.kind}"

    @cached_property
    def definition_name(self) -> str:
        return data.definition_name(self.struct)

    @cached_property
    def merge_type(self) -> TypeRef:
        from herder.engine.patch.typed.types import type_from_schema

        return type_from_schema(self.openapi(), data.DEFINITIONS)

    def decode(self, obj: Object) -> tuple[Object, list[str]]:
        return decode_as(self.struct, obj, self.kind)

    def default(self, obj: Object) -> None:
        from herder.engine.apiserver.builtin.defaults import default

        default(self.kind, obj)

    def validate(
        self, obj: Object, old: Object | None, *, subresource: str = "", warnings: list[str] | None = None
    ) -> list[FieldError]:
        return []  # strategies validate built-in kinds

    def compiles_large_schema(self) -> bool:
        return False

    def openapi(self) -> Schema:
        return data.definition(self.definition_name)


def decode_as(struct: str, obj: object, kind: GroupVersionKind) -> tuple[Object, list[str]]:
    """Decode a JSON value as a Go struct. Return the normalized object and its strict-decoding errors."""
    unknown: list[str] = []
    try:
        decoded = decode.struct_codec(struct).decode(obj, unknown)
    except Mismatch as mismatch:
        raise _decode_error(kind, mismatch.message()) from None
    except Unreadable as complaint:
        raise _decode_error(kind, str(complaint)) from None
    except RecursionError:
        raise _decode_error(kind, "json: exceeded max depth") from None
    return decoded, [f'unknown field "{path}"' for path in unknown]


def _decode_error(kind: GroupVersionKind, why: str) -> BadRequest:
    return BadRequest(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')
