"""Syntax tree of an expression.

Macros are kept as `Loop` nodes instead of being expanded to generic folds, which benefits the checker's messages and
the evaluator's speed. `at` is the source offset for errors; the checker sets `type`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from herder.engine.schema.cel.types import DYN, Type


class Node:
    """Base class of syntax tree nodes."""

    __slots__ = ("at", "type")

    def __init__(self, at: int) -> None:
        self.at = at
        self.type: Type = DYN

    def children(self) -> Iterator[Node]:
        return iter(())


class Literal(Node):
    __slots__ = ("value",)

    def __init__(self, at: int, value: Any, type: Type) -> None:
        super().__init__(at)
        self.value = value
        self.type = type


class Ident(Node):
    __slots__ = ("name",)

    def __init__(self, at: int, name: str) -> None:
        super().__init__(at)
        self.name = name


class Select(Node):
    """`operand.field`, `operand.?field` (optional) or `has(operand.field)` (test)."""

    __slots__ = ("field", "operand", "optional", "resolved", "test")

    def __init__(self, at: int, operand: Node, field: str, *, optional: bool = False, test: bool = False) -> None:
        super().__init__(at)
        self.operand = operand
        self.field = field
        self.optional = optional
        self.test = test
        self.resolved: str | None = None
        """The qualified variable that the selection refers to (`authorizer.requestResource`), if any."""

    def children(self) -> Iterator[Node]:
        if self.resolved is None:
            yield self.operand


class Call(Node):
    """A function, method or operator (`_+_`); `overloads` are the candidates that the checker found."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, at: int, function: str, target: Node | None, args: list[Node]) -> None:
        super().__init__(at)
        self.function = function
        self.target = target
        self.args = args
        self.overloads: list[Any] = []

    def children(self) -> Iterator[Node]:
        if self.target is not None:
            yield self.target
        yield from self.args


class Logic(Node):
    """A chain of `&&` or of `||`."""

    __slots__ = ("operator", "terms")

    def __init__(self, at: int, operator: str, terms: list[Node]) -> None:
        super().__init__(at)
        self.operator = operator
        self.terms = terms

    def children(self) -> Iterator[Node]:
        return iter(self.terms)


class Conditional(Node):
    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, at: int, condition: Node, then: Node, otherwise: Node) -> None:
        super().__init__(at)
        self.condition = condition
        self.then = then
        self.otherwise = otherwise

    def children(self) -> Iterator[Node]:
        yield self.condition
        yield self.then
        yield self.otherwise


class ListLiteral(Node):
    __slots__ = ("elements", "optionals")

    def __init__(self, at: int, elements: list[Node], optionals: set[int]) -> None:
        super().__init__(at)
        self.elements = elements
        self.optionals = optionals

    def children(self) -> Iterator[Node]:
        return iter(self.elements)


class Entry:
    """A `key: value` or `?key: value` of a map or message literal; keys of messages are field names."""

    __slots__ = ("at", "key", "optional", "value")

    def __init__(self, at: int, key: Any, value: Node, optional: bool) -> None:
        self.at = at
        self.key = key
        self.value = value
        self.optional = optional


class MapLiteral(Node):
    __slots__ = ("entries",)

    def __init__(self, at: int, entries: list[Entry]) -> None:
        super().__init__(at)
        self.entries = entries

    def children(self) -> Iterator[Node]:
        for entry in self.entries:
            yield entry.key
            yield entry.value


class MessageLiteral(Node):
    __slots__ = ("fields", "name")

    def __init__(self, at: int, name: str, fields: list[Entry]) -> None:
        super().__init__(at)
        self.name = name
        self.fields = fields

    def children(self) -> Iterator[Node]:
        return (field.value for field in self.fields)


class Loop(Node):
    """A macro that binds variables: `range.macro(names…, args…)`."""

    __slots__ = ("args", "macro", "names", "range", "var_types")

    def __init__(self, at: int, macro: str, range: Node, names: list[str], args: list[Node]) -> None:
        super().__init__(at)
        self.macro = macro
        self.range = range
        self.names = names
        self.args = args
        self.var_types: list[Type] = []

    def children(self) -> Iterator[Node]:
        yield self.range
        yield from self.args


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` if the node is only that."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test and not node.optional:
        prefix = qualified_name(node.operand)
        return None if prefix is None else f"{prefix}.{node.field}"
    return None
