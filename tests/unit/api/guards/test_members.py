"""Decisions and messages of the guards of etcd members, for the servers of every distribution."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.conditions import timestamp
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import CLUSTER_NAME
from herder.api.guards import members as guards
from herder.api.machines.archive import CONFIG_MAP
from herder.api.rke import names
from herder.api.rke.kinds import BEACON
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Delete, Patch, Ref, Update
from tests.support.builders import object_reference
from tests.support.views import NOW, view_of
from tests.unit.api.guards.plan_writes import HEALTHY, RELEASE, deletion, mark_init, members
from tests.unit.api.guards.refusals import refusal
from tests.unit.api.guards.test_plans import BY_DISTRIBUTION, LOST, with_cluster
from tests.unit.api.test_guards_by_distribution import JOINED, KUBECONFIG, SAMPLES, Sample
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import (
    ETCD,
    NAME,
    NAMESPACE,
    PLANE,
    SERVER,
    WORKER,
    machine,
    plan_of,
    plan_secret,
)

MACHINE_A = "Machine fleet-default/a"
KEEP_QUORUM = f"keep-etcd-quorum: {MACHINE_A} deletion refused: "
WAIT = "wait for the others or restore them"
MEMBER = plan_secret("a", SERVER, plan=plan_of(), annotations={names.JOIN_URL: JOINED})


def removed(sample: Sample) -> Object:
    return {"metadata": {"name": "a", "annotations": {sample.removed: "a-1"}}}


# --- deletion ---------------------------------------------------------------------------------------------------------


@BY_DISTRIBUTION
def test_messages_about_a_deletion_that_loses_quorum(sample: Sample) -> None:
    two = *sample.server("a"), *sample.server("b")
    down = sample.server("c", unhealthy=True)
    message = f"{KEEP_QUORUM}1 of 2 remaining etcd members are healthy, quorum needs 2; {WAIT}"
    assert refusal(deletion("a"), *two, *down, cluster=sample.cluster) == message
    assert refusal(deletion("a"), *two, *sample.server("c"), cluster=sample.cluster) == ""
    message = f"{KEEP_QUORUM}0 of 1 remaining etcd members are healthy, quorum needs 1; {WAIT}"
    assert refusal(deletion("a"), *two[:2], *down, cluster=sample.cluster) == message


@pytest.mark.parametrize(
    ("existing", "denied"),
    [
        ([machine("c", deleting=True), plan_secret("c", plan=plan_of(), unhealthy=True)], False),
        ([plan_secret("c", plan=plan_of(), unhealthy=True)], False),
        ([machine("c"), plan_secret("c", (WORKER,), plan=plan_of(), unhealthy=True)], False),
        ([machine("c"), plan_secret("c", unhealthy=True)], False),
        ([machine("c"), plan_secret("c", plan=plan_of(), state="in-progress", data={"appliedPlan": "{}"})], True),
        ([machine("c"), plan_secret("c", plan=plan_of(), unhealthy=True, labels={names.CLUSTER_NAME: "d"})], False),
    ],
)
def test_which_members_keep_quorum(existing: list[Object], denied: bool) -> None:
    assert bool(refusal(deletion("a"), *members("w", "w"), *existing)) is denied


def test_which_deletions_are_checked() -> None:
    broken = members("w", "w", "d")
    allowed: list[Any] = [
        Delete(Ref(BEACON, "a", NAMESPACE), "uid", "too many"),
        Delete(Ref(MACHINE, "a", NAMESPACE), "uid", "too many", target="downstream"),
        Delete(Ref(MACHINE, "unknown", NAMESPACE), "uid", "too many"),
        Apply(MACHINE, machine("a"), "a label"),
    ]
    assert [refusal(action, *broken) for action in allowed] == [""] * len(allowed)
    assert refusal(deletion("a"), machine("a", deleting=True), *broken[1:]) == ""
    new = machine("a"), plan_secret("a")
    assert refusal(deletion("a"), *new, *broken[2:]) == "", "it has not joined"
    worker = machine("a"), plan_secret("a", (WORKER,), plan=plan_of())
    assert refusal(deletion("a"), *worker, *broken[2:]) == ""
    joinable = machine("a"), plan_secret("a", annotations={names.JOIN_URL: JOINED})
    assert refusal(deletion("a"), *joinable, *broken[2:]).startswith(KEEP_QUORUM)


def test_deletions_of_one_decision_count_together() -> None:
    four = members("w", "w", "w", "d")
    assert refusal(deletion("a"), *four) == ""
    one = deletion("b")
    needed = f"{KEEP_QUORUM}1 of 2 remaining etcd members are healthy, quorum needs 2; {WAIT}"
    assert refusal(deletion("a"), *four, before=[one]) == needed
    other = Delete(Ref(CONFIG_MAP, "b", NAMESPACE), "uid", "a log")
    label = Patch(Ref(MACHINE, "b", NAMESPACE), {"metadata": {"labels": {"x": "y"}}}, "a mark")
    assert refusal(deletion("a"), *four, before=[label]) == "", "it is not deleted"
    assert refusal(deletion("a"), *four, before=[other, mark_init("d")]) == ""
    rest = [deletion(name) for name in "bcd"]
    assert refusal(deletion("a"), *four, before=rest) == "", "none is to remain"


@pytest.mark.parametrize(
    "cluster",
    [
        HEALTHY[1:],
        (HEALTHY[0], HEALTHY[2]),
        with_cluster(deleting=True),
        (HEALTHY[0], {**HEALTHY[1], "metadata": {**HEALTHY[1]["metadata"], "deletionTimestamp": "now"}}, HEALTHY[2]),
    ],
    ids=["no Cluster", "no control plane", "deleting Cluster", "deleting control plane"],
)
def test_members_are_deleted_with_their_cluster(cluster: tuple[Object, ...]) -> None:
    broken = members("w", "w", "d")
    assert refusal(deletion("a"), *broken) != ""
    assert refusal(deletion("a"), *broken, cluster=cluster) == ""
    deleting = machine("a", deleting=True), MEMBER, objects.bootstrap("a")
    joined = machine("b"), plan_secret("b", annotations={names.JOINED_TO: JOINED})
    assert refusal(RELEASE, *deleting, *joined) != ""
    assert refusal(RELEASE, *deleting, *joined, cluster=cluster) == ""


def test_machines_of_other_providers_are_not_checked() -> None:
    broken = members("w", "w", "d")
    foreign = machine("a")
    foreign["spec"]["bootstrap"]["configRef"] = {"kind": "KubeadmConfig", "name": "a"}
    unlabelled = machine("a")
    del unlabelled["metadata"]["labels"][CLUSTER_NAME]
    no_reference = machine("a")
    no_reference["spec"]["bootstrap"] = {"dataSecretName": "a"}
    other = machine("a")
    other["spec"]["bootstrap"]["configRef"]["name"] = "unknown"
    for each in (foreign, unlabelled, no_reference, other):
        assert refusal(deletion("a"), each, *broken[1:]) == ""
        assert refusal(RELEASE, each, *broken[1:]) == ""


def test_machines_are_deleted_where_plans_are_not_watched() -> None:
    reader = Controller("reader", MACHINE, lambda _view: DONE)
    referring = machine("a")
    referring["spec"]["bootstrap"]["configRef"] = object_reference(objects.BOOTSTRAP, "a")
    view = view_of(reader, f"{NAMESPACE}/a", [referring])
    assert guards.keep_etcd_quorum(deletion("a"), view, []) is None


# --- release ----------------------------------------------------------------------------------------------------------


def deleting(sample: Sample, **status: Any) -> tuple[Object, ...]:
    secret = plan_secret("a", SERVER, plan=sample.plan(), annotations={names.JOIN_URL: JOINED})
    return machine("a", deleting=True, address="10.0.0.1", **status), secret, objects.bootstrap("a")


@BY_DISTRIBUTION
def test_a_server_that_others_join_is_not_released(sample: Sample) -> None:
    joined = sample.server("b", annotations={names.JOINED_TO: JOINED})
    message = f"deny-release-of-join-server: {MACHINE_A} release denied: b joins through it"

    def found(*existing: Object, nodes: list[Object] | None = None) -> str:
        own = {each["kind"]: each for each in (*deleting(sample), *existing) if each["metadata"]["name"] == "a"}
        others = [each for each in (*deleting(sample)[1:2], *existing) if each["metadata"]["name"] != "a"]
        known = {each["metadata"]["name"]: each for each in others if each["kind"] == "Secret"}
        rest = [each for each in others if each["kind"] != "Secret"]
        return refusal(RELEASE, *own.values(), *known.values(), *rest, cluster=sample.cluster, nodes=nodes)

    assert found(*joined) == message
    worker = machine("b"), plan_secret("b", (WORKER,), plan=sample.plan(), annotations={names.JOINED_TO: JOINED})
    assert found(*worker) == message
    elsewhere = sample.server("b", annotations={names.JOINED_TO: "https://10.0.0.9:6443"})
    assert found(*elsewhere) == ""
    assert found(*sample.server("b")) == ""
    lost = machine("a", deleting=True, address="10.0.0.1", **LOST)
    assert found(lost, *joined) == ""
    not_ready: list[Object] = [
        {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    ]
    assert found(*joined, nodes=not_ready) == ""
    ready: list[Object] = [{"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    assert found(*joined, nodes=ready) == message
    assert found(*joined, nodes=[*ready, *not_ready]) == message
    assert found(*joined, nodes=[]) == message
    assert found(*joined, nodes=[{"metadata": {"name": "a"}}]) == message, "no condition says that it is lost"
    assert found(objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"}), *joined) == ""
    assert found(objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "false"}), *joined) == message
    if sample.removed:
        assert found(*joined, nodes=[removed(sample)]) == ""
        assert found(*joined, nodes=[removed(sample), *ready]) == message
    no_url = plan_secret("a", SERVER, plan=sample.plan())
    assert found(no_url, *joined) == ""
    assert refusal(RELEASE, *deleting(sample)[:2], *joined, cluster=sample.cluster) == "", "its bootstrap is deleted"
    unmarked = objects.bootstrap("a")
    unmarked["metadata"]["annotations"] = None
    assert found(unmarked, *joined) == message
    itself = plan_secret("a", SERVER, plan=sample.plan(), annotations={names.JOIN_URL: JOINED, names.JOINED_TO: JOINED})
    assert found(itself) == "", "only others join through it"
    assert found(itself, *joined) == message


@BY_DISTRIBUTION
def test_a_member_that_others_need_is_not_released_before_its_removal(sample: Sample) -> None:
    reachable = (*sample.cluster, objects.secret(f"{NAME}-kubeconfig", type=KUBECONFIG))
    own, other = deleting(sample), sample.server("b")
    node: Object = {"metadata": {"name": "a", "annotations": {"another": "a-1"}}}
    message = f"require-etcd-member-removal: {MACHINE_A} release denied: Node a may still be an etcd member"
    denied = message if sample.removed else ""

    def found(*existing: Object, nodes: list[Object] | None = None, cluster: tuple[Object, ...] = reachable) -> str:
        return refusal(RELEASE, *existing, cluster=cluster, nodes=nodes)

    assert found(*own, *other, nodes=[node]) == denied
    assert found(*own, *other) == denied
    assert found(*own, *other, nodes=[]) == ""
    assert found(*own, *other, nodes=[removed(sample)]) == ""
    assert found(*own, *other, nodes=[removed(sample), node]) == denied
    assert found(*own, *other, nodes=[node], cluster=sample.cluster) == "", "the cluster was never reachable"
    assert found(*own, nodes=[node]) == "", "the last member"
    assert found(*own, machine("b", deleting=True), other[1], nodes=[node]) == ""
    assert found(*own, machine("b"), plan_secret("b", (PLANE, WORKER), plan=sample.plan()), nodes=[node]) == ""
    assert found(*own, machine("b"), plan_secret("b"), nodes=[node]) == denied
    lost = deleting(sample, **LOST)
    assert found(*lost, *other, nodes=[node]) == denied
    forced = objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})
    assert found(*own[:2], forced, *other, nodes=[node]) == ""
    no_node = machine("a", deleting=True), *own[1:]
    assert found(*no_node, *other, nodes=[node]) == ""
    for status in (None, {"nodeRef": None}):
        assert found({**no_node[0], "status": status}, *own[1:], *other, nodes=[node]) == ""
    remaining = machine("a", address="10.0.0.1"), *own[1:]
    assert found(*remaining, *other, nodes=[node]) == denied
    assert found(*remaining, nodes=[node]) == "", "the last member, which is not being deleted"
    cluster, plane, *rest = reachable
    for spec in (None, {}, {"kubernetesVersion": None}, {"kubernetesVersion": "v1.33.4+unknown1"}):
        unknown = (cluster, {**plane, "spec": spec}, *rest)
        assert found(*own, *other, nodes=[node], cluster=unknown) == message
        assert found(*own, *other, nodes=[removed(SAMPLES["k3s"])], cluster=unknown) == message


def test_a_worker_does_not_keep_the_server_that_it_joined_for_ever() -> None:
    own = machine("a", deleting=True), MEMBER, objects.bootstrap("a")

    def found(*roles: str, minutes: int) -> str:
        server = copy.deepcopy(own[0])
        server["metadata"]["deletionTimestamp"] = timestamp(NOW - timedelta(minutes=minutes))
        joined = plan_secret("b", roles, plan=plan_of(), annotations={names.JOINED_TO: JOINED})
        return refusal(RELEASE, server, *own[1:], machine("b"), joined).partition(":")[0]

    assert found(WORKER, minutes=29) == "deny-release-of-join-server"
    assert found(WORKER, minutes=31) == ""
    assert found(ETCD, minutes=31) == found(PLANE, minutes=31) == "deny-release-of-join-server"


def test_which_writes_release_a_machine() -> None:
    existing = (machine("a", deleting=True), MEMBER, objects.bootstrap("a"))
    joined = machine("b"), plan_secret("b", annotations={names.JOINED_TO: JOINED})
    hook, ref = names.ETCD_HOOK, Ref(MACHINE, "a", NAMESPACE)

    def found(action: Any) -> str:
        return refusal(action, *existing, *joined).partition(":")[0]

    assert found(RELEASE) == "deny-release-of-join-server"
    removal: Object = {"metadata": {"annotations": {hook: None}}}
    allowed: list[Any] = [
        Patch(ref, {"metadata": {"annotations": {hook: "owner"}}}, "keep it"),
        Patch(ref, {"metadata": {"annotations": {"another": None}}}, "a mark"),
        Patch(ref, {"metadata": {"annotations": None}}, "a mark"),
        Patch(ref, {"metadata": None}, "a mark"),
        Patch(ref, {"spec": {}}, "a field"),
        Patch(Ref(CONFIG_MAP, "a", NAMESPACE), removal, "a log"),
        Patch(ref, removal, "downstream", target="downstream"),
        Patch(Ref(MACHINE, "unknown", NAMESPACE), removal, "gone"),
        Apply(MACHINE, machine("a"), "all of it"),
    ]
    assert [found(action) for action in allowed] == [""] * len(allowed)

    unheld: list[Any] = [
        Update(MACHINE, machine("a", deleting=True), "without the hook"),
        Update(MACHINE, machine("a"), "without the hook"),
    ]
    assert [found(action) for action in unheld] == ["", ""], "it has no hook to remove"
    held = copy.deepcopy(existing[0])
    held["metadata"]["annotations"] = {hook: "owner"}
    existing = (held, *existing[1:])
    released: list[Any] = [
        Patch(ref, {"metadata": {"annotations": None}}, "all of them"),
        Patch(ref, {"metadata": None}, "all of it"),
        Update(MACHINE, machine("a", deleting=True), "without it"),
    ]
    assert [found(action) for action in released] == ["deny-release-of-join-server"] * len(released)
    kept: list[Any] = [
        Update(MACHINE, held, "with it"),
        Update(MACHINE, machine("a", deleting=True), "its status", subresource="status"),
        Update(MACHINE, machine("a", deleting=True), "downstream", target="downstream"),
        Update(CONFIG_MAP, machine("a", deleting=True), "a log"),
        Patch(ref, {"spec": {}}, "a field"),
        Patch(ref, {"metadata": {"labels": {"x": "y"}}}, "a label"),
        Patch(ref, {"metadata": {"annotations": {"another": None}}}, "a mark"),
    ]
    assert [found(action) for action in kept] == [""] * len(kept)


@pytest.mark.parametrize("key", [f"{NAMESPACE}/x", "elsewhere/x", "x"])
def test_the_namespace_is_that_of_the_machine_wherever_the_decision_is_made(key: str) -> None:
    assert refusal(deletion("a"), *members("w", "w", "d"), key=key).startswith(KEEP_QUORUM)
    own = machine("a", deleting=True, address="10.0.0.1"), MEMBER, objects.bootstrap("a")
    joined = machine("b"), plan_secret("b", plan=plan_of(), annotations={names.JOINED_TO: JOINED})
    joins = f"deny-release-of-join-server: {MACHINE_A} release denied: b joins through it"
    assert refusal(RELEASE, *own, *joined, key=key) == joins
    forced = objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})
    assert refusal(RELEASE, *own[:2], forced, *joined, key=key) == ""
    gone = [removed(SAMPLES["k3s"])]
    assert refusal(RELEASE, *own, *joined, nodes=gone, key=key) == "", "the control plane names the distribution"
    held = copy.deepcopy(own[0])
    held["metadata"]["annotations"] = {names.ETCD_HOOK: "owner"}
    assert refusal(Update(MACHINE, machine("a", deleting=True), "x"), held, *own[1:], *joined, key=key) == joins
    reachable = (*HEALTHY, objects.secret(f"{NAME}-kubeconfig", type=KUBECONFIG))
    other = machine("b"), plan_secret("b", plan=plan_of())
    node: list[Object] = [{"metadata": {"name": "a"}}]
    found = refusal(RELEASE, *own, *other, cluster=reachable, nodes=node, key=key)
    assert found.startswith("require-etcd-member-removal: ")


# --- Nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_is_observed_by_its_name_or_else_by_the_uid_of_its_machine() -> None:
    named, unnamed = machine("a", address="10.0.0.1"), machine("a")
    unnamed["metadata"]["uid"] = named["metadata"]["uid"] = "uid-a"
    by_name, by_uid = guards.node_of(named), guards.node_of(unnamed)
    assert by_name.cluster == by_uid.cluster == f"{NAMESPACE}/{NAME}"
    assert by_name == guards.node_by_name(f"{NAMESPACE}/{NAME}", "a")
    assert by_uid == guards.node_by_machine(f"{NAMESPACE}/{NAME}", "uid-a")
    for status in (None, {}, {"nodeRef": None}, {"nodeRef": {}}):
        assert guards.node_of({**unnamed, "status": status}) == by_uid


@pytest.mark.parametrize(
    ("marks", "is_removed"),
    [
        ({}, False),
        ({"p/removed-node-name": ""}, False),
        ({"p/removed-node-name": "a-1"}, True),
        ({"p/removed-node-name": "a-1", "p/node-name": "a-1"}, True),
        ({"p/removed-node-name": "a-1", "p/node-name": "a-2"}, False),
        ({"p/node-name": "a-1"}, False),
        ({"q/removed-node-name": "a-1"}, False),
    ],
)
def test_a_member_that_has_joined_again_is_not_removed(marks: dict[str, str], is_removed: bool) -> None:
    assert guards.is_removed_member({"metadata": {"name": "a", "annotations": marks}}, "p") is is_removed
