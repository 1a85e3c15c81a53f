"""Scope of one reconciliation of a MachineSet: the objects it reads."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE_DEPLOYMENT
from herder.api.capi.names import DEPLOYMENT_NAME, REVISION, annotations_of, labels_of
from herder.controllers.capi.set_members import SetMembers
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

MANAGER = "capi-machineset"
METADATA_MANAGER = "capi-machineset-metadata"
"""Field manager for labels and annotations of bootstrap and infrastructure objects, whose other fields are applied
only once."""

BATCH = 50
"""Maximum number of Machines that one pass creates, completes, updates or deletes; the next pass follows
immediately."""


@dataclass(frozen=True, slots=True)
class MachineSetScope:
    """The MachineSet, its Cluster, its MachineDeployment if any, and its Machines."""

    view: View
    machine_set: Object
    cluster: Object
    deployment: Object | None
    members: SetMembers

    @property
    def uid(self) -> str:
        return str(self.machine_set["metadata"]["uid"])

    @property
    def namespace(self) -> str:
        return str(self.machine_set["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.machine_set["metadata"]["name"])

    @property
    def replicas(self) -> int | None:
        replicas: int | None = self.machine_set["spec"].get("replicas")
        return replicas

    @property
    def of_deployment(self) -> bool:
        return DEPLOYMENT_NAME in labels_of(self.machine_set)

    @property
    def current_revision(self) -> bool:
        """Whether this set is the current revision of its MachineDeployment; always true for a standalone set."""
        if self.deployment is None:
            return not self.of_deployment
        return annotations_of(self.deployment).get(REVISION) == annotations_of(self.machine_set).get(REVISION)


def new_scope(view: View, machine_set: Object, cluster: Object) -> MachineSetScope:
    """Read all objects that a reconciliation of this MachineSet needs."""
    name = labels_of(machine_set).get(DEPLOYMENT_NAME)
    deployment = view.get(MACHINE_DEPLOYMENT, name) if name else None
    return MachineSetScope(view, machine_set, cluster, deployment, SetMembers(view, [machine_set]))
