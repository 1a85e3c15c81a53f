"""MachineDrainRules that apply to a Machine and its Pods. Items are ORed; the selectors of one item are ANDed."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE_DRAIN_RULE
from herder.controllers.capi.machine.deletion.drain.rules import Behavior, InvalidRule, Rule, rules_for
from herder.engine.meta.kinds import Object
from tests.support.builders import new_object
from tests.unit.controllers.capi.machine.deletion.objects import cluster, machine, pod


def labels(**match_labels: str) -> Object:
    return {"matchLabels": match_labels}


def rule(name: str, behavior: str = "Drain", order: int | None = None, **spec: Any) -> Object:
    drain: Object = {"behavior": behavior} | ({} if order is None else {"order": order})
    return new_object(MACHINE_DRAIN_RULE, name, "ns", spec={"drain": drain, **spec})


MACHINE_OBJECT = machine(labels={"pool": "big", "zone": "a"})
CLUSTER_OBJECT = cluster(labels={"env": "test"})


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param(None, True, id="no items: all Machines"),
        pytest.param([], True, id="an empty list: all Machines"),
        pytest.param([{"selector": labels(pool="big")}], True, id="selector"),
        pytest.param([{"selector": labels(pool="small")}], False, id="another pool"),
        pytest.param([{"clusterSelector": labels(env="test")}], True, id="cluster selector"),
        pytest.param([{"clusterSelector": labels(env="live")}], False, id="another cluster"),
        pytest.param(
            [{"selector": labels(pool="big"), "clusterSelector": labels(env="live")}], False, id="both must match"
        ),
        pytest.param([{"selector": labels(pool="big"), "clusterSelector": labels(env="test")}], True, id="both match"),
        pytest.param(
            [{"selector": labels(pool="small")}, {"selector": labels(zone="a")}], True, id="one item is enough"
        ),
        pytest.param([{"selector": {}}], True, id="an empty selector matches all"),
        pytest.param(
            [{"selector": {"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["big"]}]}}],
            False,
            id="expressions",
        ),
    ],
)
def test_machine_selectors(machines: list[Object] | None, expected: bool) -> None:
    spec = {} if machines is None else {"machines": machines}
    assert bool(rules_for(MACHINE_OBJECT, CLUSTER_OBJECT, [rule("r", **spec)])) is expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], True, id="no items: all Pods"),
        pytest.param([{"selector": labels(app="web")}], True, id="selector"),
        pytest.param([{"selector": labels(app="db")}], False, id="another app"),
        pytest.param([{"namespaceSelector": labels(team="x")}], True, id="namespace selector"),
        pytest.param(
            [{"selector": labels(app="web"), "namespaceSelector": labels(team="y")}], False, id="both must match"
        ),
        pytest.param(
            [{"selector": labels(app="db")}, {"namespaceSelector": labels(team="x")}], True, id="one is enough"
        ),
    ],
)
def test_pod_selectors(pods: list[Object], expected: bool) -> None:
    parsed = Rule("r", Behavior.DRAIN, 0, pods)
    assert parsed.applies_to(pod("p", labels={"app": "web"}), {"team": "x"}) is expected


def test_rules_are_sorted_by_name_and_carry_their_order() -> None:
    found = rules_for(
        MACHINE_OBJECT, CLUSTER_OBJECT, [rule("b", order=7), rule("a", "Skip"), rule("c", "WaitCompleted")]
    )
    assert [(each.name, each.behavior, each.order) for each in found] == [
        ("a", Behavior.SKIP, 0),
        ("b", Behavior.DRAIN, 7),
        ("c", Behavior.WAIT_COMPLETED, 0),
    ]


@pytest.mark.parametrize(
    ("rule_object", "message"),
    [
        pytest.param(
            rule("r", "Explode"), 'MachineDrainRule "r" has unknown spec.drain.behavior: "Explode"', id="behavior"
        ),
        pytest.param(
            rule("r", pods=[{}, {"namespaceSelector": {"matchLabels": {"a b": "c"}}}]),
            r"MachineDrainRule r: spec.pods\[1\].namespaceSelector.matchLabels",
            id="selector",
        ),
        pytest.param(
            rule("r", machines=[{"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]),
            r"spec.machines\[0\].selector.matchExpressions\[0\].operator",
            id="operator",
        ),
    ],
)
def test_invalid_rules_are_rejected(rule_object: Object, message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        rules_for(MACHINE_OBJECT, CLUSTER_OBJECT, [rule_object])
