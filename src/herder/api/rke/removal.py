"""What is told while a provisioned cluster is removed, by all who take part in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.names import CLUSTER_NAME as CORE_CLUSTER_NAME
from herder.api.capi.names import labels_of
from herder.api.rke.names import CLUSTER_NAME
from herder.engine.meta.kinds import Kind, Object

REMOVED = "Removed"
NODE_DELETION_SECONDS = 900
"""How long the Node of a machine that is gone is tried to be deleted: if the cluster's agent was there too, it takes
minutes until it runs elsewhere and the cluster can be reached again."""
BY_CLUSTER = "machines-of-cluster"  # the index of Machines that `of_cluster` asks


class _Indexed(Protocol):
    @property
    def namespace(self) -> str: ...

    def select(self, kind: Kind, *, index: tuple[str, str]) -> list[Object]: ...


def of_cluster(view: _Indexed, machine: Kind, cluster: str) -> list[Object]:
    return view.select(machine, index=(BY_CLUSTER, f"{view.namespace}/{cluster}"))


def cluster_of(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine, by either label: not all that others made have both."""
    labels: Mapping[str, str] = labels_of(machine)
    found = {labels.get(CORE_CLUSTER_NAME), labels.get(CLUSTER_NAME)} - {None}
    return sorted(f"{machine['metadata'].get('namespace', '')}/{name}" for name in found)


def machine_leaving(machines: Iterable[Object]) -> Condition | None:
    """The first Machine that is still there; None when all are gone."""
    first = min(machines, key=lambda machine: str(machine["metadata"]["name"]), default=None)
    if first is None:
        return None
    name, deleting = first["metadata"]["name"], find(first, "Deleting") or {}
    if deleting.get("status") == "True" and deleting.get("reason") == "InternalError":
        message = f"error deleting machine [{name}], machine must be deleted manually"
        return condition(REMOVED, "False", "Error", message)
    return removing(f"waiting for machine [{name}] to delete")


def removing(message: str) -> Condition:
    return condition(REMOVED, "Unknown", "Waiting", message)
