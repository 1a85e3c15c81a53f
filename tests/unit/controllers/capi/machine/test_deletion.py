"""A Machine's deletion in order, and what is left out of it when."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION, MACHINE, NODE, POD, VOLUME_ATTACHMENT
from herder.api.capi.names import CONTROL_PLANE, NODE_DELETION_STARTED, PRE_DRAIN_HOOK, PRE_TERMINATE_HOOK
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import DeletionStep
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Delete, EffectResult, Patch, Refusal
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deleting import (
    BEFORE,
    BOOTSTRAP,
    CONTROL_PLANES,
    INFRA,
    MISSING,
    Workload,
    bootstrap,
    cluster,
    deletion_of,
    infrastructure,
    legacy_of,
    machine,
    made,
    node,
    pod,
    subscriptions,
    told,
)

PRE_DRAIN = {f"{PRE_DRAIN_HOOK}/b": "", f"{PRE_DRAIN_HOOK}/a": ""}
PRE_TERMINATE = {f"{PRE_TERMINATE_HOOK}/etcd": "planner"}
BUSY = Workload([node(volumes=["kubernetes.io/csi/x^1"]), pod("a")])


def test_every_stage_in_turn() -> None:
    """Each of these passes has one obstacle fewer than the one before."""
    attached = Workload([node(volumes=["kubernetes.io/csi/x^1"])])
    passes = [
        deletion_of(machine(annotations=PRE_DRAIN | PRE_TERMINATE), workload=BUSY),
        deletion_of(machine(annotations=PRE_TERMINATE), workload=BUSY),
        deletion_of(machine(annotations=PRE_TERMINATE), workload=attached),
        deletion_of(machine(annotations=PRE_TERMINATE)),
        deletion_of(machine()),
        deletion_of(machine(), infra=infrastructure(deletionTimestamp=BEFORE)),
        deletion_of(machine(), infra=MISSING),
        deletion_of(machine(), infra=MISSING, boot=bootstrap(deletionTimestamp=BEFORE)),
        deletion_of(machine(), infra=MISSING, boot=MISSING),
        deletion_of(machine(), infra=MISSING, boot=MISSING, workload=Workload()),
    ]
    assert [told(step)[0] for step in passes] == [
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
    assert [_deleted(step) for step in passes] == [None] * 4 + [INFRA, None, BOOTSTRAP, None, NODE, None]
    assert [step.finished for step in passes] == [False] * 9 + [True]
    assert all(step.deleting["status"] == "True" for step in passes)


def _deleted(step: DeletionStep) -> object:
    deletes = [write for write in step.decision.writes if isinstance(write, Delete)]
    return deletes[0].ref.kind if deletes else None


def test_at_the_end_the_finalizer_goes_and_nothing_else_is_written() -> None:
    step = deletion_of(machine(), infra=MISSING, boot=MISSING, workload=Workload())
    (write,) = step.decision.writes
    assert isinstance(write, Patch)
    assert (write.ref.kind, write.patch) == (MACHINE, {"metadata": {"finalizers": []}})
    assert write.resource_version
    assert told(step) == ("DeletionCompleted", "Deletion completed")


def test_what_a_guard_refuses_is_told() -> None:
    refused = Refusal("some-guard", "the Pod stays")
    drained = told(
        deletion_of(machine(status={"deletion": {"nodeDrainStartTime": BEFORE}}), workload=BUSY, refused=refused)
    )
    assert drained[0] == "DrainingNode"
    assert drained[1].endswith("\n* refused: some-guard: the Pod stays")
    waits = told(deletion_of(machine(annotations=PRE_TERMINATE), refused=refused))
    assert "refused" not in waits[1]  # nothing is tried now


def test_hooks_are_named_in_order() -> None:
    step = deletion_of(machine(annotations=PRE_DRAIN))
    assert told(step)[1] == (f"Waiting for pre-drain hooks to succeed (hooks: {PRE_DRAIN_HOOK}/a,{PRE_DRAIN_HOOK}/b)")
    assert legacy_of(step) == {"PreDrainDeleteHookSucceeded": "False/WaitingExternalHook"}
    assert step.debounce == 0
    assert step.decision.wait is not None


def test_the_legacy_conditions_say_what_is_over() -> None:
    step = deletion_of(machine(annotations=PRE_TERMINATE))
    assert legacy_of(step) == {
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
def test_what_a_machine_is_made_of_goes_first(infra: External, boot: External, reason: str, message: str) -> None:
    step = deletion_of(machine(), infra=infra, boot=boot, workload=Workload())
    assert told(step) == (reason, message)
    assert step.decision.wait is not None


def test_a_machine_without_a_bootstrap_object_does_not_wait_for_one() -> None:
    given = machine()
    given["spec"]["bootstrap"] = {"dataSecretName": "mine"}
    unreferenced = External(problem="the reference names no object")
    assert deletion_of(given, infra=MISSING, boot=unreferenced, workload=Workload()).finished


# --- whether anything is done to the Node -----------------------------------------------------------------------

BRAIN_REFERENCE = {"controlPlaneRef": {"apiGroup": CONTROL_PLANES.group, "kind": CONTROL_PLANES.kind, "name": "b"}}
BRAIN_DEFINITION = made(DEFINITION, "brains.controlplane.example", meta={"labels": {"cluster.x-k8s.io/v1beta2": "v1"}})


def brain(*, external: bool = False, **meta: str) -> Object:
    return made(CONTROL_PLANES, "b", "ns", meta=meta, spec={}, status={"externalManagedControlPlane": external})


CP = machine("cp", labels={CONTROL_PLANE: ""}, deleting=False)
CP_GOING = machine("cp", labels={CONTROL_PLANE: ""})
CP_ELSEWHERE = {**CP, "spec": {**CP["spec"], "clusterName": "d"}}
WORKER = machine("w", deleting=False)


@pytest.mark.parametrize(
    ("given", "of", "others", "touched"),
    [
        pytest.param(machine(), cluster(), [CP], True, id="the usual"),
        pytest.param(machine(), cluster(deletionTimestamp=BEFORE), [CP], False, id="the Cluster is being deleted"),
        pytest.param(machine(node=""), cluster(), [CP], True, id="found by provider ID"),
        pytest.param(machine(node="", provider_id="x://2"), cluster(), [CP], False, id="no Node has its provider ID"),
        pytest.param(machine(node="", provider_id=""), cluster(), [CP], False, id="it never got as far"),
        pytest.param(machine(), cluster(), [WORKER], False, id="no control plane Machine is left"),
        pytest.param(machine(), cluster(), [CP_GOING], False, id="the last control plane Machine goes too"),
        pytest.param(machine(), cluster(), [CP_ELSEWHERE], False, id="another Cluster's control plane does not count"),
        pytest.param(
            machine(), cluster(spec=BRAIN_REFERENCE), [BRAIN_DEFINITION, brain(), CP], True, id="control plane there"
        ),
        pytest.param(
            machine(),
            cluster(spec=BRAIN_REFERENCE),
            [BRAIN_DEFINITION, brain(deletionTimestamp=BEFORE), CP],
            False,
            id="control plane going",
        ),
        pytest.param(
            machine(),
            cluster(spec=BRAIN_REFERENCE),
            [BRAIN_DEFINITION, brain(external=True)],
            True,
            id="external control plane: it has no Machines",
        ),
        pytest.param(
            machine(), cluster(spec=BRAIN_REFERENCE), [BRAIN_DEFINITION, CP], True, id="control plane object missing"
        ),
        pytest.param(machine(), cluster(spec=BRAIN_REFERENCE), [CP], True, id="control plane kind missing"),
    ],
)
def test_node_operations(given: Object, of: Object, others: list[Object], touched: bool) -> None:
    workload = Workload([node(cordoned=False), pod("a")])
    step = deletion_of(
        {**given, "metadata": {**given["metadata"], "annotations": dict(PRE_DRAIN)}},
        of=of,
        others=others,
        followed=[CONTROL_PLANES],
        workload=workload,
    )
    assert told(step)[0] == ("WaitingForPreDrainHook" if touched else "WaitingForInfrastructureDeletion")


@pytest.mark.parametrize(
    ("hooks", "busy", "cluster_goes"), list(itertools.product([True, False], [True, False], [True, False]))
)
def test_pre_terminate_hooks_hold_also_when_the_cluster_goes(hooks: bool, busy: bool, cluster_goes: bool) -> None:
    of = cluster(deletionTimestamp=BEFORE) if cluster_goes else cluster()
    given = machine(annotations=PRE_TERMINATE if hooks else {})
    step = deletion_of(given, of=of, workload=BUSY if busy else None)
    if busy and not cluster_goes:
        assert told(step)[0] == "DrainingNode"
    else:
        assert told(step)[0] == ("WaitingForPreTerminateHook" if hooks else "WaitingForInfrastructureDeletion")


def test_nothing_happens_before_the_node_has_been_looked_for() -> None:
    step = deletion_of(machine(), workload=Workload(unmatched=[NODE]))
    assert told(step) == ("Deleting", "Deletion started")
    assert not step.decision.writes
    assert [subscription.focus for subscription in subscriptions(step)] == [("name", "n")]


def test_what_showed_that_a_stage_is_over_is_looked_at_further() -> None:
    for hook in ({}, PRE_TERMINATE):
        step = deletion_of(machine(annotations=hook))
        assert [subscription.kind for subscription in subscriptions(step)] == [NODE, POD, VOLUME_ATTACHMENT]
    terminating = deletion_of(machine(), infra=infrastructure(deletionTimestamp=BEFORE))
    assert [subscription.kind for subscription in subscriptions(terminating)] == [NODE]


def test_a_node_that_was_found_by_provider_id_is_told_for_the_status() -> None:
    step = deletion_of(machine(node=""))
    assert step.node == "n"
    assert step.debounce == 0
    assert subscriptions(step)[0].focus == ("providerID", "x://1")


def test_a_provider_id_that_only_the_infrastructure_knows_is_used() -> None:
    infra = External(made(INFRA, "m", "ns", spec={"providerID": "x://1"}), INFRA)
    assert deletion_of(machine(node="", provider_id=""), infra=infra).node == "n"


def test_without_a_known_node_an_unreachable_cluster_is_no_obstacle() -> None:
    step = deletion_of(machine(node=""), workload=Workload(reason="no route to host"))
    assert told(step)[0] == "WaitingForInfrastructureDeletion"


def test_a_node_that_was_never_seen_may_be_there_when_a_silent_cluster_answers_again() -> None:
    """A manager can have died between the first look at a Node and its name in the Machine."""
    step = at_the_end(machine(node="", limits=TEN), Workload(reason="no route to host"))
    assert not step.finished
    reason, message = told(step)
    assert (reason, message.partition(":")[0]) == ("DeletingNode", "Error deleting Node with provider ID x")
    assert step.decision.wake_at is not None, "it is given up when the time for it ran out"
    found = at_the_end(machine(node="", limits=TEN), Workload([node()]))
    assert [write.ref.name for write in found.decision.writes if isinstance(write, Delete)] == ["n"]


@pytest.mark.parametrize(
    ("answer", "finished", "message"),
    [
        (None, False, "Checking that no Node is left"),
        (EffectResult([]), True, "Deletion completed"),
        (EffectResult(["n"]), False, "Node n is not visible in the watch yet"),
        (EffectResult(error="no route to host"), False, "Nodes not listed: no route to host"),
    ],
    ids=["not asked yet", "it has none", "the watch is behind", "no answer"],
)
def test_that_a_machine_left_no_node_is_asked_of_the_cluster_itself(
    answer: EffectResult | None, finished: bool, message: str
) -> None:
    """A Node may have come while the machine went, and the watch that would have told of it be broken."""
    key = ("find", "Machine-m", str(int(NOW.timestamp()) // 5))
    step = deletion_of(
        machine(node="", limits=TEN),
        infra=MISSING,
        boot=MISSING,
        workload=Workload([]),
        results={key: answer} if answer else {},
    )
    assert (step.finished, told(step)[1]) == (finished, message)
    if answer is None:
        (question,) = step.decision.effects
        assert (question.performer, question.key, question.arguments["value"]) == ("find", key, "x://1")


def provisioned(**given: Any) -> Object:
    """A Machine of a cluster that was provisioned here, before its provider ID is known."""
    known = machine(node="", provider_id="", limits=TEN, **given)
    reference = {**known["spec"]["bootstrap"]["configRef"], "apiGroup": "rke.cattle.io"}
    return {**known, "spec": {**known["spec"], "bootstrap": {"configRef": reference}}}


INITIALIZED = cluster() | {"status": {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]}}
OWN_NODE = node(labels={"rke.cattle.io/machine": "Machine-m"})


def test_a_node_that_says_whose_it_is_goes_though_its_provider_id_was_never_written_down() -> None:
    """A server may have joined, and its etcd member have left, before anybody has looked at its Node."""
    begun = deletion_of(provisioned(), of=INITIALIZED, workload=Workload([OWN_NODE]))
    assert (begun.node, told(begun)[0]) == ("n", "WaitingForInfrastructureDeletion")
    ends = at_the_end(provisioned(), Workload([OWN_NODE]), of=INITIALIZED)
    assert [write.ref.name for write in ends.decision.writes if isinstance(write, Delete)] == ["n"]


def test_that_there_is_no_such_node_is_asked_of_the_cluster_itself_too() -> None:
    step = at_the_end(provisioned(), Workload([]), of=INITIALIZED)
    (question,) = step.decision.effects
    assert question.arguments["field"] == ("metadata", "labels", "rke.cattle.io/machine")
    assert question.arguments["value"] == "Machine-m"


def test_a_cluster_that_has_never_answered_has_no_node_of_it() -> None:
    assert at_the_end(provisioned(), Workload([OWN_NODE]), of=cluster()).finished


def test_a_node_of_the_same_name_that_belongs_to_another_machine_is_left_alone() -> None:
    theirs = node(cordoned=False)
    theirs["spec"]["providerID"] = "x://9"
    step = deletion_of(machine(), infra=MISSING, boot=MISSING, workload=Workload([theirs, pod("a")]))
    assert step.finished


def test_a_node_of_another_machine_with_its_provider_id_is_left_alone() -> None:
    """A worker that never got a Node of its own claims the provider ID of a server."""
    theirs = node(labels={"rke.cattle.io/machine": "uid-of-a-server"})
    claimant = machine()
    claimant["status"].pop("nodeRef")
    claimant["spec"]["providerID"] = theirs["spec"]["providerID"]
    step = at_the_end(claimant, Workload([theirs, pod("a")]), of=INITIALIZED)
    assert step.finished
    assert not [write for write in step.decision.writes if write.target]


# --- the end of the Node ----------------------------------------------------------------------------------------


def at_the_end(given: Object, workload: Workload, *, of: Object | None = None) -> DeletionStep:
    return deletion_of(given, of=of, infra=MISSING, boot=MISSING, workload=workload)


TEN = {"nodeDeletionTimeoutSeconds": 10}


def started(seconds_ago: int) -> dict[str, str]:
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
def test_a_pause_stops_the_time_that_a_node_is_given(paused: Object, finished: bool) -> None:
    conditions = [{"type": "Paused", "reason": "r", **paused}]
    given = machine(annotations=started(15), limits=TEN, status={"conditions": conditions})
    assert at_the_end(given, Workload([node()])).finished is finished


def test_the_node_that_was_seen_is_deleted_and_the_clock_costs_nothing_if_that_works() -> None:
    step = at_the_end(machine(limits=TEN), Workload([node()]))
    clock, delete = step.decision.writes
    assert isinstance(clock, Patch)
    assert clock.patch == {"metadata": {"annotations": {NODE_DELETION_STARTED: "2026-01-01T12:00:00Z"}}}
    assert clock.debounce > 0
    assert isinstance(delete, Delete)
    assert (delete.ref.kind, delete.ref.name, delete.uid, delete.target) == (NODE, "n", "Node-n", "ns/c")
    assert told(step) == ("DeletingNode", "Deleting Node n")
    assert step.decision.wake_at is not None


def test_a_node_that_is_being_deleted_is_not_waited_for() -> None:
    assert at_the_end(machine(), Workload([node(deletionTimestamp=BEFORE)])).finished


@pytest.mark.parametrize(
    ("limits", "annotations", "gives_up"),
    [
        pytest.param(TEN, {}, False, id="the first try, however long ago the deletion began"),
        pytest.param(TEN, started(9), False, id="still in time"),
        pytest.param(TEN, started(10), True, id="out of time"),
        pytest.param({"nodeDeletionTimeoutSeconds": 0}, started(60), False, id="0: never gives up"),
        pytest.param({}, started(60), False, id="no limit: never gives up"),
    ],
)
@pytest.mark.parametrize("workload", [Workload([node()]), Workload(reason="no route to host")])
def test_deleting_the_node_has_its_own_clock(
    limits: Object, annotations: dict[str, str], gives_up: bool, workload: Workload
) -> None:
    given = machine(limits=limits, annotations=annotations)
    assert given["metadata"]["deletionTimestamp"] == BEFORE  # a minute ago: longer than the limit
    step = at_the_end(given, workload)
    assert step.finished is gives_up
    if not gives_up:
        assert told(step)[0] == "DeletingNode"


def test_an_unreachable_cluster_starts_the_clock_at_once_and_is_named() -> None:
    step = at_the_end(machine(limits=TEN), Workload(reason="no route to host"))
    (clock,) = step.decision.writes
    assert isinstance(clock, Patch)
    assert clock.debounce == 0
    assert told(step)[1] == "Error deleting Node n: the workload cluster cannot be reached: no route to host"
    assert legacy_of(step)["NodeHealthy"] == "False/DeletionFailed"
    assert step.decision.wake_at is not None
