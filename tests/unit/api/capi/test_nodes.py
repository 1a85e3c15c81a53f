"""What is kept of a Node."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from herder.api.capi.drain_records import (
    DAEMON_SET_RECORD,
    MIRROR,
    NAMESPACE_RECORD,
    POD_RECORD,
    claims_of,
    controller_of,
    full_name,
)
from herder.api.capi.nodes import (
    NODE_RECORD,
    addresses_of,
    all_nodes,
    node_by_name,
    node_by_provider_id,
    node_condition,
)
from herder.controllers.capi.machine.deletion.volumes import ATTACHMENT_RECORD, VOLUME_RECORD
from herder.controllers.machines.cluster_access import NODES as PROVISIONED
from herder.controllers.provisioning.management_cluster.status import NODES as MANAGED
from herder.engine.meta.kinds import Object

NODE: Object = {
    "metadata": {
        "name": "n",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"a": "b"},
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {"providerID": "x://1", "podCIDR": "10.0.0.0/24", "unschedulable": True},
    "status": {
        "capacity": {"cpu": "4"},
        "images": [{"names": ["a"]}],
        "nodeInfo": {"kubeletVersion": "v1.36.0"},
        "volumesAttached": [{"name": "v", "devicePath": "/dev/v"}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "lastHeartbeatTime": "now",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    },
}


def test_a_record_has_the_shape_of_a_node_and_only_what_is_read() -> None:
    assert NODE_RECORD.project(NODE) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"providerID": "x://1", "unschedulable": True},
        "status": {
            "nodeInfo": {"kubeletVersion": "v1.36.0"},
            "volumesAttached": [{"name": "v"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    }


ODD: tuple[Any, ...] = (None, 7, -1.5, True, "x", "9" * 5000, [], [None, 7], [[]], {}, {"a": None}, {"a": {"b": []}})
TIMES = ("then", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00", 7, None)


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield ()
    for key, entry in entries:
        yield from ((key, *rest) for rest in places(entry))


def replaced(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    copied = copy.copy(value)
    copied[place[0]] = replaced(value[place[0]], place[1:], other)
    return copied


def test_a_record_of_whatever_a_cluster_answers_has_the_types_of_a_node() -> None:
    """Every part of a Node replaced by every odd value: a compromised API server answers anything."""
    whole = {**NODE, "spec": {**NODE["spec"], "taints": [{"key": "k", "effect": "NoSchedule"}]}}
    for place in places(whole):
        for odd in ODD if place else ():
            found = NODE_RECORD.project(replaced(whole, place, odd))
            assert all(isinstance(label, str) for label in found["metadata"].get("labels", {}).values())
            assert all(isinstance(taint.get("key", ""), str) for taint in found["spec"].get("taints", ()))
            assert all(isinstance(volume["name"], str) for volume in found["status"].get("volumesAttached", ()))
            assert all(isinstance(text, str) for text in found["status"].get("nodeInfo", {}).values())
            for condition in found["status"]["conditions"]:
                assert all(isinstance(condition[field], str) for field in ("type", "status"))
                assert datetime.fromisoformat(condition["lastTransitionTime"]).tzinfo is not None
            assert all(isinstance(key, str) for index in NODE_RECORD.indexes.values() for key in index(found))


def test_a_condition_has_a_time_that_can_be_counted_from() -> None:
    for time in TIMES:
        odd = {**NODE, "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]}}
        assert NODE_RECORD.project(odd)["status"]["conditions"][0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"


def test_a_heartbeat_changes_nothing_in_the_record() -> None:
    beat = {**NODE["status"]["conditions"][0], "lastHeartbeatTime": "later"}
    assert NODE_RECORD.project({**NODE, "status": {**NODE["status"], "conditions": [beat]}}) == NODE_RECORD.project(
        NODE
    )


def test_a_bare_node_has_a_record() -> None:
    record = NODE_RECORD.project({"metadata": {"name": "n"}})
    assert record["status"] == {"conditions": []}
    assert list(NODE_RECORD.indexes["providerID"](record)) == []
    assert node_condition(record, "Ready") is None


def test_all_who_look_at_a_clusters_nodes_share_one_watch() -> None:
    wishes = [node_by_provider_id("ns/c", "x://1"), node_by_name("ns/c", "n"), all_nodes("ns/c")]
    assert {wish.projection for wish in wishes} == {NODE_RECORD}
    for wish in wishes[:2]:
        assert wish.focus is not None
        index, value = wish.focus
        assert list(NODE_RECORD.indexes[index](NODE_RECORD.project(NODE))) == [value]


POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b"},
        "annotations": {MIRROR: "x"},
        "ownerReferences": [{"kind": "DaemonSet", "name": "d", "controller": True}],
    },
    "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "emptyDir": {}}]},
    "status": {"phase": "Running"},
}


def test_records_of_a_drain_have_the_types_of_their_objects() -> None:
    for place in places(POD):
        for odd in ODD if place else ():
            answered = replaced(POD, place, odd)
            found = POD_RECORD.project(answered)
            assert "/" in full_name(found)
            assert all(isinstance(claim, str) for claim in claims_of(found))
            assert isinstance(controller_of(found), dict | None)
            assert isinstance(found["status"]["phase"], str)
            if deleted := found["metadata"].get("deletionTimestamp"):
                assert datetime.fromisoformat(deleted).tzinfo is not None
            for record in (DAEMON_SET_RECORD, NAMESPACE_RECORD):
                assert isinstance(record.project(answered)["metadata"].get("labels", {}), dict)


VOLUME: Object = {
    "metadata": {"name": "v", "uid": "u"},
    "spec": {
        "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "n", "name": "c"},
        "nodeName": "n",
        "source": {"persistentVolumeName": "v"},
    },
    "status": {"attached": True},
}


def test_records_of_volumes_have_the_types_of_their_objects() -> None:
    for place in places(VOLUME):
        for odd in ODD if place else ():
            answered = replaced(VOLUME, place, odd)
            volume, attachment = VOLUME_RECORD.project(answered), ATTACHMENT_RECORD.project(answered)
            assert all(isinstance(part, str) for part in (*volume["spec"]["csi"].values(), volume["metadata"]["name"]))
            assert all(isinstance(part, str) for part in volume["spec"]["claimRef"].values())
            assert isinstance(attachment["spec"]["source"]["persistentVolumeName"], str)
            assert all(
                isinstance(key, str) for index in ATTACHMENT_RECORD.indexes.values() for key in index(attachment)
            )


def test_other_records_of_nodes_bear_the_same() -> None:
    for place in places(NODE):
        for odd in ODD if place else ():
            answered = replaced(NODE, place, odd)
            assert isinstance(PROVISIONED.project(answered)["metadata"]["name"], str)
            assert isinstance(MANAGED.project(answered)["version"], str)
    wrong = {"status": {"addresses": [7, {"type": "InternalIP"}, {"type": "InternalIP", "address": "10.0.0.1"}]}}
    assert addresses_of(wrong) == [{"type": "InternalIP", "address": "10.0.0.1"}]
