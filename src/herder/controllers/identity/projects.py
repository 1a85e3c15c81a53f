"""Projects: a backing namespace for each project's bindings; on deletion the bindings are deleted first."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.identity import projects
from herder.api.identity.projects import ProjectKey
from herder.api.machines.conditions import merged_with_updates
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROJECT_BINDING
from herder.api.writes import delete, difference, object_patch, owner_reference, ref
from herder.controllers.identity import cluster_rights
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Patch, Write, waiting
from herder.engine.runtime.handlers import Watches, changed
from herder.engine.runtime.view import View

FINALIZER = "management.herder.io/project"


def reconcile(view: View) -> Decision:
    project = view.get(PROJECT, view.name)
    if project is None:
        return DONE
    place, cluster = projects.project_key(project), cluster_rights.cluster_of(view, view.namespace)
    if is_deleting(project):
        return _remove(view, project, place, cluster)
    problem = projects.unusable(project)
    if not problem and (cluster is None or is_deleting(cluster)):
        problem = f"cluster {place.cluster} does not exist"
    if problem or cluster is None:
        return waiting(problem, ref(PROJECT, project))
    if FINALIZER not in (project["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(project, add=True))
    return _ensure_namespace(view, project, place, cluster)


def _ensure_namespace(view: View, project: Object, place: ProjectKey, cluster: Object) -> Decision:
    namespace = view.get(NAMESPACE, place.namespace)
    if namespace is None:
        owners = [owner_reference(MANAGEMENT_CLUSTER, cluster, controller=True)]
        meta = {"name": place.namespace, "ownerReferences": owners}
        made = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": meta}
        return Decision(writes=(Create(NAMESPACE, made, "create the backing namespace of the project"),))
    if _owns_namespace(namespace, cluster):
        return Decision(
            writes=tuple(_status_writes(view, project, place, condition(NAMESPACE_CREATED, "True", "Created")))
        )
    problem = f"namespace {place.namespace} exists and belongs to another cluster; rename the project"
    conflict = condition(NAMESPACE_CREATED, "False", "Taken", problem)
    return Decision(writes=tuple(_status_writes(view, project, place, conflict))) + waiting(
        problem, ref(PROJECT, project)
    )


def _owns_namespace(namespace: Object, cluster: Object | None) -> bool:
    """An existing namespace is not taken over, because it would be deleted with the project."""
    owners = namespace["metadata"].get("ownerReferences") or ()
    return cluster is not None and any(each.get("uid") == cluster["metadata"]["uid"] for each in owners)


def _status_writes(view: View, project: Object, place: ProjectKey, backing: Object) -> Iterable[Write]:
    """This kind has no status subresource."""
    before = project.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), [backing], view.now)
    changes = difference(before, {**before, "backingNamespace": place.namespace, "conditions": conditions})
    if changes:
        locked = project["metadata"]["resourceVersion"]
        yield Patch(ref(PROJECT, project), {"status": changes}, "record the backing namespace", resource_version=locked)


# --- deletion -------------------------------------------------------------------------------------------------------


def _remove(view: View, project: Object, place: ProjectKey, cluster: Object | None) -> Decision:
    if FINALIZER not in (project["metadata"].get("finalizers") or ()):
        return DONE
    left = view.select(PROJECT_BINDING, namespace=place.namespace)
    if left:
        deletes = [delete(PROJECT_BINDING, each, "the project is deleted") for each in left if not is_deleting(each)]
        return Decision(writes=tuple(deletes)) + waiting(
            "waiting for its bindings to be deleted", ref(PROJECT_BINDING, left[0])
        )
    namespace = view.get(NAMESPACE, place.namespace)
    revoke = []
    if namespace is not None and not is_deleting(namespace) and _owns_namespace(namespace, cluster):
        revoke.append(delete(NAMESPACE, namespace, "the project is deleted"))
    return Decision(writes=(*revoke, *_finalizer(project, add=False)))


def _finalizer(project: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in project["metadata"].get("finalizers") or () if each != FINALIZER]
    wanted = {**project["metadata"], "finalizers": [*others, FINALIZER] if add else others}
    reason = "add the finalizer to delete its bindings" if add else "its bindings are deleted"
    return object_patch(PROJECT, project, {**project, "metadata": wanted}, reason)


def _of_namespace(namespace: str) -> Iterable[Key]:
    place = projects.project_key_of_namespace(namespace)
    return (Key(place.cluster, place.project),) if place else ()


CONTROLLER = Controller(
    name="project",
    kind=PROJECT,
    reconcile=reconcile,
    watches=(
        Watches(NAMESPACE, lambda namespace: _of_namespace(namespace["metadata"]["name"]), changed()),
        Watches(PROJECT_BINDING, lambda binding: _of_namespace(binding["metadata"]["namespace"]), changed()),
        Watches(MANAGEMENT_CLUSTER),
    ),
    predicate=changed("spec", "metadata.finalizers", "metadata.deletionTimestamp"),
    cluster_of=lambda project: str(project["metadata"]["namespace"]),
)
