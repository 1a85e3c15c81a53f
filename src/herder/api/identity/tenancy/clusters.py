"""Which names, fields and annotations of clusters, projects and namespaces belong to the manager."""

from __future__ import annotations

import re
from collections.abc import Iterator

from herder.api.capi.names import annotations_of
from herder.api.identity import projects
from herder.api.identity.projects import PROJECT_ID, SYSTEM_NAMESPACES
from herder.api.identity.tenancy.rights import Rights
from herder.api.management.kinds import PROJECT, PROVISIONING_CLUSTER
from herder.api.management.names import MANAGEMENT_NAME, is_legacy
from herder.engine.meta.kinds import Object

CLUSTER_NAME = "^c-[a-z0-9]([-a-z0-9]{0,58}[a-z0-9])?$"
"""A management Cluster owns the namespace of its name. Namespaces for other purposes never begin with `c-`."""
GENERATED_CLUSTER_NAME = "^c-m-[a-z0-9]{8}$"  # Kubeconfigs outlive a cluster: users cannot choose its name again.
PROJECT_NAMESPACE = "-p-[a-z0-9]+$"  # suffix of the namespace with a project's bindings
SYSTEM_PREFIXES = ("kube-", "cattle-", "herder-")
RANDOM_SUFFIX = "xxxxx"  # placeholder for what the server appends to generateName

BAD_CLUSTER_NAME = (
    "a management Cluster owns the namespace of its name: the name must begin with c-; …-p-… are project namespaces, "
    "and the manager generates c-m- and eight letters or digits; choose another name"
)
BAD_INTERNAL = "spec.internal: only the manager's own cluster is internal; remove the field"
BAD_WORKSPACE = "spec.fleetWorkspaceName: you may not create provisioning Clusters in this namespace; choose another"
BAD_MOVED = (
    "spec.fleetWorkspaceName: a cluster keeps its workspace, in which its provisioning Cluster is; leave the field"
)
BAD_PLACE = "clusters are not provisioned in system namespaces; choose another namespace, such as fleet-default"
BAD_ID = "status.clusterName: the manager creates the management Cluster and records its name; leave the field as it is"
BAD_PAIR_NAME = (
    'a provisioning Cluster named "local" or c- and five letters or digits stands for the management Cluster of that '
    "name, and the manager creates it; choose another name"
)
BAD_PROJECT = (
    "a Project is named p- and lower-case letters or digits, and spec.clusterName is the name of its namespace"
)
BAD_MOVE = f"annotation {PROJECT_ID}: members of the project get rights in this namespace; ask an administrator"

_CLUSTER_NAME, _PROJECT_NAMESPACE = re.compile(CLUSTER_NAME), re.compile(PROJECT_NAMESPACE)


def name_of(obj: Object) -> str:
    meta = obj["metadata"]
    return meta.get("name") or f"{meta.get('generateName') or ''}{RANDOM_SUFFIX}"


def is_cluster_name(name: str) -> bool:
    return bool(_CLUSTER_NAME.search(name)) and not _PROJECT_NAMESPACE.search(name)


def _may_be_chosen(name: str) -> bool:
    return is_cluster_name(name) and not re.search(GENERATED_CLUSTER_NAME, name)


def spec_of(obj: Object | None) -> Object:
    spec = (obj or {}).get("spec")
    return spec if isinstance(spec, dict) else {}


def management_cluster_problems(old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    if old is None and not _may_be_chosen(name_of(new)):
        yield BAD_CLUSTER_NAME
    if spec_of(new).get("internal") and spec_of(new).get("internal") != spec_of(old).get("internal"):
        yield BAD_INTERNAL
    workspace, before = (str(spec_of(each).get("fleetWorkspaceName") or "") for each in (new, old))
    usable = not _is_system(workspace) and may("create", PROVISIONING_CLUSTER, namespace=workspace)
    if workspace not in ("", before) and not usable:
        yield BAD_WORKSPACE
    if before and workspace != before:
        yield BAD_MOVED


def provisioning_cluster_problems(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    asked = annotations_of(new).get(MANAGEMENT_NAME)
    if asked and asked != annotations_of(old or {"metadata": {}}).get(MANAGEMENT_NAME) and not _may_be_chosen(asked):
        yield f"annotation {MANAGEMENT_NAME}: {BAD_CLUSTER_NAME}"
    if old is not None and _id_of(new) != _id_of(old):
        yield BAD_ID
    if old is None and _is_system(new["metadata"].get("namespace") or ""):
        yield BAD_PLACE
    if old is None and is_legacy(name_of(new)):
        yield BAD_PAIR_NAME


def _id_of(cluster: Object) -> str:
    """Name of the management Cluster, which administrators resume and log in to with the provisioning Cluster."""
    return (cluster.get("status") or {}).get("clusterName") or ""


def _is_system(namespace: str) -> bool:
    return namespace in SYSTEM_NAMESPACES or namespace.startswith(SYSTEM_PREFIXES)


def project_problems(old: Object | None, new: Object, _user: str, _may: Rights) -> Iterator[str]:
    if old is None and projects.unusable(new):
        yield BAD_PROJECT


def namespace_problems(old: Object | None, new: Object, _user: str, may: Rights) -> Iterator[str]:
    """Moving a namespace into a project grants the project's members permissions in it."""
    joined = annotations_of(new).get(PROJECT_ID)
    if not joined or joined == annotations_of(old or {"metadata": {}}).get(PROJECT_ID):
        return
    cluster, _, project = joined.partition(":")
    if not may("manage-namespaces", PROJECT, namespace=cluster, name=project):
        yield BAD_MOVE
