"""Kinds of managed clusters, registration tokens, users and roles."""

from __future__ import annotations

from herder.engine.meta.kinds import Kind

GROUP, VERSION = "management.cattle.io", "v3"

MANAGEMENT_CLUSTER = Kind(GROUP, VERSION, "Cluster", "clusters", namespaced=False)
REGISTRATION_TOKEN = Kind(GROUP, VERSION, "ClusterRegistrationToken", "clusterregistrationtokens")

USER = Kind(GROUP, VERSION, "User", "users", namespaced=False)
TOKEN = Kind(GROUP, VERSION, "Token", "tokens", namespaced=False)

GLOBAL_ROLE = Kind(GROUP, VERSION, "GlobalRole", "globalroles", namespaced=False)
GLOBAL_ROLE_BINDING = Kind(GROUP, VERSION, "GlobalRoleBinding", "globalrolebindings", namespaced=False)
ROLE_TEMPLATE = Kind(GROUP, VERSION, "RoleTemplate", "roletemplates", namespaced=False)
CLUSTER_BINDING = Kind(GROUP, VERSION, "ClusterRoleTemplateBinding", "clusterroletemplatebindings")
PROJECT = Kind(GROUP, VERSION, "Project", "projects")
PROJECT_BINDING = Kind(GROUP, VERSION, "ProjectRoleTemplateBinding", "projectroletemplatebindings")

PROVISIONING_CLUSTER = Kind("provisioning.cattle.io", "v1", "Cluster", "clusters")
