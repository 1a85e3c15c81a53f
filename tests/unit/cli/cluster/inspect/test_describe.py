"""The tree of a cluster, as text and as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.api.capi.contract import Contract
from herder.api.capi.crds import CRDS
from herder.app.install import install_kinds
from herder.cli.cluster.inspect.tree import ClusterObjects, Referenced, as_data, cluster_tree, render
from herder.cli.get import Listing, _print_table
from herder.engine.client.discovery import Found
from herder.engine.meta.kinds import GroupVersionResource, Kind
from tests.support.builders import new_condition, new_object
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.unit.cli.commands import expect_failure, herder

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
LONG_AGO, RECENTLY = "2026-01-01T11:00:00Z", "2026-01-01T11:59:30Z"


def condition(type_: str, status: str = "True", reason: str = "", message: str = "", at: str = LONG_AGO) -> Any:
    return new_condition(type_, status, reason, message, since=at)


def tree_object(kind: str, name: str, *conditions: Any, owner: str = "", deleting: bool = False, **fields: Any) -> Any:
    """An object whose UID is its name, so that `owner` names the controlling object of any kind."""
    owners = [{"uid": owner, "controller": True}] if owner else []
    status = {**fields.pop("status", {}), "conditions": list(conditions)}
    options = {"owners": owners, "deleting": deleting, "metadata": {"uid": name}, "status": status, **fields}
    return new_object(Kind("example.com", "v1", kind, f"{kind.lower()}s"), name, **options)


def machine(name: str, *conditions: Any, **fields: Any) -> Any:
    good = condition("Ready"), condition("Available"), condition("UpToDate")
    return tree_object("Machine", name, *(conditions or good), **fields)


def replica_counts(replicas: int, ready: int | None = None) -> dict[str, int]:
    good = replicas if ready is None else ready
    return {"replicas": replicas, "readyReplicas": good, "availableReplicas": good, "upToDateReplicas": replicas}


WAITING = condition("Ready", "False", "NotReady", "no network", at=RECENTLY)
OBJECTS = ClusterObjects(
    cluster=tree_object(
        "Cluster",
        "prod",
        condition("Available", "False", "NotAvailable", "* Workers:\n  * md: 3 of 4"),
        status={
            "controlPlane": {**replica_counts(1), "desiredReplicas": 1},
            "workers": {**replica_counts(4, 3), "desiredReplicas": 4},
        },
    ),
    infrastructure=Referenced({}, tree_object("Pen", "one", condition("Ready"))),
    control_plane=Referenced(
        {}, tree_object("Pasture", "prod-cp", condition("Available"), status=replica_counts(1), spec={"replicas": 1})
    ),
    machine_deployments=[
        tree_object(
            "MachineDeployment",
            "md",
            condition("Available", "False"),
            status=replica_counts(4, 3),
            spec={"replicas": 4},
        )
    ],
    machine_sets=[
        tree_object("MachineSet", "md-new", owner="md", status=replica_counts(4, 3), spec={"replicas": 4}),
        tree_object("MachineSet", "md-old", owner="md", status=replica_counts(0), spec={"replicas": 0}),
    ],
    machines=[
        machine("cp-1", owner="prod-cp", labels={"cluster.x-k8s.io/control-plane": ""}),
        machine("md-c", owner="md-new"),
        machine("md-a", owner="md-new"),
        machine("md-b", condition("Ready", at=RECENTLY), condition("Available"), condition("UpToDate"), owner="md-new"),
        machine("md-d", WAITING, condition("UpToDate"), owner="md-new"),
    ],
)


def rendered(objects: ClusterObjects, **options: bool) -> str:
    return "\n".join(render(cluster_tree(objects, **options), NOW))


def names(objects: ClusterObjects, **options: bool) -> list[str]:
    """The first column of the tree."""
    lines = rendered(objects, **options).splitlines()
    width = lines[0].index("REPLICAS")
    return [line[:width].rstrip() for line in lines[1:]]


EXPECTED = """\
NAME                               REPLICAS  AVAILABLE  READY  UP TO DATE  STATUS  REASON        SINCE  MESSAGE
Cluster/prod                       5/5       4          4      5           False   NotAvailable  60m    * Workers:
│                                                                                                         * md: 3 of 4
├─ClusterInfrastructure - Pen/one                                          True    Ready         60m
├─ControlPlane - Pasture/prod-cp   1/1       1          1      1           True    Available     60m
│ └─Machine/cp-1                   1         1          1      1           True    Ready         60m
└─Workers
  └─MachineDeployment/md           4/4       3          3      4           False   Available     60m
    └─MachineSet/md-new            4/4       3          3      4
      ├─3 Machines                 3         3          3      3           True    Ready         60m    md-a, md-b, md-c
      └─Machine/md-d               1         0          0      1           False   NotReady      30s    no network
