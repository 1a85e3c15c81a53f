"""Drain of a Node: cordon, evictions in rounds, and timeouts."""

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
from tests.support.builders import new_object
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deletion.objects import (
    A_MINUTE_AGO,
    MISSING,
    Workload,
    deleting_condition,
    infrastructure,
    legacy_conditions,
    machine,
    node,
    other_control_plane_machine,
    pod,
    reconcile_deletion,
    subscriptions,
)

STARTED = NOW - timedelta(seconds=50)  # the third round began ten seconds ago
DRAINING_STATUS = {"deletion": {"nodeDrainStartTime": "2026-01-01T11:59:10Z"}}
BLOCKED = EffectResult(
    {
        "outcome": "blocked",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "causes": ["The disruption budget web needs 2 healthy pods and has 2 currently"],
    },
    attempts=1,
)
EVICTED = EffectResult({"outcome": "evicted"}, attempts=1)
POD_GONE = EffectResult({"outcome": "gone"}, attempts=1)


def eviction_key(name: str, number: int) -> tuple[str, ...]:
    return "Machine-m", "evict", f"Pod-{name}", str(number)


def draining(**options: object) -> Object:
    return machine(status=DRAINING_STATUS, **options)  # type: ignore[arg-type]


def test_node_is_cordoned_before_its_pods_are_observed() -> None:
    workload = Workload([node(cordoned=False), pod("a")])
    step = reconcile_deletion(machine(), workload=workload)
    assert step.decision.writes == (
        Patch(Ref(NODE, "n"), {"spec": {"unschedulable": True}}, "cordon the Node before draining it", target="ns/c"),
    )
    assert {subscription.kind for subscription in workload.requests} == {NODE}


def test_empty_node_needs_no_drain_and_no_status() -> None:
    step = reconcile_deletion(machine())
    assert step.status == {}
    assert legacy_conditions(step)["DrainingSucceeded"] == "True/"
    assert deleting_condition(step)[0] == "WaitingForInfrastructureDeletion"


def test_start_time_is_written_before_evictions() -> None:
    step = reconcile_deletion(machine(), workload=Workload([node(), pod("a")]))
    assert step.status == {"nodeDrainStartTime": "2026-01-01T12:00:00Z"}
    assert deleting_condition(step) == ("DrainingNode", "Drain not completed yet (started at 2026-01-01T12:00:00Z):")
    assert step.debounce == 0
    assert not step.decision.effects
    assert step.decision.wake_at == NOW


