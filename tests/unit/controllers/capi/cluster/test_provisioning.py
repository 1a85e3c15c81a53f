"""Provisioning of a Cluster: it adopts the objects it references, and copies what providers report."""

from __future__ import annotations

import msgspec
import pytest

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME, PAUSED
from herder.api.references.approvals import Approval, with_record
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Parallel
from tests.support.builders import new_definition, writes_of
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    ENDPOINT,
    FULLY_INITIALIZED,
    INFRA,
    INITIALIZED,
    OWNER,
    PLANE,
    PROVISIONED,
    cluster,
    healthy_machine,
    infra,
    legacy_condition,
    machine,
    patches,
    plane,
    reconcile_cluster,
    secret,
    status_after,
    status_condition,
)

V1BETA1 = (new_definition(INFRA, "v1beta1"), new_definition(PLANE, "v1beta1"))


def test_deleted_cluster_is_ignored() -> None:
    assert reconcile_cluster() == DONE


def test_finalizer_is_the_first_and_only_write() -> None:
    decision = reconcile_cluster(
        cluster(metadata={"finalizers": ["theirs"]}), *DEFINITIONS, infra(metadata={"labels": {}})
    )
    (patch,) = patches(decision, CLUSTER)
    assert writes_of(decision) == [patch]
    assert patch.patch == {"metadata": {"finalizers": ["theirs", CLUSTER_FINALIZER]}}
    assert patch.resource_version


def test_no_finalizer_is_added_to_a_deleting_cluster() -> None:
    assert reconcile_cluster(cluster(metadata={"finalizers": [], "deletionTimestamp": "2026-01-01T11:00:00Z"})) == DONE


def test_only_the_approved_object_is_adopted() -> None:
    """An object that another user creates under the same name gets no owner, and its endpoint is not copied."""
    found = infra(PROVISIONED, metadata={"ownerReferences": []}, controlPlaneEndpoint=ENDPOINT)
    approved_by_name = Approval("spec.infrastructureRef", INFRA.plural, "c-infra", INFRA.group, "ns", author="mallory")
    assert patches(reconcile_cluster(_referring(approved_by_name), *DEFINITIONS, found), INFRA)

    objects = [_referring(msgspec.structs.replace(approved_by_name, uid="another")), *DEFINITIONS, found]
    assert not patches(reconcile_cluster(*objects), INFRA)
    condition = status_condition(status_after(*objects), "InfrastructureReady")
    assert "was recreated since the reference to it was approved" in condition[2]


def _referring(approval: Approval) -> Object:
    return with_record(cluster(control_plane=False), [approval])


def test_referenced_objects_are_adopted() -> None:
    theirs = {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "o", "controller": True}
    decision = reconcile_cluster(
        cluster(),
        *DEFINITIONS,
        infra(metadata={"ownerReferences": [theirs], "labels": {"a": "b"}}),
        plane(metadata={"ownerReferences": [], "labels": {}}),
    )
    assert isinstance(decision.writes[0], Parallel)
    (infra_patch,), (plane_patch,) = patches(decision, INFRA), patches(decision, PLANE)
    assert infra_patch.patch == {"metadata": {"ownerReferences": [theirs, OWNER], "labels": {CLUSTER_NAME: "c"}}}
    assert plane_patch.patch == {"metadata": {"ownerReferences": [OWNER], "labels": {CLUSTER_NAME: "c"}}}
    assert infra_patch.resource_version


@pytest.mark.parametrize("reference_fields", [{}, {"controller": True, "blockOwnerDeletion": True}])
def test_adopted_objects_are_not_patched_again(reference_fields: Object) -> None:
    owners = [OWNER | reference_fields, {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "o"}]
    decision = reconcile_cluster(cluster(), *DEFINITIONS, infra(metadata={"ownerReferences": owners}), plane())
    assert patches(decision, INFRA) == []


@pytest.mark.parametrize(
    ("definitions", "infra_status", "plane_status"),
    [
        pytest.param(DEFINITIONS, PROVISIONED, INITIALIZED, id="v1beta2"),
        pytest.param(V1BETA1, {"ready": True}, {"initialized": True}, id="v1beta1"),
    ],
)
def test_both_contracts_report_initialization(
    definitions: tuple[Object, ...], infra_status: Object, plane_status: Object
) -> None:
    status = status_after(
        cluster(controlPlaneEndpoint=ENDPOINT), *definitions, infra(infra_status), plane(plane_status)
    )
    assert status["initialization"] == FULLY_INITIALIZED
    assert status["phase"] == "Provisioned"
    other = status_after(cluster(controlPlaneEndpoint=ENDPOINT), *definitions, infra(plane_status), plane(infra_status))
    assert "initialization" not in other


