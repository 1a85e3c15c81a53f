"""Scope of the deletion of a Machine: the objects that every stage reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import find, find_legacy
from herder.api.capi.names import CONTROL_PLANE, PRE_TERMINATE_HOOK, annotations_of, cluster_key, is_deleting, labels_of
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion.hooks import PRE_TERMINATE_SUCCEEDED
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.view import Unreachable, View

KUBEADM_CONTROL_PLANE = "KubeadmControlPlane"
KUBEADM_CLEANUP = f"{PRE_TERMINATE_HOOK}/kcp-cleanup"


class Clock(NamedTuple):
    """A timeout that counts from a time stored in the Machine; without a limit it never expires."""

    started: datetime | None
    limit: timedelta | None

    @property
    def deadline(self) -> datetime | None:
        return self.started + self.limit if self.started and self.limit else None

    def ran_out(self, now: datetime) -> bool:
        return self.deadline is not None and self.deadline <= now


def earlier(moment: datetime, other: datetime | None) -> datetime:
    return moment if other is None else min(moment, other)


class NodeOperations(NamedTuple):
    """State of the Machine's Node and whether it may be changed."""

    skip_reason: str = ""  # why the Node is not touched
    name: str = ""
    record: Object | None = None  # None if it does not exist
    unreachable: Unreachable | None = None
    pending: bool = False  # no answer from the cluster yet
    # index key that matched no Node; skip_reason is set too, as there is nothing to drain
    unmatched: tuple[str, str] | None = None
    observe: tuple[Observe, ...] = ()

    @property
    def unknown(self) -> bool:
        """Whether there is nothing to drain: no Node, or none seen before the cluster became unreachable.

        In the latter case a Node may still have to be deleted if the cluster answers again in time.
        """
        return bool(self.skip_reason) or (self.unreachable is not None and not self.name)


@dataclass(frozen=True, slots=True)
class DeletionScope:
    """The Machine, its Cluster, its objects, and its Node."""

    view: View
    machine: Object
    cluster: Object
    infrastructure: External
    bootstrap: External
    node: NodeOperations

    @property
    def workload(self) -> str:
        """Key of the workload cluster, the target of writes and observations."""
        return cluster_key(self.cluster["metadata"]["namespace"], self.cluster["metadata"]["name"])

    def clock(self, started: str, limit: str) -> Clock:
        """Clock from a start time in status.deletion and a limit in spec.deletion; 0 means no limit."""
        since = ((self.machine.get("status") or {}).get("deletion") or {}).get(started)
        return Clock(self.running_since(since), self.limit(limit))

    def running_since(self, started: str | None) -> datetime | None:
        """Start of a clock; a pause stops all clocks, and they restart when it ends."""
        if not started:
            return None
        paused = find(self.machine, "Paused")
        if paused is None:
            return datetime.fromisoformat(started)
        if paused["status"] == "True":
            return self.view.now
        return max(datetime.fromisoformat(started), datetime.fromisoformat(paused["lastTransitionTime"]))

    def limit(self, name: str) -> timedelta | None:
        seconds = (self.machine["spec"].get("deletion") or {}).get(name) or 0
        return timedelta(seconds=seconds) if seconds > 0 else None

    def skips_workloads(self) -> bool:
        """Whether draining and waiting for volumes have become pointless."""
        return (
            find_legacy(self.machine, PRE_TERMINATE_SUCCEEDED) is not None  # the drain is finished and not repeated
            or self.infrastructure.deleted
            or (self.infrastructure.obj is not None and is_deleting(self.infrastructure.obj))
            or self._etcd_member_removed()
        )

    def _etcd_member_removed(self) -> bool:
        """Whether KubeadmControlPlane has removed its hook, which it does once the etcd member has left.

        The API server on that Node, the only one that could terminate its Pods, stops with it.
        """
        owners = self.machine["metadata"].get("ownerReferences") or []
        return (
            CONTROL_PLANE in labels_of(self.machine)
            and any(owner.get("kind") == KUBEADM_CONTROL_PLANE for owner in owners)
            and KUBEADM_CLEANUP not in annotations_of(self.machine)
        )
