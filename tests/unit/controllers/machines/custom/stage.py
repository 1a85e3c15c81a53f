"""A provisioned cluster whose machines somebody else made, as the controllers of those see it."""

from __future__ import annotations

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import names as management_names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.kinds import BOOTSTRAP, CUSTOM_MACHINE, RKE_CLUSTER
from herder.engine.meta.kinds import Kind, Object
from tests.support.views import NOW

WORKSPACE, CLUSTER_ID = "fleet-default", "c-m-meadow22"


def made(
    kind: Kind,
    name: str,
    namespace: str = WORKSPACE,
    *,
    going: bool = False,
    meta: Object | None = None,
    **parts: object,
) -> Object:
    whole: Object = {"name": name, "uid": f"{kind.kind}-{name}", "resourceVersion": "7"}
    whole |= {"namespace": namespace} if kind.namespaced else {}
    whole |= {"deletionTimestamp": "2026-01-01T12:00:00Z"} if going else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": whole | (meta or {}), **parts}


def management(*, connected: bool = True, of: str = f"{WORKSPACE}/meadow") -> Object:
    marks = {management_names.PROVISIONING_CLUSTER_OF: of}
    marks |= {management_names.CONNECTED_SINCE: "2026-01-01T11:00:00Z"} if connected else {}
    spec = {"fleetWorkspaceName": of.partition("/")[0]}
    return made(MANAGEMENT_CLUSTER, CLUSTER_ID, meta={"annotations": marks}, spec=spec)


def provisioning(*, going: bool = False, imported: bool = False, managed_as: str = CLUSTER_ID) -> Object:
    spec = {} if imported else {"rkeConfig": {}}
    return made(PROVISIONING_CLUSTER, "meadow", going=going, spec=spec, status={"clusterName": managed_as})


def cluster(*, going: bool = False, paused: bool = False) -> Object:
    return made(CLUSTER, "meadow", going=going, spec={"paused": paused})


def rke_cluster(after: str = "") -> Object:
    marks = {"rke.cattle.io/delete-missing-custom-machines-after": after} if after else {}
    return made(RKE_CLUSTER, "meadow", meta={"annotations": marks})


def machine(
    name: str = "custom-1",
    *,
    of: str = "meadow",
    going: bool = False,
    labels: dict[str, str] | None = None,
    infrastructure: tuple[str, str] = CUSTOM_MACHINE.group_kind,
    data: str = "script",
    provider_id: str = "",
    **status: object,
) -> Object:
    bootstrap: Object = {"configRef": {"apiGroup": BOOTSTRAP.group, "kind": BOOTSTRAP.kind, "name": name}}
    spec: Object = {
        "clusterName": of,
        "bootstrap": bootstrap | ({"dataSecretName": data} if data else {}),
        "infrastructureRef": {"apiGroup": infrastructure[0], "kind": infrastructure[1], "name": name},
    }
    spec |= {"providerID": provider_id} if provider_id else {}
    return made(
        MACHINE, name, going=going, meta={"labels": {CLUSTER_NAME: of} | (labels or {})}, spec=spec, status=status
    )


def custom(name: str = "custom-1", *, provider_id: str = "", going: bool = False, **meta: object) -> Object:
    owner = {"apiVersion": MACHINE.api_version, "kind": "Machine", "name": name, "uid": f"Machine-{name}"}
    whole = {"labels": {CLUSTER_NAME: "meadow"}, "ownerReferences": [owner], **meta}
    ready = merged_with_updates([], [condition("Ready", "True", "")], NOW)
    spec = {"providerID": provider_id} if provider_id else {}
    return made(CUSTOM_MACHINE, name, going=going, meta=whole, spec=spec, status={"conditions": ready})
