"""Function declarations: each overload has a signature for the checker and a Python function for the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from herder.engine.schema.cel.types import Type
from herder.engine.schema.cel.values import Duration, Optional, Timestamp, TypeValue, Uint

Implementation = Callable[..., Any]


class Overload:
    """One signature of a function; the first parameter of a method is its receiver.

    The cost of `linear` functions grows with the size of their arguments.
    """

    __slots__ = ("implementation", "linear", "member", "name", "params", "result", "type_params")

    def __init__(
        self, name: str, params: tuple[Type, ...], result: Type, implementation: Implementation, *, member: bool
    ) -> None:
        self.name = name
        self.params = params
        self.result = result
        self.implementation = implementation
        self.member = member
        self.linear = False
        self.type_params = frozenset(_type_params((*params, result)))


class Library:
    """A set of function declarations, filled by decorators."""

    def __init__(self) -> None:
        self.overloads: list[Overload] = []

    def function(
        self, name: str, *params: Type, returns: Type, linear: bool = False
    ) -> Callable[[Implementation], Implementation]:
        """Declare a function called as `name(params)`; the name may be qualified (`sets.contains`)."""
        return self._declaring(name, params, returns, member=False, linear=linear)

    def method(
        self, name: str, *params: Type, returns: Type, linear: bool = False
    ) -> Callable[[Implementation], Implementation]:
        """Declare a method called as `params[0].name(params[1:])`."""
        return self._declaring(name, params, returns, member=True, linear=linear)

    def _declaring(
        self, name: str, params: tuple[Type, ...], returns: Type, *, member: bool, linear: bool
    ) -> Callable[[Implementation], Implementation]:
        def declare(implementation: Implementation) -> Implementation:
            overload = Overload(name, params, returns, implementation, member=member)
            overload.linear = linear
            self.overloads.append(overload)
            return implementation

        return declare


Functions = dict[str, list[Overload]]


def by_name(libraries: Iterable[Library]) -> Functions:
    functions: Functions = {}
    for library in libraries:
        for overload in library.overloads:
            functions.setdefault(overload.name, []).append(overload)
    return functions


def _type_params(types: Iterable[Type]) -> Iterable[Type]:
    for type in types:
        if type.kind == "param":
            yield type
        else:
            yield from _type_params(type.params)


_CLASSES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "uint": Uint,
    "double": float,
    "string": str,
    "bytes": bytes,
    "null_type": type(None),
    "list": list,
    "map": dict,
    "timestamp": Timestamp,
    "duration": Duration,
    "type": TypeValue,
}


def accepts(param: Type, python_type: type) -> bool:
    """Return whether values of a Python class can be passed for a parameter; element types are ignored."""
    if param.kind in ("param", "dyn"):
        return True
    expected = _CLASSES.get(param.kind)
    if expected is not None:
        return expected is python_type
    if param.name == "optional_type":
        return python_type is Optional
    return getattr(python_type, "cel_type", "map" if python_type is dict else None) in (param.name, "map")
