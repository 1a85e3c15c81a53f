"""Deletion of a Machine waits until the volumes of its Node are detached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from herder.api.capi.kinds import NODE, PERSISTENT_VOLUME, POD, VOLUME_ATTACHMENT
from herder.api.capi.names import DRAIN, EXCLUDE_WAIT_FOR_VOLUME_DETACH
from herder.controllers.capi.machine.deletion.volumes import (
    ATTACHMENT_RECORD,
    MAX_VOLUMES,
    VOLUME_RECORD,
    Attached,
    attached,
)
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.decision import Observe
from herder.engine.runtime.remote.observation import max_at_once
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import new_object
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deletion.objects import (
    Workload,
    deleting_condition,
    legacy_conditions,
    machine,
    node,
    pod,
    reconcile_deletion,
    subscriptions,
)

HANDLE = "kubernetes.io/csi/disks.example^"


def volume(name: str, claim: str = "", *, csi: bool = True) -> Object:
    spec: Object = {"capacity": {"storage": "1Gi"}}
    if csi:
        spec["csi"] = {"driver": "disks.example", "volumeHandle": name, "fsType": "ext4"}
    if claim:
        spec["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "apps", "name": claim, "uid": "u"}
    return new_object(PERSISTENT_VOLUME, name, spec=spec)


def attachment(name: str, on: str = "n", *, is_attached: bool = True) -> Object:
    spec = {"attacher": "disks.example", "nodeName": on, "source": {"persistentVolumeName": name}}
    return new_object(VOLUME_ATTACHMENT, f"va-{name}", spec=spec, status={"attached": is_attached})


@pytest.mark.parametrize(
    ("in_use", "by_attachment", "volumes", "ignored", "expected"),
    [
        pytest.param([], [], [volume("v", "c")], [], Attached(), id="nothing attached"),
        pytest.param([HANDLE + "v"], [], [volume("v", "c")], [], Attached({"apps/c"}), id="by the Node's status"),
        pytest.param([], ["v"], [volume("v", "c")], [], Attached({"apps/c"}), id="by an attachment"),
        pytest.param([HANDLE + "v"], ["v"], [volume("v", "c")], [], Attached({"apps/c"}), id="by both"),
        pytest.param([], ["v"], [volume("v", "c", csi=False)], [], Attached({"apps/c"}), id="without CSI"),
        pytest.param([], ["v"], [volume("v", "c")], ["apps/c"], Attached(), id="used by a skipped Pod"),
        pytest.param([], ["v"], [volume("v")], [], Attached(unclaimed={"v"}), id="unclaimed"),
        pytest.param([HANDLE + "x"], [], [], [], Attached(unknown_to_node={HANDLE + "x"}), id="unknown to the Node"),
        pytest.param([], ["x"], [], [], Attached(unknown_to_attachment={"x"}), id="unknown to the attachment"),
        pytest.param(
            [], [""], [volume("v", "c", csi=False)], [], Attached(unknown_to_attachment={"(none)"}), id="inline volume"
        ),
    ],
)
def test_attached_volumes(
    in_use: list[str], by_attachment: list[str], volumes: list[Object], ignored: list[str], expected: Attached
) -> None:
    records = [VOLUME_RECORD.project(each) for each in volumes]
    found = attached(set(in_use), set(by_attachment), records, set(ignored))
    assert found.lines() == expected.lines()


def test_message_lists_attached_volumes() -> None:
    remaining = Attached({f"apps/c{number}" for number in range(7)}, {"v"}, {HANDLE + "x"}, {"y"})
    assert remaining.lines() == [
        "PersistentVolumeClaims: apps/c0, apps/c1, apps/c2, apps/c3, apps/c4, ... (2 more)",
        "PersistentVolumes without a .spec.claimRef to a PersistentVolumeClaim: v",
        f"Node with .status.volumesAttached entries not matching a PersistentVolume: {HANDLE}x",
        "VolumeAttachment with .spec.source.persistentVolumeName not matching a PersistentVolume: y",
    ]


ATTACHED = [node(), attachment("v"), volume("v", "c")]


def test_wait_reports_its_start_time_and_is_requeued() -> None:
    step = reconcile_deletion(machine(), workload=Workload(ATTACHED))
    assert deleting_condition(step) == (
        "WaitingForVolumeDetach",
        "Waiting for Node volumes to be detached (started at 2026-01-01T12:00:00Z)\n* PersistentVolumeClaims: apps/c",
    )
    assert step.status == {"waitForNodeVolumeDetachStartTime": "2026-01-01T12:00:00Z"}
    assert legacy_conditions(step)["VolumeDetachSucceeded"] == "False/WaitingForVolumeDetach"
    assert step.decision.wake_at == NOW + timedelta(seconds=20)
    assert {subscription.kind for subscription in subscriptions(step)} == {
        NODE,
        POD,
        VOLUME_ATTACHMENT,
        PERSISTENT_VOLUME,
    }


def test_start_times_of_earlier_stages_are_kept() -> None:
    drained = machine(status={"deletion": {"nodeDrainStartTime": "2026-01-01T11:00:00Z"}})
    assert reconcile_deletion(drained, workload=Workload(ATTACHED)).status == {
        "nodeDrainStartTime": "2026-01-01T11:00:00Z",
        "waitForNodeVolumeDetachStartTime": "2026-01-01T12:00:00Z",
    }


WAITING_FOR_A_MINUTE = {"deletion": {"waitForNodeVolumeDetachStartTime": "2026-01-01T11:59:00Z"}}
TIMEOUT = {"nodeVolumeDetachTimeoutSeconds": 60}
SKIPPED_POD = pod(
    "keeper",
    labels={DRAIN: "skip"},
    volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
)


@pytest.mark.parametrize(
    ("machine_object", "objects", "waits"),
    [
        pytest.param(machine(), ATTACHED, True, id="attached"),
        pytest.param(machine(), [node()], False, id="nothing attached"),
        pytest.param(machine(), [node(), attachment("v", "other"), volume("v", "c")], False, id="another Node's"),
        pytest.param(machine(), [node(), attachment("v", is_attached=False), volume("v", "c")], False, id="detached"),
        pytest.param(machine(), [node(volumes=[HANDLE + "v"]), volume("v", "c")], True, id="by the Node's status"),
        pytest.param(machine(annotations={EXCLUDE_WAIT_FOR_VOLUME_DETACH: ""}), ATTACHED, False, id="excluded"),
        pytest.param(machine(), [node(ready="Unknown"), *ATTACHED[1:]], False, id="the Node is unreachable"),
        pytest.param(machine(), ATTACHED[1:], False, id="the Node is deleted"),
        pytest.param(machine(), [*ATTACHED, SKIPPED_POD], False, id="used by a skipped Pod"),
        pytest.param(machine(status=WAITING_FOR_A_MINUTE), ATTACHED, True, id="for a minute, without a limit"),
        pytest.param(machine(status=WAITING_FOR_A_MINUTE, limits=TIMEOUT), ATTACHED, False, id="after the timeout"),
        pytest.param(machine(limits=TIMEOUT), ATTACHED, True, id="timeout not reached"),
    ],
)
def test_when_deletion_waits_for_volumes(machine_object: Object, objects: list[Object], waits: bool) -> None:
    step = reconcile_deletion(machine_object, workload=Workload(objects))
    assert (deleting_condition(step)[0] == "WaitingForVolumeDetach") is waits


@pytest.mark.parametrize("unmatched", [VOLUME_ATTACHMENT, PERSISTENT_VOLUME])
def test_wait_until_volumes_and_attachments_are_synced(unmatched: object) -> None:
    step = reconcile_deletion(machine(), workload=Workload(ATTACHED, unmatched=[unmatched]))  # type: ignore[list-item]
    assert deleting_condition(step) == ("WaitingForVolumeDetach", "Looking at the volumes of Node n")
    assert step.status == {}


def test_only_attached_volume_attachments_are_indexed_by_node() -> None:
    by_node = ATTACHMENT_RECORD.indexes["node"]
    assert list(by_node(ATTACHMENT_RECORD.project(attachment("v")))) == ["n"]
    assert list(by_node(ATTACHMENT_RECORD.project(attachment("v", is_attached=False)))) == []


# --- many volumes -----------------------------------------------------------------------------------------------------


class CountingWorkload(Workload):
    """Counts the PersistentVolumes that are read."""

    volumes_read = 0

    def __call__(self, subscription: Observe) -> Observed | Unreachable | None:
        seen = super().__call__(subscription)
        if subscription.kind == PERSISTENT_VOLUME and isinstance(seen, Observed):
            self.volumes_read += len(seen.objects)
        return seen


def test_only_the_volumes_of_the_node_are_read() -> None:
    others = [volume(f"other-{number}", f"c{number}") for number in range(5000)]
    workload = CountingWorkload([*ATTACHED, *others])
    step = reconcile_deletion(machine(), workload=workload)
    assert deleting_condition(step)[1].endswith("\n* PersistentVolumeClaims: apps/c")
    assert workload.volumes_read == 1


def test_number_of_lookups_is_limited() -> None:
    workload = CountingWorkload([node(), *(attachment(f"v{number}") for number in range(MAX_VOLUMES + 1))])
    step = reconcile_deletion(machine(), workload=workload)
    assert deleting_condition(step)[1].endswith(f"\n* more than {MAX_VOLUMES} volumes of the Node are in use")
    assert PERSISTENT_VOLUME not in {request.kind for request in workload.requests}


def test_number_of_volumes_that_share_a_handle_is_limited() -> None:
    shared = [volume(f"v{number}") for number in range(MAX_VOLUMES + 1)]
    for each in shared:
        each["spec"]["csi"]["volumeHandle"] = "same"
    workload = CountingWorkload([node(volumes=[HANDLE + "same", *(HANDLE + each for each in "xyz")]), *shared])
    step = reconcile_deletion(machine(), workload=workload)
    assert f"more than {MAX_VOLUMES} PersistentVolumes" in deleting_condition(step)[1]
    assert workload.volumes_read == len(shared)


class CountingSet(set[str]):
    """Counts how often it is read from start to end."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


def test_names_are_not_visited_for_each_volume() -> None:
    in_use, by_attachment = CountingSet(), CountingSet({f"v{number}" for number in range(100)})
    records = [VOLUME_RECORD.project(volume(f"v{number}", "c")) for number in range(100)]
    attached(in_use, by_attachment, records, set())
    assert in_use.passes + by_attachment.passes <= 2


@pytest.mark.parametrize("kind", [PERSISTENT_VOLUME, VOLUME_ATTACHMENT])
def test_most_volumes_that_one_lookup_returns(kind: Kind) -> None:
    assert max_at_once(kind) == MAX_VOLUMES
