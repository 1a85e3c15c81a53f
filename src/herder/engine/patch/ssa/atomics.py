"""Atomic parts of a configuration, which a merge replaces as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from herder.engine.patch.typed.types import TypeRef


def atomic_parts(of: TypeRef, value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of atomic lists, maps and structs in a value that matches its type."""
    atom = of.atom
    if isinstance(value, dict) and atom.map is not None:
        if atom.map.atomic:
            yield path
        for key, inner in value.items():
            field = atom.map.fields.get(key)
            if field is not None:
                yield from atomic_parts(field, inner, f"{path}.{key}")
    elif isinstance(value, list) and atom.list is not None:
        if not atom.list.associative:
            yield path
        for index, item in enumerate(value):
            yield from atomic_parts(atom.list.element, item, f"{path}[{index}]")
