"""The roles that are there from the start."""

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


def _list(words: Sequence[str] | str) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


EVERYTHING = [_rule("*", "*", "*"), {"nonResourceURLs": ["*"], "verbs": ["*"]}]

_BASE = [_rule(GROUP, ("features", "settings"), _READ), _rule("ext.cattle.io", "selfusers", "create")]
_CREATE_CLUSTERS = [_rule(GROUP, "clusters", "create")]
# Creating in other namespaces is for who is trusted with what else is there. What users create gives them rights on
# that object alone; which Secrets these may be, `api/identity/tenancy.py` says.
_CREATE_OWN = {
    CREDENTIALS_NAMESPACE: [_rule("", "secrets", "create")],
    DEFAULT_WORKSPACE: [
        _rule("", "secrets", "create"),
        _rule("provisioning.cattle.io", "clusters", "create"),
        _rule("rke-machine-config.cattle.io", "*", "create"),
    ],
}
_LOOK_AROUND = [_rule(GROUP, ("dynamicschemas", "nodedrivers", "roletemplates"), _READ)]


def _named(kind: Kind, name: str, shown: str, fields: Object) -> Object:
    base = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
    return {**base, "displayName": shown, "builtin": True, **fields}


GLOBAL_ROLES = (
    _named(GLOBAL_ROLE, "admin", "Admin", {"rules": EVERYTHING, "inheritedClusterRoles": [OWNER]}),
    _named(
        GLOBAL_ROLE,
        "user",
        "User",
        {
            "rules": [*_BASE, *_LOOK_AROUND, *_CREATE_CLUSTERS],
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
)

_WORKLOADS = [
    _rule(
        "",
        ("configmaps", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"),
        _WRITE,
    ),
    _rule("", ("pods/attach", "pods/exec", "pods/portforward", "pods/log"), ("create", "get")),
    _rule(("apps", "autoscaling", "batch", "networking.k8s.io"), "*", _WRITE),
    # Who writes Endpoints leads Services and Ingresses to pods of other namespaces (CVE-2021-25740).
    _rule("", ("endpoints", "events"), _READ),
    _rule("", "namespaces", "get"),
]
_LOOK_AT_WORKLOADS = [
    _rule("", ("configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "services"), _READ),
    _rule("", "pods/log", "get"),
    _rule(("apps", "autoscaling", "batch", "networking.k8s.io"), "*", _READ),
    _rule("", "namespaces", "get"),
]
_LOOK_AT_CLUSTER = [
    _rule("", ("events", "namespaces", "nodes", "persistentvolumes"), _READ),
    _rule("storage.k8s.io", "storageclasses", _READ),
    _rule("metrics.k8s.io", ("nodes", "pods"), _READ),
]
_OWN = _rule("*", "*", "own")  # tells owners of a cluster or project from others

ROLE_TEMPLATES = (
    _named(ROLE_TEMPLATE, OWNER, "Cluster Owner", {"context": CLUSTER, "rules": [*EVERYTHING, _OWN]}),
    _named(ROLE_TEMPLATE, "cluster-member", "Cluster Member", {"context": CLUSTER, "rules": _LOOK_AT_CLUSTER}),
    _named(
        ROLE_TEMPLATE,
        "cluster-admin",
        "Kubernetes cluster-admin",
        {"context": CLUSTER, "external": True, "externalRules": EVERYTHING, "administrative": True},
    ),
    _named(ROLE_TEMPLATE, "project-owner", "Project Owner", {"context": PROJECT, "rules": [*_WORKLOADS, _OWN]}),
    _named(ROLE_TEMPLATE, "project-member", "Project Member", {"context": PROJECT, "rules": _WORKLOADS}),
    _named(ROLE_TEMPLATE, "read-only", "Read-only", {"context": PROJECT, "rules": _LOOK_AT_WORKLOADS}),
)
