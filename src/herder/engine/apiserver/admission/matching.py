"""Match writes against the rules and selectors of webhooks and admission policies, including equivalent versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, metadata
from herder.engine.apiserver.admission.objects import NAMESPACES, Objects
from herder.engine.meta.errors import not_found
from herder.engine.meta.kinds import GroupVersionKind, GroupVersionResource, Object
from herder.engine.meta.selectors import EVERYTHING, LabelSelector, label_selector_from_object

_CONFIGURATION_KINDS = frozenset({
    "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding",
})  # fmt: skip


def is_exempt(attributes: Attributes) -> bool:
    """Whether the object configures admission itself: otherwise a broken configuration could not be repaired."""
    resource = attributes.resource
    return resource.group == "admissionregistration.k8s.io" and resource.kind in _CONFIGURATION_KINDS


@dataclass(frozen=True, slots=True)
class Invocation:
    """Kind, resource and version in which a webhook or policy sees the object: the requested or an equivalent
    version."""

    kind: GroupVersionKind
    resource: GroupVersionResource
    version: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a webhook, or a resource rule of a policy."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]  # resource and subresource; "*" matches all
    scope: str
    names: frozenset[str] = frozenset()  # resourceNames, policies only; empty matches all

    @classmethod
    def of(cls, rule: Object) -> Rule:
        resources = []
        for text in rule.get("resources") or ():
            resource, _, subresource = str(text).partition("/")
            resources.append((resource, subresource))
        return cls(
            operations=frozenset(rule.get("operations") or ()),
            groups=frozenset(rule.get("apiGroups") or ()),
            versions=frozenset(rule.get("apiVersions") or ()),
            resources=tuple(resources),
            scope=rule.get("scope") or "*",
            names=frozenset(rule.get("resourceNames") or ()),
        )

    def matches(self, attributes: Attributes, version: str) -> bool:
        resource = attributes.resource
        return (
            _has(self.operations, attributes.operation)
            and _has(self.groups, resource.group)
            and _has(self.versions, version)
            and self._scope_matches(attributes)
            and any(
                name in ("*", resource.plural) and subresource in ("*", attributes.subresource)
                for name, subresource in self.resources
            )
            and (not self.names or attributes.name in self.names)
        )

    def _scope_matches(self, attributes: Attributes) -> bool:
        if self.scope == "*":
            return True
        namespaced = bool(attributes.namespace) and attributes.resource.group_resource != NAMESPACES
        return namespaced == (self.scope == "Namespaced")


def _has(wanted: frozenset[str], value: str) -> bool:
    return "*" in wanted or value in wanted


class Criteria:
    """Match criteria of one webhook, policy or binding."""

    def __init__(
        self,
        *,
        rules: Iterable[Object] | None,
        excluded: Iterable[Object] | None = None,
        namespace_selector: Mapping[str, Any] | None = None,
        object_selector: Mapping[str, Any] | None = None,
        match_policy: str = "Equivalent",
        everything_without_rules: bool = False,
    ) -> None:
        self._rules = tuple(Rule.of(rule) for rule in rules or ())
        self._excluded = tuple(Rule.of(rule) for rule in excluded or ())
        self._namespaces = label_selector_from_object(namespace_selector) or EVERYTHING
        self._objects = label_selector_from_object(object_selector) or EVERYTHING
        self._equivalent = match_policy == "Equivalent"
        self._everything_without_rules = everything_without_rules

    def invocation(self, attributes: Attributes, objects: Objects) -> Invocation | None:
        """Return how the object is presented; None if it does not match. Raises NotFound if its namespace does not
        exist."""
        if not self._selects_object(attributes):
            return None
        version = self._matched_version(self._rules, attributes)
        if version is None and self._everything_without_rules and not self._rules:
            version = attributes.version
        if version is None or self._matched_version(self._excluded, attributes) is not None:
            return None
        if not self._selects_namespace(attributes, objects):
            return None
        return _invocation(attributes, version)

    def _matched_version(self, rules: Sequence[Rule], attributes: Attributes) -> str | None:
        if any(rule.matches(attributes, attributes.version) for rule in rules):
            return attributes.version
        if not self._equivalent:
            return None
        others = [name for name, version in attributes.resource.versions.items() if version.served]
        for rule in rules:
            for other in others:
                if other != attributes.version and rule.matches(attributes, other):
                    return other
        return None

    def _selects_object(self, attributes: Attributes) -> bool:
        if not self._objects:
            return True
        return any(_labels_match(self._objects, obj) for obj in (attributes.obj, attributes.old) if obj is not None)

    def _selects_namespace(self, attributes: Attributes, objects: Objects) -> bool:
        is_namespace = attributes.resource.group_resource == NAMESPACES
        if not self._namespaces or (not attributes.namespace and not is_namespace):
            return True
        if is_namespace and not attributes.subresource and attributes.operation in (CREATE, UPDATE):
            return _labels_match(self._namespaces, attributes.obj)
        name = attributes.name if is_namespace else attributes.namespace
        namespace = objects.get(NAMESPACES, "", name)
        if namespace is None:
            raise not_found(NAMESPACES, name)
        return _labels_match(self._namespaces, namespace)


def _labels_match(selector: LabelSelector, obj: Object | None) -> bool:
    return selector.matches(metadata(obj).get("labels"))


def _invocation(attributes: Attributes, version: str) -> Invocation:
    resource = attributes.resource
    kind = attributes.group_version_kind
    if version != attributes.version and not attributes.subresource:
        kind = GroupVersionKind(resource.group, version, resource.kind)
    return Invocation(kind, GroupVersionResource(resource.group, version, resource.plural), version)


async def in_version(attributes: Attributes, obj: Object | None, version: str) -> Object | None:
    """Convert `obj` to `version`."""
    resource = attributes.resource
    api_version = resource.api_version(version)
    if obj is None or attributes.subresource or obj.get("apiVersion") == api_version:
        return obj
    if resource.convert is None:
        return obj | {"apiVersion": api_version}
    return (await resource.convert([obj], api_version))[0]
