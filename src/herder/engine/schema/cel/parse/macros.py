"""Macros: calls that bind variables or use their argument unevaluated."""

from __future__ import annotations

from herder.engine.schema.cel.errors import Issue
from herder.engine.schema.cel.parse.syntax import Call, Conditional, Ident, ListLiteral, Loop, Node, Select

_ACCUMULATOR = "__result__"
_ONE_VARIABLE = {("all", 2), ("exists", 2), ("exists_one", 2), ("existsOne", 2), ("filter", 2), ("map", 2), ("map", 3)}
_TWO_VARIABLES = {
    ("all", 3),
    ("exists", 3),
    ("exists_one", 3),
    ("existsOne", 3),
    ("transformList", 3),
    ("transformList", 4),
    ("transformMap", 3),
    ("transformMap", 4),
    ("transformMapEntry", 3),
    ("transformMapEntry", 4),
}
_OPTIONAL = {("optMap", 2), ("optFlatMap", 2)}


class MacroError(Exception):
    """Invalid use of a macro."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(at, message)


def expand_function(at: int, function: str, args: list[Node]) -> Node | None:
    """Expand a global call if it is a macro."""
    if function != "has" or len(args) != 1:
        return None
    arg = args[0]
    if isinstance(arg, Select) and not arg.optional and not arg.test:
        return Select(at, arg.operand, arg.field, test=True)
    raise MacroError(arg.at, "invalid argument to has() macro")


def expand_method(at: int, function: str, target: Node, args: list[Node]) -> Node | None:
    """Expand a method call if it is a macro."""
    shape = (function, len(args))
    if shape in _TWO_VARIABLES:
        return _two_variables(at, function, target, args)
    if shape in _ONE_VARIABLE:
        name = _variable(args[0], "argument must be a simple name" if function[0] == "e" or function == "all" else None)
        macro = "exists_one" if function == "existsOne" else function
        return Loop(at, macro, target, [name], args[1:])
    if shape in _OPTIONAL:
        if not isinstance(args[0], Ident):
            raise MacroError(args[0].at, f"{function}() variable name must be a simple identifier")
        return Loop(at, function, target, [args[0].name], args[1:])
    if shape == ("sortBy", 2):
        if not isinstance(target, Ident | Select | ListLiteral | Loop | Call | Conditional):
            message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
            raise MacroError(target.at, message)
        return Loop(at, "sortBy", target, [_variable(args[0])], args[1:])
    return None


def _two_variables(at: int, function: str, target: Node, args: list[Node]) -> Node:
    first = _variable(args[0], "argument must be a simple name")
    second = _variable(args[1], "argument must be a simple name")
    if first == second:
        raise MacroError(args[1].at, f"duplicate variable name: {first}")
    macro = "exists_one" if function == "existsOne" else function
    return Loop(at, macro, target, [first, second], args[2:])


def _variable(node: Node, complaint: str | None = None) -> str:
    if not isinstance(node, Ident) or node.name.startswith("."):
        raise MacroError(node.at, complaint or "argument is not an identifier")
    if node.name == _ACCUMULATOR:
        raise MacroError(node.at, "iteration variable overwrites accumulator variable")
    return node.name
