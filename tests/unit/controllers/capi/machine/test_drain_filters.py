"""What a drain does with each Pod."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.drain_records import MIRROR, POD_RECORD, claims_of
from herder.api.capi.names import DRAIN
from herder.controllers.capi.machine.deletion.drain.filters import (
    DrainContext,
    PodDrainStatus,
    UnknownNamespace,
    drain_status,
    skipped,
)
from herder.controllers.capi.machine.deletion.drain.rules import Behavior, Rule
from herder.engine.meta.kinds import Object
from tests.support.views import NOW
from tests.unit.controllers.capi.machine.deleting import pod

DRAINED, SKIPPED, WAITED = (
    PodDrainStatus(Behavior.DRAIN),
    PodDrainStatus(Behavior.SKIP),
    PodDrainStatus(Behavior.WAIT_COMPLETED),
)
LOCAL = {"name": "scratch", "emptyDir": {}}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(given: Object, **context: object) -> PodDrainStatus:
    return drain_status(POD_RECORD.project(given), DrainContext(NOW, **context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod("a"), DRAINED, id="an ordinary one goes"),
        pytest.param(pod("a", controller="DaemonSet"), SKIPPED, id="a DaemonSet's stays: it would come back"),
        pytest.param(
            pod("a", "elsewhere", controller="DaemonSet"),
            PodDrainStatus(Behavior.DRAIN, 0, "its DaemonSet is gone"),
            id="one whose DaemonSet is gone goes",
        ),
        pytest.param(
            pod("a", controller="DaemonSet", phase="Failed"), DRAINED, id="a finished one of a DaemonSet goes"
        ),
        pytest.param(pod("a", annotations={MIRROR: "x"}), SKIPPED, id="a static one stays"),
        pytest.param(
            pod("a", volumes=[LOCAL]),
            PodDrainStatus(Behavior.DRAIN, 0, "its local data is lost"),
            id="local data is no obstacle",
        ),
        pytest.param(
            pod("a", volumes=[LOCAL], phase="Succeeded"), DRAINED, id="local data of a finished one is no loss"
        ),
        pytest.param(
            pod("a", controller=""),
            PodDrainStatus(Behavior.DRAIN, 0, "no controller makes it anew"),
            id="one without a controller goes",
        ),
        pytest.param(pod("a", controller="", phase="Succeeded"), DRAINED, id="a finished one needs no controller"),
        pytest.param(
            pod("a", controller="", volumes=[LOCAL]),
            PodDrainStatus(Behavior.DRAIN, 0, "its local data is lost, no controller makes it anew"),
            id="warnings add up",
        ),
        pytest.param(pod("a", labels={DRAIN: "skip"}), SKIPPED, id="label skip"),
        pytest.param(pod("a", labels={DRAIN: "Skip"}), SKIPPED, id="label Skip"),
        pytest.param(pod("a", labels={DRAIN: "wait-completed"}), WAITED, id="label wait-completed"),
        pytest.param(pod("a", labels={DRAIN: "WaitCompleted"}), WAITED, id="label WaitCompleted"),
        pytest.param(pod("a", labels={DRAIN: "perhaps"}), DRAINED, id="an unknown label says nothing"),
        pytest.param(pod("a", deletionTimestamp=at(-60)), DRAINED, id="one that is going is waited for"),
    ],
)
def test_filters(given: Object, expected: PodDrainStatus) -> None:
    assert status(given, daemon_sets=frozenset({"apps/owner"})) == expected


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        pytest.param(at(-60), SKIPPED, id="long ago"),
        pytest.param(at(-2), SKIPPED, id="two seconds past its time"),
        pytest.param(at(-1), DRAINED, id="only one second past its time"),
        pytest.param(at(30), DRAINED, id="its grace is not over"),
    ],
)
def test_on_an_unreachable_node_a_pod_past_its_time_is_not_waited_for(deleted: str, expected: PodDrainStatus) -> None:
    assert status(pod("a", deletionTimestamp=deleted), node_unreachable=True) == expected


RULES = (
    Rule("first", Behavior.SKIP, 0, [{"selector": {"matchLabels": {"app": "storage"}}}]),
    Rule("later", Behavior.DRAIN, 10, [{"namespaceSelector": {"matchLabels": {"tier": "data"}}}]),
    Rule("nearly-last", Behavior.WAIT_COMPLETED, 5, [{"selector": {"matchLabels": {"app": "batch"}}}]),
)
NAMESPACES = {"apps": {}, "db": {"tier": "data"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(pod("a", labels={"app": "storage"}), SKIPPED, id="the first that fits"),
        pytest.param(pod("a", "db", labels={"app": "storage"}), SKIPPED, id="the first that fits, of two"),
        pytest.param(pod("a", "db"), PodDrainStatus(Behavior.DRAIN, 10), id="by the labels of its namespace"),
        pytest.param(pod("a", labels={"app": "batch"}), WAITED, id="only drains have an order"),
        pytest.param(pod("a"), DRAINED, id="no rule fits"),
        pytest.param(pod("a", "db", labels={DRAIN: "skip"}), SKIPPED, id="the Pod's own label goes before rules"),
        pytest.param(
            pod("a", "db", controller=""),
            PodDrainStatus(Behavior.DRAIN, 10, "no controller makes it anew"),
            id="order and warnings",
        ),
    ],
)
def test_rules(given: Object, expected: PodDrainStatus) -> None:
    assert status(given, rules=RULES, namespaces=NAMESPACES) == expected


def test_a_namespace_that_nobody_knows_is_named() -> None:
    with pytest.raises(UnknownNamespace, match="lost/a"):
        status(pod("a", "lost"), rules=RULES, namespaces=NAMESPACES)


def test_namespaces_are_not_needed_where_no_rule_asks_for_them() -> None:
    assert status(pod("a", "lost"), rules=RULES[:1]) == DRAINED


def test_what_is_kept_of_a_pod_is_little() -> None:
    whole = pod("a", volumes=[LOCAL, {"name": "conf", "configMap": {}}], annotations={"note": "x" * 1000})
    whole["metadata"]["managedFields"] = [{}]
    kept = POD_RECORD.project(whole)
    assert kept["spec"] == {"volumes": [LOCAL]}
    assert not {"managedFields", "annotations"} & set(kept["metadata"])


def test_the_claims_of_those_that_stay() -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "c1", "readOnly": True}}
    stays = pod("a", labels={DRAIN: "skip"}, volumes=[claim, {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}}])
    records = [POD_RECORD.project(each) for each in (stays, pod("b", volumes=[claim]))]
    staying = skipped(records, DrainContext(NOW))
    assert [each["metadata"]["name"] for each in staying] == ["a"]
    assert list(claims_of(staying[0])) == ["apps/c1", "apps/a-tmp"]
