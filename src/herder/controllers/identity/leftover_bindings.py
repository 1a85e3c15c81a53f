"""Bindings in a managed cluster that no binding here stands behind any more: they are deleted when its agent connects.

A cluster that is removed from the manager keeps what bindings made there, because it may be out of reach by then. If it
is imported again, its former members would have their old rights beside their new ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.names import is_deleting, labels_of
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROJECT_BINDING
from herder.controllers.identity import granting
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Write
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

_LISTED_AFTER_SECONDS = 60.0
"""They are listed when the agent connects, at most so often: bindings of today are watched by those that made them."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster) or is_internal(cluster) or not is_connected(cluster):
        return DONE
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING)
    wishes = tuple(_all(view.name, kind) for kind in kinds)
    seen = [view.observed(wish) for wish in wishes]
    decision = Decision(observe=wishes)
    for kind, each in zip(kinds, seen, strict=True):
        if not isinstance(each, Observed):
            return decision + granting.silence(view.name, *seen)
        decision += Decision(writes=tuple(_deletions(view, kind, each.objects)))
    return decision


def _deletions(view: View, kind: Kind, found: Iterable[Object]) -> Iterable[Write]:
    for each in found:
        if not _is_backed(view, labels_of(each).get(OWNED_BY, "")):
            yield granting.gone(kind, each, view.name)


def _is_backed(view: View, label: str) -> bool:
    """Whether a binding of any cluster has this label: a cluster may be managed under two names."""
    return any(view.count(kind, (OWNED_BY, label)) for kind in (CLUSTER_BINDING, PROJECT_BINDING))


def _all(cluster: str, kind: Kind) -> Observe:
    return Observe(cluster, kind, labels=OWNED_BY, projection=granting.BINDINGS, freshness=_LISTED_AFTER_SECONDS)


CONTROLLER = Controller(
    name="leftover-bindings",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(Watches(CLUSTER_BINDING), Watches(PROJECT_BINDING)),
    predicate=changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp"),
    indexes={kind: granting.INDEXES[kind] for kind in (CLUSTER_BINDING, PROJECT_BINDING)},
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
