"""Differences between a restored store and the cluster, and which of them keep it from being resumed."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import NODE
from herder.api.management.differences import ClusterState, differences, observed_version
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.node.held_plan import HELD_PLAN
from herder.api.rke.operations import RESTORE, Run
from tests.support.builders import new_object
from tests.support.views import NOW
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import machine, plan_of, plan_secret

VERSION = "v1.33.4+k3s1"


def node(name: str, version: str = VERSION, *, server: bool = False, uid: str = "") -> Any:
    labels = {names.MACHINE_UID: uid or f"Machine-{name}"}
    labels |= {"node-role.kubernetes.io/control-plane": "true"} if server else {}
    return new_object(NODE, name, labels=labels, status={"nodeInfo": {"kubeletVersion": version}})


def state(**changes: Any) -> ClusterState:
    """A cluster without differences, and these changes."""
    version = changes.pop("version", VERSION)
    cluster = new_object(PROVISIONING_CLUSTER, "demo", "fleet-default", spec={"kubernetesVersion": version})
    fields: dict[str, Any] = {
        "cluster": cluster,
        "control_plane": objects.control_plane(),
        "machines": [machine("a", nodeRef={"name": "a"}), machine("b", nodeRef={"name": "b"})],
        "plans": [plan_secret("a", plan=plan_of()), plan_secret("b", plan=plan_of())],
        "nodes": [node("a", server=True), node("b")],
    }
    return ClusterState(**fields | changes)


def found(compared: ClusterState) -> list[tuple[str, str, bool]]:
    return [(each.reason, each.subject, each.blocks) for each in differences(compared)]


NEWER = {"plan-revision": "1", "local-plan-revision": "3", "local-applied-checksum": "abc"}
HELD = {HELD_PLAN: "abc"}
REQUESTED = {RESTORE: {"name": "old", "generation": 2}}
RESTORING = {"operation": Run("restore-1", RESTORE, "Restore", 1, started_at=NOW).to_status()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"nodes": [node("a", server=True), node("b"), node("c")]}, [("UnknownNode", "Node c", False)]),
        ({"nodes": [node("a", server=True), node("b"), node("c", server=True)]}, [("UnknownNode", "Node c", True)]),
        ({"nodes": [node("a", server=True)]}, [("MissingNode", "Machine b", True)]),
        ({"nodes": [node("a", server=True), node("renamed", uid="Machine-b")], "plans": []}, []),
        ({"nodes": [node("b"), node("renamed", server=True, uid="Machine-a")]}, []),
        ({"nodes": [node("b", server=True, uid="Machine-a")]}, [("MissingNode", "Machine a", True)]),
        ({"nodes": [node("b"), node("added", uid="Machine-a")]}, [("MissingNode", "Machine a", True)]),
        ({"nodes": [node("a", "v1.33.5+k3s1", server=True), node("b")]}, [("NewerVersion", "Node a", True)]),
        ({"nodes": [node("a", server=True), node("b", "v1.99.0+k3s1")]}, [("NewerVersion", "Node b", False)]),
        ({"nodes": [node("a", "v1.33.5+k3s1"), node("b")]}, [("NewerVersion", "Node a", True)]),
        ({"nodes": [node("a", "v1.33.3+k3s1", server=True), node("b", "garbage")]}, []),
        ({"nodes": None, "unreachable": "no agent"}, [("NotComparable", "cluster", True)]),
        ({"machines": [machine("a"), machine("b", deleting=True)]}, [("Deleting", "Machine b", True)]),
        ({"control_plane": objects.control_plane(RESTORING)}, [("OperationInProgress", "cluster", True)]),
        ({"control_plane": objects.control_plane(**REQUESTED)}, [("OperationRequested", "cluster", True)]),
        ({"plans": [plan_secret("a", plan=plan_of(), data=NEWER)]}, [("NewerPlan", "Machine a", True)]),
        ({"plans": [plan_secret("a", plan=plan_of(), annotations=HELD)]}, [("HeldPlan", "Machine a", False)]),
    ],
    ids=[
        "none", "worker added", "server added", "machine lost", "node renamed", "server renamed",
        "label of a known node", "label of an added worker", "upgraded", "worker upgraded",
        "no server", "older version", "unreachable", "deletion", "operation", "request",
        "newer plan", "held plan",
    ],
)  # fmt: skip
def test_differences(changes: dict[str, Any], expected: list[tuple[str, str, bool]]) -> None:
    assert found(state(**changes)) == expected


def test_a_newer_version_explains_a_newer_plan() -> None:
    compared = state(
        nodes=[node("a", "v1.33.5+k3s1", server=True), node("b")], plans=[plan_secret("a", plan=plan_of(), data=NEWER)]
    )
    assert found(compared) == [("NewerVersion", "Node a", True), ("NewerPlan", "Machine a", False)]


def test_the_version_of_a_worker_does_not_hide_a_newer_plan() -> None:
    compared = state(
        nodes=[node("a", server=True), node("b", "v1.99.0+k3s1")], plans=[plan_secret("a", plan=plan_of(), data=NEWER)]
    )
    assert found(compared) == [("NewerVersion", "Node b", False), ("NewerPlan", "Machine a", True)]


def test_a_deletion_of_the_cluster_blocks() -> None:
    cluster = new_object(
        PROVISIONING_CLUSTER, "demo", "fleet-default", deleting=True, spec={"kubernetesVersion": VERSION}
    )
    assert found(state(cluster=cluster)) == [("Deleting", "cluster", True)]


@pytest.mark.parametrize(
    ("wanted", "nodes", "version"),
    [
        (VERSION, [node("a", server=True)], ""),
        (VERSION, [node("a", "v1.33.5+k3s2", server=True)], "v1.33.5+k3s2"),
        (VERSION, [node("a", server=True), node("b", "v1.99.0+k3s1")], ""),
        ("v1.33.4+kubeadm1", [node("a", "v1.33.5", server=True)], "v1.33.5+kubeadm1"),
        (VERSION, None, ""),
    ],
    ids=["same", "newer", "a worker does not count", "kubelet without distribution", "unreachable"],
)
def test_the_observed_version_is_the_highest_of_the_servers(wanted: str, nodes: Any, version: str) -> None:
    assert observed_version(state(version=wanted, nodes=nodes)) == version


def test_what_nodes_report_cannot_control_a_terminal() -> None:
    [difference] = differences(state(nodes=[node("a", "v9.9.9\x1b[2J", server=True), node("b")]))
    assert "\x1b" not in difference.message
