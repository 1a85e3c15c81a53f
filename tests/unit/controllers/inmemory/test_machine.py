"""InMemoryMachine: when it runs, the one write that says so, its Node, and how it ends."""

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
from tests.support.views import NOW
from tests.unit.controllers.inmemory.stage import (
    EARLIER,
    cluster,
    condition,
    decide,
    flat,
    legacy,
    machine,
    made,
    only_patch,
    patched,
    secret,
)

PROVIDER_ID = "inmemory:///ns/c/m"
WISH = node_by_provider_id("ns/c", PROVIDER_ID)
KUBECONFIG = secret("c-kubeconfig")


def infra(owner: Object | None = None, **more: Any) -> Object:
    return made(IN_MEMORY_MACHINE, "m", owner=owner or machine(), **({"spec": {}} | more))


def decided(*objects: Object, nodes: list[Object] | Unreachable | None = None, **more: Any) -> Decision:
    def observed(wish: Observe) -> Observed | Unreachable | None:
        assert wish == WISH
        if nodes is None or isinstance(nodes, Unreachable):
            return nodes
        return Observed(tuple(NODE_RECORD.project(node) for node in nodes), NOW)

    return decide(CONTROLLER, "m", *objects, observed=observed, **more)


def running(**more: Any) -> Object:
    """As its first write leaves it, with what is said of it since."""
    ran = patched(infra(), decided(infra(), machine(), cluster()))
    return {**ran, "metadata": {**ran["metadata"], **infra(**more)["metadata"]}}


def joined(of: Object) -> Object:
    """The Node that it made, as the workload cluster shows it."""
    create = flat(decided(of, machine(), cluster(), KUBECONFIG, nodes=[]))[0]
    assert isinstance(create, Create)
    return {**create.obj, "metadata": {**create.obj["metadata"], "uid": "node-uid", "resourceVersion": "9"}}


# --- starting ---------------------------------------------------------------------------------------------------


def test_that_it_runs_is_told_in_one_write() -> None:
    told = patched(infra(), decided(infra(), machine(), cluster()))
    patch = only_patch(decided(infra(), machine(), cluster()))
    assert set(patch) == {"metadata", "spec", "status"}
    assert told["spec"]["providerID"] == PROVIDER_ID
    assert told["metadata"]["finalizers"] == [names.MACHINE_FINALIZER]
    assert told["status"]["initialization"] == {"provisioned": True}
    assert told["status"]["ready"] is True
    assert [address["type"] for address in told["status"]["addresses"]] == ["Hostname", "InternalIP"]
    assert condition(told, "Ready") == ("True", "Ready", "")
    assert condition(told, "Paused") == ("False", "NotPaused", "")
    assert legacy(told, "Ready")["status"] == "True"


def test_it_obeys_and_reports_the_failure_domain_on_both_contracts_paths() -> None:
    of = machine(domain="z1")
    told = patched(infra(of), decided(infra(of), of, cluster()))
    assert told["spec"]["failureDomain"] == told["status"]["failureDomain"] == "z1"


def test_a_spot_machine_says_so() -> None:
    spot = infra(spec={"interruptible": True})
    assert patched(spot, decided(spot, machine(), cluster()))["status"]["interruptible"] is True


@pytest.mark.parametrize(
    ("objects", "waits_for"),
    [
        ([made(IN_MEMORY_MACHINE, "m", spec={})], "waiting for the Machine controller to set the owner reference"),
        ([infra(), machine(), cluster(provisioned=False)], "the cluster's infrastructure is not provisioned"),
        ([infra(), machine(data=""), cluster()], "the Machine has no bootstrap data yet"),
    ],
)
def test_it_waits_for_others_and_writes_nothing_meanwhile(objects: list[Object], waits_for: str) -> None:
    decision = decided(*objects)
    assert decision.writes == ()
    assert decision.wait is not None
    assert decision.wait.reason == waits_for


