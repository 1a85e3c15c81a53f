"""ValidatingAdmissionPolicies for roles, bindings and cluster creators, for API servers that do not call our webhooks.

They are coarser than the checks of the embedded server: only users with verb `escalate`, such as administrators, may
write these.
"""

from __future__ import annotations

from herder.api.identity.escalation import KINDS
from herder.api.machines.credentials import CREATOR
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import PREFIX
from herder.api.policies import policy

ROLES, CREATORS = "herder-roles", "herder-creators"
_WRITTEN = ("CREATE", "UPDATE")

_MAY_ESCALATE = (
    "authorizer.group(request.resource.group).resource(request.resource.resource).check('escalate').allowed()"
)
# Controllers and the garbage collector change other fields, which grant nothing.
_CHANGES = " || ".join(
    f"object.?{field} != oldObject.?{field}"
    for field in (
        "rules", "namespacedRules", "inheritedClusterRoles", "roleTemplateNames", "external", "externalRules",
        "context", "globalRoleName", "clusterName", "projectName", "roleTemplateName", "userName", "userPrincipalName",
        "groupName", "groupPrincipalName", "builtin",
    )
)  # fmt: skip

# A user who creates a cluster may set the creator to themselves; other annotations of the manager must stay unchanged.
_OURS = f"(name == '{CREATOR}' || name.startsWith('{PREFIX}'))"
_GIVEN = "object.metadata.?annotations.orValue({})"
_BEFORE = (
    "(request.operation == 'UPDATE' ? oldObject.metadata.?annotations.orValue({})"
    f" : {{'{CREATOR}': request.userInfo.username}})"
)
_NOTHING_NEW = f"{_GIVEN}.all(name, !{_OURS} || (name in {_BEFORE} && {_BEFORE}[name] == {_GIVEN}[name]))"
_NOTHING_GONE = f"(request.operation == 'CREATE' || {_BEFORE}.all(name, !{_OURS} || name in {_GIVEN}))"


POLICIES = (
    policy(
        ROLES,
        KINDS,
        _WRITTEN,
        f"request.operation == 'CREATE' || {_CHANGES}",
        _MAY_ESCALATE,
        "granting permissions with this kind of object requires the verb escalate on it",
    ),
    policy(
        CREATORS,
        (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER),
        _WRITTEN,
        f"!({_NOTHING_NEW} && {_NOTHING_GONE})",
        _MAY_ESCALATE,
        f"annotation {CREATOR} and annotations of {PREFIX} are reserved for the manager",
    ),
)
