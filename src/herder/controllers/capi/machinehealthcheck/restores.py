"""Restores of etcd: while the data of a cluster is replaced, its Nodes say nothing about its Machines.

The restored data has the Nodes of its time. Those of Machines that have joined since are missing until their kubelets
register them again, and the conditions of the others are old until their kubelets report.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from herder.api.capi.conditions import timestamp
from herder.api.capi.contract import refers_to
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.operations import is_restoring, last_restore_end
from herder.controllers.capi.machinehealthcheck.health import startup_timeout
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


class RestoreHold(NamedTuple):
    """Why nothing is remediated now."""

    reason: str
    message: str
    until: datetime | None = None  # None: until the control plane changes


def restore_hold(view: View, check: Object, cluster: Object) -> RestoreHold | None:
    """Nodes have as long to register after a restore as after the creation of their Machines."""
    reference = cluster["spec"].get("controlPlaneRef") or {}
    if not refers_to(reference, CONTROL_PLANE, str(reference.get("name") or "")):
        return None
    control_plane = view.get(CONTROL_PLANE, reference["name"])
    if is_restoring(control_plane):
        message = "Remediation is not allowed while an etcd snapshot of the cluster is restored"
        return RestoreHold("EtcdRestoreInProgress", message)
    ended = last_restore_end(control_plane)
    until = ended + timedelta(seconds=startup_timeout(check)) if ended is not None else None
    if until is None or view.now >= until:
        return None
    message = (
        f"Remediation is not allowed until Nodes had time to register after the etcd restore: until {timestamp(until)}"
    )
    return RestoreHold("WaitingForNodesAfterEtcdRestore", message, until)
