"""Rules for API servers that do not ask us, in the language that they all know."""

from __future__ import annotations

from collections.abc import Sequence

from herder.engine.meta.kinds import Kind, Object

POLICY = Kind(
    "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
POLICY_BINDING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)

Policy = tuple[Object, Object]
"""The policy, and what puts it in force."""


def policy(
    name: str,
    kinds: Sequence[Kind],
    operations: Sequence[str],
    condition: str,
    rule: str,
    message: str,
    *,
    subresources: bool = False,
) -> Policy:
    """Where `condition` holds, what `rule` does not hold for is refused with `message`.

    `subresources`: also writes of subresources, for kinds whose metadata can be changed by them.
    """
    rules = [
        {
            "apiGroups": [kind.group],
            "apiVersions": [kind.version],
            "operations": [*operations],
            "resources": [kind.plural, *((f"{kind.plural}/*",) if subresources else ())],
        }
        for kind in kinds
    ]
    made = {
        "apiVersion": POLICY.api_version,
        "kind": POLICY.kind,
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "matters", "expression": condition}],
            "validations": [{"expression": rule, "message": message, "reason": "Forbidden"}],
        },
    }
    binding = {
        "apiVersion": POLICY_BINDING.api_version,
        "kind": POLICY_BINDING.kind,
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return made, binding
