"""MachineDeployments over several passes, with their MachineSets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET
from herder.api.references.approvals import APPROVED
from herder.controllers.capi.machinedeployment.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Delete
from tests.support.views import NOW
from tests.unit.controllers.capi.machinedeployment.deployments import LABELS, NAME, Herd, deployment, revision, settled
from tests.unit.controllers.capi.world import (
    BOOT_TEMPLATE,
    INFRA,
    INFRA_TEMPLATE,
    condition_of,
    made,
    stamp,
    template,
    written,
)

PREFIX = "machinedeployment.clusters.x-k8s.io"


def _told(herd: Herd, type_: str) -> tuple[str, str, str]:
    told = condition_of(herd.deployment, type_)
    return told["status"], told["reason"], told["message"]


# --- beginning ------------------------------------------------------------------------------------------------------


def test_one_write_prepares_it() -> None:
    fresh = deployment()
    for field in ("finalizers", "labels", "ownerReferences"):
        del fresh["metadata"][field]
    herd = Herd(fresh)
    herd.reconcile(CONTROLLER, NAME)
    assert len(herd.writes) == 1
    meta = herd.deployment["metadata"]
    assert meta["finalizers"] == ["cluster.x-k8s.io/machinedeployment"]
    assert meta["labels"]["cluster.x-k8s.io/cluster-name"] == "herd"
    assert [(owner["kind"], owner.get("controller")) for owner in meta["ownerReferences"]] == [("Cluster", None)]


def test_the_first_machine_set_has_all_it_needs_from_the_start() -> None:
    herd = Herd(deployment(3, deletion={"order": "Oldest"}, machineNaming={"template": "x-{{ .random }}"}))
    herd.reconcile(CONTROLLER, NAME)
    (made_set,) = herd.sets
    meta, spec = made_set["metadata"], made_set["spec"]
    assert meta["name"].startswith("pool-")
    assert meta["finalizers"] == ["cluster.x-k8s.io/machineset"]
    assert [(owner["uid"], owner["controller"]) for owner in meta["ownerReferences"]] == [("pool-uid", True)]
    assert meta["annotations"] == {
        f"{PREFIX}/revision": "1",
        f"{PREFIX}/desired-replicas": "3",
        f"{PREFIX}/max-replicas": "4",
        "cluster.x-k8s.io/disable-machine-create": "false",
    }
    unique = meta["labels"]["machine-template-hash"]
    assert unique.endswith(meta["name"].removeprefix("pool-"))
    assert meta["labels"] == LABELS | {"machine-template-hash": unique}
    assert spec["selector"]["matchLabels"] == LABELS | {"machine-template-hash": unique}
    assert spec["template"]["metadata"]["labels"] == LABELS | {"machine-template-hash": unique}
    assert (spec["replicas"], spec["deletion"], spec["machineNaming"]) == (
        3,
        {"order": "Oldest"},
        {"template": "x-{{ .random }}"},
    )
    assert spec["template"]["spec"]["version"] == "v1.31.0"
    assert revision(herd.deployment) == "1"


def test_decided_again_before_it_is_seen_the_same_machine_set_comes_out() -> None:
    herd = Herd(deployment())
    decisions = [herd.decide(CONTROLLER, NAME) for _ in range(2)]
    names = [write.obj["metadata"]["name"] for each in decisions for write in written(each) if isinstance(write, Apply)]
    assert len(names) == 2
    assert len(set(names)) == 1


def test_a_long_name_leaves_room_for_what_makes_it_unique() -> None:
    long = deployment()
    long["metadata"]["name"] = "p" * 63
    herd = Herd(long)
    herd.reconcile(CONTROLLER, "p" * 63)
    assert [len(each["metadata"]["name"]) for each in herd.all(MACHINE_SET)] == [63]


def test_a_deployment_comes_up_and_rests() -> None:
    herd = settled(deployment(3))
    assert len(herd.all(MACHINE)) == 3
    assert len(herd.all(INFRA)) == 3
    herd.run()
    assert not herd.writes
    status = herd.deployment["status"]
    assert status["phase"] == "Running"
    assert [status[name] for name in ("replicas", "readyReplicas", "availableReplicas", "upToDateReplicas")] == [3] * 4


@pytest.mark.parametrize("kind", [INFRA_TEMPLATE, BOOT_TEMPLATE])
def test_without_its_templates_nothing_is_made(kind: Any) -> None:
    herd = Herd(deployment(2))
    herd.remove(herd.all(kind)[0])
    herd.run()
    assert not herd.sets
    assert _told(herd, "ScalingUp") == (
        "True",
        "ScalingUp",
        f"Scaling up from 0 to 2 replicas is blocked because {kind.kind} does not exist",
    )
    assert _told(herd, "Available")[:2] == ("Unknown", "WaitingForAvailableReplicasSet")


def test_nothing_is_made_in_a_cluster_that_goes() -> None:
    herd = Herd(deployment(2))
    herd.change(herd.get(CLUSTER, "herd"), {"metadata": {"deletionTimestamp": stamp(NOW)}})
    herd.run()
    assert not herd.sets


def test_without_replicas_it_waits_for_them() -> None:
    herd = Herd(deployment(None))
    decision = herd.reconcile(CONTROLLER, NAME, passes=2)
    assert decision.wait is not None
    assert not herd.sets
    assert herd.deployment["status"]["phase"] == "Unknown"
    for type_ in ("Available", "ScalingUp", "ScalingDown"):
        assert _told(herd, type_) == ("Unknown", "WaitingForReplicasSet", "Waiting for spec.replicas set")


def test_a_paused_cluster_pauses_it() -> None:
    herd = settled(deployment(1))
    herd.change(herd.get(CLUSTER, "herd"), {"spec": {"paused": True}})
    herd.edit(replicas=5)
    herd.run()
    assert len(herd.all(MACHINE)) == 1
    assert _told(herd, "Paused") == ("True", "Paused", "Cluster spec.paused is set to true")


# --- rolling out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"version": "v1.32.0"},
        {"failureDomain": "elsewhere"},
        {"infrastructureRef": {"name": "other"}},
        {"bootstrap": {"configRef": {"name": "other"}}},
    ],
)
def test_what_needs_new_machines_is_rolled_out(change: dict[str, Any]) -> None:
    herd = settled(deployment(3))
    before = {each["metadata"]["name"] for each in herd.all(MACHINE)}
    herd.put(template(INFRA_TEMPLATE, "other"))
    herd.put(template(BOOT_TEMPLATE, "other"))
    herd.template(**change)
    herd.run()
    after = {each["metadata"]["name"] for each in herd.all(MACHINE)}
    assert len(after) == 3
    assert not before & after
    assert revision(herd.deployment) == "2"


def test_a_rollout_keeps_within_its_limits_and_cleans_up() -> None:
    herd = settled(deployment(3, surge=1, unavailable=0))
    herd.template(version="v1.32.0")
    seen = []
    for _ in range(60):
        herd.work()
        machines = herd.all(MACHINE)
        available = [each for each in machines if "deletionTimestamp" not in each["metadata"] and _available(each)]
        assert len(machines) <= 4
        assert len(available) >= 3
        seen.append(tuple(herd.sizes()))
        herd.comes_up(herd.all(MACHINE))
        herd.finish_deletions()
    assert list(dict.fromkeys(seen)) == [(3, 1), (2, 1), (2, 2), (1, 2), (1, 3), (0, 3), (3,)]
    assert [write.ref.kind for write in herd.writes if isinstance(write, Delete)].count(MACHINE_SET) == 1


def test_a_new_revision_that_does_not_come_up_stops_the_rollout() -> None:
    herd = settled(deployment(3))
    herd.template(version="v1.32.0")
    for _ in range(10):
        herd.work()
    assert herd.sizes() == [3, 1]
    herd.comes_up(herd.all(MACHINE))
    herd.work()
    assert _told(herd, "RollingOut") == (
        "True",
        "RollingOut",
        "Rolling out 3 not up-to-date replicas\n* Version v1.31.0, v1.32.0 required",
    )


def test_going_back_takes_the_old_set_up_again() -> None:
    herd = settled(deployment(3))
    (first,) = herd.sets
    herd.template(version="v1.32.0")
    for _ in range(3):
        herd.work()
    herd.template(version="v1.31.0")
    herd.run()
    (last,) = herd.sets
    assert last["metadata"]["uid"] == first["metadata"]["uid"]
    assert revision(last) == revision(herd.deployment) == "3"


def test_of_several_that_match_the_one_with_the_most_replicas_is_current() -> None:
    herd = settled(deployment(3))
    (first,) = herd.sets
    twin = {**first, "metadata": {**first["metadata"], "name": "a-twin", "uid": "twin-uid"}}
    herd.put({**twin, "spec": {**first["spec"], "replicas": 1}})
    herd.reconcile(CONTROLLER, NAME)
    assert herd.get(MACHINE_SET, "a-twin")["spec"]["replicas"] == 0
    assert herd.get(MACHINE_SET, first["metadata"]["name"])["spec"]["replicas"] == 3


def test_a_set_that_is_being_deleted_is_replaced_within_the_limits() -> None:
    herd = settled(deployment(3))
    herd.change(herd.sets[0], {"metadata": {"deletionTimestamp": stamp(NOW)}})
    herd.work()
    assert len(herd.sets) == 2
    assert len(herd.all(MACHINE)) <= 4
    herd.run()
    assert len(herd.all(MACHINE)) == 3


# --- rolling out at a given time ------------------------------------------------------------------------------------


def test_rollout_after_waits_for_its_time_and_then_happens_once() -> None:
    herd = settled(deployment(2))
    (first,) = herd.sets
    herd.edit(rollout={"after": "2026-01-01T13:00:00Z"})
    decision = herd.reconcile(CONTROLLER, NAME, passes=2)
    assert decision.wake_at is not None
    assert stamp(decision.wake_at) == "2026-01-01T13:00:00Z"
    assert len(herd.sets) == 1
    herd.pass_time(hours=2)
    herd.run()
    (last,) = herd.sets
    assert last["metadata"]["uid"] != first["metadata"]["uid"]
    assert revision(last) == "2"


def test_a_server_whose_clock_is_behind_does_not_make_it_roll_out_forever() -> None:
    herd = settled(deployment(2))
    after = stamp(herd.now)
    herd.edit(rollout={"after": after})
    herd.reconcile(CONTROLLER, NAME)
    new = herd.sets[-1]
    herd.change(new, {"metadata": {"creationTimestamp": "2025-12-31T00:00:00Z"}})
    herd.reconcile(CONTROLLER, NAME, passes=5)
    assert len(herd.sets) == 2


# --- on delete ------------------------------------------------------------------------------------------------------


def test_on_delete_waits_for_users_to_delete() -> None:
    herd = settled(deployment(3, strategy="OnDelete"))
    herd.template(version="v1.32.0")
    herd.run()
    assert herd.sizes() == [3, 0]
    old, new = herd.sets
    assert old["metadata"]["annotations"]["cluster.x-k8s.io/disable-machine-create"] == "true"
    assert new["metadata"]["annotations"]["cluster.x-k8s.io/disable-machine-create"] == "false"
    herd.change(herd.all(MACHINE)[0], {"metadata": {"deletionTimestamp": stamp(NOW)}})
    herd.run()
    assert herd.sizes() == [2, 1]
    assert len(herd.all(MACHINE)) == 3
    for each in herd.all(MACHINE):
        herd.change(each, {"metadata": {"deletionTimestamp": stamp(NOW)}})
    herd.run()
    assert herd.sizes() == [3]


# --- scaling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2), (3, 0), (0, 2)])
def test_scaling(before: int, after: int) -> None:
    herd = settled(deployment(before))
    herd.edit(replicas=after)
    herd.run()
    assert len(herd.all(MACHINE)) == after
    assert len(herd.sets) == 1


def _half_rolled_out(paused: bool) -> Herd:
    herd = settled(deployment(10, surge=0, unavailable=5))
    herd.template(version="v1.32.0")
    for _ in range(3):
        herd.work()
        herd.finish_deletions()
    herd.work()
    assert herd.sizes() == [5, 5]
    if paused:
        herd.comes_up(herd.all(MACHINE))
    herd.edit(paused=paused)
    return herd


@pytest.mark.parametrize("paused", [False, True])
def test_scaling_in_the_middle_of_a_rollout_keeps_proportions(paused: bool) -> None:
    herd = _half_rolled_out(paused)
    herd.edit(replicas=20)
    herd.reconcile(CONTROLLER, NAME)
    assert herd.sizes() == [10, 10]
    for each in herd.sets:
        assert each["metadata"]["annotations"][f"{PREFIX}/desired-replicas"] == "20"


def test_while_it_is_paused_nothing_is_rolled_out() -> None:
    herd = settled(deployment(3))
    herd.edit(paused=True)
    herd.template(version="v1.32.0")
    herd.run()
    assert herd.sizes() == [3]
    herd.edit(paused=False)
    herd.run()
    assert [each["spec"]["template"]["spec"]["version"] for each in herd.sets] == ["v1.32.0"]


# --- following without a rollout ------------------------------------------------------------------------------------


def test_what_needs_no_new_machines_reaches_those_there_are() -> None:
    herd = settled(deployment(2))
    before = {each["metadata"]["uid"] for each in herd.all(MACHINE)}
    herd.edit(
        template={
            "metadata": {"labels": {"new": "label"}, "annotations": {"new": "annotation"}},
            "spec": {"minReadySeconds": 5, "deletion": {"nodeDrainTimeoutSeconds": 60}},
        },
        deletion={"order": "Newest"},
        machineNaming={"template": "y-{{ .random }}"},
    )
    herd.run()
    (only,) = herd.sets
    assert only["metadata"]["labels"]["new"] == "label"
    assert only["spec"]["deletion"] == {"order": "Newest"}
    assert only["spec"]["machineNaming"] == {"template": "y-{{ .random }}"}
    assert {each["metadata"]["uid"] for each in herd.all(MACHINE)} == before
    for each in herd.all(MACHINE):
        assert each["metadata"]["labels"]["new"] == "label"
        assert each["metadata"]["annotations"]["new"] == "annotation"
        assert each["spec"]["minReadySeconds"] == 5
        assert each["spec"]["deletion"]["nodeDrainTimeoutSeconds"] == 60


def test_what_is_taken_away_is_taken_away_from_all() -> None:
    herd = settled(deployment(1, deletion={"order": "Newest"}, annotations={"mine": "x"}))
    herd.change(herd.deployment, {"metadata": {"annotations": {"mine": None}}, "spec": {"deletion": None}})
    herd.run()
    (only,) = herd.sets
    assert "mine" not in only["metadata"]["annotations"]
    assert "deletion" not in only["spec"]


@pytest.mark.parametrize(
    ("annotation", "arrives"),
    [
        ("example.io/mine", True),
        ("machineset.cluster.x-k8s.io/skip-preflight-checks", True),
        ("kubectl.kubernetes.io/last-applied-configuration", False),
        ("cluster.x-k8s.io/conversion-data", False),
        (f"{PREFIX}/revision-history", False),
    ],
)
def test_annotations_of_the_deployment_reach_its_sets(annotation: str, arrives: bool) -> None:
    herd = settled(deployment(1, annotations={annotation: "x"}))
    assert (annotation in herd.sets[0]["metadata"]["annotations"]) is arrives


def _record(herd: Herd, uid: str, infrastructure: str = "infra") -> dict[str, str]:
    """The annotation with which references to these templates are approved."""
    named = {
        "infrastructureRef": (INFRA_TEMPLATE, infrastructure, uid),
        "bootstrap.configRef": (BOOT_TEMPLATE, "boot", ""),
    }
    where = herd.deployment["metadata"]["namespace"]
    entries = [
        {"path": f"spec.template.spec.{field}", "group": kind.group, "resource": kind.plural, "namespace": where}
        | {"name": name, "uid": uid}
        for field, (kind, name, uid) in named.items()
    ]
    return {APPROVED: json.dumps(entries)}


def test_a_review_of_the_deployment_counts_for_the_set_with_the_same_templates() -> None:
    herd = Herd(deployment(1))
    first = _record(herd, herd.get(INFRA_TEMPLATE, "infra")["metadata"]["uid"])
    herd.change(herd.deployment, {"metadata": {"annotations": first}})
    herd.run()
    assert [each["metadata"]["annotations"][APPROVED] for each in herd.sets] == [first[APPROVED]]
    reviewed = _record(herd, "another")
    herd.change(herd.deployment, {"metadata": {"annotations": reviewed}})
    herd.change(herd.get(INFRA_TEMPLATE, "infra"), {"metadata": {"uid": "another"}})
    herd.run()
    (only,) = herd.sets
    assert only["metadata"]["annotations"][APPROVED] == reviewed[APPROVED]
    herd.put(template(INFRA_TEMPLATE, "other"))
    herd.change(herd.deployment, {"metadata": {"annotations": _record(herd, "", "other")}})
    herd.template(infrastructureRef={"name": "other"})
    herd.work()
    assert herd.sets[0]["metadata"]["annotations"][APPROVED] == reviewed[APPROVED], "it names the earlier template"


def test_sets_are_applied_by_the_manager_that_upstream_uses() -> None:
    herd = Herd(deployment())
    herd.reconcile(CONTROLLER, NAME)
    assert {write.manager for write in herd.writes if isinstance(write, Apply)} == {"capi-machinedeployment"}


# --- adopting and going ---------------------------------------------------------------------------------------------


def _orphan(herd: Herd, **meta: Any) -> Object:
    spec = herd.deployment["spec"]
    orphan = made(
        MACHINE_SET,
        "orphan",
        spec={field: spec[field] for field in ("clusterName", "selector", "template")} | {"replicas": 3},
        labels=LABELS,
        **meta,
    )
    return herd.put(orphan)


def test_a_matching_set_that_nobody_controls_is_adopted_and_used() -> None:
    herd = Herd(deployment(3))
    _orphan(herd)
    herd.run()
    assert [each["metadata"]["name"] for each in herd.sets] == ["orphan"]
    (owner,) = herd.sets[0]["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("pool-uid", True)


def test_when_it_goes_its_sets_go_first() -> None:
    herd = settled(deployment(2))
    herd.change(herd.deployment, {"metadata": {"deletionTimestamp": stamp(NOW)}})
    herd.work()
    herd.work()
    assert _told(herd, "Deleting") == ("True", "Deleting", "Deleting 2 Machines")
    assert herd.deployment["status"]["phase"] == "ScalingDown"
    for _ in range(6):
        if herd.has(MACHINE_DEPLOYMENT, NAME):
            herd.work()
            herd.finish_deletions()
    assert not herd.sets
    assert not herd.has(MACHINE_DEPLOYMENT, NAME)


def _available(machine: Object) -> bool:
    conditions = (machine.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)
