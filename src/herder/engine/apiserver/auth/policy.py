"""RBAC policy index: finds the rules of a user in a namespace without scanning all bindings.

Roles are compiled when they change. Bindings are indexed by subject, so that lookups by user name and groups do not
depend on the number of bindings of others. Results are cached per user until a role or binding changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from herder.engine.apiserver.auth.access import AccessAttributes, Decision
from herder.engine.apiserver.auth.users import SERVICE_ACCOUNT_PREFIX
from herder.engine.meta.kinds import Object
from herder.engine.meta.rules import ALL as _ALL
from herder.engine.meta.rules import Rule
from herder.engine.wire import User

GROUP = "rbac.authorization.k8s.io"
_MAX_CACHED_USERS = 4096
_MAX_CACHED_CHARACTERS = 2048  # characters: clients choose namespaces and subjects of reviews


class Grant(NamedTuple):
    """A rule and the reason why it applies to the user."""

    rule: Rule
    reason: str


class Grants:
    """All permissions of one user in one namespace (or at the cluster scope), indexed by verb and group."""

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
        return Decision(False, f"RBAC: {self.error_message()}" if self.errors else "")

    def error_message(self) -> str:
        return self.errors[0] if len(self.errors) == 1 else "[" + ", ".join(self.errors) + "]"

    def _for_resource(self, wanted: AccessAttributes) -> Grant | None:
        indexed = self._by_verb_and_group
        for verb in (wanted.verb, _ALL):
            for group in (wanted.group, _ALL):
                for grant in indexed.get((verb, group), ()):
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
    """A RoleBinding or ClusterRoleBinding in the index."""

    namespace: str  # "" for a ClusterRoleBinding
    name: str
    role_kind: str
    role_name: str
    subjects: tuple[tuple[str, str], ...]  # index key and description of every subject, in order

    def reason(self, keys: frozenset[str]) -> str:
        kind, name = ("RoleBinding", f"{self.name}/{self.namespace}") if self.namespace else (
            "ClusterRoleBinding", self.name)  # fmt: skip
        subject = next(description for key, description in self.subjects if key in keys)
        return f'RBAC: allowed by {kind} "{name}" of {self.role_kind} "{self.role_name}" to {subject}'


@dataclass(slots=True)
class PolicyIndex:
    """Index of roles and bindings. The namespace of cluster-scoped ones is ""."""

    _roles: dict[tuple[str, str], tuple[Rule, ...]] = field(default_factory=dict)
    _bindings: dict[tuple[str, str], _Binding] = field(default_factory=dict)
    _by_subject: dict[str, dict[str, dict[str, _Binding]]] = field(default_factory=dict)  # key → namespace → name
    _cache: dict[tuple[str, tuple[str, ...], str], Grants] = field(default_factory=dict)

    def put_role(self, namespace: str, name: str, role: Object) -> None:
        self._roles[namespace, name] = tuple(Rule.of(rule) for rule in role.get("rules") or ())
        self._cache.clear()

    def remove_role(self, namespace: str, name: str) -> None:
        self._roles.pop((namespace, name), None)
        self._cache.clear()

    def put_binding(self, namespace: str, name: str, binding: Object) -> None:
        self.remove_binding(namespace, name)
        role = binding.get("roleRef") or {}
        subjects = tuple(_subjects(binding.get("subjects") or (), namespace))
        indexed = _Binding(namespace, name, role.get("kind", ""), role.get("name", ""), subjects)
        self._bindings[namespace, name] = indexed
        for key, _ in subjects:
            self._by_subject.setdefault(key, {}).setdefault(namespace, {})[name] = indexed

    def remove_binding(self, namespace: str, name: str) -> None:
        self._cache.clear()
        removed = self._bindings.pop((namespace, name), None)
        if removed is None:
            return
        for key, _ in removed.subjects:
            by_namespace = self._by_subject.get(key, {})
            named = by_namespace.get(namespace, {})
            named.pop(name, None)
            if not named:
                by_namespace.pop(namespace, None)
            if not by_namespace:
                self._by_subject.pop(key, None)

    def rules_of(self, role_kind: str, role_name: str, namespace: str) -> tuple[Rule, ...] | None:
        """Return the rules of a roleRef in a binding of `namespace`; None if the role does not exist."""
        if role_kind == "Role" and not namespace:
            return None
        return self._roles.get((namespace if role_kind == "Role" else "", role_name))

    def grants(self, user: User, namespace: str) -> Grants:
        """Return the permissions of `user` in `namespace`; only cluster-wide ones if it is ""."""
        key = (user.name, user.groups, namespace)
        found = self._cache.get(key)
        if found is None:
            if len(user.name) + len(namespace) + sum(map(len, user.groups)) + len(user.groups) > _MAX_CACHED_CHARACTERS:
                return self._collect(user, namespace)
            if len(self._cache) >= _MAX_CACHED_USERS:
                self._cache.clear()
            found = self._cache[key] = self._collect(user, namespace)
        return found

    def _collect(self, user: User, namespace: str) -> Grants:
        keys = frozenset({_user_key(user.name), *map(_group_key, user.groups)})
        granted: list[Grant] = []
        errors: list[str] = []
        for binding in self._bindings_for(keys, namespace):
            rules = self.rules_of(binding.role_kind, binding.role_name, binding.namespace)
            if rules is None:
                errors.append(_missing_role_error(binding))
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
        elif kind == "ServiceAccount" and (account_namespace := subject.get("namespace") or namespace):
            yield (
                _user_key(f"{SERVICE_ACCOUNT_PREFIX}{account_namespace}:{name}"),
                f"ServiceAccount {quoted(f'{name}/{account_namespace}')}",
            )


def _user_key(name: str) -> str:
    return "u:" + name


def _group_key(name: str) -> str:
    return "g:" + name


def _missing_role_error(binding: _Binding) -> str:
    if binding.role_kind not in ("Role", "ClusterRole"):
        return f"unsupported role reference kind: {quoted(binding.role_kind)}"
    return f"{binding.role_kind.lower()}.{GROUP} {quoted(binding.role_name)} not found"


def quoted(text: str) -> str:
    """Quote like Go's %q, closely enough for names."""
    return json.dumps(text, ensure_ascii=False)
