"""Rules of RBAC: what one covers, and what is missing to those who want to hand out others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.meta.kinds import Object

ALL = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule, ready to be matched."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]  # "pods", "pods/log", "*/scale", "*"
    names: frozenset[str]  # empty: every name
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
    """What `wanted` grants and `held` does not, as rules."""
    missing = missing_atoms([Rule.of(rule) for rule in held], [Rule.of(rule) for rule in wanted])
    return [dict(rule) for rule in compacted(missing)]


def missing_atoms(held: Sequence[Rule], wanted: Sequence[Rule]) -> list[Atom]:
    return [part for rule in wanted for part in _atoms(rule) if not any(_covers(own, part) for own in held)]


def _atoms(rule: Rule) -> Iterator[Atom]:
    """The rule taken apart into pieces that one rule of the holder either covers or does not."""
    source = rule.source
    verbs = source.get("verbs") or ()
    for group in source.get("apiGroups") or ():
        for resource in source.get("resources") or ():
            for verb in verbs:
                atom = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = source.get("resourceNames") or ()
                if not names:
                    yield atom
                for name in names:
                    yield atom | {"resourceNames": [name]}
    for url in source.get("nonResourceURLs") or ():
        for verb in verbs:
            yield {"nonResourceURLs": [url], "verbs": [verb]}


def _covers(own: Rule, atom: Atom) -> bool:
    if "*" not in own.verbs and atom["verbs"][0] not in own.verbs:
        return False
    if "nonResourceURLs" in atom:
        # A rule limited to names covers nothing that has no name.
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


def compacted(atoms: Iterable[Atom]) -> list[Atom]:
    """Pieces that differ in their verb alone, put together again, for people to read."""
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
