"""Every cluster has a project for what is in no other, Default, and one for what belongs to the system. Both are made
once; namespaces that people move elsewhere stay there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import annotations_of, is_deleting
from herder.api.identity import projects
from herder.api.identity.projects import BY_PROJECT, Place
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT
from herder.api.management.names import LOCAL, TOKEN_ALPHABET
from herder.api.writing import ref
from herder.controllers.identity import granting
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Create, Decision, Observe, Patch, Ref, Write, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import Observed, View

_FIRST = (
    (projects.DEFAULT_PROJECT, "Default", projects.DEFAULT_LABEL, projects.DEFAULT_NAMESPACES),
    (projects.SYSTEM_PROJECT, "System", projects.SYSTEM_LABEL, projects.SYSTEM_NAMESPACES),
)
_UNCLAIMED = (BY_PROJECT, "")
_LOOKED_AT_SECONDS = 60.0
"""They are listed when the agent comes, at most so often: a watch of every cluster that nobody uses costs more than it
brings."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster):
        return DONE
    if not granting.has_home(view, cluster):
        return waiting(f"namespace {view.name} is not there yet")
    made = annotations_of(cluster)
    if any(annotation not in made for annotation, *_ in _FIRST):
        return Decision(writes=tuple(_make(view, cluster)))
    return _fill(view, cluster)


def _make(view: View, cluster: Object) -> Iterable[Write]:
    """They are written down on the cluster last, and what is written down is not made again. Their names follow from
    the cluster, so that a manager that takes over makes no twins of what the last one had asked for."""
    names = {annotation: _name(cluster, annotation) for annotation, *_ in _FIRST}
    for annotation, shown, label, _ in _FIRST:
        if view.get(PROJECT, names[annotation], view.name) is None:
            made = projects.new_project(Place(view.name, names[annotation]), shown, label)
            yield Create(PROJECT, made, "every cluster has it")
    yield Patch(ref(MANAGEMENT_CLUSTER, cluster), {"metadata": {"annotations": names}}, "which its projects are")


def _name(cluster: Object, annotation: str) -> str:
    digest = hashlib.sha256(f"{cluster['metadata']['uid']}/{annotation}".encode()).digest()
    return "p-" + "".join(TOKEN_ALPHABET[byte % len(TOKEN_ALPHABET)] for byte in digest[:5])


def _fill(view: View, cluster: Object) -> Decision:
    """Only namespaces that nobody has put anywhere, and only into projects that are still there."""
    if is_internal(cluster):
        names = (each["metadata"]["name"] for each in view.select(NAMESPACE, index=_UNCLAIMED))
        return Decision(writes=tuple(_joined(view, cluster, names, MANAGEMENT)))
    if not is_connected(cluster):
        return DONE
    wish = Observe(view.name, NAMESPACE, projection=projects.NAMESPACES, focus=_UNCLAIMED, freshness=_LOOKED_AT_SECONDS)
    seen = view.observed(wish)
    names = (each["metadata"]["name"] for each in (seen.objects if isinstance(seen, Observed) else ()))
    return Decision(writes=tuple(_joined(view, cluster, names, view.name)), observe=(wish,))


def _joined(view: View, cluster: Object, namespaces: Iterable[str], target: str) -> Iterable[Write]:
    found = sorted(namespaces)
    for annotation, shown, _, theirs in _FIRST:
        project = view.get(PROJECT, annotations_of(cluster)[annotation], view.name)
        if project is None or is_deleting(project):
            continue
        for name in (each for each in found if each in theirs):
            patch = projects.joined(projects.place_of(project))
            yield Patch(Ref(NAMESPACE, name), patch, f"it is of project {shown}", target=target)


def _of_namespace(namespace: Object) -> Iterable[Key]:
    """The cluster whose home it is; and our own, which has it."""
    name = namespace["metadata"]["name"]
    yield Key("", name)
    if any(name in theirs for *_, theirs in _FIRST):
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
