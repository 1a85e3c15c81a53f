"""An object in the versions that its managers last wrote it in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from herder.engine.meta.kinds import Object
from herder.engine.patch.fieldset import FieldSet, recursive_difference
from herder.engine.patch.typed import TypeRef

TypeOf = Callable[[str], TypeRef | None]
"""From apiVersion to the kind's type in it; None where that version is no longer known."""

Convert = Callable[[Object, str], Object | None]
"""An object in another apiVersion; None where that version is no longer known."""


def rename_version(obj: Object, api_version: str) -> Object:
    """Conversion between versions that differ in name only."""
    return {**obj, "apiVersion": api_version}


class Typed(NamedTuple):
    of: TypeRef
    value: Object


class Versions:
    """What a request knows about the versions of its kind, and which fields are not its to own."""

    __slots__ = ("_convert", "_reset", "_type_of", "request")

    def __init__(self, request: str, type_of: TypeOf, convert: Convert | None, reset: FieldSet | None) -> None:
        self.request = request
        self._type_of = type_of
        self._convert = convert or rename_version
        self._reset = reset

    def type_at(self, version: str) -> TypeRef | None:
        return self._type_of(version)

    def at(self, obj: Object, version: str) -> Typed | None:
        """The object in a version; None where that version is gone."""
        of = self._type_of(version)
        if of is None:
            return None
        if obj.get("apiVersion", self.request) == version:
            return Typed(of, obj)
        converted = self._convert(obj, version)
        return None if converted is None else Typed(of, converted)

    def without_reset(self, fields: FieldSet) -> FieldSet:
        """The set without the fields that this endpoint puts back to what they were: status on the main resource,
        everything else on status. Nobody comes to own by a request what the request could not change."""
        return recursive_difference(fields, self._reset) if self._reset else fields
