"""Waiting for the volumes of a Node."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.kinds import NODE, PERSISTENT_VOLUME, POD, VOLUME_ATTACHMENT
from herder.api.capi.names import DRAIN, EXCLUDE_WAIT_FOR_VOLUME_DETACH
from herder.controllers.capi.machine.deletion.volumes import ATTACHMENT_RECORD, VOLUME_RECORD, Attached, attached
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deleting import (
    Workload,
    deletion_of,
    legacy_of,
    machine,
    made,
    node,
    pod,
    subscriptions,
    told,
)

HANDLE = "kubernetes.io/csi/disks.example^"


def volume(name: str, claim: str = "", *, csi: bool = True) -> Object:
    spec: Object = {"capacity": {"storage": "1Gi"}}
    if csi:
        spec["csi"] = {"driver": "disks.example", "volumeHandle": name, "fsType": "ext4"}
    if claim:
        spec["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "apps", "name": claim, "uid": "u"}
    return made(PERSISTENT_VOLUME, name, spec=spec)


def attachment(name: str, on: str = "n", *, is_attached: bool = True) -> Object:
    spec = {"attacher": "disks.example", "nodeName": on, "source": {"persistentVolumeName": name}}
    return made(VOLUME_ATTACHMENT, f"va-{name}", spec=spec, status={"attached": is_attached})


@pytest.mark.parametrize(
    ("in_use", "by_attachment", "volumes", "ignored", "expected"),
    [
        pytest.param([], [], [volume("v", "c")], [], Attached(), id="nothing attached"),
        pytest.param([HANDLE + "v"], [], [volume("v", "c")], [], Attached({"apps/c"}), id="by the Node's status"),
        pytest.param([], ["v"], [volume("v", "c")], [], Attached({"apps/c"}), id="by an attachment"),
        pytest.param([HANDLE + "v"], ["v"], [volume("v", "c")], [], Attached({"apps/c"}), id="by both"),
        pytest.param([], ["v"], [volume("v", "c", csi=False)], [], Attached({"apps/c"}), id="without CSI"),
        pytest.param([], ["v"], [volume("v", "c")], ["apps/c"], Attached(), id="used by a Pod that stays"),
        pytest.param([], ["v"], [volume("v")], [], Attached(unclaimed={"v"}), id="unclaimed"),
        pytest.param([HANDLE + "x"], [], [], [], Attached(unknown_to_node={HANDLE + "x"}), id="unknown to the Node"),
        pytest.param([], ["x"], [], [], Attached(unknown_to_attachment={"x"}), id="unknown to the attachment"),
    ],
)
def test_what_is_waited_for(
    in_use: list[str], by_attachment: list[str], volumes: list[Object], ignored: list[str], expected: Attached
) -> None:
    found = attached(in_use, by_attachment, [VOLUME_RECORD.project(each) for each in volumes], ignored)
    assert found.lines() == expected.lines()


def test_how_it_is_told() -> None:
    left = Attached({f"apps/c{number}" for number in range(7)}, {"v"}, {HANDLE + "x"}, {"y"})
    assert left.lines() == [
        "PersistentVolumeClaims: apps/c0, apps/c1, apps/c2, apps/c3, apps/c4, ... (2 more)",
        "PersistentVolumes without a .spec.claimRef to a PersistentVolumeClaim: v",
        f"Node with .status.volumesAttached entries not matching a PersistentVolume: {HANDLE}x",
        "VolumeAttachment with .spec.source.persistentVolumeName not matching a PersistentVolume: y",
    ]


ATTACHED = [node(), attachment("v"), volume("v", "c")]


def test_the_wait_is_told_with_its_start_and_looked_at_again() -> None:
    step = deletion_of(machine(), workload=Workload(ATTACHED))
    assert told(step) == (
        "WaitingForVolumeDetach",
        "Waiting for Node volumes to be detached (started at 2026-01-01T12:00:00Z)\n* PersistentVolumeClaims: apps/c",
    )
    assert step.status == {"waitForNodeVolumeDetachStartTime": "2026-01-01T12:00:00Z"}
    assert legacy_of(step)["VolumeDetachSucceeded"] == "False/WaitingForVolumeDetach"
    assert step.decision.wake_at == NOW + timedelta(seconds=20)
    assert {subscription.kind for subscription in subscriptions(step)} == {
        NODE,
        POD,
        VOLUME_ATTACHMENT,
        PERSISTENT_VOLUME,
    }


def test_times_of_earlier_stages_are_kept() -> None:
    drained = machine(status={"deletion": {"nodeDrainStartTime": "2026-01-01T11:00:00Z"}})
    assert deletion_of(drained, workload=Workload(ATTACHED)).status == {
        "nodeDrainStartTime": "2026-01-01T11:00:00Z",
        "waitForNodeVolumeDetachStartTime": "2026-01-01T12:00:00Z",
    }


WAITED = {"deletion": {"waitForNodeVolumeDetachStartTime": "2026-01-01T11:59:00Z"}}
LIMIT = {"nodeVolumeDetachTimeoutSeconds": 60}
KEEPER = pod(
    "keeper",
    labels={DRAIN: "skip"},
    volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
)


@pytest.mark.parametrize(
    ("given", "objects", "waits"),
    [
        pytest.param(machine(), ATTACHED, True, id="attached"),
        pytest.param(machine(), [node()], False, id="nothing attached"),
        pytest.param(machine(), [node(), attachment("v", "other"), volume("v", "c")], False, id="another Node's"),
        pytest.param(machine(), [node(), attachment("v", is_attached=False), volume("v", "c")], False, id="detached"),
        pytest.param(machine(), [node(volumes=[HANDLE + "v"]), volume("v", "c")], True, id="by the Node's status"),
        pytest.param(machine(annotations={EXCLUDE_WAIT_FOR_VOLUME_DETACH: ""}), ATTACHED, False, id="excluded"),
        pytest.param(machine(), [node(ready="Unknown"), *ATTACHED[1:]], False, id="the Node is unreachable"),
        pytest.param(machine(), ATTACHED[1:], False, id="the Node is gone"),
        pytest.param(machine(), [*ATTACHED, KEEPER], False, id="used by a Pod that stays"),
        pytest.param(machine(status=WAITED), ATTACHED, True, id="for a minute, without a limit"),
        pytest.param(machine(status=WAITED, limits=LIMIT), ATTACHED, False, id="its time is over"),
        pytest.param(machine(limits=LIMIT), ATTACHED, True, id="its time begins"),
    ],
)
def test_when_volumes_are_waited_for(given: Object, objects: list[Object], waits: bool) -> None:
    step = deletion_of(given, workload=Workload(objects))
    assert (told(step)[0] == "WaitingForVolumeDetach") is waits


@pytest.mark.parametrize("unmatched", [VOLUME_ATTACHMENT, PERSISTENT_VOLUME])
def test_nothing_is_decided_before_all_has_been_seen(unmatched: object) -> None:
    step = deletion_of(machine(), workload=Workload(ATTACHED, unmatched=[unmatched]))  # type: ignore[list-item]
    assert told(step) == ("WaitingForVolumeDetach", "Looking at the volumes of Node n")
    assert step.status == {}


def test_of_attachments_only_those_that_hold_are_found_by_their_node() -> None:
    by_node = ATTACHMENT_RECORD.indexes["node"]
    assert list(by_node(ATTACHMENT_RECORD.project(attachment("v")))) == ["n"]
    assert list(by_node(ATTACHMENT_RECORD.project(attachment("v", is_attached=False)))) == []