def test_pods_are_evicted() -> None:
    step = reconcile_deletion(draining(), workload=Workload([node(), pod("a"), pod("b", controller="")]))
    assert [(effect.performer, effect.key) for effect in step.decision.effects] == [
        ("evict", eviction_key("a", 2)),
        ("evict", eviction_key("b", 2)),
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


def test_blocked_eviction_is_reported_and_retried_in_the_next_round() -> None:
    workload = Workload([node(), pod("a")])
    step = reconcile_deletion(draining(), workload=workload, results={eviction_key("a", 2): BLOCKED})
    assert not step.decision.effects
    assert deleting_condition(step)[1].splitlines()[1:] == [
        "* Pod apps/a: cannot evict pod as it would violate the pod's disruption budget. "
        "The disruption budget web needs 2 healthy pods and has 2 currently"
    ]
    assert legacy_conditions(step)["DrainingSucceeded"] == "False/Draining"
    assert step.decision.wake_at is not None
    next_round = reconcile_deletion(
        draining(), workload=workload, results={eviction_key("a", 2): BLOCKED}, now=step.decision.wake_at
    )
    assert [effect.key for effect in next_round.decision.effects] == [eviction_key("a", 3)]
    assert deleting_condition(next_round) == deleting_condition(step)


def test_evicted_pods_are_watched_until_they_are_gone() -> None:
    workload = Workload([node(), pod("a", deletionTimestamp=A_MINUTE_AGO)])
    step = reconcile_deletion(draining(), workload=workload)
    assert not step.decision.effects
    assert step.decision.wake_at is None
    assert "* Pod apps/a: deletionTimestamp set, but still not removed from the Node" in deleting_condition(step)[1]
    assert {(subscription.kind, subscription.freshness) for subscription in subscriptions(step)} == {
        (NODE, None),
        (POD, None),
    }


@pytest.mark.parametrize(
    ("eviction_result", "reason"), [(EVICTED, "DrainingNode"), (POD_GONE, "WaitingForInfrastructureDeletion")]
)
def test_eviction_result_counts_before_the_watch_shows_it(eviction_result: EffectResult, reason: str) -> None:
    step = reconcile_deletion(
        draining(), workload=Workload([node(), pod("a")]), results={eviction_key("a", 2): eviction_result}
    )
    assert deleting_condition(step)[0] == reason
    assert not step.decision.effects


def test_concurrent_evictions_are_limited() -> None:
    pods = [pod(f"p{number:02}") for number in range(EVICTIONS_AT_ONCE + 5)]
    first = reconcile_deletion(draining(), workload=Workload([node(), *pods]))
    assert [effect.arguments["name"] for effect in first.decision.effects] == [f"p{n:02}" for n in range(20)]
    results = {effect.key: BLOCKED for effect in first.decision.effects}
    second = reconcile_deletion(draining(), workload=Workload([node(), *pods]), results=results)
    assert [effect.arguments["name"] for effect in second.decision.effects] == [f"p{n:02}" for n in range(20, 25)]


def test_pods_of_the_lowest_order_are_evicted_first() -> None:
    spec = {"drain": {"behavior": "Drain", "order": 9}, "pods": [{"selector": {"matchLabels": {"app": "db"}}}]}
    rule = new_object(MACHINE_DRAIN_RULE, "db-last", "ns", spec=spec)
    workload = Workload([node(), pod("a"), pod("db", labels={"app": "db"})])
    step = reconcile_deletion(draining(), workload=workload, others=[other_control_plane_machine(), rule])
    assert [effect.arguments["name"] for effect in step.decision.effects] == ["a"]
    assert deleting_condition(step)[1].endswith("the following Pods will be evicted: apps/db")


def test_rules_of_other_namespaces_are_ignored() -> None:
    rule = new_object(MACHINE_DRAIN_RULE, "skip-all", "other", spec={"drain": {"behavior": "Skip"}})
    step = reconcile_deletion(
        draining(), workload=Workload([node(), pod("a")]), others=[other_control_plane_machine(), rule]
    )
    assert len(step.decision.effects) == 1


def test_invalid_rule_blocks_the_drain_and_is_reported() -> None:
    rule = new_object(MACHINE_DRAIN_RULE, "odd", "ns", spec={"drain": {"behavior": "Explode"}})
    step = reconcile_deletion(
        draining(), workload=Workload([node(), pod("a")]), others=[other_control_plane_machine(), rule]
    )
    assert deleting_condition(step) == (
        "DrainingNode",
        'Error draining Node n: MachineDrainRule "odd" has unknown spec.drain.behavior: "Explode"',
    )
    assert legacy_conditions(step)["DrainingSucceeded"] == "False/DrainingFailed"


def test_pods_labelled_wait_completed_are_not_evicted() -> None:
    step = reconcile_deletion(draining(), workload=Workload([node(), pod("job", labels={DRAIN: "wait-completed"})]))
    assert not step.decision.effects
    assert deleting_condition(step)[1].endswith("* Pod apps/job: waiting for completion")


def test_daemon_sets_and_namespaces_are_observed_only_when_needed() -> None:
    spec = {"drain": {"behavior": "Skip"}, "pods": [{"namespaceSelector": {"matchLabels": {"keep": "yes"}}}]}
    rule = new_object(MACHINE_DRAIN_RULE, "keep", "ns", spec=spec)
    daemon = pod("daemon", controller="DaemonSet")
    workload = Workload(
        [
            node(),
            daemon,
            pod("kept"),
            new_object(DAEMON_SET, "owner", "apps"),
            new_object(NAMESPACE, "apps", labels={"keep": "yes"}),
        ]
    )
    step = reconcile_deletion(machine(), workload=workload, others=[other_control_plane_machine(), rule])
    assert deleting_condition(step)[0] == "WaitingForInfrastructureDeletion"
    assert {subscription.kind for subscription in workload.requests} >= {DAEMON_SET, NAMESPACE}
    plain = Workload([node(), pod("a")])
    reconcile_deletion(machine(), workload=plain)
    assert {subscription.kind for subscription in plain.requests} == {NODE, POD}


@pytest.mark.parametrize("unmatched", [POD, DAEMON_SET])
def test_drain_waits_until_pods_and_daemon_sets_are_synced(unmatched: object) -> None:
    workload = Workload([node(), pod("a"), pod("d", controller="DaemonSet")], unmatched=[unmatched])  # type: ignore[list-item]
    step = reconcile_deletion(draining(), workload=workload)
    assert deleting_condition(step) == ("DrainingNode", "Looking at the Pods of Node n")
    assert not step.decision.effects
    assert unmatched in {subscription.kind for subscription in subscriptions(step)}


def test_pods_of_an_unreachable_node_get_one_second_of_grace() -> None:
    terminating = pod("b", deletionTimestamp="2026-01-01T12:00:05Z")
    step = reconcile_deletion(draining(), workload=Workload([node(ready="Unknown"), pod("a"), terminating]))
    assert [effect.arguments["grace_seconds"] for effect in step.decision.effects] == [1]
    assert step.decision.wake_at == datetime.fromisoformat("2026-01-01T12:00:07Z")
    later = reconcile_deletion(
        draining(), workload=Workload([node(ready="Unknown"), terminating]), now=NOW + timedelta(seconds=7)
    )
    assert deleting_condition(later)[0] == "WaitingForInfrastructureDeletion"


def test_unreachable_cluster_blocks_the_drain_until_its_timeout() -> None:
    step = reconcile_deletion(
        machine(limits={"nodeDrainTimeoutSeconds": 60}), workload=Workload(reason="no route to host")
    )
    assert deleting_condition(step) == (
        "DrainingNode",
        "Error draining Node n: the workload cluster cannot be reached: no route to host",
    )
    assert step.status == {"nodeDrainStartTime": "2026-01-01T12:00:00Z"}
    assert step.decision.wake_at == NOW + timedelta(seconds=20)
    assert [subscription.kind for subscription in subscriptions(step)] == [NODE]


def test_drain_rule_change_triggers_deleting_machines_of_its_namespace() -> None:
    (watch,) = WATCHES
    index = INDEXES[MACHINE][watch.keys.index]  # type: ignore[union-attr]
    rules = [
        new_object(MACHINE_DRAIN_RULE, "r", "ns", spec={"drain": {"behavior": name}}) for name in ("Skip", "Drain")
    ]
    machines = {"going": machine("going"), "staying": machine("staying", deleting=False)}

    def lookup(index_value: tuple[str, str]) -> list[Key]:
        return [Key("ns", name) for name, each in machines.items() if index_value[1] in index(each)]

    assert watch.affected(Change(Key("ns", "r"), *rules), lookup) == [Key("ns", "going")]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({}, False, id="no limit"),
        pytest.param({"nodeDrainTimeoutSeconds": 0}, False, id="0 is no limit"),
        pytest.param({"nodeDrainTimeoutSeconds": 51}, False, id="before the timeout"),
        pytest.param({"nodeDrainTimeoutSeconds": 50}, True, id="after the timeout"),
    ],
)
def test_drain_ends_at_its_timeout(limits: Object, expected: bool) -> None:
    step = reconcile_deletion(draining(limits=limits), workload=Workload([node(), pod("a")]))
    assert (deleting_condition(step)[0] != "DrainingNode") is expected
    if limits.get("nodeDrainTimeoutSeconds") == 51:
        assert step.decision.wake_at == NOW + timedelta(seconds=1)


