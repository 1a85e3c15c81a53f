"""Guards of etcd members: a machine is not deleted while others need it."""

from __future__ import annotations

import pytest

from herder.api.rke import names
from herder.engine.meta.kinds import Object
from tests.unit.api.guards.plan_writes import HEALTHY, RELEASE, deletion, denied_by, members
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import ETCD, NAME, SERVER, WORKER, machine, plan_of, plan_secret


@pytest.mark.parametrize(
    ("states", "guard"),
    [
        ("w", ""),  # the last member: its owner gives up the data of the cluster
        ("ww", ""),
        ("wd", "keep-etcd-quorum"),
        ("www", ""),
        ("wwd", "keep-etcd-quorum"),
        ("dww", ""),
        ("wwwdd", "keep-etcd-quorum"),
        ("nd", ""),
    ],
)
def test_an_etcd_member_is_deleted_only_if_the_others_keep_quorum(states: str, guard: str) -> None:
    assert denied_by(deletion("a"), *members(*states)) == guard


def test_all_members_are_deleted_with_their_cluster() -> None:
    deleting = (objects.cluster(deleting=True), objects.control_plane(), objects.beacon())
    assert denied_by(deletion("a"), *members("w", "w", "d"), cluster=deleting) == ""


MEMBER = {"metadata": {"name": "a"}}
REMOVED = {"metadata": {"name": "a", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}
REJOINED = {
    "metadata": {
        "name": "a",
        "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1", "etcd.k3s.cattle.io/node-name": "a-2"},
    }
}
"""A server that has joined again after its removal."""


def test_a_deleting_machine_is_kept_while_others_are_joined_to_it() -> None:
    own = plan_secret("a", (ETCD,), plan=plan_of(), annotations={names.JOIN_URL: "https://10.0.0.1:6443"})
    joined = plan_secret("b", SERVER, plan=plan_of(), annotations={names.JOINED_TO: "https://10.0.0.1:6443"})
    existing = (machine("a", deleting=True), machine("b"), own, joined)
    assert denied_by(RELEASE, *existing, objects.bootstrap("a")) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[MEMBER]) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[REJOINED]) == "deny-release-of-join-server"
    assert denied_by(RELEASE, *existing, objects.bootstrap("a"), nodes=[REMOVED]) == "", (
        "no machine can join it any more"
    )
    forced = objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})
    assert denied_by(RELEASE, *existing, forced) == ""
    elsewhere = plan_secret("b", SERVER, plan=plan_of(), annotations={names.JOINED_TO: "https://10.0.0.9:6443"})
    assert denied_by(RELEASE, *existing[:3], elsewhere, objects.bootstrap("a")) == ""


OTHERS: dict[str, tuple[Object, ...]] = {
    "a member": (machine("b"), plan_secret("b", SERVER, plan=plan_of())),
    "a new server": (machine("b"), plan_secret("b", SERVER)),
    "a deleting member": (machine("b", deleting=True), plan_secret("b", SERVER, plan=plan_of())),
    "a worker": (machine("b"), plan_secret("b", (WORKER,), plan=plan_of())),
}


@pytest.mark.parametrize(
    ("other", "nodes", "guard"),
    [
        ("a member", None, "require-etcd-member-removal"),
        ("a member", [MEMBER], "require-etcd-member-removal"),
        ("a member", [REMOVED], ""),
        ("a member", [REJOINED], "require-etcd-member-removal"),
        ("a member", [REMOVED, REJOINED], "require-etcd-member-removal"),
        ("a member", [], ""),
        ("a new server", [MEMBER], "require-etcd-member-removal"),
        ("a deleting member", [MEMBER], ""),
        ("a worker", [MEMBER], ""),
    ],
)
def test_a_deleting_machine_is_kept_while_it_is_a_member_that_others_need(
    other: str, nodes: list[Object] | None, guard: str
) -> None:
    cluster = (*HEALTHY, objects.secret(f"{NAME}-kubeconfig", type="cluster.x-k8s.io/secret"))
    own = (machine("a", deleting=True, address="10.0.0.1"), plan_secret("a", SERVER, plan=plan_of()))
    assert denied_by(RELEASE, *own, objects.bootstrap("a"), *OTHERS[other], cluster=cluster, nodes=nodes) == guard
