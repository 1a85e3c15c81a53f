"""Compile-time validators of Kubernetes beyond type checking: literals that always fail, and mixed literals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from herder.engine.schema.cel.errors import CheckError, EvaluationError, Issue
from herder.engine.schema.cel.library.formatting import check_format
from herder.engine.schema.cel.library.strings import compile_pattern
from herder.engine.schema.cel.parse.syntax import Call, ListLiteral, Literal, MapLiteral, Node
from herder.engine.schema.cel.times import checked_timestamp, parse_duration, parse_timestamp
from herder.engine.schema.cel.types import Type, unwrap_optional


def _check_duration(value: Any) -> None:
    if isinstance(value, str):
        parse_duration(value)


def _check_timestamp(value: Any) -> None:
    if isinstance(value, str):
        parse_timestamp(value)
    elif isinstance(value, int):
        checked_timestamp(value * 1_000_000_000)


def _check_pattern(value: Any) -> None:
    if isinstance(value, str):
        compile_pattern(value)


_LITERAL_CHECKS: dict[str, Callable[[Any], None]] = {
    "duration": _check_duration,
    "timestamp": _check_timestamp,
    "matches": _check_pattern,
}


def validate(text: str, tree: Node) -> None:
    """Raise CheckError with all issues."""
    issues = [*_invalid_literals(tree), *_mixed_literals(tree, exempt=False), *_invalid_formats(tree)]
    if issues:
        raise CheckError(text, issues)


def _invalid_literals(node: Node) -> Iterator[Issue]:
    if isinstance(node, Call) and node.function in _LITERAL_CHECKS and node.args:
        arg = node.args[0]
        if isinstance(arg, Literal):
            try:
                _LITERAL_CHECKS[node.function](arg.value)
            except (ValueError, EvaluationError):
                yield Issue(arg.at, f"invalid {node.function} argument")
    for child in node.children():
        yield from _invalid_literals(child)


def _invalid_formats(node: Node) -> Iterator[Issue]:
    """Check format() calls whose template and arguments are literals."""
    if isinstance(node, Call) and node.function == "format" and isinstance(node.target, Literal) and node.args:
        args = node.args[0]
        if isinstance(args, ListLiteral) and isinstance(node.target.value, str):
            problem = check_format(node.target.value, [item.type.name for item in args.elements])
            if problem is not None:
                blamed = node if problem.index is None else args.elements[problem.index]
                yield Issue(blamed.at, str(problem))
    for child in node.children():
        yield from _invalid_formats(child)


def _mixed_literals(node: Node, *, exempt: bool) -> Iterator[Issue]:
    """Require that lists and maps have one element type, except for the arguments of format()."""
    exempt = exempt or (isinstance(node, Call) and node.function == "format")
    if not exempt and isinstance(node, ListLiteral):
        types = [_plain(item.type, position in node.optionals) for position, item in enumerate(node.elements)]
        yield from list(_mismatches(types, node.elements))[:1]
    if not exempt and isinstance(node, MapLiteral):
        keys: list[Node] = [entry.key for entry in node.entries]
        yield from _mismatches([key.type for key in keys], keys)
        types = [_plain(entry.value.type, entry.optional) for entry in node.entries]
        yield from _mismatches(types, [entry.value for entry in node.entries])
    for child in node.children():
        yield from _mixed_literals(child, exempt=exempt)


def _plain(type: Type, optional: bool) -> Type:
    return unwrap_optional(type)[0] if optional else type


def _mismatches(types: list[Type], nodes: list[Node]) -> Iterator[Issue]:
    for type, node in zip(types[1:], nodes[1:], strict=True):
        if type != types[0]:
            yield Issue(node.at, f"expected type '{types[0]}' but found '{type}'")
