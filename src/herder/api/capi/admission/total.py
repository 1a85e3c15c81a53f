"""Rules that answer for every object: an exception in one of them is a refusal that names a field, never a 500.

A rule that raises has met a value that its author did not think of. The object is refused, since nothing is known of
what else it holds, and the message says which rule must be fixed. It quotes no value: answers are logged.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import PurePath

from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object

Rule = Callable[[Object, Object | None], Iterable[FieldError]]
Default = Callable[[Object, Object | None], Object]


def problems(rule: Rule, obj: Object, old: Object | None, path: str) -> list[FieldError]:
    """What the rule refuses; `path` itself where it raises."""
    try:
        return [*rule(obj, old)]
    except Exception as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {PurePath(raised.filename).name}:{raised.lineno}"
        return [invalid_value(path, "value", f"cannot be validated ({where}); correct the field, and report this bug")]


def defaulted(default: Default, obj: Object, old: Object | None) -> Object:
    """The object itself where its defaults raise: validation refuses it after that."""
    try:
        return default(obj, old)
    except Exception:
        return obj
