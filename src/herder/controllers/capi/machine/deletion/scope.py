"""What every stage of a deletion looks at."""

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
    """A time limit that counts from a moment kept in the Machine; without a limit it never runs out."""

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
    """What may be done to the Machine's Node, and what is known of it."""

    off: str = ""  # why nothing is done to it
    name: str = ""
    record: Object | None = None  # None: it does not exist
    unreachable: Unreachable | None = None
    looking: bool = False  # nothing is known yet
    unseen: tuple[str, str] | None = None  # by what no Node was seen; off too: nothing is to be taken out of service
    observe: tuple[Observe, ...] = ()

    @property
    def unknown(self) -> bool:
        """There is nothing to take out of service: no Node, or none that was ever seen in a cluster that is silent now.
        In the latter case one may still have to be deleted, when the cluster answers again in time."""
        return bool(self.off) or (self.unreachable is not None and not self.name)


@dataclass(frozen=True, slots=True)
class Scope:
    view: View
    machine: Object
    cluster: Object
    infrastructure: External
    bootstrap: External
    node: NodeOperations

    @property
    def workload(self) -> str:
        """The workload cluster, as the target of writes and observations."""
        return cluster_key(self.cluster["metadata"]["namespace"], self.cluster["metadata"]["name"])

    def clock(self, started: str, limit: str) -> Clock:
        """By a time in status.deletion and a limit in spec.deletion; a limit of 0 is none."""
        since = ((self.machine.get("status") or {}).get("deletion") or {}).get(started)
        return Clock(self.running_since(since), self.limit(limit))

    def running_since(self, started: str | None) -> datetime | None:
        """A pause stops every clock: they begin anew when it is over. One that is still told has only just ended."""
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

    def leaves_workloads_alone(self) -> bool:
        """Whether there is no point any more in draining the Node or in waiting for its volumes."""
        return (
            find_legacy(self.machine, PRE_TERMINATE_SUCCEEDED) is not None  # that is over, and not begun anew
            or self.infrastructure.missing
            or (self.infrastructure.obj is not None and is_deleting(self.infrastructure.obj))
            or self._left_by_kubeadm()
        )

    def _left_by_kubeadm(self) -> bool:
        """Kubeadm's control plane takes its hook away when the member has left etcd: its API server, by which alone
        the Pods of that Node could be ended, is gone with it."""
        owners = self.machine["metadata"].get("ownerReferences") or []
        return (
            CONTROL_PLANE in labels_of(self.machine)
            and any(owner.get("kind") == KUBEADM_CONTROL_PLANE for owner in owners)
            and KUBEADM_CLEANUP not in annotations_of(self.machine)
        )
