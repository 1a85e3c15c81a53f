"""Conversions between versions of built-in kinds that differ in more than `apiVersion`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from herder.engine.apiserver.builtin.strategies.events import GROUP_VERSION, from_core, to_core
from herder.engine.meta.kinds import Object

_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"
_CONDITIONS = "autoscaling.alpha.kubernetes.io/conditions"
_CURRENT = "autoscaling.alpha.kubernetes.io/current-metrics"


async def convert_events(objects: Sequence[Object], api_version: str) -> list[Object]:
    """Convert Events between the core group and events.k8s.io."""
    convert = from_core if api_version == GROUP_VERSION else to_core
    return [obj if obj.get("apiVersion") == api_version else convert(obj) for obj in objects]


async def convert_autoscalers(objects: Sequence[Object], api_version: str) -> list[Object]:
    """Convert HorizontalPodAutoscalers between v1 and v2."""
    convert = _to_v1 if api_version == "autoscaling/v1" else _to_v2
    return [obj if obj.get("apiVersion") == api_version else convert(obj) for obj in objects]


def _is_cpu(metric: Object, key: str) -> bool:
    resource = metric.get("resource") or {}
    return metric.get("type") == "Resource" and resource.get("name") == "cpu" and key in (
        resource.get("target") or resource.get("current") or {}
    )  # fmt: skip


def _to_v1(obj: Object) -> Object:
    """Convert to autoscaling/v1, which has CPU utilization only; everything else is kept in annotations."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    annotations = dict(obj["metadata"].get("annotations") or {})
    others = []
    for metric in spec.pop("metrics", None) or ():
        if "targetCPUUtilizationPercentage" not in spec and _is_cpu(metric, "averageUtilization"):
            spec["targetCPUUtilizationPercentage"] = metric["resource"]["target"]["averageUtilization"]
        else:
            others.append(metric)
    _put(annotations, _METRICS, others)
    _put(annotations, _BEHAVIOR, spec.pop("behavior", None))
    current = []
    for metric in status.pop("currentMetrics", None) or ():
        if "currentCPUUtilizationPercentage" not in status and _is_cpu(metric, "averageUtilization"):
            status["currentCPUUtilizationPercentage"] = metric["resource"]["current"]["averageUtilization"]
        else:
            current.append(metric)
    _put(annotations, _CURRENT, current)
    _put(annotations, _CONDITIONS, status.pop("conditions", None))
    status.setdefault("currentReplicas", 0)
    return _with(obj, "autoscaling/v1", spec, status, annotations)


def _to_v2(obj: Object) -> Object:
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    annotations = dict(obj["metadata"].get("annotations") or {})
    metrics = _take(annotations, _METRICS) or []
    percentage = spec.pop("targetCPUUtilizationPercentage", None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        metrics = [*metrics, {"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = _take(annotations, _BEHAVIOR)
    if metrics:
        spec["metrics"] = metrics
    if behavior:
        spec["behavior"] = behavior
    current = _take(annotations, _CURRENT) or []
    used = status.pop("currentCPUUtilizationPercentage", None)
    if used is not None:
        current = [*current, {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": used}}}]
    status["currentMetrics"] = current or None
    conditions = _take(annotations, _CONDITIONS)
    if conditions:
        status["conditions"] = conditions
    return _with(obj, "autoscaling/v2", spec, status, annotations)


def _put(annotations: dict[str, str], key: str, value: object) -> None:
    if value:
        annotations[key] = msgspec.json.encode(value).decode()


def _take(annotations: dict[str, str], key: str) -> Any:
    """Remove and decode an annotation. A malformed one is kept and ignored."""
    try:
        value = msgspec.json.decode(annotations[key])
    except (KeyError, msgspec.DecodeError):
        return None
    del annotations[key]
    return value


def _with(obj: Object, api_version: str, spec: Object, status: Object, annotations: dict[str, str]) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    return {**obj, "apiVersion": api_version, "metadata": metadata, "spec": spec, "status": status}
