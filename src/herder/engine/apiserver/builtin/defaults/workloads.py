"""Defaults of apps, batch and autoscaling."""

from __future__ import annotations

import copy
from typing import Any

from herder.engine.apiserver.builtin.defaults.fill import Fill, fill_absent, fill_empty, filling
from herder.engine.meta.kinds import Object

_MAX_INT32 = (1 << 31) - 1


def deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec.setdefault("strategy", {})
    fill_empty(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill_absent(strategy, rollingUpdate={})
        fill_absent(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


def daemon_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, revisionHistoryLimit=10)
    strategy = spec.setdefault("updateStrategy", {})
    fill_empty(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        fill_absent(strategy, rollingUpdate={})
        fill_absent(strategy["rollingUpdate"], maxUnavailable=1, maxSurge=0)


def stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_empty(spec, podManagementPolicy="OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        fill_absent(strategy, rollingUpdate={})
    if strategy["type"] == "RollingUpdate" and strategy.get("rollingUpdate") is not None:
        fill_absent(strategy["rollingUpdate"], partition=0)
    fill_absent(spec, persistentVolumeClaimRetentionPolicy={})
    fill_empty(spec["persistentVolumeClaimRetentionPolicy"], whenDeleted="Retain", whenScaled="Retain")
    fill_absent(spec, replicas=1, revisionHistoryLimit=10)
    for claim in spec.get("volumeClaimTemplates") or ():
        fill_empty(claim, kind="PersistentVolumeClaim", apiVersion="v1")


def replica_set(obj: Object) -> None:
    fill_absent(obj.setdefault("spec", {}), replicas=1)


def job(obj: Object) -> None:
    job_spec(obj.setdefault("spec", {}))
    labels = (obj["spec"].get("template", {}).get("metadata") or {}).get("labels")
    if labels:
        fill_empty(obj.setdefault("metadata", {}), labels=dict(labels))


def job_spec(spec: Object) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill_absent(
        spec,
        parallelism=1,
        backoffLimit=6 if spec.get("backoffLimitPerIndex") is None else _MAX_INT32,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy="TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
        manualSelector=False,
    )


def cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_empty(spec, concurrencyPolicy="Allow")
    fill_absent(spec, suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)


_SCALE_UP: dict[str, Any] = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: dict[str, Any] = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def autoscaler(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, minReplicas=1)
    target = {"type": "Utilization", "averageUtilization": 80}
    fill_empty(spec, metrics=[{"type": "Resource", "resource": {"name": "cpu", "target": target}}])
    behavior = spec.get("behavior")
    if behavior is not None:
        for key, rules in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            chosen = {name: value for name, value in (behavior.get(key) or {}).items() if value is not None}
            behavior[key] = {**copy.deepcopy(rules), **chosen}


BY_STRUCT: dict[str, Fill] = {
    "apps.v1.Deployment": deployment,
    "apps.v1.DaemonSet": daemon_set,
    "apps.v1.StatefulSet": stateful_set,
    "apps.v1.ReplicaSet": replica_set,
    "batch.v1.Job": job,
    "batch.v1.CronJob": cron_job,
    "batch.v1.PodFailurePolicyOnPodConditionsPattern": filling(fill_empty, status="True"),
    "autoscaling.v1.HorizontalPodAutoscaler": lambda obj: fill_absent(obj.setdefault("spec", {}), minReplicas=1),
    "autoscaling.v2.HorizontalPodAutoscaler": autoscaler,
}
