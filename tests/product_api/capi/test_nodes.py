"""What is kept of a Node."""

from __future__ import annotations

from herder.api.capi.nodes import NODE_RECORD, all_nodes, node_by_name, node_by_provider_id, node_condition
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
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "now", "lastTransitionTime": "then"}],
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
            "volumesAttached": [{"name": "v", "devicePath": "/dev/v"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}],
        },
    }


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
