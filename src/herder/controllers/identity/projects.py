"""A Project has a namespace here for its bindings. When it goes, they go first: nobody keeps rights by what is gone."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.identity import projects
from herder.api.identity.projects import Place
from herder.api.machines.conditions import merged_with_updates
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROJECT_BINDING
from herder.api.writing import delete, difference, object_patch, owner_reference, ref
from herder.controllers.identity import granting
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
    place, cluster = projects.place_of(project), granting.cluster_of(view, view.namespace)
    if is_deleting(project):
        return _remove(view, project, place, cluster)
    problem = projects.unusable(project)
    if not problem and (cluster is None or is_deleting(cluster)):
        problem = f"there is no cluster {place.cluster}"
    if problem or cluster is None:
        return waiting(problem, ref(PROJECT, project))
    if FINALIZER not in (project["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(project, add=True))
    return _home(view, project, place, cluster)


def _home(view: View, project: Object, place: Place, cluster: Object) -> Decision:
    home = view.get(NAMESPACE, place.namespace)
    if home is None:
        owners = [owner_reference(MANAGEMENT_CLUSTER, cluster, controller=True)]
        meta = {"name": place.namespace, "ownerReferences": owners}
        made = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": meta}
        return Decision(writes=(Create(NAMESPACE, made, "where the project's bindings are kept"),))
    if _is_home(home, cluster):
        return Decision(
            writes=tuple(_status_writes(view, project, place, condition(NAMESPACE_CREATED, "True", "Created")))
        )
    problem = f"namespace {place.namespace} is there already and not this cluster's: the project needs another name"
    taken = condition(NAMESPACE_CREATED, "False", "Taken", problem)
    return Decision(writes=tuple(_status_writes(view, project, place, taken))) + waiting(problem, ref(PROJECT, project))


def _is_home(home: Object, cluster: Object | None) -> bool:
    """A namespace that was there before is not taken over: it would be deleted with the project."""
    owners = home["metadata"].get("ownerReferences") or ()
    return cluster is not None and any(each.get("uid") == cluster["metadata"]["uid"] for each in owners)


def _status_writes(view: View, project: Object, place: Place, backing: Object) -> Iterable[Write]:
    """The status is no subresource of this kind."""
    before = project.get("status") or {}
    conditions = merged_with_updates(before.get("conditions"), [backing], view.now)
    changes = difference(before, {**before, "backingNamespace": place.namespace, "conditions": conditions})
    if changes:
        locked = project["metadata"]["resourceVersion"]
        yield Patch(ref(PROJECT, project), {"status": changes}, "where its bindings are", resource_version=locked)


# --- the end --------------------------------------------------------------------------------------------------------


def _remove(view: View, project: Object, place: Place, cluster: Object | None) -> Decision:
    if FINALIZER not in (project["metadata"].get("finalizers") or ()):
        return DONE
    left = view.select(PROJECT_BINDING, namespace=place.namespace)
    if left:
        going = [delete(PROJECT_BINDING, each, "the project is deleted") for each in left if not is_deleting(each)]
        return Decision(writes=tuple(going)) + waiting("its bindings are being removed", ref(PROJECT_BINDING, left[0]))
    home = view.get(NAMESPACE, place.namespace)
    gone = []
    if home is not None and not is_deleting(home) and _is_home(home, cluster):
        gone.append(delete(NAMESPACE, home, "the project is deleted"))
    return Decision(writes=(*gone, *_finalizer(project, add=False)))


def _finalizer(project: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in project["metadata"].get("finalizers") or () if each != FINALIZER]
    wanted = {**project["metadata"], "finalizers": [*others, FINALIZER] if add else others}
    reason = "its bindings are to go with it" if add else "nothing of it is left"
    return object_patch(PROJECT, project, {**project, "metadata": wanted}, reason)


def _of_namespace(namespace: str) -> Iterable[Key]:
    place = projects.placed(namespace)
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
)
