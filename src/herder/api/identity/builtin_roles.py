"""Built-in GlobalRoles and RoleTemplates."""

from __future__ import annotations

from collections.abc import Sequence

from herder.api.management.kinds import GLOBAL_ROLE, GROUP, ROLE_TEMPLATE
from herder.api.management.names import CREDENTIALS_NAMESPACE, DEFAULT_WORKSPACE
from herder.engine.meta.kinds import Kind, Object

OWNER = "cluster-owner"
CLUSTER, PROJECT = "cluster", "project"  # contexts of RoleTemplates

_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def _rule(groups: Sequence[str] | str, resources: Sequence[str] | str, verbs: Sequence[str] | str) -> Object:
    return {"apiGroups": _list(groups), "resources": _list(resources), "verbs": _list(verbs)}


def _list(values: Sequence[str] | str) -> list[str]:
    return [values] if isinstance(values, str) else list(values)


EVERYTHING = [_rule("*", "*", "*"), {"nonResourceURLs": ["*"], "verbs": ["*"]}]

_BASE = [_rule(GROUP, ("features", "settings"), _READ), _rule("ext.cattle.io", "selfusers", "create")]
_CREATE_CLUSTERS = [_rule(GROUP, "clusters", "create")]
# Users may create these objects only in the listed namespaces, and get permissions only on the objects they create;
# `api/identity/tenancy/secrets.py` restricts which Secrets these may be.
_CREATE_OWN = {
    CREDENTIALS_NAMESPACE: [_rule("", "secrets", "create")],
    DEFAULT_WORKSPACE: [
        _rule("", "secrets", "create"),
        _rule("provisioning.cattle.io", "clusters", "create"),
        _rule("rke-machine-config.cattle.io", "*", "create"),
    ],
}
_USE_HOST_DRIVERS = [{**_rule(GROUP, "nodedrivers", "use"), "resourceNames": ["local", "process"]}]
_READ_CATALOG = [_rule(GROUP, ("dynamicschemas", "nodedrivers", "roletemplates"), _READ)]


def _named(kind: Kind, name: str, display_name: str, fields: Object) -> Object:
    base = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    return {**base, "displayName": display_name, "builtin": True, **fields}


GLOBAL_ROLES = (
    _named(GLOBAL_ROLE, "admin", "Admin", {"rules": EVERYTHING, "inheritedClusterRoles": [OWNER]}),
    _named(
        GLOBAL_ROLE,
        "user",
        "User",
        {
            "rules": [*_BASE, *_READ_CATALOG, *_CREATE_CLUSTERS],
            "namespacedRules": _CREATE_OWN,
            "newUserDefault": True,
        },
    ),
    _named(GLOBAL_ROLE, "user-base", "User Base", {"rules": _BASE}),
    _named(
        GLOBAL_ROLE,
        "clusters-create",
        "Create Clusters",
        {"rules": _CREATE_CLUSTERS, "namespacedRules": _CREATE_OWN},
    ),
    # Machines of these drivers are processes and file systems on the host of the manager.
    _named(GLOBAL_ROLE, "host-machines", "Create Machines on the Host", {"rules": _USE_HOST_DRIVERS}),
)

_WORKLOADS = [
    _rule(
        "",
        ("configmaps", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"),
        _WRITE,
    ),
    _rule("", ("pods/attach", "pods/exec", "pods/portforward", "pods/log"), ("create", "get")),
    _rule(("apps", "autoscaling", "batch", "networking.k8s.io"), "*", _WRITE),
    # Write access to Endpoints could redirect Services and Ingresses to pods of other namespaces (CVE-2021-25740).
    _rule("", ("endpoints", "events"), _READ),
    _rule("", "namespaces", "get"),
]
_READ_WORKLOADS = [
    _rule("", ("configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "services"), _READ),
    _rule("", "pods/log", "get"),
    _rule(("apps", "autoscaling", "batch", "networking.k8s.io"), "*", _READ),
    _rule("", "namespaces", "get"),
]
_READ_CLUSTER = [
    _rule("", ("events", "namespaces", "nodes", "persistentvolumes"), _READ),
    _rule("storage.k8s.io", "storageclasses", _READ),
    _rule("metrics.k8s.io", ("nodes", "pods"), _READ),
]
_OWN = _rule("*", "*", "own")  # distinguishes owners of a cluster or project from other members

ROLE_TEMPLATES = (
    _named(ROLE_TEMPLATE, OWNER, "Cluster Owner", {"context": CLUSTER, "rules": [*EVERYTHING, _OWN]}),
    _named(ROLE_TEMPLATE, "cluster-member", "Cluster Member", {"context": CLUSTER, "rules": _READ_CLUSTER}),
    _named(
        ROLE_TEMPLATE,
        "cluster-admin",
        "Kubernetes cluster-admin",
        {"context": CLUSTER, "external": True, "externalRules": EVERYTHING, "administrative": True},
    ),
    _named(ROLE_TEMPLATE, "project-owner", "Project Owner", {"context": PROJECT, "rules": [*_WORKLOADS, _OWN]}),
    _named(ROLE_TEMPLATE, "project-member", "Project Member", {"context": PROJECT, "rules": _WORKLOADS}),
    _named(ROLE_TEMPLATE, "read-only", "Read-only", {"context": PROJECT, "rules": _READ_WORKLOADS}),
)
