"""Records of Nodes, pods and volumes that informers keep."""

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


def test_a_node_record_keeps_only_the_fields_that_are_read() -> None:
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


MALFORMED: tuple[Any, ...] = (
    None,
    7,
    -1.5,
    True,
    "x",
    "9" * 5000,
    [],
    [None, 7],
    [[]],
    {},
    {"a": None},
    {"a": {"b": []}},
)
MALFORMED_TIMES = ("then", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00", 7, None)


def paths(value: Any) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield ()
    for key, entry in entries:
        yield from ((key, *rest) for rest in paths(entry))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copied = copy.copy(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], other)
    return copied


def test_a_record_of_a_malformed_node_has_valid_types() -> None:
    """Replace every part of a Node with every malformed value: a compromised API server can return anything."""
    full_node = {**NODE, "spec": {**NODE["spec"], "taints": [{"key": "k", "effect": "NoSchedule"}]}}
    for path in paths(full_node):
        for malformed in MALFORMED if path else ():
            found = NODE_RECORD.project(replaced(full_node, path, malformed))
            assert all(isinstance(label, str) for label in found["metadata"].get("labels", {}).values())
            assert all(isinstance(taint.get("key", ""), str) for taint in found["spec"].get("taints", ()))
            assert all(isinstance(volume["name"], str) for volume in found["status"].get("volumesAttached", ()))
            assert all(isinstance(text, str) for text in found["status"].get("nodeInfo", {}).values())
            for condition in found["status"]["conditions"]:
                assert all(isinstance(condition[field], str) for field in ("type", "status"))
                assert datetime.fromisoformat(condition["lastTransitionTime"]).tzinfo is not None
            assert all(isinstance(key, str) for index in NODE_RECORD.indexes.values() for key in index(found))


def test_a_malformed_transition_time_is_replaced_with_the_epoch() -> None:
    for time in MALFORMED_TIMES:
        node = {**NODE, "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]}}
        assert NODE_RECORD.project(node)["status"]["conditions"][0]["lastTransitionTime"] == "1970-01-01T00:00:00Z"


def test_a_heartbeat_does_not_change_the_record() -> None:
    beat = {**NODE["status"]["conditions"][0], "lastHeartbeatTime": "later"}
    assert NODE_RECORD.project({**NODE, "status": {**NODE["status"], "conditions": [beat]}}) == NODE_RECORD.project(
        NODE
    )


def test_an_empty_node_has_a_record() -> None:
    record = NODE_RECORD.project({"metadata": {"name": "n"}})
    assert record["status"] == {"conditions": []}
    assert list(NODE_RECORD.indexes["providerID"](record)) == []
    assert node_condition(record, "Ready") is None


def test_all_observers_of_the_nodes_of_a_cluster_share_one_watch() -> None:
    observations = [node_by_provider_id("ns/c", "x://1"), node_by_name("ns/c", "n"), all_nodes("ns/c")]
    assert {observation.projection for observation in observations} == {NODE_RECORD}
    for observation in observations[:2]:
        assert observation.focus is not None
        index, value = observation.focus
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


def test_drain_records_of_malformed_objects_have_valid_types() -> None:
    for path in paths(POD):
        for malformed in MALFORMED if path else ():
            malformed_object = replaced(POD, path, malformed)
            found = POD_RECORD.project(malformed_object)
            assert "/" in full_name(found)
            assert all(isinstance(claim, str) for claim in claims_of(found))
            assert isinstance(controller_of(found), dict | None)
            assert isinstance(found["status"]["phase"], str)
            if deleted := found["metadata"].get("deletionTimestamp"):
                assert datetime.fromisoformat(deleted).tzinfo is not None
            for record in (DAEMON_SET_RECORD, NAMESPACE_RECORD):
                assert isinstance(record.project(malformed_object)["metadata"].get("labels", {}), dict)


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


def test_volume_records_of_malformed_objects_have_valid_types() -> None:
    for path in paths(VOLUME):
        for malformed in MALFORMED if path else ():
            malformed_object = replaced(VOLUME, path, malformed)
            volume, attachment = VOLUME_RECORD.project(malformed_object), ATTACHMENT_RECORD.project(malformed_object)
            assert all(isinstance(part, str) for part in (*volume["spec"]["csi"].values(), volume["metadata"]["name"]))
            assert all(isinstance(part, str) for part in volume["spec"]["claimRef"].values())
            assert isinstance(attachment["spec"]["source"]["persistentVolumeName"], str)
            assert all(
                isinstance(key, str) for index in ATTACHMENT_RECORD.indexes.values() for key in index(attachment)
            )


def test_other_records_of_malformed_nodes_have_valid_types() -> None:
    for path in paths(NODE):
        for malformed in MALFORMED if path else ():
            malformed_object = replaced(NODE, path, malformed)
            assert isinstance(PROVISIONED.project(malformed_object)["metadata"]["name"], str)
            assert isinstance(MANAGED.project(malformed_object)["version"], str)
    wrong = {"status": {"addresses": [7, {"type": "InternalIP"}, {"type": "InternalIP", "address": "10.0.0.1"}]}}
    assert addresses_of(wrong) == [{"type": "InternalIP", "address": "10.0.0.1"}]