def test_the_start_delay_counts_from_the_bootstrap_data() -> None:
    slow = infra(annotations={names.START_DELAY: "100"})
    data = secret("m", created=EARLIER + timedelta(seconds=5))
    decision = decided(slow, machine(), cluster(), data)
    assert decision.writes == ()
    assert decision.wake_at == EARLIER + timedelta(seconds=105)
    assert flat(decided(slow, machine(), cluster(), data, now=NOW + timedelta(seconds=100)))


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (names.FAIL, "QuotaExceeded", "QuotaExceeded"),
        (names.NEVER_READY, "true", "NeverReady"),
        (names.START_DELAY, "soon", "InvalidAnnotation"),
    ],
)
def test_trouble_that_is_asked_for_is_told(annotation: str, value: str, reason: str) -> None:
    bad = infra(annotations={annotation: value})
    told = patched(bad, decided(bad, machine(), cluster()))
    status, told_reason, message = condition(told, "Ready")
    assert (status, told_reason) == ("False", reason)
    assert "providerID" not in told["spec"]
    if annotation == names.FAIL:
        assert (told["status"]["failureReason"], told["status"]["failureMessage"]) == ("QuotaExceeded", message)
    if reason == "InvalidAnnotation":
        assert annotation in message
    assert decided(told, machine(), cluster()).writes == ()


def test_a_failure_may_come_later_and_go_again() -> None:
    failing = running(annotations={names.FAIL: "DiskDied"})
    told = patched(failing, decided(failing, machine(), cluster()))
    assert condition(told, "Ready")[:2] == ("False", "DiskDied")
    assert told["status"]["initialization"] == {"provisioned": True}
    healed = {**told, "metadata": {**told["metadata"], "annotations": {}}}
    told = patched(healed, decided(healed, machine(), cluster()))
    assert condition(told, "Ready")[:2] == ("True", "Ready")
    assert "failureReason" not in told["status"]


def test_nonsense_on_a_machine_that_runs_is_told_and_changes_nothing() -> None:
    odd = running(annotations={names.NODE_READY: "Maybe"})
    status, _, message = condition(patched(odd, decided(odd, machine(), cluster())), "Ready")
    assert status == "True"
    assert names.NODE_READY in message


# --- its Node ---------------------------------------------------------------------------------------------------


def test_there_is_no_way_to_a_cluster_without_a_kubeconfig() -> None:
    decision = decided(running(), machine(), cluster())
    assert decision.observe == ()
    assert decision.wait is not None
    assert decision.wait.reason == "the cluster has no kubeconfig yet"


@pytest.mark.parametrize("nodes", [None, Unreachable("silence", NOW)])
def test_it_looks_before_it_acts(nodes: Unreachable | None) -> None:
    decision = decided(running(), machine(), cluster(), KUBECONFIG, nodes=nodes)
    assert decision.observe == (WISH,)
    assert decision.writes == ()


