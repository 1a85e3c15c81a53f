"""Which Pods go now, and how a drain is told."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from herder.controllers.capi.machine.deletion.drain.filters import PodDrainStatus
from herder.controllers.capi.machine.deletion.drain.plan import Evictions, Plan, PodDrain, evictions, plan
from herder.controllers.capi.machine.deletion.drain.report import drain_message
from herder.controllers.capi.machine.deletion.drain.rules import Behavior
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import EffectResult
from tests.unit.controllers.capi.machine.deleting import BEFORE, pod

STARTED = datetime(2026, 1, 1, 11, 0, 0, tzinfo=UTC)
PDB = "Cannot evict pod as it would violate the pod's disruption budget."
CAUSE = "The disruption budget web needs 2 healthy pods and has 2 currently"


def drained(name: str, order: int = 0, *, terminating: bool = False) -> PodDrain:
    given = pod(name, deletionTimestamp=BEFORE) if terminating else pod(name)
    return PodDrain(given, PodDrainStatus(Behavior.DRAIN, order))


def waited(name: str) -> PodDrain:
    return PodDrain(pod(name), PodDrainStatus(Behavior.WAIT_COMPLETED))


def left(name: str) -> PodDrain:
    return PodDrain(pod(name), PodDrainStatus(Behavior.SKIP))


@pytest.mark.parametrize(
    ("pod_drain", "groups"),
    [
        pytest.param([], {}, id="nothing there"),
        pytest.param([left("a")], {}, id="what is left alone is not in the way"),
        pytest.param([drained("b"), drained("a")], {"evict": "ab"}, id="in the order of names"),
        pytest.param([drained("a", 10), drained("b", -1)], {"evict": "b", "evict_later": "a"}, id="lowest first"),
        pytest.param(
            [drained("a", 0, terminating=True), drained("b", 1)],
            {"terminating": "a", "evict_later": "b"},
            id="the next order waits until the one before is gone",
        ),
        pytest.param(
            [drained("a", 5, terminating=True), drained("b", 1)], {"terminating": "a", "evict": "b"}, id="going anyway"
        ),
        pytest.param([waited("a"), drained("b", 1)], {"complete": "a", "evict_later": "b"}, id="jobs have order 0"),
        pytest.param(
            [waited("a"), drained("b", -1)], {"evict": "b", "complete_later": "a"}, id="jobs after a lower order"
        ),
    ],
)
def test_plan(pod_drain: list[PodDrain], groups: dict[str, str]) -> None:
    planned = plan(pod_drain)
    named = {name: "".join(each.pod["metadata"]["name"] for each in getattr(planned, name)) for name in Plan.__slots__}
    assert {name: names for name, names in named.items() if names} == groups
    assert planned.done is (not groups)


def answer(outcome: str, message: str = "", causes: tuple[str, ...] = ()) -> EffectResult:
    return EffectResult({"outcome": outcome, "message": message, "causes": list(causes)}, attempts=1)


def known(this: dict[str, EffectResult], last: dict[str, EffectResult]) -> Evictions:
    def of(results: dict[str, EffectResult], each: Object) -> EffectResult | None:
        return results.get(each["metadata"]["name"])

    evicted = [drained(name) for name in "abc"]
    return evictions(evicted, lambda each: of(this, each), lambda each: of(last, each))


def names(pod_drain: tuple[PodDrain, ...] | list[PodDrain]) -> str:
    return "".join(each.pod["metadata"]["name"] for each in pod_drain)


def test_evictions_are_open_until_this_round_answers() -> None:
    found = known({"a": answer("evicted"), "b": answer("gone")}, {"c": answer("blocked", PDB, (CAUSE,))})
    assert (names(found.accepted), names(found.open), names(found.unanswered)) == ("a", "c", "")
    assert {words: names(who) for words, who in found.refused.items()} == {f"{PDB} {CAUSE}": "c"}


def test_an_eviction_whose_performer_fails_stays_open_and_is_told() -> None:
    found = known({name: EffectResult(error="no answer in time", attempts=1) for name in "abc"}, {})
    assert names(found.open) == "abc"
    assert {words: names(who) for words, who in found.refused.items()} == {"no answer in time": "abc"}


def test_evictions_are_over_when_all_are_gone() -> None:
    assert known({name: answer("gone") for name in "abc"}, {}).over
    assert not known({name: answer("gone") for name in "ab"}, {}).over


def test_a_drain_is_told_with_what_each_pod_waits_for() -> None:
    planned = Plan(
        terminating=(drained("a"),),
        complete=(waited("job-1"), waited("job-2")),
        evict_later=tuple(drained(f"later-{number}", 1) for number in range(5)),
        complete_later=(waited("report"),),
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
def test_only_five_kinds_of_refusals_are_told(count: int, last: str) -> None:
    refused = {f"trouble {number}": [drained(f"p{number}")] for number in range(count)}
    lines = drain_message(STARTED, Plan(), Evictions(refused=refused)).splitlines()
    assert len(lines) == 7
    assert lines[-1] == last
