"""The ValidatingAdmissionPolicy plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from herder.engine.apiserver.admission.chain import CONNECT, CREATE, DELETE, UPDATE, Attributes, denied_by_plugin
from herder.engine.apiserver.admission.conditions import EvaluationContext
from herder.engine.apiserver.admission.evaluation import Evaluation
from herder.engine.apiserver.admission.matching import is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policies.bindings import Binding, BoundPolicies, Misconfigured, parameters
from herder.engine.apiserver.admission.policies.validating_policy import Denial, ValidatingPolicy
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.meta.work import TooMuchWork

_GROUP = "admissionregistration.k8s.io"
POLICIES = GroupResource(_GROUP, "validatingadmissionpolicies")
BINDINGS = GroupResource(_GROUP, "validatingadmissionpolicybindings")

_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}


class ValidatingPolicies:
    """Evaluates all policies, and rejects the write if one denies it."""

    name = "ValidatingAdmissionPolicy"
    operations = frozenset({CREATE, UPDATE, DELETE, CONNECT})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects, registry: Registry, authorizer: Authorizer, evaluation: Evaluation) -> None:
        self._objects = objects
        self._evaluation = evaluation
        self._registry = registry
        self._authorizer = authorizer
        self._bound_policies = BoundPolicies(objects, POLICIES, BINDINGS, ValidatingPolicy)

    async def validate(self, attributes: Attributes) -> None:
        """Reject the write with the first denial. Every policy is evaluated, for the warnings of all."""
        bound_policies = self._bound_policies()
        if not bound_policies or is_exempt(attributes):
            return
        denials: list[tuple[str, Denial]] = []
        for policy, bindings in bound_policies:
            async for binding_text, denial in self._denials(policy, bindings, attributes):
                denials.append((f"ValidatingAdmissionPolicy '{policy.name}'{binding_text} denied request", denial))
        if denials:
            prefix, denial = denials[0]
            raise _denial_error(attributes, f"{prefix}: {denial.message}", denial.reason)

    async def _denials(
        self, policy: ValidatingPolicy, bindings: list[Binding], attributes: Attributes
    ) -> AsyncIterator[tuple[str, Denial]]:
        try:
            invocation = policy.criteria.invocation(attributes, self._objects)
        except StatusError as error:
            if not policy.ignores_failures:
                yield "", Denial(f"failed to configure policy: {error.message}")
            return
        if invocation is None:
            return
        context = await EvaluationContext.of(attributes, invocation, self._objects, self._authorizer)
        for binding in bindings:
            binding_text = f" with binding '{binding.name}'"
            try:
                if binding.criteria.invocation(attributes, self._objects) is None:
                    continue
                given = list(parameters(policy.param_kind, binding, attributes, self._objects, self._registry))
            except (StatusError, Misconfigured) as error:
                if not policy.ignores_failures:
                    yield binding_text, Denial(f"failed to configure binding: {error}")
                continue
            for params in given:
                for denial in await self._evaluate(policy, context, params):
                    if _enforce(policy, binding, attributes, denial):
                        yield binding_text, denial

    async def _evaluate(
        self, policy: ValidatingPolicy, context: EvaluationContext, params: Object | None
    ) -> list[Denial]:
        try:
            return await self._evaluation.run(context.attributes, partial(policy.denials, context.bindings(), params))
        except TooMuchWork:
            message = "validation failed due to running out of cost budget, no further validation rules will be run"
            return [] if policy.ignores_failures else [Denial(message)]


def _enforce(policy: ValidatingPolicy, binding: Binding, attributes: Attributes, denial: Denial) -> bool:
    """Warn if the binding says so. Return whether it denies the write."""
    if "Warn" in binding.actions:
        attributes.warnings.append(
            f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}': "
            f"{denial.message}"
        )
    return "Deny" in binding.actions


def _denial_error(attributes: Attributes, message: str, reason: str) -> StatusError:
    error = denied_by_plugin(attributes, message)
    details = (error.details or {}) | {"causes": [{"message": message}]}
    return StatusError(error.message, code=_CODES.get(reason, 422), reason=reason, details=details)
