"""Plan a checked tree as closures.

Every node becomes a function of a frame: a list whose slot 0 holds the remaining steps and whose other slots hold
variables at fixed positions. Type information is used when planning, so that evaluation does as little as possible.
"""

from __future__ import annotations

from typing import Any

from herder.engine.schema.cel.check.checker import TYPE_NAMES
from herder.engine.schema.cel.errors import EvaluationError, no_such_overload
from herder.engine.schema.cel.evaluate import loops
from herder.engine.schema.cel.evaluate.access import (
    Evaluate,
    converted,
    converter,
    key_of,
    select,
    select_from_slot,
    select_optionally,
    test_field,
)
from herder.engine.schema.cel.evaluate.calls import plan_call
from herder.engine.schema.cel.messages import Message
from herder.engine.schema.cel.parse.syntax import (
    Call,
    Conditional,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    Loop,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
)
from herder.engine.schema.cel.types import unwrap_optional
from herder.engine.schema.cel.values import Optional, TypeValue


def cost_of(node: Node) -> int:
    """Return the steps of one pass over a node, excluding loops, which are charged per iteration."""
    if isinstance(node, Literal):
        return 0
    if isinstance(node, Loop):
        return 1 + cost_of(node.range)
    return 1 + sum(map(cost_of, node.children()))


