"""ValidatingAdmissionPolicies: refusals written as expressions, put in force by bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator

from herder.engine.apiserver.admission.chain import CONNECT, CREATE, DELETE, UPDATE, Attributes, refused
from herder.engine.apiserver.admission.conditions import Context
from herder.engine.apiserver.admission.matching import is_exempt
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.policy_bindings import Binding, InForce, Misconfigured, parameters
from herder.engine.apiserver.admission.policy_rules import Denial, Policy
from herder.engine.apiserver.auth.access import Authorizer
from herder.engine.apiserver.resources import Registry
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupResource

_GROUP = "admissionregistration.k8s.io"
POLICIES = GroupResource(_GROUP, "validatingadmissionpolicies")
BINDINGS = GroupResource(_GROUP, "validatingadmissionpolicybindings")

_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}


class ValidatingPolicies:
    name = "ValidatingAdmissionPolicy"
    operations = frozenset({CREATE, UPDATE, DELETE, CONNECT})
    resources: frozenset[GroupResource] | None = None
    subresources: frozenset[str] | None = None

    def __init__(self, objects: Objects, registry: Registry, authorizer: Authorizer) -> None:
        self._objects = objects
        self._registry = registry
        self._authorizer = authorizer
        self._in_force = InForce(objects, POLICIES, BINDINGS, Policy)

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
            reported, denial = denied[0]
            raise _refusal(attributes, f"{reported}: {denial.message}", denial.reason)

    async def _denials(
        self, policy: Policy, bindings: list[Binding], attributes: Attributes
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
                given = list(parameters(policy.param_kind, binding, attributes, self._objects, self._registry))
            except (StatusError, Misconfigured) as error:
                if not policy.ignores_failures:
                    yield blamed, Denial(f"failed to configure binding: {error}")
                continue
            for params in given:
                for denial in policy.denials(context.bindings(), params):
                    if _acted_on(policy, binding, attributes, denial):
                        yield blamed, denial


def _acted_on(policy: Policy, binding: Binding, attributes: Attributes, denial: Denial) -> bool:
    """Do what the binding says about a denial; answers whether it is to be refused."""
    if "Warn" in binding.actions:
        attributes.warnings.append(
            f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}': "
            f"{denial.message}"
        )
    return "Deny" in binding.actions


def _refusal(attributes: Attributes, message: str, reason: str) -> StatusError:
    refusal = refused(attributes, message)
    details = (refusal.details or {}) | {"causes": [{"message": message}]}
    return StatusError(refusal.message, code=_CODES.get(reason, 422), reason=reason, details=details)
