"""Objects of a provisioned cluster with custom machines."""

from __future__ import annotations

from typing import Any

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import names as management_names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE, RKE_CLUSTER
from herder.engine.meta.kinds import Object
from tests.support.builders import NOW, new_cluster, new_machine, new_object, object_reference, owner_reference

WORKSPACE, CLUSTER_ID = "fleet-default", "c-m-meadow22"


def management(*, connected: bool = True, created_for: str = f"{WORKSPACE}/meadow") -> Object:
    """The management Cluster that was created for the provisioning Cluster "namespace/name"."""
    annotations = {management_names.PROVISIONING_CLUSTER_OF: created_for}
    annotations |= {management_names.CONNECTED_SINCE: "2026-01-01T11:00:00Z"} if connected else {}
    spec = {"fleetWorkspaceName": created_for.partition("/")[0]}
    return new_object(MANAGEMENT_CLUSTER, CLUSTER_ID, annotations=annotations, spec=spec)


def provisioning(*, deleting: bool = False, imported: bool = False, managed_as: str = CLUSTER_ID) -> Object:
    spec: Object = {} if imported else {"rkeConfig": {}}
    status = {"clusterName": managed_as}
    return new_object(PROVISIONING_CLUSTER, "meadow", WORKSPACE, deleting=deleting, spec=spec, status=status)


def cluster(*, deleting: bool = False, paused: bool = False) -> Object:
    return new_cluster("meadow", WORKSPACE, deleting=deleting, paused=paused)


def rke_cluster(after: str = "") -> Object:
    annotations = {"rke.cattle.io/delete-missing-custom-machines-after": after} if after else {}
    return new_object(RKE_CLUSTER, "meadow", WORKSPACE, annotations=annotations)


def machine(
    name: str = "custom-1",
    *,
    cluster_name: str = "meadow",
    infrastructure: tuple[str, str] = CUSTOM_MACHINE.group_kind,
    data: str = "script",
    provider_id: str = "",
    deleting: bool = False,
    labels: dict[str, str] | None = None,
    **status: object,
) -> Object:
    """A Machine with bootstrap `data`; `status` are the fields of its status."""
    bootstrap: Object = {"configRef": object_reference(BOOTSTRAP, name)}
    spec: Object = {
        "bootstrap": bootstrap | ({"dataSecretName": data} if data else {}),
        "infrastructureRef": {"apiGroup": infrastructure[0], "kind": infrastructure[1], "name": name},
    }
    spec |= {"providerID": provider_id} if provider_id else {}
    options = {"deleting": deleting, "labels": labels or {}}
    return new_machine(name, WORKSPACE, cluster=cluster_name, spec=spec, status=status, **options)


def custom_machine(name: str = "custom-1", *, provider_id: str = "", **options: Any) -> Object:
    """A CustomMachine that is ready; `options` are those of `new_object`."""
    return new_object(
        CUSTOM_MACHINE,
        name,
        WORKSPACE,
        labels={CLUSTER_NAME: "meadow"},
        owners=[owner_reference(MACHINE, name, controller=False)],
        spec={"providerID": provider_id} if provider_id else {},
        status={"conditions": merged_with_updates([], [condition("Ready", "True", "")], NOW)},
        **options,
    )
