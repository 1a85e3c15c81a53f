"""Turn recursion errors on deeply nested documents into bad requests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from herder.engine.meta.errors import BadRequest

P = ParamSpec("P")
R = TypeVar("R")


def refuse_too_deep(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that raises BadRequest if the function exceeds Python's recursion limit."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RecursionError:
            raise BadRequest("exceeded max depth") from None

    return guarded
