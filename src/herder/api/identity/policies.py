"""The rules about rights for API servers that do not ask us: only who may `escalate` a kind of roles or bindings, as
administrators may, writes objects of it, or says who made a cluster. What the embedded server judges finely is judged
coarsely there."""

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
# The collector of garbage and controllers change these, and hand out nothing by it.
_CHANGES = " || ".join(
    f"object.?{field} != oldObject.?{field}"
    for field in (
        "rules", "namespacedRules", "inheritedClusterRoles", "roleTemplateNames", "external", "externalRules",
        "context", "globalRoleName", "clusterName", "projectName", "roleTemplateName", "userName", "userPrincipalName",
        "groupName", "groupPrincipalName", "builtin",
    )
)  # fmt: skip

# Who creates a cluster may say so of themselves. Of other clusters, what the manager alone says stays as it was.
_OURS = f"(name == '{CREATOR}' || name.startsWith('{PREFIX}'))"
_GIVEN = "object.metadata.?annotations.orValue({})"
_BEFORE = (
    "(request.operation == 'UPDATE' ? oldObject.metadata.?annotations.orValue({})"
    f" : {{'{CREATOR}': request.userInfo.username}})"
)
_NOTHING_NEW = f"{_GIVEN}.all(name, !{_OURS} || {_BEFORE}[?name].orValue('') == {_GIVEN}[name])"
_NOTHING_GONE = f"(request.operation == 'CREATE' || {_BEFORE}.all(name, !{_OURS} || name in {_GIVEN}))"


POLICIES = (
    policy(
        ROLES,
        KINDS,
        _WRITTEN,
        f"request.operation == 'CREATE' || {_CHANGES}",
        _MAY_ESCALATE,
        "only who may escalate this kind of object can hand out rights by it",
    ),
    policy(
        CREATORS,
        (MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER),
        _WRITTEN,
        f"!({_NOTHING_NEW} && {_NOTHING_GONE})",
        _MAY_ESCALATE,
        f"annotation {CREATOR} and those of {PREFIX} are the manager's to write",
    ),
)
