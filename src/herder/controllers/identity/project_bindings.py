"""ProjectRoleTemplateBindings: grant access to a cluster, and the template's rights in all namespaces of a project.

Bindings follow namespaces that join or leave the project. A finalizer keeps the binding until its RBAC objects in the
cluster are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.events import warning
from herder.api.identity import projects, roles
from herder.api.identity.builtin_roles import PROJECT as PROJECT_CONTEXT
from herder.api.identity.projects import BY_PROJECT, ProjectKey
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import (
    CLUSTER_BINDING,
    PROJECT,
    PROJECT_BINDING,
    ROLE_TEMPLATE,
)
from herder.api.writes import ref
from herder.controllers.identity import cluster_rights
from herder.controllers.identity.cluster_rights import template_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Decision, Observe, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, View

FINALIZER = "management.herder.io/project-binding"


def reconcile(view: View) -> Decision:
    binding = view.get(PROJECT_BINDING, view.name)
    place = projects.project_key_of_namespace(view.namespace)
    cluster = cluster_rights.cluster_of(view, place.cluster) if place else None
    if binding is None:
        return DONE if place is None else cluster_rights.revoke_deleted(view, cluster, ROLE_BINDING)
    if is_deleting(binding):
        return cluster_rights.finalize(view, PROJECT_BINDING, binding, cluster, ROLE_BINDING, FINALIZER)
    subject, template = roles.subject_of(binding), view.get(ROLE_TEMPLATE, binding["roleTemplateName"])
    problem = _problem(view, binding, place, cluster) or _role_problem(view, binding, subject, template)
    if problem or place is None or cluster is None or template is None or isinstance(subject, str):
        refused = Decision(events=(warning(PROJECT_BINDING, binding, "BindingRefused", problem),) if problem else ())
        return (
            cluster_rights.revoke_all(view, binding, cluster, ROLE_BINDING)
            + waiting(problem, ref(PROJECT_BINDING, binding))
            + refused
        )
    if not cluster_rights.has_finalizer(binding, FINALIZER):
        return Decision(writes=cluster_rights.finalizer(PROJECT_BINDING, binding, FINALIZER, add=True))
    here = Decision(writes=tuple(cluster_rights.membership(view, binding, cluster, subject, owner=False)))
    return here + _downstream(view, binding, place, cluster, template, subject)


def _problem(view: View, binding: Object, place: ProjectKey | None, cluster: Object | None) -> str:
    """Why the binding is invalid.

    A binding applies to the project of its namespace only: write access there must not grant rights elsewhere.
    """
    if place is None:
        return f"namespace {view.namespace} does not belong to a project"
    if binding["projectName"] != place.id:
        return f"projectName: must be {place.id}, the project of the namespace"
    if cluster is None or is_deleting(cluster):
        return f"cluster {place.cluster} does not exist"
    project = view.get(PROJECT, place.project, place.cluster)
    if project is None or is_deleting(project) or projects.unusable(project):
        return f"project {place.id} does not exist"
    return ""


def _role_problem(view: View, binding: Object, subject: Object | str, template: Object | None) -> str:
    if isinstance(subject, str):
        return subject
    if template is None:
        return f"RoleTemplate {binding['roleTemplateName']} does not exist"
    return roles.unusable(template, template_of(view), PROJECT_CONTEXT)


# --- downstream RBAC ------------------------------------------------------------------------------------------------


def _downstream(
    view: View, binding: Object, place: ProjectKey, cluster: Object, template: Object, subject: Object
) -> Decision:
    role, names = roles.downstream_roles(template, template_of(view))
    if is_internal(cluster):
        namespaces_with_rights = _namespaces_with_rights(
            place, cluster, view.select(NAMESPACE, index=(BY_PROJECT, place.id))
        )
        made = cluster_rights.local_objects(view, binding, ROLE_BINDING)
        known = [each for each in made if not roles.is_membership(each)]
        wanted = roles.project_bindings(binding, subject, names, namespaces_with_rights)
        return Decision(writes=tuple(cluster_rights.binding_writes(MANAGEMENT, ROLE_BINDING, role, wanted, (), known)))
    if not is_connected(cluster):
        return cluster_rights.agent_disconnected(cluster)
    bindings = cluster_rights.bindings_subscription(place.cluster, ROLE_BINDING, binding)
    kept = cluster_rights.roles_subscription(place.cluster, template)
    spaces = Observe(place.cluster, NAMESPACE, projection=projects.NAMESPACES, focus=(BY_PROJECT, place.id))
    needs = Decision(observe=(bindings, kept, spaces))
    seen, observed_roles, seen_spaces = (view.observed(subscription) for subscription in (bindings, kept, spaces))
    if not (isinstance(seen, Observed) and isinstance(observed_roles, Observed) and isinstance(seen_spaces, Observed)):
        return needs + cluster_rights.unreachable(place.cluster, seen, observed_roles, seen_spaces)
    namespaces_with_rights = _namespaces_with_rights(place, cluster, seen_spaces.objects)
    wanted = roles.project_bindings(binding, subject, names, namespaces_with_rights)
    writes = cluster_rights.binding_writes(
        place.cluster, ROLE_BINDING, role, wanted, observed_roles.objects, seen.objects
    )
    return needs + Decision(writes=tuple(writes))


def _namespaces_with_rights(place: ProjectKey, cluster: Object, namespaces: Iterable[Object]) -> list[str]:
    found = (str(each["metadata"]["name"]) for each in namespaces)
    return [name for name in found if projects.has_rights_in(place, name, cluster)]


# --- watches --------------------------------------------------------------------------------------------------------


def _project_key(project: Object) -> Iterable[str]:
    return (projects.project_key(project).id,)


def _cluster_of(binding: Object) -> str:
    place = projects.project_key_of_namespace(binding["metadata"]["namespace"])
    return place.cluster if place else ""


CONTROLLER = Controller(
    name="project-role-template-binding",
    kind=PROJECT_BINDING,
    reconcile=reconcile,
    watches=(
        *cluster_rights.WATCHES,
        Watches(CLUSTER_BINDING),
        Watches(PROJECT, Indexed(BY_PROJECT, _project_key), changed("metadata.deletionTimestamp", "spec.clusterName")),
        Watches(
            NAMESPACE,
            Indexed(BY_PROJECT, projects.indexed),
            changed("metadata.annotations", "metadata.deletionTimestamp"),
        ),
    ),
    indexes=cluster_rights.INDEXES,
    cluster_of=_cluster_of,
)
