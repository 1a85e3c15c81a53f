"""The MutatingAdmissionPolicy plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, denied_by_plugin
from herder.engine.apiserver.admission.conditions import ConditionError, EvaluationContext
from herder.engine.apiserver.admission.evaluation import Evaluation
from herder.engine.apiserver.admission.matching import in_version, is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policies.bindings import Binding, BoundPolicies, Misconfigured, parameters
from herder.engine.apiserver.admission.policies.mutating_policy import MutatingPolicy, MutationFailed
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupResource, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed.types import TypeRef

_GROUP = "admissionregistration.k8s.io"
POLICIES = GroupResource(_GROUP, "mutatingadmissionpolicies")
BINDINGS = GroupResource(_GROUP, "mutatingadmissionpolicybindings")


@dataclass(slots=True)
class _Reinvocation:
    """State of reinvocation: which policies have run, and which run again."""

    output: bytes = b""
    ran: set[tuple[str, str]] = field(default_factory=set)
    pending: set[tuple[str, str]] = field(default_factory=set)

    def reinvoke_earlier(self) -> None:
        self.pending |= self.ran
        self.ran.clear()


class MutatingPolicies:
    """Applies policies one after the other, by name. Each one sees the changes of those before."""

    name = "MutatingAdmissionPolicy"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects, registry: Registry, authorizer: Authorizer, evaluation: Evaluation) -> None:
        self._objects = objects
        self._evaluation = evaluation
        self._registry = registry
        self._authorizer = authorizer
        self._bound_policies = BoundPolicies(objects, POLICIES, BINDINGS, MutatingPolicy)

    async def admit(self, attributes: Attributes) -> None:
        bound_policies = self._bound_policies()
        if not bound_policies or attributes.obj is None or is_exempt(attributes):
            return
        reinvocation: _Reinvocation = attributes.plugin_state.setdefault(self.name, _Reinvocation())
        if attributes.reinvoking and reinvocation.output != json.encode(attributes.obj):
            reinvocation.reinvoke_earlier()
        failures: list[str] = []
        for policy, bindings in bound_policies:
            for binding in bindings:
                try:
                    await self._apply(policy, binding, attributes, reinvocation)
                except (StatusError, Misconfigured, MutationFailed, ConditionError) as error:
                    if not policy.ignores_failures:
                        failures.append(f"policy '{policy.name}' with binding '{binding.name}' denied request: {error}")
        if failures:
            raise _denial_error(attributes, failures)
        reinvocation.output = json.encode(attributes.obj)

    async def _apply(
        self, policy: MutatingPolicy, binding: Binding, attributes: Attributes, reinvocation: _Reinvocation
    ) -> None:
        identity = (policy.name, binding.name)
        invocation = policy.criteria.invocation(attributes, self._objects)
        if invocation is None or binding.criteria.invocation(attributes, self._objects) is None:
            return
        if attributes.reinvoking and identity not in reinvocation.pending:
            return

        def shown_type() -> TypeRef:
            return attributes.resource.versions[invocation.version].model.merge_type

        for params in parameters(policy.param_kind, binding, attributes, self._objects, self._registry):
            context = await EvaluationContext.of(attributes, invocation, self._objects, self._authorizer)
            shown = context.obj
            assert shown is not None
            apply = partial(policy.apply, context.bindings(), params, shown, shown_type)
            changed = await self._evaluation.run(attributes, apply)
            if changed is not shown and await self._put(attributes, changed):
                reinvocation.reinvoke_earlier()
                attributes.reinvoke = True
        if policy.reinvocable:
            reinvocation.ran.add(identity)

    async def _put(self, attributes: Attributes, changed: Object) -> bool:
        """Replace the object. Return whether it has changed."""
        before = json.encode(attributes.obj)
        returned = await in_version(attributes, changed, attributes.version)
        attributes.obj = attributes.normalized(returned or {})
        return json.encode(attributes.obj) != before


def _denial_error(attributes: Attributes, failures: list[str]) -> StatusError:
    denial = denied_by_plugin(attributes, "admission request denied by policy")
    details = (denial.details or {}) | {"causes": [{"message": message} for message in failures]}
    return StatusError(failures[0], code=403, reason="Invalid", details=details)
