"""Mutation testing: small changes to a module's source, one at a time.

The operators are those that mutmut and cosmic-ray share: comparisons, `and` and `or`, `not`, arithmetic, constants of
every type, returned and assigned values, arguments and defaults, conditions, omitted statements and elements,
`except` clauses and `case` patterns. Annotations, imports, decorators and docstrings are not changed.

This module exists since it is small and the caller must control the run: one whole simulation per mutant.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}
_UNCHANGED = ("annotation", "returns", "decorator_list", "bases", "type_comment", "ctx")
"""Fields of nodes that are not changed, nor anything below them."""


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    number: int  # index among the mutants of the module
    change: str  # description of the change

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}:{self.line} {self.change}"


class _Point:
    """A possible change at one place of a tree."""

    def __init__(self, node: ast.AST, field: str, index: int | None, new: Any, change: str) -> None:
        self.node, self.field, self.index, self.new, self.change = node, field, index, new, change

    @property
    def line(self) -> int:
        located = self.new if hasattr(self.new, "lineno") else self.node
        return int(getattr(located, "lineno", 0))

    def exchange(self, new: Any) -> Any:
        """Set the node at this place, and return the one that was there."""
        holder = getattr(self.node, self.field)
        if self.index is None:
            setattr(self.node, self.field, new)
            return holder
        old, holder[self.index] = holder[self.index], new
        return old


def mutants_of(module: str) -> list[Mutant]:
    _, points = _parsed(module)
    return [Mutant(module, point.line, number, point.change) for number, point in enumerate(points)]


def code_of(module: str, mutant: Mutant | None = None) -> CodeType:
    """The code of the module, with the change of the mutant."""
    tree, points = _parsed(module)
    point = points[mutant.number] if mutant is not None else None
    original = point.exchange(point.new) if point is not None else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as a comparison by identity with a changed constant
            return compile(ast.fix_missing_locations(tree), str(source_of(module)), "exec", dont_inherit=True)
    finally:
        if point is not None:
            point.exchange(original)


@cache
def _parsed(module: str) -> tuple[ast.Module, list[_Point]]:
    tree = ast.parse(source_of(module).read_text())
    return tree, list(_points(tree))


def source_of(module: str) -> Path:
    """The file of the module, which is not imported for that, nor are its packages."""
    package, _, rest = module.partition(".")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent.joinpath(*rest.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# --- mutations ------------------------------------------------------------------------------------------------------


def _points(tree: ast.Module) -> Iterator[_Point]:
    """Yield the mutations of functions and module constants."""
    pending: list[ast.AST] = [tree]
    while pending:
        parent = pending.pop()
        for field, value in ast.iter_fields(parent):
            if field in _UNCHANGED or isinstance(parent, (ast.Import, ast.ImportFrom)):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    pending.append(child)
                    yield from _changes(parent, field, index, child)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _changes(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[_Point]:
    replacements = (
        *_replaced_expressions(node),
        *_replaced_constants(parent, node),
        *_replaced_statements(parent, node),
        *_dropped_elements(parent, node),
    )
    for new, change in replacements:
        yield _Point(parent, field, index, ast.copy_location(new, node), change)


def _replaced_expressions(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield ast.Compare(left, [other()], [right]), f"{_text(node)} → {other.__name__}"
        case ast.BoolOp(operator, values):
            flipped: ast.boolop = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(flipped, values), f"{_text(node)} → {type(flipped).__name__}"
            for dropped in range(len(values)):
                rest = values[:dropped] + values[dropped + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest), f"{_text(values[dropped])} dropped"
        case ast.UnaryOp(ast.Not(), operand):
            yield operand, f"{_text(node)} → without not"
        case ast.UnaryOp(ast.USub(), operand):
            yield operand, f"{_text(node)} → without -"
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body), f"{_text(node)} → branches swapped"
        case ast.comprehension(target, iterated, [_, *_], is_async):
            yield ast.comprehension(target, iterated, [], is_async), f"for {_text(target)} in …: condition dropped"
        case ast.Lambda(arguments, body) if not _is_none(body):
            yield ast.Lambda(arguments, _none()), f"{_text(node)} → returns None"
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CALLS:
            yield ast.Call(ast.Name(_CALLS[name], ast.Load()), arguments, keywords), f"{_text(node)} → {_CALLS[name]}"
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            other_operator = _ARITHMETIC[type(operator)]
            yield ast.BinOp(left, other_operator(), right), f"{_text(node)} → {other_operator.__name__}"


def _replaced_constants(parent: ast.AST, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Constant(bool(value)):
            yield ast.Constant(not value), f"{value} → {not value}"
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1), f"{value} → {value + 1}"
        case ast.Constant(str(value) | bytes(value)):
            other = f"{value}XX" if isinstance(value, str) else value + b"XX"
            yield ast.Constant(other), f"{_text(node)} → {_text(ast.Constant(other))}"
        case ast.Constant(None) if not isinstance(parent, (ast.Return, ast.Compare)):
            yield ast.Constant(""), 'None → ""'


def _replaced_statements(parent: ast.AST, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.If(test, body, orelse):
            for value in (True, False):
                yield ast.If(ast.Constant(value), body, orelse), f"if {_text(test)} → {value}"
        case ast.While(test, body, orelse):
            yield ast.While(ast.Constant(False), body, orelse), f"while {_text(test)} → False"
        case ast.Return(value) if value is not None and not _is_none(value):
            yield ast.Return(_none()), f"{_text(node)} → None"
        case ast.Assign(targets, value) if not _is_none(value) and not isinstance(parent, ast.Module):
            yield ast.Assign(targets, _none()), f"{_text(node)} → None"
        case ast.AnnAssign(target, annotation, value, simple) if value is not None and not _is_none(value):
            if isinstance(parent, (ast.FunctionDef, ast.If, ast.For)):
                yield ast.AnnAssign(target, annotation, _none(), simple), f"{_text(node)} → None"
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() if not isinstance(parent, ast.Module):
            yield ast.Pass(), f"{_text(node)} left out"
        case ast.Break():
            yield ast.Continue(), "break → continue"
        case ast.Continue():
            yield ast.Break(), "continue → break"
        case ast.ExceptHandler(type_, name, body) if type_ is not None:
            nothing = ast.Tuple([], ast.Load())
            yield ast.ExceptHandler(nothing, name, body), f"except {_text(type_)} → never"
        case ast.match_case(pattern, _, body) if not isinstance(pattern, ast.MatchAs):
            yield ast.match_case(pattern, ast.Constant(False), body), f"case {_text(pattern)} → never"
        case ast.match_case(pattern, guard, body) if guard is not None:
            yield ast.match_case(pattern, None, body), f"case {_text(pattern)}: condition dropped"


def _dropped_elements(parent: ast.AST, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Arguments of calls, and elements of tuples, lists, sets and dicts."""
    match node:
        case ast.Call(function, arguments, keywords):
            for index, argument in enumerate(arguments):
                rest = arguments[:index] + arguments[index + 1 :]
                yield ast.Call(function, rest, keywords), f"{_text(node)}: argument {_text(argument)} dropped"
            for index, keyword in enumerate(keywords):
                others = keywords[:index] + keywords[index + 1 :]
                yield ast.Call(function, arguments, others), f"{_text(node)}: argument {keyword.arg} dropped"
        case ast.Tuple(elements, ast.Load()) | ast.List(elements, ast.Load()) | ast.Set(elements):
            if isinstance(parent, ast.Subscript) or (isinstance(node, ast.Set) and len(elements) == 1):
                return
            for index, element in enumerate(elements):
                rest = elements[:index] + elements[index + 1 :]
                new = ast.Set(rest) if isinstance(node, ast.Set) else type(node)(rest, ast.Load())
                yield new, f"{_text(node)}: {_text(element)} dropped"
        case ast.Dict(keys, values):
            for index, value in enumerate(values):
                new_keys, new_values = keys[:index] + keys[index + 1 :], values[:index] + values[index + 1 :]
                yield ast.Dict(new_keys, new_values), f"{_text(keys[index] or value)}: … dropped"


def _none() -> ast.Constant:
    return ast.Constant(None)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- import hook ----------------------------------------------------------------------------------------------------


class _Loader(importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(code_of(self._mutant.module, self._mutant), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        found.loader = _Loader(self._mutant)
        found.cached = None
        return found


def install(mutant: Mutant) -> None:
    """Import the mutated module from now on; it must not have been imported yet."""
    assert mutant.module not in sys.modules, f"{mutant.module} is in memory already"
    sys.meta_path.insert(0, _Finder(mutant))


def forget(modules: Iterable[str]) -> None:
    """Remove modules from memory, so that they are imported again."""
    for name in list(modules):
        package, _, last = name.rpartition(".")
        sys.modules.pop(name, None)
        if package in sys.modules:
            vars(sys.modules[package]).pop(last, None)
