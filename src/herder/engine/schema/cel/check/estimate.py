"""Worst-case cost estimate of an expression, over the largest values that its types allow.

Kubernetes rejects a rule whose worst case exceeds a limit, so the estimate follows its cost model closely: the same
rules are accepted and rejected. Sizes are known for data with a schema (through `max_elements`), for literals, and for
some results; everything else counts as unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
from herder.engine.schema.cel.types import Type, unwrap_optional

UNBOUNDED = 2**64 - 1
_TRAVERSAL = 0.1
_REGEX = 0.25
_LIST, _MAP, _MESSAGE = 10, 30, 40
_AUTHORIZATION_CHECK = 350_000
_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})


@dataclass(slots=True)
class Estimate:
    """Estimate of a node: its cost, the size of its value, and the size of the value's elements."""

    cost: int
    size: int
    from_data: bool = False
    """Whether the value is part of the data, so that the sizes of its parts follow from its type."""
    element: int | None = None


def estimate_cost(tree: Node) -> int:
    return _Estimator().visit(tree).cost


def _cap(value: float) -> int:
    return UNBOUNDED if value >= UNBOUNDED else math.ceil(value)


def _traversal(size: int, factor: float = _TRAVERSAL) -> int:
    return _cap(size * factor)


def _type_size(type: Type, *, from_data: bool) -> int:
    if from_data:
        return type.max_elements or 0
    return 1 if unwrap_optional(type)[0].kind in _SCALARS else UNBOUNDED


class _Estimator:
    def __init__(self) -> None:
        self.scopes: list[dict[str, Estimate]] = []

    def visit(self, node: Node) -> Estimate:
        match node:
            case Literal(value=value):
                return Estimate(0, len(value) if isinstance(value, str | bytes) else 1)
            case Ident():
                return self.ident(node)
            case Select():
                return self.select(node)
            case Logic():
                return Estimate(self.total(node.terms), 1)
            case Conditional():
                return self.conditional(node)
            case ListLiteral():
                return self.literal(node.elements, len(node.elements), _LIST)
            case MapLiteral():
                return self.literal(list(node.children()), len(node.entries), _MAP)
            case MessageLiteral():
                return Estimate(_MESSAGE + self.total(list(node.children())), UNBOUNDED)
            case Loop():
                return self.loop(node)
            case Call():
                return self.call(node)
        return Estimate(1, UNBOUNDED)

    def total(self, nodes: list[Node]) -> int:
        return _cap(sum(self.visit(node).cost for node in nodes))

    def ident(self, node: Ident) -> Estimate:
        for scope in reversed(self.scopes):
            if node.name in scope:
                return scope[node.name]
        return Estimate(1, _type_size(node.type, from_data=True), from_data=True)

    def select(self, node: Select) -> Estimate:
        if node.resolved is not None:
            return Estimate(1, UNBOUNDED)
        operand = self.visit(node.operand)
        if node.test:
            return Estimate(operand.cost, 1)
        own = 1 if node.optional or node.operand.type.kind in ("map", "object") else 0
        size = _type_size(unwrap_optional(node.type)[0], from_data=operand.from_data)
        return Estimate(_cap(operand.cost + own), size, operand.from_data)

    def conditional(self, node: Conditional) -> Estimate:
        then, otherwise = self.visit(node.then), self.visit(node.otherwise)
        cost = self.visit(node.condition).cost + max(then.cost, otherwise.cost)
        elements = None
        if then.element is not None and otherwise.element is not None:
            elements = max(then.element, otherwise.element)
        return Estimate(_cap(cost), max(then.size, otherwise.size), element=elements)

    def literal(self, parts: list[Node], size: int, base: int) -> Estimate:
        estimates = [self.visit(part) for part in parts]
        largest = max((part.size for part in estimates), default=0)
        return Estimate(_cap(base + sum(part.cost for part in estimates)), size, element=largest)

    # ---- loops

    def loop(self, node: Loop) -> Estimate:
        source = self.visit(node.range)
        variables = [Estimate(1, _element_size(source, type), source.from_data) for type in node.var_types]
        self.scopes.append(dict(zip(node.names, variables, strict=True)))
        bodies = [self.visit(arg) for arg in node.args]
        self.scopes.pop()
        if node.macro in ("optMap", "optFlatMap"):
            return Estimate(_cap(source.cost + bodies[0].cost + 2), bodies[0].size)
        rounds = source.size
        cost = source.cost + rounds * (_iteration_overhead(node) + sum(body.cost for body in bodies))
        if node.macro in ("all", "exists"):
            return Estimate(_cap(cost + 1), 1)
        if node.macro == "exists_one":
            return Estimate(_cap(cost + 2), 1)
        element = variables[0].size if node.macro in ("filter", "sortBy") else bodies[-1].size
        created = _MAP if node.macro.startswith("transformMap") else _LIST
        return Estimate(_cap(cost + created + 1), rounds, element=element)

    # ---- calls

    def call(self, node: Call) -> Estimate:
        operands = node.args if node.target is None else [node.target, *node.args]
        estimates = [self.visit(operand) for operand in operands]
        own, size = _call(node, operands, estimates)
        element: int | None = None
        from_data = False
        if node.function in ("_[_]", "_[?_]"):
            from_data = estimates[0].from_data
            size = _element_size(estimates[0], unwrap_optional(node.type)[0])
        elif node.function in ("dyn", "optional.of", "optional.ofNonZeroValue", "value", "orValue", "or"):
            size, element, from_data = estimates[0].size, estimates[0].element, estimates[0].from_data
        elif node.function == "_+_" and all(each.element is not None for each in estimates):
            element = max(each.element or 0 for each in estimates)
        if size is None:
            size = _type_size(node.type, from_data=from_data)
        return Estimate(_cap(own + sum(each.cost for each in estimates)), size, from_data, element)