@pytest.mark.parametrize(
    ("infra_spec", "plane_spec", "user_endpoint", "expected"),
    [
        pytest.param({"controlPlaneEndpoint": ENDPOINT}, {}, None, ENDPOINT, id="the infrastructure's"),
        pytest.param({}, {"controlPlaneEndpoint": ENDPOINT}, None, ENDPOINT, id="the control plane's"),
        pytest.param(
            {"controlPlaneEndpoint": ENDPOINT},
            {"controlPlaneEndpoint": {"host": "x", "port": 1}},
            None,
            ENDPOINT,
            id="both",
        ),
        pytest.param(
            {"controlPlaneEndpoint": ENDPOINT}, {}, {"host": "mine", "port": 7}, None, id="the user's own is kept"
        ),
        pytest.param(
            {"controlPlaneEndpoint": {"host": "half", "port": 0}},
            {},
            None,
            None,
            id="an incomplete endpoint is ignored",
        ),
        pytest.param({}, {}, None, None, id="none"),
    ],
)
def test_endpoint_is_copied_from_the_provider_that_reports_it(
    infra_spec: Object, plane_spec: Object, user_endpoint: Object | None, expected: Object | None
) -> None:
    spec = {"controlPlaneEndpoint": user_endpoint} if user_endpoint else {}
    decision = reconcile_cluster(
        cluster(**spec), *DEFINITIONS, infra(PROVISIONED, **infra_spec), plane(INITIALIZED, **plane_spec)
    )
    changed = [patch.patch for patch in patches(decision, CLUSTER)]
    assert changed == ([{"spec": {"controlPlaneEndpoint": expected}}] if expected else [])
    if expected:
        assert patches(decision, CLUSTER, "status") == [], "the status is derived from the updated object"


def test_endpoint_is_not_copied_before_infrastructure_is_provisioned() -> None:
    decision = reconcile_cluster(cluster(), *DEFINITIONS, infra(controlPlaneEndpoint=ENDPOINT), plane())
    assert patches(decision, CLUSTER) == []


def test_failure_domains_are_copied_in_order() -> None:
    domains = [{"name": "b"}, {"name": "a", "controlPlane": True}]
    status = status_after(cluster(), *DEFINITIONS, infra(PROVISIONED | {"failureDomains": domains}), plane())
    assert status["failureDomains"] == [{"name": "a", "controlPlane": True}, {"name": "b", "controlPlane": False}]


def test_initialization_is_not_reverted() -> None:
    before = {"initialization": FULLY_INITIALIZED, "failureDomains": [{"name": "a", "controlPlane": True}]}
    status = status_after(cluster(status=before, controlPlaneEndpoint=ENDPOINT), *DEFINITIONS)
    assert status["initialization"] == FULLY_INITIALIZED
    assert status["failureDomains"] == before["failureDomains"]
    assert status["phase"] == "Provisioned"


@pytest.mark.parametrize(
    ("cluster_object", "phase"),
    [
        (cluster(infrastructure=False, control_plane=False), "Pending"),
        (cluster(control_plane=False), "Provisioning"),
        (cluster(), "Provisioning"),
        (cluster(infrastructure=False, controlPlaneEndpoint=ENDPOINT), "Provisioned"),
        (cluster(controlPlaneEndpoint=ENDPOINT), "Provisioning"),
        (cluster(controlPlaneEndpoint=ENDPOINT, status={"initialization": FULLY_INITIALIZED}), "Provisioned"),
    ],
)
def test_phases(cluster_object: Object, phase: str) -> None:
    assert status_after(cluster_object, *DEFINITIONS, infra(), plane())["phase"] == phase


def test_cluster_without_infrastructure_counts_as_provisioned() -> None:
    status = status_after(cluster(infrastructure=False), *DEFINITIONS, plane())
    assert status["initialization"] == {"infrastructureProvisioned": True}
    assert status_condition(status, "InfrastructureReady") == ("True", "Ready", "")
    assert legacy_condition(status, "InfrastructureReady") == {"type": "InfrastructureReady", "status": "True"}


def test_cluster_with_topology_waits_for_its_references() -> None:
    cluster_object = cluster(infrastructure=False, control_plane=False, topology={"version": "v1.31.0"})
    status = status_after(cluster_object)
    assert "initialization" not in status
    pending = "Waiting for cluster topology to be reconciled"
    assert status_condition(status, "InfrastructureReady") == ("False", "ObjectDoesNotExist", pending)
    assert status_condition(status, "ControlPlaneAvailable") == ("False", "ObjectDoesNotExist", pending)
    assert status_condition(status, "ControlPlaneInitialized") == ("Unknown", "ObjectDoesNotExist", pending)


