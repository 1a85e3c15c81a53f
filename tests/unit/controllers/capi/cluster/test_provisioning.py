"""A Cluster on its way up: what it names is adopted, and what providers learn is taken over."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_FINALIZER, CLUSTER_NAME, PAUSED
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Parallel
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    ENDPOINT,
    INFRA,
    INITIALIZED,
    OWNER,
    PLANE,
    PROVISIONED,
    UP,
    cluster,
    decide,
    definition,
    good,
    infra,
    machine,
    patches,
    plane,
    secret,
    status_after,
    told,
    told_before,
    writes,
)

V1BETA1 = (definition(INFRA, "v1beta1"), definition(PLANE, "v1beta1"))


def test_nothing_is_decided_for_a_cluster_that_is_gone() -> None:
    assert decide() == DONE


def test_the_finalizer_comes_first_and_alone() -> None:
    decision = decide(cluster(meta={"finalizers": ["theirs"]}), *DEFINITIONS, infra(meta={"labels": {}}))
    (patch,) = patches(decision, CLUSTER)
    assert writes(decision) == [patch]
    assert patch.patch == {"metadata": {"finalizers": ["theirs", CLUSTER_FINALIZER]}}
    assert patch.resource_version


def test_no_finalizer_is_put_on_a_cluster_that_is_going() -> None:
    assert decide(cluster(meta={"finalizers": [], "deletionTimestamp": "2026-01-01T11:00:00Z"})) == DONE


def test_what_the_cluster_names_is_adopted_at_once() -> None:
    theirs = {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "o", "controller": True}
    decision = decide(
        cluster(),
        *DEFINITIONS,
        infra(meta={"ownerReferences": [theirs], "labels": {"a": "b"}}),
        plane(meta={"ownerReferences": [], "labels": {}}),
    )
    assert isinstance(decision.writes[0], Parallel)
    (of_infra,), (of_plane,) = patches(decision, INFRA), patches(decision, PLANE)
    assert of_infra.patch == {"metadata": {"ownerReferences": [theirs, OWNER], "labels": {CLUSTER_NAME: "c"}}}
    assert of_plane.patch == {"metadata": {"ownerReferences": [OWNER], "labels": {CLUSTER_NAME: "c"}}}
    assert of_infra.resource_version


@pytest.mark.parametrize("more", [{}, {"controller": True, "blockOwnerDeletion": True}])
def test_what_is_adopted_is_left_alone(more: Object) -> None:
    owners = [OWNER | more, {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "o"}]
    decision = decide(cluster(), *DEFINITIONS, infra(meta={"ownerReferences": owners}), plane())
    assert patches(decision, INFRA) == []


@pytest.mark.parametrize(
    ("definitions", "infra_status", "plane_status"),
    [
        pytest.param(DEFINITIONS, PROVISIONED, INITIALIZED, id="v1beta2"),
        pytest.param(V1BETA1, {"ready": True}, {"initialized": True}, id="v1beta1"),
    ],
)
def test_both_contracts_say_when_a_provider_is_done(
    definitions: tuple[Object, ...], infra_status: Object, plane_status: Object
) -> None:
    status = status_after(
        cluster(controlPlaneEndpoint=ENDPOINT), *definitions, infra(infra_status), plane(plane_status)
    )
    assert status["initialization"] == UP
    assert status["phase"] == "Provisioned"
    other = status_after(cluster(controlPlaneEndpoint=ENDPOINT), *definitions, infra(plane_status), plane(infra_status))
    assert "initialization" not in other


@pytest.mark.parametrize(
    ("infra_spec", "plane_spec", "own", "taken"),
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
            {"controlPlaneEndpoint": ENDPOINT}, {}, {"host": "mine", "port": 7}, None, id="the user's own stays"
        ),
        pytest.param({"controlPlaneEndpoint": {"host": "half", "port": 0}}, {}, None, None, id="half of one is none"),
        pytest.param({}, {}, None, None, id="nobody knows"),
    ],
)
def test_the_endpoint_is_taken_from_who_knows_it(
    infra_spec: Object, plane_spec: Object, own: Object | None, taken: Object | None
) -> None:
    spec = {"controlPlaneEndpoint": own} if own else {}
    decision = decide(cluster(**spec), *DEFINITIONS, infra(PROVISIONED, **infra_spec), plane(INITIALIZED, **plane_spec))
    changed = [patch.patch for patch in patches(decision, CLUSTER)]
    assert changed == ([{"spec": {"controlPlaneEndpoint": taken}}] if taken else [])
    if taken:
        assert patches(decision, CLUSTER, "status") == [], "the status is told from what this write leaves"


def test_an_endpoint_is_not_taken_before_the_provider_is_done() -> None:
    decision = decide(cluster(), *DEFINITIONS, infra(controlPlaneEndpoint=ENDPOINT), plane())
    assert patches(decision, CLUSTER) == []


def test_failure_domains_are_copied_sorted() -> None:
    domains = [{"name": "b"}, {"name": "a", "controlPlane": True}]
    status = status_after(cluster(), *DEFINITIONS, infra(PROVISIONED | {"failureDomains": domains}), plane())
    assert status["failureDomains"] == [{"name": "a", "controlPlane": True}, {"name": "b", "controlPlane": False}]


def test_steps_once_taken_are_not_taken_back() -> None:
    before = {"initialization": UP, "failureDomains": [{"name": "a", "controlPlane": True}]}
    status = status_after(cluster(status=before, controlPlaneEndpoint=ENDPOINT), *DEFINITIONS)
    assert status["initialization"] == UP
    assert status["failureDomains"] == before["failureDomains"]
    assert status["phase"] == "Provisioned"


@pytest.mark.parametrize(
    ("made", "phase"),
    [
        (cluster(infrastructure=False, control_plane=False), "Pending"),
        (cluster(control_plane=False), "Provisioning"),
        (cluster(), "Provisioning"),
        (cluster(infrastructure=False, controlPlaneEndpoint=ENDPOINT), "Provisioned"),
        (cluster(controlPlaneEndpoint=ENDPOINT), "Provisioning"),
        (cluster(controlPlaneEndpoint=ENDPOINT, status={"initialization": UP}), "Provisioned"),
    ],
)
def test_phases(made: Object, phase: str) -> None:
    assert status_after(made, *DEFINITIONS, infra(), plane())["phase"] == phase


def test_without_infrastructure_it_counts_as_provisioned() -> None:
    status = status_after(cluster(infrastructure=False), *DEFINITIONS, plane())
    assert status["initialization"] == {"infrastructureProvisioned": True}
    assert told(status, "InfrastructureReady") == ("True", "Ready", "")
    assert told_before(status, "InfrastructureReady") == {"type": "InfrastructureReady", "status": "True"}


def test_references_that_a_topology_is_to_bring_are_waited_for() -> None:
    made = cluster(infrastructure=False, control_plane=False, topology={"version": "v1.31.0"})
    status = status_after(made)
    assert "initialization" not in status
    pending = "Waiting for cluster topology to be reconciled"
    assert told(status, "InfrastructureReady") == ("False", "ObjectDoesNotExist", pending)
    assert told(status, "ControlPlaneAvailable") == ("False", "ObjectDoesNotExist", pending)
    assert told(status, "ControlPlaneInitialized") == ("Unknown", "ObjectDoesNotExist", pending)


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
                    meta={"deletionTimestamp": "2026-01-01T11:00:00Z"},
                )
            ],
            False,
        ),
    ],
)
def test_without_control_plane_object_the_first_node_of_a_control_plane_machine_counts(
    objects: list[Object], initialized: bool
) -> None:
    status = status_after(cluster(control_plane=False), *DEFINITIONS, infra(), *objects)
    assert status.get("initialization", {}).get("controlPlaneInitialized", False) is initialized
    assert told(status, "ControlPlaneInitialized")[0] == str(initialized)


# --- what it waits for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        (
            [],
            "FarmCluster c-infra does not exist, nor does its CustomResourceDefinition "
            "farmclusters.infrastructure.example",
        ),
        (
            [definition(INFRA, "")],
            "FarmCluster c-infra cannot be read: CustomResourceDefinition farmclusters.infrastructure.example has no "
            "version for a supported contract: label cluster.x-k8s.io/v1beta2 or cluster.x-k8s.io/v1beta1 "
            "is not set",
        ),
        ([*DEFINITIONS], "FarmCluster c-infra does not exist"),
        ([*DEFINITIONS, infra()], "waiting for FarmCluster c-infra to be provisioned"),
        ([*DEFINITIONS, infra(PROVISIONED), plane()], "waiting for FarmControlPlane c-plane to be initialized"),
    ],
)
def test_a_wait_names_what_is_waited_for(objects: list[Object], reason: str) -> None:
    wait = decide(cluster(), *objects).wait
    assert wait is not None
    assert wait.reason == reason


def test_a_cluster_that_is_complete_waits_for_nothing() -> None:
    up = cluster(controlPlaneEndpoint=ENDPOINT)
    assert decide(up, *DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig")).wait is None


# --- pauses and costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (cluster(paused=True), "Cluster spec.paused is set to true"),
        (cluster(meta={"annotations": {PAUSED: "false"}}), "Cluster has the cluster.x-k8s.io/paused annotation"),
        (
            cluster(paused=True, meta={"deletionTimestamp": "2026-01-01T11:00:00Z"}),
            "Cluster spec.paused is set to true",
        ),
    ],
)
def test_a_paused_cluster_says_so_and_does_nothing_else(made: Object, message: str) -> None:
    made["status"] = {"phase": "Odd", "conditions": [{"type": "Theirs", "status": "True"}]}
    decision = decide(made, *DEFINITIONS, infra(PROVISIONED, meta={"labels": {}}), plane())
    (patch,) = patches(decision, CLUSTER, "status")
    assert writes(decision) == [patch]
    assert patch.patch["status"].keys() == {"conditions"}
    listed = patch.patch["status"]["conditions"]
    assert [(known["type"], known.get("message")) for known in listed] == [("Theirs", None), ("Paused", message)]


def test_a_pass_that_finds_nothing_new_writes_nothing() -> None:
    made = cluster(controlPlaneEndpoint=ENDPOINT)
    others = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), good("w-1"), secret("c-kubeconfig")]
    made["status"] = status_after(made, *others)
    assert writes(decide(made, *others)) == []


def test_steps_are_told_at_once_and_mere_progress_with_patience() -> None:
    made = cluster(controlPlaneEndpoint=ENDPOINT)
    others = [*DEFINITIONS, infra(PROVISIONED), plane(INITIALIZED), secret("c-kubeconfig")]
    (first,) = patches(decide(made, *others), CLUSTER, "status")
    made["status"] = status_after(made, *others)
    (second,) = patches(decide(made, *others, good("w-1")), CLUSTER, "status")
    assert (first.debounce, second.debounce) == (0.0, 2.0)


def test_terminal_failures_of_providers_are_copied_and_stop_nothing() -> None:
    failed = PROVISIONED | {"failureReason": "NoQuota", "failureMessage": "no cores left"}
    status = status_after(cluster(), *DEFINITIONS, infra(failed), plane())
    old = status["deprecated"]["v1beta1"]
    assert old["failureReason"] == "NoQuota"
    assert old["failureMessage"] == (
        "Failure detected from referenced resource infrastructure.example/v1, Kind=FarmCluster "
        'with name "c-infra": no cores left'
    )
    assert status["initialization"] == {"infrastructureProvisioned": True}


@pytest.mark.parametrize(("definitions", "generation"), [(DEFINITIONS, 4), ((definition(INFRA, ""),), None)])
def test_a_generation_counts_as_observed_when_it_could_be_acted_on(
    definitions: tuple[Object, ...], generation: int | None
) -> None:
    status = status_after(cluster(meta={"generation": 4}), *definitions, infra(), plane())
    assert status.get("observedGeneration") == generation
