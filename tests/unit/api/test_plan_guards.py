"""Guards of plans: no plan that could harm a cluster is written, whatever a controller decided."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.names import PAUSED
from herder.api.rke import names, operations
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan_secret import encoded
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Patch, Ref
from tests.support.views import NOW
from tests.unit.api.guards.plan_writes import HEALTHY, NEW, denied_by, mark_init, write
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAMESPACE, SERVER, WORKER, machine, plan_of, plan_secret


def test_a_correct_plan_is_allowed() -> None:
    assert denied_by(write("a", NEW), machine("a"), plan_secret("a", plan=plan_of())) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"plan-state": encoded("succeeded")}},
        {"data": {"probe-statuses": encoded("{}")}},
        {"version": ""},
    ],
    ids=["the state of the last plan", "the probes of the last plan", "without a resource version"],
)
def test_a_plan_is_written_with_a_fresh_state_and_a_resource_version(wrong: dict[str, Any]) -> None:
    action = write("a", NEW, **wrong)
    assert denied_by(action, machine("a"), plan_secret("a", plan=plan_of())) == "write-plan-with-state"


def test_a_plan_needs_ownership_of_the_beacon() -> None:
    existing = machine("a"), plan_secret("a", plan=plan_of())
    cluster = (objects.cluster(), objects.control_plane(), objects.beacon("restore"))
    assert denied_by(write("a", NEW), *existing, cluster=cluster) == "require-beacon-ownership"
    assert denied_by(write("a", NEW), *existing, cluster=cluster[:2]) == "require-beacon-ownership"


def _paused_machine() -> Object:
    obj = machine("a")
    obj["metadata"]["annotations"] = {PAUSED: ""}
    return obj


@pytest.mark.parametrize(
    ("cluster", "target"),
    [
        ((objects.cluster(paused=True), objects.control_plane(), objects.beacon()), machine("a")),
        ((objects.cluster(), objects.control_plane(annotations={PAUSED: ""}), objects.beacon()), machine("a")),
        (HEALTHY, _paused_machine()),
    ],
    ids=["the cluster", "the control plane", "the machine"],
)
def test_no_plan_is_written_while_paused(cluster: tuple[Object, ...], target: Object) -> None:
    existing = target, plan_secret("a", plan=plan_of())
    assert denied_by(write("a", NEW), *existing, cluster=cluster) == "deny-plan-while-paused"
    retry = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE), {"data": {"plan-state": encoded("pending")}}, "once more"
    )
    failed = plan_secret("a", plan=plan_of(), state="failed")
    assert denied_by(retry, target, failed, cluster=cluster) == "deny-plan-while-paused"


def test_no_plan_is_written_for_a_deleting_machine() -> None:
    assert denied_by(write("a", NEW), machine("a", deleting=True), plan_secret("a")) == "deny-plan-for-deleting-machine"
    assert denied_by(write("a", NEW), plan_secret("a")) == "deny-plan-for-deleting-machine"


def test_a_cluster_has_only_one_init_machine() -> None:
    first, second = plan_secret("a", init=True), plan_secret("b")
    assert denied_by(mark_init("b"), machine("a"), machine("b"), first, second) == "deny-second-init-node"
    unmarked = Patch(
        Ref(PLAN_SECRET, names.plan_secret("a"), NAMESPACE),
        {"metadata": {"labels": {names.INIT_NODE: None}}},
        "no more",
    )
    assert denied_by(mark_init("b"), machine("a"), machine("b"), first, second, before=(unmarked,)) == ""
    assert (
        denied_by(mark_init("b"), machine("a"), machine("b"), plan_secret("a"), second, before=(mark_init("a"),)) != ""
    )


def test_a_machine_outside_an_initialized_cluster_does_not_become_init() -> None:
    initialized = (
        objects.cluster(),
        objects.control_plane(controlPlaneEndpoint={"host": "10.0.0.1"}),
        objects.beacon(),
    )
    assert denied_by(mark_init("b"), machine("b"), plan_secret("b"), cluster=initialized) == "deny-second-init-node"
    member = plan_secret("b", annotations={names.JOIN_URL: "https://10.0.0.2:6443"})
    assert denied_by(mark_init("b"), machine("b"), member, cluster=initialized) == ""


def test_a_machine_that_is_not_init_joins_a_server() -> None:
    alone = write("a", NEW, joins="")
    assert denied_by(alone, machine("a"), plan_secret("a")) == "require-join-server"
    assert denied_by(alone, machine("a"), plan_secret("a", init=True)) == ""


@pytest.mark.parametrize(
    ("version", "phase", "mode", "guard"),
    [
        ("v1.34.0", "", "", ""),
        ("v1.33.4", "", "", ""),
        ("v1.33.3", "", "all", "deny-downgrade"),
        ("v1.9.9", "", "all", "deny-downgrade"),
        ("v1.32.9", "Finished", "all", "deny-downgrade"),
        ("v1.32.9", "Shutdown", "all", "deny-downgrade"),
        ("v1.32.9", "Restore", "all", ""),
        ("v1.32.9", "InitialRestartCluster", "kubernetesVersion", ""),
        ("v1.32.9", "Restore", "none", "deny-downgrade"),
        ("v1.32.9", "Restore", "", "deny-downgrade"),
        ("v1.32.8", "Restore", "all", "deny-downgrade"),  # not the version of the spec
    ],
)
def test_a_downgrade_needs_a_restore_of_its_version(version: str, phase: str, mode: str, guard: str) -> None:
    run = operations.Run("restore-1", operations.RESTORE, phase, 1, started_at=NOW)
    request = {"generation": 1, "name": "old", "restoreRKEConfig": mode}
    status = {"operation": run.to_status(), operations.RESTORE: request}
    control_plane = objects.control_plane(status, kubernetesVersion="v1.32.9+k3s1")
    cluster = (objects.cluster(), control_plane, objects.beacon())
    existing = machine("a"), plan_secret("a", (WORKER,), plan=plan_of())
    change = write("a", plan_of(version, stamp="2"))
    change.patch["metadata"]["annotations"][names.PLAN_TASK] = run.mark
    assert denied_by(change, *existing, cluster=cluster) == guard
    del change.patch["metadata"]["annotations"][names.PLAN_TASK]
    assert denied_by(change, *existing, cluster=cluster) == (guard or ("deny-downgrade" if phase else ""))


@pytest.mark.parametrize(
    ("version", "kubelet", "newer", "guard"),
    [
        ("v1.33.4", "v1.33.5+k3s1", False, "deny-downgrade"),  # upgraded since the backup of the manager's store
        ("v1.33.5", "v1.33.5+k3s1", True, ""),
        ("v1.33.4", "", True, "deny-downgrade"),  # the Node was not read yet
        ("v1.33.4", "", False, ""),
        ("v1.33.4", "v1.33.4+k3s1", True, ""),
    ],
)
def test_a_plan_is_not_older_than_what_the_node_reports(version: str, kubelet: str, newer: bool, guard: str) -> None:
    data = {"plan-revision": "1", "local-plan-revision": "2", "local-applied-checksum": "abc"} if newer else {}
    node_info = {"nodeInfo": {"kubeletVersion": kubelet}} if kubelet else {}
    existing = machine("a", **node_info), plan_secret("a", (WORKER,), plan=plan_of(), data=data)
    assert denied_by(write("a", plan_of(version, stamp="2")), *existing) == guard


ALLOWED = {names.ALLOW_VERSION_SKIP: "v1.36.3+k3s1"}


@pytest.mark.parametrize(
    ("roles", "version", "annotations", "kubelet", "guard"),
    [
        (SERVER, "v1.34.9", {}, "v1.33.4+k3s1", ""),
        (SERVER, "v1.35.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "v1.32.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v1.34.0", {}, "no version", ""),
        (SERVER, "v1.36.3", ALLOWED, "v1.33.4+k3s1", ""),
        (SERVER, "v1.36.2", ALLOWED, "v1.33.4+k3s1", "deny-minor-version-skip"),
        (SERVER, "v2.1.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.33.4+k3s1", ""),  # a worker may skip the versions of its servers
        ((WORKER,), "v1.37.0", {}, "v1.33.4+k3s1", "deny-minor-version-skip"),
        ((WORKER,), "v1.36.3", {}, "v1.0.0", "deny-minor-version-skip"),
    ],
)
def test_minor_versions_are_not_skipped(
    roles: tuple[str, ...], version: str, annotations: dict[str, str], kubelet: str, guard: str
) -> None:
    control_plane = objects.control_plane(annotations=annotations, kubernetesVersion=f"{version}+k3s1")
    cluster = (objects.cluster(), control_plane, objects.beacon())
    existing = machine("a", nodeInfo={"kubeletVersion": kubelet}), plan_secret("a", roles, plan=plan_of())
    assert denied_by(write("a", plan_of(version, stamp="2")), *existing, cluster=cluster) == guard
