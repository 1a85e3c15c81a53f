"""A drain from the first look to the last Pod."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from herder.api.capi.kinds import DAEMON_SET, MACHINE, MACHINE_DRAIN_RULE, NAMESPACE, NODE, POD
from herder.api.capi.names import CONTROL_PLANE, DRAIN, EXCLUDE_NODE_DRAINING
from herder.controllers.capi.externals import External
from herder.controllers.capi.machine.deletion import INDEXES, WATCHES
from herder.controllers.drain.evictions import EVICTIONS_AT_ONCE
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectResult, Patch, Ref
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deleting import (
    BEFORE,
    MISSING,
    Workload,
    deletion_of,
    infrastructure,
    legacy_of,
    machine,
    made,
    node,
    other_control_plane_machine,
    pod,
    subscriptions,
    told,
)

STARTED = NOW - timedelta(seconds=50)  # the third round, for ten seconds already
START = {"deletion": {"nodeDrainStartTime": "2026-01-01T11:59:10Z"}}
BLOCKED = EffectResult(
    {
        "outcome": "blocked",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "causes": ["The disruption budget web needs 2 healthy pods and has 2 currently"],
    },
    attempts=1,
)
EVICTED = EffectResult({"outcome": "evicted"}, attempts=1)
GONE = EffectResult({"outcome": "gone"}, attempts=1)


def key(name: str, number: int) -> tuple[str, ...]:
    return "Machine-m", "evict", f"Pod-{name}", str(number)


def draining(**given: object) -> Object:
    return machine(status=START, **given)  # type: ignore[arg-type]


def test_the_node_is_cordoned_before_its_pods_are_looked_at() -> None:
    workload = Workload([node(cordoned=False), pod("a")])
    step = deletion_of(machine(), workload=workload)
    assert step.decision.writes == (
        Patch(Ref(NODE, "n"), {"spec": {"unschedulable": True}}, "cordon the Node before draining it", target="ns/c"),
    )
    assert {subscription.kind for subscription in workload.asked} == {NODE}


def test_an_empty_node_needs_no_drain_and_nothing_is_written_about_it() -> None:
    step = deletion_of(machine())
    assert step.status == {}
    assert legacy_of(step)["DrainingSucceeded"] == "True/"
    assert told(step)[0] == "WaitingForInfrastructureDeletion"


def test_the_start_is_kept_before_anything_is_evicted() -> None:
    step = deletion_of(machine(), workload=Workload([node(), pod("a")]))
    assert step.status == {"nodeDrainStartTime": "2026-01-01T12:00:00Z"}
    assert told(step) == ("DrainingNode", "Drain not completed yet (started at 2026-01-01T12:00:00Z):")
    assert step.debounce == 0
    assert not step.decision.effects
    assert step.decision.wake_at == NOW


def test_pods_are_asked_to_leave() -> None:
    step = deletion_of(draining(), workload=Workload([node(), pod("a"), pod("b", controller="")]))
    assert [(effect.performer, effect.key) for effect in step.decision.effects] == [
        ("evict", key("a", 2)),
        ("evict", key("b", 2)),
    ]
    assert step.decision.effects[0].arguments == {
        "cluster": "ns/c",
        "namespace": "apps",
        "name": "a",
        "uid": "Pod-a",
        "grace_seconds": None,
    }
    assert step.decision.effects[1].reason == "Pod apps/b must leave Node n (no controller makes it anew)"
    assert step.decision.wake_at == STARTED + timedelta(seconds=60)


def test_a_blocked_pod_is_named_with_its_budget_and_asked_again_in_the_next_round() -> None:
    workload = Workload([node(), pod("a")])
    step = deletion_of(draining(), workload=workload, results={key("a", 2): BLOCKED})
    assert not step.decision.effects
    assert told(step)[1].splitlines()[1:] == [
        "* Pod apps/a: cannot evict pod as it would violate the pod's disruption budget. "
        "The disruption budget web needs 2 healthy pods and has 2 currently"
    ]
    assert legacy_of(step)["DrainingSucceeded"] == "False/Draining"
    assert step.decision.wake_at is not None
    again = deletion_of(draining(), workload=workload, results={key("a", 2): BLOCKED}, now=step.decision.wake_at)
    assert [effect.key for effect in again.decision.effects] == [key("a", 3)]
    assert told(again) == told(step)


def test_what_is_evicted_is_waited_for_by_watch() -> None:
    workload = Workload([node(), pod("a", deletionTimestamp=BEFORE)])
    step = deletion_of(draining(), workload=workload)
    assert not step.decision.effects
    assert step.decision.wake_at is None
    assert "* Pod apps/a: deletionTimestamp set, but still not removed from the Node" in told(step)[1]
    assert {(subscription.kind, subscription.freshness) for subscription in subscriptions(step)} == {
        (NODE, None),
        (POD, None),
    }


@pytest.mark.parametrize(("answer", "reason"), [(EVICTED, "DrainingNode"), (GONE, "WaitingForInfrastructureDeletion")])
def test_an_answer_counts_before_the_watch_shows_it(answer: EffectResult, reason: str) -> None:
    step = deletion_of(draining(), workload=Workload([node(), pod("a")]), results={key("a", 2): answer})
    assert told(step)[0] == reason
    assert not step.decision.effects


def test_evictions_of_one_pass_are_limited_and_go_on_as_answers_come() -> None:
    pods = [pod(f"p{number:02}") for number in range(EVICTIONS_AT_ONCE + 5)]
    first = deletion_of(draining(), workload=Workload([node(), *pods]))
    assert [effect.arguments["name"] for effect in first.decision.effects] == [f"p{n:02}" for n in range(20)]
    results = {effect.key: BLOCKED for effect in first.decision.effects}
    second = deletion_of(draining(), workload=Workload([node(), *pods]), results=results)
    assert [effect.arguments["name"] for effect in second.decision.effects] == [f"p{n:02}" for n in range(20, 25)]


def test_only_the_lowest_order_is_evicted() -> None:
    spec = {"drain": {"behavior": "Drain", "order": 9}, "pods": [{"selector": {"matchLabels": {"app": "db"}}}]}
    rule = made(MACHINE_DRAIN_RULE, "db-last", "ns", spec=spec)
    workload = Workload([node(), pod("a"), pod("db", labels={"app": "db"})])
    step = deletion_of(draining(), workload=workload, others=[other_control_plane_machine(), rule])
    assert [effect.arguments["name"] for effect in step.decision.effects] == ["a"]
    assert told(step)[1].endswith("the following Pods will be evicted: apps/db")


def test_rules_of_other_namespaces_do_not_count() -> None:
    rule = made(MACHINE_DRAIN_RULE, "skip-all", "other", spec={"drain": {"behavior": "Skip"}})
    step = deletion_of(draining(), workload=Workload([node(), pod("a")]), others=[other_control_plane_machine(), rule])
    assert len(step.decision.effects) == 1


def test_a_rule_that_cannot_be_understood_holds_the_drain_and_is_named() -> None:
    rule = made(MACHINE_DRAIN_RULE, "odd", "ns", spec={"drain": {"behavior": "Explode"}})
    step = deletion_of(draining(), workload=Workload([node(), pod("a")]), others=[other_control_plane_machine(), rule])
    assert told(step) == (
        "DrainingNode",
        'Error draining Node n: MachineDrainRule "odd" has unknown spec.drain.behavior: "Explode"',
    )
    assert legacy_of(step)["DrainingSucceeded"] == "False/DrainingFailed"


def test_a_job_may_end_by_itself() -> None:
    step = deletion_of(draining(), workload=Workload([node(), pod("job", labels={DRAIN: "wait-completed"})]))
    assert not step.decision.effects
    assert told(step)[1].endswith("* Pod apps/job: waiting for completion")


def test_more_is_listed_only_where_a_pod_or_a_rule_asks_for_it() -> None:
    spec = {"drain": {"behavior": "Skip"}, "pods": [{"namespaceSelector": {"matchLabels": {"keep": "yes"}}}]}
    rule = made(MACHINE_DRAIN_RULE, "keep", "ns", spec=spec)
    daemon = pod("daemon", controller="DaemonSet")
    workload = Workload(
        [
            node(),
            daemon,
            pod("kept"),
            made(DAEMON_SET, "owner", "apps"),
            made(NAMESPACE, "apps", meta={"labels": {"keep": "yes"}}),
        ]
    )
    step = deletion_of(machine(), workload=workload, others=[other_control_plane_machine(), rule])
    assert told(step)[0] == "WaitingForInfrastructureDeletion"
    assert {subscription.kind for subscription in workload.asked} >= {DAEMON_SET, NAMESPACE}
    plain = Workload([node(), pod("a")])
    deletion_of(machine(), workload=plain)
    assert {subscription.kind for subscription in plain.asked} == {NODE, POD}


@pytest.mark.parametrize("unmatched", [POD, DAEMON_SET])
def test_nothing_is_decided_before_all_has_been_seen(unmatched: object) -> None:
    workload = Workload([node(), pod("a"), pod("d", controller="DaemonSet")], unmatched=[unmatched])  # type: ignore[list-item]
    step = deletion_of(draining(), workload=workload)
    assert told(step) == ("DrainingNode", "Looking at the Pods of Node n")
    assert not step.decision.effects
    assert unmatched in {subscription.kind for subscription in subscriptions(step)}


def test_on_an_unreachable_node_pods_get_one_second_and_are_then_left() -> None:
    terminating = pod("b", deletionTimestamp="2026-01-01T12:00:05Z")
    step = deletion_of(draining(), workload=Workload([node(ready="Unknown"), pod("a"), terminating]))
    assert [effect.arguments["grace_seconds"] for effect in step.decision.effects] == [1]
    assert step.decision.wake_at == datetime.fromisoformat("2026-01-01T12:00:07Z")
    later = deletion_of(
        draining(), workload=Workload([node(ready="Unknown"), terminating]), now=NOW + timedelta(seconds=7)
    )
    assert told(later)[0] == "WaitingForInfrastructureDeletion"


def test_a_cluster_that_does_not_answer_holds_the_drain_while_its_time_runs() -> None:
    step = deletion_of(machine(limits={"nodeDrainTimeoutSeconds": 60}), workload=Workload(reason="no route to host"))
    assert told(step) == (
        "DrainingNode",
        "Error draining Node n: the workload cluster cannot be reached: no route to host",
    )
    assert step.status == {"nodeDrainStartTime": "2026-01-01T12:00:00Z"}
    assert step.decision.wake_at == NOW + timedelta(seconds=20)
    assert [subscription.kind for subscription in subscriptions(step)] == [NODE]


def test_a_change_of_the_rules_wakes_the_machines_that_go_in_that_namespace() -> None:
    (watch,) = WATCHES
    index = INDEXES[MACHINE][watch.keys.index]  # type: ignore[union-attr]
    rules = [made(MACHINE_DRAIN_RULE, "r", "ns", spec={"drain": {"behavior": name}}) for name in ("Skip", "Drain")]
    there = {"going": machine("going"), "staying": machine("staying", deleting=False)}

    def lookup(wanted: tuple[str, str]) -> list[Key]:
        return [Key("ns", name) for name, each in there.items() if wanted[1] in index(each)]

    assert watch.affected(Change(Key("ns", "r"), *rules), lookup) == [Key("ns", "going")]


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        pytest.param({}, False, id="no limit"),
        pytest.param({"nodeDrainTimeoutSeconds": 0}, False, id="0 is no limit"),
        pytest.param({"nodeDrainTimeoutSeconds": 51}, False, id="not over yet"),
        pytest.param({"nodeDrainTimeoutSeconds": 50}, True, id="over"),
    ],
)
def test_the_drain_ends_when_its_time_is_over(limits: Object, over: bool) -> None:
    step = deletion_of(draining(limits=limits), workload=Workload([node(), pod("a")]))
    assert (told(step)[0] != "DrainingNode") is over
    if limits.get("nodeDrainTimeoutSeconds") == 51:
        assert step.decision.wake_at == NOW + timedelta(seconds=1)


KUBEADM = [{"kind": "KubeadmControlPlane", "name": "kcp", "uid": "kcp", "controller": True}]
CLEANUP = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup"
TERMINATING = {
    "deprecated": {"v1beta1": {"conditions": [{"type": "PreTerminateDeleteHookSucceeded", "status": "False"}]}}
}


@pytest.mark.parametrize(
    ("given", "infra", "drains"),
    [
        pytest.param(machine(), None, True, id="the usual"),
        pytest.param(machine(annotations={EXCLUDE_NODE_DRAINING: ""}), None, False, id="excluded by annotation"),
        pytest.param(machine(status=TERMINATING), None, False, id="once the pre-terminate wait began"),
        pytest.param(machine(), MISSING, False, id="infrastructure is gone"),
        pytest.param(machine(), infrastructure(deletionTimestamp=BEFORE), False, id="infrastructure is going"),
        pytest.param(
            machine(labels={CONTROL_PLANE: ""}, owners=KUBEADM), None, False, id="kubeadm has taken the member away"
        ),
        pytest.param(
            machine(labels={CONTROL_PLANE: ""}, owners=KUBEADM, annotations={CLEANUP: ""}), None, True, id="not yet"
        ),
    ],
)
def test_when_a_node_is_drained(given: Object, infra: External | None, drains: bool) -> None:
    step = deletion_of(given, workload=Workload([node(), pod("a")]), infra=infra)
    assert (told(step)[0] == "DrainingNode") is drains
