"""Sync of labels, annotations and taints from a Machine to its Node."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.settings import MACHINE_TAINT_PROPAGATION, SYNC_MACHINE_ANNOTATIONS, SYNC_MACHINE_LABELS
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch
from tests.unit.controllers.capi.machine.harness import WORKLOAD, MachineHarness, patches, running
from tests.unit.controllers.capi.machine.objects import deployment, machine, machine_set, node, provisioned_infra

PREFIX = "cluster.x-k8s.io/"
UNINITIALIZED = {"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}
OUTDATED = {"key": "node.cluster.x-k8s.io/outdated-revision", "effect": "PreferNoSchedule"}
FOREIGN = {"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}


def synced(harness: MachineHarness) -> Object:
    """The Node after the Machine has settled."""
    harness.settle()
    assert isinstance(harness.nodes, list)
    return harness.nodes[0]


def node_patches(harness: MachineHarness) -> list[Patch]:
    return [write for write in patches(harness.reconcile()) if write.target == WORKLOAD]


def machine_with(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> Object:
    return machine(spec=spec, metadata={"labels": labels or {}, "annotations": annotations or {}})


def test_node_is_annotated_with_its_machine() -> None:
    annotations = synced(running())["metadata"]["annotations"]
    assert annotations == {
        f"{PREFIX}cluster-name": "north",
        f"{PREFIX}cluster-namespace": "farm",
        f"{PREFIX}machine": "ewe",
        f"{PREFIX}owner-kind": "MachineSet",
        f"{PREFIX}owner-name": "wool",
        f"{PREFIX}labels-from-machine": "",
        f"{PREFIX}annotations-from-machine": "",
    }


def test_metadata_and_taints_are_synced_in_one_patch() -> None:
    harness = running(
        machine=machine_with({"node-role.kubernetes.io/worker": ""}, {"node.cluster.x-k8s.io/a": "1"}),
        nodes=[node(spec={"taints": [UNINITIALIZED, FOREIGN]})],
    )
    (write,) = node_patches(harness)
    assert set(write.patch) == {"metadata", "spec"}
    assert write.resource_version == "77"  # taints have other writers, so the patch must not overwrite their changes
    harness.settle()
    assert node_patches(harness) == []


def test_patch_without_taints_carries_no_resource_version() -> None:
    (write,) = node_patches(running())
    assert write.resource_version == ""


@pytest.mark.parametrize(
    ("label", "expected"),
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
def test_synced_labels(label: str, expected: bool) -> None:
    harness = running(
        machine=machine_with({label: "x"}), settings={SYNC_MACHINE_LABELS: r"^extra\.example\.com/, other"}
    )
    labels = synced(harness)["metadata"].get("labels", {})
    assert labels == ({label: "x"} if expected else {})


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("node.cluster.x-k8s.io/a", True),
        ("sub.node.cluster.x-k8s.io/a", True),
        ("node-role.kubernetes.io/a", False),
        ("example.com/a", False),
        ("extra.example.com/a", True),
    ],
)
def test_synced_annotations(annotation: str, expected: bool) -> None:
    settings = {SYNC_MACHINE_ANNOTATIONS: r"^extra\.example\.com/"}
    annotations = synced(running(machine=machine_with({}, {annotation: "x"}), settings=settings))["metadata"][
        "annotations"
    ]
    assert (annotations.get(annotation) == "x") is expected
    assert annotations[f"{PREFIX}annotations-from-machine"] == (annotation if expected else "")


def test_removed_metadata_is_removed_from_the_node_and_foreign_metadata_is_kept() -> None:
    foreign = {"labels": {"example.com/rack": "7"}, "annotations": {"example.com/note": "mine"}}
    keys = {"node.cluster.x-k8s.io/a": "1", "node.cluster.x-k8s.io/b": "2"}
    harness = running(machine=machine_with(keys, keys), nodes=[node(metadata=foreign)])
    before = synced(harness)["metadata"]
    assert before["labels"] == foreign["labels"] | keys
    assert before["annotations"][f"{PREFIX}labels-from-machine"] == ",".join(keys)

    kept = {"node.cluster.x-k8s.io/b": "3"}
    harness.machine = {
        **harness.machine,
        "metadata": {**harness.machine["metadata"], "labels": kept, "annotations": kept},
    }
    after = synced(harness)["metadata"]

    assert after["labels"] == foreign["labels"] | kept
    assert after["annotations"]["example.com/note"] == "mine"
    assert "node.cluster.x-k8s.io/a" not in after["annotations"]
    assert after["annotations"]["node.cluster.x-k8s.io/b"] == "3"
    assert after["annotations"][f"{PREFIX}annotations-from-machine"] == "node.cluster.x-k8s.io/b"


def test_owner_annotations_are_removed_with_the_owner() -> None:
    harness = running()
    synced(harness)
    harness.machine = {**harness.machine, "metadata": {**harness.machine["metadata"], "ownerReferences": []}}
    assert f"{PREFIX}owner-kind" not in synced(harness)["metadata"]["annotations"]


def test_interruptible_machine_labels_its_node() -> None:
    harness = running()
    harness.objects[1] = provisioned_infra(interruptible=True)
    assert synced(harness)["metadata"]["labels"] == {f"{PREFIX}interruptible": ""}
    harness.objects[1] = provisioned_infra()
    assert synced(harness)["metadata"].get("labels", {}) == {}


PROTECTED_LABELS = {"node-restriction.kubernetes.io/quarantine": "true", "node-role.kubernetes.io/worker": ""}


def test_kubelet_cannot_remove_protected_labels() -> None:
    """A kubelet may write any annotation of its Node, but NodeRestriction protects these labels from it."""
    forged = {"labels": PROTECTED_LABELS, "annotations": {f"{PREFIX}labels-from-machine": ",".join(PROTECTED_LABELS)}}
    assert synced(running(nodes=[node(metadata=forged)]))["metadata"]["labels"] == PROTECTED_LABELS


def test_protected_labels_removed_from_the_machine_are_removed_from_the_node() -> None:
    harness = running(machine=machine_with(PROTECTED_LABELS))
    assert synced(harness)["metadata"]["labels"] == PROTECTED_LABELS
    harness.machine = {**harness.machine, "metadata": {**harness.machine["metadata"], "labels": {}}}
    assert synced(harness)["metadata"].get("labels", {}) == {}


# --- taints ----------------------------------------------------------------------------------------------------------


def test_uninitialized_taint_is_removed_after_the_sync() -> None:
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
def test_nodes_of_an_outdated_revision_are_tainted(
    revisions: tuple[str, str], before: list[Object], after: list[Object]
) -> None:
    harness = running(nodes=[node(spec={"taints": before})])
    harness.objects += [machine_set(revision=revisions[0]), deployment(revision=revisions[1])]
    assert synced(harness)["spec"].get("taints", []) == after


def test_nodes_of_standalone_machines_are_not_tainted_as_outdated() -> None:
    assert synced(running(nodes=[node(spec={"taints": [OUTDATED]})]))["spec"].get("taints", []) == []


ALWAYS = {"key": "a", "value": "1", "effect": "NoSchedule", "propagation": "Always"}
ON_INITIALIZATION = {"key": "b", "effect": "NoExecute", "propagation": "OnInitialization"}
TAINTS_FROM_MACHINE = f"{PREFIX}taints-from-machine"


def on_node(taint: Object) -> Object:
    return {name: value for name, value in taint.items() if name != "propagation"}


def with_taint_propagation(taints: list[Object], **parts: Any) -> MachineHarness:
    return running(machine=machine_with(taints=taints), settings={MACHINE_TAINT_PROPAGATION: "true"}, **parts)


def test_taints_are_not_propagated_by_default() -> None:
    after = synced(running(machine=machine_with(taints=[ALWAYS, ON_INITIALIZATION])))
    assert "taints" not in after["spec"]
    assert TAINTS_FROM_MACHINE not in after["metadata"]["annotations"]


def test_taints_are_propagated_always_or_on_initialization() -> None:
    harness = with_taint_propagation([ALWAYS, ON_INITIALIZATION], nodes=[node(spec={"taints": [FOREIGN]})])
    after = synced(harness)
    assert after["spec"]["taints"] == [FOREIGN, on_node(ALWAYS), on_node(ON_INITIALIZATION)]
    assert after["metadata"]["annotations"][TAINTS_FROM_MACHINE] == "a:NoSchedule"

    harness.nodes = [{**after, "spec": {**after["spec"], "taints": []}}]  # a user removed all taints
    assert synced(harness)["spec"]["taints"] == [on_node(ALWAYS)]


@pytest.mark.parametrize(
    ("taints", "after", "expected_annotation"),
    [
        ([ALWAYS | {"value": "2"}], [on_node(ALWAYS) | {"value": "2"}, FOREIGN], "a:NoSchedule"),
        ([], [FOREIGN], ""),
        ([ALWAYS | {"propagation": "OnInitialization"}], [on_node(ALWAYS), FOREIGN], ""),
        ([ON_INITIALIZATION], [FOREIGN], ""),
    ],
)
def test_changed_taints_are_propagated(taints: list[Object], after: list[Object], expected_annotation: str) -> None:
    harness = with_taint_propagation([ALWAYS], nodes=[node()])
    harness.settle()
    assert isinstance(harness.nodes, list)
    harness.nodes = [{**harness.nodes[0], "spec": {**harness.nodes[0]["spec"], "taints": [on_node(ALWAYS), FOREIGN]}}]
    harness.machine = {**harness.machine, "spec": {**harness.machine["spec"], "taints": taints}}
    synced_node = synced(harness)
    assert synced_node["spec"]["taints"] == after
    assert synced_node["metadata"]["annotations"][TAINTS_FROM_MACHINE] == expected_annotation


def test_kubelet_cannot_remove_foreign_taints() -> None:
    forged = {"annotations": {TAINTS_FROM_MACHINE: "example.com/gpu:NoSchedule"}}
    harness = with_taint_propagation([ALWAYS], nodes=[node(metadata=forged, spec={"taints": [FOREIGN]})])
    assert synced(harness)["spec"]["taints"] == [FOREIGN, on_node(ALWAYS)]
