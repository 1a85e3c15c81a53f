"""Run admission rules so that an exception becomes a field error instead of a 500.

A rule that raises met a value its author did not expect. The object is rejected, and the message names the rule to fix.
It quotes no value, because responses are logged.
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
    """Return the rule's errors; an error for `path` itself if the rule raises."""
    try:
        return [*rule(obj, old)]
    except Exception as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {PurePath(raised.filename).name}:{raised.lineno}"
        return [invalid_value(path, "value", f"cannot be validated ({where}); correct the field, and report this bug")]


def defaulted(default: Default, obj: Object, old: Object | None) -> Object:
    """Apply the defaults; return the object unchanged if they raise, because validation then rejects it."""
    try:
        return default(obj, old)
    except Exception:
        return obj
