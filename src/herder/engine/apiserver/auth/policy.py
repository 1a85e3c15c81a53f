"""RBAC policy as an index: from a user and a namespace to the rules that hold there, without looking at the rest.

Roles are compiled when they change. Bindings are filed under each of their subjects, so a user's rules are found by
the user's name and groups, however many bindings others have. What was found for a user is kept until any role or
binding changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from herder.engine.apiserver.auth.access import AccessAttributes, Decision
from herder.engine.apiserver.auth.users import SERVICE_ACCOUNT_PREFIX
from herder.engine.client.wire import User
from herder.engine.meta.kinds import Object
from herder.engine.meta.rules import ALL as _ALL
from herder.engine.meta.rules import Rule

GROUP = "rbac.authorization.k8s.io"
_REMEMBERED_USERS = 4096
_LONGEST_REMEMBERED = 2048  # characters: clients choose namespaces, and subjects of reviews


class Grant(NamedTuple):
    rule: Rule
    reason: str


class Grants:
    """All that one user may do in one namespace (or at the cluster scope), filed by verb and group."""

    __slots__ = ("_by_verb_and_group", "_paths", "errors", "rules")

    def __init__(self, granted: Iterable[Grant], errors: Sequence[str]) -> None:
        self.errors = tuple(dict.fromkeys(errors))
        self.rules: list[Object] = []
        self._by_verb_and_group: dict[tuple[str, str], list[Grant]] = {}
        self._paths: list[Grant] = []
        for grant in granted:
            self.rules.append(grant.rule.source)
            for verb in grant.rule.verbs:
                for group in grant.rule.groups:
                    self._by_verb_and_group.setdefault((verb, group), []).append(grant)
            if grant.rule.urls:
                self._paths.append(grant)

    def decide(self, attributes: AccessAttributes) -> Decision:
        found = self._for_resource(attributes) if attributes.is_resource_request else self._for_path(attributes)
        if found is not None:
            return Decision(True, found.reason)
        return Decision(False, f"RBAC: {self.told_errors()}" if self.errors else "")

    def told_errors(self) -> str:
        return self.errors[0] if len(self.errors) == 1 else "[" + ", ".join(self.errors) + "]"

    def _for_resource(self, wanted: AccessAttributes) -> Grant | None:
        filed = self._by_verb_and_group
        for verb in (wanted.verb, _ALL):
            for group in (wanted.group, _ALL):
                for grant in filed.get((verb, group), ()):
                    if grant.rule.covers_object(wanted.resource, wanted.subresource, wanted.name):
                        return grant
        return None

    def _for_path(self, wanted: AccessAttributes) -> Grant | None:
        for grant in self._paths:
            verbs = grant.rule.verbs
            if (wanted.verb in verbs or _ALL in verbs) and grant.rule.covers_path(wanted.path):
                return grant
        return None


@dataclass(frozen=True, slots=True)
class _Binding:
    namespace: str  # "" for a ClusterRoleBinding
    name: str
    role_kind: str
    role_name: str
    subjects: tuple[tuple[str, str], ...]  # filing key and description of each, in order

    def reason(self, keys: frozenset[str]) -> str:
        kind, name = ("RoleBinding", f"{self.name}/{self.namespace}") if self.namespace else (
            "ClusterRoleBinding", self.name)  # fmt: skip
        subject = next(described for key, described in self.subjects if key in keys)
        return f'RBAC: allowed by {kind} "{name}" of {self.role_kind} "{self.role_name}" to {subject}'


@dataclass(slots=True)
class PolicyIndex:
    """Roles and bindings. A role's or binding's namespace is "" at the cluster scope."""

    _roles: dict[tuple[str, str], tuple[Rule, ...]] = field(default_factory=dict)
    _bindings: dict[tuple[str, str], _Binding] = field(default_factory=dict)
    _by_subject: dict[str, dict[str, dict[str, _Binding]]] = field(default_factory=dict)  # key → namespace → name
    _remembered: dict[tuple[str, tuple[str, ...], str], Grants] = field(default_factory=dict)

    def put_role(self, namespace: str, name: str, role: Object) -> None:
        self._roles[namespace, name] = tuple(Rule.of(rule) for rule in role.get("rules") or ())
        self._remembered.clear()

    def remove_role(self, namespace: str, name: str) -> None:
        self._roles.pop((namespace, name), None)
        self._remembered.clear()

    def put_binding(self, namespace: str, name: str, binding: Object) -> None:
        self.remove_binding(namespace, name)
        role = binding.get("roleRef") or {}
        subjects = tuple(_subjects(binding.get("subjects") or (), namespace))
        filed = _Binding(namespace, name, role.get("kind", ""), role.get("name", ""), subjects)
        self._bindings[namespace, name] = filed
        for key, _ in subjects:
            self._by_subject.setdefault(key, {}).setdefault(namespace, {})[name] = filed

    def remove_binding(self, namespace: str, name: str) -> None:
        self._remembered.clear()
        gone = self._bindings.pop((namespace, name), None)
        if gone is None:
            return
        for key, _ in gone.subjects:
            by_namespace = self._by_subject.get(key, {})
            named = by_namespace.get(namespace, {})
            named.pop(name, None)
            if not named:
                by_namespace.pop(namespace, None)
            if not by_namespace:
                self._by_subject.pop(key, None)

    def rules_of(self, role_kind: str, role_name: str, namespace: str) -> tuple[Rule, ...] | None:
        """The rules that a roleRef in a binding of `namespace` stands for; None where there is no such role."""
        if role_kind == "Role" and not namespace:
            return None
        return self._roles.get((namespace if role_kind == "Role" else "", role_name))

    def grants(self, user: User, namespace: str) -> Grants:
        """What `user` may do in `namespace`; only what holds at the cluster scope where it is ""."""
        key = (user.name, user.groups, namespace)
        found = self._remembered.get(key)
        if found is None:
            if len(user.name) + len(namespace) + sum(map(len, user.groups)) + len(user.groups) > _LONGEST_REMEMBERED:
                return self._collect(user, namespace)
            if len(self._remembered) >= _REMEMBERED_USERS:
                self._remembered.clear()
            found = self._remembered[key] = self._collect(user, namespace)
        return found

    def _collect(self, user: User, namespace: str) -> Grants:
        keys = frozenset({_user_key(user.name), *map(_group_key, user.groups)})
        granted: list[Grant] = []
        errors: list[str] = []
        for binding in self._bindings_for(keys, namespace):
            rules = self.rules_of(binding.role_kind, binding.role_name, binding.namespace)
            if rules is None:
                errors.append(_missing(binding))
                continue
            reason = binding.reason(keys)
            granted.extend(Grant(rule, reason) for rule in rules)
        return Grants(granted, errors)

    def _bindings_for(self, keys: frozenset[str], namespace: str) -> Iterator[_Binding]:
        for scope in ("", namespace) if namespace else ("",):
            found: dict[str, _Binding] = {}
            for key in keys:
                found |= self._by_subject.get(key, {}).get(scope, {})
            for name in sorted(found):
                yield found[name]


def _subjects(subjects: Iterable[Object], namespace: str) -> Iterator[tuple[str, str]]:
    for subject in subjects:
        kind, name = subject.get("kind", ""), subject.get("name", "")
        if kind == "User":
            yield _user_key(name), f"User {quoted(name)}"
        elif kind == "Group":
            yield _group_key(name), f"Group {quoted(name)}"
        elif kind == "ServiceAccount" and (home := subject.get("namespace") or namespace):
            yield _user_key(f"{SERVICE_ACCOUNT_PREFIX}{home}:{name}"), f"ServiceAccount {quoted(f'{name}/{home}')}"


def _user_key(name: str) -> str:
    return "u:" + name


def _group_key(name: str) -> str:
    return "g:" + name


def _missing(binding: _Binding) -> str:
    if binding.role_kind not in ("Role", "ClusterRole"):
        return f"unsupported role reference kind: {quoted(binding.role_kind)}"
    return f"{binding.role_kind.lower()}.{GROUP} {quoted(binding.role_name)} not found"


def quoted(text: str) -> str:
    """As Go's %q prints it, near enough for names."""
    return json.dumps(text, ensure_ascii=False)
