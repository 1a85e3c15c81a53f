"""Tree of a cluster's objects, rendered as a table or as data. Pure functions."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from herder.api.capi.conditions import Condition, find, is_true
from herder.api.capi.contract import Contract, control_plane
from herder.api.capi.names import CONTROL_PLANE, is_deleting, is_paused, labels_of
from herder.engine.apiserver.tables.duration import since
from herder.engine.meta.kinds import Object
from herder.engine.meta.printable import printable

HEADINGS = ("NAME", "REPLICAS", "AVAILABLE", "READY", "UP TO DATE", "STATUS", "REASON", "SINCE", "MESSAGE")
MESSAGE_WIDTH = 100
NAMES_SHOWN = 3


class Referenced(NamedTuple):
    """A provider object that the Cluster references; `problem` says why it is missing."""

    reference: Object
    obj: Object | None
    contract: Contract = Contract.V1BETA2
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """All objects of one Cluster."""

    cluster: Object
    infrastructure: Referenced | None = None
    control_plane: Referenced | None = None
    machine_deployments: Sequence[Object] = ()
    machine_sets: Sequence[Object] = ()
    machine_pools: Sequence[Object] = ()
    machines: Sequence[Object] = ()


class Counts(NamedTuple):
    replicas: int | None = None
    desired: int | None = None
    available: int | None = None
    ready: int | None = None
    up_to_date: int | None = None


NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    role: str = ""
    counts: Counts = NO_COUNTS
    condition: Condition = field(default_factory=dict)
    members: tuple[str, ...] = ()  # names of the Machines of a group
    children: tuple[Node, ...] = ()


Grouping = Callable[[Sequence[Object]], tuple[Node, ...]]


# --- build ----------------------------------------------------------------------------------------------------------


def cluster_tree(objects: ClusterObjects, *, expand: bool = False) -> Node:
    grouping = _each if expand else _grouped
    owners = {owner["metadata"]["uid"] for owner in (*objects.machine_sets, *objects.machine_pools)}
    unowned = [machine for machine in objects.machines if _controller(machine) not in owners]
    of_control_plane = grouping([machine for machine in unowned if CONTROL_PLANE in labels_of(machine)])
    others = grouping([machine for machine in unowned if CONTROL_PLANE not in labels_of(machine)])
    workers = [*_worker_nodes(objects, grouping, expand), *([Node("Other", children=others)] if others else [])]

    children: list[Node] = []
    if objects.infrastructure:
        children.append(_referenced_node("ClusterInfrastructure", objects.infrastructure, ["Ready"]))
    if objects.control_plane:
        children.append(
            _referenced_node("ControlPlane", objects.control_plane, ["Available", "Ready"], of_control_plane)
        )
    elif of_control_plane:
        children.append(Node("ControlPlane", children=of_control_plane))
    if workers:
        children.append(Node("Workers", children=tuple(workers)))
    return Node(
        _name(objects.cluster),
        counts=_cluster_counts(objects.cluster),
        condition=_condition_with_message(objects.cluster, "Available"),
        children=tuple(children),
    )


def conditions_tree(cluster: Object) -> Node:
    """A Cluster without Cluster API objects, such as an imported one: its conditions."""
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    others = [each for each in conditions if each["type"] != "Ready"]
    children = tuple(Node(each["type"], condition=each) for each in sorted(others, key=lambda each: str(each["type"])))
    return Node(_name(cluster), condition=_condition_with_message(cluster, "Ready"), children=children)


def _worker_nodes(objects: ClusterObjects, grouping: Grouping, expand: bool) -> Iterator[Node]:
    def set_nodes(sets: Iterable[Object]) -> tuple[Node, ...]:
        """Old sets that are empty and wanted so say nothing."""
        nodes = [_owner_node(each, (), grouping(_controlled(objects.machines, each))) for each in sets]
        return tuple(node for node in nodes if expand or node.children or node.counts.desired)

    for deployment in _sorted(objects.machine_deployments):
        yield _owner_node(deployment, ("Available",), set_nodes(_controlled(objects.machine_sets, deployment)))
    deployments = {deployment["metadata"]["uid"] for deployment in objects.machine_deployments}
    yield from set_nodes(_sorted(each for each in objects.machine_sets if _controller(each) not in deployments))
    for pool in _sorted(objects.machine_pools):
        yield _owner_node(pool, ("Available", "Ready"), grouping(_controlled(objects.machines, pool)))


def _referenced_node(role: str, found: Referenced, types: Sequence[str], children: tuple[Node, ...] = ()) -> Node:
    if found.obj is None:
        name = f"{found.reference['kind']}/{found.reference['name']}"
        missing = {"status": "Unknown", "reason": "", "message": found.problem or "does not exist"}
        return Node(name, role, condition=missing, children=children)
    counts = _control_plane_counts(found.obj, found.contract) if role == "ControlPlane" else NO_COUNTS
    return Node(_name(found.obj), role, counts, _condition_with_message(found.obj, *types), children=children)


def _owner_node(obj: Object, types: Sequence[str], children: tuple[Node, ...]) -> Node:
    status = obj.get("status") or {}
    counts = _counts(status, desired=(obj.get("spec") or {}).get("replicas"))
    return Node(_name(obj), counts=counts, condition=_condition_with_message(obj, *types), children=children)


def _grouped(machines: Sequence[Object]) -> tuple[Node, ...]:
    """One line for Machines in the same state."""
    groups: dict[tuple[Any, ...], list[Object]] = {}
    for machine in _sorted(machines):
        groups.setdefault(_state(machine), []).append(machine)
    return tuple(_machine_node(group[0]) if len(group) == 1 else _group_node(group) for group in groups.values())


def _each(machines: Sequence[Object]) -> tuple[Node, ...]:
    return tuple(_machine_node(machine) for machine in _sorted(machines))


def _state(machine: Object) -> tuple[Any, ...]:
    reported = (find(machine, type_) or {} for type_ in ("Ready", "Available", "UpToDate", "Deleting"))
    return is_deleting(machine), *((condition.get("status"), condition.get("reason")) for condition in reported)


def _machine_node(machine: Object) -> Node:
    return Node(_name(machine), counts=_machine_counts([machine]), condition=_condition_with_message(machine, "Ready"))


def _group_node(machines: Sequence[Object]) -> Node:
    names = tuple(machine["metadata"]["name"] for machine in machines)
    conditions = [_condition_with_message(machine, "Ready") for machine in machines]
    longest = min(conditions, key=lambda condition: condition.get("lastTransitionTime") or "~")
    shared = {condition.get("message") or "" for condition in conditions}
    message = _names(names) + (f":\n{shared.pop()}" if len(shared) == 1 and "" not in shared else "")
    marks = " (deleting)" if is_deleting(machines[0]) else ""
    status = {**longest, "message": message}
    return Node(f"{len(machines)} Machines{marks}", counts=_machine_counts(machines), condition=status, members=names)


def _names(names: Sequence[str]) -> str:
    left = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _name(obj: Object) -> str:
    paused = is_paused(obj if obj["kind"] == "Cluster" else None, obj)
    marks = [word for word, holds in (("deleting", is_deleting(obj)), ("paused", paused)) if holds]
    return f"{obj['kind']}/{obj['metadata']['name']}" + (f" ({', '.join(marks)})" if marks else "")


def _condition_with_message(obj: Object, *types: str) -> Condition:
    """The most informative condition: Deleting during deletion, else the first of these types."""
    wanted = ("Deleting", *types) if is_deleting(obj) else types
    return next((found for type_ in wanted if (found := find(obj, type_))), {})


def _controller(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def _controlled(objects: Iterable[Object], owner: Object) -> list[Object]:
    return _sorted(obj for obj in objects if _controller(obj) == owner["metadata"]["uid"])


def _sorted(objects: Iterable[Object]) -> list[Object]:
    return sorted(objects, key=lambda obj: str(obj["metadata"]["name"]))


# --- counters -------------------------------------------------------------------------------------------------------


def _counts(status: Object, *, desired: int | None) -> Counts:
    return Counts(
        status.get("replicas"),
        desired,
        status.get("availableReplicas"),
        status.get("readyReplicas"),
        status.get("upToDateReplicas"),
    )


def _cluster_counts(cluster: Object) -> Counts:
    """Sum of control plane and workers."""
    status = cluster.get("status") or {}
    parts = [status.get(part) or {} for part in ("controlPlane", "workers")]
    each = [_counts(part, desired=part.get("desiredReplicas")) for part in parts]
    return Counts(*(_sum(values) for values in zip(*each, strict=True)))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _control_plane_counts(obj: Object, contract: Contract) -> Counts:
    return Counts(
        control_plane.replicas(obj, contract),
        control_plane.desired_replicas(obj, contract),
        control_plane.available_replicas(obj, contract),
        control_plane.ready_replicas(obj, contract),
        control_plane.up_to_date_replicas(obj, contract),
    )


def _machine_counts(machines: Sequence[Object]) -> Counts:
    def true(type_: str) -> int:
        return sum(is_true(machine, type_) for machine in machines)

    return Counts(len(machines), None, true("Available"), true("Ready"), true("UpToDate"))


# --- output ---------------------------------------------------------------------------------------------------------


def render(root: Node, now: datetime) -> list[str]:
    rows = [tuple(map(printable, row)) for row in (HEADINGS, *_rows(root, now, "", ""))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(node: Node, now: datetime, first: str, rest: str) -> Iterator[tuple[str, ...]]:
    """`first` prefixes the node's own line, `rest` the lines below it."""
    condition, counts = node.condition, node.counts
    message, *more = _wrapped(condition.get("message") or "")
    yield (
        first + (f"{node.role} - {node.name}" if node.role else node.name),
        _replicas(counts),
        *("" if count is None else str(count) for count in counts[2:]),
        condition.get("status", ""),
        condition.get("reason", ""),
        since(changed, now) if (changed := condition.get("lastTransitionTime")) else "",
        message,
    )
    for line in more:
        yield (rest + ("│" if node.children else ""), *[""] * (len(HEADINGS) - 2), line)
    for position, child in enumerate(node.children, 1):
        branch, below = ("└─", "  ") if position == len(node.children) else ("├─", "│ ")
        yield from _rows(child, now, rest + branch, rest + below)


def _replicas(counts: Counts) -> str:
    if counts.desired is None:
        return "" if counts.replicas is None else str(counts.replicas)
    return f"{counts.replicas or 0}/{counts.desired}"


def _wrapped(message: str) -> list[str]:
    """At least one line; continuation lines align with the text of a list item, not with its bullet."""
    lines: list[str] = []
    for line in message.splitlines():
        text = line.lstrip("* ")
        lines += textwrap.wrap(line, MESSAGE_WIDTH, subsequent_indent=" " * (len(line) - len(text))) or [""]
    return lines or [""]


def as_data(node: Node) -> Object:
    """As JSON data without unknown values."""
    status = {"name": node.name, "role": node.role, **node.counts._asdict(), "condition": node.condition}
    status |= {"members": list(node.members), "children": [as_data(child) for child in node.children]}
    return {name: value for name, value in status.items() if value not in (None, "", {}, [])}
