"""Defaulting: compiled functions for the parts of a schema that have defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.schema.nodes import Node

Fill = Callable[[Any], None]


def copy_json(value: Any) -> Any:
    """Deep-copy a JSON value."""
    if type(value) is dict:
        return {name: copy_json(sub) for name, sub in value.items()}
    if type(value) is list:
        return [copy_json(item) for item in value]
    return value


def compile_default(node: Node | None) -> Fill | None:
    """Return a function that applies defaults in place; None if the schema has none here or below."""
    if node is None:
        return None
    below = {name: fill for name, sub in node.properties.items() if (fill := compile_default(sub))}
    defaults = tuple(
        (name, sub.default, sub.nullable) for name, sub in node.properties.items() if sub.default is not None
    )
    other_fields, item = _Elements(node.additional), _Elements(node.items)
    if not (below or defaults or other_fields.matter or item.matter):
        return None
    known = frozenset(node.properties)

    def fill_object(value: Any) -> None:
        if type(value) is dict:
            for name, default, nullable in defaults:
                if name not in value or (value[name] is None and not nullable):
                    value[name] = copy_json(default)
            for name, fill in below.items():
                if name in value:
                    fill(value[name])
            if other_fields.matter:
                for name in value:
                    if name not in known:
                        value[name] = other_fields.filled(value[name])
        elif item.matter and type(value) is list:
            for index, element in enumerate(value):
                value[index] = item.filled(element)

    return fill_object


class _Elements:
    """Defaults of list or map elements: nulls are replaced, other elements are defaulted."""

    __slots__ = ("_default", "_fill", "_nullable", "matter")

    def __init__(self, node: Node | None) -> None:
        self._fill = compile_default(node)
        self._default = node.default if node else None
        self._nullable = node is None or node.nullable
        self.matter = self._fill is not None or self._default is not None

    def filled(self, value: Any) -> Any:
        if value is None and not self._nullable:
            value = copy_json(self._default)
        if self._fill is not None:
            self._fill(value)
        return value