"""


def test_the_tree_is_rendered_as_a_table() -> None:
    assert rendered(OBJECTS) + "\n" == EXPECTED


def test_expand_shows_every_machine_and_empty_set() -> None:
    assert names(OBJECTS, expand=True)[-7:] == [
        "  └─MachineDeployment/md",
        "    ├─MachineSet/md-new",
        "    │ ├─Machine/md-a",
        "    │ ├─Machine/md-b",
        "    │ ├─Machine/md-c",
        "    │ └─Machine/md-d",
        "    └─MachineSet/md-old",
    ]


CLUSTER = tree_object("Cluster", "c")
CP = {"labels": {"cluster.x-k8s.io/control-plane": ""}}


@pytest.mark.parametrize(
    ("objects", "lines"),
    [
        pytest.param(ClusterObjects(CLUSTER), ["Cluster/c"], id="nothing yet"),
        pytest.param(
            ClusterObjects(tree_object("Cluster", "c", spec={"paused": True}, deleting=True)),
            ["Cluster/c (deleting, paused)"],
            id="paused and deleting",
        ),
        pytest.param(
            ClusterObjects(
                CLUSTER, infrastructure=Referenced({"kind": "Pasture", "name": "p"}, None, problem="does not exist")
            ),
            ["Cluster/c", "└─ClusterInfrastructure - Pasture/p"],
            id="missing infrastructure",
        ),
        pytest.param(
            ClusterObjects(CLUSTER, machines=[machine("a", **CP)]),
            ["Cluster/c", "└─ControlPlane", "  └─Machine/a"],
            id="a control plane without an object",
        ),
        pytest.param(
            ClusterObjects(
                CLUSTER,
                machine_deployments=[tree_object("MachineDeployment", "md")],
                machine_sets=[tree_object("MachineSet", "ms", owner="md")],
                machines=[machine("a", owner="ms", **CP)],
            ),
            ["Cluster/c", "└─Workers", "  └─MachineDeployment/md", "    └─MachineSet/ms", "      └─Machine/a"],
            id="control plane Machines of a deployment are shown once",
        ),
        pytest.param(
            ClusterObjects(
                CLUSTER,
                machine_sets=[tree_object("MachineSet", "ms")],
                machine_pools=[tree_object("MachinePool", "mp")],
                machines=[machine("a", owner="ms"), machine("b", owner="mp"), machine("c")],
            ),
            [
                "Cluster/c",
                "└─Workers",
                "  ├─MachineSet/ms",
                "  │ └─Machine/a",
                "  ├─MachinePool/mp",
                "  │ └─Machine/b",
                "  └─Other",
                "    └─Machine/c",
            ],
            id="sets, pools and Machines without owner",
        ),
        pytest.param(
            ClusterObjects(CLUSTER, machines=[machine("a", deleting=True), machine("b", deleting=True), machine("c")]),
            ["Cluster/c", "└─Workers", "  └─Other", "    ├─2 Machines (deleting)", "    └─Machine/c"],
            id="deleting Machines are grouped apart",
        ),
    ],
)
def test_structure_of_the_tree(objects: ClusterObjects, lines: list[str]) -> None:
    assert names(objects) == lines


def message_of(objects: ClusterObjects) -> str:
    node = cluster_tree(objects)
    while node.children:
        node = node.children[0]
    return str(node.condition.get("message", ""))


def test_a_group_names_some_machines_and_their_common_message() -> None:
    waiting = [machine(f"m-{i}", condition("Ready", "False", "NotReady", "no network")) for i in range(5)]
    assert message_of(ClusterObjects(CLUSTER, machines=waiting)) == "m-0, m-1, m-2 and 2 more:\nno network"


def test_a_group_with_different_messages_only_names_its_machines() -> None:
    waiting = [machine(f"m-{i}", condition("Ready", "False", "NotReady", f"no network {i}")) for i in range(2)]
    assert message_of(ClusterObjects(CLUSTER, machines=waiting)) == "m-0, m-1"


def test_a_deleting_machine_shows_its_deletion_progress() -> None:
    deleting_machine = machine("a", condition("Ready"), condition("Deleting", message="draining"), deleting=True)
    assert message_of(ClusterObjects(CLUSTER, machines=[deleting_machine])) == "draining"


def test_a_missing_object_is_reported() -> None:
    objects = ClusterObjects(
        CLUSTER, control_plane=Referenced({"kind": "Pasture", "name": "p"}, None, problem="does not exist")
    )
    assert message_of(objects) == "does not exist"


def test_counters_are_read_from_the_fields_of_the_contract() -> None:
    old = tree_object(
        "Pasture", "p", status={"replicas": 3, "updatedReplicas": 2, "unavailableReplicas": 1}, spec={"replicas": 3}
    )
    objects = ClusterObjects(CLUSTER, control_plane=Referenced({}, old, Contract.V1BETA1))
    counts = cluster_tree(objects).children[0].counts
    assert (counts.replicas, counts.desired, counts.available, counts.up_to_date) == (3, 3, 2, 2)


def test_long_messages_wrap_within_their_column() -> None:
    available = condition("Available", "False", "NotAvailable", "* " + "word " * 30)
    lines = rendered(ClusterObjects(tree_object("Cluster", "c", available))).splitlines()
    start = lines[0].index("MESSAGE")
    assert lines[1][start:].startswith("* word")
    assert lines[2][start:].startswith("  word")
    assert max(map(len, lines)) <= start + 100


def test_the_tree_as_data() -> None:
    data = as_data(cluster_tree(OBJECTS))
    workers = data["children"][2]
    assert workers["name"] == "Workers"
    machines = workers["children"][0]["children"][0]["children"]
    assert [(entry["name"], entry.get("members")) for entry in machines] == [
        ("3 Machines", ["md-a", "md-b", "md-c"]),
        ("Machine/md-d", None),
    ]
    assert machines[1]["condition"] == WAITING
    assert {name: machines[1][name] for name in ("replicas", "available", "ready", "up_to_date")} == {
        "replicas": 1,
        "available": 0,
        "ready": 0,
        "up_to_date": 1,
    }
    assert "desired" not in machines[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        yield Engine("embedded", server.kubeconfig)


async def test_describe_prints_a_stored_cluster(server: Engine) -> None:
    client = server.client()
    try:
        await install_kinds(client, CRDS)
    finally:
        await client.close()
    server.kubectl("apply", "-f", "-", stdin=json.dumps(STORED))
    config = ("--kubeconfig", server.kubeconfig)
    output = herder("describe", "cluster", "stored", *config).stdout.splitlines()
    assert [line.split("  ")[0] for line in output[1:]] == [
        "Cluster/stored (paused)",
        "└─ClusterInfrastructure - Barn/b",
    ]
    assert "CustomResourceDefinition barns.example.com does not exist" in output[2]
    data = json.loads(herder("describe", "cluster", "stored", "-o", "json", *config).stdout)
    assert data["children"][0]["role"] == "ClusterInfrastructure"
    assert 'cluster "other" not found in namespace default or fleet-default' in expect_failure(
        "describe", "cluster", "other", *config
    )
    assert 'cluster "stored" not found in namespace elsewhere;' in expect_failure(
        "describe", "cluster", "stored", "-n", "elsewhere", *config
    )


def test_a_cluster_of_the_workspace_is_found_without_a_namespace(server: Engine) -> None:
    server.kubectl("create", "namespace", "fleet-default")
    elsewhere = {**STORED, "metadata": {"name": "provisioned", "namespace": "fleet-default"}}
    server.kubectl("apply", "-f", "-", stdin=json.dumps(elsewhere))
    output = herder("describe", "cluster", "provisioned", "--kubeconfig", server.kubeconfig).stdout
    assert "Cluster/provisioned (paused)" in output


STORED = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "stored", "namespace": "default"},
    "spec": {"paused": True, "infrastructureRef": {"apiGroup": "example.com", "kind": "Barn", "name": "b"}},
}


def test_the_tree_escapes_control_characters() -> None:
    """Messages of Machines come from nodes, drivers and clusters of other users."""
    available = condition("Available", "False", "NotReady\x1b]0;mine\x07", "\x1b[2J\x1b[1;1HAll is well\x9b31m")
    text = "\n".join(
        render(cluster_tree(ClusterObjects(cluster=tree_object("Cluster", "meadow", available)), expand=True), NOW)
    )
    assert "All is well" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b"}


def test_a_table_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"cells": ["\x1b[2Jmeadow"], "object": {"metadata": {"name": "meadow"}}}
    table = {"kind": "Table", "columnDefinitions": [{"name": "Name"}], "rows": [row]}
    found = Found(GroupVersionResource("", "v1", "things"), "Thing", namespaced=False)
    _print_table(table, Listing(found, "", (), "", "", ""), is_first=True)
    assert "\x1b" not in capsys.readouterr().out
