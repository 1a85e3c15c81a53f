"""What a drain does with each Pod of a Node, by a table of filters in order.

A filter that wants a Pod left alone has the last word. The others may warn about what an eviction costs, and the last
one, the rules, says in which order the Pod goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.drained import MIRROR, controller_of, full_name
from herder.api.capi.names import DRAIN, annotations_of, labels_of
from herder.controllers.capi.machine.deletion.drain.rules import Behavior, Rule
from herder.engine.meta.kinds import Object

GONE_AFTER = timedelta(seconds=2)
"""How long after its time a Pod on an unreachable Node is waited for: nobody is there to end it."""


class Verdict(NamedTuple):
    behavior: Behavior
    order: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a Pod's verdict depends on beside the Pod."""

    now: datetime
    node_unreachable: bool = False
    daemon_sets: frozenset[str] = frozenset()  # namespace/name
    rules: Sequence[Rule] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # labels by name, where rules ask for them


Filter = Callable[[Object, Surroundings], Verdict | None]
"""None: no objection to an eviction, and nothing to say about it."""


class UnknownNamespace(LookupError):
    """A rule asks for the labels of a Pod's namespace, which was not among those listed."""


def judge(pod: Object, surroundings: Surroundings) -> Verdict:
    warnings: list[str] = []
    order = 0
    for judges in FILTERS:
        verdict = judges(pod, surroundings)
        if verdict is None:
            continue
        if verdict.behavior is not Behavior.DRAIN:
            return verdict
        order = verdict.order
        if verdict.warning:
            warnings.append(verdict.warning)
    return Verdict(Behavior.DRAIN, order, ", ".join(warnings))


def skipped(pods: Iterable[Object], surroundings: Surroundings) -> list[Object]:
    """The Pods that stay on the Node: what they use stays in use."""
    return [pod for pod in pods if judge(pod, surroundings).behavior is Behavior.SKIP]


def is_finished(pod: Object) -> bool:
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def gone_at(pod: Object) -> datetime | None:
    """When a Pod on an unreachable Node counts as gone; None while nobody has deleted it."""
    deleted = pod["metadata"].get("deletionTimestamp")
    return datetime.fromisoformat(deleted) + GONE_AFTER if deleted else None


def _never_reported_gone(pod: Object, surroundings: Surroundings) -> Verdict | None:
    gone = gone_at(pod) if surroundings.node_unreachable else None
    return Verdict(Behavior.SKIP) if gone is not None and gone <= surroundings.now else None


def _of_daemon_set(pod: Object, surroundings: Surroundings) -> Verdict | None:
    controller = controller_of(pod)
    if controller is None or controller.get("kind") != "DaemonSet" or is_finished(pod):
        return None
    if f"{pod['metadata']['namespace']}/{controller['name']}" not in surroundings.daemon_sets:
        return Verdict(Behavior.DRAIN, warning="its DaemonSet is gone")
    return Verdict(Behavior.SKIP)


def _static(pod: Object, _surroundings: Surroundings) -> Verdict | None:
    return Verdict(Behavior.SKIP) if MIRROR in annotations_of(pod) else None


def _with_local_data(pod: Object, _surroundings: Surroundings) -> Verdict | None:
    if is_finished(pod) or not any("emptyDir" in volume for volume in pod["spec"]["volumes"]):
        return None
    return Verdict(Behavior.DRAIN, warning="its local data is lost")


def _unmanaged(pod: Object, _surroundings: Surroundings) -> Verdict | None:
    if is_finished(pod) or controller_of(pod) is not None:
        return None
    return Verdict(Behavior.DRAIN, warning="no controller makes it anew")


def _labelled(pod: Object, _surroundings: Surroundings) -> Verdict | None:
    """Both `wait-completed` and `WaitCompleted` are understood; any other value says nothing."""
    match labels_of(pod).get(DRAIN, "").lower():
        case "skip":
            return Verdict(Behavior.SKIP)
        case "wait-completed" | "waitcompleted":
            return Verdict(Behavior.WAIT_COMPLETED)
    return None


def _by_rule(pod: Object, surroundings: Surroundings) -> Verdict | None:
    for rule in surroundings.rules:
        if rule.applies_to(pod, _namespace_labels(pod, rule, surroundings)):
            order = rule.order if rule.behavior is Behavior.DRAIN else 0
            return Verdict(rule.behavior, order)
    return None


def _namespace_labels(pod: Object, rule: Rule, surroundings: Surroundings) -> Mapping[str, str]:
    if not rule.asks_for_namespaces:
        return {}
    labels = surroundings.namespaces.get(pod["metadata"]["namespace"])
    if labels is None:
        raise UnknownNamespace(f"the namespace of Pod {full_name(pod)} does not exist")
    return labels


FILTERS: tuple[Filter, ...] = (
    _never_reported_gone,
    _of_daemon_set,
    _static,
    _with_local_data,
    _unmanaged,
    _labelled,
    _by_rule,
)
