"""What a Machine tells its Node: which labels, annotations and taints go over, leave again, or are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.settings import MACHINE_TAINT_PROPAGATION, SYNC_MACHINE_ANNOTATIONS, SYNC_MACHINE_LABELS
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from tests.unit.controllers.capi.machine.stage import (
    WORKLOAD,
    Stage,
    deployment,
    machine,
    machine_set,
    node,
    patches,
    provisioned,
    running,
)

OURS = "cluster.x-k8s.io/"
UNINITIALIZED = {"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}
OUTDATED = {"key": "node.cluster.x-k8s.io/outdated-revision", "effect": "PreferNoSchedule"}
FOREIGN = {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}


def synced(stage: Stage) -> Object:
    """The Node after the passes that were needed."""
    stage.settle()
    assert isinstance(stage.nodes, list)
    return stage.nodes[0]


def to_node(stage: Stage) -> list[Patch]:
    return [write for write in patches(stage.decide()) if write.target == WORKLOAD]


def of(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    return machine(spec=spec, metadata={"labels": labels or {}, "annotations": annotations or {}})


def test_the_node_learns_which_machine_it_is() -> None:
    annotations = synced(running())["metadata"]["annotations"]
    assert annotations == {
        f"{OURS}cluster-name": "north",
        f"{OURS}cluster-namespace": "farm",
        f"{OURS}machine": "ewe",
        f"{OURS}owner-kind": "MachineSet",
        f"{OURS}owner-name": "wool",
        f"{OURS}labels-from-machine": "",
        f"{OURS}annotations-from-machine": "",
    }


def test_all_goes_over_in_one_patch_and_then_no_more() -> None:
    stage = running(
        machine=of({"node-role.kubernetes.io/worker": ""}, {"node.cluster.x-k8s.io/a": "1"}),
        nodes=[node(spec={"taints": [UNINITIALIZED, FOREIGN]})],
    )
    (write,) = to_node(stage)
    assert set(write.patch) == {"metadata", "spec"}
    assert write.resource_version == "77"  # the list of taints has other writers
    stage.settle()
    assert to_node(stage) == []


def test_a_patch_without_taints_need_not_fail_for_changes_elsewhere() -> None:
    (write,) = to_node(running())
    assert write.resource_version == ""


@pytest.mark.parametrize(
    ("label", "goes"),
    [
        ("node-role.kubernetes.io/worker", True),
        ("sub.node-role.kubernetes.io/worker", False),
        ("node-restriction.kubernetes.io/a", True),
        ("sub.node-restriction.kubernetes.io/a", True),
        ("node.cluster.x-k8s.io/a", True),
        ("sub.node.cluster.x-k8s.io/a", True),
        ("notnode.cluster.x-k8s.io/a", False),
        ("example.com/shed", False),
        ("extra.example.com/shed", True),
    ],
)
def test_which_labels_go_over(label: str, goes: bool) -> None:
    stage = running(machine=of({label: "x"}), settings={SYNC_MACHINE_LABELS: r"^extra\.example\.com/, other"})
    labels = synced(stage)["metadata"].get("labels", {})
    assert labels == ({label: "x"} if goes else {})


@pytest.mark.parametrize(
    ("annotation", "goes"),
    [
        ("node.cluster.x-k8s.io/a", True),
        ("sub.node.cluster.x-k8s.io/a", True),
        ("node-role.kubernetes.io/a", False),
        ("example.com/a", False),
        ("extra.example.com/a", True),
    ],
)
def test_which_annotations_go_over(annotation: str, goes: bool) -> None:
    settings = {SYNC_MACHINE_ANNOTATIONS: r"^extra\.example\.com/"}
    annotations = synced(running(machine=of({}, {annotation: "x"}), settings=settings))["metadata"]["annotations"]
    assert (annotations.get(annotation) == "x") is goes
    assert annotations[f"{OURS}annotations-from-machine"] == (annotation if goes else "")


def test_what_leaves_the_machine_leaves_the_node_and_what_others_put_there_stays() -> None:
    foreign = {"labels": {"example.com/rack": "7"}, "annotations": {"example.com/note": "mine"}}
    keys = {"node.cluster.x-k8s.io/a": "1", "node.cluster.x-k8s.io/b": "2"}
    stage = running(machine=of(keys, keys), nodes=[node(metadata=foreign)])
    before = synced(stage)["metadata"]
    assert before["labels"] == foreign["labels"] | keys
    assert before["annotations"][f"{OURS}labels-from-machine"] == ",".join(keys)

    kept = {"node.cluster.x-k8s.io/b": "3"}
    stage.machine = {**stage.machine, "metadata": {**stage.machine["metadata"], "labels": kept, "annotations": kept}}
    after = synced(stage)["metadata"]

    assert after["labels"] == foreign["labels"] | kept
    assert after["annotations"]["example.com/note"] == "mine"
    assert "node.cluster.x-k8s.io/a" not in after["annotations"]
    assert after["annotations"]["node.cluster.x-k8s.io/b"] == "3"
    assert after["annotations"][f"{OURS}annotations-from-machine"] == "node.cluster.x-k8s.io/b"


def test_an_owner_that_is_gone_is_forgotten() -> None:
    stage = running()
    synced(stage)
    stage.machine = {**stage.machine, "metadata": {**stage.machine["metadata"], "ownerReferences": []}}
    assert f"{OURS}owner-kind" not in synced(stage)["metadata"]["annotations"]


def test_interruptible_machines_have_interruptible_nodes() -> None:
    stage = running()
    stage.objects[1] = provisioned(interruptible=True)()
    assert synced(stage)["metadata"]["labels"] == {f"{OURS}interruptible": ""}
    stage.objects[1] = provisioned()()
    assert synced(stage)["metadata"].get("labels", {}) == {}


GUARDED = {"node-restriction.kubernetes.io/quarantine": "true", "node-role.kubernetes.io/worker": ""}


def test_a_kubelet_does_not_get_rid_of_labels_that_it_may_not_change() -> None:
    """It writes any annotation of its own Node. NodeRestriction guards these labels; the manager may remove them."""
    claimed = {"labels": GUARDED, "annotations": {f"{OURS}labels-from-machine": ",".join(GUARDED)}}
    assert synced(running(nodes=[node(metadata=claimed)]))["metadata"]["labels"] == GUARDED


def test_guarded_labels_that_leave_the_machine_leave_the_node() -> None:
    stage = running(machine=of(GUARDED))
    assert synced(stage)["metadata"]["labels"] == GUARDED
    stage.machine = {**stage.machine, "metadata": {**stage.machine["metadata"], "labels": {}}}
    assert synced(stage)["metadata"].get("labels", {}) == {}


# --- taints ----------------------------------------------------------------------------------------------------------


def test_the_node_is_initialized_with_its_labels() -> None:
    assert synced(running(nodes=[node(spec={"taints": [UNINITIALIZED, FOREIGN]})]))["spec"]["taints"] == [FOREIGN]


@pytest.mark.parametrize(
    ("revisions", "before", "after"),
    [
        (("1", "2"), [FOREIGN], [FOREIGN, OUTDATED]),
        (("1", "2"), [OUTDATED, FOREIGN], [OUTDATED, FOREIGN]),
        (("2", "2"), [OUTDATED, FOREIGN], [FOREIGN]),
        (("9", "10"), [], [OUTDATED]),
        (("", "2"), [], [OUTDATED]),
        (("2", "what?"), [], []),
    ],
)
def test_nodes_of_an_outdated_revision_should_get_no_new_pods(
    revisions: tuple[str, str], before: list[Object], after: list[Object]
) -> None:
    stage = running(nodes=[node(spec={"taints": before})])
    stage.objects += [machine_set(revision=revisions[0]), deployment(revision=revisions[1])]
    assert synced(stage)["spec"].get("taints", []) == after


def test_nodes_of_machines_without_a_deployment_are_never_outdated() -> None:
    assert synced(running(nodes=[node(spec={"taints": [OUTDATED]})]))["spec"].get("taints", []) == []


ALWAYS = {"key": "a", "value": "1", "effect": "NoSchedule", "propagation": "Always"}
AT_FIRST = {"key": "b", "effect": "NoExecute", "propagation": "OnInitialization"}
TRACKED = f"{OURS}taints-from-machine"


def on_node(taint: Object) -> Object:
    return {name: value for name, value in taint.items() if name != "propagation"}


def propagating(taints: list[Object], **parts: Any) -> Stage:
    return running(machine=of(taints=taints), settings={MACHINE_TAINT_PROPAGATION: "true"}, **parts)


def test_taints_stay_with_the_machine_unless_they_are_to_be_brought_over() -> None:
    after = synced(running(machine=of(taints=[ALWAYS, AT_FIRST])))
    assert "taints" not in after["spec"]
    assert TRACKED not in after["metadata"]["annotations"]


def test_taints_go_over_for_good_or_once() -> None:
    stage = propagating([ALWAYS, AT_FIRST], nodes=[node(spec={"taints": [FOREIGN]})])
    after = synced(stage)
    assert after["spec"]["taints"] == [FOREIGN, on_node(ALWAYS), on_node(AT_FIRST)]
    assert after["metadata"]["annotations"][TRACKED] == "a:NoSchedule"

    stage.nodes = [{**after, "spec": {**after["spec"], "taints": []}}]  # somebody took them all away
    assert synced(stage)["spec"]["taints"] == [on_node(ALWAYS)]


@pytest.mark.parametrize(
    ("taints", "after", "tracked"),
    [
        ([ALWAYS | {"value": "2"}], [on_node(ALWAYS) | {"value": "2"}, FOREIGN], "a:NoSchedule"),
        ([], [FOREIGN], ""),
        ([ALWAYS | {"propagation": "OnInitialization"}], [on_node(ALWAYS), FOREIGN], ""),
        ([AT_FIRST], [FOREIGN], ""),
    ],
)
def test_taints_follow_the_machine(taints: list[Object], after: list[Object], tracked: str) -> None:
    stage = propagating([ALWAYS], nodes=[node()])
    stage.settle()
    assert isinstance(stage.nodes, list)
    stage.nodes = [{**stage.nodes[0], "spec": {**stage.nodes[0]["spec"], "taints": [on_node(ALWAYS), FOREIGN]}}]
    stage.machine = {**stage.machine, "spec": {**stage.machine["spec"], "taints": taints}}
    result = synced(stage)
    assert result["spec"]["taints"] == after
    assert result["metadata"]["annotations"][TRACKED] == tracked


def test_a_kubelet_does_not_get_rid_of_taints() -> None:
    claimed = {"annotations": {TRACKED: "example.com/gpu:NoSchedule"}}
    stage = propagating([ALWAYS], nodes=[node(metadata=claimed, spec={"taints": [FOREIGN]})])
    assert synced(stage)["spec"]["taints"] == [FOREIGN, on_node(ALWAYS)]
