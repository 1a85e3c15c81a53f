"""Printers of nodes, namespaces, events, configuration and other cluster kinds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from herder.engine.apiserver.tables.cells import NONE, UNKNOWN, columns, condition, name_of, spec_of, status_of
from herder.engine.apiserver.tables.duration import age, since
from herder.engine.apiserver.tables.printers import Printer, Printers
from herder.engine.meta.kinds import GroupKind, Object

_ROLE_PREFIX = "node-role.kubernetes.io/"


def _node(obj: Object, now: datetime) -> list[Any]:
    info = status_of(obj).get("nodeInfo") or {}
    architecture = f" ({info['architecture']})" if info.get("architecture") else ""
    return [
        name_of(obj),
        _node_state(obj),
        ",".join(sorted(_node_roles(obj))) or NONE,
        age(obj, now),
        info.get("kubeletVersion", ""),
        _node_address(obj, "InternalIP"),
        _node_address(obj, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        (info.get("kernelVersion") or UNKNOWN) + architecture,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_state(node: Object) -> str:
    ready = condition(status_of(node).get("conditions"), "Ready")
    state = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if spec_of(node).get("unschedulable") else state


def _node_roles(node: Object) -> set[str]:
    labels = node["metadata"].get("labels") or {}
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    return (roles | {labels.get("kubernetes.io/role", "")}) - {""}


def _node_address(node: Object, kind: str) -> str:
    addresses = status_of(node).get("addresses") or ()
    return next((each.get("address", "") for each in addresses if each.get("type") == kind), NONE)


def _namespace(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), status_of(obj).get("phase", ""), age(obj, now)]


def _event(obj: Object, now: datetime) -> list[Any]:
    """Print an Event of either group: core has involvedObject and message, events.k8s.io regarding and note."""
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    series = obj.get("series")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    times = obj.get("count") or obj.get("deprecatedCount") or 1
    if series is not None:
        last, times = series.get("lastObservedTime"), series.get("count") or 0
    kind, name = about.get("kind", "").lower(), about.get("name", "")
    return [
        since(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{name}" if name else kind,
        about.get("fieldPath", ""),
        _event_source(obj, source),
        (obj.get("message") or obj.get("note") or "").strip(),
        since(first, now),
        times,
        name_of(obj),
    ]


def _event_source(event: Object, source: Object) -> str:
    controller = event.get("reportingComponent") or event.get("reportingController") or ""
    component = source.get("component") or controller
    instance = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {instance}" if instance else str(component)


def _secret(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(obj.get("data") or ()), age(obj, now)]


def _config_map(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age(obj, now)]


def _lease(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), spec_of(obj).get("holderIdentity") or "", age(obj, now)]


def _resource_quota(obj: Object, now: datetime) -> list[Any]:
    hard, used = status_of(obj).get("hard") or {}, status_of(obj).get("used") or {}
    status = {name: f"{name}: {used.get(name, '0')}/{hard[name]}" for name in sorted(hard)}
    limits = [text for name, text in status.items() if name.startswith("limits.")]
    requests = [text for name, text in status.items() if not name.startswith("limits.")]
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age(obj, now)]


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        obj.get("value") or 0,
        bool(obj.get("globalDefault")),
        age(obj, now),
        obj.get("preemptionPolicy", ""),
    ]


def _runtime_class(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("handler", ""), age(obj, now)]


def _component_status(obj: Object, now: datetime) -> list[Any]:
    healthy = condition(obj.get("conditions"), "Healthy")
    if healthy is None:
        return [name_of(obj), "Unknown", "", ""]
    state = "Healthy" if healthy.get("status") == "True" else "Unhealthy"
    return [name_of(obj), state, healthy.get("message", ""), healthy.get("error", "")]


def _flow_schema(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    dangling = condition(status_of(obj).get("conditions"), "Dangling")
    return [
        name_of(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence") or 0,
        (spec.get("distinguisherMethod") or {}).get("type", NONE),
        age(obj, now),
        dangling.get("status", "") if dangling else "?",
    ]


def _priority_level(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    limited = spec.get("limited") or {}
    queuing = (limited.get("limitResponse") or {}).get("queuing") or {}
    return [
        name_of(obj),
        spec.get("type", ""),
        limited.get("nominalConcurrencyShares", NONE),
        *(queuing.get(field, NONE) for field in ("queues", "handSize", "queueLengthLimit")),
        age(obj, now),
    ]


def _name_and_age(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), age(obj, now)]


def _resource_claim(obj: Object, now: datetime) -> list[Any]:
    status = status_of(obj)
    deleting = bool(obj["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if deleting else []
    if status.get("allocation") is not None:
        states.append("allocated")
        states += ["reserved"] if status.get("reservedFor") else []
    elif not deleting:
        states.append("pending")
    return [name_of(obj), ",".join(states), age(obj, now)]


def _resource_slice(obj: Object, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    pool = (spec.get("pool") or {}).get("name", "")
    return [name_of(obj), spec.get("nodeName") or "", spec.get("driver", ""), pool, age(obj, now)]


_NAME_AND_AGE = Printer(columns("Name", "Age"), _name_and_age)
_EVENT = Printer(
    columns(
        "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message", "+First Seen", "+Count", "+Name"
    ),
    _event,
)

PRINTERS: Printers = {
    GroupKind("", "Node"): Printer(
        columns(
            "Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+External-IP", "+OS-Image",
            "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    GroupKind("", "Namespace"): Printer(columns("Name", "Status", "Age"), _namespace),
    GroupKind("", "Event"): _EVENT,
    GroupKind("events.k8s.io", "Event"): _EVENT,
    GroupKind("", "Secret"): Printer(columns("Name", "Type", "Data", "Age"), _secret),
    GroupKind("", "ConfigMap"): Printer(columns("Name", "Data", "Age"), _config_map),
    GroupKind("coordination.k8s.io", "Lease"): Printer(columns("Name", "Holder", "Age"), _lease),
    GroupKind("", "ResourceQuota"): Printer(columns("Name", "Request", "Limit", "Age"), _resource_quota),
    GroupKind("scheduling.k8s.io", "PriorityClass"): Printer(
        columns("Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"), _priority_class
    ),
    GroupKind("node.k8s.io", "RuntimeClass"): Printer(columns("Name", "Handler", "Age"), _runtime_class),
    GroupKind("flowcontrol.apiserver.k8s.io", "FlowSchema"): Printer(
        columns("Name", "PriorityLevel", "MatchingPrecedence", "DistinguisherMethod", "Age", "MissingPL"), _flow_schema
    ),
    GroupKind("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): Printer(
        columns(
            "Name", "Type", "NominalConcurrencyShares", "Queues", "HandSize", "QueueLengthLimit", "Age"
        ),
        _priority_level,
    ),
    GroupKind("resource.k8s.io", "DeviceClass"): _NAME_AND_AGE,
    GroupKind("resource.k8s.io", "ResourceClaim"): Printer(columns("Name", "State", "Age"), _resource_claim),
    GroupKind("resource.k8s.io", "ResourceClaimTemplate"): _NAME_AND_AGE,
    GroupKind("resource.k8s.io", "ResourceSlice"): Printer(
        columns("Name", "Node", "Driver", "Pool", "Age"), _resource_slice
    ),
    GroupKind("", "ComponentStatus"): Printer(columns("Name", "Status", "Message", "Error"), _component_status),
}  # fmt: skip
