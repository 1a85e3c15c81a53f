"""MachineDrainRules: select the rules for a Machine and match them against Pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from herder.api.capi.names import labels_of
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import label_selector_from_object, validate_label_selector


class Behavior(StrEnum):
    DRAIN = "Drain"
    SKIP = "Skip"
    WAIT_COMPLETED = "WaitCompleted"


class Rule(NamedTuple):
    """A parsed MachineDrainRule."""

    name: str
    behavior: Behavior
    order: int
    pods: Sequence[Object]  # at least one must match; an empty list matches every Pod

    @property
    def needs_namespaces(self) -> bool:
        return any("namespaceSelector" in item for item in self.pods)

    def applies_to(self, pod: Object, namespace_labels: Mapping[str, str]) -> bool:
        return not self.pods or any(
            _matches(item.get("selector"), labels_of(pod)) and _matches(item.get("namespaceSelector"), namespace_labels)
            for item in self.pods
        )


class InvalidRule(ValueError):
    """A stored rule that cannot be parsed; the drain stops rather than evict wrongly."""


def rules_for(machine: Object, cluster: Object, rules: Iterable[Object]) -> list[Rule]:
    """The rules that select this Machine, sorted by name."""
    for rule in rules:
        _check(rule)
    mine = [_rule(rule) for rule in rules if _selects_machine(rule, machine, cluster)]
    return sorted(mine, key=lambda rule: rule.name)


def _selects_machine(rule: Object, machine: Object, cluster: Object) -> bool:
    machines = rule["spec"].get("machines") or []
    return not machines or any(
        _matches(item.get("selector"), labels_of(machine)) and _matches(item.get("clusterSelector"), labels_of(cluster))
        for item in machines
    )


def _rule(rule: Object) -> Rule:
    drain = rule["spec"]["drain"]
    pods = rule["spec"].get("pods") or []
    return Rule(rule["metadata"]["name"], Behavior(drain["behavior"]), int(drain.get("order") or 0), pods)


def _matches(selector: Object | None, labels: Mapping[str, str]) -> bool:
    parsed = label_selector_from_object(selector)
    return parsed is None or parsed.matches(labels)


def _check(rule: Object) -> None:
    name = rule["metadata"]["name"]
    behavior = rule["spec"].get("drain", {}).get("behavior", "")
    if behavior not in set(Behavior):
        raise InvalidRule(f'MachineDrainRule "{name}" has unknown spec.drain.behavior: "{behavior}"')
    for part, selectors in (("machines", ("selector", "clusterSelector")), ("pods", ("selector", "namespaceSelector"))):
        for position, item in enumerate(rule["spec"].get(part) or []):
            for selector in selectors:
                for error in validate_label_selector(item.get(selector), f"spec.{part}[{position}].{selector}"):
                    raise InvalidRule(f"invalid selectors in MachineDrainRule {name}: {error}")