@pytest.mark.parametrize(
    ("objects", "initialized"),
    [
        ([], False),
        ([machine("cp-1", control_plane=True)], False),
        ([machine("w-1", nodeRef={"name": "w-1"})], False),
        ([machine("cp-1", control_plane=True, nodeRef={"name": "n"})], True),
        (
            [
                machine(
                    "cp-1",
                    control_plane=True,
                    nodeRef={"name": "n"},
                    metadata={"deletionTimestamp": "2026-01-01T11:00:00Z"},
                )
            ],
            False,
        ),
    ],
)
def test_first_control_plane_node_initializes_a_cluster_without_control_plane_object(
    objects: list[Object], initialized: bool
) -> None:
    status = status_after(cluster(control_plane=False), *DEFINITIONS, infra(), *objects)
    assert status.get("initialization", {}).get("controlPlaneInitialized", False) is initialized
    assert status_condition(status, "ControlPlaneInitialized")[0] == str(initialized)


# --- wait reasons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        (
            [],
            "FarmCluster c-infra does not exist, nor does its CustomResourceDefinition "
            "farmclusters.infrastructure.example",
        ),
        (
            [new_definition(INFRA, "")],
            "FarmCluster c-infra cannot be read: CustomResourceDefinition farmclusters.infrastructure.example has no "
            "version for a supported contract: label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 "
            "is not set",
        ),
        ([*DEFINITIONS], "FarmCluster c-infra does not exist"),
        ([*DEFINITIONS, infra()], "waiting for FarmCluster c-infra to be provisioned"),
        ([*DEFINITIONS, infra(PROVISIONED), plane()], "waiting for FarmControlPlane c-plane to be initialized"),
    ],
)
def test_wait_reason_names_the_missing_object(objects: list[Object], reason: str) -> None:
    wait = reconcile_cluster(cluster(), *objects).wait
    assert wait is not None
    assert wait.reason == reason


def test_provisioned_cluster_does_not_wait() -> None:
    up = cluster(controlPlaneEndpoint=ENDPOINT)
    assert (
        reconcile_cluster(up, *DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig")).wait is None
    )


# --- pauses and number of writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_object", "message"),
    [
        (cluster(paused=True), "Cluster spec.paused is set to true"),
        (cluster(metadata={"annotations": {PAUSED: "false"}}), "Cluster has the cluster.x-k8s.io/paused annotation"),
        (
            cluster(paused=True, metadata={"deletionTimestamp": "2026-01-01T11:00:00Z"}),
            "Cluster spec.paused is set to true",
        ),
    ],
)
def test_paused_cluster_only_reports_its_pause(cluster_object: Object, message: str) -> None:
    cluster_object["status"] = {"phase": "Odd", "conditions": [{"type": "Theirs", "status": "True"}]}
    decision = reconcile_cluster(cluster_object, *DEFINITIONS, infra(PROVISIONED, metadata={"labels": {}}), plane())
    (patch,) = patches(decision, CLUSTER, "status")
    assert writes_of(decision) == [patch]
    assert patch.patch["status"].keys() == {"conditions"}
    listed = patch.patch["status"]["conditions"]
    assert [(known["type"], known.get("message")) for known in listed] == [("Theirs", None), ("Paused", message)]


def test_unchanged_cluster_is_not_written() -> None:
    cluster_object = cluster(controlPlaneEndpoint=ENDPOINT)
    others = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), healthy_machine("w-1"), secret("c-kubeconfig")]
    cluster_object["status"] = status_after(cluster_object, *others)
    assert writes_of(reconcile_cluster(cluster_object, *others)) == []


def test_initialization_is_written_at_once_and_progress_is_debounced() -> None:
    cluster_object = cluster(controlPlaneEndpoint=ENDPOINT)
    others = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig")]
    (first,) = patches(reconcile_cluster(cluster_object, *others), CLUSTER, "status")
    cluster_object["status"] = status_after(cluster_object, *others)
    (second,) = patches(reconcile_cluster(cluster_object, *others, healthy_machine("w-1")), CLUSTER, "status")
    assert (first.debounce, second.debounce) == (0.0, 2.0)


def test_terminal_failures_of_providers_are_copied_without_stopping_provisioning() -> None:
    failed = PROVISIONED | {"failureReason": "NoQuota", "failureMessage": "no cores left"}
    status = status_after(cluster(), *DEFINITIONS, infra(failed), plane())
    legacy_status = status["deprecated"]["v1beta1"]
    assert legacy_status["failureReason"] == "NoQuota"
    assert legacy_status["failureMessage"] == (
        "Failure detected from referenced resource infrastructure.example/v1, Kind=FarmCluster "
        'with name "c-infra": no cores left'
    )
    assert status["initialization"] == {"infrastructureProvisioned": True}


@pytest.mark.parametrize(("definitions", "generation"), [(DEFINITIONS, 4), ((new_definition(INFRA, ""),), None)])
def test_generation_is_observed_only_when_references_are_readable(
    definitions: tuple[Object, ...], generation: int | None
) -> None:
    status = status_after(cluster(metadata={"generation": 4}), *definitions, infra(), plane())
    assert status.get("observedGeneration") == generation
