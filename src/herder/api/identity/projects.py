"""Projects: namespaces of one cluster that share who may do what in them.

A Project is an object in its cluster's namespace here. Its bindings are in a namespace of its own, whose name tells
cluster and project apart in one way only: whoever may write there has no say in another project.
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

PROJECT_ID = "field.cattle.io/projectId"  # on a namespace: the annotation says <cluster>:<project>, the label <project>
BY_PROJECT = "project"

DEFAULT_LABEL = "authz.management.cattle.io/default-project"
SYSTEM_LABEL = "authz.management.cattle.io/system-project"
DEFAULT_PROJECT = f"{PREFIX}default-project"  # annotations of a management Cluster: which of its projects these are
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

_LONGEST_NAMESPACE = 63
_NAMESPACE = re.compile(r"(.+)-(p-[a-z0-9]+)")
_NAME = re.compile(r"p-[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Place:
    cluster: str
    project: str

    @property
    def id(self) -> str:
        return f"{self.cluster}:{self.project}"

    @property
    def namespace(self) -> str:
        """Where its bindings are."""
        return f"{self.cluster}-{self.project}"


def place_of(project: Object) -> Place:
    return Place(project["metadata"]["namespace"], project["metadata"]["name"])


def placed(namespace: str) -> Place | None:
    """The project whose bindings are in that namespace: names of projects have one dash, so there is only one."""
    found = _NAMESPACE.fullmatch(namespace)
    return Place(found[1], found[2]) if found else None


def unusable(project: Object) -> str:
    """What is wrong with it; a project is of the cluster whose namespace it is in, whatever it says."""
    place = place_of(project)
    if (project.get("spec") or {}).get("clusterName") != place.cluster:
        return f"spec.clusterName must be {place.cluster}, the namespace that the project is in"
    if not _NAME.fullmatch(place.project):
        return f'metadata.name: "{place.project}" must be p- and then lower-case letters and digits'
    if len(place.namespace) > _LONGEST_NAMESPACE:
        return f"metadata.name: too long, no namespace can be named {place.namespace}"
    return ""


def new_project(place: Place, shown: str, label: str) -> Object:
    return {
        "apiVersion": PROJECT.api_version,
        "kind": PROJECT.kind,
        "metadata": {"name": place.project, "namespace": place.cluster, "labels": {label: "true"}},
        "spec": {"displayName": shown, "clusterName": place.cluster},
    }


# --- its namespaces -------------------------------------------------------------------------------------------------


def project_of(namespace: Object) -> str:
    """<cluster>:<project> of a namespace; "" where it is in none."""
    return annotations_of(namespace).get(PROJECT_ID, "")


def has_rights_in(place: Place, namespace: str, cluster: Object) -> bool:
    """Whether roles of a project count in a namespace that says it is in the project.

    Namespaces of the system hold tokens that are worth the whole cluster, and who edits namespaces writes the
    annotation: a cluster before Kubernetes 1.30 enforces no policy about it. So there the System project alone counts.
    """
    return namespace not in SYSTEM_NAMESPACES or annotations_of(cluster).get(SYSTEM_PROJECT) == place.project


def joined(place: Place) -> Object:
    """The patch that brings a namespace into a project."""
    return {"metadata": {"annotations": {PROJECT_ID: place.id}, "labels": {PROJECT_ID: place.project}}}


def indexed(namespace: Object) -> Iterable[str]:
    """Indexer: those that can be in a project, by it; what goes is in none."""
    return () if is_deleting(namespace) else (project_of(namespace),)


def _facts(namespace: Object) -> Object:
    meta = namespace["metadata"]
    going = {"deletionTimestamp": meta["deletionTimestamp"]} if meta.get("deletionTimestamp") else {}
    return {"metadata": {"name": meta["name"], "annotations": {PROJECT_ID: project_of(namespace)}, **going}}


NAMESPACES = Projection("namespace-of-project", project=_facts, indexes={BY_PROJECT: indexed})
