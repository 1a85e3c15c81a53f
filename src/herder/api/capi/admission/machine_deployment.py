"""Admission of MachineDeployment: the rules of MachineSet, and the rollout strategy."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission import checks, replicas
from herder.api.capi.admission.machine_set import validate_template, with_label_everywhere, with_own_selector
from herder.api.capi.admission.values import (
    section,
    text,
    value,
    with_cluster_label,
    with_default,
    with_value,
    with_version_prefix,
)
from herder.api.capi.names import CLUSTER_NAME, DEPLOYMENT_NAME
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, invalid_value
from herder.engine.meta.kinds import Object

ROLLING_UPDATE = "RollingUpdate"
_STRATEGY = ("spec", "rollout", "strategy")


def default(obj: Object, old: Object | None) -> Object:
    obj = replicas.with_replicas(with_cluster_label(obj), old)
    obj = _with_selector(_with_strategy(obj))
    return with_version_prefix(obj, "spec", "template", "spec", "version")


def _with_strategy(obj: Object) -> Object:
    if not value(obj, *_STRATEGY, "type"):
        obj = with_value(obj, ROLLING_UPDATE, *_STRATEGY, "type")
    if value(obj, *_STRATEGY, "type") != ROLLING_UPDATE:
        return obj
    obj = with_default(obj, 1, *_STRATEGY, "rollingUpdate", "maxSurge")
    return with_default(obj, 0, *_STRATEGY, "rollingUpdate", "maxUnavailable")


def _with_selector(obj: Object) -> Object:
    """Add the cluster name to the selector, so that it never matches Machines of another cluster."""
    obj = with_own_selector(obj, DEPLOYMENT_NAME, text(obj, "metadata", "name"))
    cluster, selector = text(obj, "spec", "clusterName"), section(obj, "spec", "selector")
    selects = selector.get("matchLabels") or selector.get("matchExpressions")
    return with_label_everywhere(obj, CLUSTER_NAME, cluster) if cluster and selects else obj


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    return [*_name(obj), *validate_template(obj, old), *_rollout(obj), *_remediation(obj)]


def _name(obj: Object) -> Iterator[FieldError]:
    name = obj["metadata"].get("name") or ""
    for complaint in names.label_value(name):
        yield invalid_value("metadata.name", name, f"must be a valid label value: {complaint}")


def _rollout(obj: Object) -> Iterator[FieldError]:
    path, rolling = "spec.rollout.strategy.rollingUpdate", section(obj, *_STRATEGY, "rollingUpdate")
    unavailable, surge = rolling.get("maxUnavailable"), rolling.get("maxSurge")
    yield from checks.int_or_percent(unavailable, f"{path}.maxUnavailable")
    yield from checks.int_or_percent(surge, f"{path}.maxSurge")
    if unavailable == 0 and surge == 0:
        yield invalid_value(path, rolling, "maxUnavailable and maxSurge cannot both be 0")


def _remediation(obj: Object) -> Iterator[FieldError]:
    yield from checks.int_or_percent(value(obj, "spec", "remediation", "maxInFlight"), "spec.remediation.maxInFlight")
