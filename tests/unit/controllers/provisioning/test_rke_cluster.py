"""RKECluster, RKEControlPlane and management Cluster of a provisioned cluster."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.management import clusters, names
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE, RKE_CLUSTER
from herder.controllers.provisioning import rke_cluster, rke_control_plane
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Delete
from tests.support.builders import new_condition, new_object, object_reference, owner_reference, patches_of, reconcile
from tests.unit.controllers.provisioning.objects import NAME, WORKSPACE, cluster


def decide(controller: Controller, *objects: Object) -> Decision:
    return reconcile(controller, f"{WORKSPACE}/{NAME}", *objects)


def patches(decision: Decision) -> list[Object]:
    return [patch.patch for patch in patches_of(decision)]


# --- infrastructure -------------------------------------------------------------------------------------------------

OWNER = owner_reference(CLUSTER, NAME, controller=False)
OWNED_RKE_CLUSTER = new_object(RKE_CLUSTER, NAME, WORKSPACE, owners=[OWNER], spec={})
CAPI_CLUSTER = new_object(CLUSTER, NAME, WORKSPACE, spec={})


def test_the_infrastructure_waits_for_its_owner_reference() -> None:
    decision = decide(rke_cluster.CONTROLLER, new_object(RKE_CLUSTER, NAME, WORKSPACE, spec={}), CAPI_CLUSTER)
    assert (decision.writes, decision.wait is not None) == ((), True)


def test_the_infrastructure_is_provisioned_at_once_without_an_endpoint() -> None:
    provisioned = {"status": {"initialization": {"provisioned": True}}}
    assert patches(decide(rke_cluster.CONTROLLER, OWNED_RKE_CLUSTER, CAPI_CLUSTER)) == [provisioned]


def test_old_conditions_are_cleared_and_nothing_is_written_twice() -> None:
    endpoint = {"spec": {"controlPlaneEndpoint": {"host": "given", "port": 1}}}
    done = {**OWNED_RKE_CLUSTER, **endpoint, "status": {"initialization": {"provisioned": True}}}
    assert patches(decide(rke_cluster.CONTROLLER, done, CAPI_CLUSTER)) == []
    stale = {**done, "status": {**done["status"], "conditions": [new_condition("Ready")]}}
    assert patches(decide(rke_cluster.CONTROLLER, stale, CAPI_CLUSTER)) == [{"status": {"conditions": None}}]


@pytest.mark.parametrize("paused", [{"spec": {"paused": True}}, {}])
def test_nothing_is_done_while_the_cluster_is_paused(paused: Object) -> None:
    annotations = {} if paused else {"annotations": {"cluster.x-k8s.io/paused": ""}}
    infrastructure = {**OWNED_RKE_CLUSTER, "metadata": {**OWNED_RKE_CLUSTER["metadata"], **annotations}}
    assert decide(rke_cluster.CONTROLLER, infrastructure, CAPI_CLUSTER | paused).writes == ()


# --- the control plane ----------------------------------------------------------------------------------------------

FINALIZERS = ["wrangler.cattle.io/rke-control-plane-remove"]


def rke_control_plane_object(*, deleting: bool = False) -> Object:
    spec = {"clusterName": NAME, "managementClusterName": "c-m-abcdefgh"}
    metadata = {"generation": 3}
    return new_object(
        CONTROL_PLANE, NAME, WORKSPACE, finalizers=FINALIZERS, deleting=deleting, metadata=metadata, spec=spec
    )


def machine(name: str, infrastructure: str, *, label: str = "cluster.x-k8s.io/cluster-name") -> Object:
    labels = {label: NAME, "rke.cattle.io/control-plane-role": "true"}
    group = "rke.cattle.io" if infrastructure == "CustomMachine" else "rke-machine.cattle.io"
    reference = {"apiGroup": group, "kind": infrastructure, "name": name}
    return new_object(MACHINE, name, WORKSPACE, labels=labels, spec={"infrastructureRef": reference})


@pytest.mark.parametrize(("annotations", "connected"), [({}, False), ({names.CONNECTED_SINCE: "2026"}, True)])
def test_the_control_plane_reports_whether_the_agent_is_connected(annotations: Object, connected: bool) -> None:
    management = new_object(MANAGEMENT_CLUSTER, "c-m-abcdefgh", annotations=annotations)
    expected_status = {"agentConnected": connected}
    assert patches(decide(rke_control_plane.CONTROLLER, rke_control_plane_object(), management)) == [
        {"status": expected_status}
    ]


def test_a_control_plane_is_deleted_after_its_machines() -> None:
    deleting = rke_control_plane_object(deleting=True)
    machines = [
        machine("pooled", "ShedMachine"),
        machine("registered", "CustomMachine", label="rke.cattle.io/cluster-name"),
        machine("worker", "CustomMachine", label="elsewhere"),
    ]
    decision = decide(rke_control_plane.CONTROLLER, deleting, *machines)
    assert [write.ref.name for write in decision.writes if isinstance(write, Delete)] == ["registered"]
    assert decision.wait is not None
    assert decision.wait.reason == "waiting for machine [pooled] to delete"
    without_machines = decide(rke_control_plane.CONTROLLER, deleting)
    assert patches(without_machines) == [{"metadata": {"finalizers": []}}]


def test_a_control_plane_that_its_cluster_does_not_use_deletes_no_machines() -> None:
    """Its name alone is no proof: the Cluster of that name may belong to another user."""
    deleting, registered = rke_control_plane_object(deleting=True), machine("registered", "CustomMachine")
    foreign = new_object(CLUSTER, NAME, WORKSPACE, spec={"controlPlaneRef": object_reference(CONTROL_PLANE, "other")})
    decision = decide(rke_control_plane.CONTROLLER, deleting, registered, foreign)
    assert not [write for write in decision.writes if isinstance(write, Delete)]
    assert patches(decision) == [{"metadata": {"finalizers": []}}]
    foreign["spec"]["controlPlaneRef"]["name"] = NAME
    decision = decide(rke_control_plane.CONTROLLER, deleting, registered, foreign)
    assert [write.ref.name for write in decision.writes if isinstance(write, Delete)] == ["registered"]


def test_machines_of_another_cluster_do_not_block_its_deletion() -> None:
    """Users write labels: a Machine belongs to the Cluster in its spec."""
    foreign = machine("theirs", "CustomMachine", label="rke.cattle.io/cluster-name")
    foreign["spec"]["clusterName"] = "other"
    deleting = rke_control_plane_object(deleting=True)
    assert patches(decide(rke_control_plane.CONTROLLER, deleting, foreign)) == [{"metadata": {"finalizers": []}}]


# --- the management Cluster -----------------------------------------------------------------------------------------


def test_the_management_cluster_follows_its_spec_and_keeps_foreign_fields() -> None:
    provisioning = cluster(
        dataDirectories={"systemAgent": "/agent"}, spec={"agentEnvVars": [{"name": "A", "value": "b"}]}
    )
    management = clusters.management_of(provisioning, "c-m-abcdefgh")
    assert clusters.is_administrated(management)
    assert management["spec"]["agentEnvVars"] == [
        {"name": "A", "value": "b"},
        {"name": "CATTLE_AGENT_VAR_DIR", "value": "/agent"},
    ]
    edited = {**management, "spec": {**management["spec"], "description": "by hand"}}
    assert clusters.updated_management(edited, provisioning) == edited
    updated = clusters.updated_management(edited, cluster(spec={"enableNetworkPolicy": True}))
    assert updated["spec"] == {
        "displayName": NAME,
        "fleetWorkspaceName": WORKSPACE,
        "importedConfig": {},
        "enableNetworkPolicy": True,
        "description": "by hand",
    }


def test_annotations_do_not_make_an_imported_cluster_administrated() -> None:
    imported = cluster() | {"spec": {}}
    imported["metadata"]["annotations"] = {"provisioning.cattle.io/administrated": "true"}
    assert not clusters.is_administrated(clusters.management_of(imported, "c-m-abcdefgh"))