def test_a_worker_registers_as_a_kubelet_does() -> None:
    node = joined(running())
    assert node["metadata"]["name"] == "m"
    assert node["spec"]["providerID"] == PROVIDER_ID
    assert node["spec"]["taints"] == [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
    ready = {known["type"]: known["status"] for known in node["status"]["conditions"]}
    assert ready == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    assert node["status"]["capacity"]["cpu"] == "4"


def test_a_machine_of_the_control_plane_has_its_role_and_taint() -> None:
    of = machine(control_plane=True, domain="z1")
    create = flat(decided(running(), of, cluster(), KUBECONFIG, nodes=[]))[0]
    assert isinstance(create, Create)
    assert create.target == "ns/c"
    assert create.obj["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] == ""
    assert create.obj["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
    assert create.obj["spec"]["taints"] == [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]


def test_the_node_delay_counts_from_when_the_machine_runs() -> None:
    slow = running(annotations={names.NODE_DELAY: "30"})
    decision = decided(slow, machine(), cluster(), KUBECONFIG, nodes=[])
    assert decision.writes == ()
    assert decision.wake_at == NOW + timedelta(seconds=30)
    later = decided(slow, machine(), cluster(), KUBECONFIG, nodes=[], now=NOW + timedelta(seconds=30))
    assert isinstance(flat(later)[0], Create)


def test_a_node_as_it_should_be_is_left_alone() -> None:
    decision = decided(running(), machine(), cluster(), KUBECONFIG, nodes=[joined(running())])
    assert decision.writes == ()
    assert decision.observe == (WISH,)


def test_the_core_may_change_labels_and_taints_as_it_likes() -> None:
    node = joined(running())
    synced = {**node, "metadata": {**node["metadata"], "labels": {"x": "y"}}, "spec": {"providerID": PROVIDER_ID}}
    assert decided(running(), machine(), cluster(), KUBECONFIG, nodes=[synced]).writes == ()


@pytest.mark.parametrize(
    ("annotation", "value", "type_", "status"),
    [
        (names.NODE_READY, "False", "Ready", "False"),
        (names.NODE_READY, "Unknown", "Ready", "Unknown"),
        (names.NODE_CONDITIONS, '{"DiskPressure": "True"}', "DiskPressure", "True"),
        (names.NODE_CONDITIONS, '{"GpuMissing": "True"}', "GpuMissing", "True"),
    ],
)
def test_a_node_reports_what_the_annotations_ask_for(annotation: str, value: str, type_: str, status: str) -> None:
    asked = running(annotations={annotation: value})
    node = joined(running())
    (patch,) = flat(decided(asked, machine(), cluster(), KUBECONFIG, nodes=[node]))
    assert isinstance(patch, Patch)
    assert (patch.target, patch.subresource) == ("ns/c", "status")
    reported = {known["type"]: known["status"] for known in patch.patch["status"]["conditions"]}
    assert reported[type_] == status
    reporting = {**node, "status": {**node["status"], **patch.patch["status"]}}
    assert decided(asked, machine(), cluster(), KUBECONFIG, nodes=[reporting]).writes == ()
    back = flat(decided(running(), machine(), cluster(), KUBECONFIG, nodes=[reporting]))
    assert len(back) == 1


def test_a_node_that_is_to_be_absent_is_deleted_and_not_made() -> None:
    asked = running(annotations={names.NODE_READY: "Absent"})
    (gone,) = flat(decided(asked, machine(), cluster(), KUBECONFIG, nodes=[joined(running())]))
    assert isinstance(gone, Delete)
    assert (gone.uid, gone.target) == ("node-uid", "ns/c")
    assert decided(asked, machine(), cluster(), KUBECONFIG, nodes=[]).writes == ()


def test_no_node_joins_for_a_machine_that_goes() -> None:
    assert decided(running(), machine(deleting=True), cluster(), KUBECONFIG, nodes=[]).writes == ()


def test_nothing_is_asked_of_a_cluster_that_goes() -> None:
    decision = decided(running(), machine(), cluster(deleting=True), KUBECONFIG, nodes=[])
    assert (decision.writes, decision.observe) == ((), ())


# --- the end ----------------------------------------------------------------------------------------------------


def test_with_its_machine_it_goes_in_one_write() -> None:
    going = running(deleting=True)
    patch = only_patch(decided(going, machine(deleting=True), cluster(), KUBECONFIG, nodes=[joined(running())]))
    assert patch == {"metadata": {"finalizers": []}}


def test_a_machine_that_vanishes_leaves_a_node_that_nobody_hears_of() -> None:
    going = running(deleting=True)
    told, released = flat(decided(going, machine(), cluster(), KUBECONFIG, nodes=[joined(running())]))
    assert isinstance(told, Patch)
    assert {known["status"] for known in told.patch["status"]["conditions"]} == {"Unknown"}
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
    ids=["no Node", "unreachable", "no kubeconfig", "the cluster goes", "all is gone"],
)
def test_nothing_that_is_missing_keeps_it(objects: list[Object], nodes: list[Object] | Unreachable | None) -> None:
    assert only_patch(decided(running(deleting=True), *objects, nodes=nodes)) == {"metadata": {"finalizers": []}}


def test_it_stays_for_as_long_as_its_annotation_says() -> None:
    decision = decided(running(deleting=True, annotations={names.STUCK_DELETION: "true"}), machine(), cluster())
    assert decision.writes == ()
    assert decision.wait is not None
    assert names.STUCK_DELETION in decision.wait.reason


def test_what_never_ran_has_nothing_to_clean_up() -> None:
    assert decided(infra(deleting=True), machine(), cluster()).writes == ()


def test_while_paused_it_says_so_and_does_nothing() -> None:
    resting = infra(annotations={PAUSED: ""})
    told = patched(resting, decided(resting, machine(), cluster()))
    assert condition(told, "Paused")[0] == "True"
    assert "providerID" not in told["spec"]
