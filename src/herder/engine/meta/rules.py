"""RBAC rules: matching, and the privilege escalation check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object

ALL = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """A PolicyRule prepared for matching."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]  # "pods", "pods/log", "*/scale", "*"
    names: frozenset[str]  # empty means every name
    urls: tuple[str, ...]
    source: Object

    @classmethod
    def of(cls, rule: Object) -> Rule:
        return cls(
            verbs=frozenset(rule.get("verbs") or ()),
            groups=frozenset(rule.get("apiGroups") or ()),
            resources=frozenset(rule.get("resources") or ()),
            names=frozenset(rule.get("resourceNames") or ()),
            urls=tuple(rule.get("nonResourceURLs") or ()),
            source=rule,
        )

    def covers_object(self, resource: str, subresource: str, name: str) -> bool:
        if self.names and name not in self.names:
            return False
        if ALL in self.resources:
            return True
        if not subresource:
            return resource in self.resources
        return f"{resource}/{subresource}" in self.resources or f"*/{subresource}" in self.resources

    def covers_path(self, path: str) -> bool:
        return any(url_covers(url, path) for url in self.urls)


def url_covers(pattern: str, path: str) -> bool:
    return pattern == path or (pattern.endswith("*") and path.startswith(pattern.rstrip("*")))


Atom = dict[str, list[str]]


def missing_rules(held: Sequence[Object], wanted: Sequence[Object]) -> list[Object]:
    """Return the rules that `wanted` grants but `held` does not."""
    missing = missing_atoms([Rule.of(rule) for rule in held], [Rule.of(rule) for rule in wanted])
    return [dict(rule) for rule in compact_rules(missing)]


MAX_COMPARISONS = 60_000
"""Limit for the escalation check: the author of a rule controls the number of combinations, the product of its
lists."""


def missing_atoms(held: Sequence[Rule], wanted: Sequence[Rule]) -> list[Atom]:
    """Return the atomic rules that `held` does not cover. Raises BadRequest if `wanted` has too many combinations."""
    index, paths = _index_rules(held)
    missing: list[Atom] = []
    remaining = MAX_COMPARISONS
    for rule in wanted:
        remaining -= _count_atoms(rule)
        _check_affordable(remaining)
        for part in _atoms(rule):
            candidates = _candidates(part, index, paths)
            remaining -= len(candidates)
            _check_affordable(remaining)
            if not any(_covers(own, part) for own in candidates):
                missing.append(part)
    return missing


def _check_affordable(remaining: int) -> None:
    if remaining < 0:
        raise BadRequest(
            "rules: too many combinations of groups, resources, resource names and verbs; "
            "split the rules over several roles"
        )


_Index = dict[tuple[str, str], list[Rule]]


def _index_rules(held: Sequence[Rule]) -> tuple[_Index, list[Rule]]:
    """Return rules by verb and group, and the rules about non-resource URLs."""
    index: _Index = {}
    for own in held:
        for verb in own.verbs:
            for group in own.groups:
                index.setdefault((verb, group), []).append(own)
    return index, [own for own in held if own.urls]


def _candidates(atom: Atom, index: _Index, paths: list[Rule]) -> list[Rule]:
    if "nonResourceURLs" in atom:
        return paths
    verb, group = atom["verbs"][0], atom["apiGroups"][0]
    pairs = dict.fromkeys(((ALL, ALL), (ALL, group), (verb, ALL), (verb, group)))
    return [own for pair in pairs for own in index.get(pair, ())]


def _count_atoms(rule: Rule) -> int:
    object_atoms = len(rule.groups) * len(rule.resources) * max(1, len(rule.names))
    return len(rule.verbs) * (object_atoms + len(set(rule.urls)))


def _atoms(rule: Rule) -> Iterator[Atom]:
    """Split a rule into atomic rules, each of which a held rule either covers or not."""
    groups, resources, verbs, names, urls = (
        list(dict.fromkeys(rule.source.get(part) or ()))
        for part in ("apiGroups", "resources", "verbs", "resourceNames", "nonResourceURLs")
    )
    for group in groups:
        for resource in resources:
            for verb in verbs:
                atom = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                if not names:
                    yield atom
                for name in names:
                    yield atom | {"resourceNames": [name]}
    for url in urls:
        for verb in verbs:
            yield {"nonResourceURLs": [url], "verbs": [verb]}


def _covers(own: Rule, atom: Atom) -> bool:
    if "*" not in own.verbs and atom["verbs"][0] not in own.verbs:
        return False
    if "nonResourceURLs" in atom:
        # A rule with resourceNames covers nothing without a name.
        return not own.names and any(url_covers(url, atom["nonResourceURLs"][0]) for url in own.urls)
    if "*" not in own.groups and atom["apiGroups"][0] not in own.groups:
        return False
    if own.names and not ("resourceNames" in atom and atom["resourceNames"][0] in own.names):
        return False
    resource = atom["resources"][0]
    if "*" in own.resources or resource in own.resources:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in own.resources


def compact_rules(atoms: Iterable[Atom]) -> list[Atom]:
    """Merge atomic rules that differ only in their verb, for readable messages."""
    merged: dict[Any, Atom] = {}
    for atom in atoms:
        if "nonResourceURLs" in atom:
            merged[len(merged)] = atom
            continue
        key = (atom["apiGroups"][0], atom["resources"][0], tuple(atom.get("resourceNames", ())))
        if key in merged:
            merged[key]["verbs"].extend(atom["verbs"])
        else:
            merged[key] = {part: list(values) for part, values in atom.items()}
    return list(merged.values())
