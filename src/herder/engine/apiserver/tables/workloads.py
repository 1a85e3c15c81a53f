"""Printers of workloads, jobs, autoscalers and disruption budgets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import (
    NONE,
    UNKNOWN,
    UNSET,
    columns,
    count,
    has_condition,
    join_limited,
    labels_text,
    name_of,
    selector_text,
    spec_of,
    status_of,
    template_cells,
)
from herder.engine.apiserver.tables.duration import age, human_duration, parse_time, since
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, GroupVersion, Object


def _deployment(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        name_of(obj),
        f"{count(status, 'readyReplicas')}/{count(spec, 'replicas')}",
        count(status, "updatedReplicas"),
        count(status, "availableReplicas"),
        age(obj, now),
        *template_cells(spec),
        selector_text(spec.get("selector"), empty=""),
    ]


def _replicas(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        name_of(obj),
        count(spec, "replicas"),
        count(status, "replicas"),
        count(status, "readyReplicas"),
        age(obj, now),
        *template_cells(spec),
    ]


def _replica_set(obj: Object, now: datetime) -> list[Any]:
    return [*_replicas(obj, now), selector_text(spec_of(obj).get("selector"))]


def _replication_controller(obj: Object, now: datetime) -> list[Any]:
    return [*_replicas(obj, now), labels_text(spec_of(obj).get("selector"))]


def _stateful_set(obj: Object, now: datetime) -> list[Any]:
    ready = f"{count(status_of(obj), 'readyReplicas')}/{count(spec_of(obj), 'replicas')}"
    return [name_of(obj), ready, age(obj, now), *template_cells(spec_of(obj))]


def _daemon_set(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    return [
        name_of(obj),
        count(status, "desiredNumberScheduled"),
        count(status, "currentNumberScheduled"),
        count(status, "numberReady"),
        count(status, "updatedNumberScheduled"),
        count(status, "numberAvailable"),
        labels_text(spec_of(spec.get("template") or {}).get("nodeSelector")),
        age(obj, now),
        *template_cells(spec),
        selector_text(spec.get("selector")),
    ]


def _job(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    succeeded, parallelism = count(status, "succeeded"), count(spec, "parallelism")
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    elif parallelism > 1:
        completions = f"{succeeded}/1 of {parallelism}"
    else:
        completions = f"{succeeded}/1"
    return [
        name_of(obj),
        _job_status(obj),
        completions,
        _job_duration(status, now),
        age(obj, now),
        *template_cells(spec),
        selector_text(spec.get("selector")),
    ]


def _job_status(obj: Object) -> str:
    conditions = status_of(obj).get("conditions")
    if has_condition(conditions, "Complete"):
        return "Complete"
    if has_condition(conditions, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if has_condition(conditions, kind):
            return kind
    return "Running"


def _job_duration(status: Object, now: datetime) -> str:
    started = parse_time(status.get("startTime"))
    if started is None:
        return ""
    return human_duration(((parse_time(status.get("completionTime")) or now) - started).total_seconds())


def _cron_job(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    job = spec_of(spec.get("jobTemplate") or {})
    suspend = spec.get("suspend")
    return [
        name_of(obj),
        spec.get("schedule", ""),
        NONE if spec.get("timeZone") is None else spec["timeZone"],
        UNSET if suspend is None else str(bool(suspend)),
        len(status.get("active") or ()),
        since(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else NONE,
        age(obj, now),
        *template_cells(job),
        selector_text(job.get("selector")),
    ]


def _controller_revision(obj: Object, now: datetime) -> list[Any]:
    owners = obj["metadata"].get("ownerReferences") or ()
    controller = next((owner for owner in owners if owner.get("controller")), None)
    message = NONE
    if controller:
        group = GroupVersion.parse(controller.get("apiVersion", "")).group
        kind = controller.get("kind", "").lower()
        message = f"{kind}.{group}/{controller.get('name', '')}" if group else f"{kind}/{controller.get('name', '')}"
    return [name_of(obj), message, count(obj, "revision"), age(obj, now)]


def _pod_disruption_budget(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        count(status_of(obj), "disruptionsAllowed"),
        age(obj, now),
    ]


def _horizontal_pod_autoscaler(obj: Object, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    target = spec.get("scaleTargetRef") or {}
    return [
        name_of(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(spec, status),
        UNSET if spec.get("minReplicas") is None else str(spec["minReplicas"]),
        count(spec, "maxReplicas"),
        count(status, "currentReplicas"),
        age(obj, now),
    ]


def _metrics(spec: Object, status: Object) -> str:
    wanted, current = spec.get("metrics") or [], status.get("currentMetrics") or []
    if not wanted and spec.get("targetCPUUtilizationPercentage") is not None:  # autoscaling/v1
        target = {"averageUtilization": spec["targetCPUUtilizationPercentage"]}
        wanted = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        used = status.get("currentCPUUtilizationPercentage")
        current = [{"resource": {"current": {"averageUtilization": used}}}] if used is not None else []
    values = [_metric(metric, current[index] if index < len(current) else {}) for index, metric in enumerate(wanted)]
    return join_limited(values, limit=2, empty=NONE, separator=", ")


def _metric(metric: Object, current: Object) -> str:
    kind = metric.get("type", "")
    field = kind[:1].lower() + kind[1:]
    source, seen = metric.get(field) or {}, (current.get(field) or {}).get("current") or {}
    target = source.get("target") or {}
    if kind in {"Resource", "ContainerResource"}:
        if target.get("averageValue") is not None:
            message = f"{seen.get('averageValue', UNKNOWN)}/{target['averageValue']}"
        else:
            message = f"{_percent(seen, UNKNOWN)}/{_percent(target, '<auto>')}"
        return f"{source.get('name', '')}: {message}"
    if kind == "Pods":
        return f"{seen.get('averageValue', UNKNOWN)}/{target.get('averageValue', '')}"
    if kind in {"External", "Object"}:
        if target.get("averageValue") is not None:
            return f"{seen.get('averageValue', UNKNOWN)}/{target['averageValue']} (avg)"
        return f"{seen.get('value', UNKNOWN)}/{target.get('value', '')}"
    return "<unknown type>"


def _percent(value: Object, missing: str) -> str:
    used = value.get("averageUtilization")
    return missing if used is None else f"{used}%"


_OF_TEMPLATE = ("+Containers", "+Images", "+Selector")
_COUNTS = columns("Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_OF_TEMPLATE)

PRINTERS: Printers = {
    GroupKind("apps", "Deployment"): Printer(
        columns("Name", "Ready", "Up-to-date", "Available", "Age", *_OF_TEMPLATE), _deployment
    ),
    GroupKind("apps", "ReplicaSet"): Printer(_COUNTS, _replica_set),
    GroupKind("", "ReplicationController"): Printer(_COUNTS, _replication_controller),
    GroupKind("apps", "StatefulSet"): Printer(
        columns("Name", "Ready", "Age", "+Containers", "+Images"), _stateful_set
    ),
    GroupKind("apps", "DaemonSet"): Printer(
        columns(
            "Name", "Desired:integer", "Current:integer", "Ready:integer", "Up-to-date:integer",
            "Available:integer", "Node Selector", "Age", *_OF_TEMPLATE,
        ),
        _daemon_set,
    ),
    GroupKind("apps", "ControllerRevision"): Printer(
        columns("Name", "Controller", "Revision", "Age"), _controller_revision
    ),
    GroupKind("batch", "Job"): Printer(
        columns("Name", "Status", "Completions", "Duration", "Age", *_OF_TEMPLATE), _job
    ),
    GroupKind("batch", "CronJob"): Printer(
        columns(
            "Name", "Schedule", "Timezone", "Suspend:boolean", "Active:integer", "Last Schedule", "Age",
            *_OF_TEMPLATE,
        ),
        _cron_job,
    ),
    GroupKind("policy", "PodDisruptionBudget"): Printer(
        columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age"),
        _pod_disruption_budget,
    ),
    GroupKind("autoscaling", "HorizontalPodAutoscaler"): Printer(
        columns("Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"), _horizontal_pod_autoscaler
    ),
}  # fmt: skip
