"""Mutation testing: small changes to a module's source, one at a time.

A mutant flips a comparison, drops or negates a condition, changes a number by one, or omits a statement. This module
exists since it is small and the caller must control the run: one whole simulation per mutant.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
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
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    number: int  # index among the mutants of the module
    change: str  # description of the change

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}:{self.line} {self.change}"


class _Point:
    """A possible change at one place; `apply` changes the tree in which it was found."""

    def __init__(self, node: ast.AST, field: str, index: int | None, new: Any, change: str) -> None:
        self.node, self.field, self.index, self.new, self.change = node, field, index, new, change

    @property
    def line(self) -> int:
        located = self.new if hasattr(self.new, "lineno") else self.node
        return int(getattr(located, "lineno", 0))

    def apply(self) -> None:
        if self.index is None:
            setattr(self.node, self.field, self.new)
        else:
            getattr(self.node, self.field)[self.index] = self.new


def mutants_of(module: str) -> list[Mutant]:
    tree = ast.parse(_source(module))
    return [Mutant(module, point.line, number, point.change) for number, point in enumerate(_points(tree))]


def mutated(mutant: Mutant) -> ast.Module:
    tree = ast.parse(_source(mutant.module))
    list(_points(tree))[mutant.number].apply()
    return ast.fix_missing_locations(tree)


def _source(module: str) -> str:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text()


# --- mutations ------------------------------------------------------------------------------------------------------


def _points(tree: ast.Module) -> Iterator[_Point]:
    """Yield the mutations of functions and module constants, except annotations, imports and strings."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
                continue
            if isinstance(value, list):
                for index, child in enumerate(value):
                    if isinstance(child, ast.AST):
                        yield from _changes(parent, field, index, child)
            elif isinstance(value, ast.AST):
                yield from _changes(parent, field, None, value)


def _changes(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[_Point]:
    for new, change in _replacements(parent, node):
        yield _Point(parent, field, index, ast.copy_location(new, node), change)


def _replacements(parent: ast.AST, node: ast.AST) -> Iterator[tuple[Any, str]]:
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
        case ast.If(test, body, orelse):
            for value in (True, False):
                yield ast.If(ast.Constant(value), body, orelse), f"if {_text(test)} → {value}"
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body), f"{_text(node)} → branches swapped"
        case ast.comprehension(target, iterated, [_, *_], is_async):
            yield ast.comprehension(target, iterated, [], is_async), f"for {_text(target)} in …: condition dropped"
        case ast.Constant(bool(value)):
            yield ast.Constant(not value), f"{value} → {not value}"
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1), f"{value} → {value + 1}"
        case ast.Call(ast.Name(name), arguments, keywords) if name in _CALLS:
            yield ast.Call(ast.Name(_CALLS[name], ast.Load()), arguments, keywords), f"{_text(node)} → {_CALLS[name]}"
        case ast.BinOp(left, ast.Add(), right) if not isinstance(left, (ast.JoinedStr, ast.List)):
            yield ast.BinOp(left, ast.Sub(), right), f"{_text(node)} → -"
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() if not isinstance(parent, ast.Module):
            yield ast.Pass(), f"{_text(node)} left out"


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- import hook ----------------------------------------------------------------------------------------------------


class _Loader(importlib.abc.Loader):
    def __init__(self, mutant: Mutant, origin: str) -> None:
        self._mutant, self._origin = mutant, origin

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(mutated(self._mutant), self._origin, "exec"), module.__dict__)


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
        return importlib.util.spec_from_loader(fullname, _Loader(self._mutant, found.origin), origin=found.origin)


def install(mutant: Mutant) -> None:
    """Import the mutated module from now on; it must not have been imported yet."""
    assert mutant.module not in sys.modules, f"{mutant.module} is in memory already"
    sys.meta_path.insert(0, _Finder(mutant))
