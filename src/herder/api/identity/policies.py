"""The rule about rights for API servers that do not ask us: only who may `escalate` a kind of roles or bindings, as
administrators may, writes objects of it. What the embedded server judges finely is judged coarsely there."""

from __future__ import annotations

from herder.api.identity.escalation import KINDS
from herder.api.management.kinds import GROUP, VERSION
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
NAME = "herder-roles"

_MAY_ESCALATE = f"authorizer.group('{GROUP}').resource(request.resource.resource).check('escalate').allowed()"
# The collector of garbage and controllers change these, and hand out nothing by it.
_CHANGES = " || ".join(
    f"object.?{field} != oldObject.?{field}"
    for field in (
        "rules", "namespacedRules", "inheritedClusterRoles", "roleTemplateNames", "external", "externalRules",
        "context", "globalRoleName", "clusterName", "roleTemplateName", "userName", "userPrincipalName", "groupName",
        "groupPrincipalName", "builtin",
    )
)  # fmt: skip

ROLES_POLICY: Object = {
    "apiVersion": POLICY.api_version,
    "kind": POLICY.kind,
    "metadata": {"name": NAME},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [GROUP],
                    "apiVersions": [VERSION],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": [kind.plural for kind in KINDS],
                }
            ]
        },
        "matchConditions": [{"name": "hands-out-rights", "expression": f"request.operation == 'CREATE' || {_CHANGES}"}],
        "validations": [
            {
                "expression": _MAY_ESCALATE,
                "message": "only who may escalate this kind of object can hand out rights by it",
                "reason": "Forbidden",
            }
        ],
    },
}
ROLES_POLICY_BINDING: Object = {
    "apiVersion": POLICY_BINDING.api_version,
    "kind": POLICY_BINDING.kind,
    "metadata": {"name": NAME},
    "spec": {"policyName": NAME, "validationActions": ["Deny"]},
}
