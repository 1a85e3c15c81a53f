"""RBAC objects of the manager's service account: a ClusterRole per part of the manager, and Roles in namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from herder.api.capi.inventory import NAMESPACE, PART_OF, US
from herder.app.rbac.rights import PARTS, Right
from herder.engine.meta.kinds import Object

ACCOUNT = "herder"
PROVIDERS = "herder-providers"
AGGREGATE = "cluster.x-k8s.io/aggregate-to-manager"
"""Providers of Cluster API label their ClusterRoles with it, so that the core may use their kinds."""

_GROUP = "rbac.authorization.k8s.io"
_API = f"{_GROUP}/v1"
_LABELS = {PART_OF: US}


def role_objects(parts: Iterable[str]) -> list[Object]:
    """All roles and bindings of these parts. The namespaces of the Roles must exist."""
    return [obj for part in parts for obj in _of_part(part)]


def _of_part(part: str) -> Iterator[Object]:
    name, rights = f"herder-{part}", PARTS[part]
    everywhere = [right for right in rights if not right.namespace]
    yield _object("ClusterRole", name, rules=rules(everywhere))
    yield _binding("ClusterRoleBinding", name, "ClusterRole")
    for namespace in sorted({right.namespace for right in rights} - {""}):
        local = [right for right in rights if right.namespace == namespace]
        yield _object("Role", name, namespace, rules=rules(local))
        yield _binding("RoleBinding", name, "Role", namespace)
    if part == "core":
        selector = {"matchLabels": {AGGREGATE: "true"}}
        # Without `rules`: a controller sets them, and each apply of an empty list would conflict or revoke them.
        yield _object("ClusterRole", PROVIDERS, aggregationRule={"clusterRoleSelectors": [selector]})
        yield _binding("ClusterRoleBinding", PROVIDERS, "ClusterRole")


def rules(rights: Sequence[Right]) -> list[Object]:
    return [_rule(right) for right in rights]


def _rule(right: Right) -> Object:
    rule: Object = {"apiGroups": [right.group], "resources": [*right.resources], "verbs": [*right.verbs]}
    if right.names:
        rule["resourceNames"] = [*right.names]
    return rule


def _binding(kind: str, name: str, role_kind: str, namespace: str = "") -> Object:
    role = {"apiGroup": _GROUP, "kind": role_kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    return _object(kind, name, namespace, roleRef=role, subjects=[subject])


def _object(kind: str, name: str, namespace: str = "", **fields: object) -> Object:
    meta: Object = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": dict(_LABELS)}
    return {"apiVersion": _API, "kind": kind, "metadata": meta, **fields}
