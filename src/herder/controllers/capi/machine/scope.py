"""Scope of one reconciliation of a Machine: the objects of the management cluster it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from herder.api.capi.kinds import GROUP, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.capi.names import DEPLOYMENT_NAME, cluster_key, is_deleting, labels_of
from herder.controllers.capi.externals import External, look_up_referenced
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


@dataclass(frozen=True, slots=True)
class MachineScope:
    """The Machine, its Cluster, its owners, and its bootstrap and infrastructure objects."""

    machine: Object
    cluster: Object
    machine_set: Object | None
    deployment: Object | None
    bootstrap: External
    infrastructure: External

    @property
    def deleting(self) -> bool:
        return is_deleting(self.machine)

    @property
    def cluster_key(self) -> str:
        return cluster_key(self.machine["metadata"]["namespace"], self.machine["spec"]["clusterName"])

    @property
    def bootstrap_reference(self) -> Object:
        """Empty if the user provides the bootstrap data."""
        return (self.machine["spec"].get("bootstrap") or {}).get("configRef") or {}

    @property
    def infrastructure_reference(self) -> Object:
        return self.machine["spec"].get("infrastructureRef") or {}

    def initialized(self, flag: str) -> bool:
        """A flag of status.initialization; these are never reset."""
        return bool(status_of(self.machine, "initialization", {}).get(flag))


def status_of(machine: Object, field: str, default: Any) -> Any:
    return (machine.get("status") or {}).get(field) or default


def new_scope(view: View, machine: Object, cluster: Object) -> MachineScope:
    """Read all objects that a reconciliation of this Machine needs."""
    spec = machine["spec"]
    config = (spec.get("bootstrap") or {}).get("configRef")
    machine_set = _machine_set(view, machine)
    return MachineScope(
        machine,
        cluster,
        machine_set,
        _deployment(view, machine_set),
        look_up_referenced(view, machine, "spec.bootstrap.configRef", config) if config else External(),
        look_up_referenced(view, machine, "spec.infrastructureRef", spec.get("infrastructureRef")),
    )


def _machine_set(view: View, machine: Object) -> Object | None:
    for owner in machine["metadata"].get("ownerReferences") or ():
        if owner["kind"] == MACHINE_SET.kind and owner["apiVersion"].partition("/")[0] == GROUP:
            return view.get(MACHINE_SET, owner["name"])
    return None


def _deployment(view: View, machine_set: Object | None) -> Object | None:
    name = labels_of(machine_set).get(DEPLOYMENT_NAME) if machine_set else None
    return view.get(MACHINE_DEPLOYMENT, name) if name else None
