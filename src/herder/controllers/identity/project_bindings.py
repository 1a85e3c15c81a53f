"""A ProjectRoleTemplateBinding lets its subject reach one cluster, and gives it the template's rights in all namespaces
of one project there, also as they join and leave it.

Both end with it: a finalizer keeps it until what it made in the cluster is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.identity import projects, roles
from herder.api.identity.projects import BY_PROJECT, Place
from herder.api.identity.shipped import PROJECT as PROJECT_CONTEXT
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    PROJECT,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.api.writing import ref
from herder.controllers.identity import granting
from herder.controllers.identity.granting import template_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Decision, Observe, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, View

FINALIZER = "management.herder.io/project-binding"


def reconcile(view: View) -> Decision:
    binding = view.get(PROJECT_BINDING, view.name)
    if binding is None:
        return DONE
    place = projects.placed(view.namespace)
    cluster = granting.cluster_of(view, place.cluster) if place else None
    if is_deleting(binding):
        return granting.removed(view, PROJECT_BINDING, binding, cluster, ROLE_BINDING, FINALIZER)
    subject, template = roles.subject_of(binding), view.get(ROLE_TEMPLATE, binding["roleTemplateName"])
    problem = _problem(view, binding, place, cluster) or _wrong(view, binding, subject, template)
    if problem or place is None or cluster is None or template is None or isinstance(subject, str):
        return granting.nothing_left(view, binding, cluster, ROLE_BINDING) + waiting(
            problem, ref(PROJECT_BINDING, binding)
        )
    if not granting.has_finalizer(binding, FINALIZER):
        return Decision(writes=granting.finalizer(PROJECT_BINDING, binding, FINALIZER, add=True))
    here = Decision(writes=tuple(granting.membership(view, binding, cluster, subject, owner=False)))
    return here + _downstream(view, binding, place, cluster, template, subject)


def _problem(view: View, binding: Object, place: Place | None, cluster: Object | None) -> str:
    """A binding is about the project whose namespace it is in, whatever it says: whoever may write there may not
    thereby hand out rights elsewhere."""
    if place is None:
        return f"namespace {view.namespace} is of no project"
    if binding["projectName"] != place.id:
        return f"projectName must be {place.id}, the project that the namespace is of"
    if cluster is None or is_deleting(cluster):
        return f"there is no cluster {place.cluster}"
    project = view.get(PROJECT, place.project, place.cluster)
    if project is None or is_deleting(project) or projects.unusable(project):
        return f"there is no project {place.id}"
    return ""


def _wrong(view: View, binding: Object, subject: Object | str, template: Object | None) -> str:
    if isinstance(subject, str):
        return subject
    if template is None:
        return f"there is no RoleTemplate {binding['roleTemplateName']}"
    return roles.unusable(template, template_of(view), PROJECT_CONTEXT)


# --- rights in the project's namespaces -----------------------------------------------------------------------------


def _downstream(
    view: View, binding: Object, place: Place, cluster: Object, template: Object, subject: Object
) -> Decision:
    role, names = roles.downstream_roles(template, template_of(view))
    if is_internal(cluster):
        inside = _inside(place, cluster, view.select(NAMESPACE, index=(BY_PROJECT, place.id)))
        made = granting.made_here(view, binding, ROLE_BINDING)
        known = [each for each in made if not roles.is_membership(each)]
        wanted = roles.project_bindings(binding, subject, names, inside)
        return Decision(writes=tuple(granting.brought(MANAGEMENT, ROLE_BINDING, role, wanted, (), known)))
    if not is_connected(cluster):
        return granting.away(cluster)
    bindings = granting.seen_bindings(place.cluster, ROLE_BINDING, binding)
    kept = granting.seen_roles(place.cluster, template)
    spaces = Observe(place.cluster, NAMESPACE, projection=projects.NAMESPACES, focus=(BY_PROJECT, place.id))
    needs = Decision(observe=(bindings, kept, spaces))
    seen, seen_roles, seen_spaces = (view.observed(wish) for wish in (bindings, kept, spaces))
    if not (isinstance(seen, Observed) and isinstance(seen_roles, Observed) and isinstance(seen_spaces, Observed)):
        return needs + granting.silence(place.cluster, seen, seen_roles, seen_spaces)
    inside = _inside(place, cluster, seen_spaces.objects)
    wanted = roles.project_bindings(binding, subject, names, inside)
    writes = granting.brought(place.cluster, ROLE_BINDING, role, wanted, seen_roles.objects, seen.objects)
    return needs + Decision(writes=tuple(writes))


def _inside(place: Place, cluster: Object, namespaces: Iterable[Object]) -> list[str]:
    found = (str(each["metadata"]["name"]) for each in namespaces)
    return [name for name in found if projects.has_rights_in(place, name, cluster)]


# --- what sets it off -----------------------------------------------------------------------------------------------


def _itself(project: Object) -> Iterable[str]:
    return (projects.place_of(project).id,)


def _cluster_of(binding: Object) -> str:
    place = projects.placed(binding["metadata"]["namespace"])
    return place.cluster if place else ""


CONTROLLER = Controller(
    name="project-role-template-binding",
    kind=PROJECT_BINDING,
    reconcile=reconcile,
    watches=(
        *granting.WATCHES,
        Watches(CLUSTER_BINDING),
        Watches(PROJECT, Indexed(BY_PROJECT, _itself), changed("metadata.deletionTimestamp", "spec.clusterName")),
        Watches(
            NAMESPACE,
            Indexed(BY_PROJECT, projects.indexed),
            changed("metadata.annotations", "metadata.deletionTimestamp"),
        ),
    ),
    indexes=granting.INDEXES,
    cluster_of=_cluster_of,
)