KUBEADM = [{"kind": "KubeadmControlPlane", "name": "kcp", "uid": "kcp", "controller": True}]
CLEANUP = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup"
TERMINATING = {
    "deprecated": {"v1beta1": {"conditions": [{"type": "PreTerminateDeleteHookSucceeded", "status": "False"}]}}
}


@pytest.mark.parametrize(
    ("machine_object", "infra", "expected"),
    [
        pytest.param(machine(), None, True, id="default"),
        pytest.param(machine(annotations={EXCLUDE_NODE_DRAINING: ""}), None, False, id="excluded by annotation"),
        pytest.param(machine(status=TERMINATING), None, False, id="once the pre-terminate wait began"),
        pytest.param(machine(), MISSING, False, id="infrastructure is deleted"),
        pytest.param(
            machine(), infrastructure(deletionTimestamp=A_MINUTE_AGO), False, id="infrastructure is being deleted"
        ),
        pytest.param(
            machine(labels={CONTROL_PLANE: ""}, owners=KUBEADM), None, False, id="kubeadm has removed the etcd member"
        ),
        pytest.param(
            machine(labels={CONTROL_PLANE: ""}, owners=KUBEADM, annotations={CLEANUP: ""}),
            None,
            True,
            id="kubeadm has not removed the etcd member yet",
        ),
    ],
)
def test_when_a_node_is_drained(machine_object: Object, infra: External | None, expected: bool) -> None:
    step = reconcile_deletion(machine_object, workload=Workload([node(), pod("a")]), infra=infra)
    assert (deleting_condition(step)[0] == "DrainingNode") is expected
