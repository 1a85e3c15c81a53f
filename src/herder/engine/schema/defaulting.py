"""Defaulting: a function for each part of the schema that has a default somewhere below it, and none for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.schema.nodes import Node

Fill = Callable[[Any], None]


def copied(value: Any) -> Any:
    """A JSON value that shares nothing changeable with the original."""
    if type(value) is dict:
        return {name: copied(sub) for name, sub in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


def compile_default(node: Node | None) -> Fill | None:
    """What fills in the defaults of a value in place; None if the schema has none here or below."""
    if node is None:
        return None
    below = {name: fill for name, sub in node.properties.items() if (fill := compile_default(sub))}
    given = tuple((name, sub.default, sub.nullable) for name, sub in node.properties.items() if sub.default is not None)
    others, item = _Elements(node.additional), _Elements(node.items)
    if not (below or given or others.matter or item.matter):
        return None
    known = frozenset(node.properties)

    def fill_object(value: Any) -> None:
        if type(value) is dict:
            for name, default, nullable in given:
                if name not in value or (value[name] is None and not nullable):
                    value[name] = copied(default)
            for name, fill in below.items():
                if name in value:
                    fill(value[name])
            if others.matter:
                for name in value:
                    if name not in known:
                        value[name] = others.filled(value[name])
        elif item.matter and type(value) is list:
            for index, element in enumerate(value):
                value[index] = item.filled(element)

    return fill_object


class _Elements:
    """Defaults for what a list or a map holds: nulls are replaced, other elements filled."""

    __slots__ = ("_default", "_fill", "_nullable", "matter")

    def __init__(self, node: Node | None) -> None:
        self._fill = compile_default(node)
        self._default = node.default if node else None
        self._nullable = node is None or node.nullable
        self.matter = self._fill is not None or self._default is not None

    def filled(self, value: Any) -> Any:
        if value is None and not self._nullable:
            value = copied(self._default)
        if self._fill is not None:
            self._fill(value)
        return value
