"""ValidatingAdmissionPolicies: refusals written as expressions, put in force by bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from msgspec import json

from herder.engine.apiserver.admission.chain import CONNECT, CREATE, DELETE, UPDATE, Attributes, metadata, refused
from herder.engine.apiserver.admission.conditions import Context
from herder.engine.apiserver.admission.matching import is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policy_rules import Denial, Policy, criteria_of
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.apiserver.resources import Registry
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupKind, GroupResource, GroupVersion, Object
from herder.engine.meta.selectors import label_selector_from_object
from herder.engine.store import Record

_GROUP = "admissionregistration.k8s.io"
POLICIES = GroupResource(_GROUP, "validatingadmissionpolicies")
BINDINGS = GroupResource(_GROUP, "validatingadmissionpolicybindings")

_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}


class _Misconfigured(Exception):
    """A binding that cannot be used as it is."""


class _Binding:
    def __init__(self, binding: Object) -> None:
        spec = binding.get("spec") or {}
        self.name = str(binding["metadata"]["name"])
        self.policy = str(spec.get("policyName") or "")
        self.criteria = criteria_of(spec.get("matchResources"), everything_without_rules=True)
        self.param_ref: Object | None = spec.get("paramRef")
        self.actions = tuple(spec.get("validationActions") or ())


class ValidatingPolicies:
    name = "ValidatingAdmissionPolicy"
    operations = frozenset({CREATE, UPDATE, DELETE, CONNECT})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects, registry: Registry, authorizer: Authorizer) -> None:
        self._objects = objects
        self._registry = registry
        self._authorizer = authorizer
        self._compiled_from: tuple[tuple[Record, ...], tuple[Record, ...]] = ((), ())
        self._compiled: list[tuple[Policy, list[_Binding]]] = []

    async def validate(self, attributes: Attributes) -> None:
        """Refuse with the first denial; the others, and warnings, are for those who look further."""
        in_force = self._in_force()
        if not in_force or is_exempt(attributes):
            return
        denied: list[tuple[str, Denial]] = []
        for policy, bindings in in_force:
            async for blamed, denial in self._denials(policy, bindings, attributes):
                denied.append((f"ValidatingAdmissionPolicy '{policy.name}'{blamed} denied request", denial))
        if denied:
            told, denial = denied[0]
            raise _refusal(attributes, f"{told}: {denial.message}", denial.reason)

    def _in_force(self) -> list[tuple[Policy, list[_Binding]]]:
        records = (self._objects.records(POLICIES), self._objects.records(BINDINGS))
        if records != self._compiled_from:  # records compare by identity: the same ones mean nothing changed
            bindings = [_Binding(json.decode(record.value)) for record in records[1]]
            policies = [Policy(json.decode(record.value)) for record in records[0]]
            self._compiled = [
                (policy, used)
                for policy in policies
                if (used := [binding for binding in bindings if binding.policy == policy.name])
            ]
            self._compiled_from = records
        return self._compiled

    async def _denials(
        self, policy: Policy, bindings: list[_Binding], attributes: Attributes
    ) -> AsyncIterator[tuple[str, Denial]]:
        try:
            invocation = policy.criteria.invocation(attributes, self._objects)
        except StatusError as error:
            if not policy.ignores_failures:
                yield "", Denial(f"failed to configure policy: {error.message}")
            return
        if invocation is None:
            return
        context = await Context.of(attributes, invocation, self._objects, self._authorizer)
        for binding in bindings:
            blamed = f" with binding '{binding.name}'"
            try:
                if binding.criteria.invocation(attributes, self._objects) is None:
                    continue
                parameters = list(self._params(policy, binding, attributes))
            except (StatusError, _Misconfigured) as error:
                if not policy.ignores_failures:
                    yield blamed, Denial(f"failed to configure binding: {error}")
                continue
            for params in parameters:
                for denial in policy.denials(context.bindings(), params):
                    if _acted_on(policy, binding, attributes, denial):
                        yield blamed, denial

    def _params(self, policy: Policy, binding: _Binding, attributes: Attributes) -> Iterator[Object | None]:
        """The parameter objects that a binding names; one that is None where it needs none."""
        kind, reference = policy.param_kind, binding.param_ref
        if kind is None or reference is None:
            yield None
            return
        group = GroupVersion.parse(str(kind.get("apiVersion") or "")).group
        resource = self._registry.by_kind(GroupKind(group, str(kind.get("kind") or "")))
        if resource is None:
            raise _Misconfigured(f"paramKind kind `{kind.get('apiVersion')}, Kind={kind.get('kind')}` not known")
        namespace = str(reference.get("namespace") or "")
        if namespace and not resource.namespaced:
            raise _Misconfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        if resource.namespaced and not (namespace := namespace or attributes.namespace):
            told = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
            raise _Misconfigured(told)
        found = list(self._found_params(resource.storage, namespace, reference))
        if not found and reference.get("parameterNotFoundAction") == "Deny":
            raise _Misconfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
        yield from found

    def _found_params(self, resource: GroupResource, namespace: str, reference: Object) -> Iterator[Object]:
        if reference.get("name"):
            found = self._objects.get(resource, namespace, str(reference["name"]))
            if found is not None:
                yield found
            return
        selector = label_selector_from_object(reference.get("selector"))
        for obj in self._objects.list(resource, namespace):
            if selector is not None and selector.matches(metadata(obj).get("labels")):
                yield obj


def _acted_on(policy: Policy, binding: _Binding, attributes: Attributes, denial: Denial) -> bool:
    """Do what the binding says about a denial; answers whether it is to be refused."""
    if "Warn" in binding.actions:
        attributes.warnings.append(
            f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}': "
            f"{denial.message}"
        )
    return "Deny" in binding.actions


def _refusal(attributes: Attributes, told: str, reason: str) -> StatusError:
    refusal = refused(attributes, told)
    details = (refusal.details or {}) | {"causes": [{"message": told}]}
    return StatusError(refusal.message, code=_CODES.get(reason, 422), reason=reason, details=details)
