"""What one pass over a MachineSet looks at."""

from __future__ import annotations

from dataclasses import dataclass

from herder.api.capi.kinds import MACHINE_DEPLOYMENT
from herder.api.capi.names import DEPLOYMENT_NAME, REVISION, annotations_of, labels_of
from herder.controllers.capi.members import Members
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View

MANAGER = "capi-machineset"
METADATA_MANAGER = "capi-machineset-metadata"
"""Owns labels and annotations of bootstrap and infrastructure objects, whose other fields are never applied again."""

BATCH = 50
"""Machines that are made, completed, changed or deleted in one pass; the next one follows at once."""


@dataclass(frozen=True, slots=True)
class Scope:
    view: View
    machine_set: Object
    cluster: Object
    deployment: Object | None
    members: Members

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
        """Whether this is what the MachineDeployment wants now; a set that stands alone always is."""
        if self.deployment is None:
            return not self.of_deployment
        return annotations_of(self.deployment).get(REVISION) == annotations_of(self.machine_set).get(REVISION)


def survey(view: View, machine_set: Object, cluster: Object) -> Scope:
    name = labels_of(machine_set).get(DEPLOYMENT_NAME)
    deployment = view.get(MACHINE_DEPLOYMENT, name) if name else None
    return Scope(view, machine_set, cluster, deployment, Members(view, [machine_set]))
