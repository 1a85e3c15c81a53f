"""Drain plans: which Pods are evicted now, and the message that reports the drain."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from herder.controllers.capi.machine.deletion.drain.filters import PodDrainStatus
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Plan, PodDrain, evictions, plan
from herder.controllers.capi.machine.deletion.drain.report import drain_message
from herder.controllers.capi.machine.deletion.drain.rules import Behavior
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectResult
from tests.unit.controllers.capi.machine.deletion.objects import A_MINUTE_AGO, pod

STARTED = datetime(2026, 1, 1, 11, 0, 0, tzinfo=UTC)
PDB = "Cannot evict pod as it would violate the pod's disruption budget."
CAUSE = "The disruption budget web needs 2 healthy pods and has 2 currently"


def drained(name: str, order: int = 0, *, terminating: bool = False) -> PodDrain:
    pod_object = pod(name, deletionTimestamp=A_MINUTE_AGO) if terminating else pod(name)
    return PodDrain(pod_object, PodDrainStatus(Behavior.DRAIN, order))


def waited_for(name: str) -> PodDrain:
    return PodDrain(pod(name), PodDrainStatus(Behavior.WAIT_COMPLETED))


def skipped(name: str) -> PodDrain:
    return PodDrain(pod(name), PodDrainStatus(Behavior.SKIP))


@pytest.mark.parametrize(
    ("pod_drain", "groups"),
    [
        pytest.param([], {}, id="no Pods"),
        pytest.param([skipped("a")], {}, id="skipped Pods do not block"),
        pytest.param([drained("b"), drained("a")], {"evict": "ab"}, id="ordered by name"),
        pytest.param([drained("a", 10), drained("b", -1)], {"evict": "b", "evict_later": "a"}, id="lowest first"),
        pytest.param(
            [drained("a", 0, terminating=True), drained("b", 1)],
            {"terminating": "a", "evict_later": "b"},
            id="next order waits until the previous is gone",
        ),
        pytest.param(
            [drained("a", 5, terminating=True), drained("b", 1)],
            {"terminating": "a", "evict": "b"},
            id="terminating with a higher order",
        ),
        pytest.param([waited_for("a"), drained("b", 1)], {"complete": "a", "evict_later": "b"}, id="jobs have order 0"),
        pytest.param(
            [waited_for("a"), drained("b", -1)], {"evict": "b", "complete_later": "a"}, id="jobs after a lower order"
        ),
    ],
)
def test_plan(pod_drain: list[PodDrain], groups: dict[str, str]) -> None:
    planned = plan(pod_drain)
    named = {name: "".join(each.pod["metadata"]["name"] for each in getattr(planned, name)) for name in Plan.__slots__}
    assert {name: names for name, names in named.items() if names} == groups
    assert planned.done is (not groups)


def eviction_result(outcome: str, message: str = "", causes: tuple[str, ...] = ()) -> EffectResult:
    return EffectResult({"outcome": outcome, "message": message, "causes": list(causes)}, attempts=1)


def evictions_with(this_round: dict[str, EffectResult], last_round: dict[str, EffectResult]) -> Evictions:
    def result_of(results: dict[str, EffectResult], each: Object) -> EffectResult | None:
        return results.get(each["metadata"]["name"])

    evicted = [drained(name) for name in "abc"]
    return evictions(evicted, lambda each: result_of(this_round, each), lambda each: result_of(last_round, each))


def names(pod_drain: tuple[PodDrain, ...] | list[PodDrain]) -> str:
    return "".join(each.pod["metadata"]["name"] for each in pod_drain)


def test_evictions_are_open_until_this_round_has_results() -> None:
    found = evictions_with(
        {"a": eviction_result("evicted"), "b": eviction_result("gone")},
        {"c": eviction_result("blocked", PDB, (CAUSE,))},
    )
    assert (names(found.accepted), names(found.open), names(found.unanswered)) == ("a", "c", "")
    assert {message: names(pods) for message, pods in found.refused.items()} == {f"{PDB} {CAUSE}": "c"}


def test_failed_eviction_stays_open_and_is_reported() -> None:
    found = evictions_with({name: EffectResult(error="no answer in time", attempts=1) for name in "abc"}, {})
    assert names(found.open) == "abc"
    assert {message: names(pods) for message, pods in found.refused.items()} == {"no answer in time": "abc"}


def test_evictions_are_over_when_all_pods_are_gone() -> None:
    assert evictions_with({name: eviction_result("gone") for name in "abc"}, {}).over
    assert not evictions_with({name: eviction_result("gone") for name in "ab"}, {}).over


def test_drain_message_lists_what_each_pod_waits_for() -> None:
    planned = Plan(
        terminating=(drained("a"),),
        complete=(waited_for("job-1"), waited_for("job-2")),
        evict_later=tuple(drained(f"later-{number}", 1) for number in range(5)),
        complete_later=(waited_for("report"),),
    )
    refused = {
        f"{PDB} {CAUSE}": [drained("web-1"), drained("web-2")],
        "no route to host": [drained("x")],
    }
    message = drain_message(
        STARTED, planned, Evictions(accepted=(drained("b"),), unanswered=(drained("c"),), refused=refused)
    )
    assert message.splitlines() == [
        "Drain not completed yet (started at 2026-01-01T11:00:00Z):",
        "* Pods apps/a, apps/b: deletionTimestamp set, but still not removed from the Node",
        f"* Pods apps/web-1, apps/web-2: cannot evict pod as it would violate the pod's disruption budget. {CAUSE}",
        "* Pod apps/x: failed to evict Pod, no route to host",
        "* Pod apps/c: eviction requested",
        "* Pods apps/job-1, apps/job-2: waiting for completion",
        "After above Pods have been removed from the Node, the following Pods will be evicted: "
        "apps/later-0, apps/later-1, apps/later-2, ... (2 more)",
        "After above Pods have been removed from the Node, "
        "waiting for the following Pods to complete without eviction: apps/report",
    ]


@pytest.mark.parametrize(("count", "last"), [(6, "* 1 Pod with other issues"), (8, "* 3 Pods with other issues")])
def test_drain_message_lists_at_most_five_refusals(count: int, last: str) -> None:
    refused = {f"trouble {number}": [drained(f"p{number}")] for number in range(count)}
    lines = drain_message(STARTED, Plan(), Evictions(refused=refused)).splitlines()
    assert len(lines) == 7
    assert lines[-1] == last
