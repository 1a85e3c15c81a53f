"""The parts of a provisioned cluster: infrastructure that needs nothing, a control plane that goes after its machines,
and a management Cluster that follows."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE
from herder.api.management import clusters, names
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.rke.kinds import CONTROL_PLANE, RKE_CLUSTER
from herder.controllers.provisioning import rke_cluster, rke_control_plane
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Delete, Patch
from tests.support.views import view_of
from tests.unit.controllers.provisioning.provisioned import NAME, WORKSPACE, cluster, new


def decide(controller: Controller, *objects: Object) -> Decision:
    return controller.reconcile(view_of(controller, f"{WORKSPACE}/{NAME}", objects))


def patches(decision: Decision) -> list[Object]:
    return [write.patch for write in decision.writes if isinstance(write, Patch)]


# --- infrastructure -------------------------------------------------------------------------------------------------

OWNER = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": NAME, "uid": f"Cluster-{NAME}"}
OWNED = new(RKE_CLUSTER, NAME, WORKSPACE, ownerReferences=[OWNER]) | {"spec": {}}
CORE = new(CLUSTER, NAME, WORKSPACE) | {"spec": {}}


def test_infrastructure_waits_until_cluster_api_takes_it_over() -> None:
    decision = decide(rke_cluster.CONTROLLER, new(RKE_CLUSTER, NAME, WORKSPACE) | {"spec": {}}, CORE)
    assert (decision.writes, decision.wait is not None) == ((), True)


def test_infrastructure_is_provisioned_at_once_without_an_endpoint() -> None:
    provisioned = {"status": {"initialization": {"provisioned": True}}}
    assert patches(decide(rke_cluster.CONTROLLER, OWNED, CORE)) == [provisioned]


def test_old_conditions_are_cleared_and_nothing_is_written_twice() -> None:
    endpoint = {"spec": {"controlPlaneEndpoint": {"host": "given", "port": 1}}}
    done = {**OWNED, **endpoint, "status": {"initialization": {"provisioned": True}}}
    assert patches(decide(rke_cluster.CONTROLLER, done, CORE)) == []
    stale = {**done, "status": {**done["status"], "conditions": [{"type": "Ready", "status": "True"}]}}
    assert patches(decide(rke_cluster.CONTROLLER, stale, CORE)) == [{"status": {"conditions": None}}]


@pytest.mark.parametrize("paused", [{"spec": {"paused": True}}, {}])
def test_nothing_is_done_while_it_is_paused(paused: Object) -> None:
    annotations = {} if paused else {"annotations": {"cluster.x-k8s.io/paused": ""}}
    infrastructure = {**OWNED, "metadata": {**OWNED["metadata"], **annotations}}
    assert decide(rke_cluster.CONTROLLER, infrastructure, CORE | paused).writes == ()


# --- the control plane ----------------------------------------------------------------------------------------------

HELD = ["wrangler.cattle.io/rke-control-plane-remove"]


def plane(**meta: Any) -> Object:
    spec = {"clusterName": NAME, "managementClusterName": "c-m-abcdefgh"}
    return new(CONTROL_PLANE, NAME, WORKSPACE, generation=3, finalizers=HELD, **meta) | {"spec": spec}


def machine(name: str, infrastructure: str, *, label: str = "cluster.x-k8s.io/cluster-name", **meta: Any) -> Object:
    labels = {label: NAME, "rke.cattle.io/control-plane-role": "true"}
    group = "rke.cattle.io" if infrastructure == "CustomMachine" else "rke-machine.cattle.io"
    reference = {"apiGroup": group, "kind": infrastructure, "name": name}
    return new(MACHINE, name, WORKSPACE, labels=labels, **meta) | {"spec": {"infrastructureRef": reference}}


@pytest.mark.parametrize(("annotations", "connected"), [({}, False), ({names.CONNECTED_SINCE: "2026"}, True)])
def test_the_control_plane_tells_whether_its_agent_is_there(annotations: Object, connected: bool) -> None:
    management = new(MANAGEMENT_CLUSTER, "c-m-abcdefgh", annotations=annotations)
    told = {"agentConnected": connected}
    assert patches(decide(rke_control_plane.CONTROLLER, plane(), management)) == [{"status": told}]


def test_the_control_plane_goes_after_its_machines_and_deletes_those_that_people_registered() -> None:
    going = plane(deletionTimestamp="2026-01-01T00:00:00Z")
    machines = [
        machine("pooled", "ShedMachine"),
        machine("registered", "CustomMachine", label="rke.cattle.io/cluster-name"),
        machine("worker", "CustomMachine", label="elsewhere"),
    ]
    decision = decide(rke_control_plane.CONTROLLER, going, *machines)
    assert [write.ref.name for write in decision.writes if isinstance(write, Delete)] == ["registered"]
    assert decision.wait is not None
    assert decision.wait.reason == "waiting for machine [pooled] to delete"
    gone = decide(rke_control_plane.CONTROLLER, going)
    assert patches(gone) == [{"metadata": {"finalizers": []}}]


# --- the management Cluster -----------------------------------------------------------------------------------------


def test_the_management_cluster_follows_and_keeps_what_others_gave_it() -> None:
    asked = cluster(dataDirectories={"systemAgent": "/agent"}, spec={"agentEnvVars": [{"name": "A", "value": "b"}]})
    made = clusters.management_of(asked, "c-m-abcdefgh")
    assert clusters.is_administrated(made)
    assert made["spec"]["agentEnvVars"] == [
        {"name": "A", "value": "b"},
        {"name": "CATTLE_AGENT_VAR_DIR", "value": "/agent"},
    ]
    grown = {**made, "spec": {**made["spec"], "description": "by hand"}}
    assert clusters.updated_management(grown, asked) == grown
    followed = clusters.updated_management(grown, cluster(spec={"enableNetworkPolicy": True}))
    assert followed["spec"] == {
        "displayName": NAME,
        "fleetWorkspaceName": WORKSPACE,
        "importedConfig": {},
        "enableNetworkPolicy": True,
        "description": "by hand",
    }


def test_nobody_makes_an_imported_cluster_look_as_if_it_were_built_here() -> None:
    imported = cluster() | {"spec": {}}
    imported["metadata"]["annotations"] = {"provisioning.cattle.io/administrated": "true"}
    assert not clusters.is_administrated(clusters.management_of(imported, "c-m-abcdefgh"))
