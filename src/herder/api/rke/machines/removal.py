"""The Removed condition of a provisioned cluster, shared by all controllers that take part in its deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.finalizers import blocked_message, blocking_finalizers
from herder.api.capi.membership import cluster_name
from herder.api.capi.names import CLUSTER_NAME as CORE_CLUSTER_NAME
from herder.api.capi.names import MACHINE_FINALIZER, labels_of
from herder.api.rke.names import CLUSTER_NAME
from herder.engine.meta.kinds import Kind, Object

REMOVED = "Removed"
BLOCKED = "BlockedByFinalizer"  # reason: only finalizers of other controllers are left
NODE_DELETION_SECONDS = 900
"""Timeout of deleting the Node of a deleted machine, in seconds.

If the cluster agent ran there, it takes minutes until it is rescheduled and the cluster can be reached again.
"""
BY_CLUSTER = "machines-of-cluster"  # index of Machines by cluster, used by `of_cluster`


class _Indexed(Protocol):
    @property
    def namespace(self) -> str: ...

    def select(self, kind: Kind, *, index: tuple[str, str]) -> list[Object]: ...


def of_cluster(view: _Indexed, machine: Kind, cluster: str) -> list[Object]:
    return view.select(machine, index=(BY_CLUSTER, f"{view.namespace}/{cluster}"))


def cluster_of(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine.

    Labels count only if the Machine names no Cluster: with labels alone, users could add their Machines to any cluster,
    and so keep it from being deleted.
    """
    if named := cluster_name(machine):
        return (f"{machine['metadata'].get('namespace', '')}/{named}",)
    labels: Mapping[str, str] = labels_of(machine)
    found = {labels.get(CORE_CLUSTER_NAME), labels.get(CLUSTER_NAME)} - {None}
    return sorted(f"{machine['metadata'].get('namespace', '')}/{name}" for name in found)


def machine_removal_condition(machines: Iterable[Object]) -> Condition | None:
    """Return the Removed condition for the first remaining Machine; None if all are deleted."""
    first = min(machines, key=lambda machine: str(machine["metadata"]["name"]), default=None)
    if first is None:
        return None
    name, deleting = first["metadata"]["name"], find(first, "Deleting") or {}
    if deleting.get("status") == "True" and deleting.get("reason") == "InternalError":
        message = f"error deleting machine [{name}], machine must be deleted manually"
        return condition(REMOVED, "False", "Error", message)
    message = f"waiting for machine [{name}] to delete"
    if finalizers := blocking_finalizers(first, (MACHINE_FINALIZER,)):
        return condition(REMOVED, "False", BLOCKED, f"{message}: {blocked_message(finalizers)}")
    return removing_condition(message)


def removing_condition(message: str) -> Condition:
    return condition(REMOVED, "Unknown", "Waiting", message)
