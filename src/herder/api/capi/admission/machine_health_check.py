"""Admission of MachineHealthCheck."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission import checks
from herder.api.capi.admission.values import section, text, value, with_cluster_label, with_default
from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import validate_label_selector

NODE_STARTUP_SECONDS = 600
_SHORTEST_STARTUP = 30
_STARTUP = ("spec", "checks", "nodeStartupTimeoutSeconds")
_LIMIT = ("spec", "remediation", "triggerIf", "unhealthyLessThanOrEqualTo")


def default(obj: Object, old: Object | None) -> Object:
    return with_default(with_cluster_label(obj), NODE_STARTUP_SECONDS, *_STARTUP)


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    return [
        *_selector(obj),
        *checks.cluster_name_unchanged(obj, old),
        *_startup(obj),
        *checks.int_or_percent(value(obj, *_LIMIT), ".".join(_LIMIT)),
    ]


def _selector(obj: Object) -> Iterator[FieldError]:
    selector = section(obj, "spec", "selector")
    yield from validate_label_selector(selector, "spec.selector")
    yield from checks.selector_not_empty(selector, "spec.selector")
    cluster = section(selector, "matchLabels").get(CLUSTER_NAME)
    if cluster is not None and cluster != text(obj, "spec", "clusterName"):
        detail = "cannot specify a cluster selector other than the one specified by ClusterName"
        yield invalid_value("spec.selector", selector, detail)


def _startup(obj: Object) -> Iterator[FieldError]:
    """0 disables the startup timeout."""
    seconds = value(obj, *_STARTUP)
    if seconds is not None and seconds != 0 and seconds < _SHORTEST_STARTUP:
        yield invalid_value(".".join(_STARTUP), seconds, f"must be at least {_SHORTEST_STARTUP}s")
