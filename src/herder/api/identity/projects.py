"""Projects: namespaces of one cluster that share role bindings.

A Project lives in its cluster's namespace in the manager. Its bindings live in a namespace of their own, whose name
identifies cluster and project unambiguously, so that write access there gives no control over another project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from herder.api.capi.names import annotations_of, is_deleting
from herder.api.management.kinds import PROJECT
from herder.api.management.names import PREFIX
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Projection

PROJECT_ID = "field.cattle.io/projectId"  # on a namespace: annotation <cluster>:<project>, label <project>
BY_PROJECT = "project"

DEFAULT_LABEL = "authz.management.cattle.io/default-project"
SYSTEM_LABEL = "authz.management.cattle.io/system-project"
# annotations of a management Cluster: names of its default and system projects
DEFAULT_PROJECT = f"{PREFIX}default-project"
SYSTEM_PROJECT = f"{PREFIX}system-project"
DEFAULT_NAMESPACES = frozenset({"default"})
SYSTEM_NAMESPACES = frozenset(
    {
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "cattle-system",
        "cattle-impersonation-system",
        "cattle-global-data",
        "cattle-tokens",
        "cattle-local-user-passwords",
        "herder-system",
    }
)

_MAX_NAMESPACE = 63
_NAMESPACE = re.compile(r"(.+)-(p-[a-z0-9]+)")
_NAME = re.compile(r"p-[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class ProjectKey:
    cluster: str
    project: str

    @property
    def id(self) -> str:
        return f"{self.cluster}:{self.project}"

    @property
    def namespace(self) -> str:
        """Namespace of the project's bindings."""
        return f"{self.cluster}-{self.project}"


def project_key(project: Object) -> ProjectKey:
    return ProjectKey(project["metadata"]["namespace"], project["metadata"]["name"])


def project_key_of_namespace(namespace: str) -> ProjectKey | None:
    """Return the project whose bindings are in that namespace; unambiguous, because project names contain one dash."""
    found = _NAMESPACE.fullmatch(namespace)
    return ProjectKey(found[1], found[2]) if found else None


def unusable(project: Object) -> str:
    """Return what is wrong with a project. It belongs to the cluster of its namespace, whatever
    spec.clusterName says.
    """
    place = project_key(project)
    if (project.get("spec") or {}).get("clusterName") != place.cluster:
        return f"spec.clusterName must be {place.cluster}, the namespace that the project is in"
    if not _NAME.fullmatch(place.project):
        return f'metadata.name: "{place.project}" must be p- and then lower-case letters and digits'
    if len(place.namespace) > _MAX_NAMESPACE:
        return f"metadata.name: too long, no namespace can be named {place.namespace}"
    return ""


def new_project(place: ProjectKey, shown: str, label: str) -> Object:
    return {
        "apiVersion": PROJECT.api_version,
        "kind": PROJECT.kind,
        "metadata": {"name": place.project, "namespace": place.cluster, "labels": {label: "true"}},
        "spec": {"displayName": shown, "clusterName": place.cluster},
    }


# --- namespaces of a project ----------------------------------------------------------------------------------------


def project_of(namespace: Object) -> str:
    """Return <cluster>:<project> of a namespace; "" if it is in none."""
    return annotations_of(namespace).get(PROJECT_ID, "")


def has_rights_in(place: ProjectKey, namespace: str, cluster: Object) -> bool:
    """Whether roles of a project apply in a namespace that claims to be in the project.

    System namespaces contain tokens with control over the whole cluster, and everyone who can edit namespaces can set
    the annotation (clusters before Kubernetes 1.30 enforce no policy for it). So in system namespaces only the System
    project's roles apply.
    """
    return namespace not in SYSTEM_NAMESPACES or annotations_of(cluster).get(SYSTEM_PROJECT) == place.project


def project_patch(place: ProjectKey) -> Object:
    """Return the patch that moves a namespace into a project."""
    return {"metadata": {"annotations": {PROJECT_ID: place.id}, "labels": {PROJECT_ID: place.project}}}


def indexed(namespace: Object) -> Iterable[str]:
    """Indexer: namespaces by project, except those being deleted."""
    return () if is_deleting(namespace) else (project_of(namespace),)


def _facts(namespace: Object) -> Object:
    meta = namespace["metadata"]
    going = {"deletionTimestamp": meta["deletionTimestamp"]} if meta.get("deletionTimestamp") else {}
    return {"metadata": {"name": meta["name"], "annotations": {PROJECT_ID: project_of(namespace)}, **going}}


NAMESPACES = Projection("namespace-of-project", project=_facts, indexes={BY_PROJECT: indexed})
