"""Helpers of defaulting functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herder.engine.meta.kinds import Object

Fill = Callable[[Object], None]


def fill_empty(obj: Object, **values: Any) -> None:
    """Set fields that are absent or empty (Go: a plain field with its zero value)."""
    for key, value in values.items():
        if not obj.get(key):
            obj[key] = value


def fill_absent(obj: Object, **values: Any) -> None:
    """Set fields that are absent (Go: a nil pointer); explicit zero values are kept."""
    for key, value in values.items():
        if obj.get(key) is None:
            obj[key] = value


def filling(fill: Callable[..., None], **values: Any) -> Fill:
    """Return a defaulting function that sets constants."""
    return lambda obj: fill(obj, **values)
