"""An object in the versions in which its managers last wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, recursive_difference
from herder.engine.patch.typed.types import TypeRef

TypeOf = Callable[[str], TypeRef | None]
"""Returns the kind's type for an apiVersion; None if that version is unknown."""

Convert = Callable[[Object, str], Object | None]
"""Converts an object to another apiVersion; returns None if that version is unknown."""


def rename_version(obj: Object, api_version: str) -> Object:
    """Convert between versions that differ only in name."""
    return {**obj, "apiVersion": api_version}


class Typed(NamedTuple):
    """A value with its type."""

    of: TypeRef
    value: Object


class Versions:
    """Versions of the kind of a request, and the fields that the request cannot own."""

    __slots__ = ("_convert", "_reset", "_type_of", "request")

    def __init__(self, request: str, type_of: TypeOf, convert: Convert | None, reset: FieldSet | None) -> None:
        self.request = request
        self._type_of = type_of
        self._convert = convert or rename_version
        self._reset = reset

    def type_at(self, version: str) -> TypeRef | None:
        return self._type_of(version)

    def at(self, obj: Object, version: str) -> Typed | None:
        """Return the object in a version; None if that version no longer exists."""
        of = self._type_of(version)
        if of is None:
            return None
        if obj.get("apiVersion", self.request) == version:
            return Typed(of, obj)
        converted = self._convert(obj, version)
        return None if converted is None else Typed(of, converted)

    def without_reset(self, fields: FieldSet) -> FieldSet:
        """Remove the fields that this endpoint resets: status on the main resource, everything else on status. A
        request cannot own what it cannot change."""
        return recursive_difference(fields, self._reset) if self._reset else fields
