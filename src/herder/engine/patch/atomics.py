"""Parts of a configuration that are taken or left as a whole, which a merge would therefore replace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from herder.engine.patch.typed import TypeRef


def atomic_parts(of: TypeRef, value: Any, path: str = "") -> Iterator[str]:
    """Paths of the atomic lists, maps and structs in a value that fits its type."""
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
