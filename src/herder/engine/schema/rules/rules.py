"""CEL rules of a schema (`x-kubernetes-validations`): where they apply, and with which old value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from herder.engine.meta.errors import FieldError
from herder.engine.schema.correlation import Correlated, KeyedList
from herder.engine.schema.nodes import Node
from herder.engine.schema.rules.compiler import CompiledRule, RuleCompiler
from herder.engine.schema.rules.run import RuleRun


class RuleTree:
    """The parts of a schema that have rules at or below them."""

    __slots__ = ("_compile", "_compiled", "_items", "_node", "_others", "_properties", "_root")

    def __init__(self, node: Node, compiler: RuleCompiler, *, root: bool) -> None:
        self._node = node
        self._root = root
        self._compile = compiler
        self._compiled: Sequence[CompiledRule] | None = None
        self._items = _below(node.items, compiler)
        self._others = _below(node.additional, compiler)
        self._properties = {
            name: tree for name, sub in node.properties.items() if (tree := _below(sub, compiler)) is not None
        }

    def validate(
        self,
        obj: Any,
        old: Any,
        correlated: Correlated | None,
        *,
        path: str = "",
        warnings: list[str] | None = None,
    ) -> list[FieldError]:
        """Return the errors of the rules. Failures that are tolerated because the value is unchanged are added to
        `warnings`."""
        run = RuleRun()
        self.check(run, obj, old, path, correlated, None)
        if warnings is not None:
            warnings += map(str, run.tolerated)
        return run.errors

    def check(
        self, run: RuleRun, value: Any, old: Any, path: str, correlated: Correlated | None, nearest: Correlated | None
    ) -> None:
        if value is None or run.spent:
            return
        if self._node.rules:
            tolerated = correlated if correlated is not None else nearest
            run.check_rules(self._node, self._rules(), value, old, path, tolerated)
        if type(value) is list and self._items is not None:
            self._check_items(run, value, old, path, correlated, nearest)
        elif type(value) is dict:
            self._check_fields(run, value, old if type(old) is dict else {}, path, correlated, nearest)

    def _rules(self) -> Sequence[CompiledRule]:
        if self._compiled is None:
            compiled = self._compile(self._node.schema, resource_root=self._root)
            self._compiled = compiled.rules if compiled else ()
        return self._compiled

    def _check_items(
        self,
        run: RuleRun,
        value: list[Any],
        old: Any,
        path: str,
        correlated: Correlated | None,
        nearest: Correlated | None,
    ) -> None:
        assert self._items is not None
        old_items = KeyedList(self._node, old)
        for index, item in enumerate(value):
            inner = correlated.index(index) if correlated else None
            self._items.check(run, item, old_items.get(item), f"{path}[{index}]", inner, correlated or nearest)

    def _check_fields(
        self,
        run: RuleRun,
        value: dict[str, Any],
        old: dict[str, Any],
        path: str,
        correlated: Correlated | None,
        nearest: Correlated | None,
    ) -> None:
        if self._others is not None:
            for name, sub in value.items():
                inner = correlated.key(name) if correlated else None
                self._others.check(run, sub, old.get(name), f"{path}[{name}]", inner, correlated or nearest)
        for name, tree in self._properties.items():
            if name not in value:
                continue
            inner, enclosing = correlated.key(name) if correlated else None, correlated or nearest
            if nearest is None and name in ("apiVersion", "kind"):
                inner = enclosing = None  # old and new are converted to one version, so a change would not be detected
            tree.check(run, value[name], old.get(name), f"{path}.{name}" if path else name, inner, enclosing)


def _below(node: Node | None, compiler: RuleCompiler) -> RuleTree | None:
    if node is None or not has_rules(node):
        return None
    return RuleTree(node, compiler, root=node.embedded)


def has_rules(node: Node) -> bool:
    return bool(node.rules) or any(map(has_rules, node.children))