def _iteration_overhead(node: Loop) -> int:
    """Return the overhead of one iteration: testing and combining the accumulated result."""
    return {"all": 3, "exists": 4, "exists_one": 2, "filter": _LIST + 3}.get(node.macro, _LIST + 2)


def _element_size(container: Estimate, type: Type) -> int:
    if container.element is not None and not container.from_data:
        return container.element
    return _type_size(type, from_data=container.from_data)


Sized = tuple[float, int | None]
"""Cost of the call itself, and the size of its result if known."""


def _call(node: Call, operands: list[Node], estimates: list[Estimate]) -> Sized:
    sizes = [each.size for each in estimates]
    rule = _RULES.get(node.function)
    if rule is not None:
        return rule(operands, estimates, sizes)
    return 1, None


def _first_traversed(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _traversal(sizes[0]), None


def _same_size(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _traversal(sizes[0]), sizes[0]


def _twice_traversed(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _traversal(sizes[0], 2 * _TRAVERSAL), sizes[0]


def _replaced(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    old = operands[1]
    shortest = len(old.value) if isinstance(old, Literal) and isinstance(old.value, str) else 0
    if shortest == 0:
        size = sizes[0] + (sizes[0] + 1) * sizes[2]
    elif sizes[2] <= shortest:
        size = sizes[0]
    else:
        size = math.ceil(sizes[0] / shortest) * sizes[2]
    return _traversal(sizes[0], 2 * _TRAVERSAL), _cap(size)


def _second_traversed(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _traversal(sizes[1]), None


def _searched(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _cap(_traversal(sizes[0]) * _traversal(sizes[1])), None


def _matched(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _cap(_traversal(sizes[0] + 1) * _traversal(sizes[1], _REGEX)), sizes[0]


def _matched_only(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _matched(operands, estimates, sizes)[0], 1


def _contained(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return (sizes[1] if operands[1].type.kind != "map" else 1), 1


def _added(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    kind = operands[0].type.kind
    if kind in _SCALARS:
        return 1, 1
    total = _cap(sizes[0] + sizes[1])
    return (1 if kind == "list" else _traversal(total)), total


def _compared(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _traversal(min(sizes)), 1


def _ordered(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return (_traversal(min(sizes)) if operands[0].type.kind in ("string", "bytes", "dyn") else 1), 1


def _each_element(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    """Estimate list functions that visit every element; on strings (indexOf) they traverse."""
    target = operands[0].type
    if target.kind != "list":
        return _traversal(sizes[0]), 1
    element = target.params[0]
    each = 1
    if element.kind in ("string", "bytes"):
        each += _traversal(_element_size(estimates[0], element))
    return _cap(sizes[0] * each), None


def _joined(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    target = operands[0].type
    element = _element_size(estimates[0], target.params[0]) if target.params else UNBOUNDED
    separators = sizes[1] * max(0, sizes[0] - 1) if len(sizes) > 1 else 0
    total = _cap(sizes[0] * element + separators)
    return _traversal(total), total


def _pairwise(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _cap(sizes[0] * sizes[1] + 1), 1


def _validated(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _cap(_traversal(sizes[1]) * 128 * _REGEX), UNBOUNDED


def _authorized(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _AUTHORIZATION_CHECK, 1


def _traversed_list(operands: list[Node], estimates: list[Estimate], sizes: list[int]) -> Sized:
    return _cap(sizes[0] + 1), sizes[0]


_Rule = Callable[[list[Node], list[Estimate], list[int]], Sized]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(["isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"], _each_element),
    **dict.fromkeys(["url", "lowerAscii", "upperAscii", "substring", "trim", "jsonpatch.escapeKey"], _same_size),
    **dict.fromkeys(
        ["cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver", "isURL"], _first_traversed
    ),
    **dict.fromkeys(["split", "ip.isCanonical"], _twice_traversed),
    **dict.fromkeys(["startsWith", "endsWith", "fieldSelector", "labelSelector"], _second_traversed),
    **dict.fromkeys(["format", "strings.quote"], _first_traversed),
    **dict.fromkeys(["find", "findAll"], _matched),
    **dict.fromkeys(["_<_", "_<=_", "_>_", "_>=_"], _ordered),
    **dict.fromkeys(["_==_", "_!=_"], _compared),
    **dict.fromkeys(["sets.contains", "sets.intersects", "sets.equivalent"], _pairwise),
    **dict.fromkeys(["slice", "reverse", "distinct", "sort", "flatten"], _traversed_list),
    "matches": _matched_only,
    "contains": _searched,
    "replace": _replaced,
    "@in": _contained,
    "_+_": _added,
    "join": _joined,
    "validate": _validated,
    "check": _authorized,
}
