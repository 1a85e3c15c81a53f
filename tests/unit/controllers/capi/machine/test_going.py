"""A Machine that is being deleted still tells how it is; what is gone with it is no issue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Delete, Patch
from tests.unit.controllers.capi.machine.stage import (
    CONFIG,
    INFRA,
    LONG_AGO,
    Stage,
    cluster,
    machine,
    patches,
    running,
)

JUST_NOW = "2026-01-01T12:00:00Z"
HELD = {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/wait": ""}


def terminating(since: str = JUST_NOW, *, without: tuple[str, ...] = ()) -> Stage:
    """It was running, and a hook holds it; its Cluster goes too, so its Node is left alone."""
    stage = running()
    stage.settle()
    meta = {**stage.machine["metadata"], "deletionTimestamp": since, "annotations": HELD}
    stage.machine = {**stage.machine, "metadata": meta}
    stage.objects[0] = cluster(metadata={"deletionTimestamp": since})
    stage.objects = [known for known in stage.objects if known["kind"] not in without]
    return stage


def test_it_says_that_it_is_deleting_and_at_which_stage() -> None:
    stage = terminating()
    assert stage.status()["phase"] == "Deleting"
    assert stage.condition("Deleting")[:2] == ("True", "WaitingForPreTerminateHook")
    told = "* Deleting: Machine deletion in progress, stage: WaitingForPreTerminateHook"
    assert stage.condition("Ready") == ("False", "NotReady", told)
    assert stage.condition("Available") == ("False", "NotReady", "")
    assert stage.condition("NodeHealthy")[0] == "True"


def test_a_long_deletion_is_told_as_such() -> None:
    stage = terminating()
    stage.settle()
    wake = stage.decide().wake_at
    assert wake == stage.now + timedelta(minutes=15, seconds=1)
    stage.now = wake
    told = "* Deleting: Machine deletion in progress since more than 15m, stage: WaitingForPreTerminateHook"
    assert stage.condition("Ready") == ("False", "NotReady", told)
    assert stage.decide().wake_at is None


def test_what_is_gone_already_is_no_issue() -> None:
    stage = terminating(without=(INFRA.kind, CONFIG.kind))
    stage.nodes = []
    assert stage.condition("InfrastructureReady") == ("False", "ObjectDeleted", "PaddockMachine has been deleted")
    assert stage.condition("BootstrapConfigReady") == ("False", "ObjectDeleted", "PaddockConfig has been deleted")
    assert stage.condition("NodeHealthy") == ("False", "NodeDeleted", "Node ewe-node has been deleted")
    told = "* Deleting: Machine deletion in progress, stage: WaitingForPreTerminateHook"
    assert stage.condition("Ready") == ("False", "NotReady", told)
    assert "failureReason" not in stage.status()["deprecated"]["v1beta1"]


def test_what_never_was_does_not_exist() -> None:
    stage = Stage(machine(metadata={"deletionTimestamp": JUST_NOW, "annotations": HELD}), [cluster()])
    assert stage.condition("InfrastructureReady")[1:] == ("ObjectDoesNotExist", "PaddockMachine does not exist")
    assert stage.condition("NodeHealthy") == ("Unknown", "NodeDoesNotExist", "Node does not exist")


def test_neither_its_spec_nor_its_objects_nor_its_node_are_changed_any_more() -> None:
    stage = running(machine=machine(metadata={"deletionTimestamp": JUST_NOW, "annotations": HELD}))
    stage.objects[0] = cluster(metadata={"deletionTimestamp": JUST_NOW})
    stage.objects[1] = {**stage.objects[1], "metadata": {**stage.objects[1]["metadata"], "ownerReferences": []}}
    assert {write.subresource for write in stage.settle()} == {"status"}


def test_the_status_is_written_before_anything_is_deleted() -> None:
    stage = terminating()
    stage.machine["metadata"]["annotations"] = {}
    kinds = [type(write).__name__ for write in stage.decide().writes]
    assert kinds == ["Patch", "Delete"]


def test_of_a_quick_deletion_only_the_first_step_is_told() -> None:
    stage = terminating()
    stage.machine["metadata"]["annotations"] = {}
    told, _ = stage.decide().writes
    assert isinstance(told, Patch)
    assert told.debounce == 0.0  # it is available no more, and rollouts count on that
    stage.machine = apply_merge_patch(stage.machine, told.patch)
    stage.objects = [known for known in stage.objects if known["kind"] != INFRA.kind]
    told, _ = stage.decide().writes
    assert isinstance(told, Patch)
    assert told.debounce == 2.0


def test_at_the_end_only_the_finalizer_is_written() -> None:
    stage = terminating(without=(INFRA.kind, CONFIG.kind))
    stage.machine["metadata"]["annotations"] = {}
    (write,) = patches(stage.decide())
    assert write.patch == {"metadata": {"finalizers": []}}


def test_a_machine_whose_cluster_is_gone_can_go_too() -> None:
    stage = terminating(without=("Cluster",))
    stage.machine["metadata"]["annotations"] = {}
    assert [write.ref.kind for write in stage.decide().writes if isinstance(write, Delete)] == [INFRA]


@pytest.mark.parametrize("finalizers", [[], ["somebody.else/s"]])
def test_a_machine_that_only_others_hold_is_none_of_ours(finalizers: list[str]) -> None:
    stage = Stage(machine(metadata={"deletionTimestamp": LONG_AGO, "finalizers": finalizers}))
    decision = stage.decide()
    assert decision.writes == ()
    assert decision.observe == ()
