"""Indexes of Machines by cluster and health, so that a cluster's status costs no more with more machines."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import find, is_true
from herder.api.capi.names import is_deleting, labels_of
from herder.api.management.display import LostNode, one_line
from herder.api.rke.machines.removal import cluster_of
from herder.api.rke.machines.strategy import is_lost
from herder.api.rke.names import POOL_NAME
from herder.engine.meta.kinds import Object

BY_READY, BY_LOST, BY_REGISTERED = "ready-machines", "lost-machines", "registered-machines"
_PREFIX = "* Node.Ready: "  # of Cluster API's message


def ready_in(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a ready Machine."""
    return cluster_of(machine) if is_true(machine, "Ready") and not is_deleting(machine) else ()


def lost_in(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine whose Node is lost.

    A new Node is not ready for a moment. It counts from when its plan is applied; until then the rollout reports it.
    """
    if is_deleting(machine) or not is_lost(machine):
        return ()
    is_joining = is_not_ready(machine) and not is_true(machine, "Reconciled")
    return () if is_joining else cluster_of(machine)


def is_not_ready(machine: Object) -> bool:
    """Whether the kubelet itself reports that the Node is not ready."""
    return (find(machine, "NodeReady") or {}).get("reason") == "NodeNotReady"


def registered_in(machine: Object) -> Iterable[str]:
    """Indexer: the cluster of a Machine that belongs to no pool, because a user registered it."""
    return () if labels_of(machine).get(POOL_NAME) else cluster_of(machine)


def lost_node(machine: Object) -> LostNode:
    ready = find(machine, "NodeReady") or {}
    name = machine["metadata"]["name"]
    node = ((machine.get("status") or {}).get("nodeRef") or {}).get("name") or name
    shown = f"machine {name}" if node == name else f"machine {name} (Node {node})"
    cause = str(ready.get("message") or "").removeprefix(_PREFIX) or str(ready.get("reason") or "")
    return LostNode(shown, str(ready.get("lastTransitionTime") or ""), cause)


def machine_reason(machine: Object) -> str:
    """Why a Machine is not ready, or what its plan waits for, in one line; empty if there is nothing to say."""
    for type_ in ("Ready", "Reconciled"):
        known = find(machine, type_)
        if known is not None and known.get("status") != "True" and known.get("message"):
            return one_line(str(known["message"]).removeprefix("* "))
    return ""


INDEXES = {BY_READY: ready_in, BY_LOST: lost_in, BY_REGISTERED: registered_in}
