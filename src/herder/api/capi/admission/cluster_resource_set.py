"""Admission of ClusterResourceSet and ClusterResourceSetBinding: strategy, selector and cluster are immutable."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission import checks
from herder.api.capi.admission.values import section, text, value, with_value
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import validate_label_selector

APPLY_ONCE = "ApplyOnce"


def default(obj: Object, old: Object | None) -> Object:
    return obj if value(obj, "spec", "strategy") else with_value(obj, APPLY_ONCE, "spec", "strategy")


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    selector = section(obj, "spec", "clusterSelector")
    problems = [*validate_label_selector(selector, "spec.clusterSelector")]
    if problems:
        return problems
    return [*checks.selector_not_empty(selector, "spec.clusterSelector"), *_immutable_fields(obj, old)]


def _immutable_fields(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if old is None:
        return
    strategy, selector = text(obj, "spec", "strategy"), section(obj, "spec", "clusterSelector")
    if text(old, "spec", "strategy") not in ("", strategy):
        yield invalid_value("spec.strategy", strategy, checks.IMMUTABLE)
    if _without_empty(section(old, "spec", "clusterSelector")) != _without_empty(selector):
        yield invalid_value("spec.clusterSelector", selector, checks.IMMUTABLE)


def _without_empty(selector: Object) -> Object:
    """Drop empty parts, which are equivalent to missing ones."""
    return {part: found for part, found in selector.items() if found}


def validate_binding(obj: Object, old: Object | None) -> list[FieldError]:
    name, before = text(obj, "spec", "clusterName"), text(old or {}, "spec", "clusterName")
    return [invalid_value("spec.clusterName", name, checks.IMMUTABLE)] if before and before != name else []
