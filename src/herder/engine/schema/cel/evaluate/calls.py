"""Plan calls and operators: overloads are selected when planning if types are known, else by the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from herder.engine.meta.work import TooMuchWork, metered
from herder.engine.schema.cel.declarations import Implementation, Overload, accepts
from herder.engine.schema.cel.errors import BudgetExceeded, EvaluationError, no_such_overload
from herder.engine.schema.cel.evaluate.access import Evaluate
from herder.engine.schema.cel.evaluate.charges import CHARGES, Charge, size_of, traversal
from herder.engine.schema.cel.evaluate.equality import concatenation_of, equality_of
from herder.engine.schema.cel.evaluate.loops import BUDGET
from herder.engine.schema.cel.library.strings import compile_pattern
from herder.engine.schema.cel.parse.syntax import Call, ListLiteral, Literal, Node
from herder.engine.schema.cel.types import Type
from herder.engine.schema.cel.values import Optional, equal

if TYPE_CHECKING:
    from herder.engine.schema.cel.evaluate.evaluator import Planner
    from herder.engine.schema.re2 import Pattern

_CONTAINERS = frozenset({list, dict})
_DIRECTLY_COMPARABLE = frozenset({"string", "int", "bool", "bytes", "uint"})


def plan_call(planner: Planner, node: Call) -> Evaluate:
    operands = node.args if node.target is None else [node.target, *node.args]
    if node.function in ("_==_", "_!=_"):
        return _comparison(planner, operands, wanted=node.function == "_==_")
    if node.function in ("or", "orValue") and node.target is not None:
        return _alternative(planner, operands, unwrap=node.function == "orValue")
    if node.function == "@in" and (run := _in_constants(planner, operands)):
        return run
    if node.function == "matches":
        return _constant_pattern(planner, operands) or _computed_pattern(planner, operands)
    implementation = _special_addition(node, operands) or _implementation(node, operands)
    args = [planner.plan(operand) for operand in operands]
    if any(overload.linear for overload in node.overloads) or node.function in CHARGES:
        return _charged_call(implementation, args, CHARGES.get(node.function, traversal))
    return _plain_call(implementation, args)


def _special_addition(node: Call, operands: list[Node]) -> Implementation | None:
    return concatenation_of(_data_type(operands[0])) if node.function == "_+_" else None


def _data_type(node: Node) -> Type:
    """Return the type with its list semantics: a set or map stays one when something is added."""
    while isinstance(node, Call) and node.function == "_+_" and node.type.kind == "list":
        node = node.args[0]
    return node.type


def _implementation(node: Call, operands: list[Node]) -> Implementation:
    """Return the matching function, or a dispatcher by argument types."""
    overloads = node.overloads
    is_static = all(_is_static(operand.type) for operand in operands)
    if len({id(overload.implementation) for overload in overloads}) == 1 and is_static:
        return overloads[0].implementation  # type: ignore[no-any-return]
    return _dispatcher(overloads)


def _is_static(type: Type) -> bool:
    return type.kind not in ("dyn", "param", "error", "null_type")


def _dispatcher(overloads: list[Overload]) -> Implementation:
    known: dict[tuple[type, ...], Implementation | None] = {}

    def find(types: tuple[type, ...]) -> Implementation | None:
        for overload in overloads:
            if all(map(accepts, overload.params, types)):
                return overload.implementation
        return None

    def dispatch(*args: Any) -> Any:
        types = tuple(map(type, args))
        if types not in known:
            known[types] = find(types)
        implementation = known[types]
        if implementation is None:
            raise no_such_overload()
        return implementation(*args)

    return dispatch


def _plain_call(implementation: Implementation, args: list[Evaluate]) -> Evaluate:
    """Plan a call. A null where the schema allows one raises TypeError in Python, which CEL reports as a missing
    overload."""
    if len(args) == 1:
        only = args[0]

        def run_unary(frame: list[Any]) -> Any:
            try:
                return implementation(only(frame))
            except (TypeError, AttributeError):
                raise no_such_overload() from None

        return run_unary
    if len(args) == 2:
        left, right = args

        def run_binary(frame: list[Any]) -> Any:
            try:
                return implementation(left(frame), right(frame))
            except (TypeError, AttributeError):
                raise no_such_overload() from None

        return run_binary

    def run(frame: list[Any]) -> Any:
        try:
            return implementation(*[arg(frame) for arg in args])
        except (TypeError, AttributeError):
            raise no_such_overload() from None

    return run


def _charged_call(implementation: Implementation, args: list[Evaluate], charge: Charge) -> Evaluate:
    """Plan a call that is charged by the size of its arguments before it runs."""

    def run(frame: list[Any]) -> Any:
        values = [arg(frame) for arg in args]
        left = frame[BUDGET] - charge(*values)
        if left < 0:
            raise BudgetExceeded
        frame[BUDGET] = left
        try:
            return implementation(*values)
        except (TypeError, AttributeError):
            raise no_such_overload() from None

    return run


def _comparison(planner: Planner, operands: list[Node], *, wanted: bool) -> Evaluate:
    left_node, right_node = operands
    left, right = planner.plan(left_node), planner.plan(right_node)
    kinds = {left_node.type.kind, right_node.type.kind}
    if len(kinds) == 1 and kinds <= _DIRECTLY_COMPARABLE:
        if isinstance(right_node, Literal):
            constant = right_node.value
            if wanted:
                return lambda frame: left(frame) == constant
            return lambda frame: left(frame) != constant
        if wanted:
            return lambda frame: left(frame) == right(frame)
        return lambda frame: left(frame) != right(frame)
    compare = equality_of(_data_type(left_node)) or equal

    def run(frame: list[Any]) -> bool:
        one, other = left(frame), right(frame)
        if type(one) in _CONTAINERS and type(one) is type(other):
            remaining: int = frame[BUDGET] - size_of(one)
            if remaining < 0:
                raise BudgetExceeded
            frame[BUDGET] = remaining
        return compare(one, other) is wanted

    return run


def _in_constants(planner: Planner, operands: list[Node]) -> Evaluate | None:
    """Plan `x in ["a", "b"]` with a precomputed set."""
    item_node, list_node = operands
    if item_node.type.kind != "string" or not isinstance(list_node, ListLiteral) or list_node.optionals:
        return None
    if not all(isinstance(each, Literal) and isinstance(each.value, str) for each in list_node.elements):
        return None
    constants = frozenset(each.value for each in list_node.elements if isinstance(each, Literal))
    item = planner.plan(item_node)
    return lambda frame: item(frame) in constants


def _constant_pattern(planner: Planner, operands: list[Node]) -> Evaluate | None:
    """Plan `text.matches("…")` with a precompiled pattern."""
    text_node, pattern_node = operands
    if not isinstance(pattern_node, Literal) or not isinstance(pattern_node.value, str):
        return None
    try:
        compiled = compile_pattern(pattern_node.value)
    except ValueError:
        return None
    text = planner.plan(text_node)
    pattern_cost = len(pattern_node.value) // 4 + 1

    def run(frame: list[Any]) -> bool:
        value = text(frame)
        if type(value) is not str:
            raise no_such_overload()
        left: int = frame[BUDGET] - (len(value) // 10 + 1) * pattern_cost
        if left < 0:
            raise BudgetExceeded
        frame[BUDGET] = left
        answer = compiled.search_cheaply(value)
        return _searched(frame, compiled, value) if answer is None else answer

    return run


def _computed_pattern(planner: Planner, operands: list[Node]) -> Evaluate:
    """Plan `text.matches(pattern)`, which compiles at run time."""
    text, pattern = (planner.plan(operand) for operand in operands)
    charge = CHARGES["matches"]

    def run(frame: list[Any]) -> bool:
        value, pattern_text = text(frame), pattern(frame)
        if type(value) is not str or type(pattern_text) is not str:
            raise no_such_overload()
        left = frame[BUDGET] - charge(value, pattern_text)
        if left < 0:
            raise BudgetExceeded
        frame[BUDGET] = left
        try:
            compiled = compile_pattern(pattern_text)
        except ValueError as error:
            raise EvaluationError(str(error)) from None
        return _searched(frame, compiled, value)

    return run


def _searched(frame: list[Any], compiled: Pattern, text: str) -> bool:
    """Match the pattern; the steps of the automaton count against the budget of the evaluation."""
    try:
        with metered(frame[BUDGET]) as meter:
            return compiled.search(text)
    except TooMuchWork:
        raise BudgetExceeded from None
    finally:
        frame[BUDGET] = max(meter.left, 0)


def _alternative(planner: Planner, operands: list[Node], *, unwrap: bool) -> Evaluate:
    """Plan `optional.or(other)` and `optional.orValue(value)`: the alternative is evaluated only if needed."""
    optional, other = planner.plan(operands[0]), planner.plan(operands[1])

    def run(frame: list[Any]) -> Any:
        value = optional(frame)
        if type(value) is not Optional:
            raise no_such_overload()
        if not value.present:
            return other(frame)
        return value.value if unwrap else value

    return run
