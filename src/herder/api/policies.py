"""Build ValidatingAdmissionPolicies, which enforce rules on API servers that do not call our webhooks."""

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
"""The ValidatingAdmissionPolicy and its binding."""


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
    """Build a policy that denies requests matching `condition` for which `rule` is false, with `message`.

    `condition` and `rule` are CEL expressions. `subresources` includes writes of subresources, for kinds whose metadata
    they can change.
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
    policy_object = {
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
    return policy_object, binding
