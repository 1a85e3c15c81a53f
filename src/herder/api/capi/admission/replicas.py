"""Defaulting of spec.replicas: 1, or a value within the autoscaler's range."""

from __future__ import annotations

import re
from collections.abc import Iterator

from herder.api.capi.admission.values import section, text, value, with_value
from herder.api.capi.names import AUTOSCALER_MAX, AUTOSCALER_MIN
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object

_COUNT = re.compile(r"[0-9]{1,10}\Z")
_LARGEST = 2**31 - 1


def with_replicas(obj: Object, old: Object | None) -> Object:
    """Default spec.replicas. Invalid autoscaler annotations leave it unset, and `problems`
    reports them.
    """
    if value(obj, "spec", "replicas") is not None:
        return obj
    annotations = section(obj, "metadata", "annotations")
    if AUTOSCALER_MIN not in annotations or AUTOSCALER_MAX not in annotations:
        return with_value(obj, 1, "spec", "replicas")
    low, high = _size(obj, AUTOSCALER_MIN), _size(obj, AUTOSCALER_MAX)
    if low is None or high is None:
        return obj
    # The autoscaler only takes over within its range; an existing object keeps its size if that lies within.
    current = value(old, "spec", "replicas") if old is not None else None
    if current is None or current < low:
        return with_value(obj, low, "spec", "replicas")
    return with_value(obj, min(current, high), "spec", "replicas")


def problems(obj: Object) -> Iterator[FieldError]:
    if value(obj, "spec", "replicas") is not None:
        return
    for annotation in (AUTOSCALER_MIN, AUTOSCALER_MAX):
        if _size(obj, annotation) is None:
            found = text(obj, "metadata", "annotations", annotation)
            detail = "must be a whole number of Machines, because spec.replicas is not set"
            yield invalid_value(f"metadata.annotations.{annotation}", found, detail)


def _size(obj: Object, annotation: str) -> int | None:
    found = text(obj, "metadata", "annotations", annotation)
    return int(found) if _COUNT.match(found) and int(found) <= _LARGEST else None
