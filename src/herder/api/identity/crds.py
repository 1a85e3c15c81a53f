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
    "displayName": _PLAIN,
    "description": _PLAIN,
    "username": string("Login name.", max=253),
    "password": string("Always empty; password hashes are stored in Secrets.", max=1024),
    "mustChangePassword": BOOLEAN | {"description": "Whether the user must change the password after login."},
    "principalIds": plain_list(_PLAIN),
    "enabled": BOOLEAN | {"description": "Whether the user's tokens are valid; defaults to true."},
    "status": OPEN_OBJECT,
}

_TOKEN = {
    "token": string("Hash of the token's key."),
    "userId": _PLAIN,
    "userPrincipal": OPEN_OBJECT,
    "groupPrincipals": plain_list(OPEN_OBJECT) | {"nullable": True},
    "authProvider": _PLAIN,
    "ttl": int64("Lifetime in milliseconds; 0 means unlimited."),
    "isDerived": BOOLEAN,
    "description": _PLAIN,
    "expired": BOOLEAN,
    "expiresAt": _PLAIN,
    "current": BOOLEAN,
    "clusterName": string("The only cluster the token is valid for."),
    "enabled": BOOLEAN,
    "lastUsedAt": TIME | {"nullable": True},
    "activityLastSeenAt": TIME | {"nullable": True},
    "providerInfo": OPEN_OBJECT | {"nullable": True},
}

_STRINGS = plain_list(_PLAIN)
_RULE = record(
    {
        "verbs!": _STRINGS,
        "apiGroups": _STRINGS,
        "resources": _STRINGS,
        "resourceNames": _STRINGS,
        "nonResourceURLs": _STRINGS,
    }
)
_RULES = plain_list(_RULE) | {"nullable": True}

_GLOBAL_ROLE = {
    "displayName": _PLAIN,
    "description": _PLAIN,
    "rules": _RULES | {"description": "Rules in the manager's own cluster."},
    "namespacedRules": {"type": "object", "additionalProperties": _RULES, "nullable": True},
    "inheritedClusterRoles": plain_list(_PLAIN) | {"description": "RoleTemplates granted in every managed cluster."},
    "newUserDefault": BOOLEAN,
    "builtin": BOOLEAN,
    "status": OPEN_OBJECT,
}

_GLOBAL_ROLE_BINDING = {
    "globalRoleName!": string(min=1),
    "userName": _PLAIN,
    "userPrincipalName": _PLAIN,
    "groupPrincipalName": _PLAIN,
    "status": OPEN_OBJECT,
}

_ROLE_TEMPLATE = {
    "displayName": _PLAIN,
    "description": _PLAIN,
    "context": string(enum=("", "cluster", "project")),
    "rules": _RULES,
    "roleTemplateNames": plain_list(_PLAIN) | {"description": "RoleTemplates whose rules are inherited."},
    "external": BOOLEAN,
    "externalRules": _RULES,
    "hidden": BOOLEAN,
    "locked": BOOLEAN | {"description": "Whether new bindings are denied."},
    "builtin": BOOLEAN,
    "administrative": BOOLEAN,
    "clusterCreatorDefault": BOOLEAN,
    "projectCreatorDefault": BOOLEAN,
}

_CLUSTER_BINDING = {
    "clusterName!": string(min=1),
    "roleTemplateName!": string(min=1),
    "userName": _PLAIN,
    "userPrincipalName": _PLAIN,
    "groupName": _PLAIN,
    "groupPrincipalName": _PLAIN,
    "status": OPEN_OBJECT,
}

_PROJECT = {
    "spec!": record(
        {
            "clusterName!": string("Name of the management Cluster; equal to the namespace.", min=1),
            "displayName": _PLAIN,
            "description": _PLAIN,
            "resourceQuota": OPEN_OBJECT | {"nullable": True},
            "namespaceDefaultResourceQuota": OPEN_OBJECT | {"nullable": True},
            "containerDefaultResourceLimit": OPEN_OBJECT | {"nullable": True},
        }
    ),
    "status": OPEN_OBJECT,
}

_PROJECT_BINDING = {
    "projectName!": string("<cluster>:<project>", min=1),
    "roleTemplateName!": string(min=1),
    "userName": _PLAIN,
    "userPrincipalName": _PLAIN,
    "groupName": _PLAIN,
    "groupPrincipalName": _PLAIN,
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
