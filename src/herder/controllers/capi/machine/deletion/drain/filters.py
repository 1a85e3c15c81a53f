"""Filters that decide, in order, how a drain treats each Pod.

The first filter that skips or waits for a Pod decides. Others may add a warning, and the last one applies the
MachineDrainRules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.drain_records import controller_of, full_name
from herder.api.capi.names import DRAIN, labels_of
from herder.controllers.capi.machine.deletion.drain.rules import Behavior, Rule
from herder.controllers.drain.pods import has_local_data, is_finished, is_static
from herder.engine.meta.kinds import Object

EXPIRED_AFTER = timedelta(seconds=2)
"""How long after its deletionTimestamp a Pod on an unreachable Node is waited for: no kubelet terminates it."""


class PodDrainStatus(NamedTuple):
    """How the drain treats a Pod (`PodDeleteStatus` in Cluster API)."""

    behavior: Behavior
    order: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True)
class DrainContext:
    """Everything besides the Pod that filters depend on."""

    now: datetime
    node_unreachable: bool = False
    daemon_sets: frozenset[str] = frozenset()  # namespace/name
    rules: Sequence[Rule] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # labels by namespace, if a rule selects namespaces


Filter = Callable[[Object, DrainContext], PodDrainStatus | None]
"""Returns None if it does not object to an eviction and has no warning."""


class UnknownNamespace(LookupError):
    """A rule selects by labels of a namespace that was not listed."""


def drain_status(pod: Object, context: DrainContext) -> PodDrainStatus:
    """Apply all filters to a Pod."""
    warnings: list[str] = []
    order = 0
    for judges in FILTERS:
        status = judges(pod, context)
        if status is None:
            continue
        if status.behavior is not Behavior.DRAIN:
            return status
        order = status.order
        if status.warning:
            warnings.append(status.warning)
    return PodDrainStatus(Behavior.DRAIN, order, ", ".join(warnings))


def skipped(pods: Iterable[Object], context: DrainContext) -> list[Object]:
    """Pods that stay on the Node, so that their volumes stay attached."""
    return [pod for pod in pods if drain_status(pod, context).behavior is Behavior.SKIP]


def expired_at(pod: Object) -> datetime | None:
    """When a Pod on an unreachable Node counts as gone; None if it is not being deleted."""
    deleted = pod["metadata"].get("deletionTimestamp")
    return datetime.fromisoformat(deleted) + EXPIRED_AFTER if deleted else None


def _unreachable_and_expired(pod: Object, context: DrainContext) -> PodDrainStatus | None:
    gone = expired_at(pod) if context.node_unreachable else None
    return PodDrainStatus(Behavior.SKIP) if gone is not None and gone <= context.now else None


def _of_daemon_set(pod: Object, context: DrainContext) -> PodDrainStatus | None:
    controller = controller_of(pod)
    if controller is None or controller.get("kind") != "DaemonSet" or is_finished(pod):
        return None
    if f"{pod['metadata']['namespace']}/{controller['name']}" not in context.daemon_sets:
        return PodDrainStatus(Behavior.DRAIN, warning="its DaemonSet is gone")
    return PodDrainStatus(Behavior.SKIP)


def _static(pod: Object, _context: DrainContext) -> PodDrainStatus | None:
    return PodDrainStatus(Behavior.SKIP) if is_static(pod) else None


def _with_local_data(pod: Object, _context: DrainContext) -> PodDrainStatus | None:
    if is_finished(pod) or not has_local_data(pod):
        return None
    return PodDrainStatus(Behavior.DRAIN, warning="its local data is lost")


def _unmanaged(pod: Object, _context: DrainContext) -> PodDrainStatus | None:
    if is_finished(pod) or controller_of(pod) is not None:
        return None
    return PodDrainStatus(Behavior.DRAIN, warning="no controller makes it anew")


def _labelled(pod: Object, _context: DrainContext) -> PodDrainStatus | None:
    """Accept both `wait-completed` and `WaitCompleted`; ignore any other value."""
    match labels_of(pod).get(DRAIN, "").lower():
        case "skip":
            return PodDrainStatus(Behavior.SKIP)
        case "wait-completed" | "waitcompleted":
            return PodDrainStatus(Behavior.WAIT_COMPLETED)
    return None


def _by_rule(pod: Object, context: DrainContext) -> PodDrainStatus | None:
    for rule in context.rules:
        if rule.applies_to(pod, _namespace_labels(pod, rule, context)):
            order = rule.order if rule.behavior is Behavior.DRAIN else 0
            return PodDrainStatus(rule.behavior, order)
    return None


def _namespace_labels(pod: Object, rule: Rule, context: DrainContext) -> Mapping[str, str]:
    if not rule.needs_namespaces:
        return {}
    labels = context.namespaces.get(pod["metadata"]["namespace"])
    if labels is None:
        raise UnknownNamespace(f"the namespace of Pod {full_name(pod)} does not exist")
    return labels


FILTERS: tuple[Filter, ...] = (
    _unreachable_and_expired,
    _of_daemon_set,
    _static,
    _with_local_data,
    _unmanaged,
    _labelled,
    _by_rule,
)
