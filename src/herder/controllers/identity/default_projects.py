"""Default and System project of each cluster.

Both are created once. Namespaces that users move to other projects stay there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.identity import projects
from herder.api.identity.projects import BY_PROJECT, ProjectKey
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT
from herder.api.management.names import LOCAL, TOKEN_ALPHABET
from herder.api.writes import ref
from herder.controllers.identity import cluster_rights
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Create, Decision, Observe, Patch, Ref, Write, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

_PROJECTS = (
    (projects.DEFAULT_PROJECT, "Default", projects.DEFAULT_LABEL, projects.DEFAULT_NAMESPACES),
    (projects.SYSTEM_PROJECT, "System", projects.SYSTEM_LABEL, projects.SYSTEM_NAMESPACES),
)
_UNASSIGNED = (BY_PROJECT, "")
_LIST_INTERVAL_SECONDS = 60.0
"""Minimum interval between lists; a watch on every idle cluster would cost more than it helps."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster):
        return DONE
    if not cluster_rights.has_namespace(view, cluster):
        return waiting(f"namespace {view.name} does not exist yet")
    made = annotations_of(cluster)
    if any(annotation not in made for annotation, *_ in _PROJECTS):
        return Decision(writes=tuple(_create_projects(view, cluster)))
    return _assign_namespaces(view, cluster)


def _create_projects(view: View, cluster: Object) -> Iterable[Write]:
    """Create the projects, then record them on the cluster; recorded projects are not created again.

    Names are derived from the cluster, so that a new leader creates no duplicates.
    """
    names = {annotation: _name(cluster, annotation) for annotation, *_ in _PROJECTS}
    for annotation, display_name, label, _ in _PROJECTS:
        if view.get(PROJECT, names[annotation], view.name) is None:
            made = projects.new_project(ProjectKey(view.name, names[annotation]), display_name, label)
            yield Create(PROJECT, made, "create the Default and System projects")
    yield Patch(
        ref(MANAGEMENT_CLUSTER, cluster), {"metadata": {"annotations": names}}, "record the Default and System projects"
    )


def _name(cluster: Object, annotation: str) -> str:
    digest = hashlib.sha256(f"{cluster['metadata']['uid']}/{annotation}".encode()).digest()
    return "p-" + "".join(TOKEN_ALPHABET[byte % len(TOKEN_ALPHABET)] for byte in digest[:5])


def _assign_namespaces(view: View, cluster: Object) -> Decision:
    """Assign namespaces without a project to the Default or System project, if that still exists."""
    if is_internal(cluster):
        names = (each["metadata"]["name"] for each in view.select(NAMESPACE, index=_UNASSIGNED))
        return Decision(writes=tuple(_assignments(view, cluster, names, MANAGEMENT)))
    if not is_connected(cluster):
        return DONE
    subscription = Observe(
        view.name, NAMESPACE, projection=projects.NAMESPACES, focus=_UNASSIGNED, freshness=_LIST_INTERVAL_SECONDS
    )
    seen = view.observed(subscription)
    names = (each["metadata"]["name"] for each in (seen.objects if isinstance(seen, Observed) else ()))
    return Decision(writes=tuple(_assignments(view, cluster, names, view.name)), observe=(subscription,))


def _assignments(view: View, cluster: Object, namespaces: Iterable[str], target: str) -> Iterable[Write]:
    found = sorted(namespaces)
    for annotation, display_name, _, default_namespaces in _PROJECTS:
        project = view.get(PROJECT, annotations_of(cluster)[annotation], view.name)
        if project is None or is_deleting(project):
            continue
        for name in (each for each in found if each in default_namespaces):
            patch = projects.project_patch(projects.project_key(project))
            yield Patch(Ref(NAMESPACE, name), patch, f"assign it to project {display_name}", target=target)


def _of_namespace(namespace: Object) -> Iterable[Key]:
    """The cluster that owns the namespace, and the local cluster if it is one of its default namespaces."""
    name = namespace["metadata"]["name"]
    yield Key("", name)
    if any(name in default_namespaces for *_, default_namespaces in _PROJECTS):
        yield Key("", LOCAL)


CONTROLLER = Controller(
    name="first-projects",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(NAMESPACE, _of_namespace, changed("metadata.deletionTimestamp", "metadata.annotations")),
        Watches(PROJECT),
    ),
    predicate=changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp"),
    indexes={NAMESPACE: {BY_PROJECT: projects.indexed}},
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
