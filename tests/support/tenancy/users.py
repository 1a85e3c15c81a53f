"""The users of the table, and their rights."""

from __future__ import annotations

from herder.api.capi.core import DEPLOYMENT, LEASE
from herder.api.capi.inventory import PROVIDERS
from herder.api.capi.kinds import CLUSTER
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.rke.kinds import CONTROL_PLANE
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

USER = "mallory"
WRITER_ROLE = "tenancy-writer"
EDITORS = ("editor", "system:serviceaccount:fleet-default:bot")
"""Users who can write all Secrets, as editors of a namespace can; the other is an account that an admin created."""
EDITOR_ROLE = "tenancy-editor"
EDITOR_RULES = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete", "get", "patch", "update"]}]
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["held"], "verbs": ["get", "patch", "update"]},
    {
        "apiGroups": [""],
        "resources": ["namespaces", "namespaces/status"],
        "verbs": ["create", "patch", "update", "get"],
    },
    {
        "apiGroups": ["management.cattle.io"],
        "resources": ["clusters", "clusterregistrationtokens", "projects"],
        "verbs": ["create", "delete", "patch", "update", "get"],
    },
    {
        "apiGroups": ["provisioning.cattle.io"],
        "resources": ["clusters", "clusters/status"],
        "verbs": ["create", "delete", "patch", "update", "get"],
    },
    {"apiGroups": [CLUSTER.group], "resources": [CLUSTER.plural], "verbs": ["create", "delete", "patch", "get"]},
    {
        "apiGroups": [CONTROL_PLANE.group],
        "resources": ["rkecontrolplanes", "rkecontrolplanes/status", "etcdsnapshots"],
        "verbs": ["create", "delete", "patch", "get"],
    },
    {
        "apiGroups": [RBAC],
        "resources": ["roles", "rolebindings"],
        "verbs": ["create", "delete", "patch", "update", "get"],
    },
    {"apiGroups": [RBAC], "resources": ["clusterroles"], "resourceNames": ["view"], "verbs": ["bind"]},
    {"apiGroups": [PROVIDERS.group], "resources": [PROVIDERS.plural], "verbs": ["create", "patch"]},
    {"apiGroups": [LEASE.group], "resources": [LEASE.plural], "verbs": ["create", "patch"]},
    {"apiGroups": [DEPLOYMENT.group], "resources": [DEPLOYMENT.plural], "verbs": ["create", "patch"]},
]


async def grant_rights(client: Client) -> None:
    await client.apply(CLUSTER_ROLE.resource, cluster_role(WRITER_ROLE, RULES))
    await client.apply(CLUSTER_ROLE_BINDING.resource, cluster_role_binding(WRITER_ROLE, WRITER_ROLE, _user(USER)))
    await client.apply(CLUSTER_ROLE.resource, cluster_role(EDITOR_ROLE, EDITOR_RULES))
    for number, name in enumerate(EDITORS):
        binding = cluster_role_binding(f"{EDITOR_ROLE}-{number}", EDITOR_ROLE, _user(name))
        await client.apply(CLUSTER_ROLE_BINDING.resource, binding)


def _user(name: str) -> Object:
    return {"apiGroup": RBAC, "kind": "User", "name": name}


async def revoke_rights(client: Client) -> None:
    bindings = (WRITER_ROLE, *(f"{EDITOR_ROLE}-{number}" for number, _ in enumerate(EDITORS)))
    for kind, names_ in ((CLUSTER_ROLE_BINDING, bindings), (CLUSTER_ROLE, (WRITER_ROLE, EDITOR_ROLE))):
        for name in names_:
            await client.delete(kind.resource, name)
