"""How many Machines there shall be where nobody says: one, or what leaves the autoscaler in charge."""

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
    """Set where they are not. Left alone where the autoscaler's annotations make no sense: `problems` says so."""
    if value(obj, "spec", "replicas") is not None:
        return obj
    annotations = section(obj, "metadata", "annotations")
    if AUTOSCALER_MIN not in annotations or AUTOSCALER_MAX not in annotations:
        return with_value(obj, 1, "spec", "replicas")
    low, high = _size(obj, AUTOSCALER_MIN), _size(obj, AUTOSCALER_MAX)
    if low is None or high is None:
        return obj
    # The autoscaler takes over only from within its range; there, an object that runs already keeps its size.
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
