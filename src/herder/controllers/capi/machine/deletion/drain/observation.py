"""Objects of the workload cluster that a drain reads: the Node's Pods, and DaemonSets and Namespaces if needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from herder.api.capi.drain_records import (
    daemon_sets_of,
    full_name,
    namespaces_of,
    pods_of,
)
from herder.api.capi.kinds import MACHINE_DRAIN_RULE
from herder.api.capi.names import labels_of
from herder.controllers.capi.machine.deletion.drain.filters import DrainContext
from herder.controllers.capi.machine.deletion.drain.rules import Rule, rules_for
from herder.controllers.capi.machine.deletion.node import is_unreachable
from herder.controllers.capi.machine.deletion.scope import DeletionScope
from herder.controllers.drain.pods import has_daemon_set
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.view import Observed, Unreachable, View


class PodsObserved(NamedTuple):
    """Pods of the Node and the context for the filters."""

    pods: Sequence[Object]
    context: DrainContext
    observe: tuple[Observe, ...]


class NotObserved(NamedTuple):
    """Objects that cannot be read (`why`), or that have not been listed yet (`why` is empty)."""

    observe: tuple[Observe, ...]
    why: str = ""


def observe_pods(scope: DeletionScope, node: Object) -> PodsObserved | NotObserved:
    """Read the Pods of a Node and what the filters need for them."""
    pods_subscription = pods_of(scope.workload, node["metadata"]["name"])
    daemon_sets_subscription, namespaces_subscription = daemon_sets_of(scope.workload), namespaces_of(scope.workload)
    found = observe_all(scope.view, (pods_subscription,))
    if isinstance(found, NotObserved):
        return found
    pods = found[pods_subscription]
    rules = _rules(scope) if pods else []
    needed = [pods_subscription]
    if any(has_daemon_set(pod) for pod in pods):
        needed.append(daemon_sets_subscription)
    if any(rule.needs_namespaces for rule in rules):
        needed.append(namespaces_subscription)
    found = observe_all(scope.view, needed)
    if isinstance(found, NotObserved):
        return found
    context = DrainContext(
        scope.view.now,
        node_unreachable=is_unreachable(node),
        daemon_sets=frozenset(map(full_name, found.get(daemon_sets_subscription, ()))),
        rules=rules,
        namespaces={obj["metadata"]["name"]: labels_of(obj) for obj in found.get(namespaces_subscription, ())},
    )
    return PodsObserved(pods, context, tuple(needed))


def observe_all(view: View, subscriptions: Iterable[Observe]) -> dict[Observe, tuple[Object, ...]] | NotObserved:
    """Objects of all subscriptions, or NotObserved if one of them is not available."""
    found: dict[Observe, tuple[Object, ...]] = {}
    for subscription in subscriptions:
        match view.observed(subscription):
            case Observed(objects):
                found[subscription] = objects
            case Unreachable(reason):
                return NotObserved(tuple(subscriptions), f"{subscription.kind.kind}s cannot be listed: {reason}")
            case None:
                return NotObserved(tuple(subscriptions))
    return found


def _rules(scope: DeletionScope) -> list[Rule]:
    rules = scope.view.select(MACHINE_DRAIN_RULE, namespace=scope.machine["metadata"]["namespace"])
    return rules_for(scope.machine, scope.cluster, rules)
