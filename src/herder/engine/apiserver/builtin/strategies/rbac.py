"""Strategies of RBAC roles and bindings. Privilege escalation is checked in admission."""

from __future__ import annotations

from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked, selector
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import invalid_value, not_supported, required
from herder.engine.meta.kinds import Object

GROUP = "rbac.authorization.k8s.io"


class RoleStrategy(BuiltinStrategy):
    name_check = staticmethod(names.path_segment)

    def __init__(self, *, namespaced: bool) -> None:
        super().__init__()
        self.namespaced = namespaced

    def problems(self, obj: Object, context: Context) -> Errors:
        for position, rule in enumerate(obj.get("rules") or ()):
            yield from _rule(rule, f"rules[{position}]", self.namespaced)
        aggregation = obj.get("aggregationRule")
        if aggregation is not None:
            yield from _aggregation(aggregation)


def _rule(rule: Object, path: str, namespaced: bool) -> Errors:
    if not rule.get("verbs"):
        yield required(f"{path}.verbs", "verbs must contain at least one value")
    urls = rule.get("nonResourceURLs")
    if urls:
        if namespaced:
            yield invalid_value(f"{path}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            both = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid_value(f"{path}.nonResourceURLs", urls, both)
        return
    if not rule.get("apiGroups"):
        yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _aggregation(aggregation: Object) -> Errors:
    path = "aggregationRule.clusterRoleSelectors"
    selectors = aggregation.get("clusterRoleSelectors")
    if not selectors:
        yield required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for position, item in enumerate(selectors or ()):
        yield from selector(item, f"{path}[{position}]")


class BindingStrategy(BuiltinStrategy):
    name_check = staticmethod(names.path_segment)

    def __init__(self, *, namespaced: bool) -> None:
        super().__init__()
        self.namespaced = namespaced

    def problems(self, obj: Object, context: Context) -> Errors:
        role = obj.get("roleRef") or {}
        if role.get("apiGroup", "") != GROUP:
            yield not_supported("roleRef.apiGroup", role.get("apiGroup", ""), [GROUP])
        kinds = ["Role", "ClusterRole"] if self.namespaced else ["ClusterRole"]
        if role.get("kind", "") not in kinds:
            yield not_supported("roleRef.kind", role.get("kind", ""), kinds)
        if not role.get("name"):
            yield required("roleRef.name")
        else:
            yield from checked(role["name"], "roleRef.name", names.path_segment)
        for position, subject in enumerate(obj.get("subjects") or ()):
            yield from _subject(subject, f"subjects[{position}]", self.namespaced)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if obj.get("roleRef") != old.get("roleRef"):
            role = obj.get("roleRef") or {}
            shown = {"APIGroup": role.get("apiGroup", ""), "Kind": role.get("kind", ""), "Name": role.get("name", "")}
            yield invalid_value("roleRef", shown, "cannot change roleRef")


def _subject(subject: Object, path: str, namespaced: bool) -> Errors:
    name, kind, group = subject.get("name", ""), subject.get("kind", ""), subject.get("apiGroup", "")
    if not name:
        yield required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            yield from checked(name, f"{path}.name", names.dns1123_subdomain)
        if group:
            yield not_supported(f"{path}.apiGroup", group, [""])
        if not namespaced and not subject.get("namespace"):
            yield required(f"{path}.namespace")
    elif kind in {"User", "Group"}:
        if group != GROUP:
            yield not_supported(f"{path}.apiGroup", group, [GROUP])
    else:
        yield not_supported(f"{path}.kind", kind, ["ServiceAccount", "User", "Group"])
