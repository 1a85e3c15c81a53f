"""Drain filters: whether each Pod is evicted, skipped or waited for."""

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
from tests.unit.controllers.capi.machine.deletion.objects import pod

DRAINED, SKIPPED, WAITED_FOR = (
    PodDrainStatus(Behavior.DRAIN),
    PodDrainStatus(Behavior.SKIP),
    PodDrainStatus(Behavior.WAIT_COMPLETED),
)
LOCAL = {"name": "scratch", "emptyDir": {}}


def timestamp_at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(pod_object: Object, **context: object) -> PodDrainStatus:
    return drain_status(POD_RECORD.project(pod_object), DrainContext(NOW, **context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pod_object", "expected"),
    [
        pytest.param(pod("a"), DRAINED, id="ordinary Pod is drained"),
        pytest.param(pod("a", controller="DaemonSet"), SKIPPED, id="Pod of a DaemonSet is skipped"),
        pytest.param(
            pod("a", "elsewhere", controller="DaemonSet"),
            PodDrainStatus(Behavior.DRAIN, 0, "its DaemonSet is gone"),
            id="Pod of a deleted DaemonSet is drained",
        ),
        pytest.param(
            pod("a", controller="DaemonSet", phase="Failed"), DRAINED, id="finished Pod of a DaemonSet is drained"
        ),
        pytest.param(pod("a", annotations={MIRROR: "x"}), SKIPPED, id="static Pod is skipped"),
        pytest.param(
            pod("a", volumes=[LOCAL]),
            PodDrainStatus(Behavior.DRAIN, 0, "its local data is lost"),
            id="local data is only a warning",
        ),
        pytest.param(
            pod("a", volumes=[LOCAL], phase="Succeeded"), DRAINED, id="no warning about local data of a finished Pod"
        ),
        pytest.param(
            pod("a", controller=""),
            PodDrainStatus(Behavior.DRAIN, 0, "no controller makes it anew"),
            id="Pod without a controller is drained",
        ),
        pytest.param(
            pod("a", controller="", phase="Succeeded"),
            DRAINED,
            id="no warning about a finished Pod without a controller",
        ),
        pytest.param(
            pod("a", controller="", volumes=[LOCAL]),
            PodDrainStatus(Behavior.DRAIN, 0, "its local data is lost, no controller makes it anew"),
            id="warnings are joined",
        ),
        pytest.param(pod("a", labels={DRAIN: "skip"}), SKIPPED, id="label skip"),
        pytest.param(pod("a", labels={DRAIN: "Skip"}), SKIPPED, id="label Skip"),
        pytest.param(pod("a", labels={DRAIN: "wait-completed"}), WAITED_FOR, id="label wait-completed"),
        pytest.param(pod("a", labels={DRAIN: "WaitCompleted"}), WAITED_FOR, id="label WaitCompleted"),
        pytest.param(pod("a", labels={DRAIN: "perhaps"}), DRAINED, id="unknown label value is ignored"),
        pytest.param(pod("a", deletionTimestamp=timestamp_at(-60)), DRAINED, id="terminating Pod is waited for"),
    ],
)
def test_filters(pod_object: Object, expected: PodDrainStatus) -> None:
    assert status(pod_object, daemon_sets=frozenset({"apps/owner"})) == expected


@pytest.mark.parametrize(
    ("deleted_at", "expected"),
    [
        pytest.param(timestamp_at(-60), SKIPPED, id="long ago"),
        pytest.param(timestamp_at(-2), SKIPPED, id="two seconds past its grace period"),
        pytest.param(timestamp_at(-1), DRAINED, id="one second past its grace period"),
        pytest.param(timestamp_at(30), DRAINED, id="within its grace period"),
    ],
)
def test_pod_past_its_grace_period_on_an_unreachable_node_is_skipped(deleted_at: str, expected: PodDrainStatus) -> None:
    assert status(pod("a", deletionTimestamp=deleted_at), node_unreachable=True) == expected


RULES = (
    Rule("first", Behavior.SKIP, 0, [{"selector": {"matchLabels": {"app": "storage"}}}]),
    Rule("later", Behavior.DRAIN, 10, [{"namespaceSelector": {"matchLabels": {"tier": "data"}}}]),
    Rule("nearly-last", Behavior.WAIT_COMPLETED, 5, [{"selector": {"matchLabels": {"app": "batch"}}}]),
)
NAMESPACES = {"apps": {}, "db": {"tier": "data"}}


@pytest.mark.parametrize(
    ("pod_object", "expected"),
    [
        pytest.param(pod("a", labels={"app": "storage"}), SKIPPED, id="first matching rule"),
        pytest.param(pod("a", "db", labels={"app": "storage"}), SKIPPED, id="first of two matching rules"),
        pytest.param(pod("a", "db"), PodDrainStatus(Behavior.DRAIN, 10), id="by the labels of its namespace"),
        pytest.param(pod("a", labels={"app": "batch"}), WAITED_FOR, id="only drains have an order"),
        pytest.param(pod("a"), DRAINED, id="no matching rule"),
        pytest.param(pod("a", "db", labels={DRAIN: "skip"}), SKIPPED, id="the Pod's label takes precedence over rules"),
        pytest.param(
            pod("a", "db", controller=""),
            PodDrainStatus(Behavior.DRAIN, 10, "no controller makes it anew"),
            id="order and warnings",
        ),
    ],
)
def test_rules(pod_object: Object, expected: PodDrainStatus) -> None:
    assert status(pod_object, rules=RULES, namespaces=NAMESPACES) == expected


def test_unknown_namespace_is_named() -> None:
    with pytest.raises(UnknownNamespace, match="lost/a"):
        status(pod("a", "lost"), rules=RULES, namespaces=NAMESPACES)


def test_namespaces_are_not_needed_without_namespace_selectors() -> None:
    assert status(pod("a", "lost"), rules=RULES[:1]) == DRAINED


def test_pod_record_omits_unused_fields() -> None:
    full_pod = pod("a", volumes=[LOCAL, {"name": "conf", "configMap": {}}], annotations={"note": "x" * 1000})
    full_pod["metadata"]["managedFields"] = [{}]
    record = POD_RECORD.project(full_pod)
    assert record["spec"] == {"volumes": [LOCAL]}
    assert not {"managedFields", "annotations"} & set(record["metadata"])


def test_claims_of_skipped_pods() -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "c1", "readOnly": True}}
    skipped_pod = pod(
        "a", labels={DRAIN: "skip"}, volumes=[claim, {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}}]
    )
    records = [POD_RECORD.project(each) for each in (skipped_pod, pod("b", volumes=[claim]))]
    skipped_pods = skipped(records, DrainContext(NOW))
    assert [each["metadata"]["name"] for each in skipped_pods] == ["a"]
    assert list(claims_of(skipped_pods[0])) == ["apps/c1", "apps/a-tmp"]
