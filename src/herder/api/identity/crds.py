"""CustomResourceDefinitions of users, tokens, roles, projects and their bindings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import AGE, column
from herder.api.capi.crds.schema import (
    BOOLEAN,
    OPEN_OBJECT,
    TIME,
    Schema,
    int64,
    plain_list,
    record,
    rule,
    string,
    with_description,
)
from herder.api.definitions import definition, root
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    GLOBAL_ROLE,
    GLOBAL_ROLE_BINDING,
    PROJECT,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
    TOKEN,
    USER,
)
from herder.engine.meta.kinds import Kind, Object

_PLAIN = string()
_NOT_USED = "Accepted for compatibility, not used."


def _definition(kind: Kind, description: str, fields: Mapping[str, Schema], columns: Sequence[Object]) -> Object:
    schema = root(fields, description)
    if kind == USER:
        schema["x-kubernetes-validations"] = [_NO_PASSWORD]
    return definition(kind, schema, columns=[*columns, AGE])


_NO_PASSWORD = rule(
    "!has(self.password) || self.password == ''",
    "password must be empty: passwords are kept as Secrets in namespace cattle-local-user-passwords, set one with "
    "`herder users password`",
)

_USER = {
    "displayName": string("Name of the user in user interfaces."),
    "description": string("Note about the user."),
    "username": string("Login name.", max=253),
    "password": string("Always empty; password hashes are stored in Secrets.", max=1024),
    "mustChangePassword": BOOLEAN | {"description": "Whether the user must change the password after login."},
    "principalIds": plain_list(_PLAIN, "Identities of the user at authentication providers."),
    "enabled": BOOLEAN | {"description": "Whether the user's tokens are valid; defaults to true."},
    "status": with_description(OPEN_OBJECT, "Observed state."),
}

_TOKEN = {
    "token": string("Hash of the token's key."),
    "userId": string("Name of the User."),
    "userPrincipal": with_description(OPEN_OBJECT, "Identity of the user at login."),
    "groupPrincipals": plain_list(OPEN_OBJECT, "Groups of the user at login.") | {"nullable": True},
    "authProvider": string("Authentication provider of the login."),
    "ttl": int64("Lifetime in milliseconds; 0 means unlimited."),
    "isDerived": with_description(BOOLEAN, "Whether the token was created with another token, not by a login."),
    "description": string("Purpose of the token."),
    "expired": with_description(BOOLEAN, "Whether the token has expired."),
    "expiresAt": string("When the token expires; empty for never."),
    "current": with_description(BOOLEAN, "Whether the request was made with this token."),
    "clusterName": string("The only cluster the token is valid for."),
    "enabled": with_description(BOOLEAN, "Whether the token is valid; defaults to true."),
    "lastUsedAt": with_description(TIME, "When the token was used last; not updated on every use.")
    | {"nullable": True},
    "activityLastSeenAt": with_description(TIME, "When the user was active last.") | {"nullable": True},
    "providerInfo": with_description(OPEN_OBJECT, _NOT_USED) | {"nullable": True},
}

_RULE = record(
    {
        "verbs!": plain_list(_PLAIN, "Allowed verbs; * is all."),
        "apiGroups": plain_list(_PLAIN, "API groups of the resources; * is all."),
        "resources": plain_list(_PLAIN, "Resources; * is all."),
        "resourceNames": plain_list(_PLAIN, "Names of the objects; all if empty."),
        "nonResourceURLs": plain_list(_PLAIN, "URL paths that are no resources."),
    }
)
_RULES = plain_list(_RULE, "Permissions that the role grants.") | {"nullable": True}

_GLOBAL_ROLE = {
    "displayName": string("Name of the role in user interfaces."),
    "description": string("Purpose of the role."),
    "rules": _RULES | {"description": "Rules in the manager's own cluster."},
    "namespacedRules": {
        "type": "object",
        "additionalProperties": _RULES,
        "nullable": True,
        "description": "Rules by namespace of the manager's own cluster.",
    },
    "inheritedClusterRoles": plain_list(_PLAIN) | {"description": "RoleTemplates granted in every managed cluster."},
    "newUserDefault": with_description(BOOLEAN, "Whether new users get the role."),
    "builtin": with_description(BOOLEAN, "Whether the role is defined by the manager."),
    "status": with_description(OPEN_OBJECT, "Observed state."),
}

_GLOBAL_ROLE_BINDING = {
    "globalRoleName!": string("Name of the GlobalRole.", min=1),
    "userName": string("Name of the User."),
    "userPrincipalName": string("Identity of the user at an authentication provider."),
    "groupPrincipalName": string("Group at an authentication provider."),
    "status": with_description(OPEN_OBJECT, "Observed state."),
}

_ROLE_TEMPLATE = {
    "displayName": string("Name of the role in user interfaces."),
    "description": string("Purpose of the role."),
    "context": string("Where the role can be granted.", enum=("", "cluster", "project")),
    "rules": _RULES,
    "roleTemplateNames": plain_list(_PLAIN) | {"description": "RoleTemplates whose rules are inherited."},
    "external": with_description(BOOLEAN, "Whether the rules are those of a ClusterRole of this name in the cluster."),
    "externalRules": with_description(_RULES, "Rules of that ClusterRole, to check who may grant them."),
    "hidden": with_description(BOOLEAN, "Whether user interfaces do not offer the role."),
    "locked": BOOLEAN | {"description": "Whether new bindings are denied."},
    "builtin": with_description(BOOLEAN, "Whether the role is defined by the manager."),
    "administrative": with_description(BOOLEAN, "Whether the role is meant for administrators."),
    "clusterCreatorDefault": with_description(BOOLEAN, "Whether creators of clusters get the role."),
    "projectCreatorDefault": with_description(BOOLEAN, "Whether creators of projects get the role."),
}

_CLUSTER_BINDING = {
    "clusterName!": string("Name of the management Cluster; equal to the namespace.", min=1),
    "roleTemplateName!": string("Name of the RoleTemplate.", min=1),
    "userName": string("Name of the User."),
    "userPrincipalName": string("Identity of the user at an authentication provider."),
    "groupName": string("Name of a group."),
    "groupPrincipalName": string("Group at an authentication provider."),
    "status": with_description(OPEN_OBJECT, "Observed state."),
}

_PROJECT = {
    "spec!": record(
        {
            "clusterName!": string("Name of the management Cluster; equal to the namespace.", min=1),
            "displayName": string("Name of the project in user interfaces."),
            "description": string("Purpose of the project."),
            "resourceQuota": with_description(OPEN_OBJECT, _NOT_USED) | {"nullable": True},
            "namespaceDefaultResourceQuota": with_description(OPEN_OBJECT, _NOT_USED) | {"nullable": True},
            "containerDefaultResourceLimit": with_description(OPEN_OBJECT, _NOT_USED) | {"nullable": True},
        },
        "Desired state.",
    ),
    "status": with_description(OPEN_OBJECT, "Observed state."),
}

_PROJECT_BINDING = {
    "projectName!": string("Project as <cluster>:<project>.", min=1),
    "roleTemplateName!": string("Name of the RoleTemplate.", min=1),
    "userName": string("Name of the User."),
    "userPrincipalName": string("Identity of the user at an authentication provider."),
    "groupName": string("Name of a group."),
    "groupPrincipalName": string("Group at an authentication provider."),
}

CRDS = (
    _definition(USER, "A user who can log in.", _USER, [column("Username", ".username")]),
    _definition(
        TOKEN,
        "An API token of a user.",
        _TOKEN,
        [column("User", ".userId"), column("Last used", ".lastUsedAt", type="date")],
    ),
    _definition(GLOBAL_ROLE, "Permissions in the manager's own cluster.", _GLOBAL_ROLE, []),
    _definition(
        GLOBAL_ROLE_BINDING,
        "Grants a GlobalRole to a user or group.",
        _GLOBAL_ROLE_BINDING,
        [column("Role", ".globalRoleName"), column("User", ".userName"), column("Group", ".groupPrincipalName")],
    ),
    _definition(ROLE_TEMPLATE, "Permissions in a managed cluster.", _ROLE_TEMPLATE, [column("Context", ".context")]),
    _definition(
        CLUSTER_BINDING,
        "Grants a RoleTemplate to a user or group in one cluster.",
        _CLUSTER_BINDING,
        [column("Role", ".roleTemplateName"), column("User", ".userName"), column("Group", ".groupPrincipalName")],
    ),
    _definition(
        PROJECT,
        "Namespaces of a managed cluster that share role bindings.",
        _PROJECT,
        [column("Display Name", ".spec.displayName"), column("Cluster", ".spec.clusterName")],
    ),
    _definition(
        PROJECT_BINDING,
        "Grants a RoleTemplate to a user or group in all namespaces of a project.",
        _PROJECT_BINDING,
        [
            column("Project", ".projectName"),
            column("Role", ".roleTemplateName"),
            column("User", ".userName"),
            column("Group", ".groupPrincipalName"),
        ],
    ),
)
