"""Validation of MachineDrainRule: valid selectors, and an order only for behavior Drain."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission.values import text, value
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import validate_label_selector

_UNORDERED = ("Skip", "WaitCompleted")
_SELECTORS = {"machines": ("selector", "clusterSelector"), "pods": ("selector", "namespaceSelector")}


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    return [*_order(obj), *selector_problems(obj)]


def _order(obj: Object) -> Iterator[FieldError]:
    order = value(obj, "spec", "drain", "order")
    if order is not None and text(obj, "spec", "drain", "behavior") in _UNORDERED:
        detail = 'order must not be set if drain behavior is "Skip" or "WaitCompleted"'
        yield invalid_value("spec.drain.order", order, detail)


def selector_problems(obj: Object) -> Iterator[FieldError]:
    """Yield the errors of all selectors.

    Controllers call this too, so that an invalid rule that another server admitted matches nothing.
    """
    for part, selectors in _SELECTORS.items():
        for position, entry in enumerate(value(obj, "spec", part) or []):
            for name in selectors:
                yield from validate_label_selector(entry.get(name), f"spec.{part}[{position}].{name}")
