"""Which MachineDrainRules speak about a Machine and its Pods: items are alternatives, selectors in one add up."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import MACHINE_DRAIN_RULE
from herder.controllers.capi.machine.deletion.drain.rules import Behavior, InvalidRule, Rule, rules_for
from herder.engine.meta.kinds import Object
from tests.unit.controllers.capi.machine.deleting import cluster, machine, made, pod


def labels(**wanted: str) -> Object:
    return {"matchLabels": wanted}


def rule(name: str, behavior: str = "Drain", order: int | None = None, **spec: Any) -> Object:
    drain: Object = {"behavior": behavior} | ({} if order is None else {"order": order})
    return made(MACHINE_DRAIN_RULE, name, "ns", spec={"drain": drain, **spec})


MINE = machine(labels={"pool": "big", "zone": "a"})
OF = cluster(labels={"env": "test"})


@pytest.mark.parametrize(
    ("machines", "speaks"),
    [
        pytest.param(None, True, id="no items: all Machines"),
        pytest.param([], True, id="an empty list: all Machines"),
        pytest.param([{"selector": labels(pool="big")}], True, id="selector"),
        pytest.param([{"selector": labels(pool="small")}], False, id="another pool"),
        pytest.param([{"clusterSelector": labels(env="test")}], True, id="cluster selector"),
        pytest.param([{"clusterSelector": labels(env="live")}], False, id="another cluster"),
        pytest.param(
            [{"selector": labels(pool="big"), "clusterSelector": labels(env="live")}], False, id="both must fit"
        ),
        pytest.param([{"selector": labels(pool="big"), "clusterSelector": labels(env="test")}], True, id="both fit"),
        pytest.param(
            [{"selector": labels(pool="small")}, {"selector": labels(zone="a")}], True, id="one item is enough"
        ),
        pytest.param([{"selector": {}}], True, id="an empty selector fits all"),
        pytest.param(
            [{"selector": {"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["big"]}]}}],
            False,
            id="expressions",
        ),
    ],
)
def test_machines(machines: list[Object] | None, speaks: bool) -> None:
    spec = {} if machines is None else {"machines": machines}
    assert bool(rules_for(MINE, OF, [rule("r", **spec)])) is speaks


@pytest.mark.parametrize(
    ("pods", "applies"),
    [
        pytest.param([], True, id="no items: all Pods"),
        pytest.param([{"selector": labels(app="web")}], True, id="selector"),
        pytest.param([{"selector": labels(app="db")}], False, id="another app"),
        pytest.param([{"namespaceSelector": labels(team="x")}], True, id="namespace selector"),
        pytest.param(
            [{"selector": labels(app="web"), "namespaceSelector": labels(team="y")}], False, id="both must fit"
        ),
        pytest.param(
            [{"selector": labels(app="db")}, {"namespaceSelector": labels(team="x")}], True, id="one is enough"
        ),
    ],
)
def test_pods(pods: list[Object], applies: bool) -> None:
    parsed = Rule("r", Behavior.DRAIN, 0, pods)
    assert parsed.applies_to(pod("p", labels={"app": "web"}), {"team": "x"}) is applies


def test_rules_go_by_name_and_say_their_order() -> None:
    found = rules_for(MINE, OF, [rule("b", order=7), rule("a", "Skip"), rule("c", "WaitCompleted")])
    assert [(each.name, each.behavior, each.order) for each in found] == [
        ("a", Behavior.SKIP, 0),
        ("b", Behavior.DRAIN, 7),
        ("c", Behavior.WAIT_COMPLETED, 0),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
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
def test_a_rule_that_cannot_be_understood_is_named(given: Object, words: str) -> None:
    with pytest.raises(InvalidRule, match=words):
        rules_for(MINE, OF, [given])
