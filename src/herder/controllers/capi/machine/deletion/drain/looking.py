"""What a drain needs to see of the workload cluster: always the Node's Pods, the rest only where a Pod asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from herder.api.capi.drained import (
    controller_of,
    daemon_sets_of,
    full_name,
    namespaces_of,
    pods_of,
)
from herder.api.capi.kinds import MACHINE_DRAIN_RULE
from herder.api.capi.names import labels_of
from herder.controllers.capi.machine.deletion.drain.filters import Surroundings
from herder.controllers.capi.machine.deletion.drain.rules import Rule, rules_for
from herder.controllers.capi.machine.deletion.node import is_unreachable
from herder.controllers.capi.machine.deletion.scope import Scope
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.view import Observed, Unreachable, View


class Seen(NamedTuple):
    pods: Sequence[Object]
    surroundings: Surroundings
    observe: tuple[Observe, ...]


class Unseen(NamedTuple):
    """`why` is empty while the first look is under way."""

    observe: tuple[Observe, ...]
    why: str = ""


def look_at_pods(scope: Scope, node: Object) -> Seen | Unseen:
    pods_wish = pods_of(scope.workload, node["metadata"]["name"])
    daemon_sets_wish, namespaces_wish = daemon_sets_of(scope.workload), namespaces_of(scope.workload)
    found = observe_all(scope.view, (pods_wish,))
    if isinstance(found, Unseen):
        return found
    pods = found[pods_wish]
    rules = _rules(scope) if pods else []
    needed = [pods_wish]
    if any(_has_daemon_set(pod) for pod in pods):
        needed.append(daemon_sets_wish)
    if any(rule.asks_for_namespaces for rule in rules):
        needed.append(namespaces_wish)
    found = observe_all(scope.view, needed)
    if isinstance(found, Unseen):
        return found
    surroundings = Surroundings(
        scope.view.now,
        node_unreachable=is_unreachable(node),
        daemon_sets=frozenset(map(full_name, found.get(daemon_sets_wish, ()))),
        rules=rules,
        namespaces={obj["metadata"]["name"]: labels_of(obj) for obj in found.get(namespaces_wish, ())},
    )
    return Seen(pods, surroundings, tuple(needed))


def observe_all(view: View, wishes: Iterable[Observe]) -> dict[Observe, tuple[Object, ...]] | Unseen:
    """What all of the wishes show, or that some of it cannot be seen."""
    found: dict[Observe, tuple[Object, ...]] = {}
    for wish in wishes:
        match view.observed(wish):
            case Observed(objects):
                found[wish] = objects
            case Unreachable(reason):
                return Unseen(tuple(wishes), f"{wish.kind.kind}s cannot be listed: {reason}")
            case None:
                return Unseen(tuple(wishes))
    return found


def _has_daemon_set(pod: Object) -> bool:
    controller = controller_of(pod)
    return controller is not None and controller.get("kind") == "DaemonSet"


def _rules(scope: Scope) -> list[Rule]:
    rules = scope.view.select(MACHINE_DRAIN_RULE, namespace=scope.machine["metadata"]["namespace"])
    return rules_for(scope.machine, scope.cluster, rules)