class Planner:
    """Plans one expression; then `slots` maps the variables of a frame, and `size` is its length."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.scopes: list[dict[str, int]] = []
        self.size = 1

    def new_slot(self) -> int:
        slot = self.size
        self.size += 1
        return slot

    def plan(self, node: Node) -> Evaluate:
        match node:
            case Literal(value=value):
                return lambda frame: value
            case Ident():
                return self.variable(node.name, node)
            case Select():
                return self.selection(node)
            case Call():
                return plan_call(self, node)
            case Logic():
                return self.logic(node)
            case Conditional():
                return self.conditional(node)
            case ListLiteral():
                return self.list_literal(node)
            case MapLiteral():
                return self.map_literal(node)
            case MessageLiteral():
                return self.message(node)
            case Loop():
                return self.loop(node)
        raise TypeError(f"no plan for {type(node).__name__}")

    # ---- variables and fields

    def slot_of(self, name: str) -> tuple[int, bool] | None:
        """Return the slot of a variable and whether it is declared; None if the name is a type."""
        if not name.startswith("."):
            for scope in reversed(self.scopes):
                if name in scope:
                    return scope[name], False
        name = name.lstrip(".")
        if name in self.slots:
            return self.slots[name], True
        return None

    def variable(self, name: str, node: Node) -> Evaluate:
        found = self.slot_of(name)
        if found is None:
            return self.type_or_new_variable(name.lstrip("."), node)
        slot, declared = found
        convert = converter(node.type) if declared else None
        if convert is not None:
            return converted(lambda frame: frame[slot], convert)
        return lambda frame: frame[slot]

    def type_or_new_variable(self, name: str, node: Node) -> Evaluate:
        if node.type.kind == "type" and name in TYPE_NAMES:
            value = TypeValue(name)
            return lambda frame: value
        self.slots[name] = self.new_slot()
        return self.variable(name, node)

    def selection(self, node: Select) -> Evaluate:
        if node.resolved is not None:
            return self.variable(node.resolved, node)
        target, was_optional = unwrap_optional(node.operand.type)
        key = key_of(target, node.field)
        of_object = target.kind == "object"
        if node.test:
            return test_field(self.plan(node.operand), key, of_object=of_object)
        convert = converter(unwrap_optional(node.type)[0]) if of_object else None
        if node.optional or was_optional:
            return select_optionally(self.plan(node.operand), key, convert, of_object=of_object)
        path = self.path(node)
        if path is not None:
            return select_from_slot(*path, convert, of_object=of_object)
        return select(self.plan(node.operand), key, convert, of_object=of_object)

    def path(self, node: Select) -> tuple[int, tuple[str, ...]] | None:
        """Return variable and keys of a selection that consists only of them."""
        keys: list[str] = []
        current: Node = node
        while isinstance(current, Select) and not current.optional and not current.test and current.resolved is None:
            if unwrap_optional(current.operand.type)[1]:
                return None
            keys.append(key_of(current.operand.type, current.field))
            current = current.operand
        if not isinstance(current, Ident) or converter(current.type) is not None:
            return None
        self.plan(current)
        found = self.slot_of(current.name)
        return None if found is None else (found[0], tuple(reversed(keys)))

    # ---- logic

    def boolean(self, node: Node) -> Evaluate:
        """Plan a condition; values not statically known to be booleans are checked."""
        run = self.plan(node)
        if node.type.kind == "bool" and not isinstance(node, Select | Ident):
            return run

        def checked(frame: list[Any]) -> bool:
            value = run(frame)
            if value is True or value is False:
                return bool(value)
            raise no_such_overload()

        return checked

    def logic(self, node: Logic) -> Evaluate:
        decisive = node.operator == "||"
        run = self.boolean(node.terms[0])
        for term in node.terms[1:]:
            run = _either(run, self.boolean(term), decisive)
        return run

    def conditional(self, node: Conditional) -> Evaluate:
        condition, then, otherwise = self.boolean(node.condition), self.plan(node.then), self.plan(node.otherwise)
        return lambda frame: then(frame) if condition(frame) else otherwise(frame)

    # ---- literals

    def list_literal(self, node: ListLiteral) -> Evaluate:
        items = [self.plan(element) for element in node.elements]
        if not node.optionals:
            return lambda frame: [item(frame) for item in items]
        optionals = node.optionals

        def run(frame: list[Any]) -> list[Any]:
            result: list[Any] = []
            for position, item in enumerate(items):
                value = item(frame)
                if position not in optionals:
                    result.append(value)
                elif not isinstance(value, Optional):
                    raise EvaluationError(f"cannot initialize optional list element from non-optional value {value}")
                elif value.present:
                    result.append(value.value)
            return result

        return run

    def map_literal(self, node: MapLiteral) -> Evaluate:
        entries = [(self.plan(entry.key), self.plan(entry.value), entry.optional) for entry in node.entries]

        def run(frame: list[Any]) -> dict[Any, Any]:
            result: dict[Any, Any] = {}
            for key_plan, value_plan, optional in entries:
                key, value = key_plan(frame), value_plan(frame)
                if isinstance(key, list | dict | float) or key is None:
                    raise EvaluationError("unsupported key type")
                if optional and not isinstance(value, Optional):
                    raise EvaluationError(f"cannot initialize optional entry '{key}' from non-optional value {value}")
                if optional and not value.present:
                    continue
                if key in result:
                    raise EvaluationError(f"Failed with repeated key: {key}")
                result[key] = value.value if optional else value
            return result

        return run

    def message(self, node: MessageLiteral) -> Evaluate:
        fields = [(entry.key, self.plan(entry.value), entry.optional) for entry in node.fields]
        name = node.name.lstrip(".")

        def run(frame: list[Any]) -> Message:
            result: dict[str, Any] = {}
            for key, value_plan, optional in fields:
                value = value_plan(frame)
                if optional and not isinstance(value, Optional):
                    raise EvaluationError(f"cannot initialize optional entry '{key}' from non-optional value {value}")
                if not optional:
                    result[key] = value
                elif value.present:
                    result[key] = value.value
            return Message(name, result)

        return run

    # ---- macros

    def loop(self, node: Loop) -> Evaluate:
        source = self.plan(node.range)
        slots = [self.new_slot() for _ in node.names]
        self.scopes.append(dict(zip(node.names, slots, strict=True)))
        conditional = node.macro in ("all", "exists", "exists_one", "filter")
        bodies = [self.boolean(arg) if conditional or arg is not node.args[-1] else self.plan(arg) for arg in node.args]
        self.scopes.pop()
        if node.macro in ("optMap", "optFlatMap"):
            return loops.map_optional(source, slots[0], bodies[0], flat=node.macro == "optFlatMap")
        second = slots[1] if len(slots) == 2 else None
        plan = loops.LoopPlan(source, slots[0], second, 1 + sum(map(cost_of, node.args)))
        predicate = bodies[0] if len(bodies) == 2 else None
        match node.macro:
            case "all" | "exists":
                return loops.quantifier(plan, bodies[0], stop_at=node.macro == "exists")
            case "exists_one":
                return loops.exists_one(plan, bodies[0])
            case "filter":
                return loops.filter_list(plan, bodies[0])
            case "map" | "transformList":
                return loops.map_list(plan, predicate, bodies[-1])
            case "transformMap":
                return loops.map_values(plan, predicate, bodies[-1])
            case "transformMapEntry":
                return loops.map_entries(plan, predicate, bodies[-1])
        return loops.sort_by(plan, bodies[0])


def _either(left: Evaluate, right: Evaluate, decisive: bool) -> Evaluate:
    """Plan `||` (True decides) or `&&` (False decides): a decisive side hides the other's failure."""

    def run(frame: list[Any]) -> bool:
        try:
            if bool(left(frame)) is decisive:
                return decisive
        except EvaluationError:
            if bool(right(frame)) is decisive:
                return decisive
            raise
        return bool(right(frame))

    return run
