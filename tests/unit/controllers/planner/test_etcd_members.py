"""A machine with etcd is released when its member has been removed from the cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, NODE
from herder.api.rke import names
from herder.controllers.planner.etcd.member import CONTROLLER
from herder.engine.control.cache import Change, key_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Observe, Patch, Refusal
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import NOW, new_condition, patches_of, reconcile
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, SERVER, WORKER, plan_of, plan_secret

URL = "https://10.0.0.1:6443"
KUBECONFIG = objects.secret(f"{NAME}-kubeconfig", type="cluster.x-k8s.io/secret")
CLUSTER_OBJECTS = (objects.cluster(), objects.control_plane(), KUBECONFIG)
LATER = NOW + timedelta(minutes=1)


def deleting_machine(name: str = "a", **changes: Any) -> Object:
    found = objects.machine(name, deleting=True, address="10.0.0.1")
    found["metadata"]["annotations"] = {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}
    found["status"] |= changes
    return found


def node(**annotations: str) -> Object:
    return {"metadata": {"name": "a", "annotations": annotations}}


def decide(
    *existing: Object,
    nodes: Any = (),
    now: Any = LATER,
    cluster_objects: tuple[Object, ...] = CLUSTER_OBJECTS,
    refused: Refusal | None = None,
) -> Decision:
    def observed(_request: Observe) -> Observed | Unreachable | None:
        return nodes if nodes is None or isinstance(nodes, Unreachable) else Observed(tuple(nodes), now)

    options = {"now": now, "observed": observed, "refused": refused}
    return reconcile(CONTROLLER, f"{NAMESPACE}/a", *cluster_objects, *existing, **options)


def message_of(decision: Decision) -> str:
    """The message in the Reconciled condition of the Machine."""
    for write in decision.writes[:1]:
        if isinstance(write, Patch) and write.subresource == "status":
            found = {each["type"]: each for each in write.patch["status"]["conditions"]}
            return str(found["Reconciled"]["message"])
    return ""


def outcome(decision: Decision) -> str:
    """What the decision does: `released`, `requested` or `cancelled` the removal of the member, or why it waits."""
    for write in patches_of(decision):
        if write.subresource == "status":
            continue
        if write.ref.kind == MACHINE:
            assert write.patch == {"metadata": {"annotations": {names.ETCD_HOOK: None}}}
            return "released"
        if write.ref.kind == NODE:
            ((annotation, value),) = write.patch["metadata"]["annotations"].items()
            assert (annotation, write.target) == ("etcd.k3s.cattle.io/remove", f"{NAMESPACE}/{NAME}")
            return {"true": "requested", None: "cancelled"}[value]
    reason = decision.wait.reason if decision.wait else ""
    assert message_of(decision) == reason
    return reason


OWN = plan_secret("a", SERVER, plan=plan_of(), annotations={names.JOIN_URL: URL})
OTHERS = [
    each
    for name in "bc"
    for each in (objects.machine(name, address=f"10.0.1.{ord(name)}"), plan_secret(name, SERVER, plan=plan_of()))
]


def test_the_member_is_removed_before_the_machine_is_released() -> None:
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=None)) == "reading Node a"
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[node()])) == "requested"
    requested = node(**{"etcd.k3s.cattle.io/remove": "true"})
    assert (
        outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[requested]))
        == "waiting for the etcd member of Node a to leave"
    )
    removed = node(**{"etcd.k3s.cattle.io/remove": "true", "etcd.k3s.cattle.io/removed-node-name": "a-1"})
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[removed])) == "released"
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[])) == "released"


def test_a_member_that_has_joined_again_is_removed_again() -> None:
    """K3s keeps the mark of the first removal. It ignores the next request, and takes both annotations away."""
    stale = {"etcd.k3s.cattle.io/node-name": "a-2", "etcd.k3s.cattle.io/removed-node-name": "a-1"}
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[node(**stale)])) == "requested"
    ignored = node(**{"etcd.k3s.cattle.io/node-name": "a-2"})
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[ignored])) == "requested"
    removed = node(**{"etcd.k3s.cattle.io/removed-node-name": "a-2"})
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[removed])) == "released"


def test_a_member_that_has_joined_again_is_found_by_its_label() -> None:
    again = {"etcd.k3s.cattle.io/node-name": "a-2", "etcd.k3s.cattle.io/removed-node-name": "a-1"}
    claimant = {"metadata": {"name": "wolf", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}
    machine = deleting_machine(nodeRef={})
    for nodes in ([claimant, node(**again)], [node(**again), claimant]):
        assert outcome(decide(machine, OWN, *OTHERS, nodes=nodes)) == "requested"


def test_a_refusal_by_a_guard_is_reported_before_the_retry() -> None:
    refused = Refusal("deny-release-of-join-server", "Machine fleet-default/a is not let go: b has joined it")
    decision = decide(deleting_machine(), OWN, *OTHERS, nodes=[], refused=refused)
    assert message_of(decision) == str(refused)
    assert outcome(decision) == "released"
    waiting = decide(deleting_machine(), OWN, *OTHERS, nodes=None, refused=refused)
    assert message_of(waiting) == "reading Node a"  # nothing is refused while nothing is tried


def test_an_unreachable_cluster_is_observed_again() -> None:
    decision = decide(deleting_machine(), OWN, *OTHERS, nodes=Unreachable("no route", NOW))
    assert outcome(decision) == "cluster is unreachable: no route"
    assert decision.wake_at is not None


def test_a_member_stays_until_the_machines_that_joined_it_have_moved() -> None:
    joined = plan_secret("w", (WORKER,), plan=plan_of(), annotations={names.JOINED_TO: URL})
    reason = outcome(decide(deleting_machine(), OWN, objects.machine("w"), joined, *OTHERS, nodes=[node()]))
    assert reason == "waiting for machines that have joined it to join another: w"


def test_a_worker_delays_the_removal_of_the_server_that_it_joined_by_half_an_hour() -> None:
    """It could report that it cannot have a plan with another server, and nothing would remove the server."""

    def found(late: timedelta, *roles: str) -> Decision:
        joined = plan_secret("w", roles, plan=plan_of(), annotations={names.JOINED_TO: URL})
        machines = (deleting_machine(), OWN, objects.machine("w"), joined, *OTHERS)
        return decide(*machines, nodes=[node()], now=LATER + late)

    waits = "waiting for machines that have joined it to join another: w"
    early = found(timedelta(minutes=28), WORKER)
    assert outcome(early) == waits
    assert early.wake_at is not None
    assert outcome(decide(deleting_machine(), OWN, *OTHERS, nodes=[node()], now=early.wake_at)) == "requested"
    assert outcome(found(timedelta(minutes=30), WORKER)) == "requested"
    assert outcome(found(timedelta(minutes=30), *SERVER)) == waits


def test_a_lost_member_is_removed_although_machines_joined_it() -> None:
    joined = plan_secret("w", (WORKER,), plan=plan_of(), annotations={names.JOINED_TO: URL})
    lost = deleting_machine(conditions=[new_condition("NodeReady", "Unknown", "NodeReadyUnknown")])
    assert CONTROLLER.predicate(Change(key_of(lost), deleting_machine(), lost))
    assert not CONTROLLER.predicate(Change(key_of(lost), deleting_machine(), deleting_machine(phase="Deleting")))
    assert outcome(decide(lost, OWN, objects.machine("w"), joined, *OTHERS, nodes=[node()])) == "requested"


def test_an_unknown_node_condition_counts_as_lost_before_node_health_is_known() -> None:
    """The first server of a cluster may be lost before the cluster is complete."""
    joined = plan_secret("w", (WORKER,), plan=plan_of(), annotations={names.JOINED_TO: URL})
    unknown = node() | {"status": {"conditions": [new_condition("Ready", "Unknown")]}}
    existing = (deleting_machine(), OWN, objects.machine("w"), joined, *OTHERS)
    waiting = decide(*existing, nodes=[node()])
    assert [request.focus for request in waiting.observe] == [("name", "a")], (
        "the Node is observed while the machine waits"
    )
    assert outcome(decide(*existing, nodes=[unknown])) == "requested"


def test_a_member_stays_while_quorum_needs_it_unless_it_is_lost() -> None:
    unhealthy_others = [*OTHERS[:3], plan_secret("c", SERVER, plan=plan_of(), unhealthy=True)]
    reason = outcome(decide(deleting_machine(), OWN, *unhealthy_others, nodes=[node()]))
    assert reason == "healthy etcd members that remain: 1 of 2, quorum needs 2; waiting for the others"
    lost = deleting_machine(conditions=[new_condition("NodeReady", "Unknown", "NodeReadyUnknown")])
    assert outcome(decide(lost, OWN, *unhealthy_others, nodes=[node()])) == "requested"


def test_a_removal_is_cancelled_if_quorum_is_lost_before_it_is_done() -> None:
    unhealthy_others = [*OTHERS[:3], plan_secret("c", SERVER, plan=plan_of(), unhealthy=True)]
    requested = {"etcd.k3s.cattle.io/remove": "true"}
    assert outcome(decide(deleting_machine(), OWN, *unhealthy_others, nodes=[node(**requested)])) == "cancelled"
    removed = requested | {"etcd.k3s.cattle.io/removed-node-name": "a-1"}
    assert outcome(decide(deleting_machine(), OWN, *unhealthy_others, nodes=[node(**removed)])) == "released"


def test_last_etcd_members_stay_until_a_replacement_joins() -> None:
    last = [
        deleting_machine("b"),
        plan_secret("b", SERVER, plan=plan_of(), annotations={names.JOINED_TO: "https://10.0.0.9:6443"}),
    ]
    replacement = [objects.machine("n"), plan_secret("n", SERVER)]
    reason = outcome(decide(deleting_machine(), OWN, *last, *replacement, nodes=[node()]))
    assert reason == "no other etcd member remains; waiting for one of these to join: n"
    replacement = [objects.machine("n"), plan_secret("n", SERVER, plan=plan_of())]
    assert outcome(decide(deleting_machine(), OWN, *last, *replacement, nodes=[node()])) == "requested"


def test_the_last_of_two_members_gets_time_to_settle() -> None:
    decision = decide(deleting_machine(), OWN, *OTHERS[:2], nodes=[node()], now=NOW)
    assert outcome(decision) == "waiting 20 s for the remaining etcd member to settle"
    assert decision.wake_at == NOW + timedelta(seconds=10)
    assert outcome(decide(deleting_machine(), OWN, *OTHERS[:2], nodes=[node()], now=LATER)) == "requested"


def test_a_machine_that_may_still_join_etcd_is_waited_for() -> None:
    machine = deleting_machine(nodeRef={})
    reason = outcome(decide(machine, OWN, *OTHERS, nodes=[]))
    assert reason == "waiting for Node registration: the machine may still join etcd"
    assert outcome(decide(machine, OWN, *OTHERS, nodes=[node()])) == "requested"
    assert outcome(decide(machine, OWN, *OTHERS, nodes=[], now=NOW + timedelta(minutes=6))) == "released"


def test_a_worker_that_claims_the_machine_does_not_confirm_the_removal() -> None:
    claimant = {"metadata": {"name": "wolf", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}
    machine = deleting_machine(nodeRef={})
    assert outcome(decide(machine, OWN, *OTHERS, nodes=[claimant, node()])) == "requested"
    assert outcome(decide(machine, OWN, *OTHERS, nodes=[node(), claimant])) == "requested"


@pytest.mark.parametrize(
    ("existing", "cluster_objects"),
    [
        ((deleting_machine(), plan_secret("a", (WORKER,))), CLUSTER_OBJECTS),
        ((deleting_machine(),), CLUSTER_OBJECTS),
        ((deleting_machine(nodeRef={}), plan_secret("a", SERVER)), CLUSTER_OBJECTS),
        ((deleting_machine(), OWN, objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})), CLUSTER_OBJECTS),
        ((deleting_machine(), OWN), CLUSTER_OBJECTS[:2]),
        ((deleting_machine(), OWN), (objects.cluster(deleting=True), *CLUSTER_OBJECTS[1:])),
        ((deleting_machine(), OWN), (objects.cluster(), KUBECONFIG)),
        (
            (deleting_machine(), OWN),
            (objects.cluster(), objects.control_plane(kubernetesVersion="v1.33.4+herder1"), KUBECONFIG),
        ),
    ],
    ids=[
        "not an etcd member",
        "no plan",
        "never joined",
        "forced removal",
        "a cluster that was never reachable",
        "the cluster is being deleted",
        "no control plane",
        "a distribution that removes members itself",
    ],
)
def test_a_machine_is_released_at_once(existing: tuple[Object, ...], cluster_objects: tuple[Object, ...]) -> None:
    assert outcome(decide(*existing, *OTHERS, cluster_objects=cluster_objects, nodes=[node()])) == "released"


def test_machines_that_are_not_deleted_are_ignored() -> None:
    assert decide(objects.machine("a", address="10.0.0.1"), OWN) == Decision()
