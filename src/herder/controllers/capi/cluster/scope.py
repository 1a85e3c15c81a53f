"""Scope of one reconciliation of a Cluster: the objects it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from herder.api.capi.contract import control_plane, fields, infra_cluster
from herder.api.capi.contract.fields import Endpoint
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import cluster_key, is_deleting, kubeconfig_secret
from herder.controllers.capi.cluster.members import CONTROL_PLANE_MACHINE, WITH_NODE, ClusterMembers
from herder.controllers.capi.externals import External, look_up_referenced
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


@dataclass(frozen=True, slots=True)
class ClusterScope:
    """The Cluster, the objects that it references, and its members."""

    view: View
    cluster: Object
    infrastructure: External | None  # None if the Cluster has no such reference
    control_plane: External | None
    members: ClusterMembers
    kubeconfig: Object | None  # metadata of the kubeconfig Secret

    @property
    def key(self) -> str:
        return cluster_key(self.cluster["metadata"]["namespace"], self.cluster["metadata"]["name"])

    @property
    def deleting(self) -> bool:
        return is_deleting(self.cluster)

    @property
    def has_topology(self) -> bool:
        """Whether a ClusterClass sets the references, so that they may be missing at first."""
        return bool(self.cluster["spec"].get("topology"))

    @property
    def endpoint(self) -> Endpoint:
        return fields.endpoint(self.cluster)

    def status(self, field: str, default: Any) -> Any:
        return (self.cluster.get("status") or {}).get(field) or default

    # --- initialization, which is never reset -----------------------------------------------------------------------

    @property
    def provisioned(self) -> bool:
        if self.status("initialization", {}).get("infrastructureProvisioned"):
            return True
        if self.infrastructure is None:
            return not self.deleting and not self.has_topology
        obj = self.infrastructure.obj
        return obj is not None and not is_deleting(obj) and infra_cluster.provisioned(obj, self.infrastructure.contract)

    @property
    def initialized(self) -> bool:
        return bool(self.status("initialization", {}).get("controlPlaneInitialized")) or self.initialized_now

    @property
    def initialized_now(self) -> bool:
        """Whether the control plane currently reports that it is initialized."""
        if self.control_plane is None:
            return self.members.count(CONTROL_PLANE_MACHINE, WITH_NODE) > 0
        obj = self.control_plane.obj
        return obj is not None and not is_deleting(obj) and control_plane.initialized(obj, self.control_plane.contract)


def new_scope(view: View, cluster: Object) -> ClusterScope:
    """Read all objects that a reconciliation of this Cluster needs."""
    return ClusterScope(
        view,
        cluster,
        _referenced(view, cluster, "infrastructureRef"),
        _referenced(view, cluster, "controlPlaneRef"),
        ClusterMembers(view, cluster),
        view.get(SECRET_METADATA, kubeconfig_secret(cluster["metadata"]["name"])),
    )


def _referenced(view: View, cluster: Object, field: str) -> External | None:
    reference = cluster["spec"].get(field)
    return look_up_referenced(view, cluster, f"spec.{field}", reference) if reference else None
