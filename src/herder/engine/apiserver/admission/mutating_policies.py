"""MutatingAdmissionPolicies: changes written as expressions, put in force by bindings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes, refused
from herder.engine.apiserver.admission.conditions import ConditionError, Context
from herder.engine.apiserver.admission.matching import in_version, is_exempt
from herder.engine.apiserver.admission.mutations import MutatingPolicy, MutationFailed
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policy_bindings import Binding, InForce, Misconfigured, parameters
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.apiserver.resources import Registry
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupResource, Object

if TYPE_CHECKING:
    from herder.engine.patch.typed import TypeRef

_GROUP = "admissionregistration.k8s.io"
POLICIES = GroupResource(_GROUP, "mutatingadmissionpolicies")
BINDINGS = GroupResource(_GROUP, "mutatingadmissionpolicybindings")


@dataclass(slots=True)
class _Rounds:
    """What is remembered between the two rounds of mutation."""

    output: bytes = b""
    ran: set[tuple[str, str]] = field(default_factory=set)
    again: set[tuple[str, str]] = field(default_factory=set)

    def run_earlier_ones_again(self) -> None:
        self.again |= self.ran
        self.ran.clear()


class MutatingPolicies:
    """Applied one after the other, by name; each sees what those before changed."""

    name = "MutatingAdmissionPolicy"
    operations = frozenset({CREATE, UPDATE})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects, registry: Registry, authorizer: Authorizer) -> None:
        self._objects = objects
        self._registry = registry
        self._authorizer = authorizer
        self._in_force = InForce(objects, POLICIES, BINDINGS, MutatingPolicy)

    async def admit(self, attributes: Attributes) -> None:
        in_force = self._in_force()
        if not in_force or attributes.obj is None or is_exempt(attributes):
            return
        rounds: _Rounds = attributes.scratch.setdefault(self.name, _Rounds())
        if attributes.reinvoking and rounds.output != json.encode(attributes.obj):
            rounds.run_earlier_ones_again()
        failures: list[str] = []
        for policy, bindings in in_force:
            for binding in bindings:
                try:
                    await self._apply(policy, binding, attributes, rounds)
                except (StatusError, Misconfigured, MutationFailed, ConditionError) as error:
                    if not policy.ignores_failures:
                        failures.append(f"policy '{policy.name}' with binding '{binding.name}' denied request: {error}")
        if failures:
            raise _refusal(attributes, failures)
        rounds.output = json.encode(attributes.obj)

    async def _apply(self, policy: MutatingPolicy, binding: Binding, attributes: Attributes, rounds: _Rounds) -> None:
        identity = (policy.name, binding.name)
        invocation = policy.criteria.invocation(attributes, self._objects)
        if invocation is None or binding.criteria.invocation(attributes, self._objects) is None:
            return
        if attributes.reinvoking and identity not in rounds.again:
            return

        def type_shown() -> TypeRef:
            return attributes.resource.versions[invocation.version].model.merge_type

        for params in parameters(policy.param_kind, binding, attributes, self._objects, self._registry):
            context = await Context.of(attributes, invocation, self._objects, self._authorizer)
            shown = context.obj
            assert shown is not None
            changed = policy.applied(context.bindings(), params, shown, type_shown)
            if changed is not shown and await self._put(attributes, changed):
                rounds.run_earlier_ones_again()
                attributes.reinvoke = True
        if policy.may_run_again:
            rounds.ran.add(identity)

    async def _put(self, attributes: Attributes, changed: Object) -> bool:
        """Whether the object is another now."""
        before = json.encode(attributes.obj)
        returned = await in_version(attributes, changed, attributes.version)
        attributes.obj = attributes.settled(returned or {})
        return json.encode(attributes.obj) != before


def _refusal(attributes: Attributes, failures: list[str]) -> StatusError:
    refusal = refused(attributes, "admission request denied by policy")
    details = (refusal.details or {}) | {"causes": [{"message": reported} for reported in failures]}
    return StatusError(failures[0], code=403, reason="Invalid", details=details)
