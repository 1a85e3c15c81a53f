"""Policy bindings: connect admission policies with match criteria and parameter objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import json

from herder.engine.apiserver.admission.chain import Attributes, metadata
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policies.validating_policy import criteria_of
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersion, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.store import Record


class Misconfigured(Exception):
    """A policy or binding is misconfigured, so that it cannot be evaluated."""


class Binding:
    """A ValidatingAdmissionPolicyBinding or MutatingAdmissionPolicyBinding."""

    def __init__(self, binding: Object) -> None:
        spec = binding.get("spec") or {}
        self.name = str(binding["metadata"]["name"])
        self.policy = str(spec.get("policyName") or "")
        self.criteria = criteria_of(spec.get("matchResources"), everything_without_rules=True)
        self.param_ref: Object | None = spec.get("paramRef")
        self.actions = tuple(spec.get("validationActions") or ())


class Named(Protocol):
    """An object with a name."""

    name: str


AnyPolicy = TypeVar("AnyPolicy", bound=Named)


class BoundPolicies(Generic[AnyPolicy]):
    """Policies that have bindings. Compiled again when a policy or binding changes."""

    def __init__(
        self,
        objects: Objects,
        policies: GroupResource,
        bindings: GroupResource,
        compile_policy: Callable[[Object], AnyPolicy],
    ) -> None:
        self._objects = objects
        self._sources = (policies, bindings)
        self._compile = compile_policy
        self._compiled_from: tuple[tuple[Record, ...], tuple[Record, ...]] = ((), ())
        self._compiled: list[tuple[AnyPolicy, list[Binding]]] = []

    def __call__(self) -> list[tuple[AnyPolicy, list[Binding]]]:
        records = (self._objects.records(self._sources[0]), self._objects.records(self._sources[1]))
        if records != self._compiled_from:  # records compare by identity, so equal tuples mean that nothing changed
            bindings = [Binding(json.decode(record.value)) for record in records[1]]
            policies = [self._compile(json.decode(record.value)) for record in records[0]]
            self._compiled = [
                (policy, used)
                for policy in policies
                if (used := [binding for binding in bindings if binding.policy == policy.name])
            ]
            self._compiled_from = records
        return self._compiled


def parameters(
    kind: Object | None, binding: Binding, attributes: Attributes, objects: Objects, registry: Registry
) -> Iterator[Object | None]:
    """Yield the parameter objects of a binding; None if it needs none."""
    reference = binding.param_ref
    if kind is None or reference is None:
        yield None
        return
    group = GroupVersion.parse(str(kind.get("apiVersion") or "")).group
    resource = registry.by_kind(GroupKind(group, str(kind.get("kind") or "")))
    if resource is None:
        raise Misconfigured(f"paramKind kind `{kind.get('apiVersion')}, Kind={kind.get('kind')}` not known")
    namespace = str(reference.get("namespace") or "")
    if namespace and not resource.namespaced:
        raise Misconfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
    if resource.namespaced and not (namespace := namespace or attributes.namespace):
        message = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
        raise Misconfigured(message)
    found = list(_find_parameters(objects, resource.storage, namespace, reference))
    if not found and reference.get("parameterNotFoundAction") == "Deny":
        raise Misconfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
    yield from found


def _find_parameters(objects: Objects, resource: GroupResource, namespace: str, reference: Object) -> Iterator[Object]:
    if reference.get("name"):
        found = objects.get(resource, namespace, str(reference["name"]))
        if found is not None:
            yield found
        return
    selector = label_selector_from_object(reference.get("selector"))
    for obj in objects.list(resource, namespace):
        if selector is not None and selector.matches(metadata(obj).get("labels")):
            yield obj
