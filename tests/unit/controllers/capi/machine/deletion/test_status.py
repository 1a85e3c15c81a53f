"""Status of a Machine during its deletion. Objects that are deleted with it are no issue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Delete, Patch
from tests.unit.controllers.capi.machine.harness import MachineHarness, patches, running
from tests.unit.controllers.capi.machine.objects import CONFIG, INFRA, TWO_HOURS_AGO, cluster, machine

JUST_NOW = "2026-01-01T12:00:00Z"
BLOCKED_BY_HOOK = {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/wait": ""}


def deleting(since: str = JUST_NOW, *, without: tuple[str, ...] = ()) -> MachineHarness:
    """A deleting Machine that a hook blocks. Its Cluster is deleting too, so its Node is not drained."""
    harness = running()
    harness.settle()
    meta = {**harness.machine["metadata"], "deletionTimestamp": since, "annotations": BLOCKED_BY_HOOK}
    harness.machine = {**harness.machine, "metadata": meta}
    harness.objects[0] = cluster(metadata={"deletionTimestamp": since})
    harness.objects = [known for known in harness.objects if known["kind"] not in without]
    return harness


def test_deleting_condition_names_the_stage() -> None:
    harness = deleting()
    assert harness.status()["phase"] == "Deleting"
    assert harness.condition("Deleting")[:2] == ("True", "WaitingForPreTerminateHook")
    message = "* Deleting: Machine deletion in progress, stage: WaitingForPreTerminateHook"
    assert harness.condition("Ready") == ("False", "NotReady", message)
    assert harness.condition("Available") == ("False", "NotReady", "")
    assert harness.condition("NodeHealthy")[0] == "True"


def test_long_deletion_is_reported() -> None:
    harness = deleting()
    harness.settle()
    wake_at = harness.reconcile().wake_at
    assert wake_at == harness.now + timedelta(minutes=15, seconds=1)
    harness.now = wake_at
    message = "* Deleting: Machine deletion in progress since more than 15m, stage: WaitingForPreTerminateHook"
    assert harness.condition("Ready") == ("False", "NotReady", message)
    assert harness.reconcile().wake_at is None


def test_deleted_objects_are_no_issue_during_deletion() -> None:
    harness = deleting(without=(INFRA.kind, CONFIG.kind))
    harness.nodes = []
    assert harness.condition("InfrastructureReady") == ("False", "ObjectDeleted", "PaddockMachine has been deleted")
    assert harness.condition("BootstrapConfigReady") == ("False", "ObjectDeleted", "PaddockConfig has been deleted")
    assert harness.condition("NodeHealthy") == ("False", "NodeDeleted", "Node ewe-node has been deleted")
    message = "* Deleting: Machine deletion in progress, stage: WaitingForPreTerminateHook"
    assert harness.condition("Ready") == ("False", "NotReady", message)
    assert "failureReason" not in harness.status()["deprecated"]["v1beta1"]


def test_objects_that_never_existed_are_reported_as_missing() -> None:
    harness = MachineHarness(
        machine(metadata={"deletionTimestamp": JUST_NOW, "annotations": BLOCKED_BY_HOOK}), [cluster()]
    )
    assert harness.condition("InfrastructureReady")[1:] == ("ObjectDoesNotExist", "PaddockMachine does not exist")
    assert harness.condition("NodeHealthy") == ("Unknown", "NodeDoesNotExist", "Node does not exist")


def test_only_the_status_is_written_while_a_hook_blocks() -> None:
    harness = running(machine=machine(metadata={"deletionTimestamp": JUST_NOW, "annotations": BLOCKED_BY_HOOK}))
    harness.objects[0] = cluster(metadata={"deletionTimestamp": JUST_NOW})
    harness.objects[1] = {**harness.objects[1], "metadata": {**harness.objects[1]["metadata"], "ownerReferences": []}}
    assert {write.subresource for write in harness.settle()} == {"status"}


def test_status_is_written_before_objects_are_deleted() -> None:
    harness = deleting()
    harness.machine["metadata"]["annotations"] = {}
    kinds = [type(write).__name__ for write in harness.reconcile().writes]
    assert kinds == ["Patch", "Delete"]


def test_first_deleting_status_is_written_at_once_and_progress_is_debounced() -> None:
    harness = deleting()
    harness.machine["metadata"]["annotations"] = {}
    status_patch, _ = harness.reconcile().writes
    assert isinstance(status_patch, Patch)
    assert status_patch.debounce == 0.0  # rollouts depend on Available turning False
    harness.machine = apply_merge_patch(harness.machine, status_patch.patch)
    harness.objects = [known for known in harness.objects if known["kind"] != INFRA.kind]
    status_patch, _ = harness.reconcile().writes
    assert isinstance(status_patch, Patch)
    assert status_patch.debounce == 2.0


def test_last_write_removes_the_finalizer() -> None:
    harness = deleting(without=(INFRA.kind, CONFIG.kind))
    harness.machine["metadata"]["annotations"] = {}
    (write,) = patches(harness.reconcile())
    assert write.patch == {"metadata": {"finalizers": []}}


def test_machine_of_a_deleted_cluster_can_be_deleted() -> None:
    harness = deleting(without=("Cluster",))
    harness.machine["metadata"]["annotations"] = {}
    assert [write.ref.kind for write in harness.reconcile().writes if isinstance(write, Delete)] == [INFRA]


@pytest.mark.parametrize("finalizers", [[], ["somebody.else/s"]])
def test_deleting_machine_without_our_finalizer_is_ignored(finalizers: list[str]) -> None:
    harness = MachineHarness(machine(metadata={"deletionTimestamp": TWO_HOURS_AGO, "finalizers": finalizers}))
    decision = harness.reconcile()
    assert decision.writes == ()
    assert decision.observe == ()
