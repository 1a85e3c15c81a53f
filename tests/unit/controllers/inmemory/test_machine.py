"""InMemoryMachine: provisioning, its Node and deletion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.names import PAUSED
from herder.api.capi.nodes import NODE_RECORD, node_by_provider_id
from herder.api.inmemory import names
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE
from herder.controllers.inmemory.machine import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Decision, Delete, Observe, Patch
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import condition_fields, legacy_condition_of, only_patch, patched, writes_of
from tests.support.views import NOW
from tests.unit.controllers.inmemory.objects import (
    A_MINUTE_AGO,
    cluster,
    machine,
    member_object,
    reconcile_object,
    secret,
)

PROVIDER_ID = "inmemory:///ns/c/m"
SUBSCRIPTION = node_by_provider_id("ns/c", PROVIDER_ID)
KUBECONFIG = secret("c-kubeconfig")


def infra(owner: Object | None = None, **options: Any) -> Object:
    return member_object(IN_MEMORY_MACHINE, "m", owner=owner or machine(), **({"spec": {}} | options))


def reconcile(*objects: Object, nodes: list[Object] | Unreachable | None = None, **options: Any) -> Decision:
    def observed(subscription: Observe) -> Observed | Unreachable | None:
        assert subscription == SUBSCRIPTION
        if nodes is None or isinstance(nodes, Unreachable):
            return nodes
        return Observed(tuple(NODE_RECORD.project(node) for node in nodes), NOW)

    return reconcile_object(CONTROLLER, "m", *objects, observed=observed, **options)


def running(**options: Any) -> Object:
    """A provisioned InMemoryMachine, with metadata that was set afterwards."""
    provisioned = patched(infra(), reconcile(infra(), machine(), cluster()))
    return {**provisioned, "metadata": {**provisioned["metadata"], **infra(**options)["metadata"]}}


def registered_node(infra_object: Object) -> Object:
    """The Node that an InMemoryMachine registered, as the workload cluster serves it."""
    create = writes_of(reconcile(infra_object, machine(), cluster(), KUBECONFIG, nodes=[]))[0]
    assert isinstance(create, Create)
    return {**create.obj, "metadata": {**create.obj["metadata"], "uid": "node-uid", "resourceVersion": "9"}}


# --- provisioning ----------------------------------------------------------------------------------------------------


def test_provisioning_is_one_write() -> None:
    updated = patched(infra(), reconcile(infra(), machine(), cluster()))
    patch = only_patch(reconcile(infra(), machine(), cluster()))
    assert set(patch) == {"metadata", "spec", "status"}
    assert updated["spec"]["providerID"] == PROVIDER_ID
    assert updated["metadata"]["finalizers"] == [names.MACHINE_FINALIZER]
    assert updated["status"]["initialization"] == {"provisioned": True}
    assert updated["status"]["ready"] is True
    assert [address["type"] for address in updated["status"]["addresses"]] == ["Hostname", "InternalIP"]
    assert condition_fields(updated, "Ready") == ("True", "Ready", "")
    assert condition_fields(updated, "Paused") == ("False", "NotPaused", "")
    assert legacy_condition_of(updated, "Ready")["status"] == "True"


def test_failure_domain_is_reported_for_both_contracts() -> None:
    owner_machine = machine(domain="z1")
    updated = patched(infra(owner_machine), reconcile(infra(owner_machine), owner_machine, cluster()))
    assert updated["spec"]["failureDomain"] == updated["status"]["failureDomain"] == "z1"


def test_interruptible_machine_is_reported() -> None:
    spot = infra(spec={"interruptible": True})
    assert patched(spot, reconcile(spot, machine(), cluster()))["status"]["interruptible"] is True


@pytest.mark.parametrize(
    ("objects", "waits_for"),
    [
        (
            [member_object(IN_MEMORY_MACHINE, "m", spec={})],
            "waiting for the Machine controller to set the owner reference",
        ),
        ([infra(), machine(), cluster(provisioned=False)], "the cluster's infrastructure is not provisioned"),
        ([infra(), machine(data=""), cluster()], "the Machine has no bootstrap data yet"),
    ],
)
def test_waiting_machine_is_not_written(objects: list[Object], waits_for: str) -> None:
    decision = reconcile(*objects)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_an_owner_reference_alone_changes_no_node() -> None:
    """Users write owner references: the Machine must refer to the InMemoryMachine too.

    Otherwise, users could create and delete Nodes in clusters of other users.
    """
    foreign = machine()
    foreign["spec"]["infrastructureRef"]["name"] = "other"
    for each in (running(), running(annotations={names.NODE_READY: "Absent"})):
        decision = reconcile(each, foreign, cluster(), KUBECONFIG, nodes=[registered_node(running())])
        assert decision.writes == ()
        assert decision.observe == ()


def test_start_delay_counts_from_the_bootstrap_data() -> None:
    delayed = infra(annotations={names.START_DELAY: "100"})
    data = secret("m", created=A_MINUTE_AGO + timedelta(seconds=5))
    decision = reconcile(delayed, machine(), cluster(), data)
    assert decision.writes == ()
    assert decision.wake_at == A_MINUTE_AGO + timedelta(seconds=105)
    assert writes_of(reconcile(delayed, machine(), cluster(), data, now=NOW + timedelta(seconds=100)))


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "QuotaExceeded", "QuotaExceeded"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.START_DELAY, "soon", "InvalidAnnotation"),
    ],
)
def test_injected_faults_are_reported_in_conditions(annotation: str, value: str, reason: str) -> None:
    faulty = infra(annotations={annotation: value})
    updated = patched(faulty, reconcile(faulty, machine(), cluster()))
    status, reported_reason, message = condition_fields(updated, "Ready")
    assert (status, reported_reason) == ("False", reason)
    assert "providerID" not in updated["spec"]
    if annotation == names.FAIL:
        assert (updated["status"]["failureReason"], updated["status"]["failureMessage"]) == ("QuotaExceeded", message)
    if reason == "InvalidAnnotation":
        assert annotation in message
    assert reconcile(updated, machine(), cluster()).writes == ()


def test_failure_can_be_injected_and_removed_later() -> None:
    failing = running(annotations={names.FAIL: "DiskDied"})
    updated = patched(failing, reconcile(failing, machine(), cluster()))
    assert condition_fields(updated, "Ready")[:2] == ("False", "DiskDied")
    assert updated["status"]["initialization"] == {"provisioned": True}
    without_fault = {**updated, "metadata": {**updated["metadata"], "annotations": {}}}
    updated = patched(without_fault, reconcile(without_fault, machine(), cluster()))
    assert condition_fields(updated, "Ready")[:2] == ("True", "Ready")
    assert "failureReason" not in updated["status"]


def test_invalid_annotation_is_reported_without_effect() -> None:
    annotated = running(annotations={names.NODE_READY: "Maybe"})
    status, _, message = condition_fields(patched(annotated, reconcile(annotated, machine(), cluster())), "Ready")
    assert status == "True"
    assert names.NODE_READY in message


# --- Node ------------------------------------------------------------------------------------------------------------


def test_node_waits_for_the_kubeconfig() -> None:
    decision = reconcile(running(), machine(), cluster())
    assert decision.observe == ()
    assert decision.wait is not None
    assert decision.wait.reason == "the cluster has no kubeconfig yet"


@pytest.mark.parametrize("nodes", [None, Unreachable("silence", NOW)])
def test_node_is_not_created_before_nodes_are_observed(nodes: Unreachable | None) -> None:
    decision = reconcile(running(), machine(), cluster(), KUBECONFIG, nodes=nodes)
    assert decision.observe == (SUBSCRIPTION,)
    assert decision.writes == ()


def test_worker_node_is_registered_as_a_kubelet_does() -> None:
    node = registered_node(running())
    assert node["metadata"]["name"] == "m"
    assert node["spec"]["providerID"] == PROVIDER_ID
    assert node["spec"]["taints"] == [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
    ready = {known["type"]: known["status"] for known in node["status"]["conditions"]}
    assert ready == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert node["status"]["capacity"]["cpu"] == "4"


def test_control_plane_node_has_role_label_and_taint() -> None:
    owner_machine = machine(control_plane=True, domain="z1")
    create = writes_of(reconcile(running(), owner_machine, cluster(), KUBECONFIG, nodes=[]))[0]
    assert isinstance(create, Create)
    assert create.target == "ns/c"
    assert create.obj["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] == ""
    assert create.obj["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
    assert create.obj["spec"]["taints"] == [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]


def test_node_delay_counts_from_provisioning() -> None:
    delayed = running(annotations={names.NODE_DELAY: "30"})
    decision = reconcile(delayed, machine(), cluster(), KUBECONFIG, nodes=[])
    assert decision.writes == ()
    assert decision.wake_at == NOW + timedelta(seconds=30)
    later = reconcile(delayed, machine(), cluster(), KUBECONFIG, nodes=[], now=NOW + timedelta(seconds=30))
    assert isinstance(writes_of(later)[0], Create)


def test_up_to_date_node_is_not_written() -> None:
    decision = reconcile(running(), machine(), cluster(), KUBECONFIG, nodes=[registered_node(running())])
    assert decision.writes == ()
    assert decision.observe == (SUBSCRIPTION,)


def test_synced_labels_and_taints_are_kept() -> None:
    node = registered_node(running())
    synced_node = {**node, "metadata": {**node["metadata"], "labels": {"x": "y"}}, "spec": {"providerID": PROVIDER_ID}}
    assert reconcile(running(), machine(), cluster(), KUBECONFIG, nodes=[synced_node]).writes == ()


@pytest.mark.parametrize(
    ("annotation", "value", "type_", "status"),
    [
        (names.NODE_READY, "False", "Ready", "False"),
        (names.NODE_READY, "Unknown", "Ready", "Unknown"),
        (names.NODE_CONDITIONS, '{"DiskPressure": "True"}', "DiskPressure", "True"),
        (names.NODE_CONDITIONS, '{"GpuMissing": "True"}', "GpuMissing", "True"),
    ],
)
def test_node_reports_annotated_conditions(annotation: str, value: str, type_: str, status: str) -> None:
    annotated = running(annotations={annotation: value})
    node = registered_node(running())
    (patch,) = writes_of(reconcile(annotated, machine(), cluster(), KUBECONFIG, nodes=[node]))
    assert isinstance(patch, Patch)
    assert (patch.target, patch.subresource) == ("ns/c", "status")
    reported = {known["type"]: known["status"] for known in patch.patch["status"]["conditions"]}
    assert reported[type_] == status
    reporting_node = {**node, "status": {**node["status"], **patch.patch["status"]}}
    assert reconcile(annotated, machine(), cluster(), KUBECONFIG, nodes=[reporting_node]).writes == ()
    reset_writes = writes_of(reconcile(running(), machine(), cluster(), KUBECONFIG, nodes=[reporting_node]))
    assert len(reset_writes) == 1


def test_absent_node_is_deleted_and_not_recreated() -> None:
    annotated = running(annotations={names.NODE_READY: "Absent"})
    (delete,) = writes_of(reconcile(annotated, machine(), cluster(), KUBECONFIG, nodes=[registered_node(running())]))
    assert isinstance(delete, Delete)
    assert (delete.uid, delete.target) == ("node-uid", "ns/c")
    assert reconcile(annotated, machine(), cluster(), KUBECONFIG, nodes=[]).writes == ()


def test_no_node_is_created_for_a_deleting_machine() -> None:
    assert reconcile(running(), machine(deleting=True), cluster(), KUBECONFIG, nodes=[]).writes == ()


def test_deleting_cluster_is_not_observed() -> None:
    decision = reconcile(running(), machine(), cluster(deleting=True), KUBECONFIG, nodes=[])
    assert (decision.writes, decision.observe) == ((), ())


# --- deletion --------------------------------------------------------------------------------------------------------


def test_deletion_with_its_machine_is_one_write() -> None:
    deleting_infra = running(deleting=True)
    patch = only_patch(
        reconcile(deleting_infra, machine(deleting=True), cluster(), KUBECONFIG, nodes=[registered_node(running())])
    )
    assert patch == {"metadata": {"finalizers": []}}


def test_deletion_without_its_machine_leaves_a_node_of_unknown_status() -> None:
    deleting_infra = running(deleting=True)
    status_patch, released = writes_of(
        reconcile(deleting_infra, machine(), cluster(), KUBECONFIG, nodes=[registered_node(running())])
    )
    assert isinstance(status_patch, Patch)
    assert {known["status"] for known in status_patch.patch["status"]["conditions"]} == {"Unknown"}
    assert isinstance(released, Patch)
    assert released.patch == {"metadata": {"finalizers": []}}


@pytest.mark.parametrize(
    ("objects", "nodes"),
    [
        ([machine(), cluster(), KUBECONFIG], []),
        ([machine(), cluster(), KUBECONFIG], Unreachable("silence", NOW)),
        ([machine(), cluster()], None),
        ([machine(), cluster(deleting=True), KUBECONFIG], None),
        ([], None),
    ],
    ids=["no Node", "unreachable", "no kubeconfig", "the cluster is deleting", "everything is deleted"],
)
def test_missing_objects_do_not_block_deletion(objects: list[Object], nodes: list[Object] | Unreachable | None) -> None:
    assert only_patch(reconcile(running(deleting=True), *objects, nodes=nodes)) == {"metadata": {"finalizers": []}}


def test_stuck_deletion_annotation_blocks_deletion() -> None:
    decision = reconcile(running(deleting=True, annotations={names.STUCK_DELETION: "true"}), machine(), cluster())
    assert decision.writes == ()
    assert decision.wait is not None
    assert names.STUCK_DELETION in decision.wait.reason


def test_unprovisioned_machine_needs_no_cleanup() -> None:
    assert reconcile(infra(deleting=True), machine(), cluster()).writes == ()


def test_paused_object_only_reports_its_pause() -> None:
    paused = infra(annotations={PAUSED: ""})
    updated = patched(paused, reconcile(paused, machine(), cluster()))
    assert condition_fields(updated, "Paused")[0] == "True"
    assert "providerID" not in updated["spec"]
