"""Rollout, scaling, propagation, adoption and deletion of MachineDeployments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Delete
from tests.support.builders import condition_fields, owner_reference_to, writes_of
from tests.support.views import NOW
from tests.unit.controllers.capi.machinedeployment.objects import (
    LABELS,
    NAME,
    DeploymentServer,
    deployment,
    revision,
    settled,
)
from tests.unit.controllers.capi.objects import BOOTSTRAP_TEMPLATE, INFRA, INFRA_TEMPLATE, provider_object, template

PREFIX = "machinedeployment.clusters.x-k8s.io"


def _condition(server: DeploymentServer, type_: str) -> tuple[str, str, str]:
    return condition_fields(server.deployment, type_)


# --- creation --------------------------------------------------------------------------------------------------------


def test_deployment_is_prepared_in_one_write() -> None:
    fresh = deployment()
    for field in ("finalizers", "labels", "ownerReferences"):
        del fresh["metadata"][field]
    server = DeploymentServer(fresh)
    server.reconcile(CONTROLLER, NAME)
    assert len(server.writes) == 1
    meta = server.deployment["metadata"]
    assert meta["finalizers"] == ["cluster.x-k8s.io/machinedeployment"]
    assert meta["labels"]["cluster.x-k8s.io/cluster-name"] == "herd"
    assert [(owner["kind"], owner.get("controller")) for owner in meta["ownerReferences"]] == [("Cluster", None)]


def test_first_machine_set_is_created_complete() -> None:
    server = DeploymentServer(
        deployment(3, deletion={"order": "Oldest"}, machineNaming={"template": "x-{{ .random }}"})
    )
    server.reconcile(CONTROLLER, NAME)
    (created_set,) = server.sets
    meta, spec = created_set["metadata"], created_set["spec"]
    assert meta["name"].startswith("pool-")
    assert meta["finalizers"] == ["cluster.x-k8s.io/machineset"]
    assert [(owner["uid"], owner["controller"]) for owner in meta["ownerReferences"]] == [("pool-uid", True)]
    assert meta["annotations"] == {
        f"{PREFIX}/revision": "1",
        f"{PREFIX}/desired-replicas": "3",
        f"{PREFIX}/max-replicas": "4",
        "cluster.x-k8s.io/disable-machine-create": "false",
    }
    template_hash = meta["labels"]["machine-template-hash"]
    assert template_hash.endswith(meta["name"].removeprefix("pool-"))
    assert meta["labels"] == LABELS | {"machine-template-hash": template_hash}
    assert spec["selector"]["matchLabels"] == LABELS | {"machine-template-hash": template_hash}
    assert spec["template"]["metadata"]["labels"] == LABELS | {"machine-template-hash": template_hash}
    assert (spec["replicas"], spec["deletion"], spec["machineNaming"]) == (
        3,
        {"order": "Oldest"},
        {"template": "x-{{ .random }}"},
    )
    assert spec["template"]["spec"]["version"] == "v1.31.0"
    assert revision(server.deployment) == "1"


def test_repeated_decisions_create_the_same_machine_set() -> None:
    server = DeploymentServer(deployment())
    decisions = [server.decide(CONTROLLER, NAME) for _ in range(2)]
    names = [
        write.obj["metadata"]["name"] for each in decisions for write in writes_of(each) if isinstance(write, Apply)
    ]
    assert len(names) == 2
    assert len(set(names)) == 1


def test_long_names_are_truncated_before_the_hash() -> None:
    long = deployment()
    long["metadata"]["name"] = "p" * 63
    server = DeploymentServer(long)
    server.reconcile(CONTROLLER, "p" * 63)
    assert [len(each["metadata"]["name"]) for each in server.all(MACHINE_SET)] == [63]


def test_available_deployment_is_not_written() -> None:
    server = settled(deployment(3))
    assert len(server.all(MACHINE)) == 3
    assert len(server.all(INFRA)) == 3
    server.run()
    assert not server.writes
    status = server.deployment["status"]
    assert status["phase"] == "Running"
    assert [status[name] for name in ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")] == [3] * 4


@pytest.mark.parametrize("kind", [INFRA_TEMPLATE, BOOTSTRAP_TEMPLATE])
def test_no_machine_set_is_created_without_templates(kind: Any) -> None:
    server = DeploymentServer(deployment(2))
    server.remove(server.all(kind)[0])
    server.run()
    assert not server.sets
    assert _condition(server, "ScalingUp") == (
        "True",
        "ScalingUp",
        f"Scaling up from 0 to 2 replicas is blocked because {kind.kind} does not exist",
    )
    assert _condition(server, "Available")[:2] == ("Unknown", "WaitingForAvailableReplicasSet")


def test_no_machine_set_is_created_while_the_cluster_is_deleting() -> None:
    server = DeploymentServer(deployment(2))
    server.change(server.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": timestamp(NOW)}})
    server.run()
    assert not server.sets


def test_deployment_without_replicas_waits() -> None:
    server = DeploymentServer(deployment(None))
    decision = server.reconcile(CONTROLLER, NAME, passes=2)
    assert decision.wait is not None
    assert not server.sets
    assert server.deployment["status"]["phase"] == "Unknown"
    for type_ in ("Available", "ScalingUp", "ScalingDown"):
        assert _condition(server, type_) == ("Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")


def test_paused_cluster_pauses_its_deployments() -> None:
    server = settled(deployment(1))
    server.change(server.get(CLUSTER, "herd"), {"spec": {"paused": True}})
    server.edit(replicas=5)
    server.run()
    assert len(server.all(MACHINE)) == 1
    assert _condition(server, "Paused") == ("True", "Paused", "Cluster spec.paused is set to true")


# --- rollout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"version": "v1.32.0"},
        {"failureDomain": "elsewhere"},
        {"infrastructureRef": {"name": "other"}},
        {"bootstrap": {"configRef": {"name": "other"}}},
    ],
)
def test_changes_that_need_new_machines_are_rolled_out(change: dict[str, Any]) -> None:
    server = settled(deployment(3))
    before = {each["metadata"]["name"] for each in server.all(MACHINE)}
    server.put(template(INFRA_TEMPLATE, "other"))
    server.put(template(BOOTSTRAP_TEMPLATE, "other"))
    server.edit_template(**change)
    server.run()
    after = {each["metadata"]["name"] for each in server.all(MACHINE)}
    assert len(after) == 3
    assert not before & after
    assert revision(server.deployment) == "2"


def test_rollout_respects_its_limits_and_deletes_old_sets() -> None:
    server = settled(deployment(3, surge=1, unavailable=0))
    server.edit_template(version="v1.32.0")
    history = []
    for _ in range(60):
        server.reconcile_all()
        machines = server.all(MACHINE)
        available = [each for each in machines if "deletionTimestamp" not in each["metadata"] and _available(each)]
        assert len(machines) <= 4
        assert len(available) >= 3
        history.append(tuple(server.replica_counts()))
        server.start_machines(server.all(MACHINE))
        server.finish_deletions()
    assert list(dict.fromkeys(history)) == [(3, 1), (2, 1), (2, 2), (1, 2), (1, 3), (0, 3), (3,)]
    assert [write.ref.kind for write in server.writes if isinstance(write, Delete)].count(MACHINE_SET) == 1


def test_unavailable_revision_stops_the_rollout() -> None:
    server = settled(deployment(3))
    server.edit_template(version="v1.32.0")
    for _ in range(10):
        server.reconcile_all()
    assert server.replica_counts() == [3, 1]
    server.start_machines(server.all(MACHINE))
    server.reconcile_all()
    assert _condition(server, "RollingOut") == (
        "True",
        "RollingOut",
        "Rolling out 3 not up-to-date replicas\n* Version v1.31.0, v1.32.0 required",
    )


def test_rollback_reuses_the_old_machine_set() -> None:
    server = settled(deployment(3))
    (first,) = server.sets
    server.edit_template(version="v1.32.0")
    for _ in range(3):
        server.reconcile_all()
    server.edit_template(version="v1.31.0")
    server.run()
    (last,) = server.sets
    assert last["metadata"]["uid"] == first["metadata"]["uid"]
    assert revision(last) == revision(server.deployment) == "3"


def test_matching_set_with_most_replicas_is_current() -> None:
    server = settled(deployment(3))
    (first,) = server.sets
    twin = {**first, "metadata": {**first["metadata"], "name": "a-twin", "uid": "twin-uid"}}
    server.put({**twin, "spec": {**first["spec"], "replicas": 1}})
    server.reconcile(CONTROLLER, NAME)
    assert server.get(MACHINE_SET, "a-twin")["spec"]["replicas"] == 0
    assert server.get(MACHINE_SET, first["metadata"]["name"])["spec"]["replicas"] == 3


def test_deleting_machine_set_is_replaced_within_the_limits() -> None:
    server = settled(deployment(3))
    server.change(server.sets[0], {"metadata": {"deletionTimestamp": timestamp(NOW)}})
    server.reconcile_all()
    assert len(server.sets) == 2
    assert len(server.all(MACHINE)) <= 4
    server.run()
    assert len(server.all(MACHINE)) == 3


# --- rolloutAfter ----------------------------------------------------------------------------------------------------


def test_rollout_after_happens_once_when_due() -> None:
    server = settled(deployment(2))
    (first,) = server.sets
    server.edit(rollout={"after": "2026-01-01T13:00:00Z"})
    decision = server.reconcile(CONTROLLER, NAME, passes=2)
    assert decision.wake_at is not None
    assert timestamp(decision.wake_at) == "2026-01-01T13:00:00Z"
    assert len(server.sets) == 1
    server.pass_time(hours=2)
    server.run()
    (last,) = server.sets
    assert last["metadata"]["uid"] != first["metadata"]["uid"]
    assert revision(last) == "2"


def test_clock_skew_does_not_repeat_rollout_after() -> None:
    server = settled(deployment(2))
    after = timestamp(server.now)
    server.edit(rollout={"after": after})
    server.reconcile(CONTROLLER, NAME)
    new = server.sets[-1]
    server.change(new, {"metadata": {"creationTimestamp": "2025-12-31T00:00:00Z"}})
    server.reconcile(CONTROLLER, NAME, passes=5)
    assert len(server.sets) == 2


# --- OnDelete --------------------------------------------------------------------------------------------------------


def test_on_delete_waits_for_users_to_delete() -> None:
    server = settled(deployment(3, strategy="OnDelete"))
    server.edit_template(version="v1.32.0")
    server.run()
    assert server.replica_counts() == [3, 0]
    old, new = server.sets
    assert old["metadata"]["annotations"]["cluster.x-k8s.io/disable-machine-create"] == "true"
    assert new["metadata"]["annotations"]["cluster.x-k8s.io/disable-machine-create"] == "false"
    server.change(server.all(MACHINE)[0], {"metadata": {"deletionTimestamp": timestamp(NOW)}})
    server.run()
    assert server.replica_counts() == [2, 1]
    assert len(server.all(MACHINE)) == 3
    for each in server.all(MACHINE):
        server.change(each, {"metadata": {"deletionTimestamp": timestamp(NOW)}})
    server.run()
    assert server.replica_counts() == [3]


# --- scaling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (3, 0), (0, 2)])
def test_scaling(before: int, after: int) -> None:
    server = settled(deployment(before))
    server.edit(replicas=after)
    server.run()
    assert len(server.all(MACHINE)) == after
    assert len(server.sets) == 1


def _half_rolled_out(paused: bool) -> DeploymentServer:
    server = settled(deployment(10, surge=0, unavailable=5))
    server.edit_template(version="v1.32.0")
    for _ in range(3):
        server.reconcile_all()
        server.finish_deletions()
    server.reconcile_all()
    assert server.replica_counts() == [5, 5]
    if paused:
        server.start_machines(server.all(MACHINE))
    server.edit(paused=paused)
    return server


@pytest.mark.parametrize("paused", [False, True])
def test_scaling_during_a_rollout_is_proportional(paused: bool) -> None:
    server = _half_rolled_out(paused)
    server.edit(replicas=20)
    server.reconcile(CONTROLLER, NAME)
    assert server.replica_counts() == [10, 10]
    for each in server.sets:
        assert each["metadata"]["annotations"][f"{PREFIX}/desired-replicas"] == "20"


def test_paused_deployment_is_not_rolled_out() -> None:
    server = settled(deployment(3))
    server.edit(paused=True)
    server.edit_template(version="v1.32.0")
    server.run()
    assert server.replica_counts() == [3]
    server.edit(paused=False)
    server.run()
    assert [each["spec"]["template"]["spec"]["version"] for each in server.sets] == ["v1.32.0"]


# --- in-place propagation --------------------------------------------------------------------------------------------


def test_in_place_changes_reach_existing_machines() -> None:
    server = settled(deployment(2))
    before = {each["metadata"]["uid"] for each in server.all(MACHINE)}
    server.edit(
        template={
            "metadata": {"labels": {"new": "label"}, "annotations": {"new": "annotation"}},
            "spec": {"minReadySeconds": 5, "deletion": {"nodeDrainTimeoutSeconds": 60}},
        },
        deletion={"order": "Newest"},
        machineNaming={"template": "y-{{ .random }}"},
    )
    server.run()
    (only,) = server.sets
    assert only["metadata"]["labels"]["new"] == "label"
    assert only["spec"]["deletion"] == {"order": "Newest"}
    assert only["spec"]["machineNaming"] == {"template": "y-{{ .random }}"}
    assert {each["metadata"]["uid"] for each in server.all(MACHINE)} == before
    for each in server.all(MACHINE):
        assert each["metadata"]["labels"]["new"] == "label"
        assert each["metadata"]["annotations"]["new"] == "annotation"
        assert each["spec"]["minReadySeconds"] == 5
        assert each["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 60


def test_removed_fields_are_removed_from_machine_sets() -> None:
    server = settled(deployment(1, deletion={"order": "Newest"}, annotations={"mine": "x"}))
    server.change(server.deployment, {"metadata": {"annotations": {"mine": None}}, "spec": {"deletion": None}})
    server.run()
    (only,) = server.sets
    assert "mine" not in only["metadata"]["annotations"]
    assert "deletion" not in only["spec"]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("example.io/mine", True),
        ("machineset.cluster.x-k8s.io/skip-preflight-checks", True),
        ("kubectl.kubernetes.io/last-applied-configuration", False),
        ("cluster.x-k8s.io/conversion-data", False),
        (f"{PREFIX}/revision-history", False),
    ],
)
def test_annotations_are_propagated_to_machine_sets(annotation: str, expected: bool) -> None:
    server = settled(deployment(1, annotations={annotation: "x"}))
    assert (annotation in server.sets[0]["metadata"]["annotations"]) is expected


def _approval_record(server: DeploymentServer, uid: str, infrastructure: str = "infra") -> dict[str, str]:
    """The annotation that records approved references to these templates."""
    references = {
        "infrastructureRef": (INFRA_TEMPLATE, infrastructure, uid),
        "bootstrap.configRef": (BOOTSTRAP_TEMPLATE, "boot", ""),
    }
    namespace = server.deployment["metadata"]["namespace"]
    entries = [
        {"path": f"spec.template.spec.{field}", "group": kind.group, "resource": kind.plural, "namespace": namespace}
        | {"name": name, "uid": uid}
        for field, (kind, name, uid) in references.items()
    ]
    return {APPROVED: json.dumps(entries)}


def test_approvals_are_propagated_to_the_set_with_the_same_templates() -> None:
    server = DeploymentServer(deployment(1))
    first = _approval_record(server, server.get(INFRA_TEMPLATE, "infra")["metadata"]["uid"])
    server.change(server.deployment, {"metadata": {"annotations": first}})
    server.run()
    assert [each["metadata"]["annotations"][APPROVED] for each in server.sets] == [first[APPROVED]]
    reviewed = _approval_record(server, "another")
    server.change(server.deployment, {"metadata": {"annotations": reviewed}})
    server.change(server.get(INFRA_TEMPLATE, "infra"), {"metadata": {"uid": "another"}})
    server.run()
    (only,) = server.sets
    assert only["metadata"]["annotations"][APPROVED] == reviewed[APPROVED]
    server.put(template(INFRA_TEMPLATE, "other"))
    server.change(server.deployment, {"metadata": {"annotations": _approval_record(server, "", "other")}})
    server.edit_template(infrastructureRef={"name": "other"})
    server.reconcile_all()
    assert server.sets[0]["metadata"]["annotations"][APPROVED] == reviewed[APPROVED], "it names the earlier template"


def test_machine_sets_are_applied_by_upstreams_field_manager() -> None:
    server = DeploymentServer(deployment())
    server.reconcile(CONTROLLER, NAME)
    assert {write.manager for write in server.writes if isinstance(write, Apply)} == {"capi-machinedeployment"}


# --- adoption and deletion -------------------------------------------------------------------------------------------


def _orphan(server: DeploymentServer, **meta: Any) -> Object:
    spec = server.deployment["spec"]
    orphan = provider_object(
        MACHINE_SET,
        "orphan",
        spec={field: spec[field] for field in ("clusterName", "selector", "template")} | {"replicas": 3},
        labels=LABELS,
        **meta,
    )
    return server.put(orphan)


def test_matching_orphan_set_is_adopted() -> None:
    server = DeploymentServer(deployment(3))
    _orphan(server)
    server.run()
    assert [each["metadata"]["name"] for each in server.sets] == ["orphan"]
    (owner,) = server.sets[0]["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("pool-uid", True)


def test_a_set_of_another_cluster_does_not_count() -> None:
    server = DeploymentServer(deployment(3))
    foreign_set = _orphan(server, owners=[owner_reference_to(server.deployment)])
    server.put({**foreign_set, "spec": {**foreign_set["spec"], "clusterName": "other"}})
    server.run()
    assert sorted(each["spec"]["clusterName"] for each in server.all(MACHINE_SET)) == ["herd", "other"]
    assert server.get(MACHINE_SET, "orphan")["spec"]["replicas"] == 3


def test_machine_sets_are_deleted_before_their_deployment() -> None:
    server = settled(deployment(2))
    server.change(server.deployment, {"metadata": {"deletionTimestamp": timestamp(NOW)}})
    server.reconcile_all()
    server.reconcile_all()
    assert _condition(server, "Deleting") == ("True", "Deleting", "Deleting 2 Machines")
    assert server.deployment["status"]["phase"] == "ScalingDown"
    for _ in range(6):
        if server.has(MACHINE_DEPLOYMENT, NAME):
            server.reconcile_all()
            server.finish_deletions()
    assert not server.sets
    assert not server.has(MACHINE_DEPLOYMENT, NAME)


def _available(machine: Object) -> bool:
    conditions = (machine.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)
