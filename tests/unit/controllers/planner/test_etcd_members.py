"""A machine with etcd is let go when its member has left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE, NODE
from herder.api.rke import names
from herder.controllers.planner.etcd.member import CONTROLLER, reconcile
from herder.engine.control.cache import Change, key_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Observe, Patch, Refusal
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.views import NOW, view_of
from tests.unit.controllers.planner import objects
from tests.unit.controllers.planner.objects import NAME, NAMESPACE, SERVER, WORKER, made, plan_of, plan_secret

URL = "https://10.0.0.1:6443"
KUBECONFIG = {**made("v1", "Secret", f"{NAME}-kubeconfig"), "type": "cluster.x-k8s.io/secret"}
SOUND = (objects.cluster(), objects.control_plane(), KUBECONFIG)
LATER = NOW + timedelta(minutes=1)


def leaving(name: str = "a", **changes: Any) -> Object:
    found = objects.machine(name, deleting=True, address="10.0.0.1")
    found["metadata"]["annotations"] = {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}
    found["status"] |= changes
    return found


def node(**annotations: str) -> Object:
    return {"metadata": {"name": "a", "annotations": annotations}}


def decide(
    *there: Object,
    seen: Any = (),
    now: Any = LATER,
    around: tuple[Object, ...] = SOUND,
    refused: Refusal | None = None,
) -> Decision:
    def observed(_wish: Observe) -> Observed | Unreachable | None:
        return seen if seen is None or isinstance(seen, Unreachable) else Observed(tuple(seen), now)

    view = view_of(CONTROLLER, f"{NAMESPACE}/a", (*around, *there), now=now, observed=observed, refused=refused)
    return reconcile(view)


def told(decision: Decision) -> str:
    """Of the Machine, for people who wonder why it does not go."""
    for write in decision.writes[:1]:
        if isinstance(write, Patch) and write.subresource == "status":
            found = {each["type"]: each for each in write.patch["status"]["conditions"]}
            return str(found["Reconciled"]["message"])
    return ""


def done(decision: Decision) -> str:
    """`released`, `asked` the cluster to take the member out, `taken back` that, or why it waits."""
    for write in decision.writes:
        if isinstance(write, Patch) and write.subresource == "status":
            continue
        if isinstance(write, Patch) and write.ref.kind == MACHINE:
            assert write.patch == {"metadata": {"annotations": {names.ETCD_HOOK: None}}}
            return "released"
        if isinstance(write, Patch) and write.ref.kind == NODE:
            ((mark, value),) = write.patch["metadata"]["annotations"].items()
            assert (mark, write.target) == ("etcd.k3s.cattle.io/remove", f"{NAMESPACE}/{NAME}")
            return {"true": "asked", None: "taken back"}[value]
    reason = decision.wait.reason if decision.wait else ""
    assert told(decision) == reason
    return reason


OWN = plan_secret("a", SERVER, plan=plan_of(), marks={names.JOIN_URL: URL})
OTHERS = [
    each
    for name in "bc"
    for each in (objects.machine(name, address=f"10.0.1.{ord(name)}"), plan_secret(name, SERVER, plan=plan_of()))
]


def test_the_cluster_is_asked_to_take_the_member_out_and_then_it_goes() -> None:
    assert done(decide(leaving(), OWN, *OTHERS, seen=None)) == "reading Node a"
    assert done(decide(leaving(), OWN, *OTHERS, seen=[node()])) == "asked"
    asked = node(**{"etcd.k3s.cattle.io/remove": "true"})
    assert done(decide(leaving(), OWN, *OTHERS, seen=[asked])) == "waiting for the etcd member of Node a to leave"
    gone = node(**{"etcd.k3s.cattle.io/remove": "true", "etcd.k3s.cattle.io/removed-node-name": "a-1"})
    assert done(decide(leaving(), OWN, *OTHERS, seen=[gone])) == "released"
    assert done(decide(leaving(), OWN, *OTHERS, seen=[])) == "released"


def test_what_a_guard_refuses_is_told_before_it_is_tried_again() -> None:
    refused = Refusal("deny-release-of-join-server", "Machine fleet-default/a is not let go: b has joined it")
    decision = decide(leaving(), OWN, *OTHERS, seen=[], refused=refused)
    assert told(decision) == str(refused)
    assert done(decision) == "released"
    held = decide(leaving(), OWN, *OTHERS, seen=None, refused=refused)
    assert told(held) == "reading Node a"  # what is not tried is no longer refused


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    decision = decide(leaving(), OWN, *OTHERS, seen=Unreachable("no route", NOW))
    assert done(decision) == "cluster is unreachable: no route"
    assert decision.wake_at is not None


def test_it_waits_for_those_who_joined_it() -> None:
    joined = plan_secret("w", (WORKER,), plan=plan_of(), marks={names.JOINED_TO: URL})
    waits = done(decide(leaving(), OWN, objects.machine("w"), joined, *OTHERS, seen=[node()]))
    assert waits == "waiting for machines that have joined it to join another: w"


def test_one_that_is_lost_on_its_way_out_is_looked_at_again_and_leaves_before_those_who_joined_it() -> None:
    joined = plan_secret("w", (WORKER,), plan=plan_of(), marks={names.JOINED_TO: URL})
    lost = leaving(conditions=[{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}])
    assert CONTROLLER.predicate(Change(key_of(lost), leaving(), lost))
    assert not CONTROLLER.predicate(Change(key_of(lost), leaving(), leaving(phase="Deleting")))
    assert done(decide(lost, OWN, objects.machine("w"), joined, *OTHERS, seen=[node()])) == "asked"


def test_before_anything_is_told_of_nodes_the_node_itself_says_that_it_is_lost() -> None:
    """The first server of a cluster may be gone before its cluster is there as a whole."""
    joined = plan_secret("w", (WORKER,), plan=plan_of(), marks={names.JOINED_TO: URL})
    silent = node() | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    there = (leaving(), OWN, objects.machine("w"), joined, *OTHERS)
    waits = decide(*there, seen=[node()])
    assert [wish.focus for wish in waits.observe] == [("name", "a")], "it is looked at while it is waited for"
    assert done(decide(*there, seen=[silent])) == "asked"


def test_it_waits_while_the_others_would_have_no_quorum_unless_it_is_missed_already() -> None:
    unwell = [*OTHERS[:3], plan_secret("c", SERVER, plan=plan_of(), unhealthy=True)]
    waits = done(decide(leaving(), OWN, *unwell, seen=[node()]))
    assert waits == "healthy etcd members that remain: 1 of 2, quorum needs 2; waiting for the others"
    lost = leaving(conditions=[{"type": "NodeReady", "status": "Unknown", "reason": "NodeReadyUnknown"}])
    assert done(decide(lost, OWN, *unwell, seen=[node()])) == "asked"


def test_what_was_asked_before_another_was_lost_is_taken_back_unless_it_is_done() -> None:
    unwell = [*OTHERS[:3], plan_secret("c", SERVER, plan=plan_of(), unhealthy=True)]
    asked = {"etcd.k3s.cattle.io/remove": "true"}
    assert done(decide(leaving(), OWN, *unwell, seen=[node(**asked)])) == "taken back"
    out = asked | {"etcd.k3s.cattle.io/removed-node-name": "a-1"}
    assert done(decide(leaving(), OWN, *unwell, seen=[node(**out)])) == "released"


def test_the_last_members_stay_until_one_that_comes_has_joined_them() -> None:
    last = [leaving("b"), plan_secret("b", SERVER, plan=plan_of(), marks={names.JOINED_TO: "https://10.0.0.9:6443"})]
    new = [objects.machine("n"), plan_secret("n", SERVER)]
    waits = done(decide(leaving(), OWN, *last, *new, seen=[node()]))
    assert waits == "no other etcd member remains; waiting for one of these to join: n"
    new = [objects.machine("n"), plan_secret("n", SERVER, plan=plan_of())]
    assert done(decide(leaving(), OWN, *last, *new, seen=[node()])) == "asked"


def test_of_two_the_one_that_stays_is_given_a_moment() -> None:
    decision = decide(leaving(), OWN, *OTHERS[:2], seen=[node()], now=NOW)
    assert done(decision) == "waiting 20 s for the remaining etcd member to settle"
    assert decision.wake_at == NOW + timedelta(seconds=10)
    assert done(decide(leaving(), OWN, *OTHERS[:2], seen=[node()], now=LATER)) == "asked"


def test_one_that_may_be_about_to_join_is_waited_for_by_what_its_node_says() -> None:
    machine = leaving(nodeRef={})
    soon = done(decide(machine, OWN, *OTHERS, seen=[]))
    assert soon == "waiting for Node registration: the machine may still join etcd"
    assert done(decide(machine, OWN, *OTHERS, seen=[node()])) == "asked"
    assert done(decide(machine, OWN, *OTHERS, seen=[], now=NOW + timedelta(minutes=6))) == "released"


def test_a_worker_that_claims_to_be_the_machine_does_not_say_that_its_member_is_out() -> None:
    claimant = {"metadata": {"name": "wolf", "annotations": {"etcd.k3s.cattle.io/removed-node-name": "a-1"}}}
    machine = leaving(nodeRef={})
    assert done(decide(machine, OWN, *OTHERS, seen=[claimant, node()])) == "asked"
    assert done(decide(machine, OWN, *OTHERS, seen=[node(), claimant])) == "asked"


@pytest.mark.parametrize(
    ("there", "around"),
    [
        ((leaving(), plan_secret("a", (WORKER,))), SOUND),
        ((leaving(),), SOUND),
        ((leaving(nodeRef={}), plan_secret("a", SERVER)), SOUND),
        ((leaving(), OWN, objects.bootstrap("a", **{names.ETCD_FORCE_REMOVE: "true"})), SOUND),
        ((leaving(), OWN), SOUND[:2]),
        ((leaving(), OWN), (objects.cluster(deleting=True), *SOUND[1:])),
        ((leaving(), OWN), (objects.cluster(), KUBECONFIG)),
        ((leaving(), OWN), (objects.cluster(), objects.control_plane(kubernetesVersion="v1.33.4+herder1"), KUBECONFIG)),
    ],
    ids=[
        "no member of etcd",
        "no plan",
        "never asked to join",
        "by force",
        "a cluster that never answered",
        "the cluster goes",
        "no control plane",
        "a distribution whose members go by themselves",
    ],
)
def test_nothing_is_waited_for_where_nobody_misses_it(there: tuple[Object, ...], around: tuple[Object, ...]) -> None:
    assert done(decide(*there, *OTHERS, around=around, seen=[node()])) == "released"


def test_machines_that_stay_are_left_alone() -> None:
    assert decide(objects.machine("a", address="10.0.0.1"), OWN) == Decision()
