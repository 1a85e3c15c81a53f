"""Delete bindings in a managed cluster that belong to no binding of the manager.

A cluster that is removed from the manager keeps its RBAC objects, because it may be unreachable by then. If it is
imported again, former members would regain their old rights. So they would if an etcd snapshot is restored, which
brings back the objects of its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from herder.api.capi.names import is_deleting
from herder.api.identity.roles import CLUSTER_ROLE_BINDING, OWNED_BY
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROJECT_BINDING
from herder.controllers.identity import cluster_rights
from herder.engine.meta.kinds import Kind
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Decision, Observe, Write
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

_PACE_SECONDS = 5.0
_RETRY_SECONDS = 60.0
_MAX_DELETIONS = 5_000
"""Limit for one reconcile: a cluster may have any number of bindings with the label."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster) or is_internal(cluster) or not is_connected(cluster):
        return DONE
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING)
    subscriptions = tuple(_owners(view.name, kind) for kind in kinds)
    seen = [view.observed(subscription) for subscription in subscriptions]
    decision = Decision(observe=subscriptions)
    for subscription, each in zip(subscriptions, seen, strict=True):
        if not isinstance(each, Observed):
            return decision + cluster_rights.unreachable(view.name, *seen)
        decision += _delete_leftovers(view, subscription, each.values)
    return decision


def _delete_leftovers(view: View, subscription: Observe, owners: Iterable[str]) -> Decision:
    """Delete bindings whose owners do not exist, a limited number in each reconcile."""
    writes: list[Write] = []
    for owner in owners:
        if _is_backed(view, owner):
            continue
        if len(writes) >= _MAX_DELETIONS:
            return Decision(writes=tuple(writes), wake_at=view.now + timedelta(seconds=_RETRY_SECONDS))
        found = view.observed(replace(subscription, focus=(cluster_rights.BY_OWNER, owner), values_of=""))
        objects = found.objects if isinstance(found, Observed) else ()
        writes += [cluster_rights.revoke(subscription.kind, each, view.name) for each in objects]
    return Decision(writes=tuple(writes))


def _is_backed(view: View, label: str) -> bool:
    """Whether a binding of any cluster has this label: a cluster may be managed under two names."""
    return any(view.count(kind, (OWNED_BY, label)) for kind in (CLUSTER_BINDING, PROJECT_BINDING))


def _owners(cluster: str, kind: Kind) -> Observe:
    """A watch that the controllers of bindings share. A restore can end before the agent or the manager notices it, so
    a list when the agent connects is not enough."""
    return Observe(
        cluster, kind, labels=OWNED_BY, projection=cluster_rights.BINDINGS, values_of=cluster_rights.BY_OWNER
    )


CONTROLLER = Controller(
    name="leftover-bindings",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(Watches(CLUSTER_BINDING), Watches(PROJECT_BINDING)),
    predicate=changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp"),
    indexes={kind: cluster_rights.INDEXES[kind] for kind in (CLUSTER_BINDING, PROJECT_BINDING)},
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
    pace=_PACE_SECONDS,  # A hostile cluster decides how many bindings it has, and how often they change.
)
