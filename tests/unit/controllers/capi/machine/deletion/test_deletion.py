"""Deletion of a Machine: the order of its stages, and when stages are skipped."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, NODE, POD, VOLUME_ATTACHMENT
from herder.api.capi.names import CONTROL_PLANE, NODE_DELETION_STARTED, PRE_DRAIN_HOOK, PRE_TERMINATE_HOOK
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import DeletionStep
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, EffectResult, Patch, Refusal
from tests.support.builders import new_condition, new_definition, new_object, object_reference
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deletion.objects import (
    A_MINUTE_AGO,
    BOOTSTRAP,
    CONTROL_PLANE_KIND,
    INFRA,
    MISSING,
    Workload,
    bootstrap,
    cluster,
    deleting_condition,
    infrastructure,
    legacy_conditions,
    machine,
    node,
    pod,
    reconcile_deletion,
    subscriptions,
)

PRE_DRAIN = {f"{PRE_DRAIN_HOOK}/b": "", f"{PRE_DRAIN_HOOK}/a": ""}
PRE_TERMINATE = {f"{PRE_TERMINATE_HOOK}/etcd": "planner"}
BUSY = Workload([node(volumes=["kubernetes.io/csi/x^1"]), pod("a")])


def test_stages_in_order() -> None:
    """Each of these reconciles has one obstacle fewer than the one before."""
    attached = Workload([node(volumes=["kubernetes.io/csi/x^1"])])
    results = [
        reconcile_deletion(machine(annotations=PRE_DRAIN | PRE_TERMINATE), workload=BUSY),
        reconcile_deletion(machine(annotations=PRE_TERMINATE), workload=BUSY),
        reconcile_deletion(machine(annotations=PRE_TERMINATE), workload=attached),
        reconcile_deletion(machine(annotations=PRE_TERMINATE)),
        reconcile_deletion(machine()),
        reconcile_deletion(machine(), infra=infrastructure(deletionTimestamp=A_MINUTE_AGO)),
        reconcile_deletion(machine(), infra=MISSING),
        reconcile_deletion(machine(), infra=MISSING, boot=bootstrap(deletionTimestamp=A_MINUTE_AGO)),
        reconcile_deletion(machine(), infra=MISSING, boot=MISSING),
        reconcile_deletion(machine(), infra=MISSING, boot=MISSING, workload=Workload()),
    ]
    assert [deleting_condition(step)[0] for step in results] == [
        "WaitingForPreDrainHook",
        "DrainingNode",
        "WaitingForVolumeDetach",
        "WaitingForPreTerminateHook",
        "WaitingForInfrastructureDeletion",
        "WaitingForInfrastructureDeletion",
        "WaitingForBootstrapDeletion",
        "WaitingForBootstrapDeletion",
        "DeletingNode",
        "DeletionCompleted",
    ]
    assert [_deleted(step) for step in results] == [None] * 4 + [INFRA, None, BOOTSTRAP, None, NODE, None]
    assert [step.finished for step in results] == [False] * 9 + [True]
    assert all(step.deleting["status"] == "True" for step in results)


def _deleted(step: DeletionStep) -> object:
    deletes = [write for write in step.decision.writes if isinstance(write, Delete)]
    return deletes[0].ref.kind if deletes else None


def test_last_write_removes_the_finalizer() -> None:
    step = reconcile_deletion(machine(), infra=MISSING, boot=MISSING, workload=Workload())
    (write,) = step.decision.writes
    assert isinstance(write, Patch)
    assert (write.ref.kind, write.patch) == (MACHINE, {"metadata": {"finalizers": []}})
    assert write.resource_version
    assert deleting_condition(step) == ("DeletionCompleted", "Deletion completed")


def test_refusals_of_guards_are_reported() -> None:
    refused = Refusal("some-guard", "the Pod stays")
    draining = deleting_condition(
        reconcile_deletion(
            machine(status={"deletion": {"nodeDrainStartTime": A_MINUTE_AGO}}), workload=BUSY, refused=refused
        )
    )
    assert draining[0] == "DrainingNode"
    assert draining[1].endswith("\n* refused: some-guard: the Pod stays")
    waiting = deleting_condition(reconcile_deletion(machine(annotations=PRE_TERMINATE), refused=refused))
    assert "refused" not in waiting[1]  # nothing is attempted now


def test_pre_drain_hooks_are_listed_in_order() -> None:
    step = reconcile_deletion(machine(annotations=PRE_DRAIN))
    assert deleting_condition(step)[1] == (
        f"Waiting for pre-drain hooks to succeed (hooks: {PRE_DRAIN_HOOK}/a,{PRE_DRAIN_HOOK}/b)"
    )
    assert legacy_conditions(step) == {"PreDrainDeleteHookSucceeded": "False/WaitingExternalHook"}
    assert step.debounce == 0
    assert step.decision.wait is not None


def test_legacy_conditions_report_finished_stages() -> None:
    step = reconcile_deletion(machine(annotations=PRE_TERMINATE))
    assert legacy_conditions(step) == {
        "PreDrainDeleteHookSucceeded": "True/",
        "DrainingSucceeded": "True/",
        "VolumeDetachSucceeded": "True/",
        "PreTerminateDeleteHookSucceeded": "False/WaitingExternalHook",
    }


@pytest.mark.parametrize(
    ("infra", "boot", "reason", "message"),
    [
        (infrastructure(), MISSING, "WaitingForInfrastructureDeletion", "Waiting for Server to be deleted"),
        (MISSING, bootstrap(), "WaitingForBootstrapDeletion", "Waiting for Script to be deleted"),
        (External(problem="no label"), MISSING, "InternalError", "Failed to delete Server: no label"),
        (MISSING, External(problem="no label"), "InternalError", "Failed to delete Script: no label"),
    ],
)
def test_provider_objects_are_deleted_first(infra: External, boot: External, reason: str, message: str) -> None:
    step = reconcile_deletion(machine(), infra=infra, boot=boot, workload=Workload())
    assert deleting_condition(step) == (reason, message)
    assert step.decision.wait is not None


def test_machine_without_a_bootstrap_object_does_not_wait_for_one() -> None:
    machine_object = machine()
    machine_object["spec"]["bootstrap"] = {"dataSecretName": "mine"}
    unreferenced = External(problem="the reference names no object")
    assert reconcile_deletion(machine_object, infra=MISSING, boot=unreferenced, workload=Workload()).finished


# --- when Node operations run ----------------------------------------------------------------------------------------

CONTROL_PLANE_REFERENCE = {"controlPlaneRef": object_reference(CONTROL_PLANE_KIND, "b")}
CONTROL_PLANE_DEFINITION = new_definition(CONTROL_PLANE_KIND)


def control_plane_object(*, external: bool = False, **metadata: str) -> Object:
    return new_object(
        CONTROL_PLANE_KIND, "b", "ns", metadata=metadata, spec={}, status={"externalManagedControlPlane": external}
    )


CONTROL_PLANE_MACHINE = machine("cp", labels={CONTROL_PLANE: ""}, deleting=False)
DELETING_CONTROL_PLANE_MACHINE = machine("cp", labels={CONTROL_PLANE: ""})
CONTROL_PLANE_MACHINE_OF_ANOTHER_CLUSTER = {
    **CONTROL_PLANE_MACHINE,
    "spec": {**CONTROL_PLANE_MACHINE["spec"], "clusterName": "d"},
}
WORKER_MACHINE = machine("w", deleting=False)


@pytest.mark.parametrize(
    ("machine_object", "in_cluster", "others", "expected"),
    [
        pytest.param(machine(), cluster(), [CONTROL_PLANE_MACHINE], True, id="default"),
        pytest.param(
            machine(),
            cluster(deletionTimestamp=A_MINUTE_AGO),
            [CONTROL_PLANE_MACHINE],
            False,
            id="the Cluster is being deleted",
        ),
        pytest.param(machine(node=""), cluster(), [CONTROL_PLANE_MACHINE], True, id="found by provider ID"),
        pytest.param(
            machine(node="", provider_id="x://2"),
            cluster(),
            [CONTROL_PLANE_MACHINE],
            False,
            id="no Node has its provider ID",
        ),
        pytest.param(machine(node="", provider_id=""), cluster(), [CONTROL_PLANE_MACHINE], False, id="no provider ID"),
        pytest.param(machine(), cluster(), [WORKER_MACHINE], False, id="no control plane Machine is left"),
        pytest.param(
            machine(),
            cluster(),
            [DELETING_CONTROL_PLANE_MACHINE],
            False,
            id="the last control plane Machine is being deleted",
        ),
        pytest.param(
            machine(),
            cluster(),
            [CONTROL_PLANE_MACHINE_OF_ANOTHER_CLUSTER],
            False,
            id="another Cluster's control plane does not count",
        ),
        pytest.param(
            machine(),
            cluster(spec=CONTROL_PLANE_REFERENCE),
            [CONTROL_PLANE_DEFINITION, control_plane_object(), CONTROL_PLANE_MACHINE],
            True,
            id="control plane exists",
        ),
        pytest.param(
            machine(),
            cluster(spec=CONTROL_PLANE_REFERENCE),
            [CONTROL_PLANE_DEFINITION, control_plane_object(deletionTimestamp=A_MINUTE_AGO), CONTROL_PLANE_MACHINE],
            False,
            id="control plane is being deleted",
        ),
        pytest.param(
            machine(),
            cluster(spec=CONTROL_PLANE_REFERENCE),
            [CONTROL_PLANE_DEFINITION, control_plane_object(external=True)],
            True,
            id="external control plane: it has no Machines",
        ),
        pytest.param(
            machine(),
            cluster(spec=CONTROL_PLANE_REFERENCE),
            [CONTROL_PLANE_DEFINITION, CONTROL_PLANE_MACHINE],
            True,
            id="control plane object missing",
        ),
        pytest.param(
            machine(),
            cluster(spec=CONTROL_PLANE_REFERENCE),
            [CONTROL_PLANE_MACHINE],
            True,
            id="control plane kind missing",
        ),
    ],
)
def test_node_operations(machine_object: Object, in_cluster: Object, others: list[Object], expected: bool) -> None:
    workload = Workload([node(cordoned=False), pod("a")])
    step = reconcile_deletion(
        {**machine_object, "metadata": {**machine_object["metadata"], "annotations": dict(PRE_DRAIN)}},
        in_cluster=in_cluster,
        others=others,
        dynamic_kinds=[CONTROL_PLANE_KIND],
        workload=workload,
    )
    assert deleting_condition(step)[0] == ("WaitingForPreDrainHook" if expected else "WaitingForInfrastructureDeletion")


@pytest.mark.parametrize(
    ("hooks", "busy", "cluster_deleting"), list(itertools.product([True, False], [True, False], [True, False]))
)
def test_pre_terminate_hooks_block_even_when_the_cluster_is_deleting(
    hooks: bool, busy: bool, cluster_deleting: bool
) -> None:
    in_cluster = cluster(deletionTimestamp=A_MINUTE_AGO) if cluster_deleting else cluster()
    machine_object = machine(annotations=PRE_TERMINATE if hooks else {})
    step = reconcile_deletion(machine_object, in_cluster=in_cluster, workload=BUSY if busy else None)
    if busy and not cluster_deleting:
        assert deleting_condition(step)[0] == "DrainingNode"
    else:
        assert deleting_condition(step)[0] == (
            "WaitingForPreTerminateHook" if hooks else "WaitingForInfrastructureDeletion"
        )


def test_deletion_waits_until_nodes_are_synced() -> None:
    step = reconcile_deletion(machine(), workload=Workload(unmatched=[NODE]))
    assert deleting_condition(step) == ("Deleting", "Deletion started")
    assert not step.decision.writes
    assert [subscription.focus for subscription in subscriptions(step)] == [("name", "n")]


def test_subscriptions_are_kept_while_later_stages_run() -> None:
    for hook in ({}, PRE_TERMINATE):
        step = reconcile_deletion(machine(annotations=hook))
        assert [subscription.kind for subscription in subscriptions(step)] == [NODE, POD, VOLUME_ATTACHMENT]
    deleting_infrastructure = reconcile_deletion(machine(), infra=infrastructure(deletionTimestamp=A_MINUTE_AGO))
    assert [subscription.kind for subscription in subscriptions(deleting_infrastructure)] == [NODE]


def test_node_found_by_provider_id_is_returned_for_the_status() -> None:
    step = reconcile_deletion(machine(node=""))
    assert step.node == "n"
    assert step.debounce == 0
    assert subscriptions(step)[0].focus == ("providerID", "x://1")


def test_provider_id_of_the_infrastructure_object_is_used() -> None:
    infra = External(new_object(INFRA, "m", "ns", spec={"providerID": "x://1"}), INFRA)
    assert reconcile_deletion(machine(node="", provider_id=""), infra=infra).node == "n"


def test_unreachable_cluster_does_not_block_a_machine_without_a_node() -> None:
    step = reconcile_deletion(machine(node=""), workload=Workload(reason="no route to host"))
    assert deleting_condition(step)[0] == "WaitingForInfrastructureDeletion"


def test_unknown_node_of_an_unreachable_cluster_blocks_until_the_timeout() -> None:
    """A manager may have crashed after it observed the Node and before it wrote nodeRef."""
    step = reconcile_node_deletion(machine(node="", limits=TEN_SECONDS), Workload(reason="no route to host"))
    assert not step.finished
    reason, message = deleting_condition(step)
    assert (reason, message.partition(":")[0]) == ("DeletingNode", "Error deleting Node with provider ID x")
    assert step.decision.wake_at is not None, "deletion of the Node is given up at its timeout"
    found = reconcile_node_deletion(machine(node="", limits=TEN_SECONDS), Workload([node()]))
    assert [write.ref.name for write in found.decision.writes if isinstance(write, Delete)] == ["n"]


@pytest.mark.parametrize(
    ("list_result", "finished", "message"),
    [
        (None, False, "Checking that no Node is left"),
        (EffectResult([]), True, "Deletion completed"),
        (EffectResult(["n"]), False, "Node n is not visible in the watch yet"),
        (EffectResult(error="no route to host"), False, "Nodes not listed: no route to host"),
    ],
    ids=["not listed yet", "no Node", "the watch is behind", "no answer"],
)
def test_absence_of_a_node_is_confirmed_by_a_list_request(
    list_result: EffectResult | None, finished: bool, message: str
) -> None:
    """A Node may have registered while its Machine was deleted, and the watch that would show it may be broken."""
    key = ("find", "Machine-m", str(int(NOW.timestamp()) // 5))
    step = reconcile_deletion(
        machine(node="", limits=TEN_SECONDS),
        infra=MISSING,
        boot=MISSING,
        workload=Workload([]),
        results={key: list_result} if list_result else {},
    )
    assert (step.finished, deleting_condition(step)[1]) == (finished, message)
    if list_result is None:
        (effect,) = step.decision.effects
        assert (effect.performer, effect.key, effect.arguments["value"]) == ("find", key, "x://1")


def machine_without_provider_id(**options: Any) -> Object:
    """A Machine of a provisioned cluster whose provider ID is not recorded yet."""
    machine_object = machine(node="", provider_id="", limits=TEN_SECONDS, **options)
    reference = {**machine_object["spec"]["bootstrap"]["configRef"], "apiGroup": "rke.cattle.io"}
    return {**machine_object, "spec": {**machine_object["spec"], "bootstrap": {"configRef": reference}}}


INITIALIZED = cluster() | {"status": {"conditions": [new_condition("ControlPlaneInitialized")]}}
OWN_NODE = node(labels={"rke.cattle.io/machine": "Machine-m"})


def test_node_labelled_with_its_machine_is_deleted_without_a_provider_id() -> None:
    """A server may have joined, and its etcd member may have been removed, before its Node was observed."""
    first = reconcile_deletion(machine_without_provider_id(), in_cluster=INITIALIZED, workload=Workload([OWN_NODE]))
    assert (first.node, deleting_condition(first)[0]) == ("n", "WaitingForInfrastructureDeletion")
    last = reconcile_node_deletion(machine_without_provider_id(), Workload([OWN_NODE]), in_cluster=INITIALIZED)
    assert [write.ref.name for write in last.decision.writes if isinstance(write, Delete)] == ["n"]


def test_absence_of_a_labelled_node_is_confirmed_by_a_list_request() -> None:
    step = reconcile_node_deletion(machine_without_provider_id(), Workload([]), in_cluster=INITIALIZED)
    (effect,) = step.decision.effects
    assert effect.arguments["field"] == ("metadata", "labels", "rke.cattle.io/machine")
    assert effect.arguments["value"] == "Machine-m"


def test_uninitialized_cluster_has_no_node_to_delete() -> None:
    assert reconcile_node_deletion(machine_without_provider_id(), Workload([OWN_NODE]), in_cluster=cluster()).finished


def test_node_of_the_same_name_with_another_provider_id_is_kept() -> None:
    other_node = node(cordoned=False)
    other_node["spec"]["providerID"] = "x://9"
    step = reconcile_deletion(machine(), infra=MISSING, boot=MISSING, workload=Workload([other_node, pod("a")]))
    assert step.finished


def test_node_labelled_with_another_machine_is_kept() -> None:
    """A worker without a Node may claim the provider ID of a server."""
    other_node = node(labels={"rke.cattle.io/machine": "uid-of-a-server"})
    claimant = machine()
    claimant["status"].pop("nodeRef")
    claimant["spec"]["providerID"] = other_node["spec"]["providerID"]
    step = reconcile_node_deletion(claimant, Workload([other_node, pod("a")]), in_cluster=INITIALIZED)
    assert step.finished
    assert not [write for write in step.decision.writes if write.target]


# --- deletion of the Node --------------------------------------------------------------------------------------------


def reconcile_node_deletion(
    machine_object: Object, workload: Workload, *, in_cluster: Object | None = None
) -> DeletionStep:
    return reconcile_deletion(machine_object, in_cluster=in_cluster, infra=MISSING, boot=MISSING, workload=workload)


TEN_SECONDS = {"nodeDeletionTimeoutSeconds": 10}


def node_deletion_started(seconds_ago: int) -> dict[str, str]:
    return {NODE_DELETION_STARTED: f"2026-01-01T11:59:{60 - seconds_ago:02}Z"}


@pytest.mark.parametrize(
    ("paused", "finished"),
    [
        ({"status": "False", "lastTransitionTime": "2026-01-01T11:00:00Z"}, True),
        ({"status": "False", "lastTransitionTime": "2026-01-01T11:59:55Z"}, False),
        ({"status": "True", "lastTransitionTime": "2026-01-01T11:59:00Z"}, False),
    ],
    ids=["long before", "ended five seconds ago", "ends in this pass"],
)
def test_node_deletion_timeout_does_not_run_while_paused(paused: Object, finished: bool) -> None:
    conditions = [{"type": "Paused", "reason": "r", **paused}]
    machine_object = machine(
        annotations=node_deletion_started(15), limits=TEN_SECONDS, status={"conditions": conditions}
    )
    assert reconcile_node_deletion(machine_object, Workload([node()])).finished is finished


def test_node_is_deleted_and_its_start_time_is_debounced() -> None:
    step = reconcile_node_deletion(machine(limits=TEN_SECONDS), Workload([node()]))
    start_patch, delete = step.decision.writes
    assert isinstance(start_patch, Patch)
    assert start_patch.patch == {"metadata": {"annotations": {NODE_DELETION_STARTED: "2026-01-01T12:00:00Z"}}}
    assert start_patch.debounce > 0
    assert isinstance(delete, Delete)
    assert (delete.ref.kind, delete.ref.name, delete.uid, delete.target) == (NODE, "n", "Node-n", "ns/c")
    assert deleting_condition(step) == ("DeletingNode", "Deleting Node n")
    assert step.decision.wake_at is not None


def test_deleting_node_is_not_waited_for() -> None:
    assert reconcile_node_deletion(machine(), Workload([node(deletionTimestamp=A_MINUTE_AGO)])).finished


@pytest.mark.parametrize(
    ("limits", "annotations", "expected"),
    [
        pytest.param(TEN_SECONDS, {}, False, id="first attempt, regardless of the deletionTimestamp"),
        pytest.param(TEN_SECONDS, node_deletion_started(9), False, id="before the timeout"),
        pytest.param(TEN_SECONDS, node_deletion_started(10), True, id="after the timeout"),
        pytest.param({"nodeDeletionTimeoutSeconds": 0}, node_deletion_started(60), False, id="0: never gives up"),
        pytest.param({}, node_deletion_started(60), False, id="no limit: never gives up"),
    ],
)
@pytest.mark.parametrize("workload", [Workload([node()]), Workload(reason="no route to host")])
def test_node_deletion_timeout_counts_from_its_first_attempt(
    limits: Object, annotations: dict[str, str], expected: bool, workload: Workload
) -> None:
    machine_object = machine(limits=limits, annotations=annotations)
    assert machine_object["metadata"]["deletionTimestamp"] == A_MINUTE_AGO  # a minute ago, which exceeds the limit
    step = reconcile_node_deletion(machine_object, workload)
    assert step.finished is expected
    if not expected:
        assert deleting_condition(step)[0] == "DeletingNode"


def test_unreachable_cluster_is_reported_and_the_start_time_is_written_at_once() -> None:
    step = reconcile_node_deletion(machine(limits=TEN_SECONDS), Workload(reason="no route to host"))
    (start_patch,) = step.decision.writes
    assert isinstance(start_patch, Patch)
    assert start_patch.debounce == 0
    assert (
        deleting_condition(step)[1] == "Error deleting Node n: the workload cluster cannot be reached: no route to host"
    )
    assert legacy_conditions(step)["NodeHealthy"] == "False/DeletionFailed"
    assert step.decision.wake_at is not None
